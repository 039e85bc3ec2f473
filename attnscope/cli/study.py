"""The command of a study that needs no code of its own."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from typer import Exit

from attnscope.base.errors import Exit as Failed
from attnscope.cli.parameters import Given, Sides
from attnscope.studies.registry import call_of, kind_named, options_of
from attnscope.studies.study import Call, Request, StudyCommand, imported

if TYPE_CHECKING:
    from attnscope.request.run_config import RunConfig, TextInput
    from attnscope.run.session import Session


def answer(name: str, command: StudyCommand) -> Callable[[Given], None]:
    """Return the function behind a command, with its help."""

    def run(options: Given) -> None:
        from attnscope.cli.deliver import check_output, deliver, file_format
        from attnscope.cli.progress import progress
        from attnscope.cli.run_config import read_json, run_config, texts_of_file

        # what has no matrices has no option for their decimal places
        compared = Sides(Given(**{"precision": 2, **vars(options)}), options_of(name))
        axis = compared.axis()
        options = compared.side()
        call = call_of(name, vars(options), axis)
        check_output(options, call.kind)
        sides = [("", options)]
        if axis is not None:
            option, values = axis
            sides = [
                ("none" if value is None else str(value), compared.side(option, value))
                for value in values
            ]
        # standard input can be read only once
        texts = [
            _texts(side, call, command)
            for _, side in (sides if axis and axis[0] == "qkv" else sides[:1])
        ]
        found = []
        form = file_format(options)
        walks = axis is None and form.page and bool(kind_named(call.kind).page)
        every_head = None
        with progress(quiet=options.quiet) as on_progress:
            for index, (label, side) in enumerate(sides):
                of_run = Given(
                    **{
                        option: value
                        for option, value in vars(side).items()
                        if option not in command.own
                    }
                )
                config = run_config(texts[min(index, len(texts) - 1)], of_run)
                lines = lambda path: texts_of_file(path, quiet=options.quiet)  # noqa: E731
                built_in = call.texts == "typed" and not _has_text(side)
                json_of = partial(read_json, quiet=options.quiet)
                session = _session(config, command, on_progress) if walks else None
                request = Request(
                    config, vars(side), form.drawn, on_progress, session, lines, built_in, json_of
                )
                found.append((label, command.answer(request)))
                if walks and command.every_head is not None:
                    every_head = command.every_head(request, found[0][1])
        assert axis is None or command.joined is not None
        findings = (
            found[0][1]
            if axis is None or command.joined is None
            else command.joined(axis[0], found)
        )
        deliver(findings, options, listing=call.listing, every_head=every_head)
        if command.failed is not None and command.failed(findings):
            raise Exit(Failed.FAILED)

    run.__name__ = name
    run.__doc__ = command.help
    return run


def _session(config: "RunConfig", command: StudyCommand, on_progress: Any) -> "Session":
    """Return a session for the findings and for what a page shows beside them, so that a model is loaded once."""
    from attnscope.request.run_config import TextInput
    from attnscope.run.session import Session

    texts = config.texts or tuple(TextInput(text) for text in imported(command.built_in))
    return Session(texts, on_progress)


def _has_text(options: Given) -> bool:
    """Tell whether a text was typed, or a picture or sound takes its place."""
    return (
        any(getattr(options, name, None) for name in ("image", "audio")) or options.text is not None
    )


def _texts(options: Given, call: Call, command: StudyCommand) -> "tuple[TextInput, ...]":
    from attnscope.cli.run_config import read_texts, texts_of_file

    if call.texts == "none" or (call.texts == "file" and options.file is None):
        return ()
    if call.texts == "file":
        return texts_of_file(options.file, quiet=options.quiet)
    if call.texts == "typed" and not _has_text(options):
        text_options = (
            Given(**{**vars(options), "text": text}) for text in imported(command.built_in)
        )
        return tuple(text for one in text_options for text in read_texts(one))
    return read_texts(options, built_in=call.texts == "built-in")
