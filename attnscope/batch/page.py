"""A page of a finished dump, or of a report that `run` saved: a walk through its texts and heads."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from attnscope.batch.dump_reader import Dump
from attnscope.batch.header import Header
from attnscope.batch.reports import read_report
from attnscope.batch.walks import dump_source
from attnscope.studies.explore.saved import SavedSource, SavedText
from attnscope.studies.formats import export
from attnscope.studies.screens.header import counted, report_header
from attnscope.views.page import as_html
from attnscope.views.page.walk import Walk
from attnscope.views.parts import Facts, ViewPart
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import note, untrusted
from attnscope.views.walk.scene import Variant, WalkHead

_ROWS = 200_000  # largest number of rows of all heads and texts on a page
_EXACT = 20_000  # largest number of them that keep all digits
_Heads = Mapping[tuple[int, int], Callable[[], WalkHead]]


class _Records(SavedSource):
    """Texts named by the ids of their records, and their first words."""

    named: ClassVar[bool] = True


def page_of(source: Path) -> tuple[Iterator[bytes], str]:
    """Return a page of a dump or of a report of `run` (.json), piece by piece, and a description of its content."""
    report = read_report(source) if source.suffix == ".json" else None
    if report is not None:
        return export(report, Path("page.html")), counted(len(report.texts), "text")
    walk = dump_source(source)
    names: list[str] = []
    rows = 0
    for text in itertools.takewhile(walk.store.reach, itertools.count()):
        scene = walk.scene(Variant(text, walk.masks[0]))
        rows += (
            0
            if scene is None
            else len(scene.layers) * len(scene.heads) * len(scene.queries.positions)
        )
        if names and rows > _ROWS:
            break
        passages = () if scene is None else scene.passages
        words = "".join(passage.span.text for passage in passages)
        names.append(f"{walk.texts[text]}: {words}")
    exact = rows <= _EXACT
    walk.store.reach(None)
    saved = {
        (text_index, 0): SavedText(text.scene, partial(_heads, text, exact=exact))
        for text_index in range(len(names))
        for text in (walk.saved[text_index, 0],)
    }
    page_source = _Records(names, walk.masks, saved)
    header = Dump(source).header
    parts = _parts(header, page_source, walk.total)
    return as_html(parts, f"{header.input.name} · attnscope batch"), counted(len(names), "text")


def _parts(header: Header, page_source: SavedSource, total: int) -> Iterator[ViewPart | Walk]:
    yield from report_header(header.provenance, header.mask, DisplaySettings(2, options=False))
    lines = [
        (
            "dump",
            (*untrusted(header.input.name), *note(f" · {counted(total, 'text')} with findings")),
        )
    ]
    if len(page_source.texts) < total:
        lines.append(
            ("note", note(f"the page has the first {len(page_source.texts)} of {total:,} texts"))
        )
    yield Facts(lines)
    yield Walk(page_source)


def _heads(text: SavedText, *, exact: bool) -> _Heads:
    return {head: partial(_head, make, exact=exact) for head, make in text.heads().items()}


def _head(make: Callable[[], WalkHead], *, exact: bool) -> WalkHead:
    """Return a head that keeps all digits if a page has few rows, or its matrices."""
    head = make()
    return replace(head, exact=exact or bool(head.stages))
