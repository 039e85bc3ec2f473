"""attnscope: see what attention does inside a transformer.

The Python functions behind the commands. They are loaded on first use.
"""

from typing import TYPE_CHECKING, Any

from attnscope.base.version import __version__

if TYPE_CHECKING:
    from attnscope.api import (
        AblationResult,
        AttnscopeError,
        CheckResult,
        CompareResult,
        Contributor,
        DumpFile,
        EffectsResult,
        ExplainResult,
        HeadResult,
        HeadValue,
        InspectResult,
        MeasuredResult,
        OpenModel,
        SurveyResult,
        TextResult,
        UnitEffect,
        ablate,
        check,
        compare,
        explain,
        heads,
        inspect,
        load,
        open_model,
        read_dump,
    )

__all__ = [
    "AblationResult",
    "AttnscopeError",
    "CheckResult",
    "CompareResult",
    "Contributor",
    "DumpFile",
    "EffectsResult",
    "ExplainResult",
    "HeadResult",
    "HeadValue",
    "InspectResult",
    "MeasuredResult",
    "OpenModel",
    "SurveyResult",
    "TextResult",
    "UnitEffect",
    "__version__",
    "ablate",
    "check",
    "compare",
    "explain",
    "heads",
    "inspect",
    "load",
    "open_model",
    "read_dump",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'attnscope' has no attribute '{name}'")
    from attnscope import api

    found = globals()[name] = getattr(api, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
