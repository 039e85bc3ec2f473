"""The command `attnscope check`: check a model's attention against laws and references."""

import sys

from typer import Exit

from attnscope.base.errors import Exit as Failed
from attnscope.cli.parameters import Given

EXAMPLES = """
attnscope check
attnscope check --model ./my-bert
attnscope check "Water ran over the old stones" --model ./my-llama --dtype bfloat16
attnscope check --model ./my-t5 --engine transformers --part cross --context "Wasser"
attnscope check --model ./my-bert --json | jq .checks
"""


def check(given: Given) -> None:
    """Check that the numbers shown for a model are right.

    Tests what always holds for attention (rows sum to 1, …) on every layer and head, and compares with eager
    transformers if it is installed.
    Exits with 0 if every check passes, with 1 if one fails.
    """
    from attnscope.cli.deliver import page, write_bytes
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import read_texts, run_config

    run = run_config(read_texts(given, reads_files=False), given)
    from attnscope.engines.torch_setup import import_torch

    import_torch()
    from attnscope.studies.check import screen as view
    from attnscope.studies.check.run import check as check_model

    with progress(quiet=given.quiet) as on_progress:
        report = check_model(run, given.tolerance, on_progress)
    if given.format == "json":
        write_bytes(view.as_json(report))
    else:
        hint = " (--verbose: the differences of each layer)"
        sys.stdout.write(view.as_text(report, page(), data_only=given.quiet, verbose=given.verbose, hint=hint))
    if not report.passed:
        raise Exit(Failed.FAILED)
