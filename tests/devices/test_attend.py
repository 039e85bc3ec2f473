"""attend() on a GPU gives the numbers of the CPU: random layers, every recorder, cuts, sinks, narrow types."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnscope.model.attention import attend
from attnscope.model.cuts import BatchCuts, EdgeCut, HeadCut, LayerCut
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.logit_parts import HeadLogits
from attnscope.model.matmul import has_float64
from attnscope.model.recorders import (
    AlignmentRecorder,
    AveragedRows,
    ColumnRecorder,
    HeadRecorder,
    KeyTokens,
    MatrixRecorder,
    MeanOutputRecorder,
    MeanRowRecorder,
    PackedMatrices,
    PooledRecorder,
    RowRecorder,
    SpanRecorder,
    SpanTokens,
    TargetRecorder,
    TopRecorder,
    UniformRecorder,
    ValueRecorder,
    WordRecorder,
)
from attnscope.model.recorders.sums import ReceivedRecorder
from attnscope.model.tile import Recorder
from attnscope.request.masks.terms import Causal, Mask, SlidingWindow
from tests.helpers.attention_cases import Case, cases, masks

WIDTH = 5  # of the residual stream, as in `cases`
STAGES = ["scores", "scaled", "masked", "weights", "output", "value", "projected", "allowed"]


@dataclass(frozen=True)
class Call:
    """A random call of attend(), with everything on the CPU.

    Attributes:
        inputs: The layer.
        key_tokens: The key side.
        observed: See attend.
        cuts: Place in the batch to its cuts.
        need_output: See attend.
        tile: Scores in a tile; None for what suits the device.
        heads: Heads of most recorders.
        rows: Rows of most recorders.
        columns: Columns of matrices.
        seed: Decides which tokens count.
        count: Strongest keys per row.
        by: What ranks them.
        stages: Stages of matrices.
        kind: Which recorders.
    """

    inputs: AttentionInputs
    key_tokens: KeyTokens
    observed: Mask | None
    cuts: Mapping[int, LayerCut] | None
    need_output: bool
    tile: int | None
    heads: list[int]
    rows: list[int]
    columns: list[int]
    seed: int
    count: int
    by: str
    stages: list[str]
    kind: str


@st.composite
def calls(draw: st.DrawFn) -> Call:
    case: Case = draw(cases())
    batch, n_heads, n_queries, n_keys = case.sizes

    def subset(size: int) -> list[int]:
        return sorted(draw(st.sets(st.integers(0, size - 1), min_size=1)))

    dtype = draw(st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16]))
    narrow = {name: getattr(case.inputs, name).to(dtype) for name in ("q", "k", "v", "out_weight")}
    inputs = replace(case.inputs, **narrow)
    if draw(st.booleans()):
        sinks = torch.linspace(-1, 1, n_heads).to(dtype)
        inputs = replace(inputs, spec=replace(inputs.spec, sinks=sinks))
    observed = draw(st.none() | masks(batch, n_queries, n_keys))
    kind = draw(
        st.sampled_from(["matrices", "ranks", "sums", "patterns", "logits", "nothing", "all"])
    )
    cuts = None
    # no caller ranks where it cuts
    if observed is None and kind not in ("ranks", "all") and draw(st.booleans()):
        replaced = HeadCut(n_heads - 1, torch.ones(inputs.v.shape[-1]))
        kept_sum = EdgeCut([0, n_heads - 1], [n_queries - 1], [0], renormalised=False)
        edges = draw(st.sampled_from([(), (EdgeCut([0], [0], [0]),), (kept_sum,)]))
        layer_cut = LayerCut(draw(st.sampled_from([(), (HeadCut(0),), (replaced,)])), edges)
        cuts = {draw(st.integers(0, batch - 1)): layer_cut}
    return Call(
        inputs,
        case.sources,
        observed,
        cuts,
        draw(st.booleans()),
        draw(st.sampled_from([None, case.tile])),
        subset(n_heads),
        subset(n_queries),
        subset(n_keys),
        draw(st.integers(0, 1000)),
        draw(st.integers(0, 10)),
        draw(st.sampled_from(["weight", "value", "projected"])),
        draw(st.sampled_from([["weights"], ["masked", "weights", "output"], STAGES])),
        kind,
    )


def moved(thing: Any, device: torch.device) -> Any:
    """The same value with every tensor in it on the device."""
    if isinstance(thing, Tensor):
        return thing.to(device)
    if is_dataclass(thing) and not isinstance(thing, type):
        return type(thing)(
            **{f.name: moved(getattr(thing, f.name), device) for f in fields(thing) if f.init}
        )
    if isinstance(thing, Mapping):
        return {name: moved(value, device) for name, value in thing.items()}
    if isinstance(thing, tuple | list):
        return type(thing)(moved(value, device) for value in thing)
    return thing


def recorders_of(
    call: Call, inputs: AttentionInputs, device: torch.device
) -> Sequence[tuple[Any, Callable[..., Any]]]:
    """Recorders, each with a function that returns its tensors by name."""
    generator = torch.Generator().manual_seed(call.seed)
    (batch, n_heads, n_queries, _), n_keys = inputs.q.shape, inputs.k.shape[2]
    heads, rows = call.heads, call.rows

    def chance(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=generator) < 0.8).to(device)

    keys = moved(call.key_tokens, device)
    shown, words, eligible = chance(batch, n_queries), chance(batch, n_keys), chance(batch, n_keys)
    targets = torch.randint(-1, n_keys, (batch, len(rows), 3), generator=generator).to(device)
    direction = torch.randn(batch, WIDTH, generator=generator, dtype=torch.float64)
    direction = direction.to(device) if has_float64(device) else direction
    spans = SpanTokens(torch.randint(-1, 3, (batch, n_keys), generator=generator).to(device), 3)
    targets_of_averages = torch.randint(-1, n_keys, (batch, n_queries, 3), generator=generator)
    left_out = ~shown | chance(batch, n_queries)
    averaged = AveragedRows(~shown, left_out, targets_of_averages.to(device))
    packed = PackedMatrices(len(heads), [(len(rows), len(call.columns))] * batch)
    matrices = call.stages, heads, rows, call.columns

    def texts(_: object) -> dict[str, Tensor]:
        assert {run.device for stage in packed._kept.values() for run in stage} <= {device}
        return {
            f"{stage}{n}": matrix.to(device)
            for n in range(batch)
            for stage, matrix in packed.text(n).items()
        }

    def of_rows(recorder: RowRecorder) -> dict[str, Tensor | None]:
        return {
            **recorder.recorded,
            "masked": recorder.fully_masked,
            "sink": recorder.of_layers.get("sink"),
        }

    def computed(recorder: Any) -> dict[str, Tensor]:
        return {"": recorder.compute()}

    def of_spans(recorder: SpanRecorder) -> dict[str, Tensor | None]:
        return {"": recorder.compute(), "sink": recorder.sink()}

    def fields_of(*names: str) -> Callable[[Any], dict[str, Tensor]]:
        return lambda recorder: {name: getattr(recorder, name) for name in names}

    def ranked(recorder: TopRecorder) -> dict[str, Tensor]:
        return {"keys": recorder.keys, **recorder.measures}

    kinds: dict[str, list[tuple[Any, Callable[..., Any]]]] = {
        "matrices": [
            (MatrixRecorder(*matrices), lambda recorder: recorder.compute()),
            (MatrixRecorder(*matrices, mean=True), lambda recorder: recorder.compute()),
            (MatrixRecorder(*matrices, into=(packed, 0)), texts),
        ],
        "ranks": [
            (TopRecorder(call.count, call.by, heads, rows, eligible), ranked),
            (
                TopRecorder(
                    call.count, call.by, heads, range(n_queries), torch.ones_like(eligible)
                ),
                ranked,
            ),
            (RowRecorder(heads, rows, keys), of_rows),
            (RowRecorder(range(n_heads), range(n_queries), keys), of_rows),
            (MeanRowRecorder(heads, rows, keys, 1), lambda recorder: recorder.recorded),
        ],
        "sums": [
            *(
                (ReceivedRecorder(heads, rows, shown, keys, mean=m), computed)
                for m in (False, True)
            ),
            *(
                (PooledRecorder(heads, 3, shown, keys, real=shown | True, mean=m), computed)
                for m in (False, True)
            ),
            *(
                (ColumnRecorder(heads, rows, shown, keys, mean=m, by=call.by), computed)
                for m in (False, True)
            ),
            (MeanOutputRecorder(heads, inputs.v.shape[-1], shown | True), computed),
            (HeadRecorder(heads, rows, averaged, keys), computed),
        ],
        "patterns": [
            *(
                (TargetRecorder(heads, rows, targets, strongest=s), fields_of("sums"))
                for s in (False, True)
            ),
            (WordRecorder(heads, shown, words), fields_of("sums", "squares", "cells", "excess")),
            (
                WordRecorder(heads, shown, words, reach=None),
                fields_of("sums", "squares", "cells", "excess"),
            ),
            (UniformRecorder(heads, shown), fields_of("shared", "rows_seen")),
            (AlignmentRecorder(heads, shown, words), fields_of("sums")),
            (ValueRecorder(heads, rows), computed),
            *(
                (SpanRecorder(heads, spans, mean=m), of_spans)
                for m in (False, True)
                if n_queries == n_keys
            ),
        ],
        "logits": [
            (
                HeadLogits(n_heads, [min(1, n_queries - 1)] * batch, direction, n_keys),
                fields_of("added"),
            ),
        ],
    }
    return [pair for kind, pairs in kinds.items() if call.kind in (kind, "all") for pair in pairs]


def numbers(call: Call, device: torch.device) -> dict[str, Tensor]:
    """Everything that a call gives on a device."""
    inputs = moved(call.inputs, device)
    recorders = recorders_of(call, inputs, device)
    with torch.inference_mode():
        output = attend(
            inputs,
            [recorder for recorder, _ in recorders],
            observed=moved(call.observed, device),
            need_output=call.need_output,
            tile_elements=call.tile,
            cuts=None if call.cuts is None else BatchCuts(moved(call.cuts, device)),
        )
    assert output is None or output.device == device
    found = {
        f"{n}.{name}": x
        for n, (recorder, get) in enumerate(recorders)
        for name, x in get(recorder).items()
    }
    # the CPU has the numbers in float64
    places = {device} if has_float64(device) else {device, torch.device("cpu")}
    assert {x.device for x in found.values() if x is not None} <= places
    return {
        name: x.cpu().double() for name, x in {**found, "output": output}.items() if x is not None
    }


def compare(call: Call, device: str) -> None:
    cpu, other = numbers(call, torch.device("cpu")), numbers(call, torch.device(device))
    assert cpu.keys() == other.keys()
    narrow = call.inputs.q.dtype != torch.float32
    for name, expected in cpu.items():
        torch.testing.assert_close(
            other[name],
            expected,
            rtol=2e-3 if narrow else 2e-4,
            atol=4e-3 if narrow else 3e-5,
            equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def leaves(cls: type[Recorder]) -> list[type[Recorder]]:
    return [leaf for below in cls.__subclasses__() for leaf in leaves(below)] or [cls]


def test_every_recorder_is_compared() -> None:
    """Those that only watch tiles, or copy them for `check` and `explain`, keep no numbers of their own."""
    rooms = ("attnscope.model.recorders.", "attnscope.model.logit_parts")
    every = {leaf.__name__ for leaf in leaves(Recorder) if leaf.__module__.startswith(rooms)}
    assert every - globals().keys() == set()


@pytest.mark.cuda
@settings(
    max_examples=int(os.environ.get("ATTNSCOPE_EXAMPLES", 60)),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(call=calls())
def test_a_layer_on_a_gpu_has_the_numbers_of_the_cpu(gpu: str, call: Call) -> None:
    compare(call, gpu)


@pytest.mark.cuda
@pytest.mark.parametrize("recorded", [[0, 1], [0, 2], []])
def test_a_bias_gets_numbers_of_heads_that_are_on_the_gpu(gpu: str, recorded: list[int]) -> None:
    """Of recorded heads, and of those that only the next layer needs."""

    def bias(queries: Tensor, keys: Tensor, heads: Tensor) -> Tensor:
        return (keys - queries) * heads[:, None, None] * 0.1

    outputs = []
    for device in ("cpu", gpu):
        sides = torch.randn(3, 1, 4, 6, 2, generator=torch.Generator().manual_seed(0)).to(device)
        recorder = MatrixRecorder(["weights"], recorded, range(6), range(6))
        inputs = AttentionInputs(0, *sides, AttentionSpec(1.0, Causal(), bias=bias))
        outputs.append(attend(inputs, [recorder] if recorded else [], need_output=True))
    torch.testing.assert_close(outputs[1].cpu(), outputs[0])


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tile_whose_queries_see_no_key_is_computed_on_the_gpu(
    gpu: str, dtype: torch.dtype
) -> None:
    """The second of two queries is too far from the only key, and has a tile of its own."""
    weights = []
    for device in ("cpu", gpu):
        q, k = (
            torch.ones(1, 1, 2, 4, dtype=dtype, device=device),
            torch.ones(1, 1, 1, 4, dtype=dtype, device=device),
        )
        recorder = MatrixRecorder(["weights"], [0], [0, 1], [0])
        attend(
            AttentionInputs(0, q, k, k, AttentionSpec(1.0, SlidingWindow(1))),
            [recorder],
            tile_elements=1,
        )
        weights.append(recorder.compute()["weights"].cpu())
    torch.testing.assert_close(weights[1], weights[0], equal_nan=True)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=calls())
def test_a_layer_on_a_device_without_float64_has_the_numbers_of_the_cpu(
    simulated: str, call: Call
) -> None:
    compare(call, "mps:0")
