"""One text of one model, planned for cuts. Never imports torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnscope.checkpoints.source import ModelSource
from attnscope.request.run_config import RunConfig
from attnscope.run.session import ProgressCallback, Session
from attnscope.run.text_plan import TextPlan
from attnscope.studies.ablate.other_texts import compared_targets
from attnscope.studies.ablate.plan import AblationOptions, compared_positions, plan_one


@dataclass(frozen=True)
class AblationRun:
    """One text of one model, with its tokens, positions and targets.

    Attributes:
        source: The model.
        session: Loads it.
        text: The text.
        positions: Where predictions and hidden states are compared.
        answer: Ids of the answer's tokens, one for each position; empty for none.
        targets: Ids of one token whose logit is compared, or of two whose difference is; empty for none.
    """

    run: RunConfig
    options: AblationOptions
    source: ModelSource
    session: Session
    text: TextPlan
    positions: list[int]
    notes: list[str]
    answer: Sequence[int] = ()
    targets: Sequence[int] = ()

    @classmethod
    def of(
        cls, run: RunConfig, options: AblationOptions, progress: ProgressCallback | None, session: Session | None
    ) -> "AblationRun":
        """Open the model and make tokens of the text."""
        session = session or Session(run.texts, progress)
        source, run = session.open(run)
        source.require_model("ablation")
        text = plan_one(run, source)
        positions, notes = compared_positions(options, run, source, text)
        targets, more = compared_targets(options, source, positions)
        return cls(run, options, source, session, text, positions, [*text.notes, *notes, *more], targets=targets)
