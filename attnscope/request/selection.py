"""Parse the values of `--layer`, `--head`, `--query` and `--key`. Never imports torch."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from attnscope.base.errors import NotInText, UsageError, nearest

if TYPE_CHECKING:
    from attnscope.findings.tokens import Token
    from attnscope.request.run_config import Positions

_RANGE = re.compile(r"[lh]?(-?[0-9]{1,18})(?:-[lh]?([0-9]{1,18}))?", re.IGNORECASE)
_UNIT = re.compile(r"l([0-9]{1,18})h([0-9]{1,18})", re.IGNORECASE)
_SLICE = re.compile(r"(-?[0-9]{1,18})?:(-?[0-9]{1,18})?")
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_QUOTED = "'[^']+'|“[^“”]+”|‘[^‘’]+’|„[^„“]+“|«[^«»]+»"  # may be part of words, unlike a straight double quote
_LISTED = re.compile(rf'(?:^|,)(\s*(?:"([^"]+|")"|({_QUOTED}))\s*(?=,|$)|[^,]*)')
_CUT_HEADS = re.compile(
    r"(?:l(-?[0-9]{1,18})(?:-l?([0-9]{1,18}))?)?(?:h(-?[0-9]{1,18})(?:-h?([0-9]{1,18}))?)?", re.IGNORECASE
)
_ARROW = re.compile(r'((?:"[^"]*"|[^"])*?)(?:→|->)((?:"[^"]*"|[^"])*)')
_MOST_PICKED = 1_000_000  # largest list of layers or heads that is expanded
PRINTED = 64  # tokens: matrices of longer texts are unreadable on a screen, and a pooled map replaces them
_SPELLED = 40  # tokens that an error names
FEW = 10  # rows or columns that are shown, where most weight is or moves, of a text that is too long to print
POOL = 64  # default size of a pooled map on a screen


@dataclass(frozen=True)
class IndexSelection:
    """Layers or heads: one of the words `auto`, `all`, `mean`, or numbers.

    Attributes:
        word: The word, or None where numbers were given.
        ranges: Inclusive ranges in the order typed; negative numbers count from the end.
    """

    word: Literal["auto", "all", "mean"] | None = None
    ranges: tuple[tuple[int, int], ...] = ()

    def numbers(self, count: int, what: str, where: str | None = None) -> Sequence[int]:
        """Return the numbers meant, out of `count`, without repeats; every one of them for a word.

        A word or a single range returns a `range`, since a config may claim a billion layers.

        Raises:
            UsageError: A number is outside 0 … count − 1, or ranges hold more numbers than any model has.
        """
        if self.word:
            return range(count)
        ranges = self._within(count, what, where or f"--{what}")
        if len(ranges) == 1:
            return ranges[0]
        if sum(map(len, ranges)) > _MOST_PICKED:
            found = f"these ranges have more than {_MOST_PICKED:,} {what}s"
            raise UsageError(found, where=where or f"--{what}", hint="use all, or one range")
        return list(dict.fromkeys(number for one in ranges for number in one))

    def _within(self, count: int, what: str, where: str) -> list[range]:
        found = []
        for low, high in self.ranges:
            low, high = (low + count if low < 0 else low), (high + count if high < 0 else high)
            if not (0 <= low < count and 0 <= high < count):
                bad = low if not 0 <= low < count else high
                raise UsageError(
                    f"there is no {what} {bad if bad >= 0 else bad - count}",
                    where=where,
                    hint=f"this model has {what}s 0 to {count - 1}",
                )
            found.append(range(low, high + 1))
        return found


def extremes(numbers: Sequence[int]) -> tuple[int, int]:
    """Find the smallest and the largest of some numbers; a range is not walked through."""
    return (numbers[0], numbers[-1]) if isinstance(numbers, range) else (min(numbers), max(numbers))


def parse_unit(layer: str, head: str) -> tuple[str, str]:
    """Split a label such as `L2H3`, given as `--layer` or `--head`, into layer and head; return others unchanged.

    Args:
        layer: `--layer`, as typed or the default.
        head: `--head`, likewise.

    Returns:
        Both without labels, as parse_pick reads them.

    Raises:
        UsageError: A label and the other option contradict each other.
    """
    labels = [(_UNIT.fullmatch(typed.strip()), typed) for typed in (layer, head)]
    label, typed = next(((match, typed) for match, typed in labels if match), (None, ""))
    if label is None:
        return layer, head
    meant, others = (label[1], label[2]), ("auto", "all", typed)
    for option, given, number in zip(("--layer", "--head"), (layer, head), meant, strict=True):
        one = _RANGE.fullmatch(given.strip())
        if given not in others and not (one and one[2] is None and int(one[1]) == int(number)):
            raise UsageError(f"'{given}' contradicts {typed}", where=option, hint=f"remove {option}")
    return meant


def parse_indices(text: str, option: str) -> IndexSelection:
    """Read `auto`, `all`, `mean`, `3`, `0,2,5-7` or `-1`; numbers as they are labelled, too (`L3`, `H3`).

    Raises:
        UsageError: The text has none of these forms.
    """
    if text in ("auto", "all", "mean"):
        return IndexSelection(word=text)  # type: ignore[arg-type]
    ranges = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if not match or {letter.lower() for letter in part if letter.isalpha()} - {option.removeprefix("--")[0]}:
            raise UsageError(f"cannot read '{text}'", where=option, hint="use auto, all, mean, 3, 0,2,5-7 or -1")
        low = int(match[1])
        high = low if match[2] is None else int(match[2])
        if low < 0 and match[2] is not None:
            found = f"the range '{part.strip()}' starts with a negative number"
            raise UsageError(found, where=option, hint="count both ends from 0")
        if high < low:
            raise UsageError(f"the range '{part.strip()}' is reversed", where=option, hint=f"use {high}-{low}")
        ranges.append((low, high))
    return IndexSelection(ranges=tuple(ranges))


@dataclass(frozen=True)
class CutExpression:
    """What `--cut` names: whole heads, or edges of some heads.

    Attributes:
        written: As it was typed.
        heads: Layers, and heads of each.
        query: The queries of edges, as parse_positions reads them; empty for all. None for whole heads.
        key: Keys of the edges, as typed.
    """

    written: str
    heads: tuple[tuple[IndexSelection, IndexSelection], ...]
    query: str | None = None
    key: str | None = None


def parse_cut(text: str, option: str) -> CutExpression:
    """Read `L5H1`, `L5`, `L5-8H0-2`, `*` (every head), or one of these with an edge: `L5H1: it→animal`.

    Commas join heads: `L5H1,L6`. The arrow is → or ->; a side that is left out stands for every token.

    Raises:
        UsageError: The text has none of these forms.
    """
    named, colon, edge = text.partition(":")
    heads = tuple(_cut_heads(part.strip(), text, option) for part in named.split(","))
    if not colon:
        return CutExpression(text.strip(), heads)
    sides = _ARROW.fullmatch(edge)
    if sides is None or not (sides[1].strip() or sides[2].strip()):
        found = f"'{edge.strip()}' in '{text}' is not an edge"
        raise UsageError(found, where=option, hint="use QUERY→KEY, QUERY→ or →KEY; the arrow may be ->")
    return CutExpression(text.strip(), heads, sides[1].strip(), sides[2].strip())


def _cut_heads(part: str, text: str, option: str) -> tuple[IndexSelection, IndexSelection]:
    """Read layers and heads of one part of a cut; what is left out stands for all."""
    match = _CUT_HEADS.fullmatch(part)
    if part != "*" and (match is None or not part):
        hint = "use L5H1, L5 (all of its heads), L5-8H0-2, * (all), or with an edge: L5H1: it→animal"
        raise UsageError(f"cannot read '{text}'", where=option, hint=hint)
    every = IndexSelection(word="all")
    if match is None:
        return every, every
    return _cut_range(match[1], match[2], part, option), _cut_range(match[3], match[4], part, option)


def _cut_range(low: str | None, high: str | None, part: str, option: str) -> IndexSelection:
    if low is None:
        return IndexSelection(word="all")
    first, last = int(low), int(low if high is None else high)
    if high is not None and (first < 0 or last < first):
        what = "starts with a negative number" if first < 0 else "is reversed"
        raise UsageError(f"a range in '{part}' {what}", where=option, hint="count both ends from 0, the lower first")
    return IndexSelection(ranges=((first, last),))


def parse_positions(
    typed: "Positions",
    tokens: "Sequence[Token]",
    texts: Sequence[str | None],
    option: str,
    *,
    missing: list[str] | None = None,
) -> list[int]:
    """Return the token positions that `3`, `3:8`, `-1`, `0,4,7:9`, a word such as `bank` or a phrase stand for.

    Args:
        typed: What the user typed. Commas separate; text in quotation marks, and a comma alone, is a word.
            Positions that the text has (`:` ends are exclusive, as in Python) are positions; anything else is a word
            or phrase, found wherever tokens spell it. A slice that is no word may reach beyond the text. Of Python
            values, only a str is a word.
        tokens: The text's tokens.
        texts: The text, and its pair; None for one that is not known, or not there.
        option: Name of the option, for the error.
        missing: Gets what the text does not have; None where that is an error.

    Raises:
        UsageError: A position is outside the text, or the word is not in it.
    """
    found: dict[int, None] = {}
    for part, is_word, is_number in _listed(typed):
        chosen = None if is_word else _numbered(part, len(tokens))
        chosen = chosen or (None if is_number else _find_word(part, tokens, texts))
        chosen = chosen or (None if is_word else _sliced(part, len(tokens)))
        if not chosen and missing is not None:
            missing.append(part)
        elif not chosen:
            beyond = _SLICE.fullmatch(part) and not is_word
            found_out = f"'{part}' is outside the text or empty" if beyond else f"'{part}' is not in the text"
            from attnscope.findings.tokens import spell_piece

            spelled = [spell_piece(tokens, i) for i in range(len(tokens))]
            known = f"{' '.join(spelled[:_SPELLED])}{' …' if len(tokens) > _SPELLED else ''}"
            hint = f"the text has tokens 0 to {len(tokens) - 1}: {known}"
            near = None if is_number else nearest(part, re.findall(r"\w[\w'’-]*", " ".join(filter(None, texts))))
            raise NotInText(found_out, where=option, hint=f"did you mean '{near}'? {hint}" if near else hint)
        found.update(dict.fromkeys(chosen or ()))
    return list(found)


def _listed(typed: "Positions") -> list[tuple[str, bool, bool]]:
    """Split at commas; tell whether a part can only be a word (it stood in quotes), or only a number or slice."""
    if not isinstance(typed, str):
        return [(_written(part), isinstance(part, str), not isinstance(part, str)) for part in typed]
    if typed.strip() == ",":
        return [(",", True, False)]
    return [
        (quoted or other or plain.strip(), bool(quoted or other), False)
        for plain, quoted, other in (match.groups() for match in _LISTED.finditer(typed))
    ]


def written(positions: "Positions | None") -> str:
    """Return positions as one would type them; words among Python values in quotes, since they can only be words."""
    if positions is None or isinstance(positions, str):
        return positions or ""
    return ",".join(f'"{part}"' if isinstance(part, str) else _written(part) for part in positions)


def _written(part: "int | slice | str") -> str:
    if not isinstance(part, slice):
        return str(part)
    return ":".join("" if edge is None else str(edge) for edge in (part.start, part.stop))


def _numbered(part: str, count: int) -> list[int] | None:
    """Return the positions of a number or slice within a text of so many tokens; None for anything else."""
    if _NUMBER.fullmatch(part):
        return [range(count)[int(part)]] if -count <= int(part) < count else None
    match = _SLICE.fullmatch(part)
    inside = match is not None and all(-count <= int(edge) <= count for edge in match.groups() if edge)
    return _sliced(part, count) if inside else None


def _sliced(part: str, count: int) -> list[int]:
    """Return the positions of a slice that may reach beyond a text of so many tokens; none for anything else."""
    match = _SLICE.fullmatch(part)
    return [] if match is None else list(range(count)[slice(*(int(edge) if edge else None for edge in match.groups()))])


def _find_word(word: str, tokens: "Sequence[Token]", texts: Sequence[str | None]) -> list[int]:
    """Find the tokens that show the word, and runs of them that it spells; as it is typed, else in any case.

    A piece is also found as screens spell it (`##ing`).

    A run starts and ends where the word does in the text (`riv`, `er`), so a phrase is found with any white space. If a
    quoted word is not found with its quotation marks, it is looked for without them.
    """
    if not word.strip():
        return []
    pattern = r"\s+".join(map(re.escape, word.split()))
    from attnscope.findings.tokens import CONTINUES, spell_piece

    if word.startswith(CONTINUES) and (found := [i for i in range(len(tokens)) if spell_piece(tokens, i) == word]):
        return found
    for flags in (re.NOFLAG, re.IGNORECASE):
        alone = [i for i, t in enumerate(tokens) if t.text == word or (flags and t.text.casefold() == word.casefold())]
        runs = [i for n, text in enumerate(texts) for i in _runs(re.compile(pattern, flags), n, tokens, text)]
        if alone or runs:
            return sorted({*alone, *runs})
    return _find_word(word[1:-1], tokens, texts) if re.fullmatch(_QUOTED, word) else []


def _runs(pattern: "re.Pattern[str]", segment: int, tokens: "Sequence[Token]", text: str | None) -> Iterator[int]:
    """Find the tokens of one text that together spell a match of the pattern."""
    mine = [(i, t.start, t.end, t.text) for i, t in enumerate(tokens) if t.segment == segment and t.start is not None]
    firsts = {start: i for i, start, _, _ in reversed(mine)}
    lasts = {end: i for i, _, end, _ in mine}
    if text is None:  # what its tokens show
        shown = [" "] * max((end or 0 for _, _, end, _ in mine), default=0)
        for _, start, end, word in mine:
            if end is not None and end - start == len(word):
                shown[start:end] = word
        text = "".join(shown)
    at = 0
    while match := pattern.search(text, at):
        first, last = firsts.get(match.start()), lasts.get(match.end())
        if first is not None and last is not None:
            yield from range(first, last + 1)
        at = match.start() + 1
