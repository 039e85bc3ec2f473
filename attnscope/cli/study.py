"""The command of a study that needs no code of its own."""

from collections.abc import Callable

from typer import Exit

from attnscope.base.errors import Exit as Failed
from attnscope.cli.parameters import Given
from attnscope.studies.study import Request, StudyCommand


def answer(name: str, command: StudyCommand) -> Callable[[Given], None]:
    """Return the function behind a command, with its help."""

    def run(given: Given) -> None:
        from attnscope.cli.deliver import check_output, deliver, is_table
        from attnscope.cli.progress import progress
        from attnscope.cli.run_config import read_lines, read_texts, run_config

        # what has neither pictures nor matrices has no options for them
        given = Given(**{"look": "figure", "precision": 2, **vars(given)})
        check_output(given, name)
        texts = read_texts(given) if command.needs_text else () if given.file is None else read_lines(given)
        config = run_config(texts, given)
        with progress(quiet=given.quiet) as on_progress:
            findings = command.answer(Request(config, vars(given), is_table(given), on_progress))
        deliver(findings, given)
        if command.failed is not None and command.failed(findings):
            raise Exit(Failed.FAILED)

    run.__name__, run.__doc__ = name, command.help
    return run
