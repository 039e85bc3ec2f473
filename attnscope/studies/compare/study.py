"""`attnscope compare`: what differs between texts, models, masks or settings."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.studies.study import (
    Call,
    FindingsKind,
    Request,
    Sides,
    Study,
    StudyCommand,
    is_saved,
)

if TYPE_CHECKING:
    from attnscope.findings.compare import Comparison
    from attnscope.studies.compare.tolerance import Tolerance

_SHORT = 200  # characters of texts of which a page holds every head


def _call(values: Mapping[str, Any], sides: Sides | None) -> Call:
    from attnscope.request.combinations import check_combinations
    from attnscope.request.options import COMPARE, QKV, WHAT_IF

    is_judged = "tolerance" in values or "relative" in values
    if is_judged and values.get("summary") and not {"format", "json", "output"} & values.keys():
        hint = f"remove it, or add {arg('format', 'table')}"
        raise UsageError("the verdict replaces tables", where=arg("summary"), hint=hint)
    axis, compared = sides or ("", ())
    _check_saved(compared if axis == "text" else [values.get("text")])
    if "qkv" in values and ("model" in values or "config" in values):
        if axis:
            message = "has several values, but one model and one set of arrays are compared"
            raise UsageError(message, where=arg(axis), hint="pass one value")
        return Call("compare", "typed", sides=("qkv", [None, values["qkv"]]), verdict=is_judged)
    if "qkv" in values:
        check_combinations((QKV,), values)
    if axis:
        check_combinations([*COMPARE, WHAT_IF], values)
    return Call("compare", verdict=is_judged)


def _check_saved(texts: Sequence[Any]) -> None:
    """Refuse a saved report alone, or beside several texts."""
    saved = [text for text in texts if is_saved(text)]
    if saved and len(texts) == 1:
        hint = "a comparison needs another, or a text"
        raise UsageError("there is only one report", hint=hint)
    if saved and len(saved) < len(texts) != 2:
        hint = "pass only reports, only texts, or one of each"
        raise UsageError(f"{len(saved)} of {len(texts)} sides are saved reports", hint=hint)


def _answer(request: Request) -> "Comparison":
    from msgspec.structs import replace

    from attnscope.request.selection import AUTO, WALKED
    from attnscope.studies.compare import runs as comparing
    from attnscope.studies.compare.tolerance import Tolerance

    tolerance = Tolerance.given(request.values["tolerance"], request.values["relative"])
    if request.axis == "text" and any(is_saved(text) for text, _ in request.sides):
        return _compare_saved(request, tolerance)
    axis = request.axis
    runs = [run for _, run in request.sides]
    if not runs:
        axis, runs = comparing.default_sides(request.run, request.typed)
    key = request.run.key
    form = request.form
    if form is not None:
        runs = [replace(run, window=form.window) for run in runs]
        if form.page:
            runs = [replace(run, stages=WALKED) for run in runs]
        elif form.window is not None and tolerance is None:
            # of which alone there are tables
            runs = [replace(run, stages=("weights",)) for run in runs]
    labels = [comparing.side_label(axis, run) for run in runs]
    axis = "text" if axis == "chat" else axis  # chats become texts
    selected = [
        name
        for name in ("layer", "head")
        if name in request.typed or getattr(request.run, name) != AUTO
    ]
    more: dict[str, Any] = {
        "tolerance": tolerance,
        "session": request.session,
        "selected": selected,
    }
    if axis == "qkv" and runs[0].qkv is None:
        from attnscope.studies.compare.with_arrays import compare_with_arrays

        model, arrays = runs
        qkv = str(arrays.qkv)
        return compare_with_arrays(comparing.side_of("model", model), qkv, key, **more)
    sides = [(label, comparing.side_of(axis, run)) for label, run in zip(labels, runs, strict=True)]
    is_short = all(len(text.text) <= _SHORT for run in runs for text in run.texts)
    roles = []
    if request.shows_every_head and is_short and axis not in ("layer", "head"):
        from attnscope.studies.run.every_head import RoleRecorders

        roles = [RoleRecorders() for _ in runs]
        request.every_head.append(roles)
    every_head = bool(roles) or bool(request.values["summary"])
    return comparing.compare_runs(axis, sides, key, every_head=every_head, roles=roles, **more)


def _compare_saved(request: Request, tolerance: "Tolerance | None") -> "Comparison":
    """Compare saved reports with each other, or one with a text that runs as it was made."""
    from attnscope.studies.compare import runs as comparing

    runs = [run for value, run in request.sides if not is_saved(value)]
    if not runs:
        comparing.check_report_options(request.typed)
    wanted = comparing.wanted_of(request.run, request.typed)
    reports = [
        comparing.labelled_report(index, value)
        for index, (value, _) in enumerate(request.sides)
        if is_saved(value)
    ]
    if not runs:
        return comparing.compare_reports(reports, wanted, tolerance)
    return comparing.compare_with_report(
        reports[0], runs[0], request.typed, wanted, tolerance, request.session
    )


def _failure(comparison: "Comparison") -> AttnscopeError | None:
    from attnscope.studies.compare.tolerance import failure

    return failure(comparison)


STUDY = Study(
    (
        FindingsKind(
            "compare",
            "compare:Comparison",
            "compare.screen:present_comparison",
            page="compare.page:present_page",
        ),
    ),
    StudyCommand(
        """Show what changes between masks, layers, heads, texts or models.

        Repeat one option, or the text, to compare its values; the first is the reference. By default, compares the
        causal with the bidirectional mask. Saved reports (.json) are compared without a model, or one with a text that
        runs as it was made; --layer, --head, --query, --key and --stage select from what they hold. Tables of texts
        over 64 tokens show maps; tables of selected rows, and of two texts, show the rows and columns where most weight
        moves.
        """,
        """
        attnscope compare "The bank by the river"
        attnscope compare "The bank by the river" --mask own --mask own+window:2
        attnscope compare "A river bank" "A savings bank" --query bank
        attnscope compare before.json after.json --tolerance 1e-5
        attnscope compare golden.json "The bank by the river" --tolerance 1e-5
        attnscope compare "The bank by the river" --mask own --mask causal --what-if same-scores
        attnscope compare "The bank by the river" --hide The
        attnscope compare "The bank by the river" --layer 0 --layer 1 --head all
        attnscope compare "The bank by the river" --head 0 --head 1 --query bank
        attnscope compare "The bank by the river" --dtype float32 --dtype bfloat16 --json
        attnscope compare "The bank by the river" --engine native --engine transformers --tolerance 1e-5
        attnscope compare --qkv vllm.npz --model ./my-llama
        attnscope compare before.json after.json --relative 1e-3 --tolerance 1e-6 --layer 3 --format table
        """,
        _answer,
        own=(),
        call=_call,
        failed=_failure,
    ),
)
