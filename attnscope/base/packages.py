"""Packages that have the name of a command."""

import sys
from types import ModuleType
from typing import Any

from attnscope.base.errors import UsageError


def refuse_calls(name: str, function: str) -> None:
    """Let the package of this name, which those who know the command call, say which function that is."""

    class Package(ModuleType):
        def __call__(self, *_: Any, **__: Any) -> Any:
            hint = f"use attnscope.{function}, which is attnscope {name} in Python"
            raise UsageError(f"attnscope.{name} is a package", hint=hint)

    sys.modules[f"attnscope.{name}"].__class__ = Package
