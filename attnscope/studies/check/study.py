"""`attnscope check`: whether the numbers shown for a model are right."""

from attnscope.request.run_config import CallArguments, NamedModel, OpenArguments
from attnscope.studies.study import FindingsKind, Study

STUDY = Study(
    (
        FindingsKind(
            "check",
            "attnscope.findings.check:CheckReport",
            "attnscope.studies.check.screen:present_check",
            (".json", ".txt"),
        ),
    )
)


class ModelCheckArguments(CallArguments, total=False):
    """Arguments of `check`; see CallArguments.

    Attributes:
        tolerance: Largest allowed difference; None for what rounding explains in the dtype.
    """

    tolerance: float | None


class CheckArguments(OpenArguments, ModelCheckArguments, NamedModel, total=False):
    """All that `attnscope.check` takes in addition to the text."""
