"""Arguments of `attnscope.check`."""

from attnscope.request.run_config import CallArguments, NamedModel, OpenArguments


class ModelCheckArguments(CallArguments, total=False):
    """Arguments of `check`; see CallArguments.

    Attributes:
        tolerance: Largest allowed difference; None for what rounding explains in the dtype.
    """

    tolerance: float | None


class CheckArguments(OpenArguments, ModelCheckArguments, NamedModel, total=False):
    """All that `attnscope.check` takes in addition to the text."""
