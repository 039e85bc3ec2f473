"""Refuse options without what they need, and pairs that exclude each other, as the option table declares them."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnscope.base.errors import UsageError, arg
from attnscope.request.options import Option


def check_combinations(options: Sequence[Option], values: Mapping[str, Any]) -> None:
    """Refuse a combination of the options of a command; `values` are what is typed, or given in Python, by name."""
    defaults = {option.name: option.default for option in options}
    names = []
    for name, value in values.items():
        # An array has no truth value, and equals no word.
        is_default = isinstance(value, str | tuple) and value in ((), defaults.get(name))
        if value is not None and value is not False and not is_default:
            names.append(name)
    for option in options:
        if option.name not in names:
            continue
        if option.needs and not any(_holds(need, values) for need in option.needs):
            needed = [arg(*need.split("=")) for need in option.needs]
            need = option.needs[0].partition("=")[0]
            excluded = any(
                need in other.settings_left_out for other in options if other.name in names
            )
            hint = "remove it" if excluded else f"add {needed[0]}"
            raise UsageError(
                f"applies only to {' and '.join(needed)}", where=arg(option.name), hint=hint
            )
        for other in option.excludes:
            if other in names:
                message = f"{arg(option.name)} and {arg(other)} cannot be used together"
                raise UsageError(message, hint="remove one of them")


def _holds(need: str, values: Mapping[str, Any]) -> bool:
    """Tell whether an option is given, or has the value that is named after `=`."""
    name, _, value = need.partition("=")
    return values.get(name) == value if value else values.get(name) not in (None, False, ())
