"""Walk through a text or findings in the terminal."""

import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import TUI, AttnscopeError
from attnscope.request.run_config import (
    HeadArguments,
    NamedModel,
    OpenArguments,
    PairArguments,
    RunConfig,
    TokenArguments,
)

if TYPE_CHECKING:
    from attnscope.studies.explore.live import Opener


class ModelExploreArguments(PairArguments, TokenArguments, HeadArguments, total=False):
    """Where a walk begins: under which mask, and at which layer, head, row (`query`) and column (`key`).

    Attributes:
        words: Begin with the weights between words; with `spans` or `messages`, a walk begins with spans.
        cut: Heads and edges to begin without: `L5H1`, `"L5H1: it←animal"`, or several.
        keys: TOML file that binds other keys to actions.
    """

    words: bool
    cut: str | Sequence[str] | None
    keys: str | os.PathLike[str] | None


class ExploreArguments(OpenArguments, ModelExploreArguments, NamedModel, total=False):
    """All that `attnscope.explore` takes in addition to what is explored."""


def walk(
    explored: object,
    run: RunConfig,
    opener: "Opener",
    typed: Collection[str],
    keys: str | os.PathLike[str] | None,
) -> str | None:
    """Walk through the texts of a run, or through findings, and return the command that shows the last place."""
    TUI.require("explore")
    if not all(
        stream is not None and stream.isatty() for stream in (sys.__stdin__, sys.__stderr__)
    ):
        raise AttnscopeError(
            "explore needs a terminal", hint="start Python in one; a notebook has report.show()"
        )
    from attnscope.batch.walks import explore, saved_source
    from attnscope.studies.explore.live import live_source

    saved: Any = Path(explored) if isinstance(explored, os.PathLike) else explored
    source = live_source(run, opener) if run.texts else saved_source(saved, typed)
    path = None if keys is None else Path(keys)
    return explore(source, run, path).command or None
