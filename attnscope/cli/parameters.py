"""Turn the option table into Typer commands, and typed text into values."""

import inspect
import os
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.base.errors import OptionName, UsageError, arg, spell_options
from attnscope.request.combinations import check_combinations
from attnscope.request.options import COMMON, Option
from attnscope.studies.registry import options_of

WORDS = "attnscope.words"  # where the context of a command has what was typed
COMPLETING = "_ATTNSCOPE_COMPLETE"  # the variable in which a shell asks for completion
SETTINGS = "attnscope.settings"  # where it has the options whose value is from a settings file


class Given(SimpleNamespace):
    """The value of every option of a command, by its name."""

    typed: frozenset[str]
    command_name: str
    # options whose value is from a settings file, and where that file has it
    settings: Mapping[str, str]
    command_line: tuple[str, ...]
    explicit: Mapping[str, Any]  # the options that are typed or set, with their values
    # all values of options that are given for every side of a comparison; the option itself has the first
    repeated: Mapping[str, list[Any]]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def as_command(
    name: str, function: Callable[[Given], None], flags: Mapping[str, Any]
) -> Callable[..., None]:
    """Return a function whose parameters are the options of a command, as Typer reads them.

    Args:
        flags: Annotations of flags that every command has, whose callbacks end the program.
    """
    options = options_of(name)

    def call(typer_context: typer.Context, **values: Any) -> None:
        for common in (*flags, *(option.name for option in COMMON)):
            del values[common]
        sources = {
            option.name: typer_context.get_parameter_source(option.name) for option in options
        }
        typed = [
            name
            for name, source in sources.items()
            if source is not None and source.name == "COMMANDLINE"
        ]
        for option in options:
            source = sources[option.name]
            if option.several != "no" and source is not None and source.name == "ENVIRONMENT":
                # click splits the value of a variable at blanks, which a path may contain
                text = os.environ[str(option.variable)]
                values[option.name] = [option.read(text) if option.read else text]
            if option.off is False:
                values[option.name] = not values[option.name]
            elif option.several == "yes":
                values[option.name] = tuple(values[option.name] or ())
        words = typer_context.meta.get(WORDS, ())
        settings = typer_context.meta.get(SETTINGS, {})
        about: dict[str, Any] = {
            "command_name": name,
            "command_line": tuple(words),
            "settings": settings,
        }
        try:
            explicit = {option: values[option] for option in (*typed, *settings)}
            idle = check_combinations(options, explicit, settings)
            values |= {
                option.name: option.default_value for option in options if option.name in idle
            }
            if values.get("json") and "format" in values:
                values["format"] = "json"
            repeated = {}
            for option in options:
                if option.several == "compared":
                    all_values = values[option.name] or [option.default_value]
                    values[option.name] = all_values[0]
                    if len(all_values) > 1:
                        repeated[option.name] = all_values
            explicit = {option: values[option] for option in (*typed, *settings)}
            about |= {"explicit": explicit, "repeated": repeated, "typed": frozenset(typed)}
            function(Given(**values, **about))
        except UsageError as error:
            raise _naming_settings(error, settings) from error

    context_parameter = inspect.Parameter(
        "typer_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
    )
    last = [
        inspect.Parameter(
            eager, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation
        )
        for eager, annotation in flags.items()
    ]
    parameters = [
        context_parameter,
        *(_parameter(name, option) for option in (*options, *COMMON)),
        *last,
    ]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__name__ = function.__name__
    call.__doc__ = function.__doc__
    return call


def _naming_settings(error: UsageError, settings: Mapping[str, str]) -> UsageError:
    """Add where settings files set the options that an error names, since nobody typed them."""
    names: list[str] = []

    def note(option_name: OptionName) -> str:
        names.append(option_name.name)
        return ""

    for part in error.parts:
        spell_options(part or "", note)
    sources = [
        f"{arg(name)} is set in {settings[name]}"
        for name in dict.fromkeys(names)
        if name in settings
    ]
    if sources:
        hint = "; ".join([*([error.parts.hint] if error.parts.hint else []), *sources])
        error.parts = error.parts._replace(hint=hint)
    return error


def _parameter(command: str, option: Option) -> inspect.Parameter:
    # Our own help has the texts; Typer needs them for shells alone.
    for_shells = _for_shells(command, option) if COMPLETING in os.environ else {}
    if option.argument:
        declared: Any = typer.Argument(metavar=option.metavar, parser=option.read, **for_shells)
    else:
        names = [f"{option.spelled}/{option.off}" if option.off else option.spelled]
        declared = typer.Option(
            *names,
            *([option.short] if option.short else []),
            metavar=option.metavar or None,
            parser=option.read,
            envvar=option.variable,
            hidden=option.hidden,
            **for_shells,
        )
    default = False if option.is_flag and not option.off else option.default
    value_type: Any
    if option.is_flag and option.off:
        value_type = bool | None
    elif option.is_flag:
        value_type = bool
    else:
        value_type = str | None
    if option.several != "no":
        value_type = list[str] | None
        default = None
    if option.required:
        value_type = str
        default = inspect.Parameter.empty
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[value_type, declared],
    )


def _for_shells(command: str, option: Option) -> dict[str, Any]:
    """Return what the completion of a shell shows of an option: its text, and a function that completes its value."""
    from attnscope.cli import completion
    from attnscope.cli.option_text import described

    complete: Callable[[str], list[str]] | None = None
    if isinstance(option.complete, str):
        complete = getattr(completion, option.complete)
    elif option.complete:
        complete = completion.words(*option.complete)
    return {"help": described(command, option.help), "autocompletion": complete}
