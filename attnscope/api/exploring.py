"""Walk through a model that is open, in the terminal."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from attnscope.base.errors import TUI, AttnscopeError
from attnscope.request.run_config import HeadArguments, PairArguments, RunConfig, TokenArguments

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


def explore_model(run: RunConfig, opener: "Opener", options: Mapping[str, Any]) -> str | None:
    """Walk through the texts of a run, and return the command that shows the last place."""
    import sys

    TUI.require("explore")
    if not all(
        stream is not None and stream.isatty() for stream in (sys.__stdin__, sys.__stderr__)
    ):
        raise AttnscopeError(
            "explore needs a terminal", hint="start Python in one; a notebook has report.show()"
        )
    from attnscope.batch.reports import write_report
    from attnscope.studies.explore.live import LiveSource
    from attnscope.views.explore.terminal import walk
    from attnscope.views.walk.keys import ACTIONS, read_keys
    from attnscope.views.walk.place import Begin
    from attnscope.views.walk.scene import WalkCut

    places = [None if selection is None else str(selection) for selection in (run.query, run.key)]
    plain = replace(
        run,
        query=None,
        key=None,
        auto_query=run.query,
        auto_key=run.key,
        stages=(),
        top=3,
        words=False,
        cuts=(),
    )
    divided = run.spans is not None or any(
        text.chat is not None or text.spans for text in run.texts
    )
    unit = "words" if run.words else "spans" if divided else "tokens"
    keys = options.get("keys")
    actions = ACTIONS if keys is None else read_keys(Path(keys))
    cuts = tuple(WalkCut(cut.written, cut.edge is not None) for cut in run.cuts)
    begin = Begin(query=places[0], key=places[1], unit=unit, cuts=cuts)
    _, command = walk(LiveSource(plain, opener), write_report, actions, begin)
    return command or None
