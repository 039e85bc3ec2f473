"""Cut an input into blocks: the unit that shards, workers and tasks of a cluster share out.

Texts that go through the model together decide the last bits of its numbers. A window and its groups therefore lie
within one block, and where a block begins depends on the input and the header alone. So every process that computes a
block computes the same bits, and parts joined in input order are the file of one process. Lengths are counted in
characters, which are known without a tokenizer: a shard tokenizes only its own texts.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec import structs

from attnscope.batch.header import CHARACTERS_OF_A_TOKEN, Grouping, Settings
from attnscope.batch.items import Item, cost
from attnscope.batch.reader import InputReader

_GROUPS = 8  # of a block at least: of fewer, texts of unlike lengths would share a group, or groups be small
_BLOCKS = 8  # of an input at least, unless they would be smaller: there is something to share out


def with_blocks(bounds: Grouping, settings: Settings, costs: Sequence[int]) -> Grouping:
    """Return bounds with blocks about as long as a window; they do not depend on a limit, which may grow."""
    share = sum(islice(costs, settings.skip, None)) // _BLOCKS
    least = CHARACTERS_OF_A_TOKEN * _GROUPS * bounds.tokens
    limit = min(CHARACTERS_OF_A_TOKEN * bounds.window_tokens, max(least, share))
    return structs.replace(bounds, block_characters=limit)


class BlockCounter:
    """Assign consecutive texts to blocks; without a bound on their size, everything is one block."""

    def __init__(self, bounds: Grouping) -> None:
        self._bounds = bounds
        self._block = 0
        self._characters = 0

    def next(self, characters: int) -> int:
        """Return the block of the next text, counted from 0."""
        max_characters = self._bounds.most_characters(self._block)
        if 0 < max_characters < self._characters + characters and self._characters:
            self._block = self._block + 1
            self._characters = 0
        self._characters = self._characters + characters
        return self._block


def cut_block(costs: Sequence[int], settings: Settings, bounds: Grouping) -> range:
    """Return the numbers of the texts before a limit, in the block that the limit cuts."""
    end = _end(settings)
    if end is None or end >= len(costs):
        return range(0)
    blocks = BlockCounter(bounds)
    start = settings.skip
    last = 0
    for index, characters in enumerate(islice(costs, settings.skip, end + 1), settings.skip):
        if (block := blocks.next(characters)) != last:
            start = index
            last = block
    return range(start, end)


class SelectedItems:
    """The items of an input that `--skip`, `--limit` and `--shard` leave."""

    def __init__(self, reader: InputReader, settings: Settings) -> None:
        self._given = reader
        self._settings = settings

    @property
    def costs(self) -> Sequence[int]:
        """Length of every text of the input, in characters."""
        return self._given.costs

    def select(self, bounds: Grouping) -> Iterator[Item]:
        """Yield the selected items, each with its block."""
        shard_number, count = self._settings.shard
        blocks = BlockCounter(bounds)
        for item in islice(self._given.items(), self._settings.skip, _end(self._settings)):
            if (block := blocks.next(cost(item))) % count == shard_number - 1:
                yield structs.replace(item, block=block)

    def characters(self) -> int:
        """Return the total length of the selected texts in characters; approximate for a shard."""
        return sum(self.selected_costs()) // self._settings.shard[1]

    def count(self, bounds: Grouping) -> int:
        """Return the number of selected items."""
        shard_number, count = self._settings.shard
        blocks = BlockCounter(bounds)
        return sum(
            blocks.next(characters) % count == shard_number - 1
            for characters in self.selected_costs()
        )

    def count_blocks(self, bounds: Grouping) -> int:
        """Return the number of blocks of a shard, or one less."""
        blocks = BlockCounter(bounds)
        last = max(map(blocks.next, self.selected_costs()), default=-1)
        return (last + 1) // self._settings.shard[1]

    def selected_costs(self) -> Iterator[int]:
        """Return the lengths of the texts that `--skip` and `--limit` leave, in characters."""
        return islice(self.costs, self._settings.skip, _end(self._settings))


def _end(settings: Settings) -> int | None:
    if settings.limit is None:
        return None
    return settings.skip + settings.limit
