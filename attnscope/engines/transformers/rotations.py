"""Rotate each text of a padded batch by its own length.

LongRoPE divides the frequencies by other factors in texts longer than the model was first trained on. transformers
chooses them by the longest text of a batch, for all of its texts.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from attnscope.model.module_hooks import replaced_forward


def rotation_limits(config: Any) -> set[int]:
    """Return the lengths of text beyond which all tokens are rotated otherwise (LongRoPE)."""
    table = getattr(config.get_text_config(), "rope_parameters", None) or {}
    # of each type of layer
    tables = [table, *(value for value in table.values() if isinstance(value, dict))]
    return {
        table["original_max_position_embeddings"]
        for table in tables
        if table.get("rope_type") == "longrope"
    }


@contextmanager
def rotated_by_length(model: Any, lengths: Sequence[int]) -> Iterator[None]:
    """Let rotary modules see each text's length, if the texts of a batch are on both sides of a limit."""
    limits = rotation_limits(model.config)
    groups: dict[tuple[bool, ...], list[int]] = {}
    for text, length in enumerate(lengths):
        groups.setdefault(tuple(length > limit for limit in sorted(limits)), []).append(text)
    with ExitStack() as stack:
        if len(groups) > 1:
            for module in model.modules():
                if "longrope" in str(getattr(module, "rope_type", "")):
                    forward = _by_group(module.forward, list(groups.values()), lengths)
                    stack.enter_context(replaced_forward(module, forward))
        yield


def _by_group(
    forward: Callable[..., tuple[Tensor, Tensor]],
    groups: Sequence[Sequence[int]],
    lengths: Sequence[int],
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a rotary module's `forward` that runs once for each group, as if its texts were alone."""

    def run(x: Tensor, position_ids: Tensor, *more: Any, **arguments: Any) -> tuple[Tensor, Tensor]:
        positions = position_ids.expand(len(lengths), -1)
        tables: list[Tensor] = []
        for texts in groups:
            # no query and no key is beyond the longest text of its group: only padding is
            longest = max(lengths[text] for text in texts)
            tables.append(
                torch.stack(forward(x, positions[texts].clamp(max=longest - 1), *more, **arguments))
            )
        order = (
            torch.tensor([text for texts in groups for text in texts])
            .argsort()
            .to(positions.device)
        )
        cos, sin = torch.cat(tables, dim=1)[:, order]
        return cos, sin

    return run
