"""The command of a study that needs no code of its own."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from typer import Exit

from attnscope.base.errors import Exit as Failed
from attnscope.cli.parameters import Given, Sides
from attnscope.studies.registry import options_of
from attnscope.studies.study import Call, Request, StudyCommand, imported

if TYPE_CHECKING:
    from attnscope.request.run_config import TextInput


def answer(name: str, command: StudyCommand) -> Callable[[Given], None]:
    """Return the function behind a command, with its help."""

    def run(options: Given) -> None:
        from attnscope.cli.deliver import check_output, deliver, draw_now, file_format
        from attnscope.cli.progress import progress
        from attnscope.cli.run_config import read_json, run_config, texts_of_file
        from attnscope.request.run_config import TextInput
        from attnscope.run.session import Session

        axis = None
        if command.joined is not None:
            compared = Sides(options, options_of(name))
            axis = compared.axis()
            options = compared.side()
        call = Call(name) if command.call is None else command.call(vars(options), axis)
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
        every_head: list[Any] = []
        with progress(quiet=options.quiet) as on_progress:
            is_streamed = bool(getattr(options, "generate", 0))
            draw = draw_now(options, on_progress) if is_streamed else None
            for index, (label, side) in enumerate(sides):
                config = run_config(texts[min(index, len(texts) - 1)], side, left_out=command.own)
                built_in = call.texts == "typed" and not _has_text(side)
                session = None
                if axis is None:
                    # a page shows more with the model that the findings are of
                    stand_ins = imported(command.built_in) if command.built_in else ()
                    session = Session(config.texts or tuple(map(TextInput, stand_ins)), on_progress)
                request = Request(
                    config,
                    vars(side),
                    form,
                    draw,
                    on_progress,
                    session,
                    partial(texts_of_file, quiet=options.quiet),
                    built_in,
                    partial(read_json, quiet=options.quiet),
                    shows_every_head=form.page and axis is None,
                    every_head=every_head,
                )
                found.append((label, command.answer(request)))
        findings = found[0][1]
        if axis is not None and command.joined is not None:
            findings = command.joined(axis[0], found)
        deliver(
            findings,
            options,
            listing=call.listing,
            every_head=next(iter(every_head), None),
            brief=getattr(options, "stages", ()) is None,
            streamed=draw is not None,
        )
        if command.failed is not None and command.failed(findings):
            raise Exit(Failed.FAILED)

    run.__name__ = name
    run.__doc__ = command.help
    return run


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
