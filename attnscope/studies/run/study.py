"""`attnscope run`: the attention of a text."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import UsageError, arg
from attnscope.studies.study import DRAWN, TABLES, FindingsKind, Request, Study, StudyCommand

if TYPE_CHECKING:
    from attnscope.findings.predictions import Prediction
    from attnscope.views.parts import ViewPart


def _answer(request: Request) -> Any:
    from msgspec.structs import replace

    from attnscope.findings.rollout import ROLLOUT_MEASURES
    from attnscope.request.arguments import check_targets
    from attnscope.request.selection import WALKED
    from attnscope.studies.rollout.run import report, shows_mixing

    values = request.values
    run = request.run
    form = request.form
    target = values["target"] or (() if values["by"] == "logit" else None)
    if target:
        check_targets(target)
    fields = {"target": target, "predict": values["predict"]}
    if values["by"] is not None and target is None:
        fields["by"] = values["by"]
    if form is not None:
        fields["window"] = form.window
        fields["picture"] = form.picture
        as_table = form.ending in TABLES
        if as_table and run.measure in ROLLOUT_MEASURES:
            message = f"is a matrix over layers, which cannot be written as {form.ending}"
            hint = "use .json, .npz or .safetensors, which have every number"
            raise UsageError(message, where=arg("measure", run.measure), hint=hint)
        if values["stages"] is None and run.measure == "weights" and (form.page or as_table):
            fields["stages"] = WALKED if form.page else ("weights",)
        # A figure for a paper has no table that nobody asked for.
        if values["predict"] is None and not values["header"]:
            fields["predict"] = False
    run = replace(run, **fields)
    session = request.session
    if request.shows_every_head and run.measure == "weights" and not shows_mixing(run, session):
        from attnscope.studies.run.every_head import (
            inspect_with_every_head,
            with_measured_effects,
        )

        findings, every_head = inspect_with_every_head(run, session)
        effects = values["effects"]
        request.every_head.append(with_measured_effects(every_head, run, session, effects))
        return findings
    if request.draw is not None:
        session.on_generated = _draw_generated(request.draw, several=len(run.texts) > 1)
    return report(run, session, steps=request.shows_every_head)


def _draw_generated(
    draw: "Callable[[Sequence[ViewPart]], None]", *, several: bool
) -> "Callable[[int, Prediction], None]":
    """Return a function that draws a line for a new token at once, on a terminal as in a pipe.

    Args:
        several: Whether there are several texts, so that their numbers are printed.
    """
    from attnscope.studies.screens.predictions import GENERATED, generated_row
    from attnscope.views.parts import GAP, paragraph
    from attnscope.views.spans import Span

    seen = set[int]()

    def show(text: int, prediction: "Prediction") -> None:
        if text not in seen:
            heading = [paragraph((Span(f"text {text}", "bold"),))] if several else []
            draw([*([GAP] if seen else []), *heading, *GENERATED])
            seen.add(text)
        draw([generated_row(prediction)])

    return show


STUDY = Study(
    (
        FindingsKind(
            "run",
            "run:Report",
            "run.screen:present_report",
            (*DRAWN, ".safetensors", ".npz", ".srt", ".vtt", *TABLES),
            page="run.page:present_page",
        ),
    ),
    StudyCommand(
        """Show what attention does with a text.

        Prints, for each selected layer and head, the scores (q·k), the masked scores, the weights (their softmax), and
        the tokens that contribute most to each token. Ends with what the model predicts. With --measure, prints how
        much each token contributes to every token over several layers.
        """,
        """
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
        """,
        _answer,
        function="inspect",
        own=("by", "target", "predict"),
    ),
)
