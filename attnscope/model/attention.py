"""Attention, with every stage shown to recorders. The file to read first.

A layer that is not recorded goes through `scaled_dot_product_attention`. A recorded one goes through tiles: a block of
queries against every key that the block may see, small enough to stay in cache, with the stages as separate tensors. A
row of a tile is whole, so its softmax is exact; one token and 100,000 go the same way.

    scores   q·k                                   (B, H, Q, K)
    scaled   scores × scale, soft-cap, + bias      (B, H, Q, K)
    masked   scaled, −inf where not allowed        (B, H, Q, K)
    weights  softmax of masked (and of the sink)   (B, H, Q, K)
    output   weights · v                           (B, H, Q, E)
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import frexp

import torch
from torch import Tensor

from attnscope.model.block_mask import BlockMask
from attnscope.model.cuts import BatchCuts
from attnscope.model.finite import FiniteChecks
from attnscope.model.fused_rows import fused_layer
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.masks import plain_mask
from attnscope.model.matmul import matmul_grouped, multiplies_narrow
from attnscope.model.row_summary import RowSummary, find_summarizer
from attnscope.model.sdpa import fused_attention, kernel_cells
from attnscope.model.tile import Recorder, Tile, as_slice
from attnscope.model.tiling import TileBlock, TileShape, tile_blocks
from attnscope.model.workers import Deferred, run_parts
from attnscope.model.workspace import Workspace
from attnscope.request.masks.terms import Mask

_LARGEST = 1e38  # well below what float32 holds
_WORTH_A_THREAD = 1 << 18  # cells


def attend(
    inputs: AttentionInputs,
    recorders: Sequence[Recorder] = (),
    *,
    observed: Mask | None = None,
    need_output: bool = True,
    tile_elements: int | None = None,
    workspace: Workspace | None = None,
    cuts: BatchCuts | None = None,
) -> Tensor | None:
    """Return attention of one layer: the one place where it happens.

    Args:
        inputs: The layer's queries, keys, values and rule.
        recorders: Recorders of the layer; without any, only the output is computed.
        observed: A mask that recorders see instead of the layer's own (`same-scores`); the output keeps to the layer's.
        need_output: Whether the result is used; if not, only what recorders need is computed.
        tile_elements: Scores in a tile, at most (at least one row); None for what suits the device.
        workspace: Memory that the layers of a model share; None for memory of its own.
        cuts: What is taken out of the layer; recorders see rows without the edges that are cut, and heads as they are
            before their output is replaced. None for nothing.

    Returns:
        (B, H, Q, Ev) in v's dtype, 0 where a query may see nothing; None where it is not needed.

    Raises:
        NotFinite: A score, or an output that is used, is not finite.
    """
    every = range(inputs.q.shape[1])
    walk = _Walk(inputs, tile_elements, workspace or Workspace(), cuts)
    recorded = sorted({head for recorder in recorders for head in recorder.heads})
    if recorded and cuts is None and observed is None:
        rows = fused_layer(inputs, recorders)
        if rows is not None:
            rows.fill(recorders, inputs)
            return rows.output if need_output else None
    if not recorded or not need_output or observed is not None or _fuses_output(walk, recorded):
        if recorded:
            _record(walk, recorded, observed or inputs.spec.mask, recorders, None)
        output = _output_only(walk, every) if need_output else None
        if recorded and output is not None:
            FiniteChecks(inputs.layer).add(output, "outputs", torch.tensor(every))
    else:
        output = inputs.v.new_empty(*inputs.q.shape[:3], inputs.v.shape[-1])  # (B, H, Q, Ev)
        if rest := [head for head in every if head not in recorded]:
            _output_only(walk, rest, output)
        _record(walk, recorded, inputs.spec.mask, recorders, output)
    if cuts is not None and output is not None:
        cuts.replace_(output)
    return output


@dataclass(frozen=True)
class _Walk:
    """How one layer is computed; see `attend`."""

    inputs: AttentionInputs
    elements: int | None
    workspace: Workspace
    cuts: BatchCuts | None


def _fuses_output(walk: _Walk, recorded: Sequence[int]) -> bool:
    """Tell whether a GPU computes the output of recorded heads faster by a kernel than from the weights of tiles."""
    q, spec = walk.inputs.q, walk.inputs.spec
    plain = spec.bias is None and plain_mask(spec.mask, q.shape[2], walk.inputs.k.shape[2]) is not None
    return q.device.type != "cpu" and plain and not _tiled_heads(walk, recorded)


def _record(walk: _Walk, heads: list[int], mask: Mask, recorders: Sequence[Recorder], output: Tensor | None) -> None:
    """Walk over the tiles of some heads, show each to the recorders, and collect the output where it is wanted."""
    checks = FiniteChecks(walk.inputs.layer, walk.inputs.q.device)
    _walk_tiles(walk, heads, mask, recorders, output, checks)
    if not checks.passed():  # on a GPU, where nothing waits for sums while tiles are launched
        _walk_tiles(walk, heads, mask, recorders, output, FiniteChecks(walk.inputs.layer), quiet=True)


def _walk_tiles(
    walk: _Walk,
    heads: list[int],
    mask: Mask,
    recorders: Sequence[Recorder],
    output: Tensor | None,
    checks: FiniteChecks,
    *,
    quiet: bool = False,
) -> None:
    """Compute the tiles of some heads, check that they are finite, and pass them to the recorders.

    Args:
        walk: The layer.
        heads: The heads.
        mask: The mask.
        recorders: What records the tiles.
        output: Receives the heads' outputs; None if nobody needs them.
        checks: Finds values that are not finite.
        quiet: Only check the tiles: the recorders have had them already.
    """
    inputs = walk.inputs
    needed_rows = None if output is not None else sorted({row for recorder in recorders for row in recorder.rows})
    cells = _cells(inputs, heads, needed_rows)
    # texts with cuts use operators; so do those without cuts that they are compared with, since nothing is ranked there
    operators = walk.cuts is not None or inputs.spec.sinks is not None
    n_queries, n_keys = inputs.q.shape[2], inputs.k.shape[2]
    n_strongest = 0 if operators else most_strongest(recorders)
    summarize = find_summarizer(n_strongest, mask, cells, n_queries, n_keys, inputs.q.device)
    in_place = summarize is not None and not any(recorder.needs_masked for recorder in recorders)

    def compute(part: _TileInputs, thread: int) -> list[Deferred]:
        tile = _tile(part, walk.workspace.of_thread(thread), walk.cuts, summarize, checks, in_place=in_place)
        deferred = [] if quiet else [recorder.update(tile) for recorder in recorders]
        if output is not None:
            output[:, tile.index, tile.q0 : tile.q1] = tile.output.to(output.dtype)
        return [one for one in deferred if one is not None]

    shape = TileShape.of(inputs, len(heads), mask, walk.elements)
    parts = _parts(inputs, heads, mask, shape, needed_rows, recorders)
    run_parts(parts, compute, _threads(cells, inputs.q.device))


def most_strongest(recorders: Sequence[Recorder]) -> int:
    """Return the number of largest weights per row that the recorders take from a tile's summary; 0 for none."""
    return max((recorder.n_strongest for recorder in recorders), default=0)


def _cells(inputs: AttentionInputs, heads: Sequence[int], rows: Sequence[int] | None) -> int:
    n_rows = inputs.q.shape[2] if rows is None else len(rows)
    return len(inputs.q) * len(heads) * n_rows * inputs.k.shape[2]


def _threads(cells: int, device: torch.device) -> int:
    """Return threads that so many cells are worth: one on a GPU, and where waking others costs more than it saves."""
    return 1 if cells < _WORTH_A_THREAD or device.type != "cpu" else torch.get_num_threads()


def _parts(
    inputs: AttentionInputs,
    heads: Sequence[int],
    mask: Mask,
    shape: TileShape,
    needed_rows: Sequence[int] | None = None,
    recorders: Sequence[Recorder] = (),
) -> "Iterator[_TileInputs]":
    """Return the parts of some heads' attention, in order.

    What all of them share is made here, by all threads, before they begin with the parts.

    Args:
        inputs: The layer.
        heads: Query heads.
        mask: Which keys a query may see.
        shape: How the layer is cut.
        needed_rows: Rows that anyone looks at, sorted; blocks without any are passed over. None for all.
        recorders: Recorders of the layer: tiles of their rows hold the raw scores that they read.
    """
    n_queries, n_keys = inputs.q.shape[2], inputs.k.shape[2]
    bounded = _bounded(inputs)
    # an upload would wait for the device
    adjacent = isinstance(as_slice(heads), slice)
    numbers = torch.arange(heads[0], heads[-1] + 1, device=inputs.q.device) if adjacent else torch.tensor(heads)
    numbers = numbers.to(inputs.q.device)
    groups = inputs.group(torch.tensor(heads)).tolist()
    used = sorted(set(groups))
    # products need each head's rows to be contiguous
    k, v = inputs.k[:, as_slice(used)], inputs.v[:, as_slice(used)].float().contiguous()  # (B, used, K, E)
    k = (k if multiplies_narrow(k) else k.float()).contiguous()

    def of_blocks() -> Iterator[_TileInputs]:
        for block in tile_blocks(mask, shape, (n_queries, n_keys), needed_rows, recorders):
            a, b = mask.all_visible_range(block.q0, block.q1, n_keys)
            all_visible_range = (
                (max(a, block.k0), min(b, block.k1)) if max(a, block.k0) < min(b, block.k1) else (block.k0, block.k0)
            )
            per_head, change = mask.per_head, mask.changes_scores
            block_mask = None if per_head else BlockMask.of(mask, block, all_visible_range, inputs.q.device)
            at_once = _whole_groups(shape.heads(block), inputs.q.shape[1] // inputs.k.shape[1])
            for first in range(0, len(heads), at_once):  # inside, for tiles of one shape after the other cost least
                chosen = list(heads[first : first + at_once])
                theirs = _shared([used.index(group) for group in groups[first : first + at_once]])
                sides = k[:, theirs, block.k0 : block.k1], v[:, theirs, block.k0 : block.k1]
                some = numbers[first : first + at_once]
                theirs_only = block_mask or BlockMask.of(mask, block, all_visible_range, inputs.q.device, some)
                yield _TileInputs(
                    inputs, theirs_only, some, as_slice(chosen), *sides, block, all_visible_range, bounded, change
                )

    return of_blocks()


def _whole_groups(at_once: int, share: int) -> int:
    """Return a number of heads, at most `at_once`, that are whole groups of `share` heads, or parts of one group."""
    if at_once >= share:
        return at_once // share * share
    return max(n for n in range(1, at_once + 1) if share % n == 0)


def _shared(groups: list[int]) -> list[int] | slice:
    """Return the groups of heads as an index: of each group once where all have as many heads, side by side."""
    share = groups.count(groups[0])
    once = groups[::share]
    return as_slice(once) if groups == [group for group in once for _ in range(share)] else groups


@dataclass(frozen=True)
class _TileInputs:
    """What a tile is made of: some heads, their keys and values, and which queries and keys they are.

    Keys and values are (B, h, k, E), or (B, g, k, E), each of g groups for as many of the heads.

    Attributes:
        block_mask: What the queries may not see.
        block: Which queries and keys.
        all_visible_range: The keys, from and to, that all of the queries may see.
        bounded: No score of the layer can be anything but finite.
        changes_scores: See Mask.changes_scores.
    """

    inputs: AttentionInputs
    block_mask: BlockMask
    heads: Tensor
    index: list[int] | slice
    k: Tensor
    v: Tensor
    block: TileBlock
    all_visible_range: tuple[int, int]
    bounded: bool
    changes_scores: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None


def _tile(
    part: _TileInputs,
    workspace: Workspace,
    cuts: BatchCuts | None,
    summarize: Callable[[Tensor, Tensor], RowSummary] | None,
    checks: FiniteChecks,
    *,
    in_place: bool,
) -> Tile:
    """Return the stages, in order; each overwrites the one before if that is not read; with `in_place`, weights do."""
    inputs, heads, block_mask, block, needs_scores = (
        part.inputs,
        part.heads,
        part.block_mask,
        part.block,
        part.block.needs_scores,
    )
    q = inputs.q[:, part.index, block.q0 : block.q1].to(part.k.dtype)
    before, after = _factors(inputs.spec, needs_scores or q.dtype == torch.float16)  # small ones would lose bits
    if before != 1:
        q = q * before
    shape = (*q.shape[:3], part.k.shape[2])
    scores = matmul_grouped(q, part.k, workspace.buffer("scores", shape, q.device))  # (B, h, q, k)
    scaled = scores.clone() if needs_scores else scores
    if after != 1:
        scaled *= after
    if not part.bounded:
        checks.add(scaled, "scores", heads)
    _apply_softcap_and_bias(scaled, inputs.spec, block, heads)
    if part.changes_scores is not None:
        scaled.copy_(part.changes_scores(scaled, *_positions(block, q.device), heads))
    masked = scaled.clone() if needs_scores else scaled
    block_mask.apply_(masked)
    fully_masked = block_mask.fully_masked
    if part.changes_scores is not None:  # which may be −inf
        fully_masked = (masked == -torch.inf).all(-1)
    empty = None if cuts is None else cuts.mask_(masked, heads, block.q0, block.k0)
    sink, summary = None, None
    in_place = in_place and block.k0 < block.k1
    weights = masked if in_place else workspace.buffer("weights", shape, q.device)
    if summarize is not None and block.k0 < block.k1:
        summary = summarize(masked, weights)
    else:
        weights, sink = _softmax(masked, inputs.spec.sinks, heads, weights)
    for none_left in (fully_masked, empty):
        if none_left is not None:
            weights.masked_fill_(none_left[..., None], 0.0)
    if cuts is not None:
        cuts.zero_(weights, heads, block.q0, block.k0)
    return Tile(
        inputs=inputs,
        heads=heads,
        index=part.index,
        q0=block.q0,
        q1=block.q1,
        k0=block.k0,
        k1=block.k1,
        all_visible_range=part.all_visible_range
        if empty is None and part.changes_scores is None
        else (block.k0, block.k0),
        scores=scores if needs_scores else None,
        scaled=scaled if needs_scores else None,
        masked=masked.to("meta") if in_place else masked,
        weights=weights,
        values=part.v,
        checks=checks,
        fully_masked=fully_masked,
        workspace=workspace,
        sink=sink,
        summary=summary,
    )


def _softmax(masked: Tensor, sinks: Tensor | None, heads: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return weights, and what the sink takes of each row where there is one: an extra logit without a value."""
    if sinks is None:
        return torch.softmax(masked, -1, out=buffer), None
    logit = sinks[heads].float()[None, :, None, None].expand(*masked.shape[:3], 1)  # (B, h, q, 1)
    shares = torch.cat((masked, logit), dim=-1).softmax(-1)
    return shares[..., :-1], shares[..., -1]


def _factors(spec: AttentionSpec, needs_scores: bool) -> tuple[float, float]:
    """Return what queries and what scores are multiplied by: a power of two gives the same numbers a pass earlier."""
    return (spec.scale, 1.0) if frexp(spec.scale)[0] == 0.5 and not needs_scores else (1.0, spec.scale)


def _apply_softcap_and_bias(scaled: Tensor, spec: AttentionSpec, block: TileBlock, heads: Tensor) -> None:
    """Apply the soft-cap and add the bias, in place."""
    if spec.softcap is not None:
        scaled.div_(spec.softcap).tanh_().mul_(spec.softcap)
    if spec.bias is not None:
        scaled += spec.bias(*_positions(block, scaled.device), heads)


def _positions(block: TileBlock, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the queries, (q, 1), and keys, (1, k), of a block."""
    queries, keys = (torch.arange(*ends, device=device) for ends in ((block.q0, block.q1), (block.k0, block.k1)))
    return queries[:, None], keys[None]


def _bounded(inputs: AttentionInputs) -> bool:
    """Tell whether queries and keys are too small for scores to overflow, scaled or not: |q·k| ≤ ‖Q‖·‖K‖."""
    norms = [torch.linalg.vector_norm(side, dtype=torch.float32) for side in (inputs.q, inputs.k)]
    q, k = torch.stack(norms).tolist()
    return bool(max(1.0, abs(inputs.spec.scale)) * q * k < _LARGEST)


def _output_only(walk: _Walk, heads: Sequence[int], output: Tensor | None = None) -> Tensor:
    """Return the output (B, H, Q, Ev) with some heads' filled in.

    Through tiles where a soft-cap, sinks or a function of scores bar kernels, and where edges are cut.
    """
    inputs = walk.inputs
    tiled, cells = _tiled_heads(walk, heads), walk.elements or kernel_cells(inputs.q.device)
    if not tiled:
        return fused_attention(inputs, heads, cells, output)
    if output is None:
        output = inputs.v.new_empty(*inputs.q.shape[:3], inputs.v.shape[-1])
    if rest := [head for head in heads if head not in tiled]:
        fused_attention(inputs, rest, cells, output)
    _record(walk, sorted(tiled), inputs.spec.mask, (), output)
    return output


def _tiled_heads(walk: _Walk, heads: Sequence[int]) -> set[int]:
    """Return the heads whose output no kernel computes."""
    spec = walk.inputs.spec
    if spec.softcap is not None or spec.sinks is not None or spec.mask.changes_scores is not None:
        return set(heads)
    return set() if walk.cuts is None else walk.cuts.edge_heads & set(heads)
