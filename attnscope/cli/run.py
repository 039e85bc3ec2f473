"""The command `attnscope run`: show the matrices and top contributors of a text."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnscope.cli.parameters import Given
from attnscope.request.arguments import check_targets
from attnscope.request.selection import PAGE, PRINTED, WALKED
from attnscope.studies.study import TABLES

if TYPE_CHECKING:
    from attnscope.findings.predictions import Prediction

EXAMPLES = """
attnscope run "The bank by the river"
attnscope run "The bank by the river" --layer 0 --head all --format heat
attnscope run "The bank by the river" --query bank --stage weights --by value
echo "The bank by the river" | attnscope run --json | jq .texts[0].tokens
attnscope run "The bank by the river" --mask causal --what-if same-scores
attnscope run "She sat by the [MASK] of the river"
attnscope run "She sat by the bank of the" --mask causal --generate 5
attnscope run "abc" --by logit --target a --target b --model ./my-llama.gguf
attnscope run "The unbelievable bank" --words --ids
attnscope run "Is it open?" --pair "It opens at nine." --model ./my-bert
attnscope run "The bank by the river" --config causal --output causal.json
attnscope run "The bank by the river" --measure rollout --layer 0-2
"""


def run(options: Given) -> None:
    """Show what attention does with a text.

    Prints, for each selected layer and head, the scores (q·k), the masked scores, the weights (their softmax), and the
    tokens that contribute most to each token. Ends with what the model predicts. With --measure, prints how much
    each token contributes to every token over several layers.
    """
    from attnscope.cli.deliver import check_output, deliver, file_format
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import read_texts, run_config

    check_output(options, "run")
    if options.target:
        options.by = "logit"
    form = file_format(options)
    as_table = form.ending in TABLES
    stages = {}
    if options.stages is None and options.measure == "weights" and (form.page or as_table):
        stages["stages"] = WALKED if form.page else ("weights",)
    check_targets(options.target)
    config = run_config(
        read_texts(options),
        options,
        window=PAGE if form.page else PRINTED if form.drawn else None,
        picture=form.picture,
        target=options.target if options.by == "logit" else None,
        by="weight" if options.by == "logit" else options.by,
        # A figure for a paper has no table that nobody asked for.
        predict=options.predict if options.header or options.predict is not None else False,
        **stages,
    )
    from attnscope.run.session import Session
    from attnscope.studies.rollout.run import report, shows_mixing

    every_head = None
    streamed = bool(options.generate) and options.output is None and options.format != "json"
    with progress(quiet=options.quiet) as on_progress:
        session = Session(config.texts, on_progress)
        if form.page and options.measure == "weights" and not shows_mixing(config, session):
            from attnscope.studies.run.every_head import (
                inspect_with_every_head,
                with_measured_effects,
            )

            findings, every_head = inspect_with_every_head(config, session)
            every_head = with_measured_effects(every_head, config, session, options.effects)
        else:
            if streamed:
                session.on_generated = _generated_rows(options, on_progress, len(config.texts) > 1)
            findings = report(config, on_progress, session)
    display_options = {
        "ids": options.ids, "percent": options.percent, "least": options.least, "streamed": streamed,
        "map_scale": options.map_scale, "ramp": options.ramp, "sinks": options.sinks,
    }  # fmt: skip
    deliver(
        findings,
        options,
        every_head=every_head,
        brief="stages" not in options.typed,
        **display_options,
    )


def _generated_rows(
    options: Given, progress: Any, several: bool
) -> "Callable[[int, Prediction], None]":
    """Return a function that prints a line for a new token at once, on a terminal as in a pipe.

    Args:
        progress: The bar on standard error, which would be drawn over the lines; None if there is none.
        several: Whether there are several texts, so that their numbers are printed.
    """
    from attnscope.cli.deliver import console
    from attnscope.studies.screens.predictions import GENERATED, generated_row
    from attnscope.views.parts import GAP, paragraph
    from attnscope.views.spans import Span
    from attnscope.views.terminal import draw

    screen = console(options.color)
    seen = set[int]()

    def show(text: int, prediction: "Prediction") -> None:
        if progress is not None:
            progress.pause()
        if text not in seen:
            heading = [paragraph((Span(f"text {text}", "bold"),))] if several else []
            draw([*([GAP] if seen else []), *heading, *GENERATED], screen)
            seen.add(text)
        draw([generated_row(prediction)], screen)
        sys.stdout.flush()

    return show
