"""Attention over layers: rollout and value zeroing, as a Report of token to token."""

from collections.abc import Callable

from attnscope.findings.rollout import ATTENTION
from attnscope.findings.run import Report
from attnscope.request.run_config import RunConfig

__all__ = ["reporter"]


def reporter(run: RunConfig) -> Callable[..., Report]:
    """Return the function that makes a run's Report: `inspect`, or the measure over layers.

    Both take the run, a progress callback and a session.
    """
    if run.measure == ATTENTION:  # imported here, so that a run imports only what it uses
        from attnscope.run.session import inspect

        return inspect
    from attnscope.studies.rollout.measure import measure_rollout

    return measure_rollout
