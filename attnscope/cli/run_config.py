"""Turn options into the RunConfig that sessions take."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.base.system.escape import escape_control
from attnscope.cli.parameters import Given
from attnscope.cli.process import begins, is_partly_read, is_piped, print_notice
from attnscope.request.options import PATIENCE, THE_MODEL
from attnscope.request.selection import join_label

if TYPE_CHECKING:
    from attnscope.request.media import MediaFile
    from attnscope.request.run_config import RunConfig, TextInput

# Endings of files: texts, records (which only batch reads), and findings (from which no command reads texts).
_LINES = (".txt", ".md", ".toml")
_RECORDS = (".jsonl", ".csv", ".tsv", ".parquet", ".gz", ".zst")
_FINDINGS = (".json", ".safetensors", ".npy", ".npz", ".svg", ".html")
_MODEL = ".gguf"  # and of a model in one file
# largest standard input in bytes, so that an endless one does not fill the memory
_LONGEST = 16 << 20


def model_fields(options: Given) -> dict[str, Any]:
    """Return the fields of a RunConfig that name the model: of `model`, `config` and `qkv`, only one is not None.

    --config and --qkv override a model in the environment.
    """
    fields = {
        option.name: getattr(options, option.name)
        for option in THE_MODEL
        if hasattr(options, option.name)
    }
    if fields.get("qkv") is not None or fields.get("config") is not None:
        fields["model"] = None
    if fields["adapter"] == "none":
        fields["adapter"] = None
    return fields


def run_config(
    texts: "tuple[TextInput, ...]", options: Given, left_out: Sequence[str] = (), **fields: Any
) -> "RunConfig":
    """Return the RunConfig of a command line.

    Args:
        options: Options; those named like fields of RunConfig are used.
        left_out: Options that mean something else.
    """
    from attnscope.request.run_config import RunConfig

    values = {
        name: getattr(options, name)
        for name in RunConfig.__struct_fields__
        if hasattr(options, name) and name not in left_out
    }
    if values.get("stages", ()) is None:
        del values["stages"]
    if "layer" in values:
        values["layer"], values["head"] = join_label(options.layer, options.head)
    return RunConfig(**{**values, **model_fields(options), **fields, "texts": texts})


def read_texts(options: Any, *, built_in: bool = False) -> "tuple[TextInput, ...]":
    """Return the texts that the user named, or the text that is piped to standard input.

    Args:
        options: `qkv`, whose texts are the only ones then; `text`, `file`, `pair`, `context` and `quiet`.
    """
    if getattr(options, "patch_from", None) is not None:
        refuse_path("patch_from", options.patch_from, reads_files=False)
    if getattr(options, "input_ids", None) is not None:
        return _given_ids(options)
    if getattr(options, "chat", None) is not None:
        return (_chat(options),)
    if getattr(options, "qkv", None) is not None:
        return _given_texts(options)
    text = options.text
    media = tuple(_media(options))
    pair = getattr(options, "pair", None)
    quiet = options.quiet
    file = getattr(options, "file", None)
    reads_files = hasattr(options, "file")
    keep = getattr(options, "keep_newline", False)
    from attnscope.request.run_config import TextInput

    piped = None
    if file is None and text == "-":
        piped = _standard_input(keep_newline=keep, quiet=quiet or not reads_files)
    if file is None and text is None and not media:
        meant = is_piped(sys.stdin) and (not built_in or _is_meant(quiet=quiet))
        piped = ""
        if meant:
            piped = _standard_input(keep_newline=keep, quiet=quiet or not reads_files)
        if not piped and built_in and pair is None and options.context is None:
            return ()
        if not piped:
            raise UsageError(
                "no text given",
                hint=f"pass TEXT, - for standard input, or {arg('file', placeholder='PATH')}",
            )
    if keep and piped is None:
        raise UsageError(
            "only works with standard input", where=arg("keep_newline"), hint="remove it"
        )
    for name, value in (("text", text), ("pair", pair), ("context", options.context)):
        if value is not None:
            refuse_path(name, value, reads_files=reads_files)
    if file is None:
        where = arg("text") if piped is None else "standard input"
        return (
            TextInput(
                (text or "") if piped is None else piped, pair, options.context, where, media=media
            ),
        )
    return texts_of_file(file, options.context, quiet=quiet)


def texts_of_file(
    path: Path, context: str | None = None, *, quiet: bool
) -> "tuple[TextInput, ...]":
    """Return the texts of a file, one per line."""
    from msgspec.structs import replace

    from attnscope.request import text_files

    texts, notes = text_files.read_text_file(path)
    for note in notes if not quiet else []:
        print_notice("note", escape_control(note))
    return tuple(replace(text, context=context) for text in texts)


def _media(options: Any) -> "Iterator[MediaFile]":
    from attnscope.request.media import MediaFile

    for path in getattr(options, "image", ()):
        yield MediaFile("image", path, path)
    if (sound := getattr(options, "audio", None)) is not None:
        yield MediaFile("audio", sound, sound)


def read_json(named: str, *, quiet: bool) -> tuple[str, Any]:
    """Read a JSON file, or standard input for `-`; return its name for errors, and the value."""
    from attnscope.base.files.reading import parse_json, read_file

    if named == "-":
        data = _standard_input(keep_newline=True, quiet=quiet).encode()
        return "standard input", parse_json(data, "standard input")
    return named, parse_json(read_file(Path(named), cap=_LONGEST), named)


def _chat(options: Any) -> "TextInput":
    from attnscope.request.chat import chat_of
    from attnscope.request.run_config import TextInput

    where, value = read_json(options.chat, quiet=options.quiet)
    return TextInput("", where=where, chat=chat_of(value, where), media=tuple(_media(options)))


def _given_ids(options: Any) -> "tuple[TextInput, ...]":
    from attnscope.request.given_ids import read_ids
    from attnscope.request.run_config import TextInput

    where, value = read_json(options.input_ids, quiet=options.quiet)
    rows = read_ids(value if isinstance(value, dict) else {"input_ids": value}, where)
    if len(rows) == 1:
        names = [where]
    else:
        names = [f"{where}: row {n}" for n in range(len(rows))]
    return tuple(
        TextInput("", where=name, given=row) for name, row in zip(names, rows, strict=True)
    )


def _given_texts(options: Any) -> "tuple[TextInput, ...]":
    from attnscope.engines.arrays.making import from_file

    return from_file(Path(options.qkv)).inputs


def refuse_path(name: str, text: str, *, reads_files: bool) -> None:
    """Refuse a text that names a model or file, or looks like one: its content was meant.

    Args:
        reads_files: The command has `--file`.
    """
    path = Path(text)
    one_word = text.split() == [text]
    try:
        is_file = path.is_file()
        model = bool(text.strip()) and (path / "config.json").is_file()
    except (OSError, ValueError):  # the name is too long, or contains NUL
        is_file = model = False
    suffix = path.suffix.lower()
    model = (
        model
        or ((is_file or one_word) and suffix == _MODEL)
        or (is_file and path.name == "config.json")
    )
    if not (is_file or model or (one_word and suffix in (*_LINES, *_RECORDS, *_FINDINGS))):
        return
    import shlex

    before = "" if name == "text" else f"{arg(name)} "
    literally = (
        f"pass the text itself; with a space at the end, {before}'{text} ' is taken literally"
    )
    if model and name == "text":
        hint = f"use {arg('model', text)} to open it"
    elif name != "text" or not reads_files:
        hint = literally
    elif is_file and suffix in _RECORDS and _is_dump(path):
        raise UsageError(
            f"'{text}' is a dump of attnscope batch, not a text",
            where=arg(name),
            hint=f"use attnscope explore {shlex.quote(text)} to walk through it, or attnscope convert for a table",
        )
    elif suffix in _RECORDS:
        hint = f"use attnscope batch {shlex.quote(text)} -o dump.jsonl to read its records"
    elif suffix in _FINDINGS:
        hint = "use attnscope compare with at least two saved reports (.json)"
    else:
        hint = f"use {arg('file', text)} to read one text per line, or - to read one text from standard input"
    what = "a model" if model else "a file name"
    raise UsageError(f"'{text}' is {what}, not a text", where=arg(name), hint=hint)


def _is_dump(path: Path) -> bool:
    from attnscope.batch.dump_reader import Dump

    with suppress(AttnscopeError):
        Dump(path)
        return True
    return False


def _is_meant(*, quiet: bool) -> bool:
    """Tell whether to read a piped standard input: not if another command is reading it, or if nothing arrives."""
    if is_partly_read(sys.stdin):
        return False
    if begins(sys.stdin, PATIENCE):
        return True
    if not quiet:
        print_notice(
            "note",
            "nothing came from standard input, so the built-in texts are used; pass - to wait for it",
        )
    return False


def _standard_input(*, keep_newline: bool, quiet: bool) -> str:
    if sys.stdin is None:
        raise AttnscopeError(
            "standard input is closed", hint=f"pass TEXT, or {arg('file', placeholder='PATH')}"
        )
    try:
        data = sys.stdin.buffer.read(_LONGEST + 1)
    except OSError as e:
        raise AttnscopeError(f"cannot be read ({e.strerror})", where="standard input") from e
    if len(data) > _LONGEST:
        raise AttnscopeError(
            f"is longer than {_LONGEST:,} bytes", where="standard input", hint="split the text"
        )
    try:
        text = data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as e:
        before = data[: e.start]
        line = before.count(b"\n") + 1
        column = e.start - (before.rfind(b"\n") + 1)
        message = f"byte 0x{data[e.start]:02x} at byte {column} of line {line} is not UTF-8"
        raise AttnscopeError(message, where="standard input", hint="convert it to UTF-8") from e
    if keep_newline or not text.endswith("\n"):
        return text
    if not quiet and text.strip():
        print_notice(
            "note", "the last newline of standard input is left out; --keep-newline keeps it"
        )
    return text.removesuffix("\n").removesuffix("\r")
