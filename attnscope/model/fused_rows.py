"""A recorded layer by the fused kernel of `fused_kernels`; `fused_layer` decides when.

On an H200, 32 heads of 32,768 tokens take 42 ms in bfloat16, where operators take 528 and flash attention, which has
the output alone, 25 (benchmarks/README.md).
"""

import os
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnscope.findings.head_averages import TARGETS
from attnscope.model.frame import are_finite
from attnscope.model.inputs import AttentionInputs
from attnscope.model.masks import Intersection, PaddingMask
from attnscope.model.recorders.base import KeyTokens
from attnscope.model.recorders.heads import HeadRecorder
from attnscope.model.recorders.rows import RowRecorder
from attnscope.model.recorders.sums import ColumnRecorder
from attnscope.model.recorders.top import TopRecorder
from attnscope.model.tile import Recorder
from attnscope.request.masks.terms import Bidirectional, Causal, Prefix, SlidingWindow

MOST_KEYS = 5
# What the kernel writes of every row, in this order: what TARGETS names comes last, if averages are recorded.
STATISTICS = (
    "log_sum", "entropy", "distance", "first", "self", "within_16", "within_64", "within_256", "within_1024", "special",
    "punctuation", "other", "sink", "max_score", "largest", "previous", "induction",
)  # fmt: skip
BLOCKS: dict[str, int] = {}  # sizes of blocks that differ from those of block_sizes
FAILED: list[str] = []  # why kernels cannot be compiled here; from then on operators compute
_WIDEST = 128  # of heads: registers hold no more
# Cells; for fewer, operators take less time than compiling does: 3 s once a machine, for every width and kind of mask.
_WORTH_A_KERNEL = 1 << 23
# the kernel computes a whole layer in the time that operators take for about an eighth of it
_WORTH_EVERY_CELL = 8


@dataclass(frozen=True)
class FusedRule:
    """A mask as the kernel knows it."""

    causal: bool  # queries see no later keys but for the prefix
    prefix: int  # keys that every query sees; 0 for none
    window: int  # distance from which on keys are not seen; 0 for none
    lengths: Tensor | None  # keys of every text, (B,); None if no text is padded


class FusedRows:
    """Output of the kernel, for the statistics of findings.row_statistics; see RowWeights there.

    Attributes:
        output: (B, H, Q, Ev).
        keys: The strongest keys of every row, (B, H, Q, 5), int32, −1 where there are fewer; nothing if none are ranked.
        weights: Their weights, in the same form; NaN if there are fewer.
        numbers: By name in STATISTICS, (B, H, Q) each.
        received: The weight that every key receives from rows that count, (B, H, K); nothing if none do.
    """

    def __init__(
        self,
        output: Tensor,
        keys: Tensor,
        weights: Tensor,
        numbers: dict[str, Tensor],
        received: Tensor,
    ) -> None:
        self.output = output
        self.keys = keys
        self.weights = weights
        self.numbers = numbers
        self.received = received

    def fill(self, recorders: Sequence[Recorder], inputs: AttentionInputs) -> None:
        """Fill recorders with their statistics."""
        sink = None if inputs.spec.sinks is None else self.numbers["sink"]
        for recorder in recorders:
            if isinstance(recorder, TopRecorder):
                recorder.take(self.keys, self.weights, inputs)
            elif isinstance(recorder, RowRecorder):
                # (B, Q); the mask is the same for every head
                fully_masked = self.numbers["entropy"][:, 0].isnan()
                recorder.take(self, sink, fully_masked, inputs)
            elif isinstance(recorder, HeadRecorder):
                recorder.take(self)
            elif isinstance(recorder, ColumnRecorder):
                recorder.take(self.received, inputs)

    def is_finite(self) -> bool:
        """Tell whether all scores and outputs are, by at most one wait for the device; see frame.are_finite."""
        return are_finite([self.output.sum(dtype=torch.float32), self.numbers["log_sum"].sum()])

    def entropy(self) -> Tensor:
        return self.numbers["entropy"]

    def max_score(self) -> Tensor:
        return self.numbers["max_score"]

    def on_first(self) -> Tensor:
        return self.numbers["first"]

    def on_keys(self, name: str) -> Tensor:
        return self.numbers[name]

    def on_self(self) -> Tensor:
        return self.numbers["self"]

    def on_others(self) -> Tensor:
        return self.numbers["other"]

    def within(self, n: int) -> Tensor:
        return self.numbers[f"within_{n}"]

    def distance(self) -> Tensor:
        return self.numbers["distance"]

    def largest(self) -> Tensor:
        return self.numbers["largest"]

    def on_target(self, name: str) -> Tensor:
        return self.numbers[name]


def fused_layer(inputs: AttentionInputs, recorders: Sequence[Recorder]) -> FusedRows | None:
    """Compute a layer of self-attention by the fused kernel; None if operators have to."""
    active = [recorder for recorder in recorders if recorder.heads]
    if (
        not active
        or not _is_worth_it(inputs, active)
        or inputs.gate is not None
        or inputs.unselective is not None
    ):
        return None
    rule = _rule(inputs)
    if rule is None:
        return None
    tops = [recorder for recorder in active if isinstance(recorder, TopRecorder)]
    heads = [recorder for recorder in active if isinstance(recorder, HeadRecorder)]
    columns = [recorder for recorder in active if isinstance(recorder, ColumnRecorder)]
    rows: list[HeadRecorder | RowRecorder] = [*heads]
    rows.extend(recorder for recorder in active if isinstance(recorder, RowRecorder))
    orders = {top.by for top in tops}
    is_supported = (
        len(tops) + len(rows) + len(columns) == len(active)
        and len(orders) < 2
        and orders <= {"weight", "value"}
    )
    is_supported = is_supported and len(heads) < 2 and len(columns) < 2
    is_supported = is_supported and all(top.ranks_all and top.count <= MOST_KEYS for top in tops)
    is_supported = is_supported and all(row.sources.self_attention for row in rows)
    if not is_supported or len({id(row.sources) for row in rows}) > 1:
        return None
    try:
        computed = _run(
            inputs,
            rule,
            rows[0].sources if rows else None,
            heads[0].targets if heads else None,
            columns[0].counted if columns else None,
            order=next(iter(orders), ""),
        )
    except torch.OutOfMemoryError:
        return None  # tiles take less memory
    except Exception as e:  # such as no C compiler, by which Triton makes its launcher
        if isinstance(e, RuntimeError) and "CUDA" in str(e):
            raise
        FAILED.append(" ".join(str(e).split())[:200] or type(e).__name__)
        warnings.warn(
            f"Triton is unavailable, so long texts will be slower ({FAILED[0]})", stacklevel=2
        )
        return None
    return computed if computed.is_finite() else None  # operators say which head it is


def _is_worth_it(inputs: AttentionInputs, recorders: Sequence[Recorder]) -> bool:
    """Tell whether the kernel can run here and pays; ATTNSCOPE_KERNEL (triton or operators) overrules what pays."""
    asked = os.environ.get("ATTNSCOPE_KERNEL")
    device = inputs.q.device
    real = device.type == "cuda" and torch.version.cuda is not None
    interpreted = asked == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    if not (real or interpreted) or asked == "operators" or FAILED or find_spec("triton") is None:
        return False
    if asked == "triton":
        return True
    batch, heads, n, _ = inputs.q.shape
    cells = batch * n * max(len(recorder.heads) * len(recorder.rows) for recorder in recorders)
    if cells < max(_WORTH_A_KERNEL, batch * n * heads * n // _WORTH_EVERY_CELL):
        return False
    capability = torch.cuda.get_device_capability(device)
    # of other GPUs, float32 has too few registers, so that operators may be faster
    if inputs.q.dtype == torch.float32:
        return capability[0] == 9
    return capability >= (8, 0)


def _rule(inputs: AttentionInputs) -> FusedRule | None:
    """Return the layer's mask for the kernel; None if the kernel does not know the layer's rule."""
    spec = inputs.spec
    n, width = inputs.q.shape[2:]
    widths = {side.shape[-1] for side in (inputs.q, inputs.k, inputs.v)}
    if spec.sinks is not None and spec.sinks.ndim > 1:  # of every query
        return None
    if spec.bias is not None or inputs.k.shape[2] != n or widths != {width} or width > _WIDEST:
        return None
    causal = False
    prefix = 0
    window = 0
    lengths = None
    for part in spec.mask.parts if isinstance(spec.mask, Intersection) else (spec.mask,):
        match part:
            case Bidirectional():
                pass
            case Causal() if not prefix:
                causal = True
            case Prefix() if not causal:
                causal = True
                prefix = part.size
            case SlidingWindow() if not window:
                window = part.size
            case PaddingMask() if lengths is None:
                lengths = part.lengths
            case _:
                return None
    return FusedRule(causal, prefix, window, lengths)


def block_sizes(capability: tuple[int, int], dtype: torch.dtype) -> dict[str, int]:
    """Sizes that suit a GPU: most keys a step that its registers hold, and how its threads share a row of scores."""
    sizes = {"BM": 128, "BN": 64, "SUB": 16, "RUN": 2, "num_warps": 8, "num_stages": 3, "ROWS": 4}
    if dtype == torch.float32:
        return sizes | {"BN": 32, "num_stages": 1}
    return sizes | ({"BN": 32, "RUN": 16} if capability[0] == 10 else {})


def _widened(side: Tensor, width: int) -> Tensor:
    """Return rows side by side in memory, with zeros up to a width; torch would copy to pad by nothing."""
    if side.shape[-1] < width:
        return pad(side, (0, width - side.shape[-1]))
    return side.contiguous()


def _run(
    inputs: AttentionInputs,
    rule: FusedRule,
    sources: KeyTokens | None,
    targets: Tensor | None,
    counted: Tensor | None,
    *,
    order: str,
) -> FusedRows:
    """Run the kernel.

    Args:
        sources: What the keys are; None for no statistics.
        targets: The keys that averages name, (B, Q, TARGETS), int64; None for no averages.
        counted: The rows of which keys receive weight, (B, Q), bool; None if that is not added up.
        order: What ranks keys, `weight` or `value`; empty if none are ranked.
    """
    from triton import cdiv

    from attnscope.model import fused_kernels

    batch, heads, n, width = inputs.q.shape
    spec = inputs.spec
    device = inputs.q.device
    wide = max(16, 1 << (width - 1).bit_length())  # Triton's sizes are powers of two
    q, k, v = (_widened(side, wide) for side in (inputs.q, inputs.k, inputs.v))
    # (B, 3, n)
    if sources is None:
        kinds = torch.zeros(batch, 3, n, device=device)
    else:
        kinds = sources.members(("special", "punctuation"))
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
    else:
        capability = 0, 0
    sizes = block_sizes(capability, inputs.q.dtype) | BLOCKS
    kinds = _widened(kinds, n + -n % sizes["BN"])
    by_value = order == "value"
    norms = kinds
    if by_value:
        norms = inputs.v.float().norm(dim=-1).log().clamp_min(-1e30)
    if rule.lengths is None:
        lengths = torch.full((batch,), n, device=device)
    else:
        lengths = rule.lengths
    sinks = kinds if spec.sinks is None else spec.sinks.float()
    output = torch.empty_like(q)
    slots = int(fused_kernels.SLOTS)
    numbers = torch.empty(len(STATISTICS), batch, heads, n, device=device)
    ranked = (batch, heads, n, slots if order else 0)
    candidates, keys = (torch.empty(ranked, dtype=torch.int32, device=device) for _ in range(2))
    weights = torch.empty(ranked, device=device)
    received = torch.empty(batch, heads, 0 if counted is None else n, device=device)
    flags = {"CAUSAL": rule.causal, "WINDOWED": rule.window > 0, "CAPPED": spec.softcap is not None}
    shared: dict[str, Any] = {"SHARE": heads // k.shape[1], "E": wide, **flags}
    scalars = spec.scale, spec.softcap or 1.0, n, heads, rule.window, rule.prefix
    walk = {name: sizes[name] for name in ("BM", "BN", "num_warps", "num_stages")}
    chunks = {"SUB": sizes["SUB"], "BY_VALUE": by_value}
    # Triton launches on the current device, whose memory the tensors may not be in
    with nullcontext() if device.type == "cpu" else torch.cuda.device(device):
        fused_kernels.layer_kernel[(cdiv(n, sizes["BM"]), heads, batch)](
            q, k, v, kinds, norms, lengths, sinks, lengths if targets is None else targets, output, numbers, candidates,
            *scalars, **shared, **walk, **chunks, RUN=sizes["RUN"], HAS_SINKS=spec.sinks is not None,
            RANKS=bool(order), N_TARGETS=0 if targets is None else len(TARGETS),
        )  # fmt: skip
        if order:
            fused_kernels.ranking_kernel[(cdiv(n, sizes["ROWS"]), heads, batch)](
                q, k, norms, lengths, numbers, candidates, keys, weights, *scalars, **shared, **chunks,
                ROWS=sizes["ROWS"],
            )  # fmt: skip
        if counted is not None:
            fused_kernels.column_kernel[(cdiv(n, sizes["BN"]), heads, batch)](
                q, k, lengths, counted, numbers, received, *scalars, **shared, **walk
            )
    statistics = dict(zip(STATISTICS, numbers, strict=True))
    return FusedRows(
        output[..., :width], keys[..., :MOST_KEYS], weights[..., :MOST_KEYS], statistics, received
    )
