"""The command `attnscope batch`: dump the attention of many texts to a file."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnscope.base.errors import AttnscopeError, Exit, listed
from attnscope.base.system.escape import escape_control
from attnscope.base.system.signals import at_signal
from attnscope.cli.batch_progress import progress
from attnscope.cli.next_command import suggest
from attnscope.cli.parameters import Given
from attnscope.cli.process import allow_network, describe_counts, is_piped, print_notice

if TYPE_CHECKING:
    from attnscope.batch.request import DumpRequest
    from attnscope.batch.size import DumpSize
    from attnscope.batch.summary import Summary

# seconds from which the slowest texts are named: of the run, or of one text
_LONG_RUN = 60
_SLOW_TEXT = 1
_LINES = 5  # lines of skipped texts that are named for each reason
_STRONGEST = 3  # heads whose mean effects are named
EXAMPLES = """
attnscope batch texts.txt -o dump.jsonl
attnscope batch texts.jsonl -o dump.jsonl --top 5 --model ./my-bert
attnscope batch reviews.csv --column review -o dump.jsonl --limit 1000
attnscope batch texts.txt -o dump.jsonl --keep all
attnscope batch texts.txt.gz -o matrices --stage weights --layer -1
attnscope batch texts.txt -o effects.jsonl --keep effects
attnscope batch texts.txt -o spans.jsonl --keep spans --spans sentences
zcat texts.jsonl.gz | attnscope batch --from jsonl -o dump.jsonl --shard 1/4
"""


def batch(options: Given) -> None:
    """Write the attention of many texts to a file.

    Keeps the top contributors and the row statistics of every head by default. After an interruption, run the same
    command again to resume.
    """
    from attnscope.batch.request import dump_request, is_table_folder
    from attnscope.cli.run_config import run_config

    tables = is_table_folder(options.output, options.command_line)
    if options.status:
        _print_status(options.output, folder=tables)
        return
    has_input = any(name is not None for name in (options.texts, options.chat, options.qkv))
    if not has_input and is_piped(sys.stdin):
        options.texts = "-"
    request = dump_request(
        vars(options),
        run_config((), options),
        typed=options.typed,
        tables=tables,
        configured=options.settings,
    )
    if options.sbatch is not None:
        _print_script(request, options)
        return
    _allow_store(request)
    begun: list[tuple[Callable[[], int], int]] = []
    # registered first, so that the progress bar is gone when it is called
    with (
        at_signal(lambda: _say_stopped(begun, options)),
        progress(quiet=options.quiet) as on_progress,
    ):
        summary = request.write(
            on_progress,
            on_start=lambda saved, total: begun.append((saved, total)),
            on_size=None if options.quiet else _say_size,
        )
    if not options.quiet:
        _report(summary, request)
        if "effects" in request.config.settings.keep and request.has_lines and not summary.stopped:
            _say_means(options.output)
    if summary.stopped:
        ((_, total),) = begun
        message = f"{options.max_minutes:g} minutes are over; {summary.records:,} of {total:,} saved; run the same command"
        print_notice("stopped", f"{message} to continue")
        raise typer.Exit(Exit.FAILED)
    if summary.counts["failed"]:
        raise typer.Exit(Exit.SOME_RECORDS_FAILED)
    if request.has_lines and str(options.output) != "-":
        suggest(["verify", str(options.output)], options)


def _allow_store(request: "DumpRequest") -> None:
    """Allow the network for a store of Hugging Face, which is forbidden by its own settings."""
    from attnscope.batch.remote import url_of

    urls = [url_of(path) for path in (request.config.input, request.config.output)]
    if any(url is not None and url.startswith("hf:") for url in urls):
        allow_network()


def _say_stopped(begun: "list[tuple[Callable[[], int], int]]", options: Given) -> None:
    lost = options.ray is not None or str(options.output) == "-" or options.output.suffix == ".json"
    if options.quiet or lost:
        return
    if not begun:
        print_notice("stopped", "while starting; nothing new was saved")
    else:
        ((saved, total),) = begun
        command = "the same command"
        if options.force:
            command = "the same command without --force"
        print_notice("stopped", f"{saved():,} of {total:,} saved; run {command} to continue")


def _skipped(summary: "Summary") -> str:
    """Say why texts were skipped, and which lines they are; empty if this run skipped none."""
    reasons = []
    for reason, (count, lines) in summary.skipped.items():
        numbers = listed([f"{line:,}" for line in lines], _LINES)
        which = "line" if count == 1 else f"{count:,} lines:"
        reasons.append(f"{reason} ({which} {numbers})")
    return "; ".join(reasons)


def _say_size(size: "DumpSize") -> None:
    line = size.describe("--keep heads")
    if line is not None:
        print_notice("size", line)


def _say_means(output: Path) -> None:
    """Name the heads with the largest effects: means over the texts of a finished dump, with their standard errors."""
    import numpy as np

    from attnscope.batch.dump_reader import Dump
    from attnscope.batch.remote import url_of
    from attnscope.batch.tables import mean_effects

    if str(output) == "-" or url_of(output) is not None:
        return
    for table in mean_effects(record for record in Dump(output).records() if record.status == "ok"):
        measures = {
            "target": "change of the target's logit",
            "kl": "KL in bits",
            "hidden": "change of the final state",
        }
        measure = next(name for name in measures if not np.isnan(table[name]).all())
        strongest = np.argsort(-np.nan_to_num(abs(table[measure])), kind="stable")[:_STRONGEST]
        named = []
        for n in strongest.tolist():
            sign = "+" if measure == "target" else ""
            number = f"{table[measure][n]:{sign}.3f}".replace("-", "−")
            error = table[f"{measure}_error"][n]
            spread = "" if np.isnan(error) else f" ± {error:.3f}"
            named.append(f"L{table['layer'][n]}H{table['head'][n]} {number}{spread}")
        what = f"{measures[measure]}, mean over {table['texts'][0]:,} texts ± its standard error"
        print_notice(
            "effects", f"{', '.join(named)} ({what}; convert --table mean_effects has every head)"
        )


def _print_status(output: Path, *, folder: bool) -> None:
    from attnscope.batch.parquet_sink import manifest_path
    from attnscope.batch.parts import describe_status, gather_parts_of
    from attnscope.batch.remote import url_of
    from attnscope.batch.staging import staging_path

    url = url_of(output)
    output = output if url is None else staging_path(url)
    output = manifest_path(output) if folder else output
    if url is not None and not output.exists():
        hint = "look for it in the store: it is there once it is complete"
        raise AttnscopeError("no dump on this machine goes there", where=url, hint=hint)
    print(escape_control(describe_status(gather_parts_of([output], count=True), alone=True)))


def _print_script(request: "DumpRequest", options: Given) -> None:
    from attnscope.cli.slurm_script import slurm_script

    request.check_shared("the tasks of an array", "sbatch", tables=True)
    workers = options.workers if isinstance(options.workers, int) else 1
    cpus = (options.threads or 1) * max(1, workers)
    gpu = options.device.startswith("cuda")
    print(
        slurm_script(
            options.command_line,
            options.output,
            options.sbatch,
            cpus,
            gpu=gpu,
            tables=request.tables,
        ),
        end="",
    )


def _report(summary: "Summary", request: "DumpRequest") -> None:
    from attnscope.batch.remote import shown

    output = request.config.output
    name = "standard input"
    if request.config.input != "-":
        name = request.config.input
    for failure in summary.failures:
        print_notice("failed", escape_control(f"{name}:{failure}"))
    more = summary.counts["failed"] - len(summary.failures)
    if more > 0:
        print_notice("failed", f"{more:,} more; their records in the dump have the status 'failed'")
    if skipped := _skipped(summary):
        print_notice("skipped", escape_control(f"{name}: {skipped}"))
    if summary.slowest and (
        summary.seconds >= _LONG_RUN or summary.slowest[0].seconds >= _SLOW_TEXT
    ):
        texts = [
            f"{name}:{text.line} ({text.tokens:,} tokens, {text.seconds:,.1f} s)"
            for text in summary.slowest
        ]
        print_notice("slowest", escape_control(", ".join(texts)))
    done = summary.resumed + summary.recomputed
    before = f"; {done:,} were already done" if done else ""
    if summary.recomputed:
        before += (
            f", {summary.recomputed:,} of these were computed again with other texts beside them"
        )
    there = "standard output"
    if str(output) != "-":
        there = escape_control(shown(output))
    if done == summary.records and not (summary.computed or summary.stopped):
        already = "already " * bool(done)
        print_notice("note", f"{there} is {already}complete ({describe_counts(summary.counts)})")
        return
    print_notice("wrote", f"{there} ({describe_counts(summary.counts)}{before}{summary.speed})")
