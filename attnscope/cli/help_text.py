"""The help of the program, of a command and of a topic, as text.

`-h` is short: what a command does, four examples, the options that most runs use, and where the rest is. `--help` is
the whole in sections. Rich would double the time of help and draw boxes around what one copies.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

from attnscope.base.errors import UsageError, did_you_mean
from attnscope.cli.commands import COMMANDS, load
from attnscope.cli.option_text import described, names_and_text, names_of, with_statistics
from attnscope.cli.process import wants_color
from attnscope.cli.topics import TOPICS
from attnscope.request.options import COMMON, OTHER, Option
from attnscope.studies.registry import options_of

_EXAMPLES = 4  # of a command in `-h`
_FIRST_COLUMN = 26  # columns of names, which longer ones exceed on a line of their own
_PROGRAM = "See what attention does inside a transformer: scores, masked scores, weights and top contributors."
_TRY = """\
attnscope run "The bank by the river"
attnscope compare "The bank by the river"
attnscope explain "The bank by the river" --query bank
attnscope learn scores
attnscope heads
attnscope ablate "The bank by the river" --each head"""
# A blank before an option or a pipe, outside of quotes.
_BEFORE_OPTION = r""" (?=(?:-\S|\|)(?:[^"']|"[^"]*"|'[^']*')*$)"""
_FLAGS = (
    ("-h", "Show the options that most runs use."),
    ("--help", "Show this help, with every option."),
    ("--version", "Show the version."),
)
_OF_PROGRAM = (
    ("-h, --help", "Show this help."),
    ("--version", "Show the version."),
    ("--install-completion", "Install completion for the current shell."),
    ("--show-completion", "Print the completion script of the current shell."),
)


class _Writer:
    """Writes help as wide as the terminal, and at most 80 columns."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._columns = max(shutil.get_terminal_size((80, 24)).columns, 52)
        self._width = min(self._columns, 80) - 2
        self._color = wants_color(sys.stdout)

    def line(self, text: str = "") -> None:
        self._lines.append(text)

    def heading(self, text: str) -> None:
        if self._lines:
            self.line()
        self.line(f"\x1b[1m{text}:\x1b[0m" if self._color else f"{text}:")

    def paragraphs(self, text: str) -> None:
        """Write paragraphs, separated by empty lines."""
        for paragraph in text.strip().split("\n\n"):
            self.line()
            self.indented(" ".join(paragraph.split()))

    def indented(self, text: str) -> None:
        """Write a text over as many lines as it takes."""
        self._lines += textwrap.wrap(text, self._width, initial_indent="  ", subsequent_indent="  ")

    def definitions(self, rows: Sequence[tuple[str, str]]) -> None:
        """Write names and what they mean in two columns."""
        names = max(len(name) for name, _ in rows)
        column = min(names, _FIRST_COLUMN) + 2
        for name, text in rows:
            lines = textwrap.wrap(
                text, max(self._width - column - 2, 10), break_on_hyphens=False
            ) or [""]
            if len(name) + 2 > column:
                self.line(f"  {name}")
            else:
                self.line(f"  {name:{column}}{lines.pop(0)}")
            self._lines += [f"{'':{column + 2}}{line}" for line in lines]

    def examples(self, examples: Iterable[str]) -> None:
        """Write command lines; one that is too long goes on behind a backslash, at an option or a pipe."""
        self.heading("Examples")
        for example in examples:
            (line, *parts) = re.split(_BEFORE_OPTION, f"  {example}")
            for n, part in enumerate(parts, 1):
                ending = " \\" * (n < len(parts))
                if len(f"{line} {part}{ending}") > self._columns:
                    self.line(f"{line} \\")
                    line = f"      {part}"
                else:
                    line = f"{line} {part}"
            self.line(line)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def program_help() -> str:
    """Return the help of the program."""
    writer = _Writer()
    writer.line("Usage: attnscope COMMAND [OPTIONS] [ARGS]")
    writer.paragraphs(_PROGRAM)
    writer.heading("Commands")
    writer.definitions([(name, load(name).help.partition("\n")[0]) for name in COMMANDS])
    writer.examples(_TRY.splitlines())
    writer.heading("Options")
    writer.definitions(_OF_PROGRAM)
    writer.line()
    writer.line("attnscope COMMAND -h is short; attnscope help COMMAND|TOPIC has everything.")
    writer.line(f"Topics: {' '.join(TOPICS)}")
    return writer.text()


def short_help(name: str) -> str:
    """Return what most people need of a command: the options with a brief line; all, if none has one."""
    options = options_of(name)
    brief = [
        (names_of(option), described(name, option.brief)) for option in options if option.brief
    ]
    brief = brief or _rows(name, options)
    writer = _Writer()
    command = load(name)
    writer.line(_usage(name, options))
    writer.paragraphs("\n\n".join(command.help.split("\n\n")[:2]))
    writer.examples(command.examples.splitlines()[:_EXAMPLES])
    writer.heading("Options")
    writer.definitions(brief)
    writer.heading("More")
    every = sum(not option.hidden for option in (*options, *COMMON))
    more = [(f"attnscope {name} --help", f"all {every} options")]
    if topics := _topics_of(options):
        more.append((f"attnscope help {name} TOPIC", f"TOPIC: {' '.join(topics)}"))
    writer.definitions(more)
    return writer.text()


def full_help(name: str) -> str:
    """Return everything about a command."""
    options = options_of(name)
    writer = _Writer()
    command = load(name)
    writer.line(_usage(name, options))
    writer.paragraphs(command.help)
    for group in dict.fromkeys(option.group for option in options):
        rows = _rows(name, [option for option in options if option.group == group])
        if group == OTHER:
            rows += [*_rows(name, COMMON), *_FLAGS]
        writer.heading(group)
        writer.definitions(rows)
    if name == "heads":
        writer.heading("Roles")
        writer.definitions(_roles())
    if all(option.group != OTHER for option in options):
        writer.heading(OTHER)
        writer.definitions([*_rows(name, COMMON), *_FLAGS])
    writer.examples(command.examples.splitlines())
    topics = _topics_of(options)
    if topics:
        writer.heading("Topics")
        writer.definitions(
            [(f"attnscope help {name} {topic}", TOPICS[topic].title) for topic in topics]
        )
    return writer.text()


def topic_help(topic_name: str, command: str | None = None) -> str:
    """Return what there is to know about a topic, with its options.

    Args:
        topic_name: Name of the topic; another name is refused.
        command: The command whose options are listed; None for the first that has them.
    """
    if topic_name not in TOPICS:
        if command is None:
            topic_names = list(TOPICS)
        else:
            topic_names = _topics_of(options_of(command))
        raise UsageError(
            f"no such topic '{topic_name}'", hint=did_you_mean(topic_name, topic_names)
        )
    topic = TOPICS[topic_name]
    by_command = {name: topic.options_among((*options_of(name), *COMMON)) for name in COMMANDS}
    commands = [name for name, options in by_command.items() if options]
    if command is not None and command not in commands:
        raise UsageError(
            f"{command} has no options of the topic '{topic_name}'",
            hint=f"{', '.join(commands)} have some",
        )
    of_command = command or max(commands, key=lambda name: len(by_command[name]))
    writer = _Writer()
    writer.line(f"{topic.title} (attnscope help {topic_name})")
    writer.paragraphs(described(of_command, topic.text))
    if topic.forms:
        writer.heading("What to type")
        writer.definitions(topic.forms)
    writer.heading(f"Options of attnscope {of_command}")
    writer.definitions(_rows(of_command, by_command[of_command]))
    writer.heading("Commands")
    writer.indented(", ".join(commands))
    if topic.page:
        writer.line()
        writer.line(f"See also docs/{topic.page}.md")
    return writer.text()


def _rows(command: str, options: Sequence[Option]) -> list[tuple[str, str]]:
    visible = [names_and_text(command, option) for option in options if not option.hidden]
    return [(names, with_statistics(text)) for names, text in visible]


def _topics_of(options: Sequence[Option]) -> list[str]:
    return [
        name for name, topic in TOPICS.items() if len(topic.options_among((*options, *COMMON))) > 1
    ]


def _usage(name: str, options: Sequence[Option]) -> str:
    words = ["Usage: attnscope", name, "[OPTIONS]"]
    for option in options:
        if option.argument:
            word = option.metavar if option.required else f"[{option.metavar}]"
            words.append(f"{word}..." if option.several != "no" else word)
    return " ".join(words)


def _roles() -> list[tuple[str, str]]:
    from attnscope.findings.head_roles import HEAD_ROLES

    return [
        (f"{role.letter} {role.name}", f"{role.meaning} ({role.source})") for role in HEAD_ROLES
    ]
