"""Attention without recorders, by torch's scaled_dot_product_attention."""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.masks import plain_mask
from attnscope.model.tiling import TileShape, contiguous_runs
from attnscope.request.masks.terms import Causal

_CELLS_ON_CPU = 1 << 20
_CELLS_ON_GPU = 1 << 24  # 16 MiB as bool


def fused_attention(
    inputs: AttentionInputs,
    heads: Sequence[int],
    elements: int | None,
    output: Tensor | None = None,
) -> Tensor:
    """Return the output of some heads, in blocks of queries if the rule is more than a plain causal mask.

    It is (B, H, Q, Ev), 0 for fully masked queries; other heads of `output` are left as they were. The rule has no
    soft-cap, which no kernel knows. `elements` are cells of a block's mask for one text, at most (at least one row);
    None for the device's default.
    """
    q = inputs.q
    elements = elements or (_CELLS_ON_CPU if q.device.type == "cpu" else _CELLS_ON_GPU)
    n_keys = inputs.k.shape[2]
    spec = inputs.spec
    # Otherwise the kernel allocates a whole Q×K matrix for every head.
    lean = q.shape[-1] == inputs.v.shape[-1]
    plain = plain_mask(spec.mask, q.shape[2], n_keys)
    causal = isinstance(plain, Causal)
    if lean and spec.bias is None and plain is not None:
        if output is None and len(heads) == q.shape[1]:
            return _sdpa(inputs, slice(None), (0, q.shape[2]), (0, n_keys), causal=causal)
        rows = q.shape[2]
    else:
        plain = None
        shared = lean and spec.bias is None and not spec.mask.per_head
        rows = TileShape.of(
            inputs, 1, spec.mask, elements * len(q) if shared else max(1, elements // len(heads))
        ).rows
        causal = False
    if output is None:
        output = inputs.v.new_empty(*q.shape[:3], inputs.v.shape[-1])
    for adjacent in _group_slices(inputs, heads):
        for q0 in range(0, q.shape[2], rows):
            q1 = min(q0 + rows, q.shape[2])
            k0, k1 = (0, n_keys) if plain else spec.mask.key_range(q0, q1, n_keys)
            numbers = torch.arange(adjacent.start, adjacent.stop, device=q.device)
            if plain:
                added = None
                fully_masked = None
            else:
                added, fully_masked = _sdpa_mask(spec, (q0, q1, k0, k1), numbers, q)
            block = _sdpa(inputs, adjacent, (q0, q1), (k0, k1), added, causal=causal)
            # torch's kernels differ in the output of a fully masked row
            if fully_masked is None:
                output[:, adjacent, q0:q1] = block
            else:
                output[:, adjacent, q0:q1] = block.masked_fill(fully_masked, 0.0)
    return output


def _group_slices(inputs: AttentionInputs, heads: Sequence[int]) -> Iterator[slice]:
    """Find adjacent heads that a kernel can take without a copy: heads of one group, or whole groups."""
    of_a_group = inputs.q.shape[1] // inputs.k.shape[1]
    for start, end in contiguous_runs(heads, len(heads)):
        while start < end:
            left = of_a_group - start % of_a_group  # of the group that the first one is in
            in_whole_groups = 0
            if left == of_a_group:
                in_whole_groups = (end - start) // of_a_group * of_a_group
            stop = start + (in_whole_groups or min(left, end - start))
            yield slice(start, stop)
            start = stop


def _sdpa(
    inputs: AttentionInputs,
    heads: slice,
    rows: tuple[int, int],
    keys: tuple[int, int],
    added: Tensor | None = None,
    *,
    causal: bool,
) -> Tensor:
    """Call the kernel once; heads are all, whole groups, or some of one group."""
    q = inputs.q[:, heads, slice(*rows)]
    of_a_group = inputs.q.shape[1] // inputs.k.shape[1]
    start, end, _ = heads.indices(inputs.q.shape[1])
    groups = slice(start // of_a_group, -(-end // of_a_group))
    k = inputs.k[:, groups, slice(*keys)]
    v = inputs.v[:, groups, slice(*keys)]
    shared = q.shape[1] // k.shape[1]
    # no fused CUDA kernel takes groups in float32
    if shared > 1 and q.is_cuda and q.dtype == torch.float32:
        k = k.repeat_interleave(shared, 1)
        v = v.repeat_interleave(shared, 1)
    gqa = k.shape[1] != q.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=added, is_causal=causal, scale=inputs.spec.scale, enable_gqa=gqa
    )


def _sdpa_mask(
    spec: AttentionSpec, box: tuple[int, int, int, int], heads: Tensor, q: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Build the kernel's attn_mask (where allowed, or the bias with −inf elsewhere); also tell fully masked rows."""
    q_at = torch.arange(box[0], box[1], device=q.device)[:, None]  # (q, 1)
    k_at = torch.arange(box[2], box[3], device=q.device)[None]  # (1, k)
    allowed = spec.mask.allowed(q_at, k_at, heads)
    # (q, 1), or with B and h
    fully_masked = None if allowed is None else ~allowed.any(-1, keepdim=True)
    if spec.bias is None:
        return allowed, fully_masked
    bias = spec.bias(q_at, k_at, heads)
    bias = bias if bias.ndim == 4 else bias[None]  # (1, H, q, k)
    return (bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)).to(
        q.dtype
    ), fully_masked
