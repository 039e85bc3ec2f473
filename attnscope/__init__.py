"""attnscope: see what attention does inside a transformer.

The Python functions behind the commands. They are loaded on first use; `__init__.pyi` names them for type checkers.
"""

from attnscope.api.loaded_on_use import __dir__ as __dir__
from attnscope.api.loaded_on_use import __getattr__ as __getattr__
from attnscope.base.version import __version__ as __version__
