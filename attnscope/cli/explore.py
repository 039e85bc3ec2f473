"""The command `attnscope explore`: walk through the attention of a text, a dump or a report."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import TUI, AttnscopeError
from attnscope.base.system.escape import quote_for_shell
from attnscope.base.system.signals import clean_up
from attnscope.cli.parameters import Given

if TYPE_CHECKING:
    from attnscope.request.run_config import TextInput
    from attnscope.run.session import Session
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
_PATIENCE = 0.5  # seconds that clean-up may take


def explore(options: Given) -> None:
    """Walk through attention with the keyboard or the mouse.

    Shows every layer and head, the matrix of one of them, the sources and the arithmetic of one row, and the text. Keys
    move the cursor, change head, layer, stage and mask, follow the strongest source, compare and cut heads; ? lists
    them. A text is computed on demand; a dump or report is opened without the model. On leaving, the command that
    shows the same place is printed.
    """
    TUI.require("explore")
    _check_terminal()
    from attnscope.batch.walks import explore as walk
    from attnscope.cli.run_config import read_texts, run_config
    from attnscope.request.options import on_command_line

    source = saved_source(options)
    texts = () if source is not None else read_texts(options)
    run = run_config(texts, options)
    if source is None:
        from attnscope.studies.explore.live import live_source

        source = live_source(run, SessionOpener(texts).open, _text_argument(options))
    _at_terminal()
    end = walk(
        source,
        run,
        options.keys or _own_keys(),
        color=options.color,
        own_process=True,
        spelling=on_command_line,
    )
    if end.command and not options.quiet:
        sys.stdout.write(end.command + "\n")
    sys.stdout.flush()
    if end.computes:
        # Where Python ends under a thread that is in torch, C++ aborts the process.
        clean_up(_PATIENCE)
        os._exit(end.code)
    if end.code:
        raise SystemExit(end.code)


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
    from attnscope.batch.walks import saved_source as open_saved

    return open_saved(path, options.typed)


def _text_argument(options: Given) -> str | None:
    """Return the words that name the text in a command; None for the text itself."""
    for option in ("file", "chat"):
        if getattr(options, option) is not None:
            return f"--{option} {quote_for_shell(str(getattr(options, option)))}"
    if options.audio:
        audio = f"--audio {quote_for_shell(options.audio)}"
        if options.text:
            return f"{quote_for_shell(options.text)} {audio}"
        return audio
    return "-" if options.text in (None, "-") else None


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


def _own_keys() -> Path | None:
    """Return the user's own file of keys; None if there is none."""
    from attnscope.cli.settings import config_folder

    path = config_folder() / "keys.toml"
    return path if path.is_file() else None
