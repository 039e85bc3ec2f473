"""Titles of pages: which command, and which text."""

from typing import Any

from attnscope.base.system.escape import escape_control
from attnscope.studies.registry import kind_of

_LONGEST = 80  # characters of a text in a title


def title_of(findings: Any) -> str:
    """Return the title of a page with these findings."""
    text = _text(findings)
    if text is None:
        provenance = getattr(findings, "provenance", None)
        text = "" if provenance is None else provenance.model.rsplit("/", 1)[-1]
    text = " ".join(text.split())
    if len(text) > _LONGEST:
        text = text[:_LONGEST].rsplit(" ", 1)[0] + "…"
    command = kind_of(findings).typed or kind_of(findings).name
    return f"{escape_control(text)} · attnscope {command}" if text else f"attnscope {command}"


def _text(findings: Any) -> str | None:
    """Return the first text that findings are about; None if they have none."""
    if sides := getattr(findings, "sides", None):
        if hasattr(sides[0], "report"):
            return _text(sides[0].report)
        return " → ".join(side.label.rsplit("/", 1)[-1] for side in sides)
    if texts := getattr(findings, "texts", None):
        first = texts[0]
        return first if isinstance(first, str) else getattr(first, "text", None)
    text = getattr(findings, "text", None)
    return text if isinstance(text, str) else None
