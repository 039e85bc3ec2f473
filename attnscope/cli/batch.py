"""The command `attnscope batch`: dump the attention of many texts to a file."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnscope.base.errors import AttnscopeError, Exit, UsageError, arg
from attnscope.base.system.escape import escape_control
from attnscope.base.system.signals import at_signal
from attnscope.batch.formats import DUMP_FORMATS, format_of
from attnscope.cli.batch_progress import progress
from attnscope.cli.next_command import suggest
from attnscope.cli.parameters import Given
from attnscope.cli.process import allow_network, describe_counts, is_piped, print_notice
from attnscope.findings.record_parts import EXACT_PARTS
from attnscope.request.options import ALL, ALL_PARTS, BRIEF, BRIEF_DIGITS, BRIEF_STATISTICS
from attnscope.request.selection import join_label

if TYPE_CHECKING:
    from attnscope.batch.loading import DumpConfig
    from attnscope.batch.size import DumpSize
    from attnscope.batch.summary import Summary

# seconds from which the slowest texts are named: of the run, or of one text
_LONG_RUN = 60
_SLOW_TEXT = 1
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
    options.texts = next(
        (name for name in (options.texts, options.chat, options.qkv) if name is not None), None
    )
    if options.texts is None and not options.status and not is_piped(sys.stdin):
        raise UsageError("no input given", hint="pass FILE, or - for standard input")
    name = options.texts or "-"
    folder = _is_table_folder(options)
    if options.table and not folder:
        hint = f"use {arg('output')} dump.parquet/, or convert the dump later"
        raise UsageError("applies only to a .parquet folder", where=arg("table"), hint=hint)
    resumes = folder or _check_ending(options.output)
    if options.status:
        _print_status(options.output, folder=folder)
        return
    if options.sbatch is not None:
        _print_script(name, options, resumes=resumes, tables=folder)
        return
    order = _order(name, options)
    from attnscope.batch.convert import write_document

    write = _writer(name, options)
    if options.ray is not None:
        _write_with_ray(order, options, name, resumes=resumes and not folder)
        return
    begun: list[tuple[Callable[[], int], int]] = []
    # registered first, so that the progress bar is gone when it is called
    with (
        at_signal(lambda: _say_stopped(begun, options)),
        progress(quiet=options.quiet) as on_progress,
    ):
        if resumes:
            summary = write(
                order,
                on_progress,
                on_start=lambda saved, total: begun.append((saved, total)),
                on_size=None if options.quiet else _say_size,
            )
        else:
            summary = write_document(order, on_progress)
    if not options.quiet:
        _report(summary, options.output, name)
        if "effects" in order.settings.keep and resumes and not folder and not summary.stopped:
            _say_means(options.output)
    if summary.stopped:
        ((_, total),) = begun
        message = f"{options.max_minutes:g} minutes are over; {summary.records:,} of {total:,} saved; run the same command"
        print_notice("stopped", f"{message} to continue")
        raise typer.Exit(Exit.FAILED)
    if summary.counts["failed"]:
        raise typer.Exit(Exit.SOME_RECORDS_FAILED)
    if resumes and not folder and str(options.output) != "-":
        suggest(["verify", str(options.output)], options)


def _writer(name: str, options: Given) -> "Callable[..., Summary]":
    """Return the function that writes a dump to this disk or to a store, and allow the network for stores."""
    from attnscope.batch.dump import write_dump
    from attnscope.batch.remote import url_of
    from attnscope.batch.staging import write_remote_dump

    urls = [url_of(path) for path in (name, options.output)]
    if any(url is not None and url.startswith("hf:") for url in urls):
        allow_network()  # that of Hugging Face, which is forbidden by its own settings
    if urls[1] is None:
        return write_dump
    if options.output.suffix == ".json":
        raise UsageError(
            f"'{urls[1]}' cannot be a document", where=arg("output"), hint="use .jsonl"
        )
    return write_remote_dump


def _say_stopped(begun: "list[tuple[Callable[[], int], int]]", options: Given) -> None:
    if options.quiet or str(options.output) == "-" or options.output.suffix == ".json":
        return
    if not begun:
        print_notice("stopped", "while starting; nothing new was saved")
    else:
        ((saved, total),) = begun
        command = "the same command without --force" if options.force else "the same command"
        print_notice("stopped", f"{saved():,} of {total:,} saved; run {command} to continue")


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


def _check_ending(output: Path) -> bool:
    """Tell whether a dump of this name can be resumed."""
    from attnscope.base.files.atomic import check_name

    check_name(output)
    dump_format = format_of(output)
    if dump_format is not None and dump_format.batch:
        return dump_format.resumes
    endings = (other.ending for other in DUMP_FORMATS if other.ending and other.batch)
    hint = f"use {', '.join(endings)}, or a name without extension for a folder"
    if dump_format is not None:
        hint = f"use .jsonl, then: attnscope convert dump.jsonl dump{dump_format.ending}"
        if dump_format.ending == ".parquet":
            hint += f"; or {output}/ for a folder of tables"
    compressed = dump_format is not None and not dump_format.table
    what = "could not be resumed" if compressed else "is not a dump format"
    raise UsageError(f"'{output}' {what}", where=arg("output"), hint=hint)


def _order(name: str, options: Given) -> "DumpConfig":
    from attnscope.batch.header import Settings
    from attnscope.batch.items import ARRAYS
    from attnscope.batch.loading import DumpConfig
    from attnscope.cli.run_config import run_config

    if options.words:
        _keep_words(options)
    layer, head = join_label(options.layer, options.head)
    if head.pairs:
        # Refuses them: a record has the same heads of every layer.
        head.numbers(0, "head")
    names = (
        "top",
        "by",
        "special",
        "stages",
        "pool",
        "truncate",
        "column",
        "skip",
        "limit",
        "shard",
    )
    settings = Settings(
        layer=str(layer),
        head=str(head),
        query=None if options.query is None else str(options.query),
        key=None if options.key is None else str(options.key),
        spans=None if options.spans is None else str(options.spans),
        **_kept(options),
        **{name: getattr(options, name) for name in names},
        tables=options.table or (),
        target=options.target or (),
        patch_from=options.patch_from,
    )
    # the target is that of each text's cuts
    run = run_config((), options, pool=None, target=None)
    format = options.format if options.chat is None else "jsonl"
    format = format if options.qkv is None else ARRAYS
    return DumpConfig(
        name,
        format,
        options.output,
        settings,
        run,
        force=options.force,
        strict=options.strict,
        max_minutes=options.max_minutes,
        workers=options.workers,
        configured=options.settings,
    )


def _kept(options: Given) -> dict[str, Any]:
    """Return the fields of batch.header.Settings that `--keep` and `--stage` stand for."""
    brief = options.keep == (BRIEF,)
    if BRIEF in options.keep and not brief:
        hint = f"remove {BRIEF}, or the others"
        raise UsageError(
            f"{BRIEF} cannot be combined with exact findings", where=arg("keep"), hint=hint
        )
    apart = tuple(word for word in options.keep if word in EXACT_PARTS and word not in ALL_PARTS)
    whole_parts = tuple(word for word in options.keep if word not in apart)
    parts = (
        ("top", "rows") if brief else (*(ALL_PARTS if ALL in options.keep else whole_parts), *apart)
    )
    if options.spans is not None and options.spans.division == "ranges":
        hint = f"give each text a member 'spans', and leave {arg('spans')} out"
        raise UsageError("a file divides one text", where=arg("spans"), hint=hint)
    return {
        "keep": (*parts, *(["stages"] if options.stages else [])),
        "statistics": BRIEF_STATISTICS if brief else None,
        "digits": BRIEF_DIGITS if brief else None,
    }


def _keep_words(options: Given) -> None:
    """Replace `--words` by its long form."""
    from attnscope.request.spans import WHOLE_WORDS, parse_spans

    options.words = False
    options.spans = parse_spans(WHOLE_WORDS)
    kept_parts = options.keep if "keep" in options.typed else ()
    options.keep = tuple(dict.fromkeys((*kept_parts, "spans")))


def _is_table_folder(options: Given) -> bool:
    """Tell whether the output is a folder of tables: `dump.parquet/`, or an existing folder of this name."""
    if options.output.suffix != ".parquet":
        return False
    return options.output.is_dir() or any(
        word.endswith(".parquet/") for word in options.command_line
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


def _write_with_ray(order: "DumpConfig", options: Given, name: str, *, resumes: bool) -> None:
    from attnscope.batch.ray_shards import RayConfig, write_with_ray

    _check_shared(name, options, "actors", "ray", resumes=resumes)
    cluster = RayConfig(
        options.ray, options.actors, options.actor_cpus, options.actor_gpus, options.actor_resources
    )
    with progress(quiet=options.quiet) as on_progress:
        summary = write_with_ray(order, cluster, on_progress)
    if not options.quiet:
        _report(summary, options.output, name)
    if summary.counts["failed"]:
        raise typer.Exit(Exit.SOME_RECORDS_FAILED)


def _check_shared(name: str, options: Given, who: str, option: str, *, resumes: bool) -> None:
    """Refuse an input or output that several machines cannot share."""
    from attnscope.batch.remote import shown, url_of

    if (
        name == "-"
        or not resumes
        or str(options.output) == "-"
        or url_of(options.output) is not None
    ):
        what = "standard input" if name == "-" else f"'{shown(options.output)}'"
        hint = "pass FILE on a disk that all nodes share"
        hint = hint if name == "-" else "use .jsonl or a folder, on a disk that all nodes share"
        raise UsageError(f"{who} cannot share {what}", where=arg(option), hint=hint)


def _print_script(name: str, options: Given, *, resumes: bool, tables: bool) -> None:
    from attnscope.cli.slurm_script import slurm_script

    _check_shared(name, options, "the tasks of an array", "sbatch", resumes=resumes)
    workers = options.workers if isinstance(options.workers, int) else 1
    cpus = (options.threads or 1) * max(1, workers)
    gpu = options.device.startswith("cuda")
    print(
        slurm_script(
            options.command_line, options.output, options.sbatch, cpus, gpu=gpu, tables=tables
        ),
        end="",
    )


def _report(summary: "Summary", output: Path, name: str) -> None:
    from attnscope.batch.remote import shown

    name = "standard input" if name == "-" else name
    for failure in summary.failures:
        print_notice("failed", escape_control(f"{name}:{failure}"))
    more = summary.counts["failed"] - len(summary.failures)
    if more > 0:
        print_notice("failed", f"{more:,} more; their records in the dump have the status 'failed'")
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
    there = "standard output" if str(output) == "-" else escape_control(shown(output))
    print_notice("wrote", f"{there} ({describe_counts(summary.counts)}{before}{summary.speed})")
