"""Notes without what can be typed, for figures: their reader has the findings, and no command line."""

import re
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from attnscope.views.parts import Facts, FirstFitting, OneLine, Text, ViewPart, joined
from attnscope.views.spans import Spans, note

# A clause of a note such as `--query 0:60 shows all`, `select rows, such as --query it`, or `save it without --key to get
# them`. One that names an option for what it says of the findings, as `--pair: the model …`, stays.
_HINT = re.compile(
    r"--[a-z][a-z-]*(?: [^;]+?)? (?:shows?|selects|adds|compares|explains|finds|gives)\b"
    r"|.*\bsuch as --[a-z]|save it without --[a-z]"
)
_BETWEEN = re.compile(r"(; |: (?=--))")


def without_hints(parts: Iterable[ViewPart]) -> Iterator[ViewPart]:
    """Leave out what notes say about options, and notes that say nothing else."""
    for part in parts:
        if isinstance(part, FirstFitting):
            yield replace(part, forms=[list(without_hints(form)) for form in part.forms])
        elif isinstance(part, Facts):
            lines = [
                (name, _told(value) if name == "note" else value) for name, value in part.lines
            ]
            kept = [(name, value) for name, value in lines if value]
            if kept or not part.lines:
                yield replace(part, lines=kept)
        else:
            yield part


def _told(value: Spans | Text | OneLine) -> Spans | Text | OneLine:
    """Return a note without its hints; nothing if it is no more than these."""
    spans = joined(value)
    if len(spans) != 1 or spans[0].origin != "note":
        return value
    first, *others = _BETWEEN.split(spans[0].text)
    # separators and clauses take turns
    pairs = [("", first), *zip(others[::2], others[1::2], strict=True)]
    kept = [pair for pair in pairs if not _HINT.match(pair[1])]
    text = "".join(f"{separator}{clause}" for separator, clause in kept)
    return note(text, spans[0].look) if text else ()
