"""Dumps of models that transformers runs: the numbers of each text alone; what the header says of them."""

import shutil

import numpy as np
import pytest

from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.batch.dump import write_dump
from attnscope.batch.dump_reader import Dump
from attnscope.batch.header import Settings
from attnscope.batch.loading import DumpConfig
from attnscope.request.run_config import TextInput
from attnscope.run.session import inspect
from tests.helpers.architectures import ONE_PART, TWO_PARTS, make, save
from tests.helpers.requests import requested

TEXTS = (
    "the bank by the river",
    "water",
    "we sat on the old bank",
    "the the the",
    "we sat on it all day",
)
LONG = tuple(
    " ".join(["the bank by the river was old and we sat on it all day while water ran"] * 2)[:n]
    for n in (99, 110)
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    return {
        name: save(path / name, make(name, (ONE_PART | TWO_PARTS)[name])) for name in ("opt", "t5")
    }


def dump(tmp_path, lines, settings, name="dump.jsonl", **run):
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(f"{line}\n" for line in lines))
    given = requested(texts=(), **run)
    write_dump(
        DumpConfig(str(source), None, tmp_path / name, settings, given), lambda summary, total: None
    )
    dumped = Dump(tmp_path / name)
    return dumped.header, list(dumped.records())


def test_a_dump_of_a_decoder_by_transformers_equals_eager_attention(folders, tmp_path):
    run = {"model": str(folders["opt"]), "engine": "transformers"}
    settings = Settings(keep=("top", "rows", "stages"), stages=("weights",), top=2)
    lines = [f'{{"text":"{text}"}}' for text in (*TEXTS, *LONG)]
    header, records = dump(tmp_path, lines, settings, **run)
    assert (header.provenance.engine, header.provenance.family) == ("transformers", "opt")
    assert (header.mask.own, header.mask.used, header.mask.what_if) == ("own", "own", None)
    for record, text in zip(records, (*TEXTS, *LONG), strict=True):
        alone = requested(
            (TextInput(text),), layer="all", head="all", stages=("weights",), top=2, **run
        )
        (report,) = inspect(alone).texts
        assert record.tokens == report.tokens
        for unit, head in enumerate(report.heads):
            np.testing.assert_allclose(
                record.stages["weights"][unit], head.stages["weights"], rtol=0, atol=1e-6
            )
            np.testing.assert_allclose(
                record.rows.entropy[unit], head.rows.entropy, rtol=0, atol=1e-5
            )


@pytest.mark.parametrize("part", ["encoder", "decoder", "cross"])
def test_every_part_of_two_halves(folders, tmp_path, part):
    run = {"model": str(folders["t5"]), "engine": "transformers", "part": part}
    contexts = [None if part == "encoder" else " ".join(text.split()[::-1] * 2) for text in TEXTS]
    lines = [
        f'{{"text":"{text}"}}' if context is None else f'{{"text":"{text}","context":"{context}"}}'
        for text, context in zip(TEXTS, contexts, strict=True)
    ]
    header, records = dump(tmp_path, lines, Settings(keep=("stages",), stages=("weights",)), **run)
    assert header.provenance.part == part
    for record, text, context in zip(records, TEXTS, contexts, strict=True):
        given = TextInput(text, None, context)
        (report,) = inspect(
            requested((given,), layer="all", head="all", stages=("weights",), **run)
        ).texts
        for unit, head in enumerate(report.heads):
            np.testing.assert_allclose(
                record.stages["weights"][unit], head.stages["weights"], rtol=0, atol=1e-6
            )


def test_another_engine_or_part_does_not_go_on(folders, tmp_path):
    lines = ['{"text":"water","context":"river"}']
    run = {"model": str(folders["t5"]), "engine": "transformers"}
    dump(tmp_path, lines, Settings(), part="decoder", **run)
    with pytest.raises(AttnscopeError, match="started with part='decoder', now it is part='cross'"):
        dump(tmp_path, lines, Settings(), part="cross", **run)
    with pytest.raises(UsageError, match="only works for a model with an encoder"):
        dump(tmp_path, lines, Settings(), name="other.jsonl", part="cross")


def test_a_hash_of_the_weights_binds_a_dump_to_every_byte_of_them(tmp_path, minilm):
    """The fingerprint looks at headers and samples; a number between them shows in the hash alone."""
    folder = shutil.copytree(minilm, tmp_path / "model")
    settings, lines = Settings(layer="0"), ['{"text":"water"}']
    header, _ = dump(tmp_path, lines, settings, model=str(folder), hash_weights=True)
    assert len(header.provenance.weights_hash) == 64
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-20_000_001] ^= 1
    weights.write_bytes(data)
    with pytest.raises(AttnscopeError, match="was started with other weights of the model"):
        dump(tmp_path, lines, settings, model=str(folder), hash_weights=True)
