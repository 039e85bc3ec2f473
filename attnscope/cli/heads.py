"""The command `attnscope heads`: show what every head of a model does."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument

from attnscope.cli import completion
from attnscope.cli.option_groups import subset_of
from attnscope.cli.options import (
    SHOW,
    TEXT,
    MachineOptions,
    ModelOptions,
    TableOutputOptions,
    TextOptions,
    choice,
    exported,
    option,
    output_option,
    precision_option,
)
from attnscope.cli.process import PATIENCE
from attnscope.cli.selection_options import SelectionOptions, top_option
from attnscope.request import arguments

_MEASURE = "What to measure"

EXAMPLES = """
attnscope heads
attnscope heads --model ./my-llama --role induction
attnscope heads --model ./my-bert --output heads.csv
attnscope heads "The bank by the river" --query bank --key river
attnscope heads "The bank by the river" --measure entropy
attnscope heads --file texts.txt --json | jq .main
"""

Sort = Literal["value", "layer"]
Masking = subset_of(SelectionOptions, "query", "key", "mask", "what_if", "hide")


@dataclass(frozen=True, kw_only=True)
class SurveyTextOptions(TextOptions):
    """The texts to measure heads on.

    Attributes:
        text: The text, or `-` for standard input; None for what is piped, or the built-in texts.
    """

    text: Annotated[
        str | None,
        Argument(
            metavar="TEXT",
            help="Text to measure on; - reads standard input. Default: what is piped "
            f"(if it begins within {PATIENCE} seconds), or built-in texts; --key and --measure need a text.",
            rich_help_panel=TEXT,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class HeadsOptions:
    """What is measured of heads.

    Attributes:
        role: Names of roles, joined by commas.
        measure: One number instead of roles.
        draws: Number of random sequences of each kind; None for the default.
        seed: Of the random tokens; None for the default.
        top: Heads listed.
        sort: In which order.
    """

    role: Annotated[
        str | None,
        option(
            "--role",
            group=_MEASURE,
            metavar="ROLES",
            parser=arguments.roles,
            autocompletion=completion.roles,
            help="Show only these roles, separated by commas, with their values for every head; see Roles below.",
        ),
    ] = None
    measure: Annotated[
        str | None,
        option(
            "--measure",
            group=_MEASURE,
            metavar="NAME",
            parser=arguments.measure,
            autocompletion=completion.measures,
            help="One number for every head instead of roles: weight, value or projected (of --key, averaged over "
            "--query; default with --key: weight), or a statistic of the average row: {row_statistics}.",
        ),
    ] = None
    draws: Annotated[
        int | None,
        option(
            "--draws",
            group=_MEASURE,
            metavar="N",
            parser=arguments.number("--draws", *arguments.DRAWS),
            help="Number of random sequences of each kind; default: 8.",
        ),
    ] = None
    seed: Annotated[
        int | None,
        option(
            "--seed",
            group=_MEASURE,
            metavar="N",
            parser=arguments.number("--seed", 0),
            help="Seed of the random tokens; default: 0.",
        ),
    ] = None
    top: Annotated[
        int | None,
        top_option(
            "Heads to list for each role; default: as many as fit on a line, or 10 for a single role.",
            lowest=1,
            group=SHOW,
        ),
    ] = None
    sort: Annotated[Sort, choice("--sort", Sort, group=SHOW, help="Order of the listed heads.")] = "value"


@dataclass(frozen=True, kw_only=True)
class HeadsOutputOptions(TableOutputOptions):
    """Where the findings go, and how they look.

    Attributes:
        format: See TableOutputOptions.
        output: A file instead.
        precision: Digits after the point.
    """

    output: Annotated[Path | None, output_option(exported("heads"))] = None
    precision: Annotated[
        int, precision_option("Decimal places of --measure; files other than pictures and .txt are exact.")
    ] = 2


def heads(
    source: SurveyTextOptions,
    stack: ModelOptions,
    masking: Masking,  # type: ignore[valid-type]
    asked: HeadsOptions,
    show: HeadsOutputOptions,
    machine: MachineOptions,
) -> None:
    """Show which head does what.

    Measures the roles of every head on texts (by default built-in ones) and on random tokens, and draws a grid of
    layers × heads: the letter is the head's main role, the shade its strength. With --key or --measure, draws one
    number for every head instead.
    """
    from attnscope.cli.deliver import check_output, deliver
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import read_texts, run_config
    from attnscope.studies.heads.screen import Listing

    check_output(show, "heads", source, stack, masking)
    values: dict[str, Any] = dict(vars(masking))
    question = arguments.asks_one_number({**values, **vars(asked)})
    selection = SelectionOptions(**values)
    texts = read_texts(source, quiet=show.quiet, built_in=not question)
    run = run_config(texts, stack, selection, machine, window=None)
    from attnscope.studies.heads.question import ask_heads
    from attnscope.studies.heads.run import SurveyOptions, survey_heads

    with progress(quiet=show.quiet) as on_progress:
        if question:
            found: Any = ask_heads(run, asked.measure or "weight", on_progress)
        else:
            roles = None if asked.role is None else tuple(asked.role.split(","))
            counts = {name: getattr(asked, name) for name in ("draws", "seed") if getattr(asked, name) is not None}
            found = survey_heads(run, SurveyOptions(roles, **counts), on_progress)
    deliver(found, show, Listing(asked.top, asked.sort))
