"""Findings as a sequence of parts: plain data that a view draws on a terminal or in a page.

This package does not know rich, HTML, the width of a screen or the number of colours. A new view draws the
parts (`views/parts.py`), and is not another reading of findings.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from attnscope.studies.registry import kind_of
from attnscope.views.parts import GAP, Facts, FirstFitting, Text, ViewPart
from attnscope.views.settings import DisplaySettings


def present(findings: Any, settings: DisplaySettings | None = None, **fields: Any) -> Iterator[ViewPart]:
    """Turn findings of any kind into parts; `fields` are those of DisplaySettings, in place of all settings."""
    settings = settings or DisplaySettings(**fields)
    parts = kind_of(findings).present(findings, settings)
    return _only_data(parts) if settings.data_only else parts


def _only_data(parts: Iterable[ViewPart]) -> Iterator[ViewPart]:
    """Leave out remarks, and the gaps around them."""
    gap = False
    begun = False
    for part in _without_remarks(parts):
        if isinstance(part, Text) and not part.items:
            gap = begun
            continue
        if gap:
            yield GAP
        gap = False
        begun = True
        yield part


def _without_remarks(parts: Iterable[ViewPart]) -> Iterator[ViewPart]:
    for part in parts:
        if isinstance(part, FirstFitting):
            forms = [list(_without_remarks(form)) for form in part.forms]
            picture = None if part.picture is None else list(_without_remarks(part.picture))
            yield msgspec.structs.replace(part, forms=forms, picture=picture)
        elif isinstance(part, Facts) and part.remark:
            warns = {"warning", "alarm"}
            kept_lines = [
                line for line in part.lines if isinstance(line[1], tuple) and warns & {s.look for s in line[1]}
            ]
            if kept_lines:
                yield Facts(kept_lines)
        elif not (isinstance(part, Text) and part.remark):
            yield part
