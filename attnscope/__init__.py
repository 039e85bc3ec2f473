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
        DoctorResult,
        DumpFile,
        EffectsResult,
        ExplainResult,
        GivenResult,
        HeadChangesResult,
        HeadResult,
        HeadValue,
        InspectResult,
        MeasuredResult,
        NeedleResult,
        OpenModel,
        SurveyResult,
        TextResult,
        UnitEffect,
        ablate,
        check,
        compare,
        doctor,
        explain,
        from_qkv,
        from_weights,
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
    "DoctorResult",
    "DumpFile",
    "EffectsResult",
    "ExplainResult",
    "GivenResult",
    "HeadChangesResult",
    "HeadResult",
    "HeadValue",
    "InspectResult",
    "MeasuredResult",
    "NeedleResult",
    "OpenModel",
    "SurveyResult",
    "TextResult",
    "UnitEffect",
    "__version__",
    "ablate",
    "check",
    "compare",
    "doctor",
    "explain",
    "from_qkv",
    "from_weights",
    "heads",
    "inspect",
    "load",
    "open_model",
    "read_dump",
]


def __getattr__(name: str) -> Any:
    if name not in __all__ and (name.startswith("_") or name not in _studies()):
        raise AttributeError(f"module 'attnscope' has no attribute '{name}'")
    from attnscope import api

    loaded = globals()[name] = getattr(api, name) if name in __all__ else api.study_function(name)
    return loaded


def _studies() -> list[str]:
    """List the studies that have no code of their own in `api`."""
    from attnscope.api import declared_studies

    return declared_studies()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_studies()})
