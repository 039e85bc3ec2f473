"""The studies, and the kinds of findings that follow from them."""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from attnscope.request.options import COMMANDS, Option
from attnscope.studies.study import FindingsKind, Study, imported
from attnscope.views.settings import DisplaySettings

if TYPE_CHECKING:
    from attnscope.views.parts import ViewPart

STUDIES = "run", "compare", "explain", "heads", "ablate", "learn", "check", "doctor"  # folders


@cache
def study(name: str) -> Study:
    """Return the declaration of a study."""
    declared: Study = import_module(f"attnscope.studies.{name}.study").STUDY
    return declared


@cache
def kinds() -> tuple[FindingsKind, ...]:
    """Return the kinds of findings of all studies."""
    return tuple(findings_kind for name in STUDIES for findings_kind in study(name).kinds)


def kind_named(name: str) -> FindingsKind:
    """Return the kind of findings of this name."""
    return next(findings_kind for findings_kind in kinds() if findings_kind.name == name)


def kind_of(findings: object) -> FindingsKind:
    """Return the kind of some findings."""
    qualified_name = f"{type(findings).__module__}:{type(findings).__qualname__}"
    return next(
        findings_kind
        for findings_kind in kinds()
        if f"attnscope.findings.{findings_kind.findings}" == qualified_name
    )


def present(
    findings: Any, settings: DisplaySettings | None = None, **fields: Any
) -> "Iterator[ViewPart]":
    """Turn findings of any kind into parts; `fields` are those of DisplaySettings, in place of all settings."""
    settings = settings or DisplaySettings(**fields)
    findings_kind = kind_of(findings)
    is_page = settings.format == "page" and findings_kind.page
    function = findings_kind.page if is_page else findings_kind.screen
    parts: Iterator[ViewPart] = imported(f"attnscope.studies.{function}")(findings, settings)
    if not settings.data_only:
        return parts
    from attnscope.studies.data_only import without_remarks

    return without_remarks(parts)


def options_of(name: str) -> tuple[Option, ...]:
    """Return the options of a command."""
    command = study(name).command if name in STUDIES else None
    if command is not None and command.options:
        return command.options
    return COMMANDS[name]
