"""The matrices of layers without softmax: signed, with what decays and writes each token, and the strongest sources."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from msgspec import structs

from attnscope.base.layer_kinds import MIXING
from attnscope.findings.arrays import Array, Matrix
from attnscope.findings.heads import Pooled
from attnscope.findings.mixing import Mixing, ReadKey
from attnscope.findings.run import Report, TextReport
from attnscope.studies.run.row_list import LISTED, row_table
from attnscope.studies.screens.contributors import fitted
from attnscope.studies.screens.header import RANDOM_WEIGHTS
from attnscope.studies.screens.overview import weight_map
from attnscope.studies.screens.stages import text_axes
from attnscope.views.axes import Axis, token_axis
from attnscope.views.numbers import (
    NO_WEIGHT,
    Digits,
    column_texts,
    digits_for,
    number_text,
    written,
)
from attnscope.views.parts import (
    GAP,
    Bar,
    Bars,
    Column,
    Facts,
    Matrices,
    Panel,
    Strip,
    Strips,
    Table,
    Text,
    ViewPart,
    paragraph,
)
from attnscope.views.scales import WEIGHTS, Scale, scale_for
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import TIE, Span, headed, ours, token_span

# names of how strongly a token is written, by kind of layer
WRITES = {
    "gated delta": "β",
    "kimi delta": "β",
    "mamba": "Δ",
    "mamba-1": "Δ",
    "rg-lru": "w",
    "mlstm": "eⁱ",
}
_MEANING = "half-life: tokens until half of the state is left, at the decay of this token"
_WRITTEN = {
    "β": "; β: how much of it is written",
    "Δ": "; Δ: the step with which it is written",
    "w": "; w: input gate × √(1 − decay²), with which it is written",
    "eⁱ": "; eⁱ: the exponential gate with which it is written",
}
_FORMULAS = {
    "gated delta": "M = tril(QKᵀ⊙Γ) (I + tril(β KKᵀ⊙Γ, −1))⁻¹ β",
    "kimi delta": "M = tril(QKᵀ⊙Γ) (I + tril(β KKᵀ⊙Γ, −1))⁻¹ β, Γ of each channel",
    "mamba": "M = tril(CBᵀ⊙Γ) Δ + D",
    "mamba-1": "M = tril(CBᵀ⊙Γ) Δ + D, Γ of each state",
    "rwkv": "M = softmax(k + decay), with u on the token itself",
    "rg-lru": "M = tril(Γ) w",
    "mlstm": "M = tril(QKᵀ⊙Γ) eⁱ, each row divided by max(|its sum|, 1)",
    "lightning": "M = tril(QKᵀ⊙Γ)",
    "differential": "M = α − λα′, the weights of head h and of the one half the heads further on",
}
# what stands beside the decayed products of a row
_RESTS = {"gated delta": "delta rule", "kimi delta": "delta rule", "mamba": "skip", "mamba-1": "skip",
          "differential": "−λα′"}  # fmt: skip
_MOST_OF_LAYER = 3  # heads that are drawn one below another
SHARE = "share of |M|"  # name of the numbers of thumbnails and maps


def present_mixing(
    report: Report, text: TextReport, mixing: Mixing, settings: DisplaySettings, *, heat: bool
) -> Iterator[ViewPart]:
    """Present every head: its matrix, its rows, and the strongest sources; many heads as thumbnails."""
    every = range(len(mixing.units))
    if (
        mixing.matrix is not None
        and text.queries
        and (heat or settings.brief)
        and len(every) > _MOST_OF_LAYER
    ):
        yield GAP
        yield thumbnails(text, mixing, mixing.matrix)
        return
    for unit in every:
        yield GAP
        yield _title(report, text, mixing, unit, settings)
        yield from _ranked(mixing, unit, settings)
        yield from _present_head(text, mixing, unit, settings, heat)


def _title(
    report: Report, text: TextReport, mixing: Mixing, unit: int, settings: DisplaySettings
) -> ViewPart:
    badge = RANDOM_WEIGHTS if report.provenance.weights == "random" else ()
    of_text = f"text {text.index}  " if len(report.texts) > 1 else ""
    reason = mixing.chosen[unit] if not settings.data_only else None
    remarks = f"  {of_text}{mixing.kinds[unit]}{_channel(mixing, unit)}" + (
        f"  {reason}" if reason else ""
    )
    return paragraph((Span(_name(mixing, unit), "title"), *badge, *ours(remarks)))


def _channel(mixing: Mixing, unit: int) -> str:
    """Say what a head is in a layer of channels."""
    layer, head = mixing.units[unit]
    count = mixing.channels.get(layer) if isinstance(layer, int) else None
    if count is None:
        return ""
    if head == "mean":
        return f", mean of the matrices of all {count:,} channels"
    return f", channel {head} of {count:,}"


def _ranked(mixing: Mixing, unit: int, settings: DisplaySettings) -> Iterator[ViewPart]:
    """List the heads that the shown one was chosen from."""
    layer = mixing.units[unit].layer
    heads = [head for head in mixing.ranked if head.layer == layer]
    if not heads or settings.data_only:
        return
    items = [ours(f"H{head.head} {head.share:.2f}") for head in heads]
    yield Facts([("channels" if layer in mixing.channels else "heads", Text(items, " · "))])


def _name(mixing: Mixing, unit: int) -> str:
    return str(mixing.units[unit])


def _present_head(
    text: TextReport, mixing: Mixing, unit: int, settings: DisplaySettings, heat: bool
) -> Iterator[ViewPart]:
    if mixing.pooled is not None:
        yield GAP
        pooled = mixing.pooled
        yield weight_map(text, Pooled(pooled.queries, pooled.keys, pooled.weights[unit]), SHARE)
    if not text.queries:
        return
    if len(text.queries) == 1 and not heat and mixing.matrix is not None:
        yield from _one_row(text, mixing, mixing.matrix[unit, 0], unit, settings)
        return
    ranking = _ranking(text, mixing, unit, settings, compact=heat)
    brief = [
        GAP,
        *_rows(text, mixing, unit, settings),
        *([GAP, fitted(ranking, settings)] if ranking else []),
    ]
    if mixing.matrix is None:
        yield from brief
        return
    panel = _panel(text, mixing, mixing.matrix[unit], unit, settings)
    yield GAP
    yield Matrices([panel], heat)
    yield from brief


def _panel(
    text: TextReport, mixing: Mixing, matrix: Matrix, unit: int, settings: DisplaySettings
) -> Panel:
    digits = digits_for(matrix, settings.precision)
    caption = ours(
        f"{_FORMULAS[mixing.kinds[unit]]}; rows don't sum to 1; {NO_WEIGHT}{TIE}is a later token"
    )
    cells = _cells(text, matrix, digits)
    masked = [False] * len(text.queries)
    scale = scale_for(MIXING, matrix)
    # which writes cells itself: a later token is no 0 that happens to be one
    if settings.format == "page":
        matrix = np.where(
            np.array(text.keys) > np.array(text.queries)[:, None], -np.inf, matrix
        ).astype(np.float32)
    return Panel(
        MIXING,
        ours(MIXING),
        matrix,
        cells,
        *text_axes(text),
        scale,
        digits,
        masked,
        caption,
        caption,
    )


def head_panels(
    text: TextReport, settings: DisplaySettings
) -> Iterator[tuple[tuple[int, int], Panel]]:
    """Yield the layer and head of every matrix, and the matrix as a panel with its name: M, or weights of softmax."""
    mixing = text.mixing
    if mixing is not None and mixing.matrix is not None:
        for unit, matrix in enumerate(mixing.matrix):
            layer, head = mixing.units[unit]
            place = int(layer), 0 if head == "mean" else int(head)
            of_channels = " (mean of channels)" if head == "mean" else ""
            title = ours(f"L{place[0]}H{place[1]} {mixing.kinds[unit]}{of_channels}")
            yield place, structs.replace(_panel(text, mixing, matrix, unit, settings), title=title)
    for attending in text.heads:
        weights = attending.stages["weights"]
        place = int(attending.layer), int(attending.head)
        title = ours(f"L{place[0]}H{place[1]} softmax")
        yield place, Panel("weights", title, weights, [], *text_axes(text), WEIGHTS, Digits(2))


def _one_row(
    text: TextReport, mixing: Mixing, row: Array, unit: int, settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Present the only row as a list: a line for each key that it can read, of a long text for the strongest."""
    sizes = np.where(np.array(text.keys) > text.queries[0], -1.0, np.abs(row.astype(np.float64)))
    readable = np.flatnonzero(sizes >= 0)
    listed = readable.tolist()
    if len(listed) > LISTED and settings.brief:
        listed = np.argsort(-sizes, kind="stable")[:LISTED].tolist()
    others = np.setdiff1d(readable, listed)
    parts = _parts(mixing, row, unit)
    terms = {
        name: _with_others(values, listed, others) for name, values in (*parts.items(), ("M", row))
    }
    digits = digits_for(np.array([*terms.values()]), settings.precision)
    columns = []
    for name, values in _factors(mixing, unit).items():
        columns.append(
            Column(
                name,
                column_texts(
                    [*map(float, values[listed]), *[None] * (others.size > 0)], settings.precision
                ),
            )
        )
    columns += [Column(name, written(values, digits)) for name, values in terms.items()]
    measured = len(columns) - 1  # M itself
    shares = _with_others(sizes / (float(mixing.size[unit, 0]) or 1.0), listed, others)
    columns.append(Column("share", column_texts(shares, settings.precision)))
    ranked = dict(zip(mixing.keys[unit, 0].tolist(), mixing.value[unit, 0].tolist(), strict=True))
    contributions = [ranked.get(text.keys[n]) for n in listed] + [None] * (others.size > 0)
    if any(value is not None for value in contributions):
        columns.append(Column("|M|·‖v‖", column_texts(contributions, settings.precision)))
    largest = float(np.abs(row).max()) or 1.0
    bars = [*(row[listed] / largest).tolist(), *[None] * (others.size > 0)]
    said = mixing.kinds[unit] == "differential"  # by its formula
    sums = f"; M = {' + '.join(parts)}" if parts and not said else ""
    formula = ours(f"{_FORMULAS[mixing.kinds[unit]]}{sums}; share: of all |M| of the row")
    more = settings.named("--key", "key", "; {} selects others")
    which = f"the {LISTED} keys with the largest |M|{more}"
    queries, keys = text_axes(text)
    keys = keys.select(listed)
    yield GAP
    yield from row_table(queries, keys, columns, bars, measured, [formula], others.size, which)
    yield GAP
    if parts:
        yield _strips(
            replace(keys, announced=True),
            {name: values[[*listed]] for name, values in (*parts.items(), ("M", row))},
            digits,
        )
        yield GAP
    for read in mixing.read_keys:
        yield from _dimensions(text, mixing, read, float(row[text.keys.index(read.key)]), settings)
        yield GAP
    yield from _rows(text, mixing, unit, settings)


def _dimensions(
    text: TextReport, mixing: Mixing, read: ReadKey, value: float, settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Present how M of one key comes from the dimensions of its dot product, the largest first."""
    terms = {"q × k": np.array(read.products), "× Γ": np.array(read.decayed)}
    (layer_kind,) = mixing.kinds
    if _RESTS.get(layer_kind) == "delta rule":
        terms |= {"delta rule": np.array(read.left) - read.decayed, "sum": np.array(read.left)}
    order = np.argsort(-np.abs(terms["q × k"]), kind="stable").tolist()
    strips = [
        Strip(name, of[order].tolist(), ours(_number(of.sum(), settings)))
        for name, of in terms.items()
    ]
    write = WRITES.get(layer_kind)
    factor = ""
    if write is not None and mixing.key_write is not None:
        factor = (
            f" × {write} {_number(mixing.key_write[0, 0, text.keys.index(read.key)], settings)}"
        )
    if layer_kind == "mlstm":
        factor += " ÷ max(|Σ|, 1) of the row"
    elif _RESTS.get(layer_kind) == "skip" and read.key == text.queries[0]:
        factor += " + skip"
    total = f"  {_number(np.sum(read.left), settings)}{factor} = {_number(value, settings)}"
    query = token_span(text.tokens, text.queries[0], "bold")
    key = token_span(text.sources, read.key, "bold")
    pair = Span(f"{text.queries[0]} ", "bold"), query, Span(f" × {read.key} ", "bold"), key
    yield paragraph((*pair, Span(f"{total}, M", "caption")))
    lines = Strips([f"dim {dim}" for dim in order], strips, indent=1)
    yield lines
    order_text = f"{len(order)} dimensions, the largest product first, and their sums"
    caption = f"{order_text}; {lines.limits(settings.precision)}"
    yield paragraph(ours(caption, "caption"), indent=1)


def _number(value: float, settings: DisplaySettings) -> str:
    return number_text(float(value), settings.precision)


def _factors(mixing: Mixing, unit: int) -> dict[str, Array]:
    """Return the factors of what a row reads directly, as far as they are factors."""
    factors = {
        "q·k": mixing.products,
        "Γ": mixing.decay,
        WRITES.get(mixing.kinds[unit], ""): mixing.key_write,
    }
    rows = {name: values[unit, 0] for name, values in factors.items() if values is not None}
    if mixing.kinds[unit] == "rg-lru":
        del rows["q·k"]  # it has neither queries nor keys
    return {name: row for name, row in rows.items() if name and np.isfinite(row).any()}


def _strips(keys: Axis, terms: dict[str, Array], digits: Digits) -> Matrices:
    """Draw what a row is the sum of as strips of cells, on one scale."""
    matrix = np.stack([*terms.values()]).astype(np.float32)
    n = len(terms)
    axis = Axis("dim", range(n), [Span(name) for name in terms], [False] * n, n, [""] * n)
    cells = [[digits.text(value) for value in line] for line in matrix.tolist()]
    title = ours("parts of the row")
    return Matrices(
        [
            Panel(
                MIXING,
                title,
                matrix,
                cells,
                axis,
                keys,
                scale_for(MIXING, matrix),
                digits,
                [False] * n,
            )
        ],
        True,
    )


def _parts(mixing: Mixing, row: Array, unit: int) -> dict[str, Array]:
    """Return what a row is the sum of: what is read directly, and what the delta rule takes away or a skip adds."""
    rest = _RESTS.get(mixing.kinds[unit])
    if mixing.direct is None or rest is None:
        return {}
    direct = mixing.direct[unit, 0]
    write = WRITES.get(mixing.kinds[unit])
    return {"α" if write is None else f"q·k Γ {write}": direct, rest: row - direct}


def _with_others(values: Array, listed: Sequence[int], others: Array) -> list[float]:
    """Return the numbers of listed keys, and the sum of the others if there are any."""
    return [float(value) for value in values[[*listed]]] + [float(values[others].sum())] * (
        others.size > 0
    )


def _cells(text: TextReport, matrix: Matrix, digits: Digits) -> list[list[str]]:
    later = digits.units(NO_WEIGHT)
    return [
        [
            later if key > query else digits.text(value)
            for key, value in zip(text.keys, row, strict=True)
        ]
        for query, row in zip(text.queries, matrix.tolist(), strict=True)
    ]


def thumbnails(text: TextReport, mixing: Mixing, matrices: Array) -> Matrices:
    """Return the shares of |M| of every head, on one scale."""
    with np.errstate(invalid="ignore"):
        shares = np.abs(matrices) / mixing.size[..., None]
    axes_and_scale = *text_axes(text), Scale(0.0, 1.0, False), Digits(2)
    panels = [
        Panel(SHARE, ours(_name(mixing, unit)), matrix, [], *axes_and_scale)
        for unit, matrix in enumerate(shares)
    ]
    places = [(int(layer), -1 if head == "mean" else int(head)) for layer, head in mixing.units]
    return Matrices(panels, True, places)


def _rows(
    text: TextReport, mixing: Mixing, unit: int, settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Present the facts of every row: how long its state lasts, how strongly it is written, and the sums of the row."""
    write = WRITES.get(mixing.kinds[unit])
    meaning = _MEANING + (_WRITTEN[write] if write else "")
    columns = [_column("half-life", mixing.half_life[unit], settings, none="∞")]
    if mixing.kinds[unit] == "differential":
        meaning = "λ: 1 − Σ M"
        columns = [_column("λ", 1 - mixing.row_sum[unit], settings)]
    if write is not None:
        columns.append(_column(write, mixing.write[unit], settings))
    if mixing.gate is not None and np.isfinite(mixing.gate[unit]).any():
        columns.append(_column("gate", mixing.gate[unit], settings))
        meaning += "; gate: mean factor on the output"
    columns += [
        _column("Σ M", mixing.row_sum[unit], settings),
        _column("Σ |M|", mixing.size[unit], settings),
    ]
    yield paragraph((Span("rows", "bold"), *ours(f"  {meaning}", "caption")), remark=True)
    yield Table("query", columns, keys=token_axis("query", text.tokens, text.queries))


def _column(heading: str, values: Array, settings: DisplaySettings, *, none: str = "") -> Column:
    finite = [float(value) if np.isfinite(value) else None for value in values]
    return Column(heading, column_texts(finite, settings.precision, none=none))


def _ranking(
    text: TextReport, mixing: Mixing, unit: int, settings: DisplaySettings, *, compact: bool
) -> Bars | None:
    """Rank the sources of every row by |M|, or by |M|·‖v‖."""
    keys = mixing.keys[unit]
    if not keys.shape[1]:
        return None
    numbers = {"M": mixing.mixing[unit], "share": mixing.share[unit], "|M|·‖v‖": mixing.value[unit]}
    digits = [digits_for(values, settings.precision + 1) for values in numbers.values()]
    if settings.percent:
        digits[1] = digits[1].as_percent()
    measure = numbers["|M|·‖v‖" if mixing.by == "value" else "share"]
    full = 1.0
    if mixing.by == "value" and np.isfinite(measure).any():
        full = float(np.nanmax(measure))
    rows = [_sources(keys[r], [values[r] for values in numbers.values()], digits, measure[r] / (full or 1.0))
            for r in range(len(text.queries))]  # fmt: skip
    left_out = ""
    if mixing.left_out:
        left_out = f", without {' and '.join(mixing.left_out)}"
    by = "|M|·‖v‖" if mixing.by == "value" else "|M|"
    return Bars(
        token_axis("key", text.sources),
        ["M", "share %" if settings.percent else "share", "|M|·‖v‖"],
        rows,
        token_axis("query", text.tokens, text.queries),
        title=headed("strongest sources", f"  by {by}{left_out}"),
        meaning=ours("; share: of all |M| of the row", "caption"),
        by=2 if mixing.by == "value" else 0,
        compact=compact,
    )


def _sources(
    keys: Array, numbers: Sequence[Array], digits: Sequence[Digits], lengths: Array
) -> list[Bar]:
    return [
        Bar(
            key,
            float(lengths[k]),
            [d.text(float(values[k])) for d, values in zip(digits, numbers, strict=True)],
        )
        for k, key in enumerate(keys.tolist())
        if key >= 0
    ]
