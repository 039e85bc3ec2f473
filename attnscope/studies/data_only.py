"""Parts of a screen without remarks, for a reader who wants the numbers alone."""

from collections.abc import Iterable, Iterator

import msgspec

from attnscope.views.parts import GAP, Facts, FirstFitting, Text, ViewPart


def without_remarks(parts: Iterable[ViewPart]) -> Iterator[ViewPart]:
    """Leave out remarks, and the gaps around them."""
    gap = False
    begun = False
    for part in _numbers(parts):
        if isinstance(part, Text) and not part.items:
            gap = begun
            continue
        if gap:
            yield GAP
        gap = False
        begun = True
        yield part


def _numbers(parts: Iterable[ViewPart]) -> Iterator[ViewPart]:
    for part in parts:
        if isinstance(part, FirstFitting):
            forms = [list(_numbers(form)) for form in part.forms]
            picture = None if part.picture is None else list(_numbers(part.picture))
            yield msgspec.structs.replace(part, forms=forms, picture=picture)
        elif isinstance(part, Facts) and part.remark:
            warns = {"warning", "alarm"}
            kept_lines = [
                line
                for line in part.lines
                if isinstance(line[1], tuple) and warns & {s.look for s in line[1]}
            ]
            if kept_lines:
                yield Facts(kept_lines)
        elif not (isinstance(part, Text) and part.remark):
            yield part
