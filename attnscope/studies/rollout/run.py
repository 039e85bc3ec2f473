"""Attention over layers: rollout and value zeroing, as a Report of token to token."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnscope.base.layer_kinds import MIXING
from attnscope.findings.rollout import ATTENTION
from attnscope.findings.run import Report
from attnscope.request.run_config import RunConfig

if TYPE_CHECKING:
    from attnscope.run.session import ProgressCallback, Session

__all__ = ["reporter", "shows_mixing"]


def reporter(run: RunConfig) -> Callable[..., Report]:
    """Return the function that makes a run's Report: of attention, of layers without softmax, or a measure over layers.

    All take the run, a progress callback and a session.
    """
    if run.measure == MIXING:  # imported here, so that a run imports only what it uses
        from attnscope.studies.mixing.measure import measure_mixing

        return measure_mixing
    if run.measure == ATTENTION:
        return _inspect_layers
    from attnscope.studies.rollout.measure import measure_rollout

    return measure_rollout


def _inspect_layers(
    run: RunConfig, progress: "ProgressCallback | None" = None, session: "Session | None" = None
) -> Report:
    """Show the attention of layers, or the matrices of layers without softmax."""
    from attnscope.run.session import Session, inspect

    session = session or Session(run.texts, progress)
    if not shows_mixing(run, session):
        return inspect(run, progress, session)
    from attnscope.studies.mixing.measure import measure_mixing

    return measure_mixing(run, progress, session)


def shows_mixing(run: RunConfig, session: "Session") -> bool:
    """Tell whether a run names layers without softmax."""
    source = session.source(run)
    if not source.mixing:
        return False
    from attnscope.studies.mixing.measure import selects_mixing

    return selects_mixing(run, source)
