"""Divide the tokens of a text into spans. Never imports torch."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from attnscope.base.errors import NotInText, UsageError, arg, nearest
from attnscope.findings.images import picture_of
from attnscope.findings.spans import ANSWER, CharacterRange, SpanKind, TextSpans
from attnscope.findings.tokens import Token, group_words, spell_word
from attnscope.request.run_config import TextInput
from attnscope.request.spans import (
    FIRST,
    PAIR,
    REST,
    SPAN_WORDS,
    SPECIAL,
    TEMPLATE,
    WHOLE_WORDS,
    SpanRange,
    SpanRequest,
    not_in_chat,
    unique_name,
)

# in this order
_OF_KIND: dict[SpanKind, str] = {
    "special": SPECIAL,
    "template": TEMPLATE,
    "pair": PAIR,
    "rest": REST,
}
_ASSISTANT = "assistant"  # how turns that answer are named
_CLOSING = "\"'”’»›)\\]}）」』】*_"
_WIDE = "。！？｡"  # no blank follows these
_END = re.compile(rf"(?:[.!?…]+[{_CLOSING}]*(?=\s)|[{_WIDE}]+[{_CLOSING}]*)\s*|\n[ \t]*\n\s*|\n")
# a dot after these ends no sentence
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|cf|ca|al|Fig|fig|No|no|Eq|eq|Sec|sec|Inc|Ltd|Co|Corp|Gen|Col|Sgt|Capt"
    r"|approx|e\.g|i\.e|z\.B|d\.h|bzw|usw|p|pp|vol|ed|eds|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec)"
    r"|(?<![\w.])[A-Z](?:\.[A-Z])*|^\s*\d+)\.$"
)
_PARTS = {  # of a text
    "lines": r"[^\n]*\S[^\n]*",
    "paragraphs": r"\S(?:.|\n(?!\s*\n))*",
    "words": r"\S+",
}
_ITEM = re.compile(r"[ \t]*(?:[-*•–]|\d+[.)])\s")
_LETTER = re.compile(r"[^\W\d_]")


def divide(
    text: TextInput, tokens: Sequence[Token], request: SpanRequest, *, truncated: bool = False
) -> TextSpans:
    """Divide a text into spans.

    The first token, special tokens and tokens of a chat's template are spans of their own, so that no sum hides them.
    A token that covers characters of two spans belongs to the one with most of them, blanks not counted.

    Args:
        tokens: Its tokens, the generated ones included.
        truncated: Whether ranges may lie behind the last token.

    Raises:
        NotInText: A mark is not in the text.
    """
    if request.division == WHOLE_WORDS:
        return _whole_words(tokens)
    ranges = text.spans or request.ranges
    of_token: list[SpanKind] = []
    for position, token in enumerate(tokens):
        # A token that ends a text is no part of the answer before it.
        if token.made and not token.special:
            of_token.append("answer")
        elif position == 0:
            of_token.append("first")
        elif token.special:
            of_token.append("special")
        else:
            of_token.append("text")
    owners: list[str | None] = [None] * len(tokens)
    if request.division == "ranges":
        _by_ranges(text, tokens, ranges, owners, truncated=truncated)
    else:
        pieces = _pieces(text.text, text.turns, request, answer_turn(text))
        _assign(tokens, pieces, 0, owners)
        if text.pair is not None:
            kinds = SPAN_WORDS[:-1]
            if request.division in kinds:
                of_pair = _pieces(text.pair, (), request, "")
            else:
                of_pair = []
            names = {piece.name for piece in pieces}
            _assign(
                tokens,
                [SpanRange(unique_name(p.name, names), p.start, p.end) for p in of_pair],
                1,
                owners,
            )
    _fill_without_characters(tokens, owners)
    _give_to_pictures(tokens, owners)
    in_template = bool(text.turns)
    for position, (token, token_kind) in enumerate(zip(tokens, of_token, strict=True)):
        if token_kind == "text" and owners[position] is None:
            if token.segment:
                of_token[position] = "pair"
            elif in_template:
                of_token[position] = "template"
            else:
                of_token[position] = "rest"
    if in_template and request.division != "turns":
        _mark_template(text.turns, tokens, of_token)
    _keep_alone(of_token, owners)
    return _spans(tokens, of_token, owners, _answer(text, request, of_token, owners))


def _answer(
    text: TextInput,
    request: SpanRequest,
    of_token: Sequence[SpanKind],
    owners: Sequence[str | None],
) -> str:
    """Return the answer's span: a chat's last turn if it is the assistant's, or a range `answer` at the end."""
    if text.turns and request.division != "ranges":
        return answer_turn(text)
    worded = [
        owner
        for owner, token_kind in zip(owners, of_token, strict=True)
        if token_kind in ("text", "rest")
    ]
    answer = worded[-1] if request.division == "ranges" and worded else None
    if answer is not None and answer.casefold() == ANSWER:
        return answer
    return ""


def answer_turn(text: TextInput) -> str:
    """Return the name of a chat's last turn if the assistant's message is the last; else an empty name."""
    if text.rendered is None or text.rendered.roles[-1:] != (_ASSISTANT,) or not text.turns:
        return ""
    last = text.turns[-1].name
    return last if last.startswith(_ASSISTANT) else ""


def repeated_marks(text: TextInput, request: SpanRequest) -> list[str]:
    """Warn of marks that are in a text more than once, since each place begins a span."""
    if request.division != "marks":
        return []
    parts, _ = _parts(text.text, text.turns, answer_turn(text))
    counts = Counter(_mark_places(text.text, parts, request.marks).values())
    return [
        f"the mark '{mark}' is in the text {counts[mark]} times, and begins a span at each place"
        for mark in request.marks
        if counts[mark] > 1
    ]


def _whole_words(tokens: Sequence[Token]) -> TextSpans:
    """Return every word as a span; so are marks, special tokens and the first token."""
    words = group_words(tokens, range(len(tokens)))
    names = set[str]()
    kinds: list[SpanKind] = ["special" if tokens[word[0]].special else "text" for word in words]
    characters = []
    for word in words:
        start = tokens[word[0]].start
        end = tokens[word[-1]].end
        if start is not None and end is not None and end > start:
            characters.append([CharacterRange(start, end, tokens[word[0]].segment)])
        else:
            characters.append([])
    of_token = [index for index, word in enumerate(words) for _ in word]
    return TextSpans(
        [unique_name(spell_word(tokens, word), names) for word in words],
        kinds,
        of_token,
        characters,
    )


def _by_ranges(
    text: TextInput,
    tokens: Sequence[Token],
    ranges: Sequence[SpanRange],
    owners: list[str | None],
    *,
    truncated: bool,
) -> None:
    """Assign tokens to named ranges; refuse ranges that overlap, lie outside the text or hold no token."""
    where = arg("spans")
    lengths = {"characters": len(text.text), "tokens": len(tokens)}
    for span in ranges:
        if span.end > lengths[span.unit] and not truncated:
            hint = f"the text has {lengths[span.unit]:,} {span.unit}"
            raise UsageError(
                f"span '{span.name}' ends at {span.unit[:-1]} {span.end}", where=where, hint=hint
            )
    of_unit = {
        unit: sorted((s for s in ranges if s.unit == unit), key=lambda s: s.start)
        for unit in lengths
    }
    for unit, ordered in of_unit.items():
        for span, following in pairwise(ordered):
            if following.start < span.end:
                overlap = f"{unit} {following.start} to {min(span.end, following.end)}"
                raise _overlap(span.name, following.name, overlap)
    _assign(tokens, of_unit["characters"], 0, owners)
    for span in of_unit["tokens"]:
        for position in range(span.start, min(span.end, len(tokens))):
            if owners[position] not in (None, span.name):
                raise _overlap(str(owners[position]), span.name, f"token {position}")
            owners[position] = span.name
    for span in ranges:
        if span.name not in owners and not truncated:
            raise UsageError(
                f"span '{span.name}' has no token", where=where, hint="make its range longer"
            )


def _overlap(name: str, other: str, what: str) -> UsageError:
    hint = "every token belongs to one span: end a range where the next begins"
    return UsageError(
        f"spans '{name}' and '{other}' overlap ({what})", where=arg("spans"), hint=hint
    )


def _parts(
    text: str, turns: Sequence[SpanRange], answer: str
) -> tuple[list[SpanRange], list[SpanRange]]:
    """Return the parts of a text to divide, and those that stay whole: a chat's turns, and those of its answer.

    A text that is no chat is one part without a name.
    """
    if not turns:
        return [SpanRange("", 0, len(text))], []
    return [turn for turn in turns if turn.name != answer], [
        turn for turn in turns if turn.name == answer
    ]


def _pieces(
    text: str, turns: Sequence[SpanRange], request: SpanRequest, answer: str
) -> list[SpanRange]:
    """Return the named ranges of a text; each runs up to the next, except that turns leave the template out.

    Args:
        answer: Name of the turn that answers, which stays whole; empty for none.
    """
    if request.division == "turns":
        if not turns:
            raise not_in_chat()
        return list(turns)
    parts, whole = _parts(text, turns, answer)
    if request.division == "marks":
        undivided = [text[turn.start : turn.end] for turn in whole]
        return [*_marked(text, parts, request.marks, undivided), *whole]
    if request.division == "images":
        return [*(SpanRange(part.name or "text", part.start, part.end) for part in parts), *whole]
    bounds = [
        (part.start + start, part.start + end)
        for part in parts
        for start, end in _split(text[part.start : part.end], request.division)
    ]
    if request.division == "words":
        names = {turn.name for turn in whole}
        words = [text[start:end].strip() for start, end in bounds]
        bare = [re.sub(r"^\W+|\W+$", "", word) or word for word in words]
        divided = [
            SpanRange(unique_name(word, names), *ends)
            for word, ends in zip(bare, bounds, strict=True)
        ]
    else:
        singular = request.division[:-1]
        divided = [
            SpanRange(f"{singular} {piece_number}", start, end)
            for piece_number, (start, end) in enumerate(bounds, 1)
        ]
    return [*divided, *whole]


def _mark_places(text: str, parts: Sequence[SpanRange], marks: Sequence[str]) -> dict[int, str]:
    """Return where marks are within parts; of two marks at one place, the longer counts."""
    starts: dict[int, str] = {}
    for mark in sorted(marks, key=len):
        for part in parts:
            places = re.finditer(re.escape(mark), text[part.start : part.end])
            starts |= {part.start + match.start(): mark for match in places}
    return starts


def _marked(
    text: str, parts: Sequence[SpanRange], marks: Sequence[str], undivided: Sequence[str] = ()
) -> list[SpanRange]:
    """Begin a span at every occurrence of a mark; it ends with its part, and what precedes it keeps the part's name.

    Args:
        undivided: Texts of the chat in which a mark may be, too, where it begins nothing.
    """
    for mark in marks:
        if not any(mark in text[part.start : part.end] for part in parts) and not any(
            mark in t for t in undivided
        ):
            near = nearest(mark, SPAN_WORDS)
            hint = "each mark begins a span, and is written as there"
            if near:
                hint = f"did you mean {arg('spans', near)}?"
            raise NotInText(f"the mark '{mark}' is not in the text", where=arg("spans"), hint=hint)
    starts = _mark_places(text, parts, marks)
    names = {part.name for part in parts}
    pieces = list[SpanRange]()
    for part in parts:
        order = [start for start in sorted(starts) if part.start <= start < part.end]
        before = order[0] if order else part.end
        if part.name and text[part.start : before].strip():
            pieces.append(SpanRange(part.name, part.start, before))
        for start, end in pairwise([*order, part.end]):
            name = starts[start].strip().rstrip(":").rstrip() or starts[start]
            pieces.append(SpanRange(unique_name(name, names), start, end))
    return pieces


def _split(text: str, division: str) -> Iterator[tuple[int, int]]:
    """Yield the sentences, lines, paragraphs or words of a text, each up to the next, the first from its start."""
    if division == "sentences":
        starts = _sentence_starts(text)
    else:
        starts = []
        for n, match in enumerate(re.finditer(_PARTS[division], text)):
            if n == 0:
                starts.append(0)
            else:
                starts.append(match.start())
    yield from zip(starts, [*starts[1:], len(text)], strict=True) if starts else ()


def _sentence_starts(text: str) -> list[int]:
    """Return where sentences begin: after an end mark, a blank line, or a line's end after a mark or before an item."""
    starts = list[int]()
    begin = 0
    for match in _END.finditer(text):
        if not _ends_sentence(text, begin, match):
            continue
        if text[begin : match.end()].strip():
            starts.append(begin)
            begin = match.end()
    if text[begin:].strip() or not starts:
        starts.append(begin)
    return starts


def _ends_sentence(text: str, begin: int, match: "re.Match[str]") -> bool:
    mark = match.group()
    after = text[match.end() : match.end() + 40]
    if not mark.strip():
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        in_list = _ITEM.match(after) is not None or (
            _ITEM.match(line) is not None and not after[:1].isspace()
        )
        return mark.count("\n") > 1 or in_list or line.rstrip().endswith(":")
    if mark.count("\n") or mark[0] in _WIDE:
        return True
    if mark.startswith(".") and _ABBREVIATION.search(
        text[max(begin, match.start() - 12) : match.start() + 1]
    ):
        return False
    letter = _LETTER.search(after)
    return letter is None or not letter.group().islower() or letter.start() > 3


def _assign(
    tokens: Sequence[Token], pieces: Sequence[SpanRange], segment: int, owners: list[str | None]
) -> None:
    """Give each token that covers characters to the piece with most of them."""
    ordered = sorted(pieces, key=lambda piece: piece.start)
    starts = [piece.start for piece in ordered]
    for position, token in enumerate(tokens):
        if token.segment != segment or token.start is None or token.end is None or token.made:
            continue
        first_piece = bisect_right(starts, token.start) - 1
        end = bisect_right(starts, max(token.start, token.end - 1))
        best = None
        best_count = 0
        for piece in ordered[max(0, first_piece) : end]:
            inside = range(max(token.start, piece.start), min(token.end, piece.end))
            # The text of a piece does not say which characters are blank.
            blank = len(token.text) != token.end - token.start
            count = sum(blank or not token.text[at - token.start].isspace() for at in inside)
            if count > best_count or (best is None and len(inside) and token.text.isspace()):
                best = piece.name
                best_count = count
        owners[position] = best


def _fill_without_characters(tokens: Sequence[Token], owners: list[str | None]) -> None:
    """Give a piece without characters, such as a part of one character, to the span of the token before or after."""
    bare = [token.start is None and not token.special and not token.made for token in tokens]
    for order in (range(1, len(tokens)), range(len(tokens) - 2, -1, -1)):
        step = 1 if order.step > 0 else -1
        for position in order:
            neighbour = position - step
            if (
                bare[position]
                and owners[position] is None
                and tokens[neighbour].segment == tokens[position].segment
            ):
                owners[position] = owners[neighbour]


def _give_to_pictures(tokens: Sequence[Token], owners: list[str | None]) -> None:
    """Give every patch to the span of its picture; a span of the text with the same name gets another one."""
    pictures = [picture_of(token) for token in tokens]
    names = {name for name in pictures if name is not None}
    for position, picture in enumerate(pictures):
        if picture is not None:
            owners[position] = picture
        elif owners[position] in names:
            owners[position] = f"{owners[position]} (text)"


def _mark_template(
    turns: Sequence[SpanRange], tokens: Sequence[Token], of_token: list[SpanKind]
) -> None:
    owners: list[str | None] = [None] * len(tokens)
    _assign(tokens, turns, 0, owners)
    _fill_without_characters(tokens, owners)
    for position, token_kind in enumerate(of_token):
        if token_kind == "text" and owners[position] is None:
            of_token[position] = "template"


def _keep_alone(of_token: list[SpanKind], owners: Sequence[str | None]) -> None:
    """Keep the name of a span whose tokens are all first or special tokens."""
    left = {
        owner for owner, token_kind in zip(owners, of_token, strict=True) if token_kind == "text"
    }
    for position, (owner, token_kind) in enumerate(zip(owners, of_token, strict=True)):
        if owner is not None and owner not in left and token_kind in ("first", "special"):
            of_token[position] = "text"


def _spans(
    tokens: Sequence[Token], of_token: Sequence[SpanKind], owners: Sequence[str | None], answer: str
) -> TextSpans:
    """Return the spans in order.

    Args:
        answer: The answer's span, unless tokens were generated; empty for none.
    """
    names: dict[str, SpanKind] = {}
    if "first" in of_token:
        names[FIRST] = "first"
    for owner, token_kind in zip(owners, of_token, strict=True):
        if token_kind == "text":
            names[str(owner)] = "text"
    if "answer" in of_token:
        names.setdefault(ANSWER, "answer")
    elif answer in names:
        names[answer] = "answer"
    names |= {name: token_kind for token_kind, name in _OF_KIND.items() if token_kind in of_token}
    numbers = {name: index for index, name in enumerate(names)}
    fixed: dict[SpanKind, str] = {**_OF_KIND, "first": FIRST, "answer": ANSWER}
    assigned = [
        numbers[fixed.get(token_kind) or str(owner)]
        for owner, token_kind in zip(owners, of_token, strict=True)
    ]
    return TextSpans(
        list(names), list(names.values()), assigned, _characters(tokens, assigned, len(names))
    )


def _characters(
    tokens: Sequence[Token], of_token: Sequence[int], count: int
) -> list[list[CharacterRange]]:
    ranges: list[list[CharacterRange]] = [[] for _ in range(count)]
    before: int | None = None
    for token, span in zip(tokens, of_token, strict=True):
        if token.start is None or token.end is None or token.end == token.start:
            continue
        last = ranges[span][-1] if ranges[span] else None
        if (
            last is not None
            and before == span
            and last.segment == token.segment
            and token.start >= last.start
        ):
            ranges[span][-1] = CharacterRange(last.start, max(last.end, token.end), token.segment)
        else:
            ranges[span].append(CharacterRange(token.start, token.end, token.segment))
        before = span
    return ranges
