"""Titles that are shortened in one order: the least important part goes first, whole, and no word or unit is cut."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from rich.cells import cell_len
from rich.style import Style

from attnscope.base.system.escape import escape_control
from attnscope.views.explore.ink import PLAIN

# Columns of a model's name at most, and of a name of a file that says enough without its folder.
_MODEL = 32
_TELLING = 8
_STEM = 4  # columns of the start of a name, at least
BETWEEN = "  "


@dataclass(frozen=True)
class TitlePart:
    """A part of a title: its forms, the longest first; an empty one stands for leaving it out."""

    forms: Sequence[str]
    style: Style = PLAIN

    @classmethod
    def of(cls, *forms: str, style: Style = PLAIN) -> Self:
        """Return a part that can be left out."""
        return cls((*forms, ""), style)


def shortened(
    parts: Sequence[TitlePart], width: int, order: Sequence[int]
) -> list[tuple[str, Style]]:
    """Return the parts that a width has room for, each with its style.

    Args:
        order: Indices of the parts, the one that is shortened first at the start. One that stands there twice gets its
            shortest form at the first place, and is left out at the second.
    """
    form_indices = [0] * len(parts)

    def is_too_wide() -> bool:
        texts = [part.forms[n] for part, n in zip(parts, form_indices, strict=True)]
        sizes = [cell_len(text) + len(BETWEEN) for text in texts if text]
        return sum(sizes) - len(BETWEEN) > width

    for n, index in enumerate(order):
        last = len(parts[index].forms) - 1 - (index in order[n + 1 :])
        while is_too_wide() and form_indices[index] < last:
            form_indices[index] += 1
    # the room that is left over is that of the most important parts
    for n, index in reversed([*enumerate(order)]):
        first_form = len(parts[index].forms) - 2 if index in order[:n] else 0
        while form_indices[index] > first_form:
            form_indices[index] -= 1
            if is_too_wide():
                form_indices[index] += 1
                break
    texts = [(part.forms[n], part.style) for part, n in zip(parts, form_indices, strict=True)]
    return [(text, style) for text, style in texts if text]


def model_forms(model: str) -> list[str]:
    """Return forms of a model's name: its path from a folder on, its file, and fewer of the words of that."""
    model = escape_control(model)
    (*folders, file) = model.split("/")
    name = folders[-1] if folders and len(file) < _TELLING else file
    tail = re.sub(r"\.gguf$", "", name)
    ends = [match.start() for match in re.finditer(r"\b[-. ]\b", tail)]
    ends = ends or [match.start() for match in re.finditer("_", tail)]
    paths = ["…/" + "/".join([*folders, file][n:]) for n in range(1, len(folders))]
    forms = [
        model,
        *paths,
        name,
        tail if tail == name else f"{tail}…",
        *(f"{tail[:end]}…" for end in reversed(ends) if end >= _STEM),
    ]
    return [form for form in dict.fromkeys(forms) if cell_len(form) <= _MODEL] or [forms[-1]]
