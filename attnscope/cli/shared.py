"""A command that takes dataclasses of options in; one that Typer understands, each field an option, out."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any


def spread(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let Typer see every field of a parameter whose type is a dataclass as a parameter of its own.

    So an option is declared once, in one dataclass, and every command that takes the dataclass has it.
    """
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in inspect.signature(command).parameters.items()
        if is_dataclass(parameter.annotation)
    }

    def spread_command(**given: Any) -> Any:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        return command(**given)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        group = groups.get(parameter.name)
        parameters += [_parameter(field) for field in fields(group)] if group else [_keyword(parameter)]
    spread_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread_command.__annotations__ = {p.name: p.annotation for p in parameters}
    spread_command.__name__, spread_command.__doc__ = command.__name__, command.__doc__
    return spread_command


def _parameter(field: "Field[Any]") -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type)


def _keyword(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
