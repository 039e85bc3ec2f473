"""Estimate what a dump will take before it starts, from the tokens of its first texts."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError
from attnscope.batch.blocks import SelectedItems
from attnscope.batch.formats import format_of
from attnscope.batch.header import Grouping, Settings
from attnscope.batch.items import cost
from attnscope.batch.preparing import PreparedText, TextPreparer
from attnscope.batch.windows import count_values

_SAMPLE = 16  # texts whose tokens are counted
_WORTH_SAYING = 100_000_000  # bytes
_SMALLER = 4  # times that averages of heads have to be smaller to be worth mentioning
# Bytes of a number and of what a line has beside numbers, measured on glosses of WordNet through MiniLM.
_EXACT = 10.5
_ROUNDED = 5.3
_BINARY = 4.0
_ROUNDED_BINARY = 2.1
_TOKEN = 75
_UNIT = 8


@dataclass(frozen=True)
class DumpSize:
    """About how many bytes a dump takes."""

    texts: int
    bytes: int
    averages: int  # what `--keep heads` would take instead

    def describe(self, averages_option: str) -> str | None:
        """Return one line; None for a dump that is too small to be worth it."""
        if self.bytes < _WORTH_SAYING:
            return None
        line = f"about {_decimal(self.bytes / self.texts)} a text, {_decimal(self.bytes)} for {self.texts:,}"
        if _SMALLER * self.averages < self.bytes:
            line += f"; {averages_option} takes {_decimal(self.averages)}"
        return line


SizeCallback = Callable[[DumpSize], None]


def estimate_size(
    preparer: TextPreparer, settings: Settings, items: SelectedItems, bounds: Grouping, output: Path
) -> DumpSize | None:
    """Return about how much a dump takes; None for tables, and if none of the first texts can be tokenized."""
    dump_format = format_of(output)
    if dump_format is not None and dump_format.table:
        return None
    sample = _sample(preparer, items, bounds)
    characters = sum(length for length, _ in sample)
    if not characters:
        return None
    tokens = sum(text.size.tokens for _, text in sample)
    queries = sum(len(text.text_plan.queries) for _, text in sample) / tokens
    keys = sum(len(text.text_plan.keys) for _, text in sample) / tokens
    spans = max(
        0 if text.text_plan.spans is None else len(text.text_plan.spans.names) for _, text in sample
    )
    costs, counts = np.unique(
        np.fromiter(items.selected_costs(), dtype=np.int64), return_counts=True
    )
    lengths = [max(1, round(length)) for length in costs * (tokens / characters)]
    texts = counts / settings.shard[1]

    def total(settings: Settings) -> int:
        binary = dump_format is not None and dump_format.layout == "shards"
        value = _value_bytes(settings, binary)
        units = 0 if binary else _UNIT * preparer.units
        size = 0.0
        for n, count in zip(lengths, texts, strict=True):
            shown_sizes = round(n * queries), round(n * keys), n
            values = count_values(settings, preparer.units, shown_sizes, preparer.d_value, spans)
            size += count * (value * values + _TOKEN * n + units)
        return round(size)

    averages = replace(settings, keep=("heads",), stages=(), digits=None)
    return DumpSize(round(texts.sum()), total(settings), total(averages))


def _sample(
    preparer: TextPreparer, items: SelectedItems, bounds: Grouping
) -> list[tuple[int, PreparedText]]:
    """Return some of the first texts, and the length of each in characters."""
    sample = []
    for item in islice(items.select(bounds), _SAMPLE):
        with suppress(AttnscopeError):
            text = None if item.text is None else preparer.prepare(item)
            if isinstance(text, PreparedText):
                sample.append((cost(item), text))
    return sample


def _value_bytes(settings: Settings, binary: bool) -> float:
    """Return the bytes of a number."""
    if binary:
        return _BINARY if settings.digits is None else _ROUNDED_BINARY
    return _EXACT if settings.digits is None else _ROUNDED


def _decimal(size: float) -> str:
    """Return bytes as disks count them: `2.0 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    if size >= 10 or unit == "B":
        return f"{size:.0f} {unit}"
    return f"{size:.1f} {unit}"
