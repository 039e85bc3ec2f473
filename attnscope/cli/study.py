"""The command of a study that needs no code of its own."""

from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from typer import Exit

from attnscope.base.errors import AttnscopeError
from attnscope.base.errors import Exit as Failed
from attnscope.cli.parameters import Given
from attnscope.studies.study import Call, Request, StudyCommand, imported, only_axis

if TYPE_CHECKING:
    from attnscope.request.run_config import TextInput


def answer(name: str, command: StudyCommand) -> Callable[[Given], None]:
    """Return the function behind a command, with its help."""

    def run(options: Given) -> None:
        from attnscope.cli.deliver import (
            check_output,
            deliver,
            draw_now,
            file_format,
            require_plain_reading,
        )
        from attnscope.cli.page_command import page_command
        from attnscope.cli.progress import progress
        from attnscope.cli.run_config import read_json, run_config, texts_of_file
        from attnscope.request.run_config import TextInput
        from attnscope.run.session import Session

        repeated = only_axis(options.repeated) if options.repeated else None
        if command.call is None:
            call = Call(name)
        else:
            call = command.call(options.explicit, repeated)
        check_output(options, call.kind)
        axis, values = call.sides or repeated or ("", [None])
        sides = [
            Given(**{**vars(options), axis: value} if axis else vars(options)) for value in values
        ]
        form = file_format(options)
        every_head: list[Any] = []
        with progress(quiet=options.quiet) as on_progress:
            is_streamed = bool(getattr(options, "generate", 0))
            draw = draw_now(options, on_progress) if is_streamed else None
            runs = []
            read: dict[tuple[Any, ...], tuple[TextInput, ...]] = {}
            for side in sides:
                # standard input can be read only once
                source = tuple(getattr(side, name, None) for name in ("text", "chat", "qkv"))
                if source not in read:
                    read[source] = _texts(side, call, command)
                runs.append(run_config(read[source], side, left_out=command.own))
            texts = [text for run in runs for text in run.texts]
            if not texts and command.built_in:
                texts = [TextInput(text) for text in imported(command.built_in)]
            request = Request(
                runs[0],
                Session(texts, on_progress),
                vars(sides[0]),
                form,
                draw,
                partial(texts_of_file, quiet=options.quiet),
                call.texts == "typed" and not _has_text(sides[0]),
                partial(read_json, quiet=options.quiet),
                form.page,
                every_head,
                axis,
                list(zip(values, runs, strict=True)) if axis else (),
                options.typed,
            )
            findings = command.answer(request)
        made_by = None
        if form.page:
            made_by = page_command(options, texts)
        cut: Sequence[str] = ()
        if name == "run" and {"query", "key"} <= options.typed:
            from attnscope.cli.next_command import cut_command

            cut = cut_command(findings, options)
        deliver(
            findings,
            options,
            verdict=call.verdict,
            listing=call.listing,
            every_head=next(iter(every_head), None),
            cut_command=cut,
            made_by=made_by,
            brief=getattr(options, "stages", ()) is None,
            streamed=draw is not None,
        )
        if command.failed is not None and (failure := command.failed(findings)):
            raise failure if isinstance(failure, AttnscopeError) else Exit(Failed.FAILED)
        if getattr(options, "strict", False):
            require_plain_reading(findings)

    run.__name__ = name
    run.__doc__ = command.help
    return run


def _has_text(options: Given) -> bool:
    """Tell whether a text was named, or a file, a picture, a sound or arrays take its place."""
    names = ("text", "file", "chat", "image", "audio", "qkv")
    return any(getattr(options, name, None) not in (None, ()) for name in names)


def _texts(options: Given, call: Call, command: StudyCommand) -> "tuple[TextInput, ...]":
    from attnscope.cli.run_config import read_texts, texts_of_file

    is_saved = isinstance(getattr(options, "text", None), PathLike)
    if call.texts == "none" or is_saved or (call.texts == "file" and options.file is None):
        return ()
    if call.texts == "file":
        return texts_of_file(options.file, quiet=options.quiet)
    if call.texts == "typed" and not _has_text(options):
        built_in = imported(command.built_in) if command.built_in else ()
        text_options = (Given(**{**vars(options), "text": text}) for text in built_in)
        return tuple(text for one in text_options for text in read_texts(one))
    return read_texts(options, built_in=call.texts == "built-in")
