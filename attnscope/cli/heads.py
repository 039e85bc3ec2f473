"""The command `attnscope heads`: show what every head of a model does."""

from typing import Any

from attnscope.cli.parameters import Given
from attnscope.request import arguments

EXAMPLES = """
attnscope heads
attnscope heads --model ./my-llama --role induction
attnscope heads --model ./my-bert --output heads.csv
attnscope heads "The bank by the river" --query bank --key river
attnscope heads "The bank by the river" --measure entropy
attnscope heads --file texts.txt --json | jq .main
"""


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
