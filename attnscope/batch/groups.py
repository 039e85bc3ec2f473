"""Group texts that go through the model together; a pure function, so that a resumed run forms the same groups.

Padding must not change a number by more than rounding. Matrix products and sums of short rows add their terms in
another order for another size; from 16 tokens on (a vector of AVX-512), most rows are the same to the last bit,
whatever else is in the batch. A shorter text is therefore only grouped with texts of the same length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from attnscope.batch.header import MEASURES, Grouping, Settings
from attnscope.findings.record_parts import numbers_of_head

MIN_PADDED_TOKENS = 16  # smallest number of tokens of a text that may be padded


@dataclass(frozen=True)
class TextSize:
    """Sizes of a text."""

    tokens: int
    sources: int
    values: int
    # numbers that are held in addition while it is computed, and that a group does not share
    beside: int = 0

    @property
    def longest(self) -> int:
        """The larger of tokens and sources, which determines the padding of a group."""
        return max(self.tokens, self.sources)

    @property
    def held(self) -> int:
        """Numbers that memory holds of it."""
        return self.values + self.beside

    def can_share_group(self, other: "TextSize") -> bool:
        """Tell whether padding the shorter of the two changes no number of it."""
        equal_sizes = (self.tokens, self.sources) == (other.tokens, other.sources)
        return (
            equal_sizes
            or min(self.tokens, self.sources, other.tokens, other.sources) >= MIN_PADDED_TOKENS
        )


def count_values(
    settings: Settings, units: int, sizes: tuple[int, int, int], d_value: int, spans: int
) -> int:
    """Return the count of numbers that a dump keeps of a text with these queries and keys shown, and source tokens."""
    queries, keys, sources = sizes
    return units * numbers_of_head(
        settings.keep,
        rows=queries,
        sources=sources,
        cells=queries * sum(d_value if stage == "output" else keys for stage in settings.stages),
        top=min(settings.top, sources),
        measures=len(MEASURES[settings.by]),
        statistics=len(settings.kept_statistics),
        pool=min(settings.pool, sources),
        place=1,
        spans=spans,
    )


def group_texts(sizes: Sequence[TextSize], bounds: Grouping) -> list[list[int]]:
    """Return places of texts that go together: neighbours in length, as many as the bounds allow, at least one."""
    groups: list[list[int]] = []
    last = TextSize(0, 0, 0)
    values = 0
    for index in sorted(
        range(len(sizes)), key=lambda i: (sizes[i].longest, sizes[i].tokens, sizes[i].sources)
    ):
        size = sizes[index]
        # Texts are sorted by length, so the new text is the longest: the others are padded to its length.
        fits = (
            groups
            and (len(groups[-1]) + 1) * size.longest <= bounds.tokens
            and values + size.values <= bounds.values
        )
        if fits and size.can_share_group(last):
            groups[-1].append(index)
            values += size.values
        else:
            groups.append([index])
            values = size.values
        last = size
    return groups
