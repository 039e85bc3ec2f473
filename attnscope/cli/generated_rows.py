"""Print generated tokens while they are generated."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnscope.cli.deliver import console
from attnscope.cli.parameters import Given

if TYPE_CHECKING:
    from attnscope.findings.predictions import Prediction


def generated_rows(given: Given, progress: Any, several: bool) -> "Callable[[int, Prediction], None]":
    """Return a function that prints a line for a new token at once, on a terminal as in a pipe.

    Args:
        progress: The bar on standard error, which would be drawn over the lines; None if there is none.
        several: Whether there are several texts, so that their numbers are printed.
    """
    from attnscope.studies.screens.predictions import GENERATED, generated_row
    from attnscope.views.parts import GAP, paragraph
    from attnscope.views.spans import Span
    from attnscope.views.terminal import draw

    screen, seen = console(given.color), set[int]()

    def show(text: int, prediction: "Prediction") -> None:
        if progress is not None:
            progress.pause()
        if text not in seen:
            named = [paragraph((Span(f"text {text}", "bold"),))] if several else []
            draw([*([GAP] if seen else []), *named, *GENERATED], screen)
            seen.add(text)
        draw([generated_row(prediction)], screen)
        sys.stdout.flush()

    return show
