"""Settings: defaults of options from attnscope.toml, [tool.attnscope] of pyproject.toml, and the user's own file.

A file has options of all commands at its top, a table for each command, and the same in `[profile.NAME]`:

    model = "./my-bert"

    [run]
    head = "all"

    [profile.paper.run]
    precision = 3

The project's file comes before the user's, a profile before the rest of the files, a command's table before the top,
environment variables before all files, and what is typed before everything.
"""

import os
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnscope.base.errors import (
    AttnscopeError,
    UsageError,
    did_you_mean,
    spell_options,
    suggestion,
)
from attnscope.request.options import COMMANDS, Option
from attnscope.studies.registry import options_of

FILE = "attnscope.toml"
PROJECT = "pyproject.toml"
LEAVE_OUT = "ATTNSCOPE_NO_SETTINGS"  # environment variable that does what --no-settings does
_PROFILES = "profile"
_TABLE = b"tool.attnscope"  # of a pyproject.toml
_LARGEST = 1 << 20  # bytes of a file


@dataclass(frozen=True)
class Setting:
    """The default of an option, from a file."""

    option: Option
    # its value as Typer takes it: text, texts of an option that is repeated, or a bool for a flag
    typed: Any
    path: Path
    key: str  # where it is in the file, such as `profile.paper.run.precision`

    @property
    def source(self) -> str:
        """The file, from the working folder or the user's, and the place in it."""
        home = os.path.expanduser("~")
        inside = os.path.relpath(self.path)
        own = str(self.path)
        if own.startswith(f"{home}/"):
            own = f"~{own.removeprefix(home)}"
        return f"{min(inside, own, key=len)}: {self.key}"


@dataclass(frozen=True)
class _Table:
    """A table of a file with options."""

    path: Path
    key: str  # name of the table, with a point at its end; empty for the whole file
    values: Mapping[str, Any]


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


def settings_files(folder: Path) -> list[Path]:
    """Return the files that apply in a folder: the project's, which comes first, and the user's."""
    found = []
    for parent in (folder, *folder.parents):
        candidates = [path for path in (parent / FILE, parent / PROJECT) if path.is_file()]
        # no TOML is read in vain
        ours = (
            path
            for path in candidates
            if path.name == FILE or _TABLE in path.read_bytes()[:_LARGEST]
        )
        project = next(ours, None)
        if project is not None:
            found.append(project)
            break
    own = config_folder() / FILE
    if own.is_file() and own not in found:
        found.append(own)
    return found


def settings_of(command: str, words: Sequence[str]) -> dict[str, Setting]:
    """Return the settings that apply to a command line, by the name of their option.

    Settings that an option on the command line excludes are left out.

    Args:
        command: Name of the command.
        words: What was typed after it.
    """
    profile = _typed_value(words, "--profile")
    if os.environ.get(LEAVE_OUT) or "--no-settings" in _options(words):
        if profile is not None:
            raise UsageError(
                "there are no settings to take it from",
                where="--profile",
                hint="remove --no-settings",
            )
        return {}
    files = settings_files(Path.cwd())
    tables = list(_tables(files, command, profile))
    found: dict[str, Setting] = {}
    for table in reversed(tables):
        found |= _settings(table, command)
    typed = {word.partition("=")[0] for word in _options(words)}
    options = options_of(command)
    names = {
        name: option
        for option in options
        for name in (option.spelled, option.off, option.short)
        if name
    }
    typed_names = {names[word].name for word in typed if word in names}
    left_out = {
        name
        for option in options
        if option.name in typed_names
        for name in option.settings_left_out
    }
    return {
        name: setting
        for name, setting in found.items()
        if name not in left_out and typed_names.isdisjoint(setting.option.settings_left_out)
    }


def described_settings(words: Sequence[str]) -> dict[str, Any]:
    """Return the settings of all commands as plain data: files, profiles, and each option with its source.

    Args:
        words: What was typed, which may name a profile, or leave settings out.
    """
    profile = _typed_value(words, "--profile")
    asked = [] if profile is None else ["--profile", profile]
    if "--no-settings" in _options(words):
        asked += ["--no-settings"]
    rows: dict[tuple[str, str, str], list[str]] = {}
    for command, options in COMMANDS.items():
        for setting in settings_of(command, asked).values():
            if isinstance(setting.typed, list):
                value = ", ".join(setting.typed)
            else:
                value = str(setting.typed)
            source = setting.source
            if setting.option.variable is not None and os.environ.get(setting.option.variable):
                source = f"{source}, but {setting.option.variable} comes before it"
            rows.setdefault((setting.option.spelled, value, source), []).append(command)
        for option in options:
            if option.variable is not None and os.environ.get(option.variable):
                row = (
                    option.spelled,
                    os.environ[option.variable],
                    f"environment: {option.variable}",
                )
                rows.setdefault(row, []).append(command)
    left_out = bool(os.environ.get(LEAVE_OUT)) or "--no-settings" in asked
    files = [] if left_out else settings_files(Path.cwd())
    profiles = [name for path in files for name in _read(path).get(_PROFILES, {})]
    listed = [
        {"option": option, "value": value, "source": source, "commands": commands}
        for (option, value, source), commands in rows.items()
    ]
    return {
        "files": [str(path) for path in files],
        "profiles": sorted(set(profiles)),
        "settings": listed,
    }


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = path.read_bytes()
        whole = tomllib.loads(data.decode())
    except OSError as e:
        raise AttnscopeError(f"cannot be read ({e.strerror})", where=path) from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise UsageError(
            f"is not TOML ({e})", where=path, hint="repair it, or pass --no-settings"
        ) from e
    if path.name == PROJECT:
        settings = whole.get("tool", {}).get("attnscope", {})
    else:
        settings = whole
    if not isinstance(settings, dict):
        raise UsageError("must be a table", where=f"{path}: tool.attnscope")
    return settings


def _tables(files: Sequence[Path], command: str, profile: str | None) -> Iterator[_Table]:
    """Yield the tables that apply, the one that wins first; every key of every file is checked."""
    plain: list[_Table] = []
    profiles: list[str] = []
    chosen_tables: list[_Table] = []
    for path in files:
        values = _read(path)
        prefix = "tool.attnscope." if path.name == PROJECT else ""
        profile_tables = values.get(_PROFILES, {})
        if not isinstance(profile_tables, dict) or not all(
            isinstance(table, dict) for table in profile_tables.values()
        ):
            raise UsageError(
                "must hold tables: [profile.NAME]", where=f"{path}: {prefix}{_PROFILES}"
            )
        profiles += profile_tables
        for name, table in profile_tables.items():
            tables = _of_command(path, f"{prefix}{_PROFILES}.{name}.", table, command)
            if name == profile:
                chosen_tables += tables
        plain += _of_command(
            path, prefix, {k: v for k, v in values.items() if k != _PROFILES}, command
        )
    if profile is not None and profile not in profiles:
        if profiles:
            hint = did_you_mean(profile, profiles)
        else:
            hint = f"add [profile.{profile}] to {FILE}"
        raise UsageError(f"no such profile '{profile}'", where="--profile", hint=hint)
    yield from chosen_tables
    yield from plain


def _of_command(path: Path, key: str, values: Mapping[str, Any], command: str) -> list[_Table]:
    """Return the command's table, and the options of all commands."""
    tables = []
    common = {}
    spellings = {
        spelling
        for options in COMMANDS.values()
        for option in options
        for spelling in _spellings(option)
    }
    for name, value in values.items():
        if name in COMMANDS:
            if not isinstance(value, dict):
                raise UsageError(
                    "must be a table with options of the command", where=f"{path}: {key}{name}"
                )
            of_command = [
                spelling for option in options_of(name) for spelling in _spellings(option)
            ]
            _check_keys(f"{path}: {key}{name}.", value, of_command, name)
            if name == command:
                tables.append(_Table(path, f"{key}{name}.", value))
        else:
            common[name] = value
    _check_keys(f"{path}: {key}", common, [*spellings, *COMMANDS], "")
    return [*tables, _Table(path, key, common)]


def _check_keys(where: str, values: Mapping[str, Any], names: Sequence[str], command: str) -> None:
    for name in values:
        if name not in names:
            hint = (
                suggestion(name, list(names))
                or f"attnscope help {command}".rstrip() + " lists what there is"
            )
            raise UsageError("is no option", where=f"{where}{name}", hint=hint)


def _spellings(option: Option) -> tuple[str, ...]:
    """Return the keys that set an option: as typed without dashes, and as in Python."""
    if option.argument:
        return ()
    return option.spelled.removeprefix("--"), option.name


def _settings(table: _Table, command: str) -> dict[str, Setting]:
    options_by_name = {
        spelling: option for option in options_of(command) for spelling in _spellings(option)
    }
    found = {}
    for name, value in table.values.items():
        option = options_by_name.get(name)
        if option is not None:  # otherwise an option of other commands
            key = f"{table.key}{name}"
            setting = Setting(option, None, table.path, key)
            found[option.name] = replace(
                setting, typed=_as_typed(option, name, value, setting.source)
            )
    return found


def _as_typed(option: Option, name: str, value: Any, where: str) -> Any:
    """Return a value of TOML as it would be typed; refuse one that the option does not take."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"must be true or false, not {value!r}", where=where)
        # `special = false` is what the flag --no-special says
        if option.off is False and name == option.name:
            return not value
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float | list):
        raise UsageError(f"must be text or a number, not {value!r}", where=where)
    if isinstance(value, list):
        texts = [str(item) for item in value]
    else:
        texts = [str(value)]
    if option.several == "no":
        texts = [",".join(texts)]
    for text in texts:
        try:
            if option.read is not None:
                option.read(text)
        except UsageError as e:
            hint = None if e.parts.hint is None else spell_options(e.parts.hint)
            raise UsageError(e.parts.message, where=where, hint=hint) from e
    return texts if option.several != "no" else texts[0]


def _options(words: Sequence[str]) -> Sequence[str]:
    """Return the words that may be options: those before `--`."""
    if "--" in words:
        return words[: words.index("--")]
    return words


def _typed_value(words: Sequence[str], name: str) -> str | None:
    """Return the last value of an option among words that are not yet parsed; None if there is none."""
    value = None
    options = _options(words)
    for index, word in enumerate(options):
        if word == name and index + 1 < len(options):
            value = options[index + 1]
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value
