"""Parts as the JSON that a page draws. All text is spelled here; the page puts it into text nodes and nowhere else."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attnscope.views import parts
from attnscope.views.axes import SINK, Axis
from attnscope.views.numbers import MASKED, Digits
from attnscope.views.page.container import Container
from attnscope.views.scales import LogScale, Scale
from attnscope.views.spans import TOKEN_MARKS, Span, Spans
from attnscope.views.spelling import spell

Node = dict[str, Any]


def lowered(found: Iterable[Any], container: Container) -> list[Node]:
    """Return the nodes of some parts; their arrays go into the container."""
    return [node for part in found for node in DRAWN[type(part)](part, container)]


def text_of(span: Span) -> str:
    """Return a span as it is read."""
    return spell(span, ascii=False)


def spans_of(spans: Spans) -> list[Any]:
    """Return spans: text alone, or text, look, whether it is a token, and colour."""
    return [_span(span) for span in spans if span.text or span.origin in TOKEN_MARKS]


def _span(span: Span) -> Any:
    token = span.origin in TOKEN_MARKS or span.origin == "untrusted"
    if span.look or span.colour or token:
        return [text_of(span), span.look, int(token), span.colour]
    return text_of(span)


def _text(text: parts.Text, _container: Container) -> list[Node]:
    if not text.items:
        return []
    items = [spans_of(item) for item in text.items]
    return [{"k": "text", "items": items, "between": text.between, "indent": text.indent, "remark": text.remark}]


def _cell(cell: Any) -> list[Any]:
    return spans_of(parts.joined(cell))


def _facts(facts: parts.Facts, _container: Container) -> list[Node]:
    lines = [[name, _cell(value)] for name, value in facts.lines]
    return [{"k": "facts", "lines": lines, "indent": facts.indent, "look": facts.look}] if lines else []


def _column(column: parts.Column) -> Node:
    cells = [_cell(cell) for cell in column.cells]
    return {"heading": _cell(column.heading), "cells": cells, "look": column.look, "left": column.left}


def _table(table: parts.Table, _container: Container) -> list[Node]:
    keys = [] if table.keys is None else _labels(table.keys)
    labels: list[Any] = [*keys, *([None, spans_of(label)] for label in table.labels)]
    columns = [_column(column) for column in (*table.columns, *table.further)]
    bars = None if table.bars is None else list(table.bars)
    return [{"k": "table", "heading": table.heading, "labels": labels, "columns": columns, "bars": bars}]


def _labels(axis: Axis) -> list[list[Any]]:
    """Return number and name of every entry."""
    if not axis.names:
        return [[axis.number(n), []] for n in range(len(axis.positions))]
    return [[axis.number(n), [_span(name)]] for n, name in enumerate(axis.names)]


def _axis(axis: Axis) -> Node:
    return {
        "kind": axis.kind,
        "labels": _labels(axis),
        "special": [n for n, special in enumerate(axis.special) if special],
        "sink": [n for n, position in enumerate(axis.positions) if position == SINK],
        "total": axis.total,
    }


def _scale(scale: Scale) -> Node:
    return {"low": scale.low, "high": scale.high, "signed": scale.signed}


def _digits(digits: Digits) -> Node:
    return {"decimals": digits.decimals, "scientific": digits.scientific}


def _panel(panel: parts.Panel, container: Container) -> Node:
    texts: Any = None
    if panel.columns.kind == "head":
        texts = [list(row) for row in panel.texts]
    return {
        "name": panel.name,
        "title": spans_of(panel.title),
        "matrix": container.exact(panel.matrix),
        "texts": texts,
        "rows": _axis(panel.rows),
        "columns": _axis(panel.columns),
        "scale": _scale(panel.scale),
        "digits": _digits(panel.digits),
        "masked": [n for n, masked in enumerate(panel.masked_rows) if masked],
        "maskedWord": MASKED,
        "arithmetic": spans_of(panel.arithmetic),
        "colours": None if panel.colours is None else [list(row) for row in panel.colours],
    }


def _matrices(matrices: parts.Matrices, container: Container) -> list[Node]:
    return [{"k": "matrices", "panels": [_panel(panel, container) for panel in matrices.panels]}]


def _heat(heat: parts.HeatGrid, container: Container) -> list[Node]:
    kind = "thumbnails" if heat.places is not None else "matrices"
    if heat.places is None and heat.panels[0].columns.kind == "head":
        kind = "heads"
    panels = [_panel(panel, container) for panel in heat.panels]
    return [{"k": kind, "panels": panels, "places": None if heat.places is None else [list(p) for p in heat.places]}]


def _map(found: parts.WeightMap, container: Container) -> list[Node]:
    scale = LogScale.of(found.weights)
    return [
        {
            "k": "map",
            "kind": found.kind,
            "queries": list(found.queries),
            "keys": list(found.keys),
            "weights": container.exact(found.weights),
            "scale": {"low": scale.low, "high": scale.high},
        }
    ]


def _bars(bars: parts.Bars, _container: Container) -> list[Node]:
    sources = _labels(bars.sources)
    rows: list[Any] = [
        None
        if row is None
        else [
            {
                "index": bar.index,
                "length": bar.length,
                "numbers": list(bar.numbers),
                "remark": bar.remark,
                "before": [_span(span) for span in reversed(bar.before)],
                "after": [_span(span) for span in bar.after],
            }
            for bar in row
        ]
        for row in bars.rows
    ]
    named = {bar["index"] for row in rows for bar in row or ()}
    return [
        {
            "k": "bars",
            "sources": {str(n): sources[n] for n in sorted(named)},
            "queries": None if bars.queries is None else _labels(bars.queries),
            "measures": list(bars.measures),
            "by": bars.by,
            "rows": rows,
            "rest": list(bars.rest),
            "title": spans_of(bars.title),
            "meaning": spans_of(bars.meaning),
            "remarks": bars.remarks(),
        }
    ]


def _most_detailed(found: parts.FirstFitting, container: Container) -> list[Node]:
    """Return the first form: a page has no end."""
    return lowered(found.forms[0], container)


Drawing = Callable[[Any, Container], Sequence[Node]]
DRAWN: dict[type, Drawing] = {
    parts.Text: _text,
    parts.Facts: _facts,
    parts.Table: _table,
    parts.Matrices: _matrices,
    parts.HeatGrid: _heat,
    parts.WeightMap: _map,
    parts.Bars: _bars,
    parts.FirstFitting: _most_detailed,
}
