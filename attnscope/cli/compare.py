"""A text and two or more of something in; what differs between them out: `attnscope compare`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from attnscope.cli import read
from attnscope.cli.options import Machine, Show, Source, Stack, option
from attnscope.cli.selection_options import Overview, Selection
from attnscope.cli.shared import one_of_several, several
from attnscope.errors import UsageError
from attnscope.selection import PRINTED

if TYPE_CHECKING:
    from attnscope.config import RunConfig
    from attnscope.report.compare import Comparison

_LONGEST = 30  # characters of a text that stands for itself
_MASKS = ["causal", "bidirectional"]

EXAMPLES = """
attnscope compare "The bank by the river"
attnscope compare "The bank by the river" --mask own --mask own+window:2 --what-if same-scores
attnscope compare "The bank by the river" --layer 0 --layer 1 --head all
attnscope compare "The bank by the river" --head 0 --head 1 --query bank
attnscope compare "She sat by the river bank" "She sat by the savings bank" --query bank
attnscope compare "The bank by the river" --dtype float32 --dtype bfloat16 --format json
attnscope compare "The bank by the river" --engine native --engine transformers --tolerance 1e-5
attnscope compare before.json after.json --tolerance 1e-5
"""

Texts = several(Source, "text")
Stacks = several(Stack, "model", "config")
Selections = several(Selection, "mask", "layer", "head")
Machines = several(Machine, "dtype", "engine")


@dataclass(frozen=True, kw_only=True)
class Judge:
    """When a difference is too large.

    Attributes:
        tolerance: Largest difference of any cell of any stage that is forgiven.
    """

    tolerance: Annotated[
        float | None,
        option(
            "--tolerance",
            group="What to show",
            metavar="X",
            parser=read.tolerance,
            help="Exit with 1 where any cell differs by more, and name the worst.",
        ),
    ] = None


def compare(
    source: Texts,  # type: ignore[valid-type]
    stack: Stacks,  # type: ignore[valid-type]
    selection: Selections,  # type: ignore[valid-type]
    overview: Overview,
    show: Show,
    machine: Machines,  # type: ignore[valid-type]
    judge: Judge,
) -> None:
    """Show what changes between masks, layers, heads, texts or models.

    Give one option, or the text, several times; without, the causal and the bidirectional mask are compared. Every
    other side is held against the first. Two saved reports (.json) are compared without a model.
    """
    from attnscope.cli.deliver import check_output, deliver

    check_output(show, (".json", ".txt", ".svg"))
    given: dict[str, Any] = {}
    groups = {"source": (Source, source), "stack": (Stack, stack), "selection": (Selection, selection)}
    groups["machine"] = (Machine, machine)
    for _, group in groups.values():
        given |= {name: values for name, values in vars(group).items() if isinstance(values, list)}
    comparison = _saved(given) if _are_reports(given) else _run(given, groups, overview.pool, show)
    deliver(comparison, show)
    if judge.tolerance is not None:
        from attnscope.sides import beyond

        if error := beyond(comparison, judge.tolerance):
            raise error


def _are_reports(given: dict[str, Any]) -> bool:
    texts = given.get("text") or []
    return len(texts) > 1 and all(text.endswith(".json") for text in texts)


def _saved(given: dict[str, Any]) -> "Comparison":
    from pathlib import Path

    from attnscope.sides import compare_files

    return compare_files([Path(path) for path in given["text"]])


def _run(given: dict[str, Any], groups: dict[str, tuple[type, Any]], pool: int | None, show: Show) -> "Comparison":
    from attnscope.cli.deliver import is_table
    from attnscope.cli.progress import progress

    axis, values = _axis(given)
    window = PRINTED if is_table(show) else None
    selection = groups["selection"][1]
    runs: list[tuple[str, RunConfig]] = []
    for value in values:
        sides = {name: one_of_several(kind, many, {axis: value}) for name, (kind, many) in groups.items()}
        label = value if len(value) <= _LONGEST or axis != "text" else f"text {len(runs)}"
        runs.append((label, _side(sides, window, pool, maps=axis != "text", quiet=show.quiet)))
    from attnscope.sides import compare_runs

    with progress(quiet=show.quiet) as tell:
        return compare_runs(axis, runs, selection.key, window, tell)


def _axis(given: dict[str, Any]) -> tuple[str, list[str]]:
    """What there are several of, and which."""
    several = {name: values for name, values in given.items() if len(values) > 1}
    if len(several) > 1:
        names = " and ".join("TEXT" if name == "text" else f"--{name}" for name in several)
        raise UsageError(f"{names} are given several times", hint="compare one thing at a time")
    if several:
        return next(iter(several.items()))
    if "mask" in given:
        raise UsageError(f"there is nothing to compare {given['mask'][0]} with", hint="give --mask twice")
    return "mask", _MASKS


def _side(groups: dict[str, Any], window: int | None, pool: int | None, *, maps: bool, quiet: bool) -> "RunConfig":
    """The run of one side: whole rows of weights, whatever columns are shown; or a map, where no cell was named."""
    from msgspec.structs import replace

    from attnscope.cli.request import run_config

    run = run_config(**groups, window=window, quiet=quiet, pool=pool)
    stages = tuple(dict.fromkeys((*run.stages, "weights")))
    maps = maps and run.query is None and run.key is None and (window is not None or pool is not None)
    return replace(run, key=None if maps else "0:", stages=stages)
