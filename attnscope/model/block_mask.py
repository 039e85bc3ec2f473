"""Apply a mask to a block of scores."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from attnscope.model.tiling import TileBlock
from attnscope.request.masks.terms import Mask


@dataclass(frozen=True)
class BlockMask:
    """The keys that a block of queries may not see."""

    # range of keys, counted from the block's first, and the addition to the scores there: 0 where allowed and −inf
    # elsewhere, broadcastable to (B, h, q, k)
    parts: list[tuple[slice, Tensor]]
    # True where a query may see nothing, broadcastable to (B, h, q); None if every query is known to see something
    fully_masked: Tensor | None

    @classmethod
    def of(
        cls,
        mask: Mask,
        block: TileBlock,
        all_visible_range: tuple[int, int],
        device: torch.device,
        heads: Tensor | None = None,
    ) -> Self:
        """Evaluate a mask, for these heads if they differ, on the keys that only some queries of the block may see."""
        k0, k1, (a, b) = block.k0, block.k1, all_visible_range
        q_at = torch.arange(block.q0, block.q1, device=device)[:, None]  # (q, 1)
        parts, alive = [], torch.full((len(q_at),), a < b, device=device)  # (q,), or with B and h below
        for left, right in ((k0, a), (b, k1)):
            if left < right:
                allowed = mask.allowed(q_at, torch.arange(left, right, device=device)[None], heads)
                if allowed is None:
                    alive = torch.ones_like(alive)
                    continue
                parts.append((slice(left - k0, right - k0), torch.where(allowed, 0.0, -torch.inf)))
                alive = alive if a < b else alive | allowed.any(-1)
        # asking a GPU would wait for it
        every_row_sees = a < b or (device.type == "cpu" and bool(alive.all()))
        return cls(parts, None if every_row_sees else ~alive)

    def apply_(self, scaled: Tensor) -> None:
        """Write −inf into scores (B, h, q, k) where a key is not allowed."""
        for keys, added in self.parts:
            scaled[..., keys] += added  # faster than a masked_fill_ of every head
