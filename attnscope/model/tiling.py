"""Cut a layer's attention into tiles."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from attnscope.base.system.gpu import device_tile_scores
from attnscope.model.inputs import AttentionInputs
from attnscope.model.tile import Recorder
from attnscope.request.masks.terms import Mask

# scores: 4 MiB a stage, two or three of which fit in a core's share of the last cache
_ON_CPU = 1 << 20
# where a block's keys are those of all of its rows, so that taller ones hold more that is not allowed
_MOST_ROWS = 256
_MOST_ROWS_ON_GPU = 1024
_ENOUGH_ROWS = 128  # below these, a tile of twice the scores is the faster one
# products of fewer rows are slow; memory still grows with the text, not with its square
_FEWEST_ROWS = 32


@dataclass(frozen=True)
class TileShape:
    """How a layer is cut."""

    rows: int  # queries of a tile, at most
    elements: int  # scores of a tile, at most, unless it is a single head's
    n_heads: int

    @classmethod
    def of(cls, inputs: AttentionInputs, n_heads: int, mask: Mask, limit: int | None) -> Self:
        """Return the shape for a layer and device; a tile has at most `limit` scores, or those of a row."""
        batch, _, n_queries, _ = inputs.q.shape
        n_keys = inputs.k.shape[2]
        elements = (
            limit or (device_tile_scores(str(inputs.q.device)) if inputs.q.is_cuda else _ON_CPU)
        ) // batch
        # on a GPU, fewer launches are worth an eighth of the cells that are computed but not allowed
        taller = min(_MOST_ROWS_ON_GPU, n_queries // 8) if inputs.q.is_cuda else 0
        block_rows = min(n_queries, max(_MOST_ROWS, taller))
        width = max(
            1,
            *(
                _width(mask, q0, block_rows, n_keys)
                for q0 in (n_queries // 2, n_queries - block_rows)
            ),
        )
        fewest = 1 if limit else min(_FEWEST_ROWS, block_rows)
        max_rows = n_queries if _width(mask, 0, 1, n_keys) == n_keys else block_rows
        rows = elements // width
        if not limit and rows < _ENOUGH_ROWS:
            rows = min(_ENOUGH_ROWS, 2 * elements // width)
        rows = max(fewest, min(max_rows, rows))
        # equal blocks: a last block of one row would be summed differently
        rows = -(-n_queries // -(-n_queries // rows))
        return cls(rows, elements, n_heads)

    def heads(self, block: "TileBlock") -> int:
        """Return heads of a block's tiles; a little fewer than fit, if it takes no more tiles."""
        cells = max(1, (block.q1 - block.q0) * (block.k1 - block.k0))
        fit = max(1, min(self.n_heads, self.elements // cells))
        return -(-self.n_heads // -(-self.n_heads // fit))


@dataclass(frozen=True)
class TileBlock:
    """Queries, and the keys that their tiles hold."""

    q0: int
    q1: int  # end of the queries
    k0: int
    k1: int
    needs_scores: bool = False


def _width(mask: Mask, q0: int, rows: int, n_keys: int) -> int:
    k0, k1 = mask.key_range(q0, q0 + rows, n_keys)
    return k1 - k0


def tile_blocks(
    mask: Mask,
    shape: TileShape,
    size: tuple[int, int],
    needed_rows: Sequence[int] | None,
    recorders: Sequence[Recorder],
) -> Iterator[TileBlock]:
    """Yield the blocks of a layer in order, none of them without a wanted row.

    A block covers the keys that its queries see, and those whose raw scores recorders read. If a few rows would make
    it larger than a tile may be, these become separate blocks. Rows that anyone looks at are sorted; None for all.
    """
    n_queries, n_keys = size
    readers = [recorder for recorder in recorders if recorder.needs_scores]
    for q0, q1 in contiguous_runs(
        range(n_queries) if needed_rows is None else needed_rows, shape.rows
    ):
        narrow = _block(mask, q0, q1, n_keys)
        wide = _block(mask, q0, q1, n_keys, readers)
        width = wide.k1 - wide.k0
        if width == narrow.k1 - narrow.k0 or (q1 - q0) * width <= shape.elements:
            yield wide
            continue
        rows = sorted({row for reader in readers for row in _within(reader.rows, q0, q1)})
        done = q0
        for start, end in [*contiguous_runs(rows, max(1, shape.elements // width)), (q1, q1)]:
            if done < start:
                yield _block(mask, done, start, n_keys)
            if start < end:
                yield _block(mask, start, end, n_keys, readers)
            done = end


def _block(
    mask: Mask, q0: int, q1: int, n_keys: int, readers: Sequence[Recorder] = ()
) -> TileBlock:
    """Select the keys that these queries may see and that some reader needs."""
    k0, k1 = mask.key_range(q0, q1, n_keys)
    here = [reader for reader in readers if _within(reader.rows, q0, q1)]
    for score_range in (reader.score_range() for reader in here):
        if score_range is not None:
            k0 = min(k0, score_range[0])
            k1 = max(k1, score_range[1])
    # Rounded up by at most a sixteenth, so that tiles have few different widths: each costs a preparation.
    step = 1 << max(0, (k1 - k0).bit_length() - 5)
    width = -(-(k1 - k0) // step) * step
    return TileBlock(q0, q1, k0, min(n_keys, k0 + width), bool(here))


def _within(rows: Sequence[int], q0: int, q1: int) -> Sequence[int]:
    """Return the sorted rows from q0 to q1, exclusive."""
    return rows[bisect_left(rows, q0) : bisect_left(rows, q1)]


def contiguous_runs(rows: Sequence[int], max_rows: int) -> Iterator[tuple[int, int]]:
    """Yield runs of adjacent rows as (start, end), at most `max_rows` rows each."""
    i = 0
    while i < len(rows):
        j = min(i + max_rows, len(rows)) - 1
        while rows[j] - rows[i] > j - i:
            j -= 1
        yield rows[i], rows[j] + 1
        i = j + 1
