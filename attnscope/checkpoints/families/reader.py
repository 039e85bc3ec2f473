"""Read values of a config.json, with errors that name the key."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnscope.base.errors import AttnscopeError

REQUIRED: Any = object()
_MOST = 1 << 62
# a bound for float32 numbers whose products also fit into float32
_SMALLEST = 1e-30
_LARGEST = 1e30


@dataclass(frozen=True)
class ConfigReader:
    """A config.json with its place, for errors."""

    raw: Mapping[str, Any]
    where: str
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of missing keys
    filled: dict[str, Any] = field(default_factory=dict)  # defaults that were taken

    def get(self, *names: str, default: Any = REQUIRED) -> Any:
        """Return the value under the name that exists and is not null."""
        present_names = [name for name in names if self.raw.get(name) is not None]
        if not present_names:
            if (
                default is REQUIRED
                and names[0] in self.defaults
                and not any(name in self.raw for name in names)
            ):
                return self.filled.setdefault(names[0], self.defaults[names[0]])
            if default is REQUIRED:
                message = f"the key '{names[0]}' is {'null' if names[0] in self.raw else 'missing'}"
                raise AttnscopeError(
                    message, where=self.where, hint="the family's attention depends on it"
                )
            return default
        for other in present_names[1:]:
            if self.raw[other] != self.raw[present_names[0]]:
                raise self.wrong(
                    other,
                    self.raw[other],
                    f"the {format_json(self.raw[present_names[0]])} of '{present_names[0]}'",
                )
        return self.raw[present_names[0]]

    def number(self, *names: str, default: Any = REQUIRED) -> Any:
        """Return a value as `get` does; refuse it unless it is a number above 0 or the default."""
        value = self.get(*names, default=default)
        if value is default:
            return value
        return positive_number(self, self.given(names) or names[0], value)

    def whole(self, name: str, *, default: Any = REQUIRED, least: int = 1) -> int:
        """Return a value as `get` does; refuse it unless it is a whole number."""
        return whole_number(self, name, self.get(name, default=default), least)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean."""
        value = self.get(name, default=default)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def given(self, names: Iterable[str]) -> str | None:
        """Return the first name that exists and is not null."""
        return next((name for name in names if self.raw.get(name) is not None), None)

    def wrong(self, name: str, value: Any, expected: str) -> AttnscopeError:
        """Return the error for a value that cannot be used."""
        return AttnscopeError(
            f"{name} is {format_json(value)}", where=self.where, hint=f"expected {expected}"
        )


def positive_number(reader: ConfigReader, name: str, value: Any) -> int | float:
    """Return the value; refuse all but a number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise reader.wrong(name, value, "a number above 0")
    if not _SMALLEST <= value <= _LARGEST:
        raise reader.wrong(name, value, f"from {_SMALLEST:g} to {_LARGEST:g}")
    return value


def whole_number(reader: ConfigReader, name: str, value: Any, least: int = 1) -> int:
    """Return the value; refuse all but an integer from `least` to the largest that torch takes."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise reader.wrong(name, value, f"a whole number of at least {least}")
    if value > _MOST:
        raise reader.wrong(name, value, f"at most {_MOST:,}")
    return value


def format_json(value: Any) -> str:
    """Format a value as JSON, truncated to one short line; the error escapes control characters."""
    if isinstance(value, str):
        text = f'"{value}"'
    else:
        text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"
