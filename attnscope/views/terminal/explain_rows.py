"""Tables of an Explanation: a row for every key shown, and one for the rest."""

import numpy as np
from rich.text import Text

from attnscope.report import ExplainedCell, Explanation, Part
from attnscope.views.terminal.contributors import bar_text
from attnscope.views.terminal.grid import (
    INDENT,
    Column,
    dimensions,
    label_cells,
    number,
    numbers,
    put_grid,
    put_indented,
)
from attnscope.views.terminal.labels import Axis, token_name
from attnscope.views.terminal.numbers import NOT_ALLOWED, ZERO
from attnscope.views.terminal.screen import Screen

PARTS = 8  # parts of a dot product that are shown before the rest is summed
_BAR = 10


def put_keys(screen: Screen, e: Explanation, axis: Axis) -> None:
    """Every key with its norm and first numbers."""
    labels = _labels(screen, axis)
    columns = [Column("‖k‖", numbers(e.row.key_norms.tolist(), screen.precision))]
    _put_with_dimensions(screen, "token", labels, columns, e.key_vectors, "k")
    if e.rest is not None:
        _say_rest(screen, e)


def put_scores(screen: Screen, e: Explanation, axis: Axis) -> None:
    """q·k of every key, with the norm and the angle that make it."""
    row, norm = e.row, e.query_steps[-1].norm
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine = row.scores / (norm * row.key_norms.astype(np.float64))
    columns = [
        Column("‖k‖", numbers(row.key_norms.tolist(), screen.precision)),
        Column("cosine", numbers([None if np.isnan(c) else c for c in cosine.tolist()], screen.precision)),
        Column("q·k", numbers(row.scores.tolist(), screen.precision)),
    ]
    put_grid(screen, "key", _labels(screen, axis), columns)


def put_cell(screen: Screen, e: Explanation, cell: ExplainedCell) -> None:
    """One dot product as the sum of its parts, the largest of them one by one."""
    names = [token_name(screen, e.tokens[e.query]), token_name(screen, e.sources[cell.key])]
    bands = any(part.wavelength is not None for part in cell.parts)
    kind = "rotated pairs of dimensions" if bands else "dimensions"
    barred = "" if cell.allowed else "; not allowed by the mask"
    pair = f"{e.query} {names[0]} · {cell.key} {names[1]}"
    put_indented(screen, Text.assemble((pair, "bold"), (f"  ({cell.chosen}{barred})", "dim")))
    put_indented(screen, Text(f"its {kind}, largest first", "dim"))
    shown = cell.parts if len(cell.parts) <= PARTS + 2 else cell.parts[:PARTS]
    left = sum(part.product for part in cell.parts[len(shown) :])
    products: list[float | None] = [part.product for part in shown]
    sums = np.cumsum([part.product for part in shown]).tolist()
    labels = [_dims(part) for part in shown]
    if len(shown) < len(cell.parts):
        labels.append(Text(f"{len(cell.parts) - len(shown)} more", "dim"))
        products, sums = [*products, left], [*sums, cell.total]
    labels.append(Text("sum", "bold"))
    products, sums = [*products, cell.total], [*sums, None]
    blank = [""] * (len(labels) - len(shown))
    columns = [*(_band_columns if bands else _dim_columns)(screen, shown)]
    columns = [Column(c.heading, [*c.cells, *blank], c.style) for c in columns]
    columns.append(Column("adds" if bands else "q × k", numbers(products, screen.precision)))
    columns.append(Column("so far", numbers(sums, screen.precision), "dim"))
    put_grid(screen, "pair" if bands else "dimension", labels, columns)


def _dims(part: Part) -> Text:
    return Text(", ".join(str(dim) for dim in part.dims))


def _dim_columns(screen: Screen, shown: list[Part]) -> list[Column]:
    return [
        Column("q", numbers([part.q[0] for part in shown], screen.precision)),
        Column("k", numbers([part.k[0] for part in shown], screen.precision)),
    ]


def _band_columns(screen: Screen, shown: list[Part]) -> list[Column]:
    lengths = [f"{part.wavelength:,.4g} tokens" if part.wavelength is not None else "never" for part in shown]
    return [
        Column("full turn in", lengths),
        Column("unrotated", numbers([part.before for part in shown], screen.precision), "dim"),
    ]


def in_one_line(screen: Screen, e: Explanation, cell: ExplainedCell) -> Text:
    """A cell's way from its score to what it gives."""

    def said(value: float) -> str:
        return number(float(value), screen.precision)

    row, at = e.row, e.keys.index(cell.key)
    names = f"{e.query} {token_name(screen, e.tokens[e.query])} ← {cell.key} {token_name(screen, e.sources[cell.key])}"
    steps = [f"{said(cell.score)} × {e.scale:.4g} = {said(row.times_scale[at])}"]
    if row.capped is not None:
        steps.append(f"soft-capped {said(row.capped[at])}")
    if row.bias is not None:
        steps.append(f"+ bias {said(row.bias[at])} = {said(row.scaled[at])}")
    if not cell.allowed:
        steps.append("not allowed, so its weight is exactly 0")
    else:
        steps.append(f"exp({said(row.masked[at] - np.float32(e.maximum or 0.0))}) = {said(row.exponentials[at])}")
        steps.append(f"/ {said(e.exponential_sum or 1.0)} = weight {said(row.weights[at])}")
        steps.append(f"× ‖v‖ {said(row.value_norms[at])} = {said(row.weights[at] * row.value_norms[at])}")
    return Text.assemble((names, "bold"), f": {'; '.join(steps)}")


def put_scaled(screen: Screen, e: Explanation, axis: Axis) -> None:
    """From scores to what softmax sees."""
    row = e.row
    columns = [Column("q·k", numbers(row.scores.tolist(), screen.precision))]
    columns.append(Column(f"× {e.scale:.4g}", numbers(row.times_scale.tolist(), screen.precision)))
    if row.capped is not None:
        columns.append(Column(f"cap {e.softcap:g}", numbers(row.capped.tolist(), screen.precision)))
    if row.bias is not None:
        columns.append(Column(f"{e.bias}", numbers(row.bias.tolist(), screen.precision)))
        columns.append(Column("scaled", numbers(row.scaled.tolist(), screen.precision)))
    columns.append(Column("masked", _masked(screen, e)))
    put_grid(screen, "key", _labels(screen, axis), columns)
    if np.isneginf(row.masked).any():
        put_indented(screen, Text(f"{NOT_ALLOWED} not allowed: minus infinity", "dim"))


def put_softmax(screen: Screen, e: Explanation, axis: Axis) -> None:
    """Exponentials, their sum, and weights: of every key, of those left out, and of the head's sink."""
    row, labels = e.row, _labels(screen, axis)
    exponentials, weights, logits = _column(row.exponentials), _column(row.weights), _allowed(e)
    if e.rest is not None:
        labels.append(Text(_rest_name(e), "dim"))
        exponentials.append(e.rest.exponentials)
        weights.append(e.rest.weight)
    if e.sink is not None:
        labels.append(Text("(sink)", "dim"))
        exponentials.append(e.sink.exponential)
        weights.append(e.sink.weight)
        logits.append(e.sink.logit)
    total = float(sum(weight for weight in weights if weight is not None))
    bars = [bar_text(weight or 0.0, _BAR) for weight in weights]
    labels.append(Text("sum", "bold"))
    shifted = [None if logit is None else logit - (e.maximum or 0.0) for logit in logits]
    columns = [
        Column("masked", _spread(e, numbers(logits, screen.precision, none=NOT_ALLOWED))),
        Column("− largest", _spread(e, numbers(shifted, screen.precision))),
        Column("exp", numbers([*exponentials, e.exponential_sum], screen.precision, zero=ZERO)),
        Column("weight", numbers([*weights, total], screen.precision, zero=ZERO)),
        Column("", [*bars, ""], "cyan", left=True),
    ]
    put_grid(screen, "key", labels, columns)


def _spread(e: Explanation, cells: list[str]) -> list[str]:
    """The cells of the keys and of the sink, with blanks for the rest and the sum."""
    return [*cells[: len(e.keys)], *[""] * (e.rest is not None), *cells[len(e.keys) :], ""]


def put_blend(screen: Screen, e: Explanation, axis: Axis) -> None:
    """Each value × its weight, and what that sums to."""
    row, labels = e.row, _labels(screen, axis)
    weights = np.nan_to_num(row.weights).astype(np.float64)
    shares = [weight * vector for weight, vector in zip(weights, e.value_vectors.astype(np.float64), strict=True)]
    given, norms = _column(row.weights), _column(row.value_norms)
    if e.rest is not None:
        labels.append(Text(_rest_name(e), "dim"))
        shares.append(e.rest.blend.astype(np.float64))
        given, norms = [*given, e.rest.weight], [*norms, None]
    labels += [Text("sum", "bold"), Text("output", "bold")]
    shares += [e.blend.astype(np.float64), e.output.astype(np.float64)]
    columns = [
        Column("weight", numbers([*given, None, None], screen.precision, zero=ZERO)),
        Column("‖v‖", numbers([*norms, None, None], screen.precision)),
        Column("α·‖v‖", numbers([float(np.linalg.norm(share)) for share in shares], screen.precision, zero=ZERO)),
    ]
    _put_with_dimensions(screen, "key", labels, columns, np.stack(shares), "α·v")


def _put_with_dimensions(
    screen: Screen, heading: str, labels: list[Text], columns: list[Column], matrix: "np.ndarray", name: str
) -> None:
    """Print a grid with as many dimensions of each row's vector as fit, and a line about the others."""
    used = INDENT + label_cells(heading, labels) + sum(column.width for column in columns)
    shown = dimensions(matrix, screen.width - used, screen.precision)
    put_grid(screen, heading, labels, [*columns, *shown])
    if len(shown) < matrix.shape[1]:
        which = f"the first {len(shown)} of" if shown else "none of the"
        said = f"{which} {matrix.shape[1]} dimensions of {name}; {screen.named('--format json', 'data')} has all"
        put_indented(screen, Text(said, "dim"))


def _column(values: "np.ndarray") -> list[float | None]:
    return [None if np.isnan(value) else value for value in values.tolist()]


def _masked(screen: Screen, e: Explanation) -> list[str]:
    return numbers(_allowed(e), screen.precision, none=NOT_ALLOWED)


def _allowed(e: Explanation) -> list[float | None]:
    """Masked scores; None where a key is not allowed."""
    return [None if np.isneginf(value) else value for value in e.row.masked.tolist()]


def _labels(screen: Screen, axis: Axis) -> list[Text]:
    return [axis.label(i, axis.name_cells(screen.width)) for i in range(len(axis.positions))]


def _rest_name(e: Explanation) -> str:
    return f"{e.rest.allowed if e.rest else 0} more"


def _say_rest(screen: Screen, e: Explanation) -> None:
    """What the tables leave out."""
    if e.rest is None:
        return
    share = number(e.rest.weight, screen.precision)
    parts = [f"{e.rest.allowed} allowed ({share} of the weight)"] if e.rest.allowed else []
    parts += [f"{e.rest.barred} not allowed"] if e.rest.barred else []
    more = screen.named("--top K", "top=K")
    said = f"the heaviest keys are shown; left out: {', '.join(parts)}; {more} shows more"
    put_indented(screen, Text(said, "dim"))
