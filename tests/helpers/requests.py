"""RunConfigs whose selections and masks are written as one would type them."""

import msgspec

from attnscope.request import run_config
from attnscope.request.masks.expression import parse_mask
from attnscope.request.selection import parse_cut, parse_indices, parse_positions
from attnscope.studies.ablate.plan import AblationOptions

_READERS = {"mask": parse_mask}
_READERS |= {
    name: lambda text, name=name: parse_indices(text, f"--{name}") for name in ("layer", "head")
}
_READERS |= dict.fromkeys(("query", "key", "hide", "auto_key"), parse_positions)


def parsed(typed):
    """These fields, with those that are strings parsed."""
    return {
        name: _READERS[name](value) if name in _READERS and isinstance(value, str) else value
        for name, value in typed.items()
    }


def requested(texts, *more, **typed):
    """A RunConfig; `layer`, `head`, `mask`, `query`, `key` and `hide` may be strings."""
    return run_config.RunConfig(texts, *more, **parsed(typed))


def changed(run, **typed):
    """The same RunConfig with other fields, which may be strings as well."""
    return msgspec.structs.replace(run, **parsed(typed))


def cutting(cuts=(), each=None, **typed):
    """AblationOptions; cuts and `at` may be strings."""
    if isinstance(typed.get("at"), str):
        typed["at"] = parse_positions(typed["at"])
    return AblationOptions(tuple(map(parse_cut, cuts)), each, **typed)
