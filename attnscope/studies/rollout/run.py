"""Attention over layers: rollout and value zeroing, as a Report of token to token."""

from typing import TYPE_CHECKING

from attnscope.base.layer_kinds import MIXING
from attnscope.findings.rollout import ATTENTION
from attnscope.findings.run import Report
from attnscope.request.run_config import RunConfig

if TYPE_CHECKING:
    from attnscope.run.session import Session

__all__ = ["report", "shows_mixing"]


def report(run: RunConfig, session: "Session | None" = None, *, steps: bool = False) -> Report:
    """Make a run's Report: of attention, of layers without softmax, or of a measure over layers.

    Args:
        steps: See measure_rollout.
    """
    from attnscope.run.session import Session, inspect

    session = session or Session(run.texts)
    if run.measure == MIXING or (run.measure == ATTENTION and shows_mixing(run, session)):
        from attnscope.studies.mixing.measure import measure_mixing

        return measure_mixing(run, session)
    if run.measure == ATTENTION:
        return inspect(run, session)
    from attnscope.studies.rollout.measure import measure_rollout

    return measure_rollout(run, session, steps=steps)


def shows_mixing(run: RunConfig, session: "Session") -> bool:
    """Tell whether a run names layers without softmax."""
    source = session.source(run)
    if not source.mixing:
        return False
    from attnscope.studies.mixing.measure import selects_mixing

    return selects_mixing(run, source)
