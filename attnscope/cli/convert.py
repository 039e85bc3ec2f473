"""The command `attnscope convert`: convert a finished dump to another file format."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument

from attnscope.cli import completion
from attnscope.cli.options import choice, option
from attnscope.cli.process import print_notice
from attnscope.system.escape import escape_control

EXAMPLES = """
attnscope convert dump.jsonl contributors.parquet
attnscope convert dump.jsonl rows.csv --table rows
attnscope convert matrices cells.parquet --table matrices
attnscope convert matrices matrices.jsonl
attnscope convert report.json report.csv
"""

Table = Literal["contributors", "rows", "columns", "matrices", "effects"]


def convert(
    source: Annotated[
        Path,
        Argument(
            metavar="IN",
            help="Finished dump (.jsonl, .jsonl.gz, .jsonl.zst, .json or a folder), report of run (.json), or table of "
            "either (.csv, .parquet).",
            autocompletion=completion.files,
        ),
    ],
    target: Annotated[
        Path,
        Argument(
            metavar="OUT",
            help=".csv or .parquet for a table; .jsonl, .jsonl.gz, .jsonl.zst, .json, or a name without extension "
            "for a folder.",
            autocompletion=completion.files,
        ),
    ],
    table: Annotated[
        Table | None,
        choice(
            "--table",
            Table,
            group="Options",
            help="Table to write: contributors (one row per query and rank), rows (statistics, one row per query), "
            "columns (one row per source), matrices (one row per cell of a stage), effects (one row per head); "
            "default: the first of these that IN has.",
        ),
    ] = None,
    force: Annotated[bool, option("--force", group="Options", help="Overwrite OUT if it exists.")] = False,
    quiet: Annotated[bool, option("--quiet", group="Options", help="Hide notes on standard error.")] = False,
) -> None:
    """Convert a finished dump to a table or to another kind of dump.

    Every row of a table names its text, layer and head. Reports that run saved as .json can be converted to tables,
    too.
    """
    from attnscope.batch.convert import convert as make

    count, what = make(source, target, table, force=force)
    if not quiet:
        print_notice("wrote", f"{escape_control(str(target))} ({count:,} {what})")
