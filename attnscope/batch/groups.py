"""Sizes of texts in; which of them go through the model together out. Pure, so that a resumed run groups alike."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnscope.batch.records import Grouping, Settings


@dataclass(frozen=True)
class Size:
    """How large a text is.

    Attributes:
        tokens: Its tokens, or those of its context where these are more.
        values: Numbers kept of it.
    """

    tokens: int
    values: int


def values_of(settings: Settings, units: int, sizes: tuple[int, int, int], d_value: int) -> int:
    """How many numbers a dump keeps of one text.

    Args:
        settings: What is kept.
        units: Layers and heads, or means.
        sizes: Queries shown, keys shown, and source tokens.
        d_value: Width of a head's values.
    """
    queries, keys, sources = sizes
    measures = {"weight": 1, "value": 2, "projected": 3}[settings.by]
    kept = {
        "top": queries * min(settings.top, sources) * (1 + measures),
        "rows": queries * 6,
        "columns": sources,
        "pooled": min(settings.pool, sources) ** 2,
        "stages": queries * sum(d_value if stage == "output" else keys for stage in settings.stages),
    }
    return units * sum(kept[name] for name in settings.keep)


def groups(sizes: Sequence[Size], bounds: Grouping) -> list[list[int]]:
    """Places of texts that go together: neighbours in length, as many as the bounds allow, at least one.

    Args:
        sizes: Of the texts.
        bounds: How large a group may be.
    """
    found: list[list[int]] = []
    values = 0
    for place in sorted(range(len(sizes)), key=lambda i: sizes[i].tokens):
        size = sizes[place]
        # Sorted by length, so that the text that comes in is the longest: the others are padded up to it.
        if found and (len(found[-1]) + 1) * size.tokens <= bounds.tokens and values + size.values <= bounds.values:
            found[-1].append(place)
            values += size.values
        else:
            found.append([place])
            values = size.values
    return found
