"""The command `attnscope check`: check that a model's attention can be trusted."""

from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Exit

from attnscope.base.errors import Exit as Failed
from attnscope.cli.options import (
    DATA_ONLY,
    FormatOptions,
    MachineOptions,
    ModelOptions,
    TextOptions,
    context_option,
    quiet_option,
    tolerance_option,
    verbose_option,
)
from attnscope.request import arguments

EXAMPLES = """
attnscope check
attnscope check --model ./my-bert
attnscope check "Water ran over the old stones" --model ./my-llama --dtype bfloat16
attnscope check --model ./my-t5 --engine transformers --part cross --context "Wasser"
attnscope check --model ./my-bert --json | jq .checks
"""


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What is checked, and when it fails.

    Attributes:
        text: The text, or `-` for standard input; None for built-in texts.
        context: Where keys and values come from under cross-attention.
        tolerance: Largest allowed difference.
        quiet: Print the table alone.
        verbose: Print all that is known about the model, and the differences of each layer.
    """

    text: Annotated[
        str | None,
        Argument(
            metavar="TEXT",
            help="Text to run the checks on; - reads standard input, which is not read otherwise. Default: built-in "
            "texts of several kinds.",
        ),
    ] = None
    context: Annotated[str | None, context_option()] = None
    tolerance: Annotated[
        float | None,
        tolerance_option("Largest allowed difference; default: what rounding explains in the model's --dtype."),
    ] = None
    quiet: Annotated[bool, quiet_option(DATA_ONLY)] = False
    verbose: Annotated[
        bool, verbose_option("Show the model's full path, its device, all notes, and the differences of each layer.")
    ] = False


def check(checked: CheckOptions, show: FormatOptions, stack: ModelOptions, machine: MachineOptions) -> None:
    """Check that the numbers shown for a model are right.

    Tests what always holds for attention (rows sum to 1, …) on every layer and head, and compares with eager
    transformers if it is installed.
    Exits with 0 if every check passes, with 1 if one fails.
    """
    import sys

    from attnscope.cli.deliver import page, write_bytes
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import read_texts
    from attnscope.request.run_config import RunConfig

    # built-in also if something is piped: `while read -r name; do attnscope check -m "$name"; done`
    texts = arguments.CHECKED_TEXTS if checked.text is None else (checked.text,)
    named = [TextOptions(text=text, context=checked.context) for text in texts]
    run = RunConfig(
        texts=tuple(text for one in named for text in read_texts(one, quiet=checked.quiet, reads_files=False)),
        **stack.chosen(),
        **vars(machine),
    )
    from attnscope.engines.torch_setup import import_torch

    import_torch()
    from attnscope.studies.check import screen as view
    from attnscope.studies.check.run import check as check_model

    with progress(quiet=checked.quiet) as on_progress:
        report = check_model(run, checked.tolerance, on_progress, built_in=checked.text is None)
    if show.format == "json":
        write_bytes(view.as_json(report))
    else:
        hint = " (--verbose: the differences of each layer)"
        sys.stdout.write(view.as_text(report, page(), data_only=checked.quiet, verbose=checked.verbose, hint=hint))
    if not report.passed:
        raise Exit(Failed.FAILED)
