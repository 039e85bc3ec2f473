"""The order of axes in which arrays are given. Never imports torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from attnscope.base.errors import AttnscopeError

DEFAULT = "heads,tokens,width"
_SPELLINGS = {
    "layers": ("l", "layer", "layers"),
    "texts": ("b", "batch", "text", "texts"),
    "heads": ("h", "head", "heads"),
    "tokens": ("t", "s", "token", "tokens", "seq", "sequence"),
    "width": ("d", "e", "w", "dim", "width"),
}
_AXIS_OF = {spelling: axis for axis, spellings in _SPELLINGS.items() for spelling in spellings}
_EXAMPLES = "heads,tokens,width (htd), tokens,heads,width (thd) or batch,heads,tokens,width (bhtd)"


def parse_layout(layout: str | Sequence[str] | None, where: str) -> tuple[str, ...] | None:
    """Read the order of axes: words joined by commas or blanks, or a letter for each; None if none is given."""
    if layout is None:
        return None
    words = layout
    if isinstance(layout, str):
        words = layout.replace(",", " ").split()
    if isinstance(layout, str) and len(words) == 1:
        words = list(layout.strip())
    axes = tuple(_AXIS_OF.get(str(word).strip().lower(), "") for word in words)
    needed_axes = {"heads", "tokens", "width"}
    if "" in axes or len(set(axes)) < len(axes) or not needed_axes <= set(axes):
        raise AttnscopeError(
            f"{str(layout)!r:.60} is not a layout", where=where, hint=f"use {_EXAMPLES}"
        )
    return axes


@dataclass(frozen=True)
class PackedShape:
    """The shape of an array whose texts are put one after the other."""

    rows: int  # tokens of all texts, padding included
    heads: int
    width: int
    texts: int | None = None  # length of the axis of texts; None without such an axis


def packed_shape(shape: Sequence[int], axes: Sequence[str], where: str) -> PackedShape:
    """Return the sizes that an array's axes stand for."""
    if len(shape) != len(axes):
        hint = f"name the order of its axes: layout {_EXAMPLES}"
        message = (
            f"has {len(shape)} axes {list(shape)}, but the layout {','.join(axes)} has {len(axes)}"
        )
        raise AttnscopeError(message, where=where, hint=hint)
    sizes = dict(zip(axes, shape, strict=True))
    if 0 in (sizes["heads"], sizes["tokens"]):
        raise AttnscopeError(
            f"has shape {list(shape)}, which holds no token", where=where, hint="pass some tokens"
        )
    texts = sizes.get("texts")
    return PackedShape(
        sizes["tokens"] * (1 if texts is None else texts), sizes["heads"], sizes["width"], texts
    )


def query_ranges(
    shape: PackedShape,
    keys: PackedShape,
    ranges: Sequence[tuple[int, int]],
    cu_seqlens: Any,
    axes: Sequence[str],
    where: str,
    *,
    packed: bool,
) -> list[tuple[int, int]]:
    """Return the first query row of every text, and the row after its last; queries belong to a text's last tokens.

    `cu_seqlens` is None if a text has as many queries as keys, or if there is one text, or an axis for texts.
    """
    if cu_seqlens is not None:
        query_rows = text_ranges(shape, cu_seqlens, None, axes, where, "cu_seqlens_q")
    elif packed:
        query_rows = list(ranges)
        if shape.rows != ranges[-1][1]:
            hint = "pass cu_seqlens_q: 0, then the end of each text's queries"
            raise AttnscopeError(
                f"has {shape.rows} queries for {ranges[-1][1]} keys", where=where, hint=hint
            )
    elif shape.rows == keys.rows:
        query_rows = list(ranges)
    else:
        per_text = shape.rows // (shape.texts or 1)
        query_rows = [(per_text * n, per_text * n + per_text) for n in range(shape.texts or 1)]
    counts = [[end - start for start, end in rows] for rows in (query_rows, ranges)]
    if len(counts[0]) != len(counts[1]) or any(q > k for q, k in zip(*counts, strict=True)):
        spelled = [", ".join(map(str, numbers[:8])) for numbers in counts]
        hint = "give a query for every key, or those of a text's last tokens, as a step of decoding has them"
        raise AttnscopeError(
            f"has texts of {spelled[0]} queries and {spelled[1]} keys", where=where, hint=hint
        )
    return query_rows


def text_ranges(
    shape: PackedShape,
    cu_seqlens: Any,
    lengths: Any,
    axes: Sequence[str],
    where: str,
    option: str = "cu_seqlens",
) -> list[tuple[int, int]]:
    """Return the first row of every text, and the row after its last.

    `cu_seqlens` is None if there is one text, or an axis for texts; `lengths` is None without padding.
    """
    if cu_seqlens is None:
        longest = shape.rows // (shape.texts or 1)
        if lengths is None:
            counts = [longest] * (shape.texts or 1)
        else:
            counts = _whole_numbers(lengths, "lengths")
        if len(counts) != (shape.texts or 1) or not all(0 < count <= longest for count in counts):
            message = f"{counts[:8]} do not fit {shape.texts or 1} texts of up to {longest} tokens"
            raise AttnscopeError(
                message, where="lengths", hint="give the number of tokens of every text"
            )
        return [(longest * n, longest * n + count) for n, count in enumerate(counts)]
    if lengths is not None:
        raise AttnscopeError(
            "cu_seqlens and lengths cannot be used together", hint="pass one of them"
        )
    if (shape.texts or 1) > 1:
        hint = "pack the texts one after the other, or leave cu_seqlens out"
        raise AttnscopeError(
            f"the layout has an axis for {shape.texts} texts already", where="cu_seqlens", hint=hint
        )
    bounds = _whole_numbers(cu_seqlens, option)
    if len(bounds) < 2 or bounds[0] != 0 or any(b <= a for a, b in pairwise(bounds)):
        hint = "expected 0, then the end of every text, such as 0, 12, 42"
        raise AttnscopeError(f"{bounds[:8]} do not increase from 0", where=option, hint=hint)
    if bounds[-1] != shape.rows:
        message = f"ends at {bounds[-1]}, but {where} has {shape.rows} tokens in the layout {','.join(axes)}"
        hint = ""
        if shape.heads == bounds[-1]:
            hint = "name the order of the axes: layout tokens,heads,width"
        raise AttnscopeError(
            message, where=option, hint=hint or "its last number is the number of all tokens"
        )
    return list(pairwise(bounds))


def _whole_numbers(values: Any, where: str) -> list[int]:
    listed = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(listed, list | tuple):
        listed = [value.item() if isinstance(value, np.generic) else value for value in listed]
    if not isinstance(listed, list | tuple) or not all(type(value) is int for value in listed):
        raise AttnscopeError(
            f"{listed!r:.60} are not whole numbers", where=where, hint="pass a list such as [0, 12]"
        )
    return list(listed)
