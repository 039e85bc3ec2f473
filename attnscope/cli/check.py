"""The command `attnscope check`: check that a model's attention can be trusted."""

from dataclasses import dataclass
from typing import Annotated, Literal

from typer import Argument, Exit

from attnscope import arguments
from attnscope.cli.options import MachineOptions, ModelOptions, option
from attnscope.errors import Exit as Failed

CheckFormat = Literal["table", "json"]

EXAMPLES = """
attnscope check
attnscope check --model ./my-bert
attnscope check "Water ran over the old stones" --model ./my-llama --dtype bfloat16
attnscope check --model ./my-t5 --engine transformers --part cross --context "Wasser"
attnscope check --model ./my-bert --format json | jq .checks
"""


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What is checked, and when it fails.

    Attributes:
        text: The text.
        context: Where keys and values come from under cross-attention.
        format: On standard output.
        tolerance: What a deviation may be.
        quiet: No progress on standard error.
    """

    text: Annotated[str, Argument(metavar="TEXT", help="Text to check with; default: a sentence.")] = (
        arguments.CHECKED_TEXT
    )
    context: Annotated[
        str | None,
        option(
            "--context", group="Text", metavar="TEXT", help="Text that provides keys and values in cross-attention."
        ),
    ] = None
    format: Annotated[
        CheckFormat,
        option(
            "--format",
            group="What to show",
            metavar="table|json",
            parser=arguments.one_of("--format", CheckFormat),
            help="Output format.",
        ),
    ] = "table"
    tolerance: Annotated[
        float | None,
        option(
            "--tolerance",
            group="What to show",
            metavar="X",
            parser=arguments.tolerance("--tolerance"),
            help="Largest deviation allowed; default: what rounding explains in the model's --dtype.",
        ),
    ] = None
    quiet: Annotated[bool, option("--quiet", group="What to show", help="Hide progress on standard error.")] = False


def check(checked: CheckOptions, stack: ModelOptions, machine: MachineOptions) -> None:
    """Check that the numbers shown for a model are right.

    Tests the laws of attention on every layer and head, and compares with eager transformers if it is installed.
    Exits with 0 if every check passes, with 1 if one fails.
    """
    import sys

    from attnscope.cli.deliver import page, write_bytes
    from attnscope.cli.progress import progress
    from attnscope.config import RunConfig, TextInput

    run = RunConfig(
        texts=(TextInput(checked.text, context=checked.context),),
        **stack.chosen(),
        device=machine.device,
        dtype=machine.dtype,
        truncate=machine.truncate,
        max_memory=machine.max_memory,
        threads=machine.threads,
        engine=machine.engine,
        part=machine.part,
        hash_weights=machine.hash_weights,
    )
    from attnscope.engines.torch_setup import import_torch

    import_torch()
    from attnscope.checks import check as check_model
    from attnscope.views import check as view

    with progress(quiet=checked.quiet) as on_progress:
        report = check_model(run, checked.tolerance, on_progress)
    if checked.format == "json":
        write_bytes(view.as_json(report))
    else:
        sys.stdout.write(view.as_text(report, page()))
    if not report.passed:
        raise Exit(Failed.FAILED)
