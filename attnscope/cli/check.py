"""The command `attnscope check`: check a model's attention against laws and references."""

from types import SimpleNamespace

from typer import Exit

from attnscope.base.errors import Exit as Failed
from attnscope.cli.parameters import Given
from attnscope.request import arguments

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
    from attnscope.cli.deliver import console, write_bytes
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import read_texts, run_config

    # built-in also if something is piped: `while read -r name; do attnscope check -m "$name"; done`
    texts = arguments.CHECKED_TEXTS if given.text is None else (given.text,)
    named = [SimpleNamespace(text=text, context=given.context, quiet=given.quiet) for text in texts]
    run = run_config(tuple(text for name in named for text in read_texts(name, reads_files=False)), given)
    from attnscope.engines.torch_setup import import_torch

    import_torch()
    from attnscope.findings.codec import to_json
    from attnscope.studies.check.run import check as check_model
    from attnscope.studies.present import present
    from attnscope.views.terminal import draw

    with progress(quiet=given.quiet) as on_progress:
        report = check_model(run, given.tolerance, on_progress, built_in=given.text is None)
    if given.format == "json":
        write_bytes(to_json(report) + b"\n")
    else:
        parts = present(report, data_only=given.quiet, verbose=given.verbose)
        draw(parts, console("auto"))
    if not report.passed:
        raise Exit(Failed.FAILED)
