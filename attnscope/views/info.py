"""What is in a model, and what its attention takes, in; text for a terminal, or JSON, out."""

from collections.abc import Sequence
from typing import Any

import msgspec

from attnscope.cost import TOP, WINDOW, CostRow
from attnscope.visible import visible

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_HEADINGS = ("tokens", "q·k", "weights·v", "projections", "scores", "weights", "kept")


def as_json(description: msgspec.Struct, cost: Sequence[CostRow] | None) -> bytes:
    """The description as strict JSON on one line, with the rows of the cost table under `cost` where there are any."""
    facts: dict[str, Any] = msgspec.to_builtins(description)
    return msgspec.json.encode(facts if cost is None else {**facts, "cost": cost}) + b"\n"


def as_text(description: msgspec.Struct, cost: Sequence[CostRow] | None) -> str:
    """The description in aligned lines, nested parts under a heading, and the cost table below it."""
    lines = _lines(msgspec.to_builtins(description), indent="")
    if cost is not None:
        lines += ["", *cost_lines(cost)]
    return "\n".join(lines) + "\n"


def cost_lines(rows: Sequence[CostRow]) -> list[str]:
    """The cost table: one line for every length of text, and what its columns mean."""
    cells = [_HEADINGS, *(_cost_cells(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADINGS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    lines = [line + ("" if row.fits else "  *") for line, row in zip(lines, [_FITS, *rows], strict=True)]
    return [
        "cost of attention, over all layers and heads of one text",
        *lines,
        *(["* longer than the model's positions"] if not all(row.fits for row in rows) else []),
        "q·k, weights·v (of the pairs that the mask allows) and projections in FLOPs; scores and weights in bytes as",
        f"float32; kept: what attnscope holds instead, the top {TOP} sources and six statistics of every row and a",
        f"{WINDOW}×{WINDOW} window of scores, masked and weights",
    ]


_FITS = CostRow(0, 0, 0, 0, 0, 0, 0, fits=True)


def _cost_cells(row: CostRow) -> tuple[str, ...]:
    flops = (row.qk_flops, row.av_flops, row.projection_flops)
    sizes = (row.scores_bytes, row.weights_bytes, row.kept_bytes)
    return (
        f"{row.tokens:,}",
        *(_scaled(n, 1000, _DECIMAL) for n in flops),
        *(_scaled(n, 1024, _BINARY) for n in sizes),
    )


def _scaled(number: int, step: int, units: Sequence[str]) -> str:
    """Three digits and a unit: 1048576 as `1.00 MiB`."""
    value, unit = float(number), 0
    while value >= 999.5 and unit < len(units) - 1:
        value, unit = value / step, unit + 1
    digits = 0 if unit == 0 else max(0, 3 - len(str(int(value))))
    return f"{value:.{digits}f} {units[unit]}".rstrip()


def _lines(facts: dict[str, Any], indent: str) -> list[str]:
    plain = {name: value for name, value in facts.items() if value not in (None, "", [], {}) and not _nested(value)}
    width = max((len(name) for name in plain), default=0)
    lines = [f"{indent}{_label(name):<{width}}  {_shown(value)}" for name, value in plain.items()]
    for name, value in facts.items():
        if value and _nested(value):
            parts = (
                value if isinstance(value, dict) else {part.pop(next(iter(part))): part for part in map(dict, value)}
            )
            lines += ["", f"{indent}{_label(name)}", *_lines(parts, indent + "  ")]
    return lines


def _nested(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def _label(name: str) -> str:
    return visible(name.replace("_", " "))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(map(_shown, value)) if isinstance(value, list) else visible(str(value))
