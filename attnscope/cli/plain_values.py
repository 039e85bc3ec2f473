"""Take the values of options without pydantic, which Typer would import and set up for every one of them.

Importing pydantic takes a tenth of the time of `import torch`, and most values are strings, or read by our own
parsers. Any other value is passed on to Typer, as is a value that is refused, so that the message is Typer's.
"""

from collections.abc import Sequence
from typing import Any, get_args, get_origin


def take_plain_values(parameters: Sequence[Any]) -> None:
    """Let the parameters of a command take plain values themselves; nothing happens under another version of Typer."""
    for parameter in parameters:
        if getattr(parameter, "_runtime_param", "") is None:
            parameter._runtime_param = _PlainValues(parameter)


class _PlainValues:
    """Typer's coercion of one parameter, which it asks for `_runtime_param.coerce`."""

    def __init__(self, parameter: Any) -> None:
        self._descriptor = parameter.type_descriptor

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of a parameter as its annotation says."""
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        annotation = self._descriptor.annotation
        try:
            if get_origin(annotation) is list and isinstance(value, (list, tuple)):
                return [self._one(item, get_args(annotation)[0]) for item in value]
            if not several:
                return self._one(value, annotation)
        except ValueError:
            pass  # refused, or not plain
        from typer._coercion import build_runtime_param

        return build_runtime_param(self._descriptor).coerce(value, param=param, ctx=ctx)

    def _one(self, value: Any, annotation: Any) -> Any:
        info = self._descriptor.parameter_info
        if info.parser is not None:
            return info.parser(value)
        if annotation is str and isinstance(value, str):
            return value
        raise ValueError("not plain")
