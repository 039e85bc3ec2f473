"""The options of `attnscope batch` that no other command has, or whose defaults are its own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument

from attnscope.base.errors import UsageError
from attnscope.batch.formats import DUMP_FORMATS
from attnscope.cli import completion
from attnscope.cli.options import choice, option, output_option, quiet_option
from attnscope.cli.selection_options import (
    NUMBERS,
    SELECT,
    SelectionOptions,
    head_option,
    layer_option,
    pool_option,
    stage_option,
)
from attnscope.findings.record_parts import EXACT_PARTS, PARTS
from attnscope.request import arguments

_INPUT, _OUTPUT = "Input", "Output"
BRIEF, ALL = "brief", "all"
KEPT = (BRIEF, *EXACT_PARTS, ALL)
_BRIEF_PARTS, _BRIEF_STATISTICS, _BRIEF_DIGITS = ("top", "rows"), ("entropy", "first", "special", "self"), 3
_USED_BY = {"pool": "pooled", "top": "top", "by": "top", "no_special": "top"}  # an option to the part it is about
_RESUMED = [one.ending for one in DUMP_FORMATS if one.ending and one.resumes]
_WHOLE = [one.ending for one in DUMP_FORMATS if not one.resumes and not one.table]
_ALL_PARTS = tuple(name for name in EXACT_PARTS if not PARTS[name].runs_again)
Format = Literal["txt", "jsonl", "csv", "tsv", "parquet"]


def _shard(text: str) -> str:
    """Check `i/n`, and leave it as typed."""
    number, slash, count = text.partition("/")
    if not slash:
        raise UsageError(f"must be I/N, not '{text}'", where="--shard", hint="use 1/4 for the first of four")
    low = arguments.number("--shard", 1)
    if low(number) > low(count):
        raise UsageError(
            f"there is no shard {number} of {count}", where="--shard", hint=f"use 1/{count} to {count}/{count}"
        )
    return text


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """What to read.

    Attributes:
        file: The input, or `-` for standard input; None for standard input if it is piped.
        format: What it holds.
        column: Column or member that holds the text.
        skip: Records left out at the start.
        limit: Records taken after these.
        shard: Which part of them, `i/n`.
    """

    file: Annotated[
        str | None,
        Argument(
            metavar="FILE",
            help="Texts: .txt (one per line), .jsonl, .csv, .tsv or .parquet, optionally compressed as .gz or .zst; "
            "without it, or with -, standard input is read.",
            rich_help_panel=_INPUT,
        ),
    ] = None
    format: Annotated[
        Format | None,
        choice("--from", Format, group=_INPUT, help="Format of the input, if the file's extension does not show it."),
    ] = None
    column: Annotated[
        str,
        option(
            "--column",
            group=_INPUT,
            metavar="NAME",
            parser=arguments.text("--column"),
            help="Column or JSON member that holds the text.",
        ),
    ] = "text"
    skip: Annotated[
        int,
        option(
            "--skip", group=_INPUT, metavar="N", parser=arguments.number("--skip", 0), help="Skip the first N texts."
        ),
    ] = 0
    limit: Annotated[
        int | None,
        option("--limit", group=_INPUT, metavar="N", parser=arguments.number("--limit", 1), help="Stop after N texts."),
    ] = None
    shard: Annotated[
        str,
        option(
            "--shard",
            group=_INPUT,
            metavar="I/N",
            parser=_shard,
            help="Process every N-th text, starting with the I-th.",
        ),
    ] = "1/1"


@dataclass(frozen=True, kw_only=True)
class DumpSelectionOptions(SelectionOptions):
    """What to compute and keep: as for one text, with small defaults over every head.

    Attributes:
        layer: Layers, as typed.
        head: Heads, as typed.
        stage: Stages whose matrices are kept, joined by commas, or `none`.
        keep: What is kept besides stages.
        pool: Rows and columns of a pooled map.
    """

    layer: Annotated[str, layer_option(f"Layers, counted from 0: all, mean, {NUMBERS}", "all", "mean")] = "all"
    head: Annotated[str, head_option("Heads, in the same form.", "all", "mean")] = "all"
    stage: Annotated[str, stage_option("Whole matrices to keep (large)")] = "none"
    keep: Annotated[
        str,
        option(
            "--keep",
            group=SELECT,
            metavar="WHAT",
            parser=arguments.some_of("--keep", "part", KEPT),
            autocompletion=completion.words(*KEPT),
            help=f"Results to keep, separated by commas: brief (contributors and the statistics "
            f"{', '.join(_BRIEF_STATISTICS)}, to {_BRIEF_DIGITS} decimals), or exact ones: "
            f"{', '.join(f'{name} ({PARTS[name].phrase})' for name in _ALL_PARTS)}, all (every one of these), "
            f"or {', '.join(f'{name} ({PARTS[name].phrase})' for name in EXACT_PARTS if PARTS[name].runs_again)}.",
        ),
    ] = BRIEF
    pool: Annotated[int, pool_option("Rows and columns of a pooled map.")] = 16

    def kept(self) -> dict[str, Any]:
        """Return the fields of batch.header.Settings that `--keep` and `--stage` stand for.

        Raises:
            UsageError: A brief dump was asked for beside exact findings, or an option was set for what is not kept.
        """
        words = self.keep.split(",")
        brief = words == [BRIEF]
        if BRIEF in words and not brief:
            hint = f"remove {BRIEF}, or the others"
            raise UsageError(f"{BRIEF} cannot be combined with exact findings", where="--keep", hint=hint)
        again = tuple(word for word in words if word in EXACT_PARTS and PARTS[word].runs_again)
        others = tuple(word for word in words if word not in again)
        parts = _BRIEF_PARTS if brief else (*(_ALL_PARTS if ALL in words else others), *again)
        for name, part in _USED_BY.items():
            if getattr(self, name) != getattr(type(self), name) and part not in parts:
                hint = f"use --keep {part}" if brief else f"add {part} to --keep"
                raise UsageError(f"applies only to {part}", where=f"--{name.replace('_', '-')}", hint=hint)
        if self.key is not None and not self.stages:
            raise UsageError("applies only to whole matrices", where="--key", hint="add --stage weights")
        return {
            "keep": (*parts, *(["stages"] if self.stages else [])),
            "statistics": _BRIEF_STATISTICS if brief else None,
            "digits": _BRIEF_DIGITS if brief else None,
        }


@dataclass(frozen=True, kw_only=True)
class DumpOutputOptions:
    """Where the dump goes.

    Attributes:
        output: The dump.
        strict: Stop at the first failed record.
        force: Start over instead of resuming.
        quiet: Hide progress and notes on standard error.
    """

    output: Annotated[
        Path,
        output_option(
            f"Output: {', '.join(_RESUMED)}, or a name without extension for a folder of .safetensors shards (all "
            f"resumable); {', '.join(_WHOLE)} (one document); - writes .jsonl to standard output.",
            group=_OUTPUT,
            metavar="OUT",
        ),
    ]
    strict: Annotated[bool, option("--strict", group=_OUTPUT, help="Stop at the first failed record.")] = False
    force: Annotated[
        bool,
        option(
            "--force",
            group=_OUTPUT,
            help="Start over instead of resuming; the old dump is kept until new records are safe.",
        ),
    ] = False
    quiet: Annotated[bool, quiet_option(group=_OUTPUT)] = False
