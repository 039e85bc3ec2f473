"""What the user typed for `--layer`, `--head`, `--query`, `--key` and `--mask`, parsed; no torch in here."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from attnscope.errors import UsageError, did_you_mean

_RANGE = re.compile(r"(-?\d+)(?:-(\d+))?")
_SLICE = re.compile(r"(-?\d+)?:(-?\d+)?")
_NUMBER = re.compile(r"-?\d+")
PRINTED = 64  # tokens: of a longer text nobody reads matrices on a screen, and a pooled map stands for them
POOL = 64  # runs of tokens that such a map has each way, unless --pool says otherwise


@dataclass(frozen=True)
class Keep:
    """What is kept of every unit besides stages.

    Attributes:
        top: The strongest sources.
        measures: What is kept of them; None for weight and value, and projected where that ranks.
        rows: Row statistics.
        columns: Weight that every source gets.
        pool: Rows and columns of a pooled map; None for no map.
        sheets: How many of the first rows and columns each text's matrices have; None for as many as the batch.
    """

    top: bool = True
    measures: tuple[str, ...] | None = None
    rows: bool = True
    columns: bool = False
    pool: int | None = None
    sheets: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class Pick:
    """Layers or heads: one of the words `auto`, `all`, `mean`, or numbers.

    Attributes:
        word: The word, or None where numbers were given.
        ranges: Inclusive ranges in the order typed; negative numbers count from the end.
    """

    word: Literal["auto", "all", "mean"] | None = None
    ranges: tuple[tuple[int, int], ...] = ()

    def numbers(self, count: int, what: str) -> list[int]:
        """The numbers meant, out of `count`, without repeats; every one of them for a word.

        Raises:
            UsageError: A number lies outside 0 … count − 1.
        """
        if self.word:
            return list(range(count))
        found: dict[int, None] = {}
        for low, high in self.ranges:
            low, high = (low + count if low < 0 else low), (high + count if high < 0 else high)
            if not (0 <= low < count and 0 <= high < count):
                bad = low if not 0 <= low < count else high
                raise UsageError(
                    f"there is no {what} {bad if bad >= 0 else bad - count}",
                    where=f"--{what}",
                    hint=f"this model has {what}s 0 to {count - 1}",
                )
            found.update(dict.fromkeys(range(low, high + 1)))
        return list(found)


def parse_pick(text: str, option: str) -> Pick:
    """Read `auto`, `all`, `mean`, `3`, `0,2,5-7` or `-1`.

    Raises:
        UsageError: It is none of these.
    """
    if text in ("auto", "all", "mean"):
        return Pick(word=text)  # type: ignore[arg-type]
    ranges = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if not match:
            raise UsageError(f"cannot read '{text}'", where=option, hint="use auto, all, mean, 3, 0,2,5-7 or -1")
        low = int(match[1])
        high = low if match[2] is None else int(match[2])
        if high < low and match[2] is not None:
            raise UsageError(f"the range '{part.strip()}' runs backwards", where=option, hint=f"use {high}-{low}")
        ranges.append((low, high))
    return Pick(ranges=tuple(ranges))


def positions(text: str, words: list[str], option: str) -> list[int]:
    """The token positions that `3`, `3:8`, `-1`, `0,4,7:9` or a word such as `bank` stand for.

    Args:
        text: What the user typed. Digits and colons are positions (`:` ends are exclusive, as in Python);
            anything else is a word, found wherever a token, or a run of tokens, spells it.
        words: Readable piece of every token.
        option: Name of the option, for the error.

    Raises:
        UsageError: A position lies outside the text, or the word is not in it.
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        part = part.strip()
        if match := _SLICE.fullmatch(part):
            chosen = list(range(len(words)))[slice(*(int(g) if g else None for g in match.groups()))]
        elif _NUMBER.fullmatch(part):
            chosen = list(range(len(words)))[int(part) :][:1] if -len(words) <= int(part) < len(words) else []
        else:
            chosen = _spelled(part, words)
        if not chosen:
            hint = f"the text has tokens 0 to {len(words) - 1}"
            raise UsageError(f"'{part}' is not in the text", where=option, hint=f"{hint}: {' '.join(words[:40])}")
        found.update(dict.fromkeys(chosen))
    return list(found)


def _spelled(word: str, words: list[str]) -> list[int]:
    """Positions of the tokens that spell the word, alone or as a run of neighbours (`river` as `riv` + `er`)."""
    exact = [i for i, w in enumerate(words) if w == word] or [
        i for i, w in enumerate(words) if w.casefold() == word.casefold()
    ]
    if exact or not word:
        return exact
    for start in range(len(words)):
        run = ""
        for end in range(start, min(start + 12, len(words))):
            run += words[end].removeprefix("##")
            if run.casefold() == word.casefold():
                return list(range(start, end + 1))
    return []


@dataclass(frozen=True)
class MaskTerm:
    """One part of a mask expression.

    Attributes:
        kind: The word, or `file`.
        size: N of `window:N`, `prefix:N` and `block:N`; 0 elsewhere.
        path: The file of `file`; empty elsewhere.
    """

    kind: Literal["own", "bidirectional", "causal", "window", "prefix", "block", "file"]
    size: int = 0
    path: str = ""

    def __str__(self) -> str:
        return self.path or (f"{self.kind}:{self.size}" if self.size else self.kind)


MASK_WORDS = ("own", "causal", "bidirectional", "window:N", "prefix:N", "block:N", "FILE.json")
MASK_FILES = (".json", ".npy", ".safetensors")


def parse_mask(text: str, where: str = "--mask") -> tuple[MaskTerm, ...]:
    """Read a mask expression: terms joined by `+`; a key is visible where every term lets it be seen.

    `causal`: the query and what stands before it. `bidirectional`: everything. `window:N`: keys less than N
    positions away, on both sides (so `causal+window:4` is the query and the three before it). `prefix:N`: the first
    N keys for everyone, the rest causally. `block:N`: only keys of the query's own stretch of N tokens (documents
    packed one after the other). `own`: the model's own mask. A file holds a boolean matrix (queries, keys); its path
    may contain `+` after a slash (`./a+b.npy`), but not one after its ending, and no blanks around it.

    Raises:
        UsageError: A term is none of these.
    """
    parts: list[str] = []
    for part in text.split("+"):
        if parts and "/" in parts[-1] and not parts[-1].rstrip().endswith(MASK_FILES):
            parts[-1] += f"+{part}"  # a path that goes on: no word holds a slash
        else:
            parts.append(part.strip())
    return tuple(_mask_term(part.strip(), where) for part in parts)


def _mask_term(part: str, where: str) -> MaskTerm:
    kind, colon, size = part.partition(":")
    if part.endswith(MASK_FILES):
        return MaskTerm("file", path=part)
    if kind in ("window", "prefix", "block"):
        if not colon or not size.isascii() or not size.isdigit() or int(size) < 1:
            raise UsageError(f"'{part}' has no size", where=where, hint=f"use {kind}:N with N of 1 or more")
        return MaskTerm(kind, size=int(size))  # type: ignore[arg-type]
    if part in ("own", "causal", "bidirectional"):
        return MaskTerm(part)  # type: ignore[arg-type]
    raise UsageError(f"unknown mask '{part}'", where=where, hint=did_you_mean(part, MASK_WORDS))


def used_mask(terms: Sequence[MaskTerm], own: str) -> tuple[MaskTerm, ...]:
    """The terms of a layer's mask where the user asked for `terms`, and the layer's own is the expression `own`."""
    return tuple(part for term in terms for part in (parse_mask(own) if term.kind == "own" else (term,)))
