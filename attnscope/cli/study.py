"""The command of a study that needs no code of its own."""

from collections.abc import Callable

from attnscope.cli.parameters import Given
from attnscope.studies.study import Request, StudyCommand


def answer(name: str, command: StudyCommand) -> Callable[[Given], None]:
    """Return the function behind a command, with its help."""

    def run(given: Given) -> None:
        from attnscope.cli.deliver import check_output, deliver, is_table
        from attnscope.cli.progress import progress
        from attnscope.cli.run_config import read_texts, run_config

        check_output(given, name)
        asked = run_config(read_texts(given), given)
        with progress(quiet=given.quiet) as on_progress:
            findings = command.answer(Request(asked, vars(given), is_table(given), on_progress))
        deliver(findings, given)

    run.__name__, run.__doc__ = name, command.help
    return run
