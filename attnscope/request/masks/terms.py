"""The terms of a mask expression, each declared once.

A class defines how the term is written, what it means, which keys a query may see, and what follows from that for
kernels, tiles, costs and estimates. Options, completion, errors, the arithmetic, `attnscope info --cost` and memory
estimates use these definitions. A new term is a class and an entry in TERMS.

Masks have only one form: `allowed`, True where a query may attend to a key. No mask stores a Q×K tensor; each computes
the cells of a given tile, and the range of keys that a block of queries can see. The formulas of terms use only
operators, so that positions may be tensors, arrays or ints. Classes without fields inherit equality: two terms are
equal if class and size are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

Array = Any  # type of positions: a torch.Tensor or a NumPy array


@dataclass(frozen=True)
class Mask:
    """Every key is visible; subclasses narrow this."""

    @property
    def per_head(self) -> bool:
        """Whether heads may see different keys; `allowed` then has an axis for them."""
        return False

    @property
    def changes_scores(self) -> "Callable[[Array, Array, Array, Array], Array] | None":
        """A function of scaled scores, (B, h, Q, K), and of q, k and heads, as in `allowed`, to other scores; or None.

        A score of −inf is as one that is not allowed.
        """
        return None

    def allowed(self, q: Array, k: Array, heads: Array | None = None) -> Array | None:
        """Return which keys each query may see.

        Args:
            q: Query positions, (Q, 1), int64.
            k: Key positions, (1, K), int64.
            heads: Query heads, (h,), int64, for a mask that differs between heads; None for all.

        Returns:
            Bool, (Q, K), (B, 1, Q, K), (h, Q, K) or (B, h, Q, K), True where allowed; None where everything is.
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
    """A term of a mask expression: every query sees one run of keys, whose ends never move back."""

    word: ClassVar[str] = ""  # spelling, without its size
    form: ClassVar[str] = ""  # spelling in help and errors

    def __str__(self) -> str:
        return self.word

    @property
    def left_to_right(self) -> bool:
        """Whether queries see no later keys, except a prefix that all of them see."""
        return False

    @property
    def window(self) -> int | None:
        """Distance from which on keys are not seen, on both sides of a query; None for no such limit."""
        return None

    def interval(self, q: Array, n_keys: int) -> tuple[Array, Array]:
        """Return the first key that each query sees, and the end of its keys; they may lie outside the text."""
        return 0 * q, 0 * q + n_keys

    def allowed(self, q: Array, k: Array, heads: Array | None = None) -> Array | None:
        """Allow the run of keys of each query."""
        start, end = self.interval(q, 0)
        return (start <= k) & (k < end)

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Start with the run of the first query, end with that of the last."""
        start = self.interval(q0, n_keys)[0]
        end = self.interval(q1 - 1, n_keys)[1]
        start = min(max(0, start), n_keys)
        return start, max(start, min(n_keys, end))

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Start with the run of the last query, end with that of the first."""
        return max(0, self.interval(q1 - 1, n_keys)[0]), min(n_keys, self.interval(q0, n_keys)[1])


@dataclass(frozen=True)
class SizedTerm(MaskTerm):
    """A term with a size, such as `window:4`."""

    size: int

    def __str__(self) -> str:
        return f"{self.word}:{self.size}"


class Own(MaskTerm):
    """The model's own mask."""

    word = form = "own"


@dataclass(frozen=True)
class MatrixFile(MaskTerm):
    """A boolean matrix, (queries, keys) or (heads, queries, keys), True where allowed: a file, or an array's name."""

    form = "FILE (.json, .npy or .safetensors)"
    path: str

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class Hidden(MaskTerm):
    """Tokens that no query sees (`--hide`), in addition to the mask.

    This term is not part of the expression, since typed tokens may contain `+`. Each text resolves the positions
    itself.
    """

    typed: str

    def __str__(self) -> str:
        return f"hide:{self.typed}"


@dataclass(frozen=True)
class Function(MaskTerm):
    """A Python function of text, head, query and key that returns whether a key is visible, as `mask_mod` in
    FlexAttention.

    This term cannot be typed, since the function is no text.
    """

    name: str
    function: Callable[..., Any]

    def __str__(self) -> str:
        return f"function:{self.name}"


@dataclass(frozen=True)
class ScoreFunction(Function):
    """A Python function that returns other scaled scores, as `score_mod` in FlexAttention; allows every key."""

    def __str__(self) -> str:
        return f"score_mod:{self.name}"


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function, of a lambda with its line."""
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    if name == "<lambda>" and code is not None:
        return f"lambda in line {code.co_firstlineno}"
    return name


class Bidirectional(MaskTerm):
    """Every query sees every key."""

    word = form = "bidirectional"

    def allowed(self, q: Array, k: Array, heads: Array | None = None) -> None:
        """Allow everything."""


class Causal(MaskTerm):
    """A query sees itself and earlier keys."""

    word = form = "causal"

    @property
    def left_to_right(self) -> bool:
        return True

    def allowed(self, q: Array, k: Array, heads: Array | None = None) -> Array:
        return k <= q

    def interval(self, q: Array, n_keys: int) -> tuple[Array, Array]:
        return 0 * q, q + 1


class SlidingWindow(SizedTerm):
    """A query sees keys less than `size` positions away, on both sides."""

    word = "window"
    form = "window:N"

    @property
    def window(self) -> int:
        return self.size

    def allowed(self, q: Array, k: Array, heads: Array | None = None) -> Array:
        return abs(q - k) < self.size

    def interval(self, q: Array, n_keys: int) -> tuple[Array, Array]:
        return q - self.size + 1, q + self.size


class Prefix(SizedTerm):
    """All queries see the first `size` keys; beyond them, causal (a prefix language model)."""

    word = "prefix"
    form = "prefix:N"

    @property
    def left_to_right(self) -> bool:
        """True: only the prefix is seen from before."""
        return True

    def allowed(self, q: Array, k: Array, heads: Array | None = None) -> Array:
        return (k <= q) | (k < self.size)

    def interval(self, q: Array, n_keys: int) -> tuple[Array, Array]:
        return 0 * q, q + 1 + (self.size - q - 1) * (q + 1 < self.size)


class BlockDiagonal(SizedTerm):
    """A query sees the keys of its own block of `size` tokens: documents packed one after the other."""

    word = "block"
    form = "block:N"

    def allowed(self, q: Array, k: Array, heads: Array | None = None) -> Array:
        return q // self.size == k // self.size

    def interval(self, q: Array, n_keys: int) -> tuple[Array, Array]:
        return q // self.size * self.size, (q // self.size + 1) * self.size


class FirstKeys(SizedTerm):
    """Every query sees the first `size` keys, and no others; in a union, they stay visible behind a window."""

    word = "sink"
    form = "sink:N"

    def allowed(self, q: Array, k: Array, heads: Array | None = None) -> Array:
        return k < self.size

    def interval(self, q: Array, n_keys: int) -> tuple[Array, Array]:
        return 0 * q, 0 * q + self.size


@dataclass(frozen=True)
class Documents(MaskTerm):
    """A query sees the keys of its own document; the text is documents of these lengths, one after the other.

    Each text resolves the documents itself: their lengths have to be those of the text.
    """

    word = "docs"
    form = "docs:N,N,…"
    lengths: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.word}:{','.join(map(str, self.lengths))}"

    def interval(self, q: Array, n_keys: int) -> tuple[Array, Array]:
        starts = list(accumulate(self.lengths, initial=0))
        begin = sum(
            ((q >= start) * size for start, size in zip(starts[1:-1], self.lengths, strict=False)),
            0 * q,
        )
        more = sum(
            (
                (q >= start) * size
                for start, size in zip(starts[1:-1], self.lengths[1:], strict=True)
            ),
            0 * q,
        )
        return begin, more + self.lengths[0]


class DocumentEnds(MaskTerm):
    """A query sees the keys of its own document; a token at which the model ends a text ends each document.

    Which tokens these are depends on the text, so that costs and estimates count every key.
    """

    word = form = "docs:eos"


@dataclass(frozen=True)
class AnyOf(MaskTerm):
    """A union: a key is visible if every term of any branch allows it."""

    branches: tuple[tuple[MaskTerm, ...], ...]

    def __str__(self) -> str:
        return f"({'|'.join('+'.join(map(str, branch)) for branch in self.branches)})"

    @property
    def left_to_right(self) -> bool:
        """Whether every branch has such a term."""
        return all(any(term.left_to_right for term in branch) for branch in self.branches)

    @property
    def window(self) -> int | None:
        """The widest window of the branches, if each has one."""
        sizes = [
            min((term.window for term in branch if term.window is not None), default=None)
            for branch in self.branches
        ]
        known_sizes = [size for size in sizes if size is not None]
        if len(known_sizes) == len(sizes):
            return max(known_sizes)
        return None


def leaves(terms: Sequence[MaskTerm]) -> Iterator[MaskTerm]:
    """Yield the terms of an expression, also inside unions."""
    for term in terms:
        if isinstance(term, AnyOf):
            for branch in term.branches:
                yield from leaves(branch)
        else:
            yield term


def replace_leaves(
    terms: Sequence[MaskTerm], replaced: Callable[[MaskTerm], Sequence[MaskTerm]]
) -> tuple[MaskTerm, ...]:
    """Return an expression with each term replaced, also inside unions."""
    replacements: list[MaskTerm] = []
    for term in terms:
        if isinstance(term, AnyOf):
            replacements.append(
                AnyOf(tuple(replace_leaves(branch, replaced) for branch in term.branches))
            )
        else:
            replacements += replaced(term)
    return tuple(replacements)


# what they allow depends on the text, or its length
OF_ONE_TEXT = (MatrixFile, Hidden, Documents, DocumentEnds)
_OF_POSITIONS = (Own, Causal, Bidirectional, SlidingWindow, Prefix, BlockDiagonal, FirstKeys)
TERMS: tuple[type[MaskTerm], ...] = (*_OF_POSITIONS, Documents, DocumentEnds)
