"""Cut an input into blocks: the unit that shards, workers and tasks of a cluster share out.

Texts that go through the model together decide the last bits of its numbers. A window and its groups therefore lie
within one block, and where a block begins depends on the input and the header alone. So every process that computes a
block computes the same bits, and parts joined in input order are the file of one process. Lengths are counted in
characters, which are known without a tokenizer: a shard tokenizes only its own texts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol

from msgspec import structs

from attnscope.batch.header import CHARACTERS_OF_A_TOKEN, Grouping, Settings
from attnscope.batch.items import Item

TEXTS_OF_A_BLOCK = 1024  # fewer make groups smaller, more make shards uneven
_FEWEST_TOKENS = 1024  # of a block: a group
_BLOCKS = 8  # at least, even of a small input, so that there is something to share out
_BESIDE = 2 * CHARACTERS_OF_A_TOKEN  # characters that special tokens stand for


class Input(Protocol):
    """The part of reader.InputReader that is needed here."""

    @property
    def costs(self) -> Sequence[int]:
        """Length of every text, in characters."""

    def items(self) -> Iterator[Item]:
        """Yield every item."""


def cost(item: Item) -> int:
    """Return the length of a text, in characters."""
    text = item.text
    return _BESIDE + (0 if text is None else len(text.text) + len(text.pair or "") + len(text.context or ""))


def with_blocks(bounds: Grouping, settings: Settings, costs: Sequence[int]) -> Grouping:
    """Return bounds with blocks about as long as a window; they do not depend on a limit, which may grow."""
    share = sum(islice(costs, settings.skip, None)) // _BLOCKS
    most = min(CHARACTERS_OF_A_TOKEN * bounds.window_tokens, max(CHARACTERS_OF_A_TOKEN * _FEWEST_TOKENS, share))
    return structs.replace(bounds, block_characters=most, block_texts=TEXTS_OF_A_BLOCK)


class BlockCounter:
    """Assign consecutive texts to blocks; without a bound on their size, everything is one block."""

    def __init__(self, bounds: Grouping) -> None:
        self._bounds, self._block, self._characters, self._texts = bounds, 0, 0, 0

    def next(self, characters: int) -> int:
        """Return the block of the next text, counted from 0."""
        most = self._bounds.most_characters(self._block)
        full = self._characters + characters > most or self._texts == self._bounds.block_texts
        if most and self._texts and full:
            self._block, self._characters, self._texts = self._block + 1, 0, 0
        self._characters, self._texts = self._characters + characters, self._texts + 1
        return self._block


def select_items(items: Iterator[Item], settings: Settings, bounds: Grouping) -> Iterator[Item]:
    """Yield the items that `--skip`, `--limit` and `--shard` leave, each with its block."""
    (number, count), blocks = settings.shard, BlockCounter(bounds)
    for item in islice(items, settings.skip, _end(settings)):
        if (block := blocks.next(cost(item))) % count == number - 1:
            yield replace(item, block=block)


def count_selected(costs: Iterable[int], settings: Settings, bounds: Grouping) -> int:
    """Return the number of items that `select_items` yields."""
    (number, count), blocks = settings.shard, BlockCounter(bounds)
    chosen = islice(costs, settings.skip, _end(settings))
    if count == 1:
        return sum(1 for _ in chosen)
    return sum(blocks.next(characters) % count == number - 1 for characters in chosen)


def cut_block(costs: Sequence[int], settings: Settings, bounds: Grouping) -> range:
    """Return the numbers of the texts before a limit, in the block that the limit cuts."""
    end = _end(settings)
    if end is None or end >= len(costs):
        return range(0)
    blocks, first, last = BlockCounter(bounds), settings.skip, 0
    for index, characters in enumerate(islice(costs, settings.skip, end + 1), settings.skip):
        if (block := blocks.next(characters)) != last:
            first, last = index, block
    return range(first, end)


class SelectedItems:
    """The items of an input that a run reads."""

    def __init__(self, given: Input, settings: Settings) -> None:
        self._given, self._settings = given, settings

    @property
    def costs(self) -> Sequence[int]:
        """Length of every text of the input, in characters."""
        return self._given.costs

    def select(self, bounds: Grouping) -> Iterator[Item]:
        """Yield the selected items, each with its block."""
        return select_items(self._given.items(), self._settings, bounds)

    def characters(self) -> int:
        """Return the total length of the selected texts in characters; approximate for a shard."""
        every = islice(self.costs, self._settings.skip, _end(self._settings))
        return sum(every) // self._settings.shard[1]

    def count(self, bounds: Grouping) -> int:
        """Return the number of selected items."""
        return count_selected(self.costs, self._settings, bounds)


def _end(settings: Settings) -> int | None:
    return None if settings.limit is None else settings.skip + settings.limit
