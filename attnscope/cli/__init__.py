"""The command line's entry point and only error boundary: argv to exit code.

Nothing heavy is imported before it is needed, so that `--help` and a mistyped option answer at once.
"""

import os
import sys
from contextlib import nullcontext, suppress
from functools import cache
from typing import Any

from attnscope.base.errors import AttnscopeError, Exit, arg, spell_options
from attnscope.base.system.allocation import small_product_caches
from attnscope.base.system.escape import escape_control
from attnscope.base.system.signals import end_on_signals
from attnscope.cli.process import (
    PipeClosed,
    checked_stdout,
    choose_notices,
    forbid_network,
    one_line_warnings,
    print_notice,
)

_NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "could not create a primitive",
)
# how the dynamic linker says that there is no address space
_NOT_MAPPED = "failed to map segment from shared object"
# words after which no command follows: options of 17 commands would take half of the time of `attnscope --help`
_OF_PROGRAM = frozenset(("-h", "--help", "--version"))


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments after the program's name; None for the process's own, which signals then end (see
            `system.signals`).

    Returns:
        The exit code, as `errors.Exit` says, or 130 after a KeyboardInterrupt.
    """
    signals = end_on_signals() if argv is None else nullcontext()
    forbid_network()
    words = sys.argv[1:] if argv is None else argv
    choose_notices(words)
    with small_product_caches(), checked_stdout(), one_line_warnings(), signals:
        try:
            code = _run(words)
            sys.stdout.flush()
        except BaseException as e:
            code = _report_error(e)
            with suppress(BaseException):
                sys.stdout.flush()
    return code


def _run(argv: list[str]) -> int:
    """Parse and run, without Typer's own boundary: it reads a closed pipe as 1 and drops returned numbers."""
    import typer

    from attnscope.cli.commands import ALIASES, COMMANDS
    from attnscope.cli.parameters import COMPLETING

    if argv and argv[0] in ALIASES:
        argv = [ALIASES[argv[0]], *argv[1:]]
    completing = COMPLETING in os.environ
    needed = tuple(COMMANDS)
    if argv and argv[0] in COMMANDS and not completing:
        needed = (argv[0],)
    elif _OF_PROGRAM.issuperset(argv) and not completing:
        needed = ()
    command = _command(needed)
    if completing:
        command.main(argv, prog_name="attnscope")
    try:
        with command.make_context("attnscope", argv) as context:
            try:
                os.getcwd()
            except FileNotFoundError as e:
                # MKL would end the process with an unclear message.
                raise AttnscopeError(
                    "the working directory was removed", hint="change to an existing directory"
                ) from e
            command.invoke(context)
    except typer.Exit as e:
        return e.exit_code
    return Exit.DONE


@cache
def _command(needed: tuple[str, ...]) -> Any:
    """Build the application, as `app.build_app` does, once for all calls of a process."""
    import typer

    from attnscope.cli.app import build_app

    return typer.main.get_command(build_app(needed))


def _report_error(error: BaseException) -> int:
    """Print an error, and return its exit code."""
    if isinstance(error, SystemExit):
        if isinstance(error.code, int):
            return error.code
        return int(error.code is not None)
    if isinstance(error, PipeClosed):
        return Exit.READER_GONE
    if isinstance(error, KeyboardInterrupt):
        return 128 + 2
    if os.environ.get("ATTNSCOPE_DEBUG"):
        import traceback

        for line in "".join(traceback.format_exception(error)).splitlines():
            print_notice("debug", escape_control(line))
    known_error = _as_attnscope_error(error)
    if known_error is None:
        message = _bug_message(error)
        print_notice(
            "error",
            message,
            {"message": message, "where": None, "hint": None, "exit_code": int(Exit.BUG)},
        )
        return Exit.BUG
    # the option table is only imported for errors
    from attnscope.request.options import on_command_line

    parts = {
        name: part and spell_options(part, on_command_line)
        for name, part in known_error.parts._asdict().items()
    }
    print_notice(
        "error", known_error.line(on_command_line), {**parts, "exit_code": int(known_error.code)}
    )
    return known_error.code


def _as_attnscope_error(error: BaseException) -> AttnscopeError | None:
    """Return the error in our own words, or None for a bug."""
    if isinstance(error, AttnscopeError):
        return error
    if isinstance(error, ImportError) and _NOT_MAPPED in str(error):
        return AttnscopeError(
            "out of address space to load libraries", hint="raise the limit: ulimit -v unlimited"
        )
    if "torch" in sys.modules:
        from attnscope.engines.torch_setup import device_failure

        if (failure := device_failure(error)) is not None:
            return failure
    refused = isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)
    if isinstance(error, MemoryError) or refused:
        hint = f"select fewer layers or heads, a shorter text or a smaller {arg('dtype')}"
        return AttnscopeError("out of memory", hint=hint)
    if isinstance(error, OSError) and error.filename is not None:
        # The name is too long, or its folder not accessible.
        return AttnscopeError(
            (error.strerror or type(error).__name__).lower(), where=os.fsdecode(error.filename)
        )
    from typer import TyperException

    if isinstance(error, TyperException):
        from attnscope.cli.help import to_usage_error

        return to_usage_error(error)
    return None


def _bug_message(error: BaseException) -> str:
    first_line = (str(error).splitlines() or [""])[0]
    what = escape_control(
        f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    )
    return f"internal error ({what}); this is a bug, please report it with the traceback that ATTNSCOPE_DEBUG=1 shows"
