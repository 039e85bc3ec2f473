"""What the functions that `import attnscope` gives return: findings with arrays, tables and files."""

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import numpy as np

from attnscope.api.options import file_path, positions
from attnscope.base.errors import PANDAS, AttnscopeError, UsageError, listed
from attnscope.findings.attribution import Attribution
from attnscope.findings.check import Check, CheckReport, Differences
from attnscope.findings.compare import Change, Comparison, Verdict
from attnscope.findings.explain import Explanation
from attnscope.findings.heads import HeadRef, HeadReport
from attnscope.findings.narrowing import require_heads
from attnscope.findings.predictions import Prediction
from attnscope.findings.provenance import MaskUse, Provenance
from attnscope.findings.row_statistics import Rows
from attnscope.findings.run import Report, TextReport
from attnscope.findings.spans import SpanReport
from attnscope.findings.tokens import Token, spell_piece
from attnscope.request.arguments import STAGES, figure_width, number
from attnscope.request.selection import PRINTED, PositionSelection
from attnscope.views.settings import (
    DisplaySettings,
    FigureFont,
    FigureLabels,
    FigureParts,
    FigureSettings,
)

if TYPE_CHECKING:
    import pandas as pd

    from attnscope.batch.header import Settings
    from attnscope.batch.records import Record

Float1 = np.ndarray[tuple[int], np.dtype[np.float32]]
Float2 = np.ndarray[tuple[int, int], np.dtype[np.float32]]
Float4 = np.ndarray[tuple[int, int, int, int], np.dtype[np.float32]]
Data = TypeVar("Data", bound=msgspec.Struct)
# Number of heads of a text that are printed by default.
_PRINTED_HEADS = 4
# Number of tokens that an error names.
_NAMED = 40
# Characters of the largest page that a notebook shows whole.
_LARGEST_FRAME = 8 << 20
_FRAME_HEIGHT = 720


@dataclass(frozen=True)
class Contributor:
    """One token that contributes to a query.

    Attributes:
        token: Readable text of the token.
        position: Position of the token.
        weight: α_ij, the attention weight.
        value: α_ij·‖v_j‖.
        projected: α_ij·‖v_j W_O^h‖ (Kobayashi et al., 2020); None without `by="projected"`.
    """

    token: str
    position: int
    weight: float
    value: float
    projected: float | None = None


class Fields:
    """Attributes that a class declares without a value are fields of its structs."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in cls.__annotations__.keys() - vars(cls).keys():
            setattr(cls, name, property(partial(_read, name=name)))

    @abstractmethod
    def _structs(self) -> Iterator[Any]:
        """Yield the structs; the first that has a field gives it."""

    def _field(self, name: str) -> Any:
        """Return the value of an attribute."""
        return next(getattr(struct, name) for struct in self._structs() if hasattr(struct, name))


def _read(result: Fields, name: str) -> Any:
    return result._field(name)


class Result(Fields, Generic[Data]):
    """Findings that can be shown, saved and converted to tables.

    Attributes:
        data: The findings as plain data, with the names used in the JSON.
        provenance: The model, versions and settings that produced the numbers.
    """

    provenance: Provenance
    # Default number of decimal places.
    _digits = 2

    def __init__(self, data: Data) -> None:
        self.data: Data = data

    def _structs(self) -> Iterator[Any]:
        yield self.data

    def to_json(self) -> bytes:
        """Return the findings as JSON on one line, as `--json` gives them."""
        from attnscope.findings.codec import to_json

        return to_json(self.data)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        precision: int | None = None,
        width: int | str | None = None,
        table: str | None = None,
        force: bool = False,
        labels: FigureLabels | None = None,
        only: FigureParts | None = None,
        font: FigureFont = "sans",
    ) -> None:
        """Write a file, as `--output` does: whole or not at all.

        Args:
            path: Path of the file; its extension selects `.json`, `.txt`, `.svg`, `.png`, `.html` (a page) or, for an
                InspectResult, `.safetensors`, `.npz`, `.csv` and `.parquet`.
            precision: Decimal places in `.txt`, `.svg` and `.png`; None for the command's default. Other formats are
                exact.
            width: Columns of `.txt`, 120 by default; of a figure its width, such as `"5.5in"` or `"column"`, by default
                that of its content.
            table: Table of an InspectResult that a `.csv` or `.parquet` holds: `matrices`, `contributors`, `rows`,
                `columns` or `spans`; None for the first of these that there is.
            force: Overwrite an existing file.
            labels: What names rows and columns of a figure: `tokens`, `positions` or `none`; None for both.
            only: Draw only matrices and maps of a figure (`map`), or only its `bars`; None for all.
            font: Letters of a figure: `sans` or `serif`.

        Raises:
            AttnscopeError: The file exists or cannot be written, or its extension is unknown.
        """
        from attnscope.base.files.atomic import check_target, write_atomic
        from attnscope.batch.reports import file_parts
        from attnscope.studies.study import TABLES

        target = file_path(path)
        if table is not None and not (
            isinstance(self.data, Report) and target.suffix.lower() in TABLES
        ):
            raise UsageError(
                "needs a report in a .csv or .parquet file", where="table", hint="leave it out"
            )
        settings = DisplaySettings(precision=self._digits_of(precision))
        figure = FigureSettings(None, labels, only, font)
        if isinstance(width, str):
            figure = replace(figure, width=figure_width("width", width))
        elif width is not None:
            settings = replace(settings, columns=number("width", 1, None, width))
        parts = file_parts(self.data, target, replace(settings, figure=figure), table)
        check_target(target, force=force)
        write_atomic(target, parts, force=force)

    def text(self, *, width: int | None = None, precision: int | None = None) -> str:
        """Return the findings as tables.

        Args:
            width: Columns; None for the terminal's width.
            precision: Decimal places; None for the command's default.
        """
        return _as_text(self.data, _columns(width), self._digits_of(precision))

    def _digits_of(self, precision: int | None) -> int:
        if precision is None:
            return self._digits
        return number("precision", 0, 9, precision)

    def __repr__(self) -> str:
        pictured = isinstance(self.data, Report) and any(text.images for text in self.data.texts)
        return _as_text(_abridged(self.data), None, self._digits, brief=pictured).rstrip("\n")

    def show(self) -> None:
        """Open the findings as a page in the browser, from a temporary file."""
        import tempfile
        import webbrowser

        path = Path(tempfile.mkdtemp(prefix="attnscope-")) / "page.html"
        self.save(path)
        if not webbrowser.open(path.as_uri()):
            raise AttnscopeError("no browser was found", hint=f"open {path}")

    def _repr_html_(self) -> str:
        return _in_frame(self.data, self._digits)


def _columns(width: int | None) -> int | None:
    if width is None:
        return None
    return number("width", 1, None, width)


def _as_text(
    data: msgspec.Struct, width: int | None, precision: int, *, brief: bool = False
) -> str:
    import shutil

    columns = width or max(40, shutil.get_terminal_size((80, 24)).columns)
    from attnscope.studies.registry import present
    from attnscope.views.terminal import as_text

    return as_text(present(data, precision=precision, options=False, brief=brief), columns)


def _in_frame(data: Any, precision: int) -> str:
    """Return a page in a sandboxed frame that may only run its script and save files; a large page is abridged."""
    page = _page(data, precision)
    if len(page) > _LARGEST_FRAME:
        page = _page(_abridged(data), precision)
    style = f"width:100%;height:{_FRAME_HEIGHT}px;border:1px solid #8884;border-radius:8px"
    sandbox = "allow-scripts allow-downloads"
    return f'<iframe sandbox="{sandbox}" allow="clipboard-write" style="{style}" srcdoc="{escape(page)}"></iframe>'


def _page(data: Any, precision: int) -> str:
    from attnscope.studies.formats import page

    return b"".join(page(data, DisplaySettings(precision=precision))).decode()


def _abridged(data: Any) -> Any:
    """Return the findings cut to what fits on a screen.

    For a report, this is a few heads and the first tokens of every text, with a note on the rest; a text with pictures
    is whole, since maps on them take little room.
    """
    if not isinstance(data, Report):
        return data
    from attnscope.findings.narrowing import narrow

    texts = []
    for text in data.texts:
        if text.images:
            texts.append(text)
            continue
        notes = [*text.notes]
        if len(text.heads) > _PRINTED_HEADS:
            notes.append(
                f"{_PRINTED_HEADS} of {len(text.heads)} heads are printed; report[layer, head] is one of them"
            )
        if max(len(text.queries), len(text.keys)) > PRINTED:
            sizes = f"{len(text.queries)} rows and {len(text.keys)} columns"
            notes.append(f"the first {PRINTED} of {sizes} are printed; the arrays have all")
        texts.append(msgspec.structs.replace(narrow(text, _PRINTED_HEADS, PRINTED), notes=notes))
    return msgspec.structs.replace(data, texts=texts)


class TextAxes(Fields):
    """Labels of rows and columns.

    Attributes:
        queries: Positions of the rows.
        keys: Positions of the columns.
    """

    queries: list[int]
    keys: list[int]

    @property
    @abstractmethod
    def _text(self) -> TextReport: ...

    @property
    def query_tokens(self) -> list[str]:
        """The tokens of the rows."""
        return [self._text.tokens[query].text for query in self.queries]

    @property
    def key_tokens(self) -> list[str]:
        """The tokens of the columns."""
        return [self._text.sources[key].text for key in self.keys]


class HeadResult(Result[Report], TextAxes):
    """One layer and head over one text.

    Attributes:
        data: A report of this head alone.
        layer: Number of the layer, or `mean`.
        head: Number of the head, or `mean`.
        chosen: Why this head was chosen; None if the user named it.
        rows: Statistics of every query's whole row of weights.
        scores: The scores q·k, (queries, keys).
        scaled: The scores after scale, soft-cap and position bias, (queries, keys).
        masked: The scaled scores, −inf where the mask does not allow a key, (queries, keys).
        weights: The softmax of the masked scores, (queries, keys); NaN in rows that may attend to nothing.
        output: The weighted sums of the values, (queries, value width).
    """

    layer: int | str
    head: int | str
    chosen: str | None
    rows: Rows
    scores: Float2
    scaled: Float2
    masked: Float2
    weights: Float2
    output: Float2

    def __init__(self, report: Report, text: TextReport, index: int) -> None:
        head = msgspec.structs.replace(text, heads=text.heads.only([index]))
        super().__init__(msgspec.structs.replace(report, texts=[head]))

    @property
    def _text(self) -> TextReport:
        return self.data.texts[0]

    @property
    def _head(self) -> HeadReport:
        return self.data.texts[0].heads[0]

    def _structs(self) -> Iterator[Any]:
        yield self._text
        yield self._head

    def _field(self, name: str) -> Any:
        if name in STAGES:
            return _stage(self._head.stages, name)
        return super()._field(name)

    def top(self, query: int | str, k: int | None = None) -> list[Contributor]:
        """Return the tokens that contribute most to one query, strongest first, ranked by the measure `by`.

        Args:
            query: The query: its position, or a word.
            k: Number of tokens; None for all that the report holds.

        Raises:
            AttnscopeError: The report does not hold this query, or fewer than `k` contributors.
        """
        text = self._text
        top = self._head.top
        count = top.keys.shape[1]
        if k is not None and not (isinstance(k, int | np.integer) and 0 <= k <= count):
            raise UsageError(
                f"the report keeps {count} contributors", where="k", hint=f"inspect with top={k}"
            )
        row = text.queries.index(_one_position(positions("query")(query), text))
        entries = []
        for rank, key in enumerate(top.keys[row, :k].tolist()):
            # There are fewer sources than ranks if a key is −1.
            if key >= 0:
                measures = (
                    None if m is None else float(m[row, rank])
                    for m in (top.weight, top.value, top.projected)
                )
                entries.append(Contributor(text.sources[key].text, key, *measures))  # type: ignore[arg-type]
        return entries

    def to_pandas(self, table: str | None = None) -> "pd.DataFrame":
        """See InspectResult.to_pandas."""
        return _report_table(self.data, table)


def _stage(stages: Mapping[str, Any], name: str) -> Any:
    if name not in stages:
        message = f"the report keeps no {name}"
        hint = (
            f"it keeps {', '.join(stages) or 'no stage'}; inspect with stages={(*stages, name)!r}"
        )
        raise UsageError(message, where="stages", hint=hint)
    return stages[name]


def _one_position(query: PositionSelection, text: TextReport) -> int:
    """Return the position of one shown query."""
    texts = (text.text, text.pair)
    spans = None if text.spans is None else text.spans.text
    positions = [
        row for row in query.find(text.tokens, texts, "query", spans=spans) if row in text.queries
    ]
    if len(positions) == 1:
        return positions[0]
    if not positions:
        hint = f"it holds {listed([*map(str, text.queries)], _NAMED)}"
        raise UsageError(f"the report has no row for {query}", where="query", hint=hint)
    several = listed(
        [f"{position} {spell_piece(text.tokens, position)}" for position in positions], _NAMED
    )
    message = f"'{query}' selects {len(positions)} tokens: {several}"
    raise UsageError(message, where="query", hint="choose one by its position")


class TextArrays(TextAxes):
    """Arrays and labels of one text: a TextResult has them, and an InspectResult of one text.

    Attributes:
        tokens: All tokens of the text.
        scores: The scores q·k, (layers, heads, queries, keys).
        scaled: The scores after scale, soft-cap and position bias, (layers, heads, queries, keys).
        masked: The scaled scores, −inf where the mask does not allow a key, (layers, heads, queries, keys).
        weights: The softmax of the masked scores, (layers, heads, queries, keys); NaN in rows that may attend to
            nothing.
        output: The weighted sums of the values, (layers, heads, queries, value width).
        predictions: The model's predictions: the next token, or the token at each mask token; empty if it has no output
            head.
        generated: For each generated token, the prediction that it was chosen from.
        attribution: Contributions of the model's parts to a logit; None without `by="logit"`.
    """

    tokens: list[Token]
    scores: Float4
    scaled: Float4
    masked: Float4
    weights: Float4
    output: Float4
    predictions: list[Prediction]
    generated: list[Prediction]
    attribution: Attribution | None

    @property
    @abstractmethod
    def _report(self) -> Report: ...

    def _structs(self) -> Iterator[Any]:
        yield self._report
        yield self._text

    def _field(self, name: str) -> Any:
        if name in STAGES:
            return self._stack(name)
        return super()._field(name)

    @property
    def layers(self) -> list[int | str]:
        """The layers, in the order of the arrays' first axis."""
        return list(self._heads_by_layer)

    @property
    def heads(self) -> list[list[int | str]]:
        """Of every layer its heads, in the order of the arrays' second axis; `auto` may take others in each layer."""
        return list(self._heads_by_layer.values())

    @property
    def _heads_by_layer(self) -> dict[int | str, list[int | str]]:
        by_layer: dict[int | str, list[int | str]] = {}
        for layer, head in self._text.heads.units:
            by_layer.setdefault(layer, []).append(head)
        return by_layer

    def _stack(self, stage: str) -> Float4:
        require_heads(self._report, "the report")
        heads = self._text.heads
        matrices = _stage(heads.stages, stage)
        n_layers = len(self.layers)
        if len({len(of_layer) for of_layer in self.heads}) > 1:
            raise UsageError(
                "the layers have different numbers of heads", hint="use report[layer, head]"
            )
        stacked: Float4 = matrices.reshape(
            n_layers, len(heads) // max(1, n_layers), *matrices.shape[1:]
        )
        return stacked

    @property
    def spans(self) -> list[str]:
        """Names of the spans of the text, in order: see findings.spans.TextSpans."""
        return self._divided.text.names

    @property
    def span_of_token(self) -> list[int]:
        """Number of each token's span."""
        return self._divided.text.of_token

    @property
    def span_weights(self) -> Float4:
        """Average weight of the tokens of a span on those of each span together, (layers, heads, spans, spans).

        All layers and heads of the model, whichever are selected; NaN in the rows of a span that may attend to nothing.
        """
        return self._divided.weights

    @property
    def _divided(self) -> SpanReport:
        spans = self._text.spans
        if spans is None:
            raise UsageError(
                "the text is not divided into spans",
                where="spans",
                hint="inspect with spans='sentences'",
            )
        return spans

    def __iter__(self) -> Iterator[HeadResult]:
        return (
            HeadResult(self._report, self._text, index) for index in range(len(self._text.heads))
        )

    def __getitem__(self, unit: tuple[int | str, int | str]) -> HeadResult:
        """Return one head, by the layer (number or `mean`) and the head; -1 is the model's last that attends."""
        if not isinstance(unit, tuple) or len(unit) != 2:
            raise UsageError(f"{unit!r} is not a layer and head", hint="use report[layer, head]")
        report = self._report
        text = self._text
        provenance = report.provenance
        layer, head = (
            every[selected]
            if isinstance(selected, int | np.integer) and -len(every) <= selected < 0
            else selected
            for selected, every in zip(
                unit, (provenance.attending, range(provenance.n_heads)), strict=True
            )
        )
        units = text.heads.units
        if (layer, head) in units:
            return HeadResult(report, text, units.index(HeadRef(layer, head)))
        there = [f"[{ref.layer}, {ref.head}]" for ref in units[:20]]
        more = f" and {len(text.heads) - 20} more" if len(text.heads) > 20 else ""
        message = f"the report has no layer {unit[0]} with head {unit[1]}"
        raise UsageError(message, hint=f"it holds {', '.join(there)}{more}")


class TextResult(TextArrays):
    """One text of a report.

    Attributes:
        data: The text's findings as plain data, with the names used in the JSON.
    """

    def __init__(self, report: Report, text: TextReport) -> None:
        self._alone = InspectResult(msgspec.structs.replace(report, texts=[text]))
        self.data = text

    @property
    def _report(self) -> Report:
        return self._alone.data

    @property
    def _text(self) -> TextReport:
        return self.data

    def __repr__(self) -> str:
        return repr(self._alone)

    def _repr_html_(self) -> str:
        return self._alone._repr_html_()


class InspectResult(TextArrays, Result[Report]):
    """The result of `inspect`: a report of one or several texts.

    With one text, the arrays and labels of the report are those of the text; with several, each text in `texts` has its
    own.

    Attributes:
        mask: Which keys a query could see, and why.
    """

    mask: MaskUse

    @cached_property
    def texts(self) -> list[TextResult]:
        """One entry per text."""
        return [TextResult(self.data, text) for text in self.data.texts]

    @property
    def _report(self) -> Report:
        return self.data

    @property
    def _text(self) -> TextReport:
        texts = self.data.texts
        if len(texts) != 1:
            hint = "choose one, such as report.texts[0]"
            raise UsageError(f"the report holds {len(texts)} texts", hint=hint)
        return texts[0]

    def to_pandas(self, table: str | None = None) -> "pd.DataFrame":
        """Return one of the tables that `attnscope convert` writes.

        Args:
            table: `contributors`, `rows` (statistics), `columns` (of maps), `spans` or `matrices`; None for the first
                that the report has.

        Raises:
            AttnscopeError: pandas is not installed, or the report holds no such table.
        """
        return _report_table(self.data, table)


def _report_table(report: Report, table: str | None) -> "pd.DataFrame":
    from attnscope.batch.reports import records_of, settings_of

    settings = settings_of(report)
    return data_frame(settings, records_of(report), table, "report")


def data_frame(
    settings: "Settings", records: "Iterable[Record]", table: str | None, what: str
) -> "pd.DataFrame":
    """Return a table of records, by default the first that they have; `what` holds them, for errors."""
    from attnscope.batch.tables import INTEGERS, columns, kinds_of, rows_of

    there = kinds_of(settings)
    table_name = table or next(iter(there), None)
    if table_name is None or table_name not in there:
        wanted = "table" if table_name is None else f"table '{table_name}'"
        hint = f"it has {', '.join(there)}" if there else None
        raise UsageError(f"the {what} has no {wanted}", where="table", hint=hint)
    names = columns(table_name, settings)
    pd = import_pandas()
    parts = list(rows_of(table_name, records))
    joined = {name: _joined([part[name] for part in parts]) for name in names}
    for name in INTEGERS:
        # A mean has no number, and an output has no key.
        if isinstance(joined.get(name), list):
            joined[name] = pd.array(joined[name], dtype="Int64")
    return pd.DataFrame(joined, columns=names)


def _joined(parts: Sequence[Any]) -> Any:
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts) if parts else np.empty(0)
    return [value for part in parts for value in part]


def import_pandas() -> Any:
    """Import pandas, which comes with an extra."""
    PANDAS.require("a table")
    import pandas

    return pandas


class TableResult(Result[Data]):
    """A result that is also one table."""

    def to_pandas(self) -> "pd.DataFrame":
        """Return its table: a row for every head; for what is cut; for every check; for every key of `explain`.

        Of `compare`, a row for every later side, text, head and aligned query; of a needle, for every length and depth.
        """
        data: Any = self.data
        return import_pandas().DataFrame(data.table())


class CompareResult(TableResult[Comparison]):
    """The result of `compare`: the sides, and what differs between each of them and the first.

    Attributes:
        axis: The setting that differs between the sides, such as `mask`.
        provenance: What produced the numbers of the first side.
        changes: One entry per side after the first.
        verdict: The verdict under the tolerance; None without one.
    """

    axis: str
    changes: list[Change]
    verdict: Verdict | None

    def _structs(self) -> Iterator[Any]:
        yield self.data
        yield self.data.sides[0].report

    @property
    def labels(self) -> list[str]:
        """Names of the sides."""
        return [side.label for side in self.data.sides]

    @cached_property
    def sides(self) -> list[InspectResult]:
        """The report of each side."""
        return [InspectResult(side.report) for side in self.data.sides]


class ExplainResult(TableResult[Explanation]):
    """The result of `explain`: the arithmetic of one query of one head; `data` holds every step.

    Attributes:
        layer: Number of the layer.
        head: Number of the head.
        query: Position of the query.
        keys: Positions of the keys that are kept.
        scores: The scores q·k, (keys,).
        scaled: The scores after scale, soft-cap and position bias, (keys,).
        masked: The scaled scores, −inf where the mask does not allow a key, (keys,).
        weights: The softmax of the masked scores, (keys,).
        output: The output of attention for the query, (value width,).
    """

    layer: int
    head: int
    query: int
    keys: list[int]
    scores: Float1
    scaled: Float1
    masked: Float1
    weights: Float1
    output: Float1
    _digits = 4

    def _structs(self) -> Iterator[Any]:
        yield self.data.row
        yield self.data

    @property
    def key_tokens(self) -> list[str]:
        """Their tokens."""
        return [self.data.sources[key].text for key in self.data.keys]

    @property
    def holds(self) -> bool:
        """Whether every recomputed step agrees with the model."""
        return all(check.holds for check in self.data.checks)


class CheckResult(TableResult[CheckReport]):
    """The result of `check`.

    Attributes:
        passed: Whether no check failed.
        checks: Every check, in order.
        differences: The differences that the comparisons measured, by layer and head.
    """

    passed: bool
    checks: list[Check]
    differences: list[Differences]


def result_type(findings: type) -> type[Result[Any]]:
    """Return the class for these findings in Python: the one that is declared for them."""
    types: tuple[Any, ...] = (*Result.__subclasses__(), *TableResult.__subclasses__())
    declared = (result_type for result_type in types if result_type.__init__ is Result.__init__)
    return next(
        (
            result_type
            for result_type in declared
            if findings in result_type.__orig_bases__[-1].__args__
        ),
        Result,
    )
