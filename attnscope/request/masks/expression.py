"""Mask expressions: terms joined by `+`."""

import re
from collections.abc import Sequence
from functools import lru_cache

from attnscope.base.errors import UsageError, arg, did_you_mean
from attnscope.request.masks.terms import TERMS, MaskTerm, MatrixFile, Own, SizedTerm

MASK_WORDS = (*(term.form for term in TERMS), MatrixFile.form)
MATRIX_NAME = re.compile(r"array:[0-9a-f]{8}")  # name of a matrix that Python code passed as `mask`
MASK_FILES = (".json", ".npy", ".safetensors")
_SIZE_DIGITS = 18  # digits of a mask's size: larger than any text, without overflow in a 64-bit sum with a position


@lru_cache
def parse_mask(text: str, where: str = arg("mask")) -> tuple[MaskTerm, ...]:
    """Read a mask expression; a key is visible where every term lets it be seen.

    `masks.terms` defines the terms. The path of a file may contain `+` after a slash (`./a+b.npy`), but not after its
    extension, and no blanks around it.

    Args:
        text: Such as `causal+window:4`.
        where: Origin of the expression, for errors.

    Raises:
        UsageError: A term is unknown, lacks its size, or has one that is too large.
    """
    parts: list[str] = []
    for part in text.split("+"):
        if parts and "/" in parts[-1] and not parts[-1].rstrip().endswith(MASK_FILES):
            parts[-1] += f"+{part}"  # a path continues: no word contains a slash
        else:
            parts.append(part.strip())
    return tuple(_parse_term(part.strip(), where) for part in parts)


def _parse_term(part: str, where: str) -> MaskTerm:
    if part.endswith(MASK_FILES) or MATRIX_NAME.fullmatch(part):
        return MatrixFile(part)
    word, colon, size = part.partition(":")
    for term in TERMS:
        if issubclass(term, SizedTerm) and term.word == word:
            if not colon or not size.isascii() or not size.isdigit() or not size.strip("0"):
                raise UsageError(f"'{part}' needs a size of 1 or more", where=where, hint=f"use {term.form}")
            if len(size.lstrip("0")) > _SIZE_DIGITS:
                hint = f"use at most {_SIZE_DIGITS} digits"
                raise UsageError(f"the size of '{part}' is too large", where=where, hint=hint)
            return term(int(size))
        if term.word == part:
            return term()
    raise UsageError(f"unknown mask '{part}'", where=where, hint=did_you_mean(part, MASK_WORDS))


def spell_mask(terms: Sequence[MaskTerm]) -> str:
    """Return a mask expression as one would type it."""
    return "+".join(map(str, terms))


def used_mask(terms: Sequence[MaskTerm], own: str) -> tuple[MaskTerm, ...]:
    """Return the terms of a layer's mask: those that the user asked for, with `own` for the layer's own."""
    return tuple(part for term in terms for part in (parse_mask(own) if isinstance(term, Own) else (term,)))


def mask_files(terms: Sequence[MaskTerm]) -> list[str]:
    """List the files that a mask expression names."""
    return [term.path for term in terms if isinstance(term, MatrixFile)]
