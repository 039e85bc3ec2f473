"""The command `attnscope help`: everything about a command or a topic."""

import sys

from attnscope.base.errors import UsageError, did_you_mean
from attnscope.cli.parameters import Given

EXAMPLES = """
attnscope help run
attnscope help run masks
attnscope help spans
attnscope help --skill
attnscope help --json | jq '.commands[] | select(.name == "run") | .options[].name'
"""


def help_command(options: Given) -> None:
    """Show everything about a command or a topic.

    The same as attnscope COMMAND --help, and one topic of it. In a terminal, what is longer than the screen is paged.
    """
    from attnscope.cli.commands import COMMANDS
    from attnscope.cli.help_text import full_help, program_help, topic_help
    from attnscope.cli.pager import write_paged
    from attnscope.cli.topics import TOPICS

    command = options.command
    topic = options.topic
    if options.json or options.skill:
        from attnscope.cli.catalog import catalog_text, skill

        sys.stdout.write(catalog_text() if options.json else skill())
        return
    if command is None:
        text = program_help()
    elif command in COMMANDS:
        text = full_help(command) if topic is None else topic_help(topic, command)
    elif topic is None and command in TOPICS:
        text = topic_help(command)
    else:
        raise UsageError(
            f"no such command or topic '{command}'",
            hint=did_you_mean(command, [*COMMANDS, *TOPICS]),
        )
    write_paged(text)
