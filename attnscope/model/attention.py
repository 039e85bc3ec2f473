"""Queries, keys and values in; attention out, and every stage of it to whoever watches. The file to read first.

A layer that nobody watches goes through `scaled_dot_product_attention`. A watched one goes through tiles: a block of
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
from math import frexp, isfinite

import torch
from torch import Tensor

from attnscope.errors import AttnscopeError
from attnscope.model.call import Call, Rule
from attnscope.model.kernel import fused
from attnscope.model.masks import Mask
from attnscope.model.products import product
from attnscope.model.tile import Recorder, Tile, Workspace, run
from attnscope.model.tiling import Block, Shape, blocks
from attnscope.model.walls import Walls
from attnscope.model.workers import Deferred, run_parts

_LARGEST = 1e38  # well below what float32 holds
_WORTH_A_THREAD = 1 << 18  # cells
_KERNEL_CELLS = 1 << 20  # cells of a mask that is made for a kernel, block by block


def attend(
    call: Call,
    recorders: Sequence[Recorder] = (),
    *,
    observed: Mask | None = None,
    need_output: bool = True,
    tile_elements: int | None = None,
    workspace: Workspace | None = None,
) -> Tensor | None:
    """Attention of one layer: the one place where it happens.

    Args:
        call: The layer's queries, keys, values and rule.
        recorders: Who watches; without any, nothing but the output is computed.
        observed: A mask that recorders see instead of the layer's own (`same-scores`); the output keeps to the layer's.
        need_output: Whether anyone uses the result; without, only what recorders want is computed.
        tile_elements: Scores in a tile, at most (at least one row); None for what suits the device.
        workspace: Memory that the layers of a model share; None for memory of its own.

    Returns:
        (B, H, Q, Ev) in v's dtype, 0 where a query may see nothing; None where it is not needed.

    Raises:
        AttnscopeError: A score, or an output that somebody sees, is not finite.
    """
    watched = sorted({head for recorder in recorders for head in recorder.heads})
    every, workspace = range(call.q.shape[1]), workspace or Workspace()
    if not watched or not need_output or observed is not None:
        if watched:
            _show(call, watched, observed or call.rule.mask, recorders, tile_elements, workspace, None)
        return _plain(call, every, tile_elements, workspace) if need_output else None
    output = call.v.new_empty(*call.q.shape[:3], call.v.shape[-1])  # (B, H, Q, Ev)
    if rest := [head for head in every if head not in watched]:
        _plain(call, rest, tile_elements, workspace, output)
    _show(call, watched, call.rule.mask, recorders, tile_elements, workspace, output)
    return output


def _show(
    call: Call,
    heads: list[int],
    mask: Mask,
    recorders: Sequence[Recorder],
    elements: int | None,
    workspace: Workspace,
    output: Tensor | None,
) -> None:
    """Walk over the tiles of some heads, show each to the recorders, and collect the output where it is wanted."""
    wanted = None if output is not None else sorted({row for recorder in recorders for row in recorder.rows})

    def compute(part: _Part, thread: int) -> list[Deferred]:
        tile = _tile(part, workspace.of_thread(thread))
        deferred = [recorder.see(tile) for recorder in recorders]
        if output is not None:
            output[:, tile.index, tile.q0 : tile.q1] = tile.output.to(output.dtype)
        return [one for one in deferred if one is not None]

    shape = Shape.of(call, len(heads), mask, elements)
    parts = _parts(call, heads, mask, shape, wanted, recorders)
    run_parts(parts, compute, _threads(call, heads, wanted))


def _threads(call: Call, heads: Sequence[int], rows: Sequence[int] | None) -> int:
    """Threads that some heads' tiles are worth: one on a GPU, and where waking others costs more than it saves."""
    n_rows = call.q.shape[2] if rows is None else len(rows)
    small = len(call.q) * len(heads) * n_rows * call.k.shape[2] < _WORTH_A_THREAD
    return 1 if small or call.q.device.type != "cpu" else torch.get_num_threads()


def _parts(
    call: Call,
    heads: Sequence[int],
    mask: Mask,
    shape: Shape,
    wanted: Sequence[int] | None = None,
    recorders: Sequence[Recorder] = (),
) -> "Iterator[_Part]":
    """The parts of some heads' attention, in order.

    Args:
        call: The layer.
        heads: Query heads.
        mask: Which keys a query may see.
        shape: How the layer is cut.
        wanted: Rows that anyone looks at, sorted; blocks without any are passed over. None for all.
        recorders: Who watches: their rows' tiles hold the raw scores that they read.
    """
    n_queries, n_keys = call.q.shape[2], call.k.shape[2]
    bounded = _bounded(call)
    groups = call.group(torch.tensor(heads)).tolist()
    used = sorted(set(groups))
    # products want each head's rows side by side
    k, v = call.k[:, run(used)].float().contiguous(), call.v[:, run(used)].float().contiguous()  # (B, used, K, E)
    for block in blocks(mask, shape, (n_queries, n_keys), wanted, recorders):
        a, b = mask.clear(block.q0, block.q1, n_keys)
        clear = (max(a, block.k0), min(b, block.k1)) if max(a, block.k0) < min(b, block.k1) else (block.k0, block.k0)
        walls = Walls.of(mask, block, clear, call.q.device)
        at_once = shape.heads(block)
        for first in range(0, len(heads), at_once):  # inside, for tiles of one shape after the other cost least
            chosen = list(heads[first : first + at_once])
            numbers = torch.tensor(chosen, device=call.q.device)
            theirs = run([used.index(group) for group in groups[first : first + at_once]])
            sides = k[:, theirs, block.k0 : block.k1], v[:, theirs, block.k0 : block.k1]
            yield _Part(call, walls, numbers, run(chosen), *sides, block, clear, bounded)


@dataclass(frozen=True)
class _Part:
    """What a tile is made of: some heads, their keys and values (B, h, k, E), and which queries and keys they are.

    Attributes:
        walls: What the queries may not see.
        block: Which queries and keys.
        clear: The keys, from and to, that all of the queries may see.
        bounded: No score of the layer can be anything but finite.
    """

    call: Call
    walls: Walls
    heads: Tensor
    index: list[int] | slice
    k: Tensor
    v: Tensor
    block: Block
    clear: tuple[int, int]
    bounded: bool


def _tile(part: _Part, workspace: Workspace) -> Tile:
    """The stages, in order; each takes the place of the one before where nobody reads that."""
    call, heads, walls, block, raw = part.call, part.heads, part.walls, part.block, part.block.raw
    q = call.q[:, part.index, block.q0 : block.q1].float()
    before, after = _factors(call.rule, raw)
    if before != 1:
        q = q * before
    shape = (*q.shape[:3], part.k.shape[2])
    scores = product(q, part.k, workspace.room("scores", shape, q.device))  # (B, h, q, k)
    scaled = scores.clone() if raw else scores
    if after != 1:
        scaled *= after
    if not part.bounded:
        _check_finite(scaled, "scores", call.layer, heads)
    _bend(scaled, call.rule, block, heads)
    masked = scaled.clone() if raw else scaled
    walls.stand(masked)
    weights, sink = _softmax(masked, call.rule.sinks, heads, workspace.room("weights", shape, q.device))
    if walls.dead is not None:
        weights.masked_fill_(walls.dead[..., None], 0.0)
    output = product(weights, part.v.mT)  # (B, h, q, Ev)
    _check_finite(output, "outputs", call.layer, heads)
    return Tile(
        call=call,
        heads=heads,
        index=part.index,
        q0=block.q0,
        q1=block.q1,
        k0=block.k0,
        k1=block.k1,
        clear=part.clear,
        scores=scores if raw else None,
        scaled=scaled if raw else None,
        masked=masked,
        weights=weights,
        output=output,
        dead=walls.dead,
        workspace=workspace,
        sink=sink,
    )


def _softmax(masked: Tensor, sinks: Tensor | None, heads: Tensor, room: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weights, and what the sink takes of each row where there is one: a logit more, and no value behind it."""
    if sinks is None:
        return torch.softmax(masked, -1, out=room), None
    logit = sinks[heads].float()[None, :, None, None].expand(*masked.shape[:3], 1)  # (B, h, q, 1)
    shares = torch.cat((masked, logit), dim=-1).softmax(-1)
    return shares[..., :-1], shares[..., -1]


def _factors(rule: Rule, raw: bool) -> tuple[float, float]:
    """What queries and what scores are multiplied by: a power of two gives the same numbers a pass earlier."""
    return (rule.scale, 1.0) if frexp(rule.scale)[0] == 0.5 and not raw else (1.0, rule.scale)


def _bend(scaled: Tensor, rule: Rule, block: Block, heads: Tensor) -> None:
    """Soft-cap and bias, in place."""
    if rule.softcap is not None:
        scaled.div_(rule.softcap).tanh_().mul_(rule.softcap)
    if rule.bias is not None:
        q_at = torch.arange(block.q0, block.q1, device=scaled.device)[:, None]
        scaled += rule.bias(q_at, torch.arange(block.k0, block.k1, device=scaled.device)[None], heads)


def _bounded(call: Call) -> bool:
    """Whether queries and keys are too small for scores to overflow, scaled or not: |q·k| ≤ ‖Q‖·‖K‖, one look."""
    q, k = (float(torch.linalg.vector_norm(side, dtype=torch.float32)) for side in (call.q, call.k))
    return max(1.0, abs(call.rule.scale)) * q * k < _LARGEST


def _check_finite(numbers: Tensor, what: str, layer: int, heads: Tensor) -> None:
    """Refuse NaN and infinity in (B, h, q, …), naming the first head that has any."""
    if isfinite(float(numbers.sum())):  # one cheap pass; only a bad sum is worth a closer look
        return
    bad = (~torch.isfinite(numbers)).sum(dim=(0, 2, 3))  # (h,)
    if bad.any():
        i = int(bad.argmax())
        found = f"{int(bad[i])} {what} are not finite"
        hint = "the model overflows in this dtype; try --dtype float32"
        raise AttnscopeError(found, where=f"L{layer}H{int(heads[i])}", hint=hint)


def _plain(
    call: Call, heads: Sequence[int], elements: int | None, workspace: Workspace, output: Tensor | None = None
) -> Tensor:
    """The output (B, H, Q, Ev) with some heads' filled in; through tiles where a soft-cap or sinks bar kernels."""
    if call.rule.softcap is None and call.rule.sinks is None:
        return fused(call, heads, elements or _KERNEL_CELLS, output)
    if output is None:
        output = call.v.new_empty(*call.q.shape[:3], call.v.shape[-1])
    _show(call, list(heads), call.rule.mask, (), elements, workspace, output)
    return output
