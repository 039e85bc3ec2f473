"""A text and what to show of it in; the three matrices and the top contributors out: `attnscope run`."""

from attnscope.cli.options import Machine, Show, Source, Stack
from attnscope.cli.selection_options import Overview, Selection
from attnscope.selection import PRINTED

EXAMPLES = """
attnscope run "The bank by the river"
attnscope run "The bank by the river" --layer 0 --head all --format heat
attnscope run "The bank by the river" --query bank --stage weights --by value
attnscope run "The bank by the river" --mask causal --what-if same-scores
attnscope run "Is it open?" --pair "It opens at nine." --model ./my-bert
attnscope run "The bank by the river" --config causal --output causal.json
echo "The bank by the river" | attnscope run - --format json | jq .texts[0].tokens
"""


def run(source: Source, stack: Stack, selection: Selection, overview: Overview, show: Show, machine: Machine) -> None:
    """Show what attention does with a text.

    For each chosen layer and head: the scores (q·k), the masked scores, the weights (their softmax), and the tokens
    that contribute most to every token.
    """
    from msgspec.structs import replace

    from attnscope.cli.deliver import check_output, deliver, is_picture, is_table
    from attnscope.cli.progress import progress
    from attnscope.cli.request import run_config

    check_output(show)
    window = PRINTED if is_table(show) else None
    asked = run_config(source, stack, selection, machine, window=window, pool=overview.pool, quiet=show.quiet)
    asked = replace(asked, picture=is_picture(show))
    from attnscope.pipeline import inspect

    with progress(quiet=show.quiet) as tell:
        report = inspect(asked, tell)
    deliver(report, show)
