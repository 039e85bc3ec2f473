"""The terms of a mask expression, each declared once.

A class defines how the term is written, what it means, which keys a query may see, and what follows from that for
kernels, tiles, costs and estimates. Options, completion, errors, the arithmetic, `attnscope info --cost` and memory
estimates use these definitions. A new term is a class and an entry in TERMS.

Masks have only one form: `allowed`, True where a query may attend to a key. No mask stores a Q×K tensor; each computes
the cells of a given tile, and the range of keys that a block of queries can see. The formulas of terms use only
operators, so that positions may be tensors, arrays or ints. Classes without fields inherit equality: two terms are
equal if class and size are.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

Array = Any  # type of positions: a torch.Tensor or a NumPy array


@dataclass(frozen=True)
class Mask:
    """Everything is allowed; other masks narrow this."""

    def allowed(self, q: Array, k: Array) -> Array | None:
        """Return which keys each query may see.

        Args:
            q: Query positions, (Q, 1), int64.
            k: Key positions, (1, K), int64.

        Returns:
            Bool, (Q, K) or (B, 1, Q, K), True where allowed; None where everything is.
        """
        return None

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Return a range [k0, k1) with every key that any of the queries q0 … q1 − 1 may see."""
        return 0, n_keys

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Return a range [k0, k1) of keys that all of the queries q0 … q1 − 1 may see; k0 ≥ k1 for none.

        Cells outside it are evaluated one by one, so a mask that knows none is slow but right.
        """
        return 0, 0


class MaskTerm(Mask):
    """One part of a mask expression.

    Attributes:
        word: How it is written, without its size.
        form: How it is written, as help and errors show it.
        left_to_right: Queries see no later keys, but for a prefix that all of them see.
    """

    word: ClassVar[str] = ""
    form: ClassVar[str] = ""
    left_to_right: ClassVar[bool] = False

    def __str__(self) -> str:
        return self.word

    @property
    def window(self) -> int | None:
        """The distance from which on keys are not seen, on both sides of any query; None for no such limit."""
        return None

    def count_visible(self, queries: Array, before: Array, after: Array) -> tuple[Array, Array]:
        """Return how many keys each query sees before and after itself, given how many it saw without the term.

        Args:
            queries: Positions, int64.
            before: Keys that each sees before itself.
            after: Keys that each sees after itself.

        Returns:
            The same of the keys that this term allows, too.
        """
        return before, after


@dataclass(frozen=True)
class SizedTerm(MaskTerm):
    """A term with a size, such as `window:4`."""

    size: int

    def __str__(self) -> str:
        return f"{self.word}:{self.size}"


class Own(MaskTerm):
    """The model's own mask, whatever that is."""

    word = form = "own"


@dataclass(frozen=True)
class MatrixFile(MaskTerm):
    """A boolean matrix (queries, keys), True where allowed: a file, or the name of an array in RunConfig.matrices."""

    form = "FILE (.json, .npy or .safetensors)"
    path: str

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class Hidden(MaskTerm):
    """Tokens that no query sees (`--hide`), added to whatever mask is chosen.

    This term is not part of the expression, since typed tokens may contain `+`. Each text resolves the positions
    itself.
    """

    typed: str

    def __str__(self) -> str:
        return f"hide:{self.typed}"


class Bidirectional(MaskTerm):
    """Every query sees every key."""

    word = form = "bidirectional"

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Return all keys."""
        return 0, n_keys


class Causal(MaskTerm):
    """A query sees itself and earlier keys."""

    word = form = "causal"
    left_to_right = True

    def allowed(self, q: Array, k: Array) -> Array:
        """Allow the query itself and earlier keys."""
        return k <= q

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """End after the last query."""
        return 0, min(q1, n_keys)

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """End after the first query, which sees the fewest keys."""
        return 0, min(q0 + 1, n_keys)

    def count_visible(self, queries: Array, before: Array, after: Array) -> tuple[Array, Array]:
        """Allow none after the query."""
        return before, 0 * after


class SlidingWindow(SizedTerm):
    """A query sees keys less than `size` positions away, on both sides."""

    word, form = "window", "window:N"

    @property
    def window(self) -> int:
        """The window's size."""
        return self.size

    def allowed(self, q: Array, k: Array) -> Array:
        """Allow keys fewer than `size` positions away."""
        return abs(q - k) < self.size

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Start with the window of the first query, end with that of the last."""
        return min(max(0, q0 - self.size + 1), n_keys), min(n_keys, q1 + self.size - 1)

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Start with the window of the last query, end with that of the first."""
        return max(0, q1 - self.size), min(n_keys, q0 + self.size)

    def count_visible(self, queries: Array, before: Array, after: Array) -> tuple[Array, Array]:
        """Allow at most `size` − 1 on each side."""
        return before.clip(max=self.size - 1), after.clip(max=self.size - 1)


class Prefix(SizedTerm):
    """Everyone sees the first `size` keys; beyond them, causal (a prefix language model)."""

    word, form = "prefix", "prefix:N"
    left_to_right = True

    def allowed(self, q: Array, k: Array) -> Array:
        """Allow the prefix, the query itself and earlier keys."""
        return (k <= q) | (k < self.size)

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """End after the last query or the prefix."""
        return 0, min(n_keys, max(q1, self.size))

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """End after the first query or the prefix."""
        return 0, min(n_keys, max(q0 + 1, self.size))

    def count_visible(self, queries: Array, before: Array, after: Array) -> tuple[Array, Array]:
        """Allow the rest of the prefix after the query."""
        return before, after.clip(max=(self.size - 1 - queries).clip(min=0))


class BlockDiagonal(SizedTerm):
    """A query sees the keys of its own block of `size` tokens: documents packed one after the other."""

    word, form = "block", "block:N"

    def allowed(self, q: Array, k: Array) -> Array:
        """Allow keys of the query's own block."""
        return q // self.size == k // self.size

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Cover the blocks of the first and the last query."""
        return min(q0 // self.size * self.size, n_keys), min(n_keys, -(-q1 // self.size) * self.size)

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Cover the block of the queries, if all of them are in one."""
        if q0 // self.size != (q1 - 1) // self.size:
            return 0, 0
        return q0 // self.size * self.size, min(n_keys, (q0 // self.size + 1) * self.size)

    def count_visible(self, queries: Array, before: Array, after: Array) -> tuple[Array, Array]:
        """Allow none outside the block."""
        place = queries % self.size
        return before.clip(max=place), after.clip(max=self.size - 1 - place)


TERMS: tuple[type[MaskTerm], ...] = (Own, Causal, Bidirectional, SlidingWindow, Prefix, BlockDiagonal)
