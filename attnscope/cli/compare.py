"""The command `attnscope compare`: show what differs between masks, heads, texts or models."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context

from attnscope.base.errors import UsageError
from attnscope.cli.option_groups import pick_values, repeatable, several_values
from attnscope.cli.options import (
    MachineOptions,
    ModelOptions,
    OutputOptions,
    TextOptions,
    exported,
    output_option,
    precision_option,
    tolerance_option,
)
from attnscope.cli.selection_options import STAGES, OverviewOptions, SelectionOptions, stage_option
from attnscope.request.selection import PRINTED, parse_unit

if TYPE_CHECKING:
    from attnscope.findings.compare import Comparison
    from attnscope.request.run_config import RunConfig, TextInput
    from attnscope.studies.compare.tolerance import Tolerance

EXAMPLES = """
attnscope compare "The bank by the river"
attnscope compare "The bank by the river" --mask own --mask own+window:2 --what-if same-scores
attnscope compare "The bank by the river" --hide The
attnscope compare "The bank by the river" --layer 0 --layer 1 --head all
attnscope compare "The bank by the river" --head 0 --head 1 --query bank
attnscope compare "She sat by the river bank" "She sat by the savings bank" --query bank
attnscope compare "The bank by the river" --dtype float32 --dtype bfloat16 --format json
attnscope compare "The bank by the river" --engine native --engine transformers --tolerance 1e-5
attnscope compare before.json after.json --tolerance 1e-5
attnscope compare before.json after.json --relative 1e-3 --tolerance 1e-6 --layer 3 --format table
"""


@dataclass(frozen=True, kw_only=True)
class CompareSelectionOptions(SelectionOptions):
    """What is compared.

    Attributes:
        stage: Stages that a tolerance judges, and that data has; None where the user left that to us.
    """

    stage: Annotated[
        str | None,
        stage_option(
            "Stages that --tolerance compares and json has (tables show the weights)", f"; default: {STAGES}."
        ),
    ] = None


Texts = repeatable(TextOptions, "text")
Stacks = repeatable(ModelOptions, "model", "config", "adapter", "tokenizer")
Selections = repeatable(CompareSelectionOptions, "mask", "hide", "layer", "head")
Machines = repeatable(MachineOptions, "dtype", "engine")


@dataclass(frozen=True, kw_only=True)
class ToleranceOptions:
    """When a difference is too large.

    Attributes:
        tolerance: Largest difference that is tolerated: of any weight, and of a cell of another stage as a share of
            the largest value of its layer.
        relative: The same as a share of the first side's value; both together add up, as in NumPy.
    """

    tolerance: Annotated[
        float | None,
        tolerance_option(
            "Fail (exit code 1) if any weight differs by more than X, or a cell of another stage by more than X times "
            "the largest value of its layer; all layers and heads unless selected. Print a one-line verdict and the "
            "worst cell of every stage instead of tables (--format prints both)."
        ),
    ] = None
    relative: Annotated[
        float | None,
        tolerance_option("Allow R·|first| on top, as in numpy.testing.assert_allclose.", "--relative", "R"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CompareOutputOptions(OutputOptions):
    """Where the findings go, and how they look.

    Attributes:
        output: A file instead of standard output.
        precision: Digits after the point in tables.
    """

    output: Annotated[Path | None, output_option(exported("compare"))] = None
    precision: Annotated[int, precision_option("Decimal places in tables; json is exact.")] = 2


def compare(
    typer: Context,
    source: Texts,  # type: ignore[valid-type]
    stack: Stacks,  # type: ignore[valid-type]
    selection: Selections,  # type: ignore[valid-type]
    overview: OverviewOptions,
    show: CompareOutputOptions,
    machine: Machines,  # type: ignore[valid-type]
    judge: ToleranceOptions,
) -> None:
    """Show what changes between masks, layers, heads, texts or models.

    Repeat one option, or the text, to compare its values; the first is the reference. By default, compares the causal
    with the bidirectional mask. Two saved reports (.json) are compared without a model; --layer, --head, --query,
    --key and --stage select from what they hold. Tables of texts over 64 tokens show maps; of selected rows, and of two
    texts, they show the rows and columns where most weight moves.
    """
    from attnscope.cli.deliver import check_output, deliver, is_table, put

    check_output(show, "compare", source, stack, selection)
    given: dict[str, Any] = {}
    groups = {
        "source": (TextOptions, source),
        "stack": (ModelOptions, stack),
        "selection": (CompareSelectionOptions, selection),
    }
    groups["machine"] = (MachineOptions, machine)
    for kind, group in groups.values():
        given |= several_values(kind, group)
    tolerance = _tolerance(judge)
    if tolerance is None and is_table(show):
        _check_shown(selection)
    if _are_reports(given):
        comparison = _saved(typer, given, selection, tolerance)
    else:
        comparison = _run(given, groups, overview.pool, show, tolerance)
    if tolerance is None or show.format is not None or show.output is not None:
        deliver(comparison, show)
    if tolerance is not None:
        from attnscope.studies.compare.tolerance import failure

        if show.format is None:
            put(comparison, show, "verdict")
        if error := failure(comparison):
            raise error


def _check_shown(selection: Any) -> None:
    """Refuse stages that a table would leave out."""
    if selection.stage not in (None, "weights"):
        hint = "add --tolerance X or --format json, or remove --stage"
        raise UsageError("tables show the weights; json and --tolerance have other stages", where="--stage", hint=hint)


def _tolerance(judge: ToleranceOptions) -> "Tolerance | None":
    if judge.tolerance is None and judge.relative is None:
        return None
    from attnscope.studies.compare.tolerance import Tolerance

    return Tolerance(judge.tolerance or 0.0, judge.relative or 0.0)


def _are_reports(given: dict[str, Any]) -> bool:
    texts = given.get("text") or []
    return len(texts) > 1 and all(text.lower().endswith(".json") for text in texts)


_OF_REPORTS = (
    "text",
    *(f.name for group in (OutputOptions, ToleranceOptions) for f in fields(group)),
)  # what saved reports allow
_WANTED = ("layer", "head", "query", "key", "stage")  # what they narrow down to


def _saved(typer: Context, given: dict[str, Any], selection: Any, tolerance: "Tolerance | None") -> "Comparison":
    from attnscope.studies.compare.runs import Wanted, compare_files

    typed = [name for name in typer.params if _typed(typer, name)]
    for name in typed:
        if name not in (*_OF_REPORTS, *_WANTED):
            hint = "pass texts, or remove the option"
            raise UsageError("does not apply to saved reports", where=f"--{name.replace('_', '-')}", hint=hint)
    values = {name: getattr(selection, name) for name in _WANTED if name in typed}
    for name in ("layer", "head"):
        if len(values.get(name, [""])) > 1:
            hint = "pass it once, such as 0,1"
            raise UsageError("saved reports are compared layer by layer and head by head", where=f"--{name}", hint=hint)
        if name in values:
            values[name] = values[name][0]
    if "layer" in values or "head" in values:
        values["layer"], values["head"] = parse_unit(values.get("layer", "all"), values.get("head", "all"))
    if stages := values.pop("stage", None):
        values["stages"] = ("weights",) if stages == "none" else tuple(stages.split(","))
    return compare_files([Path(path) for path in given["text"]], Wanted(**values), tolerance)


def _typed(typer: Context, name: str) -> bool:
    source = typer.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _run(
    given: dict[str, Any],
    groups: dict[str, tuple[type, Any]],
    pool: int | None,
    show: OutputOptions,
    tolerance: "Tolerance | None",
) -> "Comparison":
    from msgspec.structs import replace

    from attnscope.cli.deliver import is_table
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import read_texts, run_config
    from attnscope.studies.compare.runs import compare_runs, side_of

    axis, values = _axis(given)
    window = PRINTED if is_table(show) else None
    selection = groups["selection"][1]
    selected = [name for name in ("layer", "head") if getattr(selection, name) is not None]
    runs: list[tuple[str, RunConfig]] = []
    texts: dict[TextOptions, tuple[TextInput, ...]] = {}  # standard input can be read only once
    for value in values:
        side = {name: pick_values(kind, many, {axis: value}) for name, (kind, many) in groups.items()}
        source = side.pop("source")
        if source not in texts:
            texts[source] = read_texts(source, quiet=show.quiet)
        run = run_config(texts[source], **side, window=window, pool=pool)
        if window is not None and tolerance is None:
            run = replace(run, stages=("weights",))  # of which alone there are tables
        runs.append((value, side_of(axis, run)))

    with progress(quiet=show.quiet) as on_progress:
        return compare_runs(axis, runs, selection.key, on_progress, tolerance, selected=selected)


def _axis(given: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the option that was given several times, with its values."""
    several = {name: values for name, values in given.items() if len(values) > 1}
    if len(several) > 1:
        names = " and ".join("TEXT" if name == "text" else f"--{name}" for name in several)
        raise UsageError(f"{names} are given more than once", hint="repeat only one of them")
    if several:
        return next(iter(several.items()))
    if "mask" in given:
        raise UsageError(f"nothing to compare {given['mask'][0]} with", hint="pass --mask twice")
    if "hide" in given:
        return "hide", ["none", *given["hide"]]
    return "mask", ["causal", "bidirectional"]
