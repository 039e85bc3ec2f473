"""Selections of layers, heads and tokens: read from text, or made from Python values. Never imports torch."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Literal

from attnscope.base.errors import NotInText, UsageError, arg, nearest
from attnscope.base.system.escape import escape_control

if TYPE_CHECKING:
    from attnscope.findings.sound import Sound
    from attnscope.findings.spans import TextSpans
    from attnscope.findings.tokens import Token

_RANGE = re.compile(r"[lh]?(-?[0-9]{1,18})(?:-[lh]?([0-9]{1,18}))?", re.IGNORECASE)
_UNIT = re.compile(r"l([0-9]{1,18})h([0-9]{1,18})", re.IGNORECASE)
_SLICE = re.compile(r"(-?[0-9]{1,18})?:(-?[0-9]{1,18})?")
_NUMBER = re.compile(r"-?[0-9]{1,18}")
# may be part of words, unlike a straight double quote
_QUOTED = "'[^']+'|“[^“”]+”|‘[^‘’]+’|„[^„“]+“|«[^«»]+»"
# a patch or box of patches of a picture: its comma joins row and column
_PLACE = r"(?:[0-9]{1,18}\s+)?(?:image|thumbnail|frame\[[0-9]+\])(?:\[[0-9]+\])?:[0-9]+,[0-9]+(?:-[0-9]+,[0-9]+)?"
_LISTED = re.compile(
    rf'(?:^|,)(\s*{_PLACE}\s*(?=,|$)|\s*(?:"([^"]+|")"|({_QUOTED}))\s*(?=,|$)|[^,]*)'
)
_CUT_HEADS = re.compile(
    r"(?:l(-?[0-9]{1,18})(?:-l?([0-9]{1,18}))?)?(?:h(-?[0-9]{1,18})(?:-h?([0-9]{1,18}))?)?",
    re.IGNORECASE,
)
_ARROW = re.compile(r'((?:"[^"]*"|[^"])*?)(?:←|→|<-|->)((?:"[^"]*"|[^"])*)')
_PRINTED_EDGE = re.compile(
    r"\s*(l[0-9]+h[0-9]+|\*)\s+([^:]*(?:←|→|<-|->).*)", re.IGNORECASE | re.DOTALL
)
# of a sound: `2.4s-3.1s`
_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*s(?:\s*[-–]\s*([0-9]+(?:\.[0-9]+)?)\s*s)?")
# of a token, as screens print it: `4 river`
_LABEL = re.compile(r"\s*([0-9]{1,18})\s+(\S.*)", re.DOTALL)
_MOST_PICKED = 1_000_000  # largest list of layers or heads that is expanded
# tokens: matrices of longer texts are unreadable on a screen, and a pooled map replaces them
PRINTED = 64
PAGE = 1024  # tokens of the longest text whose matrices a page holds whole
WALKED = ("scores", "scaled", "masked", "weights")  # the stages of a page, one after the other
_SPELLED = 40  # tokens that an error names
# rows or columns that are shown, where most weight is or moves, of a text that is too long to print
FEW = 10
POOL = 64  # default size of a pooled map on a screen


@dataclass(frozen=True)
class PresentIndices:
    """The layers that can be shown, if not all can."""

    indices: tuple[int, ...]
    lack: str  # what is wrong with another, such as `has no attention over tokens`
    hint: str  # which there are


@dataclass(frozen=True)
class IndexSelection:
    """Selected layers or heads: one of the words `auto`, `all`, `mean`, or numbers."""

    word: Literal["auto", "all", "mean"] | None = None
    # inclusive ranges; negative numbers count from the end
    ranges: tuple[tuple[int, int], ...] = ()
    # start, stop and step of a Python slice instead of ranges; None for none
    slice: tuple[int | None, int | None, int | None] | None = None
    # for heads: (layer, head) pairs if layers differ; `ranges` then covers all of them
    pairs: tuple[tuple[int, int], ...] = ()
    # the label that it is read from; None for none; errors name the option of the label
    label: "HeadLabel | None" = field(default=None, compare=False, repr=False)
    # the only ones to select from: a word means all of them, −1 the last; None for all below a count
    present: PresentIndices | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        if self.pairs:
            return ",".join(f"L{layer}H{head}" for layer, head in self.pairs)
        if self.slice is not None:
            edges = self.slice if self.slice[2] is not None else self.slice[:2]
            return ":".join("" if edge is None else str(edge) for edge in edges)
        return self.word or ",".join(
            f"{low}" if low == high else f"{low}-{high}" for low, high in self.ranges
        )

    @classmethod
    def of(cls, numbers: Iterable[int]) -> "IndexSelection":
        """Select these numbers."""
        return cls(ranges=tuple((index, index) for index in numbers))

    def option(self, what: str) -> str:
        """Name the option that selects layers or heads; that of the label, if there is one."""
        return arg(self.label.option if self.label else what)

    @property
    def single(self) -> bool:
        """Whether it means at most one number, or `auto`."""
        if self.slice is not None or self.word in ("all", "mean"):
            return False
        return len(self.ranges) <= 1 and all(low == high for low, high in self.ranges)

    def numbers(
        self, count: int, what: str, where: str | None = None, *, by_layer: bool = False
    ) -> Sequence[int]:
        """Return the selected numbers below `count`, without repeats; all of them for a word.

        A word or a single range returns a `range`, since a config may claim a billion layers.

        Args:
            where: Subject of errors; None for the option.
            by_layer: Whether the caller obeys `pairs`; otherwise pairs are refused.
        """
        if self.pairs and not by_layer:
            hint = f"name heads of one layer, or all layers with {arg('layer')} and {arg('head')}"
            message = f"'{self}' has other heads in each layer"
            raise UsageError(message, where=where or self.option(what), hint=hint)
        every = range(count) if self.present is None else self.present.indices
        if self.word:
            return every
        where = where or self.option(what)
        if self.slice is not None:
            numbers: Sequence[int] = range(count)[slice(*self.slice)]
            if self.present is not None:
                numbers = [index for index in numbers if index in self.present.indices]
            if not numbers:
                hint = f"this model has {numbered(what, count)}"
                raise UsageError(f"the slice '{self}' is empty", where=where, hint=hint)
            return numbers
        ranges = self._within(count, what, where)
        self._require_present(ranges, what, where)
        if len(ranges) == 1:
            return ranges[0]
        if sum(map(len, ranges)) > _MOST_PICKED:
            message = f"these ranges have more than {_MOST_PICKED:,} {what}s"
            raise UsageError(message, where=where, hint="use all, or one range")
        return list(dict.fromkeys(item for index_range in ranges for item in index_range))

    def _within(self, count: int, what: str, where: str) -> list[range]:
        indices = []
        for low, high in self.ranges:
            low = self._from_end(low, count)
            high = self._from_end(high, count)
            if not (0 <= low < count and 0 <= high < count):
                bad = low if not 0 <= low < count else high
                hint = f"this model has {numbered(what, count)}"
                raise UsageError(
                    f"there is no {what} {bad if bad >= 0 else bad - count}", where=where, hint=hint
                )
            indices.append(range(low, high + 1))
        return indices

    def _from_end(self, index: int, count: int) -> int:
        """Return the index that a negative one means: −1 is the last that is present."""
        if index >= 0:
            return index
        if self.present is None or -index > len(self.present.indices):
            return index + count
        return self.present.indices[index]

    def _require_present(self, ranges: Sequence[range], what: str, where: str) -> None:
        """Refuse an index that exists and cannot be shown."""
        if self.present is None:
            return
        present = set(self.present.indices)
        missing = next(
            (index for selected in ranges for index in selected if index not in present), None
        )
        if missing is not None:
            raise UsageError(
                f"{what} {missing} {self.present.lack}", where=where, hint=self.present.hint
            )


AUTO = IndexSelection("auto")
ALL = IndexSelection("all")
MEAN = IndexSelection("mean")


def numbered(what: str, count: int) -> str:
    """Say which numbers there are: `layers 0 to 3`, or `one layer, 0`."""
    if count > 1:
        return f"{what}s 0 to {count - 1}"
    return f"one {what}, 0"


def extremes(numbers: Sequence[int]) -> tuple[int, int]:
    """Return the smallest and the largest number; a range is not enumerated."""
    if isinstance(numbers, range):
        return (numbers[0], numbers[-1])
    return (min(numbers), max(numbers))


@dataclass(frozen=True)
class HeadLabel:
    """A layer and head in one word, such as `L2H3`, or several such words, for the option `layer` or `head`."""

    pairs: tuple[tuple[int, int], ...]
    written: str
    option: str

    def selections(self) -> tuple[IndexSelection, IndexSelection]:
        """Return the selected layers and heads."""
        layers, heads = (dict.fromkeys(pair[n] for pair in self.pairs) for n in (0, 1))
        of_layers, of_heads = (
            replace(IndexSelection.of(numbers), label=self) for numbers in (layers, heads)
        )
        if len(set(self.pairs)) < len(layers) * len(heads):
            of_heads = replace(of_heads, pairs=self.pairs)
        return of_layers, of_heads


def parse_indices_or_label(
    name: Literal["layer", "head"], text: str
) -> "IndexSelection | HeadLabel":
    """Read layers or heads, or labels of heads."""
    labels = [_UNIT.fullmatch(word.strip()) for word in text.split(",")]
    pairs = tuple((int(label[1]), int(label[2])) for label in labels if label)
    if len(pairs) == len(labels):
        return HeadLabel(pairs, text, name)
    return parse_indices(text, name)


def join_label(
    layer: IndexSelection | HeadLabel, head: IndexSelection | HeadLabel
) -> tuple[IndexSelection, IndexSelection]:
    """Return layers and heads, either of which may be a label that means both; refuse contradictions."""
    label = next(
        (selection for selection in (layer, head) if isinstance(selection, HeadLabel)), None
    )
    if label is None:
        assert isinstance(layer, IndexSelection) and isinstance(head, IndexSelection)
        return layer, head
    meant = label.selections()
    for option, selection, expected in zip(
        (arg("layer"), arg("head")), (layer, head), meant, strict=True
    ):
        if isinstance(selection, HeadLabel):
            agree = selection.pairs == label.pairs
            spelling = selection.written
        else:
            agree = selection in (expected, AUTO, ALL)
            spelling = str(selection)
        if not agree:
            raise UsageError(
                f"'{spelling}' contradicts {label.written}", where=option, hint=f"remove {option}"
            )
    return meant


def parse_indices(text: str, name: Literal["layer", "head"]) -> IndexSelection:
    """Read `auto`, `all`, `mean`, `3`, `0,2,5-7` or `-1`, and labels such as `L3` or `H3`."""
    if text in ("auto", "all", "mean"):
        return IndexSelection(text)  # type: ignore[arg-type]
    ranges = []
    option = arg(name)
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if not match or {letter.lower() for letter in part if letter.isalpha()} - {name[0]}:
            raise UsageError(
                f"cannot read '{text}'", where=option, hint="use auto, all, mean, 3, 0,2,5-7 or -1"
            )
        low = int(match[1])
        high = low if match[2] is None else int(match[2])
        if low < 0 and match[2] is not None:
            message = f"the range '{part.strip()}' starts with a negative number"
            raise UsageError(message, where=option, hint="count both ends from 0")
        if high < low:
            raise UsageError(
                f"the range '{part.strip()}' is reversed", where=option, hint=f"use {high}-{low}"
            )
        ranges.append((low, high))
    return IndexSelection(ranges=tuple(ranges))


@dataclass(frozen=True)
class CutExpression:
    """A `--cut`: whole heads, or edges of some heads."""

    written: str
    heads: tuple[tuple[IndexSelection, IndexSelection], ...]  # layers, and heads of each
    # queries and keys of the edges, each None for all; None for whole heads
    edge: "tuple[PositionSelection | None, PositionSelection | None] | None" = None


def parse_cut(text: str, option: str = arg("cut")) -> CutExpression:
    """Read `L5H1`, `L5`, `L5-8H0-2`, `*` (every head), or one of these with an edge: `L5H1: it ← animal`.

    Commas join heads: `L5H1,L6`. The query is on the left of the arrow, which is ←, <-, → or ->; a side that is left
    out stands for every token. An edge may be written as screens do, without a colon: `L2H2  4 it ← 1 animal`.
    """
    heads_text, colon, edge = text.partition(":")
    if printed := _PRINTED_EDGE.fullmatch(text):
        heads_text, edge = printed.groups()
        colon = ":"
    heads = tuple(_cut_heads(part.strip(), text, option) for part in heads_text.split(","))
    if not colon:
        return CutExpression(text.strip(), heads)
    sides = _ARROW.fullmatch(edge)
    if sides is None or not (sides[1].strip() or sides[2].strip()):
        message = f"'{edge.strip()}' in '{text}' is not an edge"
        raise UsageError(
            message, where=option, hint="use QUERY←KEY, QUERY← or ←KEY; the arrow may be <-"
        )
    query, key = (
        parse_positions(side.strip()) if side.strip() else None for side in sides.groups()
    )
    return CutExpression(text.strip(), heads, (query, key))


def _cut_heads(part: str, text: str, option: str) -> tuple[IndexSelection, IndexSelection]:
    """Read layers and heads of one part of a cut; omitted ones stand for all."""
    match = _CUT_HEADS.fullmatch(part)
    if part != "*" and (match is None or not part):
        hint = (
            "use L0H0, L0 (all of its heads), L0-1H0-2, * (all), or with an edge: L0H0: QUERY←KEY"
        )
        raise UsageError(f"cannot read '{text}'", where=option, hint=hint)
    if match is None:
        return ALL, ALL
    return _cut_range(match[1], match[2], part, option), _cut_range(
        match[3], match[4], part, option
    )


def _cut_range(low: str | None, high: str | None, part: str, option: str) -> IndexSelection:
    if low is None:
        return ALL
    first_index = int(low)
    last_index = int(low if high is None else high)
    if high is not None and (first_index < 0 or last_index < first_index):
        what = "starts with a negative number" if first_index < 0 else "is reversed"
        raise UsageError(
            f"a range in '{part}' {what}",
            where=option,
            hint="count both ends from 0, the lower first",
        )
    return IndexSelection(ranges=((first_index, last_index),))


@dataclass(frozen=True)
class PositionItem:
    """A position, a slice of positions, or a word or phrase."""

    text: str  # name in errors, and the word to look up
    # the position, or start and end of a slice; negative numbers count from the end; None for a word
    position: int | tuple[int | None, int | None] | None = None
    # whether it is also looked up as a word if there is no such position; never for Python numbers
    word: bool = True

    def find(self, tokens: "Sequence[Token]", texts: Sequence[str | None]) -> list[int]:
        """Return its positions in a text; none if the text does not have it.

        A slice that reaches beyond the text (as in Python) is first looked for as a word, such as `12:30`.
        """
        count = len(tokens)
        if labelled := self._labelled(tokens, texts):
            return labelled
        if self.position is None:
            from attnscope.findings.images import find_places

            if in_picture := find_places(self.text, tokens):
                return in_picture
        if isinstance(self.position, int) and -count <= self.position < count:
            return [range(count)[self.position]]
        if isinstance(self.position, tuple):
            sliced = list(range(count)[slice(*self.position)])
        else:
            sliced = []
        if isinstance(self.position, tuple) and all(
            edge is None or -count <= edge <= count for edge in self.position
        ):
            return sliced or (_find_word(self.text, tokens, texts) if self.word else [])
        return (_find_word(self.text, tokens, texts) if self.word else []) or sliced

    def _labelled(self, tokens: "Sequence[Token]", texts: Sequence[str | None]) -> list[int]:
        """Return the token, or those of the word, whose printed label this is, such as `4 river`; else none."""
        from attnscope.findings.tokens import continues, spell_piece

        label = None
        if self.word and self.position is None:
            label = _LABEL.fullmatch(self.text)
        if label is None or int(label[1]) >= len(tokens):
            return []
        position = int(label[1])
        name = label[2].strip().replace("␣", " ").strip()
        spelled = escape_control(spell_piece(tokens, position)).strip()
        # which mark tokens that are unknown or generated
        if spelled in (name, re.sub(r"^[?+]", "", name)):
            return [position]
        found = _find_word(name, tokens, texts)
        rest = takewhile(
            lambda i: i in found and continues(tokens, i), range(position + 1, len(tokens))
        )
        return [position, *rest] if position in found else []

    @property
    def seconds(self) -> tuple[float, float] | None:
        """The seconds that it names, such as `2.4s-3.1s`, or `1.0s` for one; None for anything else."""
        match = _SECONDS.fullmatch(self.text) if self.word else None
        if match is None:
            return None
        return float(match[1]), float(match[2] or match[1])

    def of_sound(self, sound: "Sound | None") -> list[int]:
        """Return the tokens of the frames at the seconds that it names; none without a sound."""
        if sound is None or self.seconds is None:
            return []
        return sound.tokens_between(*self.seconds)

    def of_span(self, spans: "TextSpans | None") -> list[int]:
        """Return the tokens of the span with this name; none without one."""
        span_index = None
        if spans is not None and self.word and self.position is None:
            span_index = spans.number(self.text)
        if spans is None or span_index is None:
            return []
        return spans.tokens(span_index)


@dataclass(frozen=True)
class PositionSelection:
    """Tokens of a text: positions, slices, and words or phrases."""

    items: tuple[PositionItem, ...]
    written: str

    def __str__(self) -> str:
        return self.written

    @classmethod
    def of(cls, values: "Iterable[int | slice | str]") -> "PositionSelection":
        """Select Python values; only a str is a word."""
        items = tuple(map(_item, values))
        spelled = (f'"{item.text}"' if item.position is None else item.text for item in items)
        return cls(items, ",".join(spelled))

    def seconds(self) -> float | None:
        """Return the first second of a sound that it names; None if it names none."""
        return min(
            (item.seconds[0] for item in self.items if item.seconds is not None), default=None
        )

    def names_span(self, spans: "TextSpans | None") -> bool:
        """Tell whether the selection is the name of one span."""
        return len(self.items) == 1 and bool(self.items[0].of_span(spans))

    def find(
        self,
        tokens: "Sequence[Token]",
        texts: Sequence[str | None],
        option: str,
        *,
        missing: list[str] | None = None,
        spans: "TextSpans | None" = None,
        sound: "Sound | None" = None,
    ) -> list[int]:
        """Return the positions of the selection in a text.

        Args:
            texts: The text, and its pair; None for an unknown or missing text.
            spans: Spans of the text, whose names select their tokens; None for none.
            sound: The sound whose frames are the tokens, which seconds select; None for none.
            missing: Collects what the text does not have; None to raise NotInText instead.

        Raises:
            NotInText: A position is outside the text, or a word is not in it.
        """
        positions: dict[int, None] = {}
        for item in self.items:
            found = item.of_sound(sound) or item.of_span(spans) or item.find(tokens, texts)
            if not found and missing is not None:
                missing.append(item.text)
            elif not found:
                beyond = isinstance(item.position, tuple)
                message = f"'{item.text}' is {'outside the text or empty' if beyond else 'not in the text'}"
                from attnscope.findings.tokens import spell_piece

                words = " ".join(spell_piece(tokens, i) for i in range(min(_SPELLED, len(tokens))))
                if len(tokens) > _SPELLED:
                    words += " …"
                hint = f"the text has {numbered('token', len(tokens))}: {words}"
                known_words = re.findall(r"\w[\w'’-]*", " ".join(filter(None, texts)))
                known_words += [] if spans is None else spans.names
                near = nearest(item.text, known_words) if item.word else None
                if between := re.fullmatch(r"(\d+)-(\d+)", item.text):
                    # A slice excludes its end.
                    near = f"{between[1]}:{int(between[2]) + 1}"
                raise NotInText(
                    message, where=option, hint=f"did you mean '{near}'? {hint}" if near else hint
                )
            positions.update(dict.fromkeys(found))
        return list(positions)


EVERY_POSITION = PositionSelection((PositionItem("0:", (0, None), word=False),), "0:")


def parse_positions(text: str) -> PositionSelection:
    """Read `3`, `3:8`, `-1`, `0,4,7:9`, a word such as `bank`, a phrase, or a label as printed: `4 river`.

    Commas separate; text in quotation marks, and a comma alone or with its position, is a word. Positions that the text
    has (`:` ends are exclusive, as in Python) are positions; anything else is a word or phrase, found wherever tokens
    spell it. In a text with pictures, `image`, `image:3,4` and `image:3,4-6,8` are patches (see `find_places`).
    """
    if re.fullmatch(r"\s*([0-9]{1,18}\s+)?,\s*", text):
        return PositionSelection((PositionItem(text.strip()),), text)
    items = []
    for plain, quoted, other in (match.groups() for match in _LISTED.finditer(text)):
        if quoted or other:
            items.append(PositionItem(quoted or other))
        else:
            items.append(PositionItem(plain.strip(), _position(plain.strip())))
    return PositionSelection(tuple(items), text)


def listed_words(text: str) -> list[str]:
    """Read words or phrases joined by commas; quotation marks hold commas together."""
    matches = [match.groups() for match in _LISTED.finditer(text)]
    words = [quoted or (other or "")[1:-1] or plain.strip() for plain, quoted, other in matches]
    return [word for word in words if word]


def _position(text: str) -> int | tuple[int | None, int | None] | None:
    if _NUMBER.fullmatch(text):
        return int(text)
    match = _SLICE.fullmatch(text)
    if not match:
        return None
    start, end = (int(edge) if edge else None for edge in match.groups())
    return start, end


def _item(value: "int | slice | str") -> PositionItem:
    if isinstance(value, str):
        return PositionItem(value)
    if isinstance(value, slice):
        text = ":".join("" if edge is None else str(edge) for edge in (value.start, value.stop))
        return PositionItem(text, (value.start, value.stop), word=False)
    return PositionItem(str(value), value, word=False)


def _find_word(word: str, tokens: "Sequence[Token]", texts: Sequence[str | None]) -> list[int]:
    """Find the tokens that show the word, and runs of them that spell it: first in the typed case, else in any.

    A piece is also found as screens spell it (`##ing`).

    A run starts and ends where the word does in the text (`riv`, `er`), so a phrase is found with any white space. If a
    quoted word is not found with its quotation marks, it is looked for without them.
    """
    if not word.strip():
        return []
    pattern = r"\s+".join(map(re.escape, word.split()))
    from attnscope.findings.tokens import CONTINUES, spell_piece

    if word.startswith(CONTINUES) and (
        matching := [i for i in range(len(tokens)) if spell_piece(tokens, i) == word]
    ):
        return matching
    for flags in (re.NOFLAG, re.IGNORECASE):
        alone = [
            i
            for i, t in enumerate(tokens)
            if t.text == word or (flags and t.text.casefold() == word.casefold())
        ]
        runs = [
            i
            for n, text in enumerate(texts)
            for i in _runs(re.compile(pattern, flags), n, tokens, text)
        ]
        if alone or runs:
            return sorted({*alone, *runs})
    if re.fullmatch(_QUOTED, word):
        return _find_word(word[1:-1], tokens, texts)
    return []


def _runs(
    pattern: "re.Pattern[str]", segment: int, tokens: "Sequence[Token]", text: str | None
) -> Iterator[int]:
    """Find the tokens of one text that together spell a match of the pattern."""
    mine = [
        (i, t.start, t.end, t.text)
        for i, t in enumerate(tokens)
        if t.segment == segment and t.start is not None
    ]
    firsts = {start: i for i, start, _, _ in reversed(mine)}
    lasts = {end: i for i, _, end, _ in mine}
    if text is None:
        # The text is what its tokens show.
        characters = [" "] * max((end or 0 for _, _, end, _ in mine), default=0)
        for _, start, end, word in mine:
            if end is not None and end - start == len(word):
                characters[start:end] = word
        text = "".join(characters)
    at = 0
    while match := pattern.search(text, at):
        first_token = firsts.get(match.start())
        last_token = lasts.get(match.end())
        if first_token is not None and last_token is not None:
            yield from range(first_token, last_token + 1)
        at = match.start() + 1
