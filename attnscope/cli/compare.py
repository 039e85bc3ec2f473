"""The command `attnscope compare`: show what changes between masks, layers, heads, texts or models."""

from typing import TYPE_CHECKING, Any

from attnscope.base.errors import UsageError, arg
from attnscope.cli.parameters import Given, Several, Sides
from attnscope.request.combinations import check_combinations
from attnscope.request.options import COMPARE, QKV, SHOW, WHAT_IF
from attnscope.request.selection import ALL, PAGE, PRINTED, WALKED, join_label

if TYPE_CHECKING:
    from attnscope.findings.compare import Comparison
    from attnscope.studies.compare.runs import ReportSelection
    from attnscope.studies.compare.tolerance import Tolerance
    from attnscope.studies.run.every_head import RoleRecorders

EXAMPLES = """
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
"""

_SHORT = 200  # characters of texts of which a page holds every head
_WANTED = ("layer", "head", "query", "key", "stages")  # what saved reports are narrowed down to


def compare(options: Given) -> None:
    """Show what changes between masks, layers, heads, texts or models.

    Repeat one option, or the text, to compare its values; the first is the reference. By default, compares the causal
    with the bidirectional mask. Saved reports (.json) are compared without a model, or one with a text that runs as it
    was made; --layer, --head, --query, --key and --stage select from what they hold. Tables of texts over 64 tokens
    show maps; tables of selected rows, and of two texts, show the rows and columns where most weight moves.
    """
    from attnscope.cli.deliver import check_output, deliver, put, require_plain_reading
    from attnscope.studies.compare.tolerance import Tolerance, failure

    check_output(options, "compare")
    sides = Sides(options, COMPARE)
    tolerance = Tolerance.given(options.tolerance, options.relative)
    if (
        tolerance is not None
        and options.summary
        and options.format is None
        and options.output is None
    ):
        hint = f"remove it, or add {arg('format', 'table')}"
        raise UsageError("the verdict replaces tables", where=arg("summary"), hint=hint)
    roles: list[RoleRecorders] = []
    texts = sides.several.get("text", [])
    reports = [text for text in texts if text.lower().endswith(".json")]
    if len(texts) > 1 and reports == texts:
        comparison = _compare_reports(sides.several, options, tolerance)
    elif len(texts) == 2 and len(reports) == 1:
        comparison = _compare_with_report(sides, reports[0], options, tolerance)
    else:
        comparison = _compare_runs(sides, options, tolerance, roles)
    if tolerance is None or options.format is not None or options.output is not None:
        deliver(
            comparison,
            options,
            every_head=roles,
        )
    if tolerance is not None:
        if options.format is None:
            put(comparison, options, format="verdict")
        if error := failure(comparison):
            raise error
        if options.strict:
            require_plain_reading(comparison)


def _compare_reports(
    several: Several, options: Given, tolerance: "Tolerance | None"
) -> "Comparison":
    from pathlib import Path

    from attnscope.base.system.escape import as_unicode
    from attnscope.studies.compare.runs import check_report_options, compare_reports, read_report

    names = (option.name for option in COMPARE if option.group != SHOW and option.name != "text")
    check_report_options(name for name in names if name in options.typed)
    reports = [(as_unicode(path), read_report(Path(path))) for path in several["text"]]
    return compare_reports(reports, _wanted(options), tolerance)


def _wanted(given: Given) -> "ReportSelection":
    """Return what saved reports are narrowed down to."""
    from attnscope.studies.compare.runs import ReportSelection

    values = {name: getattr(given, name) for name in _WANTED if name in given.typed}
    for name in ("layer", "head"):
        if len(values.get(name, [""])) > 1:
            hint = "pass it once, such as 0,1"
            raise UsageError(
                "saved reports are compared layer by layer and head by head",
                where=arg(name),
                hint=hint,
            )
        if name in values:
            values[name] = values[name][0]
    if "layer" in values or "head" in values:
        values["layer"], values["head"] = join_label(
            values.get("layer", ALL), values.get("head", ALL)
        )
    if values.get("stages") == ():
        values["stages"] = ("weights",)
    return ReportSelection(**values)


def _compare_with_report(
    sides: Sides, path: str, given: Given, tolerance: "Tolerance | None"
) -> "Comparison":
    """Run the text with the model, and compare it with a saved report."""
    from pathlib import Path

    from attnscope.base.system.escape import as_unicode
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import read_texts, run_config
    from attnscope.studies.compare.runs import compare_with_report, read_report, refuse_sides

    several = sides.several
    repeated = [name for name, values in several.items() if len(values) > 1 and name != "text"]
    refuse_sides(repeated, "a text and a saved report")
    (text,) = (text for text in several["text"] if text != path)
    side = sides.side("text", text)
    run = run_config(read_texts(side), side)
    saved = as_unicode(path), read_report(Path(path))
    with progress(quiet=given.quiet) as on_progress:
        return compare_with_report(saved, run, given.typed, _wanted(given), tolerance, on_progress)


def _compare_runs(
    sides: Sides, options: Given, tolerance: "Tolerance | None", roles: "list[RoleRecorders]"
) -> "Comparison":
    from msgspec.structs import replace

    from attnscope.cli.deliver import file_format
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import read_texts, run_config
    from attnscope.request.masks.expression import parse_mask
    from attnscope.studies.compare.runs import compare_runs, default_sides, side_of, spell_side

    form = file_format(options)
    window = PAGE if form.page else PRINTED if form.drawn else None
    several = sides.several
    if "qkv" in several and {"model", "config"} & options.typed:
        return _compare_arrays(sides, options, tolerance, window)
    given = {name: getattr(options, name) for name in (*options.typed, *options.settings)}
    if "qkv" in several:
        check_combinations((QKV,), given)
    named_axis = sides.axis()
    if named_axis is not None:
        check_combinations([*COMPARE, WHAT_IF], given)
    one_of_each = {name: values[0] for name, values in several.items() if name in options.typed}
    axis, values = named_axis or default_sides(one_of_each.get("mask"), one_of_each.get("hide"))
    if axis == "mask" and named_axis is None:
        values = [parse_mask(mask) for mask in values]
    compared = "text" if axis == "chat" else axis  # chats become texts
    runs = []
    read: dict[Any, Any] = {}  # standard input can be read only once
    selected = [name for name in ("layer", "head") if name in several]
    for value in values:
        side = sides.side(axis, value)
        source = side.text, side.chat, side.qkv
        if source not in read:
            read[source] = read_texts(side)
        run = run_config(read[source], side, window=window)
        if form.page:
            run = replace(run, stages=WALKED)
        elif window is not None and tolerance is None:
            run = replace(run, stages=("weights",))  # of which alone there are tables
        runs.append((spell_side(axis, value), side_of(compared, run)))

    short = all(len(text.text) <= _SHORT for _, run in runs for text in run.texts)
    every_head = form.page and short and compared not in ("layer", "head")
    if every_head:
        from attnscope.studies.run.every_head import RoleRecorders

        roles += [RoleRecorders() for _ in runs]
    with progress(quiet=options.quiet) as on_progress:
        return compare_runs(
            compared,
            runs,
            options.key,
            on_progress,
            tolerance,
            selected=selected,
            every_head=every_head or options.summary,
            roles=roles,
        )


def _compare_arrays(
    sides: Sides, options: Given, tolerance: "Tolerance | None", window: int | None
) -> "Comparison":
    """Compare a model with queries and keys that another program computed, on the text that is typed or in the file."""
    from pathlib import Path

    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import read_texts, run_config
    from attnscope.engines.arrays.making import from_file
    from attnscope.studies.compare.runs import refuse_sides, side_of
    from attnscope.studies.compare.with_arrays import compare_with_arrays

    several = sides.several
    repeated = [name for name, values in several.items() if len(values) > 1]
    refuse_sides(repeated, "one model and one set of arrays")
    side = sides.side()
    side.qkv = None
    texts = read_texts(side) if side.text is not None or side.file is not None else ()
    run = run_config(texts, side, window=window)
    selected = [name for name in ("layer", "head") if name in several]
    path = several["qkv"][0]
    labels = str(run.model or run.config), path
    with progress(quiet=options.quiet) as on_progress:
        return compare_with_arrays(
            side_of("model", run),
            from_file(Path(path)),
            labels,
            options.key,
            progress=on_progress,
            tolerance=tolerance,
            selected=selected,
        )
