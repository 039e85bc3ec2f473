"""The folder of the user's settings."""

import os
import sys
from pathlib import Path


def config_folder() -> Path:
    """Return the folder of the user's settings of attnscope, which may not exist.

    XDG_CONFIG_HOME wins everywhere; else it is the platform's folder: ~/.config, ~/Library/Application Support on
    macOS, and APPDATA on Windows.
    """
    home = Path(os.path.expanduser("~"))
    folder = os.environ.get("XDG_CONFIG_HOME")
    if folder:
        return Path(folder) / "attnscope"
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "attnscope"
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or home / "AppData" / "Roaming") / "attnscope"
    return home / ".config" / "attnscope"
