"""Masks of given arrays: expressions, matrices, biases, and functions. Never imports torch."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnscope.base.errors import AttnscopeError
from attnscope.request.masks.expression import parse_mask, parse_stored_mask, spell_mask
from attnscope.request.masks.terms import (
    DocumentEnds,
    Documents,
    MatrixFile,
    Own,
    ScoreFunction,
    SlidingWindow,
    function_name,
    leaves,
)

Matrix = np.ndarray[Any, np.dtype[Any]]


@dataclass
class GivenMasks:
    """The masks of all layers."""

    masks: dict[int, str] = field(default_factory=dict)
    # N of a `window:N` by layer; None for none
    windows: dict[int, int | None] = field(default_factory=dict)
    # what expressions name: boolean matrices with a row for every token, (queries, keys) or (heads, queries, keys), or
    # a `mask_mod` of FlexAttention
    matrices: dict[str, Any] = field(default_factory=dict)
    # name of a matrix to what is added to scores where it allows attention, in the same shape
    biases: dict[str, Matrix] = field(default_factory=dict)


def read_masks(
    values: Any, layers: Sequence[int], lengths: Sequence[int], rows: Sequence[int], heads: int
) -> GivenMasks:
    """Read the mask of all layers, or that of each.

    It is an expression, a matrix or a function; a list with one for each layer, or a dict by layer; None for `causal`.
    `rows` are the queries of every text, which are those of its last tokens.
    """
    masks = GivenMasks()
    by_layer = _by_layer(values, layers)
    names: dict[int, str] = {}  # by the identity of what is given, as layers often share it
    for value in by_layer.values():
        if id(value) not in names:
            names[id(value)] = _named(value, lengths, rows, heads, masks)
    masks.masks, masks.windows = split_windows(
        {layer: names[id(value)] for layer, value in by_layer.items()}
    )
    return masks


def _by_layer(value: Any, layers: Sequence[int]) -> dict[int, Any]:
    if isinstance(value, Mapping):
        if not all(isinstance(n, int | np.integer) for n in value) or {
            int(n) for n in value
        } != set(layers):
            hint = "give one for every layer, or one for all"
            raise AttnscopeError(f"is given for layers {list(value)[:8]}", where="mask", hint=hint)
        return {int(n): value[n] for n in sorted(value)}
    if isinstance(value, list | tuple) and all(
        isinstance(mask, str) or callable(mask) or hasattr(mask, "shape") for mask in value
    ):
        if len(value) != len(layers):
            message = f"has {len(value)} values for {len(layers)} layers"
            hint = "give one for each; masks of heads are one array, (heads, queries, keys)"
            raise AttnscopeError(message, where="mask", hint=hint)
        return dict(zip(layers, value, strict=True))
    return dict.fromkeys(layers, value)


def _named(
    mask: Any, lengths: Sequence[int], rows: Sequence[int], heads: int, masks: GivenMasks
) -> str:
    """Return an expression for a mask, and keep what it names."""
    if mask is None or isinstance(mask, str):
        return _expression(mask or "causal", lengths)
    if callable(mask) and not hasattr(mask, "__array__"):
        name = base_name = f"function:{function_name(mask)}"
        while name in masks.matrices:
            name = f"{base_name}#{len(masks.matrices) + 1}"
        masks.matrices[name] = mask
        return name
    allowed, bias = _matrix(mask, lengths, rows, heads)
    name = f"array:{hashlib.sha256(allowed.tobytes() + (b'' if bias is None else bias.tobytes())).hexdigest()[:8]}"
    masks.matrices[name] = allowed
    if bias is not None:
        masks.biases[name] = bias
    return name


def _expression(mask: str, lengths: Sequence[int]) -> str:
    """Return a mask expression in its usual spelling."""
    terms = parse_stored_mask(mask, "mask")
    for term in leaves(terms):
        if isinstance(term, Own):
            hint = "use causal or bidirectional"
            raise AttnscopeError("given arrays have no model's own mask", where="mask", hint=hint)
        if isinstance(term, MatrixFile):
            hint = "pass the matrix itself, such as numpy.load(path)"
            raise AttnscopeError(f"'{term}' is a file", where="mask", hint=hint)
        if isinstance(term, DocumentEnds):
            hint = f"use {Documents.form}"
            raise AttnscopeError(
                "given arrays name no token that ends a document", where="mask", hint=hint
            )
        if isinstance(term, Documents) and set(lengths) != {sum(term.lengths)}:
            texts = ", ".join(map(str, sorted(set(lengths))[:8]))
            message = f"the documents have {sum(term.lengths)} tokens, but the texts have {texts}"
            raise AttnscopeError(message, where="mask", hint="give the lengths of all documents")
    return spell_mask(terms)


def read_score_mod(function: Any) -> ScoreFunction | None:
    """Read a function of scaled scores."""
    if function is None:
        return None
    if not callable(function):
        hint = "pass a function of score, b, h, q_idx and kv_idx, as for FlexAttention"
        raise AttnscopeError(
            f"{type(function).__name__} cannot be called", where="score_mod", hint=hint
        )
    return ScoreFunction(function_name(function), function)


def function_digest(function: Callable[..., Any]) -> bytes:
    """Return a digest of a function's code, its constants and what it closes over."""
    code = getattr(function, "__code__", None)
    if code is None:
        return hashlib.sha256(repr(function).encode()).digest()
    closed = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return hashlib.sha256(code.co_code + repr((code.co_consts, closed)).encode()).digest()


def split_windows(masks: Mapping[int, str]) -> tuple[dict[int, str], dict[int, int | None]]:
    """Return the masks of layers without their windows, and these; one that all have stays whole."""
    shared: dict[int, str] = {}
    windows: dict[int, int | None] = {}
    alike = len(set(masks.values())) == 1
    for layer, mask in masks.items():
        terms = parse_mask(mask)
        if alike:
            sizes = []
        else:
            sizes = [term.size for term in terms if isinstance(term, SlidingWindow)]
        kept_terms = (
            terms if alike else [term for term in terms if not isinstance(term, SlidingWindow)]
        )
        shared[layer] = spell_mask(kept_terms) or "bidirectional"
        windows[layer] = min(sizes, default=None)
    return shared, windows


def _matrix(
    mask: Any, lengths: Sequence[int], rows: Sequence[int], heads: int
) -> tuple[Matrix, Matrix | None]:
    """Return a boolean matrix (queries, keys) or (heads, queries, keys), with a row for every token, and its bias.

    It is made of one with a row for every query. Floats are added to scores: −inf, or the smallest number of a type,
    where attention is not allowed; if others than 0 remain, they are the bias.
    """
    array = mask.detach().cpu() if hasattr(mask, "detach") else mask
    if np.ma.is_masked(array):
        raise AttnscopeError(
            "is a masked array that hides cells", where="mask", hint="pass a plain one"
        )
    array = np.asarray(
        array.float() if str(getattr(array, "dtype", "")) == "torch.bfloat16" else array
    )
    while array.ndim > 2 and array.shape[0] == 1:
        array = array[0]
    per_head = array.ndim == 3 and array.shape[0] == heads
    if array.dtype.kind not in "bf" or not (array.ndim == 2 or per_head):
        hint = "pass an expression such as causal, a boolean matrix (queries, keys), or floats that are added to scores"
        raise AttnscopeError(
            f"is {array.dtype} of shape {list(array.shape)}", where="mask", hint=hint
        )
    missing = array.shape[-1] - array.shape[-2]
    if missing > 0 and set(rows) == {array.shape[-2]}:
        array = np.pad(array, [*[(0, 0)] * (array.ndim - 2), (missing, 0), (0, 0)])
    if set(lengths) != {array.shape[-1]} or array.shape[-2] != array.shape[-1]:
        texts = ", ".join(map(str, sorted(set(lengths))[:8]))
        message = f"has shape {list(array.shape)}, but the texts have {texts} tokens"
        raise AttnscopeError(
            message, where="mask", hint="give a row for every query and a column for every key"
        )
    if array.dtype.kind == "b":
        return np.array(array, order="C"), None
    if not bool((array < np.inf).all()):
        hint = "pass finite numbers, and -inf where attention is not allowed"
        raise AttnscopeError("holds NaN or inf, and is added to scores", where="mask", hint=hint)
    allowed = np.ascontiguousarray(array > np.finfo(array.dtype).min / 2)
    bias = np.where(allowed, array, 0).astype(np.float32)
    return allowed, bias if bias.any() else None
