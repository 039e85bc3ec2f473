"""The command `attnscope heads`: show what every head of a model does."""

from typing import Any

from attnscope.base.errors import UsageError, arg
from attnscope.cli.parameters import Given
from attnscope.request import arguments

EXAMPLES = """
attnscope heads
attnscope heads --model ./my-llama --role induction
attnscope heads --model ./my-bert --output heads.csv
attnscope heads "The bank by the river" --query bank --key river
attnscope heads "The bank by the river" --measure entropy
attnscope heads --file texts.txt --json | jq .main
attnscope heads --needle "The bank was old" --lengths 32,40 --depths 0,0.5,1 --model ./my-gpt2
"""

_LARGEST = 64 << 20  # bytes of a filler


def heads(given: Given) -> None:
    """Show which head does what.

    Measures the roles of every head on texts (by default built-in ones) and on random tokens, and draws a grid of
    layers × heads: the letter is the head's main role, the shade its strength. With --key or --measure, draws one
    number for every head instead.
    """
    from attnscope.cli.deliver import check_output, deliver
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import read_texts, run_config
    from attnscope.studies.heads.screen import Listing

    if given.needle is not None:
        _find_needle(given)
        return
    for name in ("answer", "filler", "lengths", "depths"):
        if getattr(given, name) is not None:
            hint = f"add {arg('needle', placeholder='TEXT')}"
            raise UsageError(f"applies only to {arg('needle')}", where=arg(name), hint=hint)
    check_output(given, "heads")
    question = arguments.asks_one_number(vars(given))
    run = run_config(read_texts(given, built_in=not question), given, measure="weights", top=3)
    from attnscope.studies.heads.question import ask_heads
    from attnscope.studies.heads.run import SurveyOptions, survey_heads

    with progress(quiet=given.quiet) as on_progress:
        if question:
            findings: Any = ask_heads(run, given.measure or "weight", on_progress)
        else:
            counts = {name: getattr(given, name) for name in ("draws", "seed") if getattr(given, name) is not None}
            findings = survey_heads(run, SurveyOptions(given.role, **counts), on_progress)
    deliver(findings, given, Listing(given.top, given.sort))


def _find_needle(given: Given) -> None:
    """Show how much retrieval heads read of a needle, by length and depth."""
    from attnscope.base.files.reading import read_file
    from attnscope.cli.deliver import check_output, deliver
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import run_config
    from attnscope.studies.heads.needle import DEPTHS, LENGTHS, NeedleOptions, decode_filler, find_needle

    for name in ("text", "file", "chat", "pair", "context", "query", "key", "spans", "role", "measure", "hide", "top"):
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
