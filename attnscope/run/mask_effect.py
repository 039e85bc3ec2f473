"""What a mask changes in a text: keys that it hides, and keys that only it shows. Never imports torch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnscope.findings.provenance import ADDED_KEYS, AddedKeys
from attnscope.request.masks.expression import parse_mask, used_mask
from attnscope.request.masks.terms import (
    AnyOf,
    Causal,
    Documents,
    Function,
    Hidden,
    MaskTerm,
    MatrixFile,
    SlidingWindow,
    leaves,
    replace_leaves,
)
from attnscope.run.cost import allowed_pairs

if TYPE_CHECKING:
    from attnscope.findings.arrays import Array

    # lengths of a text's documents, by the term that needs them
    LengthsOfTerms = Mapping[MaskTerm, tuple[int, ...]]
    # of a mask's files: (queries, keys) or (heads, queries, keys), bool
    Matrices = Mapping[str, Array]


class MaskedText(NamedTuple):
    """What the effect of a mask depends on in a text."""

    n_tokens: int
    documents: "LengthsOfTerms"


class MaskEffect(NamedTuple):
    """What a mask changes, in comparison with the model's own; see `MaskUse`."""

    added: list[AddedKeys]
    hides: bool | None


def mask_effect(
    own_masks: Iterable[str],
    terms: Sequence[MaskTerm],
    texts: Sequence[MaskedText],
    matrices: "Matrices",
) -> MaskEffect:
    """Compare a mask with the model's own in every text: pairs of query and key are counted, not sampled.

    Args:
        own_masks: The different masks of the model's layers; none if they are unknown.
        terms: The requested mask; what hides tokens in addition (`--hide`) is ignored.
    """
    masks = list(own_masks)
    functions = any(isinstance(term, Function) for term in leaves(terms))
    if functions or not texts or not masks:
        return MaskEffect([], None)
    added = set[AddedKeys]()
    hides = False
    for own_mask in masks:
        own = parse_mask(own_mask)
        windows = [term for term in leaves(own) if isinstance(term, SlidingWindow)]
        for text in texts:
            used = _of_text(used_mask(terms, own_mask), text.documents)
            pairs = _PairCount(text.n_tokens, matrices)
            hides = hides or pairs.count([*own, *used]) < pairs.count(own)
            total = pairs.added([], own, used)
            kinds: list[AddedKeys] = []
            if pairs.added([Causal()], own, used) < total:
                kinds.append("later")
            if pairs.added(windows, own, used) < total:
                kinds.append("far")
            added.update(kinds or ["other"] * bool(total))
    return MaskEffect([key_kind for key_kind in ADDED_KEYS if key_kind in added], hides)


def shows_other_documents(
    own_masks: Iterable[str],
    terms: Sequence[MaskTerm],
    lengths: Sequence[int],
    documents: "LengthsOfTerms",
    n_tokens: int,
) -> bool:
    """Tell whether any layer's mask lets a token see a token of another document of these lengths.

    Matrices and functions of the user are not looked into.

    Args:
        documents: The documents of the mask's own terms, in this text.
    """
    if any(isinstance(term, Function | MatrixFile) for term in leaves(terms)):
        return False
    apart = Documents(tuple(lengths))
    used = [_of_text(used_mask(terms, own_mask), documents) for own_mask in own_masks]
    return any(
        allowed_pairs([*mask, apart], n_tokens) < allowed_pairs(mask, n_tokens) for mask in used
    )


def forbids(
    own_masks: Iterable[str],
    terms: Sequence[MaskTerm],
    text: MaskedText,
    matrices: "Matrices",
    queries: Sequence[int],
    keys: Sequence[int],
) -> bool:
    """Tell whether the mask of no layer and head lets any of these queries see any of these keys.

    False if it is unknown, or a function of the user. Tokens that `--hide` names are ignored.
    """
    masks = list(own_masks)
    if not masks or any(isinstance(term, Function) for term in leaves(terms)):
        return False
    pairs = np.array(queries)[:, None], np.array(keys)[None]
    used = [_of_text(used_mask(terms, own_mask), text.documents) for own_mask in masks]
    return not any(_cells(mask, *pairs, text.n_tokens, matrices).any() for mask in used)


def _of_text(terms: Sequence[MaskTerm], documents: "LengthsOfTerms") -> tuple[MaskTerm, ...]:
    """Return a mask's terms with the documents of a text, and without the tokens that it hides."""

    def resolved(term: MaskTerm) -> Sequence[MaskTerm]:
        if isinstance(term, Hidden):
            return ()
        return (Documents(documents[term]),) if term in documents else (term,)

    return replace_leaves(terms, resolved)


class _PairCount:
    """Counts the pairs of query and key that masks show in a text of `n_tokens`."""

    def __init__(self, n_tokens: int, matrices: "Matrices") -> None:
        self._n_tokens = n_tokens
        self._matrices = matrices
        # Every mask is counted in as many heads as a matrix has.
        self._heads = max(
            (len(matrix) for matrix in matrices.values() if matrix.ndim == 3), default=1
        )

    def count(self, terms: Sequence[MaskTerm]) -> int:
        """Count the pairs that a mask shows, of all heads if a matrix is among the files."""
        if not self._matrices:
            return allowed_pairs(terms, self._n_tokens)
        shape = self._heads, self._n_tokens, self._n_tokens
        positions = np.arange(self._n_tokens)
        cells = _cells(terms, positions[:, None], positions[None], self._n_tokens, self._matrices)
        return int(np.broadcast_to(cells, shape).sum())

    def added(
        self, within: Sequence[MaskTerm], own: Sequence[MaskTerm], used: Sequence[MaskTerm]
    ) -> int:
        """Count the pairs within a mask that another one shows and the model's own hides."""
        return self.count([*within, *used]) - self.count([*within, *own, *used])


def _cells(
    terms: Sequence[MaskTerm], queries: "Array", keys: "Array", n_tokens: int, matrices: "Matrices"
) -> "Array":
    """Return the cells that a mask shows, bool, (queries, keys) or (heads, queries, keys).

    Args:
        queries: Positions, (queries, 1).
        keys: Positions, (1, keys).
    """
    shown_cells: Array = np.ones((queries.size, keys.size), dtype=bool)
    for term in terms:
        if isinstance(term, AnyOf):
            branches = [
                _cells(branch, queries, keys, n_tokens, matrices) for branch in term.branches
            ]
            visible = branches[0]
            for branch in branches[1:]:
                visible = visible | branch
        elif isinstance(term, MatrixFile):
            visible = matrices[term.path][..., queries, keys]
        else:
            start, end = term.interval(queries, n_tokens)
            visible = (start <= keys) & (keys < end)
        shown_cells = shown_cells & visible
    return shown_cells
