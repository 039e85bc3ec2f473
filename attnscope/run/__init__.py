"""From a RunConfig to findings: session, plan, pass."""

import sys
from types import ModuleType
from typing import Any

from attnscope.base.errors import UsageError


class _Package(ModuleType):
    """The package `attnscope.run`, which those who know the command take for a function."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise UsageError(
            "attnscope.run is a package",
            hint="use attnscope.inspect, which is attnscope run in Python",
        )


sys.modules[__name__].__class__ = _Package
