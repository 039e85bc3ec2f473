"""Options that are given once for every side of a comparison."""

from collections.abc import Iterable, Mapping
from typing import Any

from attnscope.base.errors import UsageError
from attnscope.cli.parameters import Given
from attnscope.request.options import Option

Several = Mapping[str, list[Any]]  # option to its values, of those that were given


class Sides:
    """The values of options that may be given for every side."""

    def __init__(self, given: Given, options: Iterable[Option]) -> None:
        self._given = given
        self._options = {option.name: option for option in options if option.several == "compared"}
        self.several: Several = {name: values for name in self._options if (values := getattr(given, name))}

    def axis(self) -> tuple[str, list[Any]] | None:
        """Return the option that was given several times, with its values; None if there is none."""
        repeated = {name: values for name, values in self.several.items() if len(values) > 1}
        if len(repeated) > 1:
            names = " and ".join(self._options[name].spelled for name in repeated)
            raise UsageError(f"{names} are given more than once", hint="repeat only one of them")
        return next(iter(repeated.items()), None)

    def side(self, axis: str | None = None, value: Any = None) -> Given:
        """Return the typed options with one value each: the first, and `value` for `axis`."""
        side = Given(**vars(self._given))
        for name, option in self._options.items():
            default = option.read(option.default) if option.read and option.default is not None else option.default
            setattr(side, name, value if name == axis else self.several.get(name, [default])[0])
        return side
