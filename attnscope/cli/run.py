"""The command `attnscope run`: show the matrices and top contributors of a text."""

from dataclasses import dataclass
from typing import Annotated

from attnscope.base.errors import UsageError
from attnscope.cli.options import SHOW, MachineOptions, ModelOptions, OutputOptions, TextOptions, option
from attnscope.cli.selection_options import (
    MeasureOptions,
    OverviewOptions,
    PaddingOptions,
    PredictionOptions,
    RunSelectionOptions,
)
from attnscope.request.selection import PRINTED

EXAMPLES = """
attnscope run "The bank by the river"
attnscope run "The bank by the river" --layer 0 --head all --format heat
attnscope run "The bank by the river" --query bank --stage weights --by value
attnscope run "The bank by the river" --mask causal --what-if same-scores
attnscope run "She sat by the [MASK] of the river"
attnscope run "She sat by the bank of the" --mask causal --generate 5
attnscope run "abc" --by logit --target a --target b --model ./my-llama.gguf
attnscope run "The unbelievable bank" --words --ids
attnscope run "Is it open?" --pair "It opens at nine." --model ./my-bert
attnscope run "The bank by the river" --config causal --output causal.json
attnscope run "The bank by the river" --measure rollout --layer 0-2
echo "The bank by the river" | attnscope run --json | jq .texts[0].tokens
"""


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    """What is shown of the tokenizer's work.

    Attributes:
        words: Merge the pieces of a word.
        ids: List tokens with their ids.
    """

    words: Annotated[
        bool,
        option(
            "--words",
            group=SHOW,
            help="Merge the pieces of a word: weights are summed over its keys and averaged over its queries. In a "
            "terminal only.",
        ),
    ] = False
    ids: Annotated[bool, option("--ids", group=SHOW, help="List the tokens with their ids. In a terminal only.")] = (
        False
    )

    def check(self, show: OutputOptions, selection: RunSelectionOptions, measure: str) -> None:
        """Refuse them where they would have no effect, and what would have none beside them.

        Raises:
            UsageError: Findings go to a file, or to standard output as JSON, or there are no weights to merge, or
                something else is asked for that is not merged.
        """
        if self.words:
            _check_words(selection, measure)
        for name in ("words", "ids"):
            if getattr(self, name) and (show.output is not None or show.format == "json"):
                hint = "remove it (files have all tokens with ids and spans), or print into a file: > FILE"
                raise UsageError("applies only to what is printed as tables", where=f"--{name}", hint=hint)


def _check_words(selection: RunSelectionOptions, measure: str) -> None:
    """Refuse what words do not have: other measures and stages, and norms of values."""
    where = "--words"
    if measure != "weights":
        raise UsageError(f"merges weights of heads, not {measure}", where=where, hint="remove --words or --measure")
    if not selection.stages:
        raise UsageError("merges the weights, which --stage none leaves out", where=where, hint="use --stage weights")
    if "weights" not in selection.stages:
        raise UsageError("needs weights", where=where, hint="add weights to --stage")
    if selection.stage is not None and (others := [name for name in selection.stages if name != "weights"]):
        raise UsageError("merges weights alone", where=where, hint=f"remove {','.join(others)} from --stage")
    if selection.by in ("value", "projected"):
        raise UsageError("ranks words by weight", where=where, hint=f"remove --words or --by {selection.by}")


def run(
    source: TextOptions,
    stack: ModelOptions,
    selection: RunSelectionOptions,
    overview: OverviewOptions,
    over_layers: MeasureOptions,
    around: PaddingOptions,
    spelled: TokenizerOptions,
    prediction: PredictionOptions,
    show: OutputOptions,
    machine: MachineOptions,
) -> None:
    """Show what attention does with a text.

    Prints, for each selected layer and head, the scores (q·k), the masked scores, the weights (their softmax), and the
    tokens that contribute most to each token. Ends with what the model predicts. With --measure, prints how much
    each token contributes to every token over several layers.
    """
    from msgspec.structs import replace

    from attnscope.cli.deliver import check_output, deliver, is_picture, is_table
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import read_texts, run_config, targets

    check_output(show, "run", source, stack, selection)
    spelled.check(show, selection, over_layers.measure)
    window = PRINTED if is_table(show) else None
    asked = run_config(
        read_texts(source, quiet=show.quiet), stack, selection, machine, window=window, pool=overview.pool
    )
    target = targets(selection.by, prediction.target)
    asked = replace(asked, target=target, predict=prediction.predict, generate=prediction.generate)
    asked = replace(asked, picture=is_picture(show), measure=over_layers.measure, show_padding=around.show_padding)
    from attnscope.studies.rollout.run import reporter

    with progress(quiet=show.quiet) as on_progress:
        report = reporter(asked)(asked, on_progress)
    deliver(report, show, brief=selection.stage is None, words=spelled.words, ids=spelled.ids)
