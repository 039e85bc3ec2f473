"""Read token ids, attention masks and position ids that a program would give to a model. Never imports torch."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from attnscope.base.errors import UsageError, arg, did_you_mean

_NAMES = ("input_ids", "attention_mask", "position_ids", "token_type_ids")
_FORM = "give a list of whole numbers, or a list of such lists of one length"


class GivenIds(msgspec.Struct, frozen=True):
    """The tokens of one text as given to a model, without padding."""

    ids: tuple[int, ...]
    types: tuple[int, ...]
    positions: tuple[int, ...] | None
    left: tuple[int, ...] = ()  # ids of the padding before the text
    right: int = 0  # number of padding tokens after the text
    masked: bool = False  # whether an attention_mask was given
    apart: bool = False  # drawn at random: none continues the word of the one before it


def read_ids(inputs: Mapping[str, Any], where: str) -> list[GivenIds]:
    """Return each row of the tensors that a model of transformers takes.

    Args:
        inputs: `input_ids`, and perhaps `attention_mask` (1 for tokens, 0 for padding), `position_ids` and
            `token_type_ids`: (tokens,) or (texts, tokens) each, as lists or arrays.
    """
    for name in inputs:
        if name not in _NAMES:
            raise UsageError(f"unknown name '{name}'", where=where, hint=did_you_mean(name, _NAMES))
    if inputs.get("input_ids") is None:
        raise UsageError(
            "has no input_ids", where=where, hint="give them, such as [[101, 2023, 102]]"
        )
    tensors = {
        name: _rows(inputs[name], f"{where}: {name}")
        for name in _NAMES
        if inputs.get(name) is not None
    }
    shape = _shape(tensors["input_ids"])
    if len(tensors.get("position_ids", ())) == 1 < shape[0]:
        # One row of positions is for every text, as in transformers.
        tensors["position_ids"] *= shape[0]
    for name, rows in tensors.items():
        if _shape(rows) != shape:
            message = f"has shape {list(_shape(rows))}, but input_ids has {list(shape)}"
            raise UsageError(
                message, where=f"{where}: {name}", hint="give one number for every token"
            )
    ones = [[1] * shape[1]] * shape[0]
    masks = tensors.get("attention_mask", ones)
    return [_given(index, tensors, masks[index], where) for index in range(shape[0])]


def _given(
    row: int, rows: Mapping[str, list[list[int]]], mask: Sequence[int], where: str
) -> GivenIds:
    if not set(mask) <= {0, 1}:
        raise UsageError(
            "has numbers other than 0 and 1",
            where=f"{where}: attention_mask",
            hint="use 0 for padding",
        )
    if 1 not in mask:
        raise UsageError(
            f"row {row} is all padding", where=f"{where}: attention_mask", hint="leave the row out"
        )
    first_index = mask.index(1)
    last_index = len(mask) - 1 - list(reversed(mask)).index(1)
    if 0 in mask[first_index : last_index + 1]:
        zero_index = first_index + list(mask[first_index:]).index(0)
        hint = f"give 1 there, and hide the token with {arg('hide', zero_index - first_index)}"
        message = f"row {row} has a 0 at {zero_index}, inside the text"
        raise UsageError(message, where=f"{where}: attention_mask", hint=hint)
    columns = slice(first_index, last_index + 1)
    positions = rows.get("position_ids")
    types = rows.get("token_type_ids")
    return GivenIds(
        tuple(rows["input_ids"][row][columns]),
        (0,) * (last_index + 1 - first_index) if types is None else tuple(types[row][columns]),
        None if positions is None else tuple(positions[row][columns]),
        tuple(rows["input_ids"][row][:first_index]),
        len(mask) - 1 - last_index,
        "attention_mask" in rows,
    )


def _rows(value: Any, where: str) -> list[list[int]]:
    listed = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(listed, list | tuple) and listed and not isinstance(listed[0], list | tuple):
        listed = [listed]
    if not isinstance(listed, list | tuple) or not all(
        isinstance(row, list | tuple) and row for row in listed
    ):
        raise UsageError(f"{value!r:.60} is no list of numbers", where=where, hint=_FORM)
    rows = [list(row) for row in listed]
    if not rows or len({len(row) for row in rows}) > 1:
        raise UsageError(
            "has rows of different lengths",
            where=where,
            hint="pad them, and give an attention_mask",
        )
    for row in rows:
        for item in row:
            if type(item) not in (int, bool) or not 0 <= item < 1 << 62:
                raise UsageError(
                    f"has {item!r:.40}, which is no whole number of 0 or more",
                    where=where,
                    hint=_FORM,
                )
    return [[int(item) for item in row] for row in rows]


def _shape(rows: list[list[int]]) -> tuple[int, int]:
    return len(rows), len(rows[0])
