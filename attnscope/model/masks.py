"""Masks that need tensors, and how masks combine. `masks.terms` defines the words of an expression."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.base.errors import AttnscopeError, arg
from attnscope.model.frame import upload
from attnscope.request.masks.terms import AnyOf, Bidirectional, Causal, Mask, MaskTerm, Own

# rows of a run; keys below which nothing is gained; cells evaluated at once
_RUN = 64
_SHORT = 512
_CELLS = 1 << 22


def _around(ranges: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return the range from the first key of any range to the last; empty ranges do not count."""
    filled = [(start, end) for start, end in ranges if start < end]
    return min((start for start, _ in filled), default=0), max(
        (end for _, end in filled), default=0
    )


def _longest_run(hidden: Tensor) -> tuple[int, int]:
    """Return the longest range without a hidden key, (K,), bool."""
    places = hidden.nonzero()[:, 0].cpu()
    ends = torch.cat((torch.tensor([-1]), places, torch.tensor([len(hidden)])))
    # not in a loop of Python: a function of a long text has thousands of runs
    longest = int(ends.diff().argmax())
    return int(ends[longest]) + 1, int(ends[longest + 1])


@dataclass(frozen=True)
class PaddingMask(Mask):
    """In text b only the first `lengths[b]` keys exist."""

    lengths: Tensor  # real keys of every text, (B,), int64
    # rows of padding are of interest, too; otherwise a causal kernel needs no mask, since real tokens do not see the
    # padding behind them
    padded_rows: bool = True
    sizes: tuple[int, ...] = ()  # the lengths on the host; empty if only the device has them

    def allowed(self, q: Tensor, k: Tensor, heads: Tensor | None = None) -> Tensor:
        return (k < self.lengths[:, None, None])[:, None]  # (B, 1, 1, K)

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        return 0, min(n_keys, max(self.on_host))

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        return 0, min(n_keys, min(self.on_host))

    @cached_property
    def on_host(self) -> tuple[int, ...]:
        """The lengths; one wait for a GPU if only the device has them."""
        return self.sizes or tuple(self.lengths.tolist())


@dataclass(frozen=True)
class GivenQueriesMask(Mask):
    """In text b only the queries from position `firsts[b]` on are known; rows before them see nothing."""

    firsts: tuple[int, ...]
    on_device: Tensor  # the same, (B,), int64

    def allowed(self, q: Tensor, k: Tensor, heads: Tensor | None = None) -> Tensor:
        return (q >= self.on_device[:, None, None])[:, None]  # (B, 1, Q, 1)

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        if q1 > min(self.firsts):
            return (0, n_keys)
        return 0, 0

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        if q0 >= max(self.firsts):
            return (0, n_keys)
        return 0, 0


@dataclass(frozen=True)
class HiddenKeysMask(Mask):
    """In every text some keys are seen by no query."""

    hidden: Tensor  # True where a key is hidden, (B, K), bool

    def allowed(self, q: Tensor, k: Tensor, heads: Tensor | None = None) -> Tensor:
        return ~self.hidden[:, None, None, k[0]]  # (B, 1, 1, K)

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        return self._visible_run

    @cached_property
    def _visible_run(self) -> tuple[int, int]:
        return _longest_run(self.hidden.any(0))


@dataclass(frozen=True)
class DocumentsMask(Mask):
    """In every text a query sees the keys of its own document."""

    # start of each token's document, (B, T), int64; it never falls from one token to the next
    starts: Tensor
    ends: Tensor

    def allowed(self, q: Tensor, k: Tensor, heads: Tensor | None = None) -> Tensor:
        at = q[:, 0].clamp(max=self.starts.shape[1] - 1)
        # (B, 1, Q, K)
        return ((self.starts[:, at, None] <= k) & (k < self.ends[:, at, None]))[:, None]

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Cover the documents of the first and the last query, in any text."""
        first_index, last_index = (min(at, len(self._bounds) - 1) for at in (q0, q1 - 1))
        return min(n_keys, self._bounds[first_index][0]), min(n_keys, self._bounds[last_index][3])

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Cover the keys that the documents of the first and the last query share, in every text."""
        first_index, last_index = (min(at, len(self._bounds) - 1) for at in (q0, q1 - 1))
        return self._bounds[last_index][1], min(n_keys, self._bounds[first_index][2])

    @cached_property
    def _bounds(self) -> list[list[int]]:
        """First and last start of each token's documents in the texts, and first and last end."""
        bounds = (self.starts.amin(0), self.starts.amax(0), self.ends.amin(0), self.ends.amax(0))
        table: list[list[int]] = torch.stack(bounds, 1).tolist()
        return table


@dataclass(frozen=True)
class MatrixMask(Mask):
    """A boolean matrix from elsewhere: (Q, K), (H, Q, K), (B, 1, Q, K) or (B, H, Q, K), True where allowed."""

    matrix: Tensor

    @property
    def per_head(self) -> bool:
        return self.matrix.ndim > 2 and self.matrix.shape[-3] > 1

    def allowed(self, q: Tensor, k: Tensor, heads: Tensor | None = None) -> Tensor:
        if heads is None or not self.per_head:
            return self.matrix[..., q, k]
        return self.matrix[..., heads[:, None, None], q, k]


def _over_cells(function: Callable[..., Any], *arguments: Any, scores: bool = False) -> Any:
    """Call a function of scalars, as FlexAttention's are, for every text, head, query and key: (B, h, Q, K)."""
    for axis in (3, 2, 1, 0):
        moved = tuple(0 if at == axis else None for at in range(4))
        function = torch.vmap(function, in_dims=(0, *moved) if scores else moved)
    return function(*arguments)


def _call(what: str, function: Callable[[], Any]) -> Tensor:
    """Call a user's function; its exceptions become AttnscopeErrors."""
    hint = "it gets scalar tensors under torch.vmap, as in FlexAttention: compute with torch, without `if`"
    try:
        result = function()
    except Exception as e:
        reason = " ".join(str(e).split())[:200]
        raise AttnscopeError(
            f"the function fails: {type(e).__name__}: {reason}", where=what, hint=hint
        ) from e
    if not isinstance(result, Tensor):
        raise AttnscopeError(
            f"the function returns a {type(result).__name__}, not a tensor", where=what, hint=hint
        )
    return result


@dataclass(frozen=True)
class FunctionMask(Mask):
    """Mask of a function of text, head, query and key, evaluated on the cells of each tile.

    Which keys a run of rows may see in any head is found by evaluation, once for all layers, so that a long text costs
    no tiles where nothing is allowed.
    """

    function: Callable[..., Any]  # a `mask_mod` of FlexAttention
    n_texts: int
    n_heads: int
    n_queries: int
    device: torch.device

    @property
    def per_head(self) -> bool:
        """Whether heads may differ, which only the function knows."""
        return True

    def allowed(self, q: Tensor, k: Tensor, heads: Tensor | None = None) -> Tensor:
        if heads is None:
            heads = torch.arange(self.n_heads, device=q.device)
        places = torch.arange(self.n_texts, device=q.device), heads, q[:, 0], k[0]
        allowed = _call(arg("mask"), lambda: _over_cells(self.function, *places))
        if allowed.dtype != torch.bool:
            hint = "return True where attention is allowed"
            raise AttnscopeError(
                f"the function returns {allowed.dtype}, not torch.bool",
                where=arg("mask"),
                hint=hint,
            )
        return allowed

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Cover the keys that any row of the runs around these may see."""
        numbers = self._runs(q0, q1, n_keys)
        if numbers is None:
            return 0, n_keys
        return _around(self._run(n, n_keys)[0] for n in numbers)

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Return keys that all rows of the runs around these see."""
        runs = [self._run(n, n_keys)[1] for n in self._runs(q0, q1, n_keys) or ()]
        return max((start for start, _ in runs), default=0), min(
            (end for _, end in runs), default=0
        )

    def _runs(self, q0: int, q1: int, n_keys: int) -> range | None:
        """Return the numbers of the runs around some rows; None for a short text, which is one tile anyway."""
        if n_keys >= _SHORT and q1 <= self.n_queries:
            return range(q0 // _RUN, -(-q1 // _RUN))
        return None

    def _run(self, run_index: int, n_keys: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the range of keys that some row of a run sees, and the longest range that all of its rows see.

        The function is evaluated a block of keys at a time, unless that was done before.
        """
        if (run_index, n_keys) not in self._evaluated:
            rows = torch.arange(
                run_index * _RUN, min(self.n_queries, (run_index + 1) * _RUN), device=self.device
            )[:, None]
            step = max(_RUN, _CELLS // (self.n_texts * self.n_heads * max(1, len(rows))))
            visible = []
            everywhere = []
            for start in range(0, n_keys, step):
                keys = torch.arange(start, min(n_keys, start + step), device=self.device)[None]
                cells = self.allowed(rows, keys).expand(
                    self.n_texts, self.n_heads, len(rows), keys.shape[1]
                )
                cells = cells.flatten(0, 2)
                visible.append(cells.any(0))
                everywhere.append(cells.all(0))
            # one wait for a GPU
            cells = torch.stack((torch.cat(visible), torch.cat(everywhere))).cpu()
            places = cells[0].nonzero()[:, 0]
            seen = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
            self._evaluated[run_index, n_keys] = seen, _longest_run(~cells[1])
        return self._evaluated[run_index, n_keys]

    @cached_property
    def _evaluated(self) -> dict[tuple[int, int], tuple[tuple[int, int], tuple[int, int]]]:
        return {}


@dataclass(frozen=True)
class ScoreFunctionMask(Mask):
    """Everything is allowed, but a function changes the scaled scores."""

    function: Callable[..., Any]  # a `score_mod` of FlexAttention

    @property
    def changes_scores(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        return self._change

    def _change(self, scaled: Tensor, q: Tensor, k: Tensor, heads: Tensor) -> Tensor:
        places = torch.arange(len(scaled), device=q.device), heads, q[:, 0], k[0]
        if not scaled.numel():
            return scaled
        changed = _call(
            arg("score_mod"), lambda: _over_cells(self.function, scaled, *places, scores=True)
        )
        if not changed.is_floating_point():
            changed = changed.to(scaled.dtype)
        if not bool((changed < torch.inf).all()):
            hint = "return finite scores, or -inf for a key that is not allowed"
            raise AttnscopeError(
                "the function returns NaN or inf", where=arg("score_mod"), hint=hint
            )
        return changed

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        return 0, n_keys


@dataclass(frozen=True)
class Intersection(Mask):
    """A key is visible if every part allows it."""

    parts: tuple[Mask, ...]

    @property
    def per_head(self) -> bool:
        return any(part.per_head for part in self.parts)

    @property
    def changes_scores(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None:
        changes = [part.changes_scores for part in self.parts if part.changes_scores is not None]
        if len(changes) < 2:
            return changes[0] if changes else None

        def change(scores: Tensor, q: Tensor, k: Tensor, heads: Tensor) -> Tensor:
            for function in changes:
                scores = function(scores, q, k, heads)
            return scores

        return change

    def allowed(self, q: Tensor, k: Tensor, heads: Tensor | None = None) -> Tensor | None:
        result: Tensor | None = None
        for part in self.parts:
            visible = part.allowed(q, k, heads)
            if visible is not None:
                result = visible if result is None else result & visible
        return result

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        ranges = [part.key_range(q0, q1, n_keys) for part in self.parts]
        low = max((r[0] for r in ranges), default=0)
        return low, max(low, min((r[1] for r in ranges), default=n_keys))

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        ranges = [part.all_visible_range(q0, q1, n_keys) for part in self.parts]
        return max((r[0] for r in ranges), default=0), min((r[1] for r in ranges), default=n_keys)


@dataclass(frozen=True)
class Union(Mask):
    """A key is visible if any part allows it."""

    parts: tuple[Mask, ...]

    @property
    def per_head(self) -> bool:
        return any(part.per_head for part in self.parts)

    def allowed(self, q: Tensor, k: Tensor, heads: Tensor | None = None) -> Tensor | None:
        result: Tensor | None = None
        for part in self.parts:
            visible = part.allowed(q, k, heads)
            if visible is None:
                return None
            result = visible if result is None else result | visible
        return result

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Cover the parts' ranges, and the keys between them."""
        return _around(part.key_range(q0, q1, n_keys) for part in self.parts)

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Return the longest run that the parts' ranges make together."""
        longest = (0, 0)
        start = 0
        end = 0
        for low, high in sorted(part.all_visible_range(q0, q1, n_keys) for part in self.parts):
            start, end = (start, max(end, high)) if low <= end else (low, high)
            longest = max(longest, (start, end), key=lambda run: run[1] - run[0])
        return longest


@dataclass(frozen=True)
class ShiftedMask(Mask):
    """Another mask for queries that are counted from a later position; earlier tokens are in a cache."""

    mask: Mask
    start: int

    @property
    def per_head(self) -> bool:
        return self.mask.per_head

    @property
    def changes_scores(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None:
        change = self.mask.changes_scores
        if change is None:
            return None
        return lambda scores, q, k, heads: change(scores, q + self.start, k, heads)

    def allowed(self, q: Tensor, k: Tensor, heads: Tensor | None = None) -> Tensor | None:
        visible: Tensor | None = self.mask.allowed(q + self.start, k, heads)
        return visible

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        return self.mask.key_range(q0 + self.start, q1 + self.start, n_keys)

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        return self.mask.all_visible_range(q0 + self.start, q1 + self.start, n_keys)


def intersect(parts: Sequence[Mask]) -> Mask:
    """Return the intersection of masks; parts that allow everything are dropped."""
    real = [
        p for part in parts for p in (part.parts if isinstance(part, Intersection) else (part,))
    ]
    real = [p for p in dict.fromkeys(real) if type(p) not in (Mask, Bidirectional)]
    if len(real) == 1:
        return real[0]
    if real:
        return Intersection(tuple(real))
    return Bidirectional()


def plain_mask(mask: Mask, n_queries: int, n_keys: int) -> Mask | None:
    """Return the causal or bidirectional mask that equals `mask` on real tokens; None if there is none."""
    if mask.changes_scores is not None:
        return None
    parts = mask.parts if isinstance(mask, Intersection) else (mask,)
    narrowing = [
        part for part in parts if part.all_visible_range(0, n_queries, n_keys) != (0, n_keys)
    ]
    causal = [part for part in narrowing if isinstance(part, Causal)]
    if causal and n_queries == n_keys:
        narrowing = [
            part for part in narrowing if not isinstance(part, PaddingMask) or part.padded_rows
        ]
    if len(narrowing) > len(causal):
        return None
    return causal[0] if causal else Bidirectional()


def build_mask(
    terms: Sequence[MaskTerm],
    own: Mask | None = None,
    resolved: Mapping[MaskTerm, Mask] | None = None,
) -> Mask:
    """Return the mask of a parsed expression; the word `own` refers to `own`.

    `resolved` has the masks of terms that need more than their words: files, documents, and hidden tokens.
    """
    masks: list[Mask] = []
    for term in terms:
        if isinstance(term, AnyOf):
            branches = tuple(
                dict.fromkeys(build_mask(branch, own, resolved) for branch in term.branches)
            )
            masks.append(branches[0] if len(branches) == 1 else Union(branches))
        elif resolved is not None and term in resolved:
            masks.append(resolved[term])
        else:
            masks.append(own or Bidirectional() if isinstance(term, Own) else term)
    return intersect(masks)


def documents_mask(documents: Sequence[Sequence[int]], longest: int, device: torch.device) -> Mask:
    """Return the mask of packed documents; padding up to the `longest` text is a document of its own."""
    starts, ends = (torch.zeros(len(documents), longest, dtype=torch.int64) for _ in range(2))
    for index, lengths in enumerate(documents):
        sizes = torch.tensor([*lengths, max(0, longest - sum(lengths))])
        after = sizes.cumsum(0)
        starts[index], ends[index] = (
            (edge.repeat_interleave(sizes)) for edge in (after - sizes, after)
        )
    return DocumentsMask(starts.to(device), ends.to(device))


def mask_from_matrix(matrix: "np.ndarray[Any, np.dtype[np.bool_]]", device: torch.device) -> Mask:
    """Return the mask that a boolean matrix, (queries, keys) or (heads, queries, keys), says."""
    return MatrixMask(torch.from_numpy(matrix).to(device))


def hidden_keys_mask(hidden: Sequence[Sequence[int]], longest: int, device: torch.device) -> Mask:
    """Return the mask that hides some keys of every text from all queries."""
    places = torch.zeros(len(hidden), longest, dtype=torch.bool)
    for index, keys in enumerate(hidden):
        places[index, list(keys)] = True
    return HiddenKeysMask(places.to(device))


def padding_mask(
    lengths: Sequence[int], longest: int, device: torch.device, *, padded_rows: bool = True
) -> Mask:
    """Return the mask that hides padded keys; it allows everything if no text is padded. See PaddingMask."""
    if all(n == longest for n in lengths):
        return Bidirectional()
    return PaddingMask(upload(torch.tensor(lengths), device), padded_rows, tuple(lengths))
