"""One text of one model, planned for cuts. Never imports torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnscope.checkpoints.source import ModelSource
from attnscope.request.run_config import RunConfig
from attnscope.run.session import ProgressCallback, Session
from attnscope.run.text_plan import TextPlan
from attnscope.studies.ablate.others import compared_targets
from attnscope.studies.ablate.plan import AblationOptions, compared_positions, plan_one


@dataclass(frozen=True)
class Bench:
    """One text of one model, planned.

    Attributes:
        run: What the user asked.
        asked: What is cut.
        source: The model.
        session: Loads it.
        text: The text.
        positions: Where predictions and hidden states are compared.
        notes: On text and positions.
        answer: Ids of an answer's tokens whose log-probability is compared, one for each position; empty for none.
        targets: Ids of one or two tokens whose logit, or whose difference of logits, is compared; empty for none.
    """

    run: RunConfig
    asked: AblationOptions
    source: ModelSource
    session: Session
    text: TextPlan
    positions: list[int]
    notes: list[str]
    answer: Sequence[int] = ()
    targets: Sequence[int] = ()

    @classmethod
    def of(
        cls, run: RunConfig, asked: AblationOptions, progress: ProgressCallback | None, session: Session | None
    ) -> "Bench":
        """Open the model and make tokens of the text."""
        session = session or Session(run.texts, progress)
        source, run = session.open(run)
        source.require_model("ablation")
        text = plan_one(run, source)
        positions, notes = compared_positions(asked, run, source, text)
        targets, more = compared_targets(asked, source, positions)
        return cls(run, asked, source, session, text, positions, [*text.notes, *notes, *more], targets=targets)
