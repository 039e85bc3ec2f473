from attnscope.api.functions import *  # noqa: F403
from attnscope.base.version import __version__ as __version__
