"""Refuse combinations of options, as the conditions of their rows declare them (`request/options.py`)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscope.base.errors import UsageError, Value, arg
from attnscope.request.options import Option, option_in, rules


def check_combinations(
    options: Sequence[Option], values: Mapping[str, Any], settings: Collection[str] = ()
) -> list[str]:
    """Refuse a combination of the options of a command.

    Args:
        values: What is given, by the name of the option: typed, set, or an argument in Python; None for nothing.
        settings: Names of those that come from settings files.

    Returns:
        Settings that have no effect, since what they need is not given.
    """
    call = _Call({option.name: option for option in options}, values)
    given = [option for option in options if option.name in values]
    for option in given:
        if option.excludes and call.is_given(option.name):
            for own_values, excluded in rules(option.excludes):
                if call.has(option.name, own_values):
                    call.refuse_any(option, own_values, excluded)
    idle = []
    for option in given:
        # what a flag such as --no-effects turns off has needs, too
        turned_off = option.off and values[option.name] is False
        if not option.needs or not (turned_off or call.is_given(option.name)):
            continue
        for own_values, needed in rules(option.needs):
            if call.has(option.name, own_values) and not any(map(call.holds, needed)):
                if option.name not in settings:
                    raise call.lacks(option, own_values, needed)
                idle.append(option.name)
    return idle


def spell_condition(condition: str) -> tuple[str, str]:
    """Name what is enough for a condition, for errors and help: a first way, and the others."""
    name, _, wanted = condition.partition("=")
    if not wanted:
        return arg(name), ""
    words = wanted.split("|")
    if name.endswith("!"):
        return arg(name[:-1]), f" other than {_alternatives(words)}"
    first_value = arg(name, words[0])
    if wanted.startswith("."):
        first_value = arg(name, placeholder=f"FILE{words[0]}")
    if len(words) > 2:
        more = f", {_alternatives(words[1:])}"
    else:
        more = f" or {words[-1]}"
    return first_value, more if len(words) > 1 else ""


def spell_conditions(conditions: Sequence[str]) -> str:
    """Name what is enough for one of several conditions."""
    return _alternatives(["".join(spell_condition(condition)) for condition in conditions])


def _alternatives(words: Sequence[str]) -> str:
    *before, last = words
    if before:
        return f"{', '.join(before)} or {last}"
    return last


@dataclass(frozen=True)
class _Call:
    """The values of a call, by the names of options."""

    options: Mapping[str, Option]
    values: Mapping[str, Any]

    def is_given(self, name: str, *, default: bool = False) -> bool:
        """Tell whether an option is given; not if it has its default, unless `default`."""
        option = self.options.get(name)
        value = self.values.get(name)
        if option is not None and option.off is False:
            return value is False
        several = option is not None and option.several == "yes"
        if value is None or value is False or (several and isinstance(value, tuple) and not value):
            return False
        usual = None if option is None or default else option.default
        return usual is None or _words(value) != _words(usual)

    def has(self, name: str, wanted: str) -> bool:
        """Tell whether an option has one of some values, separated by `|`; `!` stands for all others."""
        option = self.options.get(name)
        value = self.values.get(name)
        if value is None and option is not None:
            value = option.default
        if not wanted or value is None:
            return not wanted
        negated = wanted.startswith("!")
        wanted_words = wanted.removeprefix("!").split("|")
        is_file = wanted_words[0].startswith(".")
        words = [Path(str(value)).suffix.lower()] if is_file else _words(value)
        return any((word in wanted_words) != negated for word in words)

    def holds(self, condition: str, *, default: bool = True) -> bool:
        """Tell whether a condition holds; without `default`, not for an option that has its default."""
        name, _, wanted = condition.partition("=")
        if name.endswith("!"):
            name = name[:-1]
            return self.values.get(name) is not None and self.has(name, f"!{wanted}")
        if wanted:
            return self.has(name, wanted)
        return self.is_given(name, default=default)

    def spelled(self, condition: str, own_values: str = "") -> str:
        """Name an option, with its value if a condition is about values, or its values are words."""
        name = option_in(condition)
        option = self.options.get(name)
        given = self.values[name]
        choices = option.complete if option is not None else ()
        is_word = isinstance(choices, tuple) and str(given) in choices
        value: Value = None
        if own_values or name != condition or is_word:
            value = given if isinstance(given, int) else ",".join(_words(given))
        return arg(name, value)

    def refuse_any(self, option: Option, own_values: str, excluded: Sequence[str]) -> None:
        """Refuse an option with any of what it excludes."""
        for condition in excluded:
            if self.holds(condition, default=False):
                both = f"{self.spelled(option.name, own_values)} and {self.spelled(condition)}"
                why = f": {option.why}" if option.why else ""
                raise UsageError(f"{both} cannot be used together{why}", hint="remove one of them")

    def lacks(self, option: Option, own_values: str, needed: Sequence[str]) -> UsageError:
        """Return the error about an option without what it needs."""
        known = [condition for condition in needed if option_in(condition) in self.options]
        excluded = any(
            option_in(known[0]) in other.settings_left_out
            for other in self.options.values()
            if self.is_given(other.name)
        )
        first_way = spell_condition(known[0])[0]
        needed_name = option_in(known[0])
        name, _, wanted = known[0].partition("=")
        if not wanted or name.endswith("!"):
            needed_option = self.options[needed_name]
            first_choice, *_ = needed_option.metavar.split("|")
            first_way = arg(needed_option.name, placeholder=first_choice)
        if excluded:
            hint = "remove it"
        elif self.is_given(needed_name) and not isinstance(self.values[needed_name], list | tuple):
            hint = f"use {first_way} instead of {self.spelled(known[0])}"
            if option.instead:
                hint += f", or {option.instead} instead of {arg(option.name)}"
        else:
            hint = f"add {first_way}"
        where = self.spelled(option.name, own_values)
        if option.off and self.values[option.name] is False:
            where = arg(option.name, False)
        return UsageError(f"applies only to {spell_conditions(known)}", where=where, hint=hint)


def _words(value: Any) -> list[str]:
    if isinstance(value, list | tuple):
        return [str(item) for item in value] or ["none"]
    return str(value).split(",")
