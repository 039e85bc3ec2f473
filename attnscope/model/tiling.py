"""A call and its mask in; the blocks of heads, queries and keys that its attention is worked through in out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from attnscope.model.call import Call
from attnscope.model.masks import Mask

_ON_CPU = 1 << 20  # scores: 4 MiB a stage, two or three of which fit in a core's share of the last cache
_ON_GPU = 1 << 26  # a kernel must be large to be worth its launch
_MOST_ROWS = 256  # where a block's keys are those of all of its rows, so that taller ones hold more that is not allowed
_ENOUGH_ROWS = 128  # below these, a tile of twice the scores is the faster one
_FEWEST_ROWS = 32  # products of fewer rows are slow; memory still grows with the text, not with its square


@dataclass(frozen=True)
class Shape:
    """How a layer is cut.

    Attributes:
        rows: Queries of a tile, at most.
    """

    rows: int
    _n_heads: int
    _fit: int  # keys times heads

    @classmethod
    def of(cls, call: Call, n_heads: int, mask: Mask, limit: int | None) -> Self:
        """What suits the layer and the device.

        Args:
            call: The layer.
            n_heads: Heads that are wanted.
            mask: Which keys a query may see.
            limit: Scores in a tile, at most (at least one row); None for what suits the device.
        """
        batch, _, n_queries, _ = call.q.shape
        n_keys = call.k.shape[2]
        elements = (limit or (_ON_GPU if call.q.is_cuda else _ON_CPU)) // batch
        some = min(n_queries, _MOST_ROWS)
        width = max(1, *(_width(mask, q0, some, n_keys) for q0 in (n_queries // 2, n_queries - some)))
        fewest = 1 if limit else min(_FEWEST_ROWS, some)
        most = n_queries if _width(mask, 0, 1, n_keys) == n_keys else some
        rows = elements // width
        if not limit and rows < _ENOUGH_ROWS:
            rows = min(_ENOUGH_ROWS, 2 * elements // width)
        rows = max(fewest, min(most, rows))
        rows = -(-n_queries // -(-n_queries // rows))  # alike: a last block of one row would be summed differently
        return cls(rows, n_heads, elements // rows)

    def heads(self, width: int) -> int:
        """Heads of a tile with so many keys; a little fewer than fit, if it takes no more tiles."""
        fit = max(1, min(self._n_heads, self._fit // max(1, width)))
        return -(-self._n_heads // -(-self._n_heads // fit))


def _width(mask: Mask, q0: int, rows: int, n_keys: int) -> int:
    k0, k1 = mask.span(q0, q0 + rows, n_keys)
    return k1 - k0


def blocks(n_queries: int, rows: int, wanted: Sequence[int] | None) -> Iterator[tuple[int, int]]:
    """Row ranges of at most `rows`, none of them without a wanted row.

    Args:
        n_queries: Rows in all.
        rows: Rows of a block, at most.
        wanted: Rows that anyone looks at, sorted; None for all.
    """
    if wanted is None:
        yield from ((q0, min(q0 + rows, n_queries)) for q0 in range(0, n_queries, rows))
        return
    i = 0
    while i < len(wanted):
        j = i
        while j + 1 < len(wanted) and wanted[j + 1] == wanted[j] + 1 and wanted[j + 1] < wanted[i] + rows:
            j += 1
        yield wanted[i], wanted[j] + 1
        i = j + 1


def round_up(width: int) -> int:
    """So many keys or up to a sixteenth more: tiles of few different widths, as each costs a preparation."""
    step = 1 << max(0, width.bit_length() - 5)
    return -(-width // step) * step
