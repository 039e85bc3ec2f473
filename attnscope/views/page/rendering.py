"""Parts as the JSON that a page draws: elements, and the data of its pictures. All text is spelled here."""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from attnscope.findings.arrays import Matrix
from attnscope.views import parts
from attnscope.views.axes import Axis
from attnscope.views.head_layout import lay_out_heads
from attnscope.views.numbers import MASKED, MINUS, number_text
from attnscope.views.page.container import Container
from attnscope.views.page.elements import (
    Element,
    element,
    hidden_heading,
    meter,
    plain,
    scrolling,
    spans_of,
    text_of,
)
from attnscope.views.pictures import RELATIVE, percent
from attnscope.views.scales import LogScale, strip_scale

Node = dict[str, Any] | Element
# Width of an indentation in rem.
_INDENT = 1.25
# Columns from which panels are wide.
_MOST_FRAMES = 160  # columns of a map over seconds; neighbouring frames are summed
_HEAD = re.compile(r"(L\d+H\d+) \w")  # the title of the matrix of a head, with its kind
_WIDE = 24
_CELL = 1.4  # width of a cell of a strip in rem, if there is room
_KEY_CELLS = 8  # cells on each side of zero in the key of strips
# Items of a list that are shown if it is folded, and longest list that is not; in a cell of a table, these are fewer.
_SHOWN = 12
_FOLDED = 18
_SHOWN_IN_CELL = 3
_FOLDED_IN_CELL = 5


def render(view_parts: Iterable[Any], container: Container) -> list[Node]:
    """Return the nodes of some parts; their arrays go into the container."""
    return [node for part in view_parts for node in DRAWN[type(part)](part, container)]


def _indented(indent: int) -> dict[str, str] | None:
    if indent:
        return {"marginLeft": f"{indent * _INDENT}rem"}
    return None


def _text(text: parts.Text, _container: Container) -> list[Node]:
    if not text.items:
        return []
    return [
        element(
            "div",
            *_items(text),
            look="remark" if text.remark else "text",
            style=_indented(text.indent),
        )
    ]


def _items(text: parts.Text, shown: int = _SHOWN, longest: int = _FOLDED) -> list[Element]:
    """Return the items of a text, which lines do not break where they need not; a long list is folded."""
    if len(text.items) == 1:
        return spans_of(text.items[0])
    mark = text.between.rstrip()  # a line does not begin with it
    space = text.between[len(mark) :]
    last = len(text.items) - 1
    items = [
        element("span", *spans_of(item), *([mark] if mark and n < last else []), look="item")
        for n, item in enumerate(text.items)
    ]
    apart = [child for item in items for child in (space, item)][1:]
    if len(items) <= longest:
        return apart
    limit = 2 * shown - 1
    count = len(items) - shown + text.unlisted
    more = element("span", f"… {count} more", look="item dim")
    rest = apart[limit + 1 :]
    if text.unlisted:
        end = element("span", f"… {text.unlisted} more, not listed here", look="item dim")
        rest += [space, end]
    return [element("details", element("summary", *apart[:limit], " ", more), *rest)]


def _cell(cell: Any, shown: int = _SHOWN, longest: int = _FOLDED) -> list[Element]:
    if isinstance(cell, parts.Text):
        return _items(cell, shown, longest)
    return spans_of(parts.joined(cell))


def _facts(facts: parts.Facts, _container: Container) -> list[Node]:
    lines = [
        element("div", element("dt", name), element("dd", *cell))
        for name, value in facts.lines
        if (cell := _cell(value)) or name != "note"
    ]
    if lines:
        return [element("dl", *lines, look="facts", style=_indented(facts.indent))]
    return []


def _table(table: parts.Table, _container: Container) -> list[Node]:
    """Return a table; its further columns, if they have a name, are folded into a table of their own."""
    if not (table.further and table.further_name):
        return [_grid(table, [*table.columns, *table.further])]
    name = f"{len(table.further)} {table.further_name}"
    bare = msgspec.structs.replace(table, bars=None)
    return [
        _grid(table, table.columns),
        element("details", element("summary", name, look="dim"), _grid(bare, table.further)),
    ]


def _grid(table: parts.Table, columns: Sequence[parts.Column]) -> Element:
    labels = [] if table.keys is None else _labelled(table.keys)
    labels += [spans_of(label) for label in table.labels]
    headings = [_cell(column.heading) for column in columns]
    label_heading = [element("th", table.heading, scope="col")] if labels else []
    name_cells = [
        element("th", *heading, scope="col", look="left" if column.left else "")
        if heading
        else element("td")
        for heading, column in zip(headings, columns, strict=True)
    ]
    if table.bars is not None:
        name_cells.insert(table.measured, hidden_heading("bar"))
    count = max(len(labels), *(len(column.cells) for column in columns), 0)
    rows = [element("tr", *_table_row(table, columns, labels, row)) for row in range(count)]
    title = table.heading or ", ".join(map(plain, headings)) or "table"
    head = element("thead", element("tr", *label_heading, *name_cells))
    return scrolling(title, element("table", head, element("tbody", *rows), look="data"))


def _table_row(
    table: parts.Table, columns: Sequence[parts.Column], labels: Sequence[list[Element]], row: int
) -> list[Element]:
    cells = []
    if labels:
        cells = [element("th", *(labels[row] if row < len(labels) else ()), scope="row")]
    for index, column in enumerate(columns):
        if table.bars is not None and index == table.measured:
            share = table.bars[row] if row < len(table.bars) else None
            cells.append(element("td", *([] if share is None else [meter(share)]), look="bars"))
        look = " ".join(
            [*(["left"] if column.left else []), *([f"look-{column.look}"] if column.look else [])]
        )
        cells.append(
            element(
                "td",
                *(
                    _cell(column.cells[row], _SHOWN_IN_CELL, _FOLDED_IN_CELL)
                    if row < len(column.cells)
                    else ()
                ),
                look=look,
            )
        )
    return cells


def _labelled(axis: Axis) -> list[list[Element]]:
    """Return number and name of every entry, as elements."""
    numbers = [element("span", axis.number(n), look="number") for n in range(len(axis.positions))]
    if not axis.names:
        return [[number_element] for number_element in numbers]
    return [
        [number_element, " ", *spans_of((name,))]
        for number_element, name in zip(numbers, axis.names, strict=True)
    ]


def _axis(axis: Axis) -> dict[str, Any]:
    names = [text_of(name) for name in axis.names] or [""] * len(axis.positions)
    labels = [(axis.number(n), name) for n, name in enumerate(names)]
    if axis.kind == "layer":  # the letter of its kind is no part of the name of a head
        labels = [number.partition(" ")[::2] for number, _ in labels]
    return {"kind": axis.kind, "labels": [list(label) for label in labels]}


def _said_of_heads(panel: parts.Panel) -> list[list[str]]:
    """Say of every head its role, its number, and what shows its matrix."""
    said = [[""] * len(row) for row in panel.texts]
    for (row, column), value in np.ndenumerate(panel.matrix):
        head = panel.rows.number(row).partition(" ")[0] + panel.columns.number(column)
        known = [] if panel.names is None else [panel.names[row][column]]
        if not np.isnan(value):
            known.append(str(np.float32(value)).replace("-", MINUS))
        elif panel.names is None:
            known.append(panel.texts[row][column])
        of_head = " ".join(filter(None, known))
        said[row][column] = f"{head}: {of_head} · its matrix: attnscope run TEXT --head {head}"
    return said


def _panel(panel: parts.Panel, container: Container) -> dict[str, Any]:
    label = plain(spans_of(panel.title)) or panel.name
    node: dict[str, Any] = {}
    if head := _HEAD.match(label):
        node["id"] = head[1]
    texts = said = colours = None
    if panel.columns.kind == "head":
        texts = [list(row) for row in panel.texts]
        said = _said_of_heads(panel)
    if panel.colours is not None:
        colours = [list(row) for row in panel.colours]
    return node | {
        "name": panel.name,
        "label": label,
        "title": spans_of(panel.title),
        "matrix": container.exact(panel.matrix),
        "texts": texts,
        "said": said,
        "rows": _axis(panel.rows),
        "columns": _axis(panel.columns),
        "scale": {
            "low": panel.scale.low,
            "high": panel.scale.high,
            "signed": panel.scale.signed,
            "shape": panel.scale.shape,
        },
        "digits": {"decimals": panel.digits.decimals, "scientific": panel.digits.scientific},
        "masked": [n for n, masked in enumerate(panel.masked_rows) if masked],
        "maskedWord": MASKED,
        "arithmetic": spans_of(panel.arithmetic),
        "colours": colours,
    }


def _panels(grid: parts.Matrices, container: Container) -> list[Node]:
    widest = max((len(panel.columns.positions) for panel in grid.panels), default=0)
    look = ""
    if len(grid.panels) == 1:
        look = "alone"
    elif widest > _WIDE:
        look = "wide"
    panels = [_panel(panel, container) for panel in grid.panels]
    fuller = [f"A fuller colour is {panel.fuller}." for panel in grid.panels if panel.fuller]
    return [
        {"k": "panels", "look": look, "panels": panels},
        *(element("p", text, look="remark") for text in fuller),
    ]


def _log_scale(weights: Matrix) -> dict[str, Any]:
    """Return the members of a panel whose colours follow logarithms of weights."""
    scale = LogScale.of(weights)
    limits = {"low": float(np.log10(scale.low)), "high": float(np.log10(scale.high))}
    return {"scale": {**limits, "signed": False}, "log": True, "masked": []}


def _map(pooled: parts.WeightMap, container: Container) -> list[Node]:
    panel = {
        "name": "map",
        "label": f"map of {pooled.of}",
        "title": [pooled.of],
        "arithmetic": [
            f"of runs of queries (rows) on runs of {pooled.first_keys.kind}s (columns), as log₁₀"
        ],
        "matrix": container.exact(pooled.weights),
        "rows": _runs(pooled.queries),
        "columns": _runs(pooled.keys),
        **_log_scale(pooled.weights),
    }
    return [{"k": "panels", "look": "alone", "panels": [panel]}]


def _sound(sound_map: parts.SoundMap, container: Container) -> list[Node]:
    factor = -(-len(sound_map.levels) // _MOST_FRAMES)
    starts = np.arange(0, len(sound_map.levels), factor)
    weights = np.add.reduceat(sound_map.weights, starts, axis=1).astype(np.float32)
    paths = []
    if sound_map.path:
        paths = [sound_map.path_of(row) for row in range(len(weights))]
    panel = {
        "name": "map",
        "label": f"map of {sound_map.of} over seconds",
        "title": [sound_map.of],
        "arithmetic": [f"{sound_map.meaning}, as log₁₀"],
        "matrix": container.exact(weights),
        "rows": _axis(sound_map.rows),
        "columns": {
            "kind": "second",
            "labels": [[f"{sound_map.seconds[start]:.2f} s", ""] for start in starts.tolist()],
        },
        **_log_scale(weights),
        "levels": np.maximum.reduceat(np.array(sound_map.levels), starts).tolist(),
        "path": [[frames.start / factor, frames.stop / factor] for frames in paths],
    }
    return [{"k": "panels", "look": "alone", "panels": [panel]}]


def _runs(starts: Sequence[int]) -> dict[str, Any]:
    return {
        "kind": "map",
        "labels": [[f"{a}" if b - a == 1 else f"{a}–{b - 1}", ""] for a, b in pairwise(starts)],
    }


def _bars(bars: parts.Bars, _container: Container) -> list[Node]:
    queries = None if bars.queries is None else _labelled(bars.queries)
    sources = _labelled(bars.sources)
    query_heading = [] if queries is None else [element("th", "query", scope="col")]
    head = [*query_heading, element("th", "source", scope="col"), hidden_heading("bar")]
    head += [element("th", measure, scope="col") for measure in bars.measures]
    bodies = [
        element("tbody", *_bars_of_row(bars, n, None if queries is None else queries[n], sources))
        for n in range(len(bars.rows))
    ]
    shaded_text: list[Element] = [
        element("strong", *spans_of(bars.title)),
        " ",
        element("span", *spans_of(bars.meaning), look="dim"),
    ]
    table = element(
        "table", element("thead", element("tr", *head)), *bodies, look="data contributors"
    )
    remarks = [element("p", f"{mark} {meaning}", look="remark") for mark, meaning in bars.remarks()]
    label = plain(spans_of(bars.title)) or "contributors"
    return [
        element(
            "section", element("p", *shaded_text, look="text"), scrolling(label, table), *remarks
        )
    ]


def _bars_of_row(
    bars: parts.Bars, row: int, query: list[Element] | None, sources: Sequence[list[Element]]
) -> list[Element]:
    """Return the lines of one query: its sources, and the unlisted rest."""
    name = [] if query is None else [element("th", *query, scope="row")]
    blank = [element("td")] * len(name)
    ranked = bars.rows[row]
    unlisted = bars.row_remainders()[row]
    lines = []
    for rank, bar in enumerate(ranked or ()):
        numbers = [
            element("td", number_text, look="" if n == bars.by else "dim")
            for n, number_text in enumerate(bar.numbers)
        ]
        before = []
        if bar.before:
            before = [element("span", *spans_of(tuple(reversed(bar.before))), " ", look="dim")]
        after = []
        if bar.after:
            after = [element("span", " ", *spans_of(tuple(bar.after)), look="dim")]
        remark = []
        if bar.remark is not None:
            remark = [element("abbr", bar.remark[0], title=bar.remark[1])]
        source = element("td", *before, *sources[bar.index], *after, *remark, look="left")
        length = element("td", meter(bar.length), look="bars")
        lines.append(element("tr", *(blank if rank else name), source, length, *numbers))
    if ranked is None:
        lines.append(element("tr", *name, element("td", "nothing to rank", look="left dim")))
    if unlisted is not None:
        cells = (
            element("td", unlisted[0], look="left dim"),
            element("td"),
            element("td", unlisted[1], look="dim"),
        )
        lines.append(element("tr", *blank, *cells))
    return lines


def _strip_cell(colour: str, share: float, **properties: Any) -> Element:
    mixed = f"color-mix(in srgb,var(--{colour}) {share * 100:.0f}%,transparent)"
    return element("span", style={"background": mixed}, **properties)


def _strips(strips: parts.Strips, _container: Container) -> list[Node]:
    """Return lines of cells, each of which says its number to a pointer."""
    lines = []
    for strip in strips.strips:
        largest = strip_scale(strip.values).high or 1.0
        cells = []
        for name, value in zip(strips.cells, strip.values, strict=True):
            said = f"{name}: {number_text(value, 4)}"
            share = abs(value) / largest
            cells.append(_strip_cell("bar" if value > 0 else "less", share, title=said))
        cell_line = element("span", *cells, look="cells", aria_hidden="true")
        end = element("span", *spans_of(strip.end))
        lines.append(element("div", element("span", strip.name, look="dim"), cell_line, end))
    steps = range(1, _KEY_CELLS + 1)
    key = [*(("less", n) for n in reversed(steps)), *(("bar", n) for n in steps)]
    colours = [_strip_cell(name, n / _KEY_CELLS) for name, n in key]
    halves = colours[:_KEY_CELLS], colours[_KEY_CELLS:]
    scale: list[Element] = [element("span", "scale", look="dim"), MINUS]
    scale += [element("span", *halves[0], look="cells"), "0"]
    scale += [element("span", *halves[1], look="cells"), "+"]
    lines.append(element("div", *scale, look="dim"))
    style = {"--cells": f"{_CELL * len(strips.cells):g}rem"}
    return [element("div", *lines, look="strips", style=style | (_indented(strips.indent) or {}))]


def _pictures(pictures: parts.Pictures, container: Container) -> list[Node]:
    """Return maps on pictures; maps on the same picture share its pixels."""
    pixels: dict[bytes, dict[str, Any]] = {}
    nodes = []
    for picture in pictures.maps:
        key = picture.pixels.tobytes()
        if key not in pixels:
            pixels[key] = container.picture(picture.pixels)
        node = {
            "title": spans_of(picture.title),
            "label": plain(spans_of(picture.title)),
            "pixels": pixels[key],
            "weights": container.exact(picture.weights),
            "beside": [[name, percent(share)] for name, share in picture.shares],
            "facts": list(picture.facts),
            "query": picture.query,
            "scale": {"low": 0, "high": picture.scale.high, "signed": False, "shape": "sqrt"},
        }
        nodes.append(node)
    return [
        {
            "k": "pictures",
            "caption": spans_of(pictures.caption),
            "maps": nodes,
            "relative": RELATIVE if pictures.relative else "",
            "facts": pictures.facts,
            "across": None
            if pictures.places is None
            else len(lay_out_heads(pictures.places).columns),
        }
    ]


Drawing = Callable[[Any, Container], Sequence[Node]]
DRAWN: dict[type, Drawing] = {
    parts.Text: _text,
    parts.Facts: _facts,
    parts.Table: _table,
    parts.Matrices: _panels,
    parts.WeightMap: _map,
    parts.SoundMap: _sound,
    parts.Bars: _bars,
    parts.Strips: _strips,
    parts.Pictures: _pictures,
    # The first form: a page has no end.
    parts.FirstFitting: lambda fitting, container: render(fitting.forms[0], container),
}
