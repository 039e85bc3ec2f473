"""The sides of a comparison: texts that are run, or reports."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.api.options import (
    PYTHON_READERS,
    mask_of,
    read_values,
    run_values,
    several_chats,
    texts_of,
)
from attnscope.api.results import CompareResult, InspectResult
from attnscope.api.running import given_texts, new_session, opened, running
from attnscope.base.errors import UsageError
from attnscope.findings.run import Report
from attnscope.request.combinations import check_combinations
from attnscope.request.options import COMPARE, QKV
from attnscope.request.run_config import RunConfig, TextInput

if TYPE_CHECKING:
    from attnscope.run.session import InMemory, Session
    from attnscope.studies.compare.tolerance import Tolerance

# Arguments that may be lists, one value for each side.
_AXES = {option.name for option in COMPARE if option.several == "compared"}


def sides_of(texts: Sequence[Any], options: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Return the setting that differs between the sides, and the arguments of each side."""
    arguments: dict[str, Any] = {**options, "text": list(texts) if len(texts) > 1 else texts[0]}
    # An iterator can be read only once.
    arguments = {
        name: tuple(value) if isinstance(value, Iterator) else value
        for name, value in arguments.items()
    }
    several = {
        name: value
        for name, value in arguments.items()
        if name in _AXES and isinstance(value, list)
    }
    if several_chats(arguments.get("messages")):
        several["messages"] = list(arguments["messages"])
    if len(several) > 1:
        hint = "compare one thing at a time; write a selection that all sides share as a tuple, such as layer=(0, 1)"
        raise UsageError(f"{' and '.join(sorted(several))} are lists", hint=hint)
    if not several:
        from attnscope.studies.compare.runs import default_sides

        mask = arguments.get("mask")
        several = dict(
            [default_sides(None if mask is None else mask_of(mask), arguments.get("hide"))]
        )
    ((axis, values),) = several.items()
    if len(values) < 2:
        raise UsageError(
            f"has {len(values)} value{'s' * (len(values) != 1)}",
            where=axis,
            hint="a comparison needs at least two",
        )
    return axis, [{**arguments, axis: value} for value in values]


def _label(axis: str, value: Any) -> str:
    from attnscope.studies.compare.runs import spell_side

    if axis == "messages":
        return "chat"
    if axis in ("hide", "mask", "layer", "head") and not (axis == "hide" and value is None):
        return spell_side(axis, PYTHON_READERS[axis](value))
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return spell_side(axis, value)


def compare_texts(texts: Sequence[Any], options: Mapping[str, Any]) -> CompareResult:
    """Run one model, several in turn, or given arrays, for every side."""
    axis, sides = sides_of(texts, options)
    live: dict[str, InMemory] = {}
    chosen_sides = []
    for side in sides:
        values, models = opened(side.get("model"), side, live)
        live |= models
        inputs = given_texts(values, live)
        chosen_sides.append(
            (values, side, texts_of(side["text"], side) if inputs is None else inputs)
        )
    session = new_session(live, texts_of_sides(chosen_sides))
    with running(session, live, options.get("progress")):
        return compare_sides(axis, chosen_sides, options, session)


# Which model runs and how, as fields of a RunConfig; all arguments of the side; and its texts.
ComparedSide = tuple[dict[str, Any], dict[str, Any], tuple[TextInput, ...]]


def texts_of_sides(sides: Sequence[ComparedSide]) -> list[TextInput]:
    """Return the texts of all sides, from which a vocabulary made from texts is built."""
    return [text for *_, texts in sides for text in texts]


def compare_sides(
    axis: str, sides: Sequence[ComparedSide], options: Mapping[str, Any], session: "Session"
) -> CompareResult:
    """Run every side, and compare it with the first."""
    from attnscope.studies.compare.runs import compare_runs, side_of

    runs = []
    for values, side, texts in sides:
        run = RunConfig(**{**run_values(side), **values, "texts": texts})
        value = session.source(run).name if axis in ("model", "qkv") else _label(axis, side[axis])
        runs.append((value, run))
    # Chats become texts.
    axis = "text" if axis == "messages" else axis
    key = runs[0][1].key
    sides_of_axis = [(value, side_of(axis, run)) for value, run in runs]
    selected = [name for name in ("layer", "head") if options.get(name) is not None]
    return CompareResult(
        compare_runs(
            axis, sides_of_axis, key, session.progress, _verdict(options), session, selected
        )
    )


def compare_reports(reports: Sequence[Any], options: Mapping[str, Any]) -> CompareResult:
    """Compare reports with the first of them; no model is needed."""
    from attnscope.studies.compare.runs import (
        ReportSelection,
        check_report_options,
        read_report,
    )
    from attnscope.studies.compare.runs import compare_reports as compare

    check_report_options(options)
    if len(reports) < 2:
        raise UsageError("there is only one report", hint="a comparison needs at least two")
    sides: list[tuple[str, Report]] = []
    for index, report in enumerate(reports):
        if isinstance(report, InspectResult):
            sides.append((f"report {index}", report.data))
        elif isinstance(report, os.PathLike):
            sides.append((os.fsdecode(report), read_report(Path(report))))
        else:
            raise UsageError(
                f"{type(report).__name__} is not a report", hint="pass only reports, or only texts"
            )
    return CompareResult(compare(sides, ReportSelection(**run_values(options)), _verdict(options)))


def compare_arrays(texts: Sequence[Any], options: Mapping[str, Any]) -> CompareResult:
    """Compare a model with queries and keys that another program computed."""
    from attnscope.engines.arrays.making import from_file
    from attnscope.engines.arrays.opening import ArraysInMemory
    from attnscope.studies.compare.runs import refuse_sides, side_of
    from attnscope.studies.compare.with_arrays import compare_with_arrays

    lists = [name for name in options if name in _AXES and isinstance(options[name], list)]
    refuse_sides(lists, "one model and one set of arrays")
    plain = {name: value for name, value in options.items() if name != "qkv"}
    values, live = opened(plain.get("model"), plain)
    sources, arrays = opened(None, {"qkv": options["qkv"]}, live)
    held = arrays.get(sources["qkv"])
    given_arrays = (
        held.given if isinstance(held, ArraysInMemory) else from_file(Path(sources["qkv"]))
    )
    inputs = texts_of(texts[0] if len(texts) == 1 else list(texts), plain) if texts else ()
    run = RunConfig(**{**run_values(plain), **values, "texts": inputs})
    labels = str(values.get("model") or values.get("config")), given_arrays.name
    session = new_session({**live, **arrays}, inputs or given_arrays.inputs)
    selected = [name for name in ("layer", "head") if options.get(name) is not None]
    with running(session, live, options.get("progress")):
        more: Any = {"tolerance": _verdict(options), "session": session, "selected": selected}
        return CompareResult(
            compare_with_arrays(side_of("model", run), given_arrays, labels, run.key, **more)
        )


def are_given_alone(options: Mapping[str, Any]) -> bool:
    """Tell whether arrays are compared with each other, or under several masks, without a model."""
    return isinstance(options["qkv"], list) or all(
        options.get(name) is None for name in ("model", "config")
    )


def compare_given(texts: Sequence[Any], options: Mapping[str, Any]) -> CompareResult:
    """Compare queries and keys of several programs, or the same under several masks; texts come with the arrays."""
    check_combinations((QKV,), {**options, "text": texts or None})
    return compare_texts([""], options)


def _verdict(options: Mapping[str, Any]) -> "Tolerance | None":
    """Return the allowed differences between sides; None if not given."""
    from attnscope.studies.compare.tolerance import Tolerance

    values = read_values(options, COMPARE, "tolerance", "relative")
    return Tolerance.given(values.get("tolerance"), values.get("relative"))
