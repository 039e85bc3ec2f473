"""Turn options into the RunConfig that the pipeline takes."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.base.system.escape import escape_control
from attnscope.cli.options import MachineOptions, ModelOptions, TextOptions
from attnscope.cli.process import PATIENCE, begins, is_begun, is_piped, print_notice
from attnscope.cli.selection_options import SelectionOptions

if TYPE_CHECKING:
    from attnscope.request.run_config import RunConfig, TextInput

_LINES = (".txt", ".md", ".toml")  # endings of files: texts, …
_RECORDS = (".jsonl", ".csv", ".tsv", ".parquet", ".gz", ".zst")  # … what only batch reads, …
_FINDINGS = (".json", ".safetensors", ".npy", ".npz", ".svg", ".html")  # … and what no command reads texts from
_MODEL = ".gguf"  # and of a model in one file
_LONGEST = 16 << 20  # largest standard input in bytes, so that an endless one does not fill the memory


def run_config(
    texts: "tuple[TextInput, ...]",
    stack: ModelOptions,
    selection: SelectionOptions,
    machine: MachineOptions,
    *,
    window: int | None,
    pool: int | None = None,
) -> "RunConfig":
    """Return what the user asked for.

    Args:
        texts: The texts.
        stack: Which model.
        selection: What to compute.
        machine: How to run it.
        window: See config.RunConfig.
        pool: Size of a pooled map; None for none.

    Raises:
        UsageError: Options contradict each other.
    """
    from attnscope.request.run_config import RunConfig

    return RunConfig(
        texts=texts,
        **stack.chosen(),
        **selection.masking(),
        **selection.chosen(),
        **vars(machine),
        window=window,
        pool=pool,
    )


def targets(by: str, named: list[str] | None) -> tuple[str, ...] | None:
    """Return the tokens whose logits are taken apart; None where none are.

    Raises:
        UsageError: Tokens are named and `--by` does not say what for, or too many are.
    """
    if named and by != "logit":
        raise UsageError("applies only to --by logit", where="--target", hint="add --by logit")
    if named and len(named) > 2:
        raise UsageError(f"given {len(named)} times", where="--target", hint="give one token, or two for a difference")
    return tuple(named or ()) if by == "logit" else None


def read_texts(
    source: TextOptions, *, quiet: bool, built_in: bool = False, reads_files: bool = True
) -> "tuple[TextInput, ...]":
    """Return the texts that the user named: where there is no name, what is piped to standard input.

    Args:
        source: Where they are.
        quiet: Say nothing about blank lines, and nothing about a pipe that was not read.
        built_in: The command has texts of its own: where nothing is named or piped, there are none.
        reads_files: The command has `--file`.

    Raises:
        UsageError: There is no text, or there are two sources of one.
        AttnscopeError: The file or standard input cannot be read, or is not UTF-8.
    """
    from attnscope.request.run_config import TextInput

    piped = _standard_input(source, quiet=quiet) if source.file is None and source.text == "-" else None
    if source.file is None and source.text is None:
        meant = is_piped(sys.stdin) and (not built_in or _is_meant(quiet=quiet))
        piped = _standard_input(source, quiet=quiet) if meant else ""
        if not piped and built_in:
            return ()
        if not piped:
            raise UsageError("no text given", hint="pass TEXT, - for standard input, or --file PATH")
    if source.keep_newline and piped is None:
        raise UsageError("only works with standard input", where="--keep-newline", hint="remove it")
    for option, text in (("TEXT", source.text), ("--pair", source.pair), ("--context", source.context)):
        if text is not None:
            refuse_path(option, text, reads_files=reads_files)
    if source.file is None:
        where = "TEXT" if piped is None else "standard input"
        return (TextInput(str(source.text) if piped is None else piped, source.pair, source.context, where),)
    if source.text is not None or source.pair is not None:
        other = "TEXT" if source.text is not None else "--pair"
        raise UsageError(f"--file and {other} cannot be used together", hint="pass one of them")
    return _from_file(source.file, source.context, quiet=quiet)


def refuse_path(option: str, text: str, *, reads_files: bool = True) -> None:
    """Refuse a text that names a model, or a file, or looks like one: what is in it was meant.

    Args:
        option: The option that takes the text.
        text: The text.
        reads_files: The command has `--file`.

    Raises:
        UsageError: The text is a path.
    """
    path = Path(text)
    one_word = text.split() == [text]
    try:
        named = path.is_file()
        model = bool(text.strip()) and (path / "config.json").is_file()
    except (OSError, ValueError):  # the name is too long, or contains NUL
        named = model = False
    suffix = path.suffix.lower()
    model = model or ((named or one_word) and suffix == _MODEL) or (named and path.name == "config.json")
    if not (named or model or (one_word and suffix in (*_LINES, *_RECORDS, *_FINDINGS))):
        return
    import shlex

    before = "" if option == "TEXT" else f"{option} "
    literally = f"pass the text itself; with a space at the end, {before}'{text} ' is taken literally"
    if model and option == "TEXT":
        hint = f"use --model {shlex.quote(text)} to open it"
    elif option != "TEXT" or not reads_files:
        hint = literally
    elif suffix in _RECORDS:
        hint = f"use attnscope batch {shlex.quote(text)} to read its records"
    elif suffix in _FINDINGS:
        hint = "use attnscope compare with at least two saved reports (.json)"
    else:
        hint = f"use --file {shlex.quote(text)} to read one text per line, or - to read one text from standard input"
    what = "a model" if model else "a file name"
    raise UsageError(f"'{text}' is {what}, not a text", where=option, hint=hint)


def _from_file(path: Path, context: str | None, *, quiet: bool) -> "tuple[TextInput, ...]":
    from msgspec.structs import replace

    from attnscope.request import text_files

    found, notes = text_files.read_texts(path)
    for note in notes if not quiet else []:
        print_notice("note", escape_control(note))
    return tuple(replace(text, context=context) for text in found)


def _is_meant(*, quiet: bool) -> bool:
    """Tell whether to read a piped standard input: not if another command is reading it, or if nothing arrives."""
    if is_begun(sys.stdin):
        return False
    if begins(sys.stdin, PATIENCE):
        return True
    if not quiet:
        print_notice("note", "nothing came from standard input, so the built-in texts are used; pass - to wait for it")
    return False


def _standard_input(source: TextOptions, *, quiet: bool) -> str:
    if sys.stdin is None:
        raise AttnscopeError("standard input is closed", hint="pass TEXT, or --file PATH")
    try:
        data = sys.stdin.buffer.read(_LONGEST + 1)
    except OSError as e:
        raise AttnscopeError(f"cannot be read ({e.strerror})", where="standard input") from e
    if len(data) > _LONGEST:
        raise AttnscopeError(f"is longer than {_LONGEST:,} bytes", where="standard input", hint="split the text")
    try:
        text = data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as e:
        before = data[: e.start]
        line, column = before.count(b"\n") + 1, e.start - (before.rfind(b"\n") + 1)
        found = f"byte 0x{data[e.start]:02x} at byte {column} of line {line} is not UTF-8"
        raise AttnscopeError(found, where="standard input", hint="convert it to UTF-8") from e
    if source.keep_newline or not text.endswith("\n"):
        return text
    if not quiet and text.strip():
        print_notice("note", "the last newline of standard input is left out; --keep-newline keeps it")
    return text.removesuffix("\n").removesuffix("\r")
