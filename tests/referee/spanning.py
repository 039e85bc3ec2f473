"""Spans of random calls: how `--spans` is drawn, how it divides a text, and what the weights between spans must be.

Nothing here shares code with attnscope. Texts are divided by a plain reading of docs/spans.md, from the offsets that
the tokenizers library gives, and weights are summed over the matrices of `expected.Attention`.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.referee.call import Words
from tests.referee.expected import Attention, Number, U
from tests.referee.reference import Array

Bounds = list[tuple[str, int, int]]  # name, start and end, in characters or in tokens
KINDS = ("sentences", "lines", "paragraphs", "words", "marks", "file")
_SPECIAL_SPANS = {"special": "(special)", "pair": "(pair)", "rest": "(rest)"}


@dataclass(frozen=True)
class Division:
    """A text divided into spans, as a Report must have it."""

    names: list[str]
    kinds: list[str]
    of_token: list[int]

    def tokens(self, number: int) -> list[int]:
        """Positions of a span's tokens."""
        return [position for position, span in enumerate(self.of_token) if span == number]


def draw(
    random: Random, texts: Sequence[str], counts: Sequence[int], place: Path
) -> tuple[str, tuple[str, ...]]:
    """What is typed as `--spans`, and the texts, with line breaks and capitals that divide some of them.

    Args:
        random: Source of choices.
        texts: The texts, of words between blanks.
        counts: Tokens of each.
        place: Where a file of spans may be written, without its ending.
    """
    kind = random.choice(KINDS)
    if kind in ("marks", "file"):
        shared = sorted(set.intersection(*(set(text.split()) for text in texts)))
        if kind == "marks" and shared:
            return ",".join(random.sample(shared, random.randint(1, min(3, len(shared))))), tuple(
                texts
            )
        if kind == "file" and len(texts) == 1:
            return str(_file(random, texts[0], counts[0], place)), tuple(texts)
        kind = "words"
    return kind, tuple(_broken(random, text, lines=len(texts) == 1) for text in texts)


def _broken(random: Random, text: str, *, lines: bool) -> str:
    """The text with some line breaks instead of blanks, and some words in capitals: no token more or less."""
    words = [word.capitalize() if random.random() < 0.2 else word for word in text.split(" ")]
    blanks = [random.choice((" ", " ", "\n", "\n\n")) if lines else " " for _ in words[1:]]
    return "".join(word + blank for word, blank in zip(words, [*blanks, ""], strict=True))


def ranges(random: Random, text: str, count: int) -> list[dict[str, Any]]:
    """Named ranges that overlap nowhere, in characters or in tokens, some of them with a name in common."""
    unit = random.choice(("characters", "tokens"))
    starts = (
        [0] + [at + 1 for at, letter in enumerate(text) if letter == " "]
        if unit == "characters"
        else range(count)
    )
    chosen = sorted(random.sample(list(starts), random.randint(1, min(len(starts), 6))))
    found = []
    for start, end in pairwise([*chosen, len(text) if unit == "characters" else count]):
        shorter = (
            random.choice((0, 1))
            if unit == "tokens" or end == len(text)
            else random.choice((0, 1, 2))
        )
        if unit == "characters" and len(text[start:end].split()[-1]) < 5:
            shorter = min(shorter, 1) * (end < len(text))
        end -= shorter if end - shorter > start else 0
        found.append(
            {"name": f"part {random.randint(1, 6)}", "start": start, "end": end, "unit": unit}
        )
    random.shuffle(found)
    return found


def _file(random: Random, text: str, count: int, stem: Path) -> Path:
    """A file with ranges."""
    found = ranges(random, text, count)
    path = stem.with_suffix(random.choice((".json", ".jsonl")))
    whole = path.suffix == ".json"
    path.write_text(
        json.dumps(found) if whole else "".join(json.dumps(one) + "\n" for one in found)
    )
    return path


def divided(
    typed: str | list[dict[str, Any]], texts: Sequence[str], encoding: Any, special: Sequence[bool]
) -> Division:
    """How a text must be divided.

    Args:
        typed: What was typed, or the ranges of this text.
        texts: The text, and its pair.
        encoding: Its tokens, with offsets and the text that each is of.
        special: Special tokens.
    """
    n, owners = len(special), dict[int, str]()
    if isinstance(typed, str) and typed.endswith((".json", ".jsonl")):
        lines = Path(typed).read_text().splitlines()
        typed = (
            json.loads(lines[0])
            if typed.endswith(".json")
            else [json.loads(line) for line in lines]
        )
    if isinstance(typed, str):
        bounds = _bounds(typed, texts[0])
    else:
        bounds = sorted(
            ((one["name"], one["start"], one["end"]) for one in typed), key=lambda one: one[1]
        )
    if not isinstance(typed, str) and typed[0]["unit"] == "tokens":
        owners = {at: name for name, start, end in bounds for at in range(start, end)}
    else:
        owners = _owners(bounds, texts[0], 0, encoding)
        if len(texts) > 1 and typed in KINDS:
            taken = {name for name, _, _ in bounds}
            of_pair = [
                (_unique(name, taken), start, end) for name, start, end in _bounds(typed, texts[1])
            ]
            owners |= _owners(of_pair, texts[1], 1, encoding)
    kinds = ["first" if at == 0 else "special" if special[at] else "text" for at in range(n)]
    kinds = [
        ("pair" if encoding.sequence_ids[at] == 1 else "rest")
        if kind == "text" and at not in owners
        else kind
        for at, kind in enumerate(kinds)
    ]
    worded = {owners[at] for at in range(n) if kinds[at] == "text"}
    kinds = [
        "text" if owners.get(at) not in {None, *worded} else kind for at, kind in enumerate(kinds)
    ]
    order: dict[str, str] = {"(first)": "first"} if "first" in kinds else {}
    order |= {owners[at]: "text" for at in range(n) if kinds[at] == "text"}
    order |= {name: kind for kind, name in _SPECIAL_SPANS.items() if kind in kinds}
    of_kind = {"first": "(first)", **_SPECIAL_SPANS}
    numbers = [list(order).index(of_kind.get(kind) or owners[at]) for at, kind in enumerate(kinds)]
    return Division(list(order), list(order.values()), numbers)


def _bounds(typed: str, text: str) -> Bounds:
    """The named ranges of a text that a word of `--spans`, or marks, stand for."""
    if typed not in KINDS:
        starts: dict[int, str] = {}
        for mark in sorted(typed.split(","), key=len):
            starts |= {match.start(): mark for match in re.finditer(re.escape(mark), text)}
        taken = set[str]()
        ends = [*sorted(starts)[1:], len(text)]
        return [
            (_unique(starts[at], taken), at, end)
            for at, end in zip(sorted(starts), ends, strict=True)
        ]
    if typed == "words":
        taken = set()
        words = [(match[0], *match.span()) for match in re.finditer(r"\S+", text)]
        return [
            (_unique(re.sub(r"^\W+|\W+$", "", word) or word, taken), *span) for word, *span in words
        ]  # type: ignore[misc]
    starts_of = {
        "lines": _line_starts,
        "paragraphs": _paragraph_starts,
        "sentences": _sentence_starts,
    }[typed](text)
    return [
        (f"{typed[:-1]} {number}", start, end)
        for number, (start, end) in enumerate(pairwise([*starts_of, len(text)]), 1)
    ]


def _line_starts(text: str) -> list[int]:
    return [match.start() for match in re.finditer(r"^.*\S.*$", text, re.MULTILINE)]


def _paragraph_starts(text: str) -> list[int]:
    return [match.end() for match in re.finditer(r"(?:^|\n\n+)(?=\S)", text)]


def _sentence_starts(text: str) -> list[int]:
    """A sentence ends at an empty line, or at marks that a line's end or no small letter follows closely."""
    starts = [0]
    for match in re.finditer(r"(\S+)(\s+)", text):
        word, blank = match.groups()
        letter = next(
            ((at, x) for at, x in enumerate(text[match.end() :][:40]) if x.isalpha()), None
        )
        begins = letter is None or not letter[1].islower() or letter[0] > 3
        if blank.count("\n") > 1 or (word[-1] in ".!?…" and ("\n" in blank or begins)):
            starts.append(match.end())
    return starts


def _unique(name: str, taken: set[str]) -> str:
    found = next(
        found for n in range(1, 1000) if (found := name if n == 1 else f"{name} ({n})") not in taken
    )
    taken.add(found)
    return found


def _owners(bounds: Bounds, text: str, segment: int, encoding: Any) -> dict[int, str]:
    """The range that has most of each token's characters, the first of equals."""
    owners = {}
    for at, (start, end) in enumerate(encoding.offsets):
        if encoding.sequence_ids[at] == segment and end > start:
            shares = [
                sum(not text[x].isspace() for x in range(max(start, a), min(end, b)))
                for _, a, b in bounds
            ]
            if max(shares, default=0) > 0:
                owners[at] = bounds[int(np.argmax(shares))][0]
    return owners


def named_spans(words: Sequence[str], division: Division | None) -> Words:
    """Words that know the spans whose names `--query`, `--key` and `--hide` take."""
    return Words(
        words,
        {} if division is None else {n: division.tokens(i) for i, n in enumerate(division.names)},
    )


def of_keys(one: Attention, division: Division) -> Number:
    """The weight of every row on every span, (H, Q, S); of a sum v of weights Σ w, Σ w |c − v| is v (1 + Σ w − 2 v)."""
    members = np.eye(len(division.names))[division.of_token]  # (K, S)
    value = one.weights @ members
    total = one.weights.sum(-1, keepdims=True)
    slack = (
        one.growth * np.maximum(value * (1 + total - 2 * value), 0.0) + (16 + len(members) / 4) * U
    )
    return Number(np.where(one.dead[None, :, None], np.nan, value), slack)


def over_rows(sums: Number, division: Division) -> Number:
    """The mean over the rows of every span that may see anything, (H, S, …)."""
    found = [_mean(sums[:, division.tokens(span)], 1) for span in range(len(division.names))]
    return Number(
        np.stack([one.value for one in found], 1), np.stack([one.slack for one in found], 1)
    )


def _mean(numbers: Number, axis: int | tuple[int, ...]) -> Number:
    known = ~np.isnan(numbers.value)
    count = known.sum(axis)

    def of(values: Array) -> Array:
        return np.where(known, values, 0.0).sum(axis) / np.maximum(count, 1)

    return Number(np.where(count > 0, of(numbers.value), np.nan), of(numbers.slack) + 4 * U)


def reading(division: Division, queries: Sequence[int]) -> int:
    """The span that is read from: that of the rows shown, if they are of one, else the last of the text."""
    spans = {division.of_token[query] for query in queries}
    texts = [number for number, kind in enumerate(division.kinds) if kind == "text"]
    return spans.pop() if len(spans) == 1 else texts[-1] if texts else len(division.names) - 1


def expected(
    layers: Sequence[Attention], division: Division, queries: Sequence[int]
) -> dict[str, Number]:
    """Every number that a Report has of spans, by its field.

    Args:
        layers: The attention of every layer.
        division: The spans.
        queries: Rows that are shown.
    """
    sums = [of_keys(one, division) for one in layers]
    found = {"weights": _stacked([over_rows(one, division) for one in sums])}
    if layers[0].sink is not None:
        found["sink"] = _stacked([over_rows(one.statistic("sink"), division) for one in layers])
    rows = division.tokens(reading(division, queries))
    every = [one.number("weights")[:, rows] for one in layers]
    found["received"] = _mean(_stacked(every), (0, 1, 2))
    found["shares"] = _mean(_stacked([one[:, rows] for one in sums]), (0, 1))
    return found


def _stacked(numbers: Sequence[Number]) -> Number:
    return Number(
        np.stack([one.value for one in numbers]), np.stack([one.slack for one in numbers])
    )


def of_unit(
    layers: Sequence[Attention], heads: Sequence[int], division: Division
) -> dict[str, Number]:
    """What a dump keeps of a layer and head, or of a mean of them: rows count once in every head that they live in."""
    found = {}
    for name in ("weights", *(["sink"] if layers[0].sink is not None else [])):
        each = [
            of_keys(one, division) if name == "weights" else one.statistic("sink") for one in layers
        ]
        every = Number(
            np.concatenate([one.value[list(heads)] for one in each]),
            np.concatenate([one.slack[list(heads)] for one in each]),
        )
        parts = [
            _mean(every[:, division.tokens(span)], (0, 1)) for span in range(len(division.names))
        ]
        found[name] = _stacked(parts)
    return found
