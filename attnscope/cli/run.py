"""The command `attnscope run`: show the matrices and top contributors of a text."""

from attnscope.cli.options import MachineOptions, ModelOptions, OutputOptions, TextOptions
from attnscope.cli.selection_options import OverviewOptions, SelectionOptions
from attnscope.selection import PRINTED

EXAMPLES = """
attnscope run "The bank by the river"
attnscope run "The bank by the river" --layer 0 --head all --format heat
attnscope run "The bank by the river" --query bank --stage weights --by value
attnscope run "The bank by the river" --mask causal --what-if same-scores
attnscope run "Is it open?" --pair "It opens at nine." --model ./my-bert
attnscope run "The bank by the river" --config causal --output causal.json
echo "The bank by the river" | attnscope run --json | jq .texts[0].tokens
"""


def run(
    source: TextOptions,
    stack: ModelOptions,
    selection: SelectionOptions,
    overview: OverviewOptions,
    show: OutputOptions,
    machine: MachineOptions,
) -> None:
    """Show what attention does with a text.

    Prints, for each selected layer and head, the scores (q·k), the masked scores, the weights (their softmax), and the
    tokens that contribute most to each token.
    """
    from msgspec.structs import replace

    from attnscope.cli.deliver import check_output, deliver, is_picture, is_table
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import read_texts, run_config

    check_output(show, "run", [source.file])
    window = PRINTED if is_table(show) else None
    asked = run_config(
        read_texts(source, quiet=show.quiet), stack, selection, machine, window=window, pool=overview.pool
    )
    asked = replace(asked, picture=is_picture(show))
    from attnscope.pipeline import inspect

    with progress(quiet=show.quiet) as on_progress:
        report = inspect(asked, on_progress)
    deliver(report, show, brief=selection.stage is None)
