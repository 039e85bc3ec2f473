"""Expand commands that take dataclasses of options into commands that Typer understands."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from typing import Annotated, Any, get_args, get_origin


def expand_groups(command: Callable[..., Any]) -> Callable[..., Any]:
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
        parameters += (
            [_parameter(field) for field in fields(group)]
            if group
            else [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
        )
    return _with_parameters(spread_command, command, parameters)


def with_option(command: Callable[..., Any], name: str, annotation: Any) -> Callable[..., Any]:
    """Return the command with one more flag, which runs a callback."""

    def command_without_switch(**given: Any) -> Any:
        del given[name]
        return command(**given)

    switch = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
    return _with_parameters(command_without_switch, command, [*inspect.signature(command).parameters.values(), switch])


def _with_parameters(
    call: Callable[..., Any], command: Callable[..., Any], parameters: list[inspect.Parameter]
) -> Callable[..., Any]:
    """Let Typer see `call` as a command of these parameters, with the name and help of `command`."""
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    call.__name__, call.__doc__ = command.__name__, command.__doc__
    return call


def subset_of(group: type, *names: str) -> type:
    """Return a dataclass of some of another's options."""
    made = [(each.name, each.type, field(default=each.default)) for each in fields(group) if each.name in names]
    return make_dataclass(f"PartOf{group.__name__}", made, frozen=True, kw_only=True)


def repeatable(group: type, *names: str) -> type:
    """Return the same dataclass with these options repeatable; each is then a list, or None."""
    made: list[tuple[str, Any, Any]] = []
    for each in fields(group):
        _, *rest = get_args(each.type)
        kind = Annotated[list[str] | None, *rest] if each.name in names else each.type
        made.append((each.name, kind, field(default=None if each.name in names else each.default)))
    return make_dataclass(f"Several{group.__name__}", made, frozen=True, kw_only=True)


def pick_values(group: type, many: Any, chosen: dict[str, Any]) -> Any:
    """Return the dataclass itself.

    Chosen options get the chosen value; others get their only value, or their default.
    """
    values: dict[str, Any] = {}
    for each in fields(group):
        value = getattr(many, each.name)
        if each.name in chosen:
            values[each.name] = chosen[each.name]
        elif isinstance(value, list) and not _takes_several(each):
            values[each.name] = value[0] if value else each.default
        else:
            values[each.name] = each.default if value is None else value
    return group(**values)


def several_values(group: type, many: Any) -> dict[str, list[str]]:
    """Return the options that were given as lists, without those that take several values in the group itself."""
    lists = {each.name for each in fields(group) if not _takes_several(each)}
    return {name: value for name, value in vars(many).items() if name in lists and isinstance(value, list)}


def _takes_several(each: "Field[Any]") -> bool:
    return get_origin(next(iter(get_args(get_args(each.type)[0])), None)) is list


def _parameter(each: "Field[Any]") -> inspect.Parameter:
    default = inspect.Parameter.empty if each.default is MISSING else each.default
    return inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=each.type)
