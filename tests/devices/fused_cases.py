"""The fused kernel against operators, on a GPU or in Triton's interpreter: test_fused.py starts it for the latter.

What keys receive is compared with its definition in float64; on a GPU, it has the same bytes if it is computed again.

    TRITON_INTERPRET=1 python -m tests.devices.fused_cases [--draws N] [--seed S] [CASE …]
    python -m tests.devices.fused_cases --device cuda [--draws N] [--seed S] [CASE …]

It computes the named cases, all of them by default, and N random ones, and prints each. On a GPU, the kernel has the
sizes of blocks that it has for users, and random layers are larger and of every width and type.
"""

import argparse
import os
import random
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from attnscope.findings.head_averages import AVERAGES
from attnscope.findings.row_statistics import KEY_TOKENS
from attnscope.model import fused_rows
from attnscope.model.attention import attend
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.masks import Intersection, PaddingMask, intersect
from attnscope.model.recorders import (
    AveragedRows,
    ColumnRecorder,
    HeadRecorder,
    KeyTokens,
    MatrixRecorder,
    RowRecorder,
    TopRecorder,
)
from attnscope.model.tile import Recorder
from attnscope.model.tiling import TileShape
from attnscope.request.masks.terms import Bidirectional, Causal, Mask, Prefix, SlidingWindow

SMALL = {"BM": 32, "BN": 32, "SUB": 8, "ROWS": 32}
PADDING = PaddingMask(torch.tensor([70, 41]))


@dataclass(frozen=True)
class Case:
    """A layer and what is recorded of it.

    Attributes:
        mask: Its mask.
        batch: Texts.
        tokens: Tokens of a text.
        width: Width of a head.
        heads: Query heads.
        groups: Key/value heads.
        dtype: Type of queries, keys and values.
        softcap: See AttentionSpec.
        sinks: Logits of sinks, of as many heads.
        factor: What queries are multiplied by.
        integers: Queries and keys are small integers, so that many scores are equal to the last bit.
        by: What ranks keys.
        count: Keys that are ranked.
        recorded: Heads that are recorded; None for all.
        rows: Rows that are recorded; None for all.
        blocks: Sizes of the kernel's blocks that differ from SMALL.
        seed: Seed of the numbers.
    """

    mask: Mask
    batch: int = 1
    tokens: int = 70
    width: int = 16
    heads: int = 2
    groups: int = 1
    dtype: torch.dtype = torch.float32
    softcap: float | None = None
    sinks: Tensor | None = None
    factor: float = 1.0
    integers: bool = False
    by: str = "weight"
    count: int = 5
    recorded: list[int] | None = None
    rows: range | None = None
    blocks: dict[str, int] = field(default_factory=dict)
    seed: int = 0


CASES = {
    "causal, grouped heads": Case(Causal(), heads=4, groups=2),
    "bidirectional": Case(Bidirectional(), groups=2),
    "window": Case(intersect((Causal(), SlidingWindow(19)))),
    "window on both sides": Case(SlidingWindow(7), width=32),
    "prefix": Case(Prefix(40)),
    "padding": Case(intersect((Causal(), PADDING)), batch=2),
    "padding that hides everything": Case(intersect((SlidingWindow(5), PADDING)), batch=2),
    "soft-cap": Case(Causal(), softcap=2.0),
    "sinks": Case(Causal(), sinks=torch.tensor([9.0, -9.0])),
    "sinks of rows that see nothing": Case(
        intersect((SlidingWindow(5), PADDING)), batch=2, sinks=torch.ones(2)
    ),
    "by value": Case(Causal(), by="value"),
    "width of no power of two": Case(Causal(), width=24),
    "float16": Case(Causal(), dtype=torch.float16),
    "bfloat16": Case(
        intersect((Causal(), PADDING)), batch=2, heads=4, groups=2, dtype=torch.bfloat16
    ),
    "bfloat16 with everything": Case(
        intersect((Prefix(30), SlidingWindow(25), PADDING)),
        batch=2,
        heads=4,
        groups=2,
        dtype=torch.bfloat16,
        softcap=2.0,
        sinks=torch.tensor([1.0, -1.0, 3.0, 0.0]),
    ),
    "some heads and rows": Case(Causal(), recorded=[1], rows=range(5, 60)),
    "large scores": Case(Causal(), factor=60.0),
    "a pruned head": Case(Causal(), factor=0.0),
    "equal scores": Case(Causal(), integers=True),
    "a chunk a step": Case(Causal(), tokens=96, heads=1, blocks={"BM": 64, "BN": 16, "SUB": 16}),
    "long": Case(Causal(), tokens=1300, heads=1, blocks={"BM": 256, "BN": 256, "ROWS": 256}),
}


def drawn(seed: int, device: str) -> Case:
    """A random case: every kind of mask with every other part of a rule."""
    draw = random.Random(seed)
    most, widths, dtypes = 90, (8, 16, 24, 32), (torch.float32, torch.float16, torch.bfloat16)
    if device != "cpu":
        most, widths, dtypes = (
            2500,
            (16, 32, 48, 64, 80, 128),
            (torch.float32, torch.float16, torch.bfloat16),
        )
    tokens = draw.randint(1, draw.choice((90, most)))
    batch, share, groups = draw.randint(1, 3), draw.choice((1, 2, 3)), draw.randint(1, 2)
    heads = share * groups
    parts: list[Mask] = [draw.choice((Causal(), Bidirectional(), Prefix(draw.randint(1, tokens))))]
    if draw.random() < 0.4:
        parts.append(SlidingWindow(draw.randint(1, tokens)))
    if draw.random() < 0.4:
        lengths = torch.tensor([draw.randint(1, tokens) for _ in range(batch)])
        parts.append(PaddingMask(lengths, draw.random() < 0.5))
    sizes = {"BM": (16, 32, 64), "BN": (16, 32, 64), "SUB": (8, 16), "ROWS": (4, 32), "RUN": (2, 8)}
    start = draw.randrange(tokens)
    return Case(
        intersect(parts),
        batch,
        tokens,
        draw.choice(widths),
        heads,
        groups,
        draw.choice(dtypes),
        softcap=draw.choice((None, None, 1.0, 20.0)),
        sinks=torch.randn(heads, generator=torch.Generator().manual_seed(seed)) * 4 if draw.random() < 0.3 else None,
        factor=draw.choice((1.0, 1.0, 10.0, 0.0)),
        integers=draw.random() < 0.3,
        by=draw.choice(("weight", "weight", "value")),
        count=draw.randint(1, 5),
        recorded=sorted(draw.sample(range(heads), draw.randint(1, heads))),
        rows=range(start, draw.randint(start + 1, tokens)),
        blocks={name: draw.choice(choices) for name, choices in sizes.items()},
        seed=seed,
    )  # fmt: skip


def read_bfloat16() -> None:
    """Let products of Triton's interpreter, which take the bits of bfloat16 for integers, take them for numbers."""
    from triton.language import bfloat16, float32
    from triton.runtime.interpreter import InterpreterBuilder

    multiply = InterpreterBuilder.create_dot

    def create_dot(builder: Any, a: Any, b: Any, *others: Any) -> Any:
        sides = (
            builder.create_fp_ext(x, float32) if x.dtype.scalar == bfloat16 else x for x in (a, b)
        )
        return multiply(builder, *sides, *others)

    InterpreterBuilder.create_dot = create_dot


def moved(mask: Mask, device: str) -> Mask:
    match mask:
        case Intersection():
            return replace(mask, parts=tuple(moved(part, device) for part in mask.parts))
        case PaddingMask():
            return replace(mask, lengths=mask.lengths.to(device))
    return mask


def layer(case: Case, device: str) -> tuple[AttentionInputs, KeyTokens]:
    """The layer, and which keys are of which kind."""
    generator = torch.Generator().manual_seed(case.seed)
    shapes = [
        (case.batch, n, case.tokens, case.width) for n in (case.heads, case.groups, case.groups)
    ]
    q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
    if case.integers:
        q, k = q.round(), k.round()
    k[:, :, 10:20] = (
        k[:, :, 20:30].clone()[:, :, : k[:, :, 10:20].shape[2]]
        if case.tokens >= 30
        else k[:, :, 10:20]
    )
    sinks = None if case.sinks is None else case.sinks.to(device)
    spec = AttentionSpec(
        case.width**-0.5, moved(case.mask, device), softcap=case.softcap, sinks=sinks
    )
    inputs = AttentionInputs(
        0, *(side.to(device, case.dtype) for side in (q * case.factor, k, v)), spec
    )
    kinds = {
        kind: (torch.rand(case.batch, case.tokens, generator=generator) < 0.2).to(device)
        for kind in KEY_TOKENS
    }
    return inputs, KeyTokens(
        kinds, torch.ones(case.batch, case.tokens, dtype=torch.bool, device=device)
    )


def averaged_rows(case: Case, special: Tensor) -> AveragedRows:
    """Rows of which averages count, of texts that repeat their tokens; padding is not shown."""
    generator = torch.Generator().manual_seed(case.seed)
    ids = torch.randint(0, max(2, case.tokens // 4), (case.batch, case.tokens), generator=generator)
    return AveragedRows.of(ids.to(special.device), special, shown_rows(case, str(special.device)))


def shown_rows(case: Case, device: str) -> Tensor:
    """Rows that are no padding, (B, Q), bool."""
    shown = torch.ones(case.batch, case.tokens, dtype=torch.bool, device=device)
    for part in case.mask.parts if isinstance(case.mask, Intersection) else (case.mask,):
        if isinstance(part, PaddingMask):
            shown &= torch.arange(case.tokens, device=device) < part.lengths.to(device)[:, None]
    return shown


def counted_rows(case: Case, device: str) -> Tensor:
    """Most of the shown rows, (B, Q), bool."""
    generator = torch.Generator().manual_seed(case.seed)
    drawn = torch.rand(case.batch, case.tokens, generator=generator) < 0.8
    return shown_rows(case, device) & drawn.to(device)


def received(case: Case, device: str) -> Tensor:
    """What keys receive from the counted rows that are recorded, by definition: (B, H, K), float64."""
    inputs, _ = layer(case, device)
    q, k = inputs.q.double(), inputs.k.double().repeat_interleave(case.heads // case.groups, 1)
    scores = q @ k.mT * case.width**-0.5
    if case.softcap is not None:
        scores = case.softcap * (scores / case.softcap).tanh()
    at = torch.arange(case.tokens, device=device)
    query, key = at[:, None], at
    for part in case.mask.parts if isinstance(case.mask, Intersection) else (case.mask,):
        allowed = torch.ones_like(scores, dtype=torch.bool)
        if isinstance(part, Causal | Prefix):
            prefix = part.size if isinstance(part, Prefix) else 0
            allowed &= (key <= query) | (key < prefix)
        elif isinstance(part, SlidingWindow):
            allowed &= (query - key).abs() < part.size
        elif isinstance(part, PaddingMask):
            allowed &= key < part.lengths.to(device)[:, None, None, None]
        scores = scores.masked_fill(~allowed, -torch.inf)
    if case.sinks is not None:
        sinks = case.sinks.to(device).double()[None, :, None, None]
        scores = torch.cat((scores, sinks.expand(*scores.shape[:3], 1)), -1)
    weights = scores.softmax(-1).nan_to_num()[..., : case.tokens]
    rows = case.rows or range(case.tokens)
    counted = counted_rows(case, device) & (at >= rows.start) & (at < rows.stop)
    return (weights * counted[:, None, :, None]).sum(2)


def computed(
    case: Case, kernel: str, device: str, *, ranks: bool = True
) -> tuple[Tensor, TopRecorder, RowRecorder, HeadRecorder, ColumnRecorder]:
    """Output, strongest keys, if they are ranked, statistics, averages and columns by a kind of kernel."""
    inputs, keys = layer(case, device)
    heads, rows = case.recorded or range(case.heads), case.rows or range(case.tokens)
    top, statistics = (
        TopRecorder(case.count, case.by, heads, rows, keys.real),
        RowRecorder(heads, rows, keys),
    )
    averages = HeadRecorder(heads, rows, averaged_rows(case, keys.special), keys)
    columns = ColumnRecorder(heads, rows, counted_rows(case, device), keys)
    recorders: list[Recorder] = [*([top] if ranks else []), statistics, averages, columns]
    with (
        patch.dict(os.environ, {"ATTNSCOPE_KERNEL": kernel}),
        patch.dict(fused_rows.BLOCKS, {**SMALL, **case.blocks} if device == "cpu" else {}),
        patch("attnscope.model.attention.TileShape.of", side_effect=TileShape.of) as tiles,
        torch.inference_mode(),
    ):
        output = attend(replace(inputs), recorders)
    assert tiles.called == (kernel == "operators"), f"the kernel did not run: {fused_rows.FAILED}"
    assert output is not None
    return output, top, statistics, averages, columns


def by_name(averages: HeadRecorder) -> dict[str, Tensor]:
    """Each of AVERAGES, (B, heads)."""
    return dict(zip(AVERAGES, averages.compute().unbind(-1), strict=True))


def compare(case: Case, device: str) -> None:
    """Compare one case, but for rows of padding that nobody shows.

    Where scores are equal to the last bit, the same keys have to win; elsewhere rounding may exchange keys of equal
    weight.
    """
    output, top, statistics, averages, columns = computed(case, "operators", device)
    fused_output, fused_top, *fused, fused_columns = computed(case, "triton", device)
    atol = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[case.dtype]
    close = {"rtol": 1e-3, "atol": atol, "equal_nan": True}
    shown = torch.ones(case.batch, case.tokens, dtype=torch.bool, device=device)
    for part in case.mask.parts if isinstance(case.mask, Intersection) else (case.mask,):
        if isinstance(part, PaddingMask) and not part.padded_rows:
            shown &= torch.arange(case.tokens, device=device) < part.lengths.to(device)[:, None]
    sides = (side.float().transpose(1, 2)[shown] for side in (fused_output, output))
    torch.testing.assert_close(*sides, **close)
    exact = case.by == "weight" and case.softcap is None and (case.integers or case.factor == 0)
    same = fused_top.keys == top.keys
    if not same.all():
        assert not exact
        stage = "weights" if case.by == "weight" else case.by
        matrix = MatrixRecorder([stage], top.heads, top.rows, range(case.tokens))
        with torch.inference_mode():
            attend(layer(case, device)[0], [matrix])
        every = matrix.compute()[stage]
        chosen = (
            every.gather(-1, keys.clamp_min(0).to(every.device))
            for keys in (fused_top.keys, top.keys)
        )
        torch.testing.assert_close(*chosen, **close)
    for measure, values in top.measures.items():
        # exchanged keys have other vectors
        compared = torch.ones_like(same) if measure == case.by else same
        torch.testing.assert_close(fused_top.measures[measure][compared], values[compared], **close)
    _, _, *unranked, unranked_columns = computed(case, "triton", device, ranks=False)
    expected_columns = received(case, device)[:, case.recorded or slice(None)]
    for sums in (columns, fused_columns, unranked_columns):
        torch.testing.assert_close(sums.compute().double(), expected_columns, rtol=2e-4, atol=2e-5)
    if device != "cpu":  # the interpreter is one thread
        *_, again = computed(case, "triton", device)
        assert torch.equal(again.compute(), fused_columns.compute())
    for of_rows, of_heads in (fused, unranked):
        for expected, numbers in (
            (statistics.recorded, of_rows.recorded),
            (by_name(averages), by_name(of_heads)),
        ):
            for name, values in expected.items():
                near = {**close, "atol": 2e-3 if name == "distance" else 2e-5}
                torch.testing.assert_close(numbers[name], values, **near)
        assert torch.equal(of_rows.fully_masked, statistics.fully_masked)
    if case.sinks is not None:
        torch.testing.assert_close(
            fused[0].of_layers["sink"], statistics.of_layers["sink"], **close
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--draws", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    if given.device == "cpu":
        read_bfloat16()
    for name in given.cases:
        compare(CASES[name], given.device)
        print(name, flush=True)
    for seed in range(given.seed, given.seed + given.draws):
        case = drawn(seed, given.device)
        print(f"{seed}: {case}", flush=True)
        compare(case, given.device)
