"""Grids of an Explanation: a row for every key shown, and one for the rest."""

from collections.abc import Iterator, Sequence

import numpy as np

from attnscope.findings.arrays import Floats
from attnscope.findings.explain import ExplainedCell, Explanation, Part
from attnscope.studies.explain.reasons import largest_parts, reason_spans
from attnscope.views.axes import Axis
from attnscope.views.numbers import (
    NO_WEIGHT,
    column_texts,
    digits_for,
    number_text,
    scale_text,
    written,
)
from attnscope.views.parts import (
    Column,
    Facts,
    Strip,
    Strips,
    Table,
    Text,
    ViewPart,
    paragraph,
)
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import TIE, Look, Span, Spans, ours, token_span

PARTS = 8  # parts of a dot product that are shown before the rest is summed


def key_parts(e: Explanation, axis: Axis, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Present every key with its norm and numbers."""
    columns = [Column("‖k‖", column_texts(e.row.key_norms.tolist(), settings.precision))]
    further, name = _dimensions("k", e.key_vectors, settings)
    yield Table("token", columns, axis, further=further, further_name=name, spelled=True)
    if e.rest is not None:
        share = number_text(e.rest.weight, settings.precision)
        if e.rest.allowed:
            parts = [f"{e.rest.allowed} allowed ({share} of the weight)"]
        else:
            parts = []
        if e.rest.barred:
            parts += [f"{e.rest.barred} not allowed"]
        more = settings.named("--top K", "top=K", "; {} shows more")
        text = f"the heaviest keys are shown; left out: {', '.join(parts)}{more}"
        yield paragraph(ours(text, "caption"), indent=1, remark=True)


def _dimensions(
    name: str, matrix: "np.ndarray", settings: DisplaySettings
) -> tuple[list[Column], str]:
    """Present a dimension of every vector as a column."""
    digits = digits_for(matrix, settings.precision)
    columns = [
        Column(f"dim {i}", written(values, digits), "dim")
        for i, values in enumerate(matrix.T.tolist())
    ]
    if settings.format == "page":
        return columns, f"dimensions of {name}"
    suffix = f"dimensions of {name}{settings.named('--json', 'data', '; {} has all')}"
    return columns, "" if settings.data_only else suffix


def score_grid(e: Explanation, axis: Axis, settings: DisplaySettings) -> Table:
    """Present q·k of every key, with the norm and the angle that make it."""
    row = e.row
    norm = e.query_steps[-1].norm
    precision = settings.precision
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine = row.scores / (norm * row.key_norms.astype(np.float64))
    columns = [
        Column("‖k‖", column_texts(row.key_norms.tolist(), precision)),
        Column(
            "cosine", column_texts([None if np.isnan(c) else c for c in cosine.tolist()], precision)
        ),
        Column("q·k", column_texts(row.scores.tolist(), precision)),
    ]
    return Table("key", columns, axis)


def cell_parts(
    e: Explanation, cell: ExplainedCell, settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Present one dot product as the sum of its parts, the largest of them one by one."""
    bands = _is_rotated(cell)
    noun = "rotated pairs of dimensions" if bands else "dimensions"
    masked = "" if cell.allowed else "; not allowed by the mask"
    label = Span(f"  ({cell.chosen}{masked})", "dim")
    yield paragraph((*_pair(e, cell, "×"), label), indent=1)
    turns = "; a pair turns once in so many tokens; unrotated: what it adds before it turns" * bands
    yield paragraph(ours(f"its {noun}, largest first{turns}", "caption"), indent=1)
    shown_parts = cell.parts if len(cell.parts) <= PARTS + 2 else cell.parts[:PARTS]
    left = sum(part.product for part in cell.parts[len(shown_parts) :])
    products: list[float | None] = [part.product for part in shown_parts]
    sums = np.cumsum([part.product for part in shown_parts]).tolist()
    labels = [ours("+".join(str(dim) for dim in part.dims)) for part in shown_parts]
    if len(shown_parts) < len(cell.parts):
        labels.append(ours(f"{len(cell.parts) - len(shown_parts)} more", "dim"))
        products = [*products, left]
        sums = [*sums, cell.total]
    labels.append(ours("sum", "bold"))
    products = [*products, cell.total]
    sums = [*sums, None]
    columns: list[Column] = []
    for heading, look, cells in (_band_cells if bands else _dim_cells)(
        shown_parts, settings.precision
    ):
        columns.append(Column(heading, [*cells, *[""] * (len(labels) - len(shown_parts))], look))
    columns.append(Column("adds" if bands else "q × k", column_texts(products, settings.precision)))
    columns.append(Column("so far", column_texts(sums, settings.precision), "dim"))
    yield Table("pair" if bands else "dimension", columns, labels=labels)
    if bands:
        yield from _unrotated_strips(e, cell, settings)


def product_strips(cell: ExplainedCell, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Present q, k, their products and the running sum, dimension by dimension, as cells of colour."""
    if len(cell.parts) < 2:
        return
    q = [value for part in cell.parts for value in part.q]
    k = [value for part in cell.parts for value in part.k]
    strips = _strips(cell, q, k, settings)
    yield strips
    order = f"{len(q)} dimensions, the largest product first"
    if _is_rotated(cell):
        order = f"{len(q)} dimensions as rotated, pair by pair, the largest sum first"
    yield _order(order, strips, settings)


def _order(text: str, strips: Strips, settings: DisplaySettings) -> Text:
    """Say what the order of cells is, and what their strongest colours stand for."""
    return paragraph(ours(f"{text}; {strips.limits(settings.precision)}", "caption"), indent=1)


def _is_rotated(cell: ExplainedCell) -> bool:
    return any(part.wavelength is not None for part in cell.parts)


def _strips(
    cell: ExplainedCell, q: Sequence[float], k: Sequence[float], settings: DisplaySettings
) -> Strips:
    """Lay out q and k, whose dimensions are in the order of the cell's parts."""
    products = np.multiply(q, k)
    sums = np.cumsum(products).tolist()
    strips = [
        Strip("q", q),
        Strip("k", k),
        Strip("q × k", products.tolist()),
        Strip("so far", sums, ours(number_text(sums[-1], settings.precision))),
    ]
    return Strips([f"dim {dim}" for part in cell.parts for dim in part.dims], strips, indent=1)


def _unrotated_strips(
    e: Explanation, cell: ExplainedCell, settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Present the same of q and k before their rotation."""
    dims = [dim for part in cell.parts for dim in part.dims]
    q, k = (steps[-2].values[dims].tolist() for steps in (e.query_steps, cell.key_steps))
    strips = _strips(cell, q, k, settings)
    yield _order("q and k before the rotation, in the same order", strips, settings)
    yield strips


def _pair(e: Explanation, cell: ExplainedCell, between: str) -> Spans:
    query = token_span(e.tokens, e.query, "bold")
    key = token_span(e.sources, cell.key, "bold")
    return Span(f"{e.query} ", "bold"), query, Span(f" {between} {cell.key} ", "bold"), key


def _dim_cells(parts: list[Part], precision: int) -> Iterator[tuple[str, Look, list[str]]]:
    yield "q", "", column_texts([part.q[0] for part in parts], precision)
    yield "k", "", column_texts([part.k[0] for part in parts], precision)


def _band_cells(parts: list[Part], precision: int) -> Iterator[tuple[str, Look, list[str]]]:
    turns = []
    for part in parts:
        if part.wavelength is not None:
            turns.append(f"{_four_digits(part.wavelength)} tokens")
        else:
            turns.append("never")
    yield "full turn in", "", turns
    yield "unrotated", "dim", column_texts([part.before for part in parts], precision)


def _four_digits(value: float) -> str:
    """Write a number with four digits, without an exponent."""
    return f"{float(f'{value:.4g}'):,.{max(0, 4 - len(str(int(value))))}f}"


def in_one_line(
    e: Explanation, cell: ExplainedCell, settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Show a cell's weight, and its way from its score to its contribution."""

    def said(value: float) -> str:
        return number_text(float(value), settings.precision)

    row = e.row
    at = e.keys.index(cell.key)
    weight = said(row.weights[at])
    yield paragraph((*_pair(e, cell, "←"), Span(f": weight {weight}", "bold")), indent=1)
    steps = [
        f"q·k {said(cell.score)} {scale_text(e.scale, e.head_width)} = {said(row.times_scale[at])}"
    ]
    if row.capped is not None:
        steps.append(f"soft-capped {said(row.capped[at])}")
    parts = _bias_parts(e)
    if parts:
        added = "".join(f" + {name} {said(values[at])}" for name, values in parts.items())
        steps.append(f"{added.strip()} = {said(row.scaled[at])}")
    if not cell.allowed:
        steps.append("not allowed, so its weight is exactly 0")
    else:
        sink = "" if e.sink is None else f", of which {said(e.sink.exponential)} is the sink's,"
        steps.append(
            f"exp({said(row.masked[at])} − largest {said(e.maximum or 0.0)}) = {said(row.exponentials[at])}"
        )
        steps.append(f"/ sum {said(e.exponential_sum or 1.0)}{sink} = weight {weight}")
        steps.append(
            f"× ‖v‖ {said(row.value_norms[at])} = {said(row.weights[at] * row.value_norms[at])}"
        )
    lines = [("how", Text([*map(ours, steps)], "; "))]
    if cell.reason is not None:
        lines += [("why", Text([reason_spans(e, cell, cell.reason, settings)]))]
    if summands := largest_parts(cell, settings):
        lines += [("q·k", Text([ours(summands)]))]
    yield Facts(lines, remark=False, indent=1, look="bold")


def _bias_parts(e: Explanation) -> dict[str, Floats]:
    """Return what is added to scaled scores, by its name; of a disentangled bias, its parts."""
    if e.row.bias is None:
        return {}
    disentangled = {"q·position": e.row.content_position, "position·k": e.row.position_content}
    parts = {name: values for name, values in disentangled.items() if values is not None}
    return parts or {"bias": e.row.bias}


def scaled_parts(e: Explanation, axis: Axis, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Present the steps from scores to the input of softmax."""
    row = e.row
    precision = settings.precision
    steps = {"q·k": row.scores, scale_text(e.scale, e.head_width): row.times_scale}
    steps |= {f"cap {e.softcap:g}": row.capped} if row.capped is not None else {}
    if parts := _bias_parts(e):
        steps |= {**parts, "scaled": row.scaled}
    columns = [
        Column(heading, column_texts(values.tolist(), precision))
        for heading, values in steps.items()
    ]
    columns.append(Column("masked", column_texts(_allowed(e), precision, none=NO_WEIGHT)))
    yield Table("key", columns, axis)
    if np.isneginf(row.masked).any():
        yield paragraph(
            ours(f"{NO_WEIGHT}{TIE}is not allowed: minus infinity", "caption"),
            indent=1,
            remark=True,
        )


def softmax_grid(e: Explanation, axis: Axis, settings: DisplaySettings) -> Table:
    """Present exponentials, their sum, and weights, of shown and hidden keys and the head's sink."""
    row = e.row
    precision = settings.precision
    labels: list[Spans] = []
    exponentials = _column(row.exponentials)
    weights = _column(row.weights)
    logits = _allowed(e)
    if e.rest is not None:
        labels.append(ours(_rest_name(e), "dim"))
        exponentials.append(e.rest.exponentials)
        weights.append(e.rest.weight)
    if e.sink is not None:
        labels.append(ours("(sink)", "dim"))
        exponentials.append(e.sink.exponential)
        weights.append(e.sink.weight)
        logits.append(e.sink.logit)
    total = float(sum(weight for weight in weights if weight is not None))
    labels.append(ours("sum", "bold"))
    shifted = [None if logit is None else logit - (e.maximum or 0.0) for logit in logits]
    columns = [
        Column("masked", _spread(e, column_texts(logits, precision, none=NO_WEIGHT))),
        Column("− largest", _spread(e, column_texts(shifted, precision))),
        Column("exp", column_texts([*exponentials, e.exponential_sum], precision, zero=NO_WEIGHT)),
        Column("weight", column_texts([*weights, total], precision, zero=NO_WEIGHT)),
    ]
    return Table("key", columns, axis, labels, bars=[*weights, None], measured=len(columns) - 1)


def _spread(e: Explanation, cells: list[str]) -> list[str]:
    """Spread cells over the keys and the sink, with blanks for the remaining keys and the sum."""
    return [*cells[: len(e.keys)], *[""] * (e.rest is not None), *cells[len(e.keys) :], ""]


def blend_grid(e: Explanation, axis: Axis, settings: DisplaySettings) -> Table:
    """Present each value × its weight, and their sum."""
    row = e.row
    precision = settings.precision
    labels: list[Spans] = []
    weights = np.nan_to_num(row.weights).astype(np.float64)
    shares = [
        weight * vector
        for weight, vector in zip(weights, e.value_vectors.astype(np.float64), strict=True)
    ]
    shown_weights = _column(row.weights)
    norms = _column(row.value_norms)
    if e.rest is not None:
        labels.append(ours(_rest_name(e), "dim"))
        shares.append(e.rest.blend.astype(np.float64))
        shown_weights = [*shown_weights, e.rest.weight]
        norms = [*norms, None]
    labels += [ours("sum", "bold"), ours("output", "bold")]
    shares += [e.blend.astype(np.float64), e.output.astype(np.float64)]
    columns = [
        Column("weight", column_texts([*shown_weights, None, None], precision, zero=NO_WEIGHT)),
        Column("‖v‖", column_texts([*norms, None, None], precision)),
        Column(
            "‖α·v‖",
            column_texts(
                [float(np.linalg.norm(share)) for share in shares], precision, zero=NO_WEIGHT
            ),
        ),
    ]
    further, name = _dimensions("α·v", np.stack(shares), settings)
    return Table("key", columns, axis, labels, further=further, further_name=name)


def _column(values: "np.ndarray") -> list[float | None]:
    return [None if np.isnan(value) else value for value in values.tolist()]


def _allowed(e: Explanation) -> list[float | None]:
    """Return masked scores; None for a key that is not allowed."""
    return [None if np.isneginf(value) else value for value in e.row.masked.tolist()]


def _rest_name(e: Explanation) -> str:
    return f"{e.rest.allowed if e.rest else 0} more"
