"""A page of a finished dump, or of a report that `run` saved: a walk through its texts and heads."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attnscope.base.errors import AttnscopeError
from attnscope.batch.dump_reader import Dump
from attnscope.batch.header import Header
from attnscope.batch.records import Record
from attnscope.batch.reports import read_report
from attnscope.findings.row_statistics import STATISTICS, Rows
from attnscope.findings.run import HeadReport, Report, TextReport, Top
from attnscope.studies.explore.saved import SavedSource, SavedText
from attnscope.studies.explore.scenes import ordered, text_scene, walk_head
from attnscope.studies.formats import export
from attnscope.studies.screens.header import counted, report_header
from attnscope.views.page import as_html
from attnscope.views.page.walk import Walk
from attnscope.views.parts import GAP, Facts, ViewPart
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import note, untrusted
from attnscope.views.walk.scene import RankedSources, WalkHead, WalkMap

_ROWS = 200_000  # largest number of rows of all heads and texts on a page
_EXACT = 20_000  # largest number of them that keep all digits
_CELLS = 2_000_000  # largest number of cells of matrices
ENDING = ".html"


def page_of(source: Path) -> tuple[Iterator[bytes], str]:
    """Return a page, piece by piece, and what is on it.

    Args:
        source: A dump, or a report of run (.json).

    Raises:
        AttnscopeError: The source is damaged or not finished, or has nothing to show.
    """
    report = read_report(source) if source.suffix == ".json" else None
    if report is not None:
        return export(report, Path("page.html")), counted(len(report.texts), "text")
    dump, rows, cells, total = Dump(source), 0, 0, 0
    chosen: list[Record] = []
    for record in dump.records():
        if record.status != "ok" or not record.units:
            continue
        total += 1
        rows += len(record.units) * len(record.queries)
        cells += sum(int(np.prod(stage.shape)) for stage in record.stages.values())
        if not chosen or (rows <= _ROWS and cells <= _CELLS and len(chosen) == total - 1):
            chosen.append(record)
    if not chosen:
        raise AttnscopeError("has no text with findings", where=source, hint="see the errors of its records")
    parts = _parts(dump.header, chosen, total, exact=rows <= _EXACT)
    return as_html(parts, f"{dump.header.input.name} · attnscope batch"), counted(len(chosen), "text")


def _parts(header: Header, records: list[Record], total: int, *, exact: bool) -> Iterator[ViewPart | Walk]:
    report = Report(header.provenance, header.mask, [])
    yield from report_header(report, DisplaySettings(2, options=False))
    named = (*untrusted(header.input.name), *note(f" · {counted(total, 'text')}"))
    lines = [("dump", named)]
    if len(records) < total:
        lines.append(("note", note(f"the page has the first {len(records)} of {total:,} texts")))
    yield Facts(lines)
    yield GAP
    saved = {(n, 0): _saved(header, record, exact=exact) for n, record in enumerate(records)}
    titles = [f"{record.id}: {record.text or ''}" for record in records]
    yield Walk(SavedSource(titles, [header.mask.used], saved))


def _saved(header: Header, record: Record, *, exact: bool) -> SavedText:
    text = _text(header, record)
    layers, heads = ordered(head.layer for head in text.heads), ordered(head.head for head in text.heads)
    made = {
        (layers.index(head.layer), heads.index(head.head)): partial(_head, record, text, n, exact=exact)
        for n, head in enumerate(text.heads)
    }
    return SavedText(lambda: text_scene(Report(header.provenance, header.mask, [text]), text), lambda: made)


def _text(header: Header, record: Record) -> TextReport:
    """Return a record as the text of a report; what the dump does not keep is not a number."""
    heads = []
    none = np.zeros((len(record.queries), 0), dtype=np.float32)
    for n, (layer, head) in enumerate(record.units):
        top = Top(header.settings.by, none.astype(np.int64), none, none)
        if record.top is not None:
            places, weights, values = record.top.keys[n], record.top.weight[n], record.top.value
            unknown = np.full(weights.shape, np.nan, dtype=np.float32)
            projected = None if record.top.projected is None else record.top.projected[n]
            value = unknown if values is None else values[n]
            top = Top(header.settings.by, places.astype(np.int64), weights, value, projected, _left_out(header))
        stages = {name: matrices[n] for name, matrices in record.stages.items()}
        heads.append(HeadReport(layer, head, None, float("nan"), None, None, stages, [], top, Rows(**_rows(record, n))))
    tokens, keys = record.tokens, record.keys or list(range(len(record.key_tokens)))
    return TextReport(
        record.index, record.text or "", record.pair, tokens, record.sources, record.queries, keys, heads, record.notes
    )


def _left_out(header: Header) -> list[str]:
    return [] if header.settings.special else ["special tokens", "first token"]


def _rows(record: Record, unit: int) -> Mapping[str, Any]:
    unknown = np.full(len(record.queries), np.nan, dtype=np.float32)
    found: dict[str, Any] = {name: unknown for name in STATISTICS}
    if record.rows is not None:
        for name in record.rows.__struct_fields__:
            array = getattr(record.rows, name)
            if array is not None:
                found[name] = array[unit]
    return found


def _head(record: Record, text: TextReport, unit: int, *, exact: bool) -> WalkHead:
    found = replace(walk_head(text, text.heads[unit]), scale=None, exact=exact or bool(record.stages))
    if found.sources is not None:
        known = {name: numbers for name, numbers in found.sources.measures.items() if not np.isnan(numbers).all()}
        sources = found.sources
        found = replace(found, sources=RankedSources(sources.by, sources.places, known, sources.left_out))
    if record.pooled is None:
        return found
    size = record.pooled.shape[1:]
    runs = [
        [-(-n * count // min(runs, count)) for n in range(min(runs, count) + 1)]
        for runs, count in zip(size, (len(record.tokens), len(record.key_tokens)), strict=True)
    ]
    weights = record.pooled[unit][: len(runs[0]) - 1, : len(runs[1]) - 1]
    return replace(found, map=WalkMap(runs[0], runs[1], weights))
