"""Run a model once per side and compare the reports."""

import os
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from attnscope.base.errors import TWO_MASKS, AttnscopeError, UsageError, arg
from attnscope.base.files.reading import read_file
from attnscope.base.system.escape import as_unicode
from attnscope.checkpoints.source import DEFAULT_MODEL, tokenize
from attnscope.findings.array_files import ARRAY_FILES, from_arrays
from attnscope.findings.codec import from_json
from attnscope.findings.compare import MODELS, Comparison, Side
from attnscope.findings.heads import STAGES, HeadRef, Heads
from attnscope.findings.hints import Hint
from attnscope.findings.narrowing import narrow_rows, require_heads
from attnscope.findings.run import Report
from attnscope.request.masks.expression import is_mask, parse_mask, spell_mask
from attnscope.request.options import COMPARE, SHOW
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import (
    ALL,
    AUTO,
    EVERY_POSITION,
    MEAN,
    IndexSelection,
    PositionSelection,
    join_label,
    parse_indices_or_label,
    parse_positions,
)
from attnscope.run.plan import make_plan, memory_demand, present_layers
from attnscope.run.session import Session, inspect
from attnscope.run.text_plan import divide_text
from attnscope.studies.compare.alignment import align, pair_replaced
from attnscope.studies.compare.reports import compare_sides
from attnscope.studies.compare.tolerance import Tolerance
from attnscope.studies.screens.header import counted
from attnscope.views.axes import format_positions

if TYPE_CHECKING:
    from attnscope.studies.run.every_head import RoleRecorders

_CAP = 4 << 30
_LONGEST = 30  # longest text, in characters, that is used as its own label
# numbers of all heads of one side that are compared unless the user asks for every head
_MOST_CELLS = 1 << 26
_NOW = "this run"  # label of the side that is compared with a saved report
_SAVED = ("layer", "head", "query", "key")  # what a saved report is narrowed down to
_ROWS = 1024  # rows that are compared for a table, of which it shows those where most weight moves


def compare_runs(
    axis: str,
    runs: Sequence[tuple[str, RunConfig]],
    key: PositionSelection | None,
    tolerance: Tolerance | None = None,
    session: Session | None = None,
    selected: Collection[str] = (),
    *,
    every_head: bool = False,
    roles: "Sequence[RoleRecorders]" = (),
) -> Comparison:
    """Run every side and compare it with the first.

    All layers and heads are compared unless the user selected some, or compares layers or heads: the head that moves
    most answers what differs. If there are too many, `auto` chooses one for the first side, and the others use it.

    Args:
        runs: For each side, the value that differs and the run, which keeps every column.
        key: Columns of the difference that are shown; None for all.
        selected: Which of `layer` and `head` the user selected.
        every_head: Whether to compare all heads in any case.
        roles: Recorders for every side; empty for none.
    """
    stages = [stage for stage in STAGES if any(stage in run.stages for _, run in runs)] or [
        "weights"
    ]
    # All measures but worst cells need the weights.
    runs = [
        (label, replace(run, stages=tuple(dict.fromkeys((*run.stages, "weights")))))
        for label, run in runs
    ]
    session = session or Session([text for _, run in runs for text in run.texts])
    columns = None
    typed = any(selection is not None for selection in (runs[0][1].query, key))
    if axis == "text" and typed and all(len(run.texts) == 1 for _, run in runs):
        runs, columns = _found_in_either(runs, key, session)
    unmatched: list[str] = []
    all_needed = tolerance is not None or axis in MODELS or every_head
    all_compared = True
    if all_needed or axis not in ("layer", "head"):
        runs_of_all, unmatched = _with_every_head(runs, selected, session)
        all_compared = all_needed or _fit([run for _, run in runs_of_all], session)
        runs = runs_of_all if all_compared else runs
    recorders = dict(enumerate(of_side.recorders for of_side in roles))
    reports = [
        inspect(runs[0][1], session=session, sides=len(runs), extra_recorders=recorders.get(0))
    ]
    chosen_indices = _chosen(reports[0])
    for index, (_, run) in enumerate(runs[1:], 1):
        heads = {
            name: indices
            for name, indices in chosen_indices.items()
            if getattr(run, name).word == "auto"
        }
        report = inspect(
            replace(run, **heads),
            session=session,
            sides=len(runs),
            extra_recorders=recorders.get(index),
        )
        reports.append(_same_heads(axis, report, reports[0]) if heads else report)
    labels = _labels(axis, [as_unicode(value) for value, _ in runs])
    sides = [Side(label, report) for label, report in zip(labels, reports, strict=True)]
    named_options = [
        *_named(runs[0][1].query, key),
        *(name for name in ("layer", "head") if name in selected),
    ]
    shown_by_text = _shown(sides[0].report, key) if columns is None else [columns]
    comparison = compare_sides(
        axis, sides, shown_by_text, tolerance, stages, named_options, unmatched
    )
    if not all_compared and _left_to_auto(runs[0][1], selected):
        statement = "the texts are too long to compare every head at once: one was chosen"
        note = Hint.MOST_MOVED_HEADS.after(statement)
        comparison = replace(comparison, notes=[*comparison.notes, note])
    return comparison


def _left_to_auto(run: RunConfig, selected: Collection[str]) -> list[str]:
    """Return which of `layer` and `head` the user did not select."""
    return [
        name for name in ("layer", "head") if getattr(run, name) == AUTO and name not in selected
    ]


def _fit(runs: Sequence[RunConfig], session: Session) -> bool:
    """Tell whether the sides fit into memory together, and are compared within seconds."""
    with warnings.catch_warnings(action="ignore"):  # The plans that run warn.
        for run in runs:
            source, rendered = session.open(run)
            try:
                plan = make_plan(rendered, source, sides=len(runs))
            except AttnscopeError:  # What else is wrong is said by the plan that runs.
                return False
            if memory_demand(plan).cells > _MOST_CELLS:
                return False
    return True


def _with_every_head(
    runs: Sequence[tuple[str, RunConfig]], selected: Collection[str], session: Session
) -> tuple[list[tuple[str, RunConfig]], list[str]]:
    """Select all layers and heads that all sides have, if they were left to `auto`.

    Also return what models of different sizes leave without a counterpart.
    """
    left = _left_to_auto(runs[0][1], selected)
    configs = [session.source(run).config for _, run in runs]
    counts = [{"layer": c.n_layers, "head": c.n_heads} for c in configs]
    sizes = [
        f"'{as_unicode(label)}' has {counted(c.n_layers, 'layer')} × {counted(c.n_heads, 'head')}"
        for (label, _), c in zip(runs, configs, strict=True)
    ]
    unmatched = [
        f"{sizes[0]}, {size}"
        for size, count in zip(sizes, counts, strict=True)
        if any(count[name] != counts[0][name] for name in left)
    ]
    every = dict.fromkeys(left, ALL)
    array_layers = [
        set(layers)
        for layers in (session.source(run).layers for _, run in runs)
        if layers is not None
    ]
    if unmatched or (array_layers and "layer" in left):
        shared = {name: range(min(count[name] for count in counts)) for name in left}
        every = {
            name: IndexSelection(ranges=((0, numbers[-1]),)) for name, numbers in shared.items()
        }
        if array_layers and "layer" in left:  # arrays need not have every layer
            there = set.intersection(*array_layers, set(shared["layer"]))
            if not there:
                for _, run in runs:
                    present_layers(run.layer, session.source(run))
                raise UsageError("the sides have no layer in common", where=arg("layer"))
            every["layer"] = IndexSelection.of(sorted(there))
    return [(label, replace(run, **every)) for label, run in runs], unmatched


def _found_in_either(
    runs: Sequence[tuple[str, RunConfig]], key: PositionSelection | None, session: Session
) -> tuple[list[tuple[str, RunConfig]], list[int] | None]:
    """Find the words of `--query` and `--key` in any text; a word of one text stands for its counterpart in the others.

    Return the runs, with the positions of their rows, and the columns of the first that the difference has, None for
    all.
    """
    opened = [session.open(run) for _, run in runs]
    texts = [run.texts[0] for _, run in opened]
    tokens = []
    for text, (source, run) in zip(texts, opened, strict=True):
        tokens.append(
            tokenize(
                source,
                text.text,
                text.pair,
                text.where,
                truncate=run.truncate,
                special=text.adds_special,
            )[0]
        )
    spans = [
        divide_text(run, text, text_tokens)
        for (_, run), text, text_tokens in zip(opened, texts, tokens, strict=True)
    ]
    pairs = [pair_replaced(tokens[0], other, align(tokens[0], other)) for other in tokens[1:]]

    def positions(selection: PositionSelection, option: str) -> list[list[int]]:
        missing: list[list[str]] = [[] for _ in tokens]
        positions_of = []
        for numbers, text, lacking, divided in zip(tokens, texts, missing, spans, strict=True):
            positions_of.append(
                {
                    *selection.find(
                        numbers, (text.text, text.pair), option, missing=lacking, spans=divided
                    )
                }
            )
        if set(missing[0]).intersection(*missing[1:]):  # says what the first text has
            selection.find(tokens[0], (texts[0].text, texts[0].pair), option, spans=spans[0])
        reached = [
            {i for i, j in both if j in there}
            for both, there in zip(pairs, positions_of[1:], strict=True)
        ]
        first_positions = positions_of[0].union(*reached)
        other_positions = [
            there | {j for i, j in both if i in first_positions}
            for both, there in zip(pairs, positions_of[1:], strict=True)
        ]
        if not first_positions or not all(other_positions):
            raise UsageError(f"'{selection}' has no counterpart in another text", where=option)
        return [sorted(numbers) for numbers in (first_positions, *other_positions)]

    changes = [dict[str, PositionSelection]() for _ in runs]
    columns = None
    for field, position_selection in (
        ("query", runs[0][1].query),
        ("auto_key", None if texts[0].context is not None else key),
    ):
        if position_selection is not None:
            of_sides = positions(position_selection, arg(field.removeprefix("auto_")))
            columns = of_sides[0] if field == "auto_key" else None
            for change, numbers in zip(changes, of_sides, strict=True):
                change[field] = PositionSelection.of(numbers)
    return [
        (label, replace(run, **change)) for (label, run), change in zip(runs, changes, strict=True)
    ], columns


def _labels(axis: str, values: Sequence[str]) -> list[str]:
    """Name the sides by what differs, with a number if names are equal or a text is long."""
    if axis == "text" and (max(map(len, values)) > _LONGEST or len(set(values)) < len(values)):
        return [f"text {index}" for index in range(len(values))]
    return [
        f"{value} ({values[: index + 1].count(value)})" if values.count(value) > 1 else value
        for index, value in enumerate(values)
    ]


def _named(query: PositionSelection | None, key: PositionSelection | None) -> list[str]:
    return [name for name, typed in (("query", query), ("key", key)) if typed is not None]


def _shown(report: Report, key: PositionSelection | None) -> list[list[int] | None]:
    """Return the columns of the difference for every text; None for all."""
    if key is None:
        return [None] * len(report.texts)
    columns: list[list[int] | None] = []
    for text in report.texts:
        words = (text.text, text.pair) if text.context is None else (None,)
        spans = None if text.spans is None else text.spans.text
        columns.append(key.find(text.sources, words, arg("key"), spans=spans))
    return columns


_OF_REPORTS = ("text", "layer", "head", "query", "key", "stages")


def default_sides(run: RunConfig, typed: Collection[str]) -> tuple[str, list[RunConfig]]:
    """Return what is compared if no option has several values: hidden tokens with none, or two masks."""
    if "mask" in typed:
        message = f"{spell_mask(run.mask)!r:.80} needs another mask to be compared with"
        raise UsageError(message, where=arg("mask"), hint=f"use {TWO_MASKS}")
    if "hide" in typed and run.hide is not None:
        return "hide", [replace(run, hide=None), run]
    masks = parse_mask("causal"), parse_mask("bidirectional")
    return "mask", [replace(run, mask=mask) for mask in masks]


def side_label(axis: str, run: RunConfig) -> str:
    """Name a side by what differs, as one would type it."""
    if axis in ("text", "chat"):
        return ", ".join(text.text if text.chat is None else text.where for text in run.texts)
    value = getattr(run, axis)
    if axis == "mask":
        return spell_mask(value)
    if axis == "model":
        return str(value or DEFAULT_MODEL)
    value = getattr(value, "label", None) or value
    if value is None:
        return "none"
    return str(getattr(value, "written", value))


def side_of(axis: str, run: RunConfig) -> RunConfig:
    """Return one side's run: it keeps every column, or a map if no cell is named and `--pool` is given.

    On a screen, a text that is too long for tables has a map, too; maps of two texts cannot be compared.
    """
    run = replace(run, window=None if run.window is None else _ROWS)
    if (
        axis != "text"
        and run.query is None
        and run.key is None
        and (run.window is not None or run.pool is not None)
    ):
        return run
    return replace(run, key=EVERY_POSITION, auto_key=run.key)


def _chosen(report: Report) -> dict[str, IndexSelection]:
    """Return the layers and heads of a report, which replace `auto` on the other sides."""
    heads = report.texts[0].heads
    return {
        name: MEAN if "mean" in numbers else IndexSelection.of(dict.fromkeys(map(int, numbers)))
        for name, numbers in (
            ("layer", [h.layer for h in heads]),
            ("head", [h.head for h in heads]),
        )
    }


@dataclass(frozen=True)
class ReportSelection:
    """The layers, heads, rows, columns and stages of saved reports to compare; None for all."""

    layer: IndexSelection | None = None
    head: IndexSelection | None = None
    query: PositionSelection | None = None
    key: PositionSelection | None = None
    stages: tuple[str, ...] | None = None


def wanted_of(run: RunConfig, typed: Collection[str]) -> ReportSelection:
    """Return what the typed options of a run select of saved reports."""
    names = [name for name in ("query", "key", "stages") if name in typed]
    if "layer" in typed or "head" in typed:
        names += ["layer", "head"]
    selected = {name: getattr(run, name) for name in names}
    if selected.get("stages") == ():
        selected["stages"] = ("weights",)
    return ReportSelection(**selected)


def _same_heads(axis: str, report: Report, chosen_report: Report) -> Report:
    """Leave out heads that were chosen for another layer."""
    units = chosen_report.texts[0].heads.units
    if axis == "layer":
        # The n-th layer of this side takes the head that was chosen for the n-th layer of the other.
        layers = list(dict.fromkeys(unit.layer for unit in report.texts[0].heads.units))
        units = [HeadRef(layer, head) for layer, (_, head) in zip(layers, units, strict=False)]
    if axis == "head" or len(units) != len(chosen_report.texts[0].heads):
        return report
    texts = []
    for text in report.texts:
        indices = [index for index, unit in enumerate(text.heads.units) if unit in units]
        texts.append(replace(text, heads=text.heads.only(indices)))
    return replace(report, texts=texts)


def check_report_options(typed: Collection[str]) -> None:
    """Refuse options that do not apply to saved reports."""
    for option in COMPARE:
        name = option.name
        if name in typed and option.group != SHOW and name not in _OF_REPORTS:
            message = "does not apply to saved reports, which are not run again"
            raise UsageError(message, where=arg(name), hint=f"pass texts, or remove {arg(name)}")


def labelled_report(index: int, saved: Any) -> tuple[str, Report]:
    """Return a saved report, in a file or in memory, with its name."""
    if isinstance(saved, Report):
        return f"report {index}", saved
    return as_unicode(os.fsdecode(saved)), read_report(Path(saved))


def compare_reports(
    reports: Sequence[tuple[str, Report]],
    wanted: ReportSelection | None = None,
    tolerance: Tolerance | None = None,
) -> Comparison:
    """Compare saved Reports with the first of them; no model is needed."""
    wanted = wanted or ReportSelection()
    labels = _labels("report", [name for name, _ in reports])
    narrowed = [_narrowed(name, report, wanted) for name, report in reports]
    sides = [Side(label, report) for label, report in zip(labels, narrowed, strict=True)]
    shown_keys = _shown(sides[0].report, wanted.key)
    for text, keys in zip(sides[0].report.texts, shown_keys, strict=True):
        _check_saved(keys or [], text.keys, "key", sides[0].label)
    named_options = _named(wanted.query, wanted.key)
    return compare_sides(
        "report", sides, shown_keys, tolerance, wanted.stages or STAGES, named_options
    )


def compare_with_report(
    saved: tuple[str, Report],
    run: RunConfig,
    typed: Collection[str],
    wanted: ReportSelection | None,
    tolerance: Tolerance | None,
    session: Session,
) -> Comparison:
    """Run a text as a saved Report was made, and compare the two.

    Args:
        saved: The name of the report, and the report, which is the first side.
        typed: Names of the options that the user chose; others follow the report.
    """
    name, report = saved
    run = _as_saved(name, report, run, typed)
    made = inspect(run, session=session)
    return compare_reports([saved, (_NOW, made)], wanted, tolerance)


def _as_saved(name: str, report: Report, run: RunConfig, typed: Collection[str]) -> RunConfig:
    """Choose layers, heads, rows, columns, stages and mask of a run as those of a saved report, unless the user did."""
    require_heads(report, f"'{name}'")
    text = report.texts[0]
    mask = report.mask
    saved: dict[str, Any] = {"stages": tuple(text.heads.stages), **_chosen(report)}
    units = text.heads.units
    if len(units) < len({layer for layer, _ in units}) * len({head for _, head in units}):
        # The label selects these heads alone.
        saved["layer"], saved["head"] = join_label(
            AUTO, parse_indices_or_label("head", ",".join(map(str, units)))
        )
    for option, positions, tokens in (
        ("query", text.queries, text.tokens),
        ("key", text.keys, text.sources),
    ):
        if len(positions) < len(tokens):
            saved[option] = PositionSelection.of(positions)
    if mask.hidden is not None:
        saved["hide"] = parse_positions(mask.hidden)
    if mask.what_if is not None and mask.used != mask.own:
        if not is_mask(mask.used):
            message = f"'{name}' was made under the mask '{mask.used}', which cannot be read back"
            raise UsageError(
                message, where=arg("mask"), hint=f"add {arg('mask', placeholder='MASK')}"
            )
        saved["mask"] = parse_mask(mask.used)
    if mask.what_if is not None:
        saved["what_if"] = mask.what_if
    # A selection of rows or columns by the user narrows both sides afterwards.
    return replace(
        run,
        **{
            option: value
            for option, value in saved.items()
            if option not in typed or option in _SAVED
        },
    )


def read_report(path: Path) -> Report:
    """Read a saved Report; refuse a file that is none."""
    ending = path.suffix.lower()
    try:
        data = read_file(path, cap=_CAP)
        return from_arrays(data, ending) if ending in ARRAY_FILES else from_json(data)
    except AttnscopeError as e:
        raise e.placed(path) from e


def _narrowed(name: str, report: Report, wanted: ReportSelection) -> Report:
    """Return the selected part of a report; refuse a selection that it does not hold."""
    require_heads(report, f"'{name}'")
    texts = []
    for text in report.texts:
        provenance = report.provenance
        units = [tuple(unit) for unit in text.heads.units]
        layers = _picked(
            wanted.layer, "layer", provenance.n_layers, [layer for layer, _ in units], name
        )
        heads = _picked(wanted.head, "head", provenance.n_heads, [head for _, head in units], name)
        chosen_indices = [
            units.index((layer, head))
            for layer in layers
            for head in heads
            if (layer, head) in units
        ]
        if text.heads and not chosen_indices:
            raise UsageError(
                f"'{name}' has no such layer and head", where=f"{arg('layer')} and {arg('head')}"
            )
        queries = text.queries
        if wanted.query is not None:
            own = text.text, text.pair
            divided = None if text.spans is None else text.spans.text
            queries = sorted(wanted.query.find(text.tokens, own, arg("query"), spans=divided))
            _check_saved(queries, text.queries, "query", name)
        rows = [text.queries.index(query) for query in queries]
        selected = replace(
            text, heads=_stages_of(text.heads.only(chosen_indices), wanted.stages, name)
        )
        texts.append(narrow_rows(selected, rows))
    return replace(report, texts=texts)


def _picked(
    pick: IndexSelection | None, what: str, count: int, saved: Sequence[int | str], name: str
) -> Sequence[int | str]:
    """Return the selected layers or heads of those that are saved."""
    if pick is None or pick.word in ("auto", "all"):
        return list(dict.fromkeys(saved))
    picked: Sequence[int | str]
    if pick.word:
        picked = ["mean"]
    else:
        picked = pick.numbers(count, what)
    if missing := [str(index) for index in picked if index not in saved]:
        message = f"'{name}' has no {what} {', '.join(missing)}"
        raise UsageError(
            message, where=arg(what), hint=f"it has {', '.join(dict.fromkeys(map(str, saved)))}"
        )
    return picked


def _check_saved(wanted: Sequence[int], saved: Sequence[int], what: str, name: str) -> None:
    if missing := [position for position in wanted if position not in saved]:
        message = f"'{name}' has no {what} {format_positions(missing)}"
        raise UsageError(
            message, where=arg(what), hint=f"it has {format_positions(saved) or 'none'}"
        )


def _stages_of(heads: Heads, stages: tuple[str, ...] | None, name: str) -> Heads:
    """Return heads with only these stages, and the weights, which all measures need."""
    if stages is None:
        return heads
    if missing := [stage for stage in stages if stage not in heads.stages]:
        message = f"'{name}' has no {', '.join(missing)}"
        raise UsageError(
            message, where=arg("stages"), hint=f"it has {', '.join(heads.stages) or 'none'}"
        )
    kept_stages = {
        stage: matrices
        for stage, matrices in heads.stages.items()
        if stage in stages or stage == "weights"
    }
    return replace(heads, stages=kept_stages)
