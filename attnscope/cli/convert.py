"""A finished dump in; the same as another kind of file out: `attnscope convert`."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument

from attnscope.cli import complete
from attnscope.cli.options import choice, option
from attnscope.cli.process import complain
from attnscope.visible import visible

EXAMPLES = """
attnscope convert dump.jsonl contributors.parquet
attnscope convert dump.jsonl rows.csv --table rows
attnscope convert matrices cells.parquet --table matrices
attnscope convert matrices matrices.jsonl
attnscope convert report.json report.csv
"""

Table = Literal["contributors", "rows", "columns", "matrices"]


def convert(
    source: Annotated[
        Path,
        Argument(
            metavar="IN",
            help="A finished dump (.jsonl, .json or a folder), what run wrote as .json, or a table made of either "
            "(.csv, .parquet).",
            autocompletion=complete.files,
        ),
    ],
    target: Annotated[
        Path,
        Argument(
            metavar="OUT",
            help=".csv or .parquet for a table; .jsonl, .json, or a name without ending for a folder.",
            autocompletion=complete.files,
        ),
    ],
    table: Annotated[
        Table | None,
        choice(
            "--table",
            Table,
            group="Options",
            help="Which table: contributors (one row per query and rank), rows (statistics, one row per query), "
            "columns (one row per source), matrices (one row per cell of a stage). Without it, contributors, or the "
            "first of these that IN has.",
        ),
    ] = None,
    force: Annotated[bool, option("--force", group="Options", help="Replace OUT if it exists.")] = False,
    quiet: Annotated[bool, option("--quiet", group="Options", help="No remarks on standard error.")] = False,
) -> None:
    """Make a table, or another kind of dump, of a finished dump.

    Every row of a table says its text, layer and head; what run wrote as .json becomes tables, too.
    """
    from attnscope.batch.convert import convert as make

    count, what = make(source, target, table, force=force)
    if not quiet:
        complain("wrote", f"{visible(str(target))} ({count:,} {what})")
