"""The command `attnscope heads`: show what every head of a model does."""

from typing import Any

from attnscope.base.errors import UsageError, arg
from attnscope.cli.parameters import Given
from attnscope.cli.sides import Sides
from attnscope.request import arguments
from attnscope.request.options import HEADS

EXAMPLES = """
attnscope heads
attnscope heads --model ./my-llama --role induction
attnscope heads --model ./my-bert --output heads.csv
attnscope heads "The bank by the river" --query bank --key river
attnscope heads "The bank by the river" --query bank --key river --against by
attnscope heads "The bank by the river" --measure entropy
attnscope heads --file texts.txt --json | jq .main
attnscope heads --model ./my-llama --model ./my-llama-tuned
attnscope heads --model ./my-llama --adapter none --adapter ./my-lora --role induction
attnscope heads --needle "The bank was old" --lengths 32,40 --depths 0,0.5,1 --model ./my-gpt2
"""

_LARGEST = 64 << 20  # bytes of a filler


def heads(given: Given) -> None:
    """Show which head does what.

    Measures the roles of every head on texts (by default built-in ones) and on random tokens, and draws a grid of
    layers × heads: the letter is the head's main role, the shade its strength. With --key or --measure, draws one
    number for every head instead. With two models (or adapters, configs, dtypes or engines), shows which heads differ,
    the largest change first.
    """
    from attnscope.cli.deliver import check_output, deliver
    from attnscope.cli.progress import progress
    from attnscope.studies.study import Listing

    sides = Sides(given, HEADS)
    axis, given = sides.axis(), sides.side()
    if given.needle is not None:
        if axis is not None:
            hint = f"remove {arg('needle')}, or measure one model after the other"
            raise UsageError("heads of two models are compared by roles or one number", where=arg(axis[0]), hint=hint)
        _find_needle(given)
        return
    for name in ("answer", "filler", "lengths", "depths"):
        if getattr(given, name) is not None:
            hint = f"add {arg('needle', placeholder='TEXT')}"
            raise UsageError(f"applies only to {arg('needle')}", where=arg(name), hint=hint)
    if given.words and given.query is None and given.key is None:
        hint = "remove it"
        raise UsageError(f"applies only to {arg('query')} and {arg('key')}", where=arg("words"), hint=hint)
    check_output(given, "heads")
    question = arguments.asks_one_number(vars(given))
    labelled = _sides(sides, axis, given, built_in=not question)
    with progress(quiet=given.quiet) as on_progress:
        measured = [(label, _measure(side, texts, on_progress, question=question)) for label, side, texts in labelled]
    findings: Any = measured[0][1]
    if axis is not None:
        from attnscope.studies.heads.changes import compare_heads

        findings = compare_heads(axis[0], measured)
    deliver(findings, given, Listing(given.top, given.sort))


def _sides(
    sides: Sides, axis: tuple[str, list[Any]] | None, given: Given, *, built_in: bool
) -> list[tuple[str, Given, Any]]:
    """Return label, options and texts of every model; standard input is read once."""
    from attnscope.cli.run_config import read_texts

    if axis is None:
        return [("", given, read_texts(given, built_in=built_in))]
    from attnscope.studies.heads.changes import require_two

    name, values = axis
    require_two(name, values)
    chosen = [sides.side(name, value) for value in values]
    texts = [read_texts(side) for side in chosen] if name == "qkv" else [read_texts(given, built_in=built_in)] * 2
    labels = ["none" if value is None else str(value) for value in values]
    return list(zip(labels, chosen, texts, strict=True))


def _measure(given: Given, texts: Any, on_progress: Any, *, question: bool) -> Any:
    """Measure the heads of one model: roles, or one number."""
    from attnscope.cli.run_config import run_config

    run = run_config(texts, given, measure="weights", top=3)
    if question:
        from attnscope.studies.heads.question import ask_heads

        return ask_heads(run, given.measure or "weight", on_progress, against=given.against)
    from attnscope.studies.heads.run import SurveyOptions, survey_heads

    counts = {name: getattr(given, name) for name in ("draws", "seed") if getattr(given, name) is not None}
    return survey_heads(run, SurveyOptions(given.role, **counts), on_progress)


def _find_needle(given: Given) -> None:
    """Show the weight of retrieval heads on a needle, by length and depth."""
    from attnscope.base.files.reading import read_file
    from attnscope.cli.deliver import check_output, deliver
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import run_config
    from attnscope.studies.heads.needle import DEPTHS, LENGTHS, NeedleOptions, decode_filler, find_needle

    of_texts = ("text", "file", "chat", "pair", "context", "query", "key", "against", "spans", "hide")
    for name in (*of_texts, "role", "measure", "top"):
        if getattr(given, name, None):
            hint = f"remove it, or {arg('needle')}"
            raise UsageError(f"cannot be used with {arg('needle')}", where=arg(name), hint=hint)
    check_output(given, "needle")
    filler = None
    if given.filler is not None:
        filler = decode_filler(read_file(given.filler, cap=_LARGEST), given.filler)
    given_counts = {name: getattr(given, name) for name in ("draws", "seed") if getattr(given, name) is not None}
    options = NeedleOptions(
        given.needle, given.answer, filler, given.lengths or LENGTHS, given.depths or DEPTHS, **given_counts
    )
    run = run_config((), given, measure="weights", top=3)
    with progress(quiet=given.quiet) as on_progress:
        findings = find_needle(run, options, on_progress)
    deliver(findings, given)
