"""The command `attnscope batch`: dump the attention of many texts to a file."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnscope.base.errors import Exit, UsageError
from attnscope.base.system.escape import escape_control
from attnscope.base.system.shutdown import at_signal
from attnscope.batch.formats import DUMPS, format_of
from attnscope.cli.batch_options import DumpOutputOptions, DumpSelectionOptions, InputOptions
from attnscope.cli.options import MachineOptions, ModelOptions
from attnscope.cli.process import is_piped, print_notice

if TYPE_CHECKING:
    from attnscope.batch.dump import DumpConfig
    from attnscope.batch.runner import Summary

EXAMPLES = """
attnscope batch texts.txt -o dump.jsonl
attnscope batch texts.jsonl -o dump.jsonl --top 5 --model ./my-bert
attnscope batch reviews.csv --column review -o dump.jsonl --limit 1000
attnscope batch texts.txt -o dump.jsonl.zst --keep all
attnscope batch texts.txt.gz -o matrices --stage weights --layer -1
attnscope batch texts.txt -o effects.jsonl --keep effects
zcat texts.jsonl.gz | attnscope batch --from jsonl -o dump.jsonl --shard 1/4
"""


def batch(
    texts: InputOptions,
    stack: ModelOptions,
    selection: DumpSelectionOptions,
    target: DumpOutputOptions,
    machine: MachineOptions,
) -> None:
    """Write the attention of many texts to a file.

    Keeps the top contributors and the row statistics of every head by default. After an interruption, run the same
    command again to resume.
    """
    from attnscope.cli.batch_progress import progress

    if texts.file is None and not is_piped(sys.stdin):
        raise UsageError("no input given", hint="pass FILE, or - for standard input")
    name = texts.file or "-"
    resumes = _check_ending(target.output)
    order = _order(name, texts, stack, selection, target, machine)
    from attnscope.batch.convert import write_document
    from attnscope.batch.dump import write_dump

    begun: list[tuple[Callable[[], int], int]] = []
    # registered first, so that the progress bar is gone when it is called
    with at_signal(lambda: _say_stopped(begun, target)), progress(quiet=target.quiet) as on_progress:
        if resumes:
            summary = write_dump(order, on_progress, on_start=lambda saved, total: begun.append((saved, total)))
        else:
            summary = write_document(order, on_progress)
    if not target.quiet:
        _report(summary, target.output, name)
    if summary.counts["failed"]:
        raise typer.Exit(Exit.SOME_RECORDS_FAILED)


def _say_stopped(begun: "list[tuple[Callable[[], int], int]]", target: DumpOutputOptions) -> None:
    """Print what a signal left of a dump that can be resumed, and how to resume it."""
    if target.quiet or str(target.output) == "-" or target.output.suffix == ".json":
        return
    if not begun:
        print_notice("stopped", "while starting; nothing new was saved")
    else:
        ((saved, total),) = begun
        command = "the same command without --force" if target.force else "the same command"
        print_notice("stopped", f"{saved():,} of {total:,} saved; run {command} to continue")


def _check_ending(output: Path) -> bool:
    """Tell whether a dump of this name can be resumed.

    Raises:
        UsageError: Its ending names no format of dumps.
    """
    from attnscope.base.files.atomic import check_name

    check_name(output)
    found = format_of(output)
    if found is not None and not found.table:
        return found.resumes
    hint = f"use {', '.join(DUMPS)}, or a name without extension for a folder"
    if found is not None:
        hint = f"use .jsonl, then: attnscope convert dump.jsonl dump{found.ending}"
    raise UsageError(f"'{output}' is not a dump format", where="--output", hint=hint)


def _order(
    name: str,
    texts: InputOptions,
    stack: ModelOptions,
    selection: DumpSelectionOptions,
    target: DumpOutputOptions,
    machine: MachineOptions,
) -> "DumpConfig":
    from attnscope.batch.dump import DumpConfig
    from attnscope.batch.header import Settings
    from attnscope.request.run_config import RunConfig

    number, count = map(int, texts.shard.split("/"))
    settings = Settings(
        **selection.chosen(),
        **selection.kept(),
        pool=selection.pool,
        truncate=machine.truncate,
        column=texts.column,
        skip=texts.skip,
        limit=texts.limit,
        shard=(number, count),
    )
    run = RunConfig(
        texts=(),
        **stack.chosen(),
        **selection.masking(),
        **vars(machine),
    )
    return DumpConfig(name, texts.format, target.output, settings, run, force=target.force, strict=target.strict)


def _report(summary: "Summary", output: Path, name: str) -> None:
    """Print the failures and the summary of a dump."""
    name = "standard input" if name == "-" else name
    for failure in summary.failures:
        print_notice("failed", escape_control(f"{name}:{failure}"))
    more = summary.counts["failed"] - len(summary.failures)
    if more > 0:
        print_notice("failed", f"{more:,} more; their records in the dump have the status 'failed'")
    counts = [f"{summary.counts[s]:,} {s}" for s in ("ok", "skipped", "failed") if summary.counts[s]]
    before = f"; {summary.resumed:,} were already done" if summary.resumed else ""
    there = "standard output" if str(output) == "-" else escape_control(str(output))
    print_notice("wrote", f"{there} ({', '.join(counts) or 'no records'}{before}{summary.speed})")
