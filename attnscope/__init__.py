"""attnscope: see what attention does inside a transformer.

The Python functions behind the commands. They are loaded on first use; `__init__.pyi` names them for type checkers.
"""

from typing import Any

from attnscope.base.version import __version__ as __version__

# Commands whose function has another name.
_INSTEAD = {
    "run": "inspect",
    "batch": "write_dump",
    "convert": "read_dump(…) and its tables",
}


def __getattr__(name: str) -> Any:
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'attnscope' has no attribute '{name}'")
    from attnscope.api import functions

    if name == "__all__":
        return [*functions.__all__, "__version__"]
    if name not in functions.__all__ and name not in functions.declared_studies():
        instead = f": use attnscope.{_INSTEAD[name]}" if name in _INSTEAD else ""
        raise AttributeError(f"module 'attnscope' has no attribute '{name}'{instead}")
    if name in functions.__all__:
        loaded = getattr(functions, name)
    else:
        loaded = functions.study_function(name)
    globals()[name] = loaded
    return loaded


def __dir__() -> list[str]:
    from attnscope.api import functions

    return sorted({*globals(), *functions.__all__, *functions.declared_studies()})
