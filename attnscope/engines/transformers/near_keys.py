"""Lay attention to the keys near a query, which some models compute in chunks of a text, out between all tokens."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.model.module_hooks import in_this_thread


def lay_out(rows: Tensor, first_keys: Tensor, fill: float) -> Tensor:
    """Return numbers of near keys, (B, H, Q, width), for all of Q keys, (B, H, Q, Q).

    Args:
        first_keys: The key of the first number of every row, (Q,); it may lie outside the text.
        fill: What other keys get.
    """
    places = torch.arange(rows.shape[2], device=rows.device) - first_keys[:, None]
    is_near = (places >= 0) & (places < rows.shape[3])
    numbers = rows.gather(-1, places.clamp(0, rows.shape[3] - 1).expand(*rows.shape[:2], -1, -1))
    return numbers.masked_fill(~is_near, fill)


def from_band(band: Tensor, fill: float) -> Tensor:
    """Return numbers of as many keys before and after every query, (B, Q, H, 2w + 1), for all keys, (B, H, Q, Q)."""
    window = band.shape[3] // 2
    return lay_out(
        band.transpose(1, 2), torch.arange(band.shape[1], device=band.device) - window, fill
    )


def from_blocks(blocks: Tensor, fill: float) -> Tensor:
    """Return numbers of a block of n queries for its keys and both neighbours', (B, blocks, H, n, 3n), for all keys."""
    n = blocks.shape[3]
    rows = of_tokens(blocks)
    queries = torch.arange(rows.shape[2], device=rows.device)
    return lay_out(rows, (queries // n - 1) * n, fill)


def of_tokens(blocks: Tensor) -> Tensor:
    """Return what blocks of tokens have, (B, blocks, H, n, …), by token, (B, H, tokens, …)."""
    return blocks.transpose(1, 2).flatten(2, 3)


def of_blocks(tokens: Tensor, n: int) -> Tensor:
    """Return what tokens have, (B, H, tokens, …), in blocks of n, (B, blocks, H, n, …)."""
    texts, heads, count = tokens.shape[:3]
    return tokens.reshape(texts, heads, count // n, n, *tokens.shape[3:]).transpose(1, 2)


def middle(blocks: Tensor) -> Tensor:
    """Return keys or values of all tokens, (B, H, K, E), from those of blocks and both neighbours', (…, 3n, E)."""
    n = blocks.shape[3] // 3
    return of_tokens(blocks[:, :, :, n : 2 * n])


# Receives a module, q and k, (B, N, H, E), its mask, weights, (B, N, H, 2w + 1), and v, and gives the output.
OnBand = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


@contextmanager
def watching_bands(model: nn.Module, on_band: OnBand) -> Iterator[None]:
    """Compute otherwise, within the block, what Longformer and LED compute in overlapping chunks."""
    with ExitStack() as stack:
        for module in model.modules():
            if hasattr(module, "_sliding_chunks_query_key_matmul"):
                stack.enter_context(_watching_band(module, on_band))
        yield


@contextmanager
def _watching_band(module: Any, on_band: OnBand) -> Iterator[None]:
    product = module._sliding_chunks_query_key_matmul
    output = module._sliding_chunks_matmul_attn_probs_value
    operands: list[Tensor] = []  # queries and keys, then the mask

    def score(query: Tensor, key: Tensor, window: int) -> Tensor:
        result: Tensor = product(query, key, window)
        operands.extend((result,) if operands else (query, key))
        return result

    def attend(weights: Tensor, v: Tensor, window: int) -> Tensor:
        query, key, mask = operands
        operands.clear()
        return on_band(module, query, key, mask, weights, v)

    module._sliding_chunks_query_key_matmul = in_this_thread(score, product)
    module._sliding_chunks_matmul_attn_probs_value = in_this_thread(attend, output)
    try:
        yield
    finally:
        del module._sliding_chunks_query_key_matmul
        del module._sliding_chunks_matmul_attn_probs_value
