"""The command `attnscope explore`: walk through the attention of a text, a dump or a report."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import TUI, AttnscopeError, UsageError, arg
from attnscope.base.system.escape import quote_for_shell
from attnscope.cli.parameters import Given
from attnscope.request.selection import AUTO

if TYPE_CHECKING:
    from attnscope.request.run_config import TextInput
    from attnscope.run.session import Session
    from attnscope.views.walk.keys import KeyAction
    from attnscope.views.walk.scene import Progress, Source

EXAMPLES = """
attnscope explore "The bank by the river"
attnscope explore "The bank by the river" --layer 2 --head 0 --query bank
attnscope explore --file texts.txt --model ./my-llama.gguf
attnscope explore "The bank was closed. The river rose." --spans sentences
attnscope explore "The unbelievable bank" --words
attnscope explore dump.jsonl
attnscope explore report.json
"""
_SAVED = (".json", ".npz", ".safetensors")


def explore(options: Given) -> None:
    """Walk through attention with the keyboard or the mouse.

    Shows every layer and head, the matrix of one of them, the sources and the arithmetic of one row, and the text. Keys
    move the cursor, change head, layer, stage and mask, follow the strongest source, compare and cut heads; ? lists
    them. A text is computed on demand; a dump or report is opened without the model. On leaving, the command that
    shows the same place is printed.
    """
    TUI.require("explore")
    _check_terminal()
    source = saved_source(options)
    actions = _actions(options.keys)
    if source is None:
        source = _live(options)
    _at_terminal()
    from attnscope.batch.reports import write_report
    from attnscope.request.options import on_command_line
    from attnscope.views.explore.terminal import walk

    begin = _begin(options)
    color = options.color
    code, message = walk(
        source,
        write_report,
        actions,
        begin,
        color=color,
        own_process=True,
        spelling=on_command_line,
    )
    if message and not options.quiet:
        sys.stdout.write(message + "\n")
    sys.stdout.flush()
    if code:
        raise SystemExit(code)


def _check_terminal() -> None:
    if (
        sys.stderr is None
        or not sys.stderr.isatty()
        or os.environ.get("TERM") in (None, "", "dumb", "unknown")
    ):
        hint = "use attnscope run, compare or heads to print"
        raise AttnscopeError(
            "explore needs a terminal that can be drawn on (standard error, and TERM)", hint=hint
        )


def _at_terminal() -> None:
    """Read keys from the terminal if standard input is something else, such as a piped text."""
    if sys.stdin is not None and sys.stdin.isatty():
        return
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError as e:
        raise AttnscopeError(
            "there is no terminal to read keys from", hint="run it in a terminal"
        ) from e
    os.dup2(terminal, 0)
    os.close(terminal)


def saved_source(options: Any) -> "Source | None":
    """Return a walk through a file that TEXT names; None if it names none."""
    name = options.text
    if name is None or options.file is not None:
        return None
    path = Path(name)
    try:
        there = path.exists()
    except (OSError, ValueError):  # the name is too long, or contains NUL
        return None
    suffixes = "".join(path.suffixes[-2:])
    is_known = path.suffix in _SAVED or suffixes.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst"))
    if not there or not (is_known or (path.is_dir() and not (path / "config.json").exists())):
        return None
    computed = ("model", "config", "mask", "hide", "pair", "context", "spans", "chat", "cuts")
    typed = [option for option in computed if option in options.typed]
    if typed:
        raise UsageError(
            f"{path} was computed already",
            where=arg(typed[0]),
            hint="remove the option, or pass a text",
        )
    from attnscope.studies.explore.opening import findings_source

    source = findings_source(path)
    if source is not None:
        return source
    from attnscope.batch.walks import dump_source

    return dump_source(path)


def _live(options: Given) -> "Source":
    from msgspec.structs import replace

    from attnscope.cli.run_config import read_texts, run_config
    from attnscope.studies.explore.live import LiveSource

    texts = read_texts(options)
    run = run_config(texts, options, stages=(), top=3, cuts=(), words=False)
    run = replace(run, query=None, key=None, auto_query=options.query, auto_key=options.key)
    text_argument = "-" if options.file is None and options.text in (None, "-") else None
    if options.audio:
        named = f"--audio {quote_for_shell(options.audio)}"
        text_argument = f"{quote_for_shell(options.text)} {named}" if options.text else named
    for option in ("file", "chat"):
        if getattr(options, option) is not None:
            text_argument = f"--{option} {quote_for_shell(str(getattr(options, option)))}"
    return LiveSource(run, SessionOpener(texts).open, command=text_argument)


class SessionOpener:
    """Keeps a model open for a walk."""

    def __init__(self, texts: "Sequence[TextInput]") -> None:
        self._texts = tuple(texts)
        self._session: Session | None = None

    @contextmanager
    def open(self, texts: "Sequence[TextInput]", progress: "Progress") -> "Iterator[Session]":
        """Provide the session; a new one if the vocabulary is made from the texts and they have changed."""
        progress("loading", 0, 1)
        from attnscope.run.session import Session

        if self._session is None:
            self._session = Session(self._texts)
        session = self._session
        from_texts = any(source.tokenizer.name == "words" for source in session.sources.values())
        if from_texts and texts and not set(texts) <= set(self._texts):
            self._texts = tuple(texts)
            session = self._session = Session(self._texts)
        session.report_to(progress)
        yield session


def _actions(path: Path | None) -> "tuple[KeyAction, ...]":
    from attnscope.views.walk.keys import ACTIONS, read_keys

    if path is None:
        folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(
            os.path.expanduser("~"), ".config"
        )
        path = Path(folder) / "attnscope" / "keys.toml"
        if not path.is_file():
            return ACTIONS
    return read_keys(path)


def _begin(options: Given) -> Any:
    from attnscope.request.selection import join_label
    from attnscope.views.walk.place import Begin
    from attnscope.views.walk.scene import WalkCut

    layer, head = (
        None if typed == AUTO else str(typed) for typed in join_label(options.layer, options.head)
    )
    query, key = (None if typed is None else str(typed) for typed in (options.query, options.key))
    unit = "words" if options.words else "spans" if options.spans or options.chat else "tokens"
    cuts = tuple(WalkCut(cut.written, cut.edge is not None) for cut in options.cuts)
    return Begin(layer, head, query, key, unit, cuts)
