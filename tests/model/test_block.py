"""Recorders that share a block hold what each would hold alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attnscope.findings.row_statistics import KEY_TOKENS, LINEAR, STATISTICS
from attnscope.model.attention import attend
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.recorders import (
    ColumnRecorder,
    KeyTokens,
    MatrixRecorder,
    RecordedTokens,
    RowRecorder,
    TopRecorder,
)
from attnscope.model.trace import HeadSelection, Trace, make_trace
from attnscope.request.masks.terms import Causal
from attnscope.request.record_spec import RecordSpec
from tests.devices.simulation import counts

TEXTS, HEADS, TOKENS, WIDTH, LAYERS = 2, 4, 7, 8, 3
ROWS, COLUMNS = [1, 2, 5], [0, 3]


def layers(device: str) -> list[AttentionInputs]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for layer in range(LAYERS):
        q, k, v = (
            torch.randn(TEXTS, HEADS, TOKENS, WIDTH, generator=generator).to(device)
            for _ in range(3)
        )
        made.append(AttentionInputs(layer, q, k, v, AttentionSpec(0.3, Causal())))
    return made


def tokens(device: str) -> RecordedTokens:
    every = torch.ones(TEXTS, TOKENS, dtype=torch.bool, device=device)
    return RecordedTokens(KeyTokens(dict.fromkeys(KEY_TOKENS, ~every), every), every, every, every)


def passed(units: list[HeadSelection], device: str = "cpu") -> Trace:
    spec = RecordSpec(
        ("masked", "weights"), ROWS, ROWS, COLUMNS, 2, "value", parts=("top", "rows", "columns")
    )
    trace = make_trace(units, spec, tokens(device))
    with torch.inference_mode():
        for inputs in layers(device):
            attend(inputs, trace.recorders.get(inputs.layer, ()), need_output=False)
    counts.reset()
    trace.finish()
    return trace


def test_units_of_several_layers_in_any_order_are_those_of_recorders_alone() -> None:
    units = [HeadSelection((layer,), (head,)) for layer, head in ((2, 1), (0, 3), (2, 0), (1, 2))]
    trace = passed(units)
    known = tokens("cpu")
    for text in range(TEXTS):
        arrays = trace.arrays(text)
        for n, unit in enumerate(units):
            inputs, heads = layers("cpu")[unit.layers[0]], unit.heads
            rows = RowRecorder(heads, ROWS, known.sources)
            top = TopRecorder(2, "value", heads, ROWS, known.eligible)
            columns = ColumnRecorder(heads, ROWS, known.shown, known.sources)
            matrices = MatrixRecorder(("masked", "weights"), heads, ROWS, COLUMNS)
            attend(inputs, [rows, top, columns, matrices], need_output=False)
            alone = {f"rows.{name}": values for name, values in rows.recorded.items()}
            alone |= {
                "top.keys": top.keys,
                **{f"top.{name}": numbers for name, numbers in top.measures.items()},
            }
            alone |= {"columns": columns.compute(), "fully_masked": rows.fully_masked}
            alone |= {f"stages.{stage}": matrix for stage, matrix in matrices.compute().items()}
            assert alone.keys() == arrays.keys()
            for path, numbers in alone.items():
                np.testing.assert_allclose(
                    arrays[path][n], numbers[text, 0], rtol=1e-6, atol=1e-6, err_msg=path
                )


@pytest.mark.parametrize("special", [False, True], ids=["every token ranks", "one is left out"])
def test_heads_in_any_order_have_the_strongest_sources_of_each_alone(special: bool) -> None:
    """Of three heads, the first and the last share a tile."""
    shared_keys = torch.randn(TEXTS, 2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(2))
    inputs, heads = replace(layers("cpu")[0], k=shared_keys, v=shared_keys), [1, 3, 2]
    eligible = torch.ones(TEXTS, TOKENS, dtype=torch.bool)
    eligible[:, 0] = not special
    together = TopRecorder(2, "weight", heads, ROWS, eligible)
    alone = [TopRecorder(2, "weight", [head], ROWS, eligible) for head in heads]
    attend(inputs, [together, *alone], need_output=False)
    assert torch.equal(together.keys, torch.cat([recorder.keys for recorder in alone], 1))


def test_statistics_of_a_mean_are_the_average_of_its_heads() -> None:
    every = [HeadSelection((layer,), (head,)) for layer in (0, 2) for head in (1, 3)]
    mean = HeadSelection((0, 2), (1, 3), mean_layer=True, mean_head=True)
    heads, of_mean = passed(every).arrays(1), passed([mean]).arrays(1)
    for name in STATISTICS:
        if LINEAR[name]:
            np.testing.assert_allclose(
                of_mean[f"rows.{name}"][0], heads[f"rows.{name}"].mean(0), atol=1e-6
            )
    for path in ("columns", "stages.weights"):
        np.testing.assert_allclose(of_mean[path][0], heads[path].mean(0), atol=1e-6)


@pytest.mark.cuda
def test_a_pass_leaves_the_device_in_one_copy_and_its_matrices_in_one_for_each_stage(
    simulated: str,
) -> None:
    units = [HeadSelection((layer,), (head,)) for layer in range(LAYERS) for head in range(HEADS)]
    there, here = passed(units, simulated), passed(units)
    passed(units, simulated)
    assert counts.waits == {"read": 3}
    for text in range(TEXTS):
        expected = here.arrays(text)
        assert there.arrays(text).keys() == expected.keys()
        for path, array in there.arrays(text).items():
            np.testing.assert_allclose(array, expected[path], rtol=1e-5, atol=1e-5, err_msg=path)
