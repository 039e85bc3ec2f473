"""The names of `import attnscope`: `functions` is imported when one is used."""

import sys
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'attnscope' has no attribute '{name}'")
    from attnscope.api import functions

    if name == "__all__":
        return [*functions.__all__, "__version__"]
    if name not in functions.__all__ and name not in functions.declared_studies():
        raise AttributeError(f"module 'attnscope' has no attribute '{name}'")
    loaded = getattr(functions, name) if name in functions.__all__ else functions.study_function(name)
    setattr(sys.modules["attnscope"], name, loaded)
    return loaded


def __dir__() -> list[str]:
    from attnscope.api import functions

    return sorted({*vars(sys.modules["attnscope"]), *functions.__all__, *functions.declared_studies()})
