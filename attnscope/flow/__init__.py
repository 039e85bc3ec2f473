"""Attention over layers: rollout and value zeroing, as a Report of token to token."""

from collections.abc import Callable

from attnscope.config import RunConfig
from attnscope.report import Report
from attnscope.report.flow import ATTENTION

__all__ = ["reporter"]


def reporter(run: RunConfig) -> Callable[..., Report]:
    """Return the function that makes a run's Report: `pipeline.inspect`, or that of a measure over layers.

    Both take the run, a progress callback and a session.
    """
    if run.measure == ATTENTION:  # imported here, so that a run imports only what it uses
        from attnscope.pipeline import inspect

        return inspect
    from attnscope.flow.measure import measure_flow

    return measure_flow
