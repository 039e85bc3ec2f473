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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.model.cuts import BatchCuts
from attnscope.model.frame import holds
from attnscope.model.fused_rows import fused_layer
from attnscope.model.inputs import AttentionInputs
from attnscope.model.masks import plain_mask
from attnscope.model.matmul import multiplies_narrow
from attnscope.model.row_summary import find_summarizer
from attnscope.model.sdpa import fused_attention
from attnscope.model.tile import FiniteChecks, Recorder, Workspace, as_slice
from attnscope.model.tile_stages import BlockMask, TileInputs, compute_tile
from attnscope.model.tiling import TileBlock, TileShape, tile_blocks
from attnscope.model.workers import Deferred, run_parts
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
    """Compute attention of one layer; the only place where it happens.

    Args:
        observed: A mask that recorders see instead of the layer's own (`same-scores`); the output keeps to the layer's.
        tile_elements: Largest number of scores in a tile (at least one row); None for the device's default.
        workspace: Memory that the layers of a model share; None for memory of its own.
        cuts: Ablations of the layer; recorders see rows without the cut edges, and heads before their output is
            replaced.

    Returns:
        (B, H, Q, Ev) in v's dtype, 0 where a query may see nothing; None if it is not needed.
    """
    every = range(inputs.q.shape[1])
    job = _LayerJob(inputs, tile_elements, workspace or Workspace(), cuts)
    recorded = sorted({head for recorder in recorders for head in recorder.heads})
    if recorded and cuts is None and observed is None:
        rows = fused_layer(inputs, recorders)
        if rows is not None:
            rows.fill(recorders, inputs)
            return rows.output if need_output else None
    if not recorded or not need_output or observed is not None or _fuses_output(job, recorded):
        if recorded:
            _record(job, recorded, observed or inputs.spec.mask, recorders, None)
        output = _output_only(job, every) if need_output else None
        if recorded and output is not None:
            checks = FiniteChecks(inputs.layer, output.device)
            checks.add(output, "outputs", torch.tensor(every))
            if not checks.passed():
                FiniteChecks(inputs.layer).add(output, "outputs", torch.tensor(every))
    else:
        output = inputs.v.new_empty(*inputs.q.shape[:3], inputs.v.shape[-1])  # (B, H, Q, Ev)
        if unrecorded := [head for head in every if head not in recorded]:
            _output_only(job, unrecorded, output)
        _record(job, recorded, inputs.spec.mask, recorders, output)
    if cuts is not None and output is not None:
        cuts.add_(output)
        if inputs.gate is None:  # else they are replaced behind it
            cuts.replace_heads_(output)
    return output


def attended(inputs: AttentionInputs) -> Tensor:
    """Return the output of one layer's attention, (B, H, Q, Ev), that nothing records."""
    output = attend(inputs)
    assert output is not None
    return output


@dataclass(frozen=True)
class _LayerJob:
    """How one layer is computed; see `attend`."""

    inputs: AttentionInputs
    elements: int | None
    workspace: Workspace
    cuts: BatchCuts | None


def _fuses_output(job: _LayerJob, recorded: Sequence[int]) -> bool:
    """Tell whether a GPU computes the output of recorded heads faster by a kernel than from the weights of tiles."""
    q = job.inputs.q
    spec = job.inputs.spec
    plain = (
        spec.bias is None and plain_mask(spec.mask, q.shape[2], job.inputs.k.shape[2]) is not None
    )
    return q.device.type != "cpu" and plain and not _tiled_heads(job, recorded)


def _record(
    job: _LayerJob,
    heads: list[int],
    mask: Mask,
    recorders: Sequence[Recorder],
    output: Tensor | None,
) -> None:
    """Compute the tiles of some heads, show each to the recorders, and collect the output if needed."""
    checks = FiniteChecks(job.inputs.layer, job.inputs.q.device)
    _compute_tiles(job, heads, mask, recorders, output, checks)
    if not checks.passed():  # on a GPU, where nothing waits for sums while tiles are launched
        _compute_tiles(
            job, heads, mask, recorders, output, FiniteChecks(job.inputs.layer), quiet=True
        )


def _compute_tiles(
    job: _LayerJob,
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
        output: Receives the heads' outputs, (B, H, Q, Ev); None if they are not needed.
        quiet: Only check the tiles: the recorders have had them already.
    """
    inputs = job.inputs
    if output is not None:
        needed_rows = None
    else:
        needed_rows = sorted({row for recorder in recorders for row in recorder.rows})
    cells = _cells(inputs, heads, needed_rows)
    # texts with cuts use operators; so do those without cuts that they are compared with, since nothing is ranked there
    operators = job.cuts is not None or inputs.spec.sinks is not None
    n_queries = inputs.q.shape[2]
    n_keys = inputs.k.shape[2]
    strongest = [0 if operators else recorder.n_strongest for recorder in recorders]
    summarize = find_summarizer(strongest, mask, cells, n_queries, n_keys, inputs.q.device)
    in_place = summarize is not None and not any(recorder.needs_masked for recorder in recorders)

    def compute(part: TileInputs, thread: int) -> list[Deferred]:
        workspace = job.workspace.of_thread(thread)
        tile = compute_tile(part, workspace, job.cuts, summarize, checks, in_place=in_place)
        deferred = [] if quiet else [recorder.update(tile) for recorder in recorders]
        if output is not None:
            output[:, tile.index, tile.q0 : tile.q1] = tile.output.to(output.dtype)
        return [addition for addition in deferred if addition is not None]

    shape = TileShape.of(inputs, len(heads), mask, job.elements)
    parts = _tile_inputs(inputs, heads, mask, shape, needed_rows, recorders)
    run_parts(parts, compute, _threads(cells, inputs.q.device))


def _cells(inputs: AttentionInputs, heads: Sequence[int], rows: Sequence[int] | None) -> int:
    n_rows = inputs.q.shape[2] if rows is None else len(rows)
    return len(inputs.q) * len(heads) * n_rows * inputs.k.shape[2]


def _threads(cells: int, device: torch.device) -> int:
    """Return the number of threads for this many cells; 1 on a GPU and for small layers."""
    if cells < _WORTH_A_THREAD or device.type != "cpu":
        return 1
    return torch.get_num_threads()


def _tile_inputs(
    inputs: AttentionInputs,
    heads: Sequence[int],
    mask: Mask,
    shape: TileShape,
    needed_rows: Sequence[int] | None,
    recorders: Sequence[Recorder],
) -> Iterator[TileInputs]:
    """Yield the inputs of the tiles of some heads in order; all threads compute what tiles share before they begin.

    Blocks without a row of `needed_rows` (sorted; None for all) are passed over. Tiles of rows of `recorders` hold the
    raw scores that these read.
    """
    device = inputs.q.device
    share = inputs.q.shape[1] // inputs.k.shape[1]
    bounded = _bounded(inputs)
    # an upload would wait for the device
    adjacent = isinstance(as_slice(heads), slice)
    if adjacent:
        numbers = torch.arange(heads[0], heads[-1] + 1, device=device)
    else:
        numbers = torch.tensor(heads, device=device)
    groups = inputs.group(torch.tensor(heads)).tolist()
    used = sorted(set(groups))
    # products need each head's rows to be contiguous
    # (B, used, K, E)
    k, v = inputs.k[:, as_slice(used)], inputs.v[:, as_slice(used)].float().contiguous()
    k = (k if multiplies_narrow(k) else k.float()).contiguous()

    def of_block(block: TileBlock) -> Iterator[TileInputs]:
        low, high = mask.all_visible_range(block.q0, block.q1, inputs.k.shape[2])
        low = max(low, block.k0)
        high = min(high, block.k1)
        visible = (low, high) if low < high else (block.k0, block.k0)
        if mask.per_head:
            block_mask = None
        else:
            block_mask = BlockMask.of(mask, block, visible, device)
        fit = shape.heads(block)  # rounded down to whole groups, or to an even part of one
        at_once = fit // share * share or max(n for n in range(1, fit + 1) if share % n == 0)
        for start in range(0, len(heads), at_once):
            tile_heads = slice(start, start + at_once)
            index = as_slice(list(heads[tile_heads]))
            head_numbers = numbers[tile_heads]
            shared = _shared([used.index(group) for group in groups[tile_heads]])
            sides = k[:, shared, block.k0 : block.k1], v[:, shared, block.k0 : block.k1]
            tile_mask = block_mask or BlockMask.of(mask, block, visible, device, head_numbers)
            yield TileInputs(
                inputs,
                tile_mask,
                head_numbers,
                index,
                *sides,
                block,
                visible,
                bounded,
                mask.changes_scores,
            )

    size = inputs.q.shape[2], inputs.k.shape[2]
    # heads inside blocks, since tiles of one shape after the other cost least
    return (
        part
        for block in tile_blocks(mask, shape, size, needed_rows, recorders)
        for part in of_block(block)
    )


def _shared(groups: list[int]) -> list[int] | slice:
    """Return the groups of heads as an index: of each group once where all have as many heads, side by side."""
    share = groups.count(groups[0])
    once = groups[::share]
    if groups == [group for group in once for _ in range(share)]:
        return as_slice(once)
    return groups


def _bounded(inputs: AttentionInputs) -> bool:
    """Tell whether queries and keys are too small for scores to overflow, scaled or not: |q·k| ≤ ‖Q‖·‖K‖.

    Within a frame, they are taken to be; see frame.holds.
    """
    q_norm = torch.linalg.vector_norm(inputs.q, dtype=torch.float32)
    k_norm = torch.linalg.vector_norm(inputs.k, dtype=torch.float32)
    return holds(max(1.0, abs(inputs.spec.scale)) * q_norm * k_norm < _LARGEST)


def _output_only(job: _LayerJob, heads: Sequence[int], output: Tensor | None = None) -> Tensor:
    """Return the output (B, H, Q, Ev) with some heads' filled in.

    Uses tiles if edges are cut, or if a soft-cap, sinks or a function of scores rule out kernels.
    """
    inputs = job.inputs
    tiled = _tiled_heads(job, heads)
    if not tiled:
        return fused_attention(inputs, heads, job.elements, output)
    if output is None:
        output = inputs.v.new_empty(*inputs.q.shape[:3], inputs.v.shape[-1])
    if untiled := [head for head in heads if head not in tiled]:
        fused_attention(inputs, untiled, job.elements, output)
    _record(job, sorted(tiled), inputs.spec.mask, (), output)
    return output


def _tiled_heads(job: _LayerJob, heads: Sequence[int]) -> set[int]:
    """Return the heads whose output no kernel computes."""
    spec = job.inputs.spec
    if spec.softcap is not None or spec.sinks is not None or spec.mask.changes_scores is not None:
        return set(heads)
    if job.cuts is None:
        return set()
    return job.cuts.edge_heads & set(heads)
