"""Mask expressions: terms joined by `+` (and) and `|` (or), with parentheses."""

import re
from collections import deque
from collections.abc import Sequence
from functools import lru_cache

from attnscope.base.errors import AttnscopeError, UsageError, arg, did_you_mean
from attnscope.request.masks.terms import (
    TERMS,
    AnyOf,
    DocumentEnds,
    Documents,
    MaskTerm,
    MatrixFile,
    Own,
    SizedTerm,
    leaves,
    replace_leaves,
)

MASK_WORDS = (*(term.form for term in TERMS), MatrixFile.form)
# of what Python code passed as `mask`
MATRIX_NAME = re.compile(r"array:[0-9a-f]{8}|function:[^+|()]+")
MASK_FILES = (".json", ".npy", ".safetensors")
# digits of a mask's size: larger than any text, without overflow in a 64-bit sum with a position
_SIZE_DIGITS = 18
_DEEPEST = 32  # parentheses inside parentheses
_JOINS = ("+", "|")
_LEXEME = re.compile(
    r"""
    \s*+(?:
      (?P<mark> [+|()] )
      # a path continues over marks, since no word contains a slash
    | (?P<path> [^+|()/]*+ / .*? (?:\.json|\.npy|\.safetensors) (?=\s*(?:[+|)]|\Z)) )
    | (?P<text> [^+|()/]*+ /.* | [^+|()]+ )
    )
    """,
    re.VERBOSE | re.DOTALL,
)


@lru_cache
def parse_mask(text: str, where: str = arg("mask")) -> tuple[MaskTerm, ...]:
    """Read a mask expression; a key is visible if every term allows it.

    `masks.terms` defines the terms. `+` binds more tightly than `|`. The path of a file may contain these marks and
    parentheses after a slash (`./a+b.npy`), but not after its extension, and no blanks around it.

    Args:
        text: Such as `causal+(sink:4|window:1024)`.
    """
    matches = _LEXEME.finditer(text)
    lexemes = deque(match["mark"] or (match["path"] or match["text"]).strip() for match in matches)
    terms = _union(lexemes, text, where, 0)
    if lexemes:
        raise _unreadable(text, where, "has ')' without '('")
    return terms


def parse_stored_mask(text: str, where: str) -> tuple[MaskTerm, ...]:
    """Read a mask expression that a file or an array came with, so that no usage is at fault."""
    try:
        return parse_mask(text, where)
    except UsageError as e:
        raise AttnscopeError(e.parts.message, where=e.parts.where, hint=e.parts.hint) from e


def _union(lexemes: deque[str], text: str, where: str, depth: int) -> tuple[MaskTerm, ...]:
    """Take terms joined by `+` and `|` off the lexemes of a text, up to its end or a closing parenthesis."""
    branches: list[list[MaskTerm]] = []
    mark = "|"
    while mark:
        if mark == "|":
            branches.append([])
        branches[-1] += _factor(lexemes, text, where, depth)
        mark = lexemes.popleft() if lexemes and lexemes[0] in _JOINS else ""
    alternatives = tuple(dict.fromkeys(map(tuple, branches)))
    return alternatives[0] if len(alternatives) == 1 else (AnyOf(alternatives),)


def _factor(lexemes: deque[str], text: str, where: str, depth: int) -> tuple[MaskTerm, ...]:
    """Take a term, or a union in parentheses."""
    word = ""
    if lexemes and lexemes[0] not in (*_JOINS, ")"):
        word = lexemes.popleft()
    if word != "(":
        return (_parse_term(word, where),)
    if depth == _DEEPEST:
        raise _unreadable(text, where, f"has more than {_DEEPEST} parentheses inside each other")
    terms = _union(lexemes, text, where, depth + 1)
    if not lexemes or lexemes.popleft() != ")":
        raise _unreadable(text, where, "has '(' without ')'")
    if lexemes and lexemes[0] not in (*_JOINS, ")"):
        raise _unreadable(text, where, "has no + or | after ')'")
    return terms


def _unreadable(text: str, where: str, message: str) -> UsageError:
    hint = "join terms by + (and) or | (or), such as causal+(sink:4|window:1024)"
    return UsageError(f"'{text[:80]}' {message}", where=where, hint=hint)


def _parse_term(part: str, where: str) -> MaskTerm:
    if part.endswith(MASK_FILES) or MATRIX_NAME.fullmatch(part):
        return MatrixFile(part)
    word, _, size = part.partition(":")
    for term in TERMS:
        if issubclass(term, SizedTerm):
            if term.word == word:
                if not _is_size(size):
                    raise UsageError(
                        f"'{part}' needs a size of 1 or more", where=where, hint=f"use {term.form}"
                    )
                return term(_size(size, part, where))
        elif term is not Documents and term.word == part:
            return term()
    if word == Documents.word:
        lengths = size.split(",")
        if not all(map(_is_size, lengths)):
            hint = f"use {Documents.form}, or {DocumentEnds.form}"
            raise UsageError(
                f"'{part}' needs the lengths of the documents, or eos", where=where, hint=hint
            )
        return Documents(tuple(_size(length, part, where) for length in lengths))
    if not part:
        hint = "name one there, such as causal+window:4"
        raise UsageError("nothing stands where a mask is expected", where=where, hint=hint)
    hint = "use bidirectional, under which every token sees every token"
    if part not in ("none", "no", "full"):
        hint = did_you_mean(part, MASK_WORDS)
    raise UsageError(f"unknown mask '{part}'", where=where, hint=hint)


def _is_size(digits: str) -> bool:
    return digits.isascii() and digits.isdigit() and bool(digits.strip("0"))


def _size(digits: str, part: str, where: str) -> int:
    if len(digits.lstrip("0")) > _SIZE_DIGITS:
        hint = f"use at most {_SIZE_DIGITS} digits"
        raise UsageError(f"the size of '{part}' is too large", where=where, hint=hint)
    return int(digits)


def is_mask(text: str) -> bool:
    """Tell whether a text is a mask expression."""
    try:
        parse_mask(text)
    except UsageError:
        return False
    return True


def spell_mask(terms: Sequence[MaskTerm]) -> str:
    """Return a mask expression as typed."""
    spelled = "+".join(map(str, terms))
    if len(terms) == 1 and isinstance(terms[0], AnyOf):
        return spelled[1:-1]
    return spelled


def used_mask(terms: Sequence[MaskTerm], own: str) -> tuple[MaskTerm, ...]:
    """Return the terms of a layer's mask: the requested ones, with `own` replaced by the layer's own."""
    return replace_leaves(terms, lambda term: parse_mask(own) if isinstance(term, Own) else (term,))


def mask_files(terms: Sequence[MaskTerm]) -> list[str]:
    """List the files that a mask expression names."""
    return [term.path for term in leaves(terms) if isinstance(term, MatrixFile)]
