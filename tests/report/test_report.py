import json

import jsonschema
import numpy as np
import orjson
import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.findings.codec import from_json, to_json
from attnscope.findings.heads import STAGES
from attnscope.request.run_config import TextInput
from attnscope.run.session import inspect
from tests.helpers.requests import requested
from tests.helpers.schemas import SCHEMA_FILE, json_schema, validate


def run(text="The bank by the river", **options):
    return inspect(requested(texts=(TextInput(text),), **options))


@pytest.fixture(scope="module")
def causal():
    return run(config="causal", head="all", stages=STAGES)


def test_the_published_schema_is_the_one_that_the_types_say():
    assert json.loads(SCHEMA_FILE.read_bytes()) == json_schema(), (
        "run: python -m tests.helpers.schemas"
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"head": "mean", "layer": "mean"},
        {"by": "projected"},
        {"mask": "causal", "what_if": "same-scores"},
    ],
    ids=["plain", "mean", "projected", "what-if"],
)
def test_real_output_keeps_to_the_published_schema(options):
    validate(json.loads(to_json(run(config="bidirectional", stages=STAGES, **options))), "report")


def test_the_schema_refuses_a_report_without_its_mask(causal):
    broken = json.loads(to_json(causal))
    del broken["mask"]
    with pytest.raises(jsonschema.ValidationError, match="mask"):
        validate(broken, "report")


def test_every_float_survives_a_round_trip_to_the_last_bit(causal):
    again = from_json(to_json(causal))
    assert again.texts[0].heads and again.provenance == causal.provenance
    for before, after in zip(causal.texts[0].heads, again.texts[0].heads, strict=True):
        for stage in STAGES:
            assert before.stages[stage].dtype == after.stages[stage].dtype == np.float32
            np.testing.assert_array_equal(before.stages[stage], after.stages[stage])
        np.testing.assert_array_equal(before.top.keys, after.top.keys)
        np.testing.assert_array_equal(before.top.weight, after.top.weight)
        np.testing.assert_array_equal(before.rows.entropy, after.rows.entropy)


def test_floats_are_written_in_their_shortest_digits(causal):
    text = to_json(causal).decode()
    value = causal.texts[0].heads[0].stages["weights"][2, 0]
    assert f"[{np.format_float_positional(value, trim='-')}," in text
    assert "NaN" not in text and "Infinity" not in text


def test_null_in_masked_means_not_allowed(causal):
    masked = json.loads(to_json(causal))["texts"][0]["heads"]["stages"]["masked"][0]
    assert [cell is None for cell in masked[1]] == [False, False, True, True, True]


def test_another_version_is_refused(causal):
    with pytest.raises(
        AttnscopeError, match=r"schema is 'attnscope\.report/0'; this version reads"
    ):
        from_json(to_json(causal).replace(b"attnscope.report/2", b"attnscope.report/0"))


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"texts": 3}', b"\xff"])
def test_what_is_no_report_is_refused(data):
    with pytest.raises(AttnscopeError, match="not an attnscope report"):
        from_json(data)


@pytest.mark.parametrize(
    "shape", [(0,), (7,), (3, 0), (0, 3), (11, 3), (2, 30, 5), (3, 2, 40), (2, 2, 3, 9), (200,)]
)
def test_arrays_in_pieces_are_written_as_in_one(monkeypatch, shape):
    """Pieces of at most 16 numbers, for arrays longer, wider and smaller than that."""
    from attnscope.findings import codec

    array = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    array = np.where(array > 1, np.float32("nan"), array)
    expected = orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
    monkeypatch.setattr(codec, "_PIECE", 16)
    assert bytes(codec.encode_array(array)) == expected
