"""The command `attnscope convert`: convert a finished dump to another file format."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument

from attnscope.base.system.escape import escape_control
from attnscope.batch.formats import DUMPS, TABLES
from attnscope.cli import completion
from attnscope.cli.options import choice, option
from attnscope.cli.process import print_notice
from attnscope.findings.record_parts import RECORD_PARTS

EXAMPLES = """
attnscope convert dump.jsonl contributors.parquet
attnscope convert dump.jsonl rows.csv --table rows
attnscope convert matrices cells.parquet --table matrices
attnscope convert matrices matrices.jsonl
attnscope convert report.json report.csv
"""

if TYPE_CHECKING:
    Table = str  # the names of tables, which a type checker does not see
else:
    Table = Literal[tuple(part.table.name for part in RECORD_PARTS if part.table)]
_TABLES = ", ".join(f"{part.table.name} ({part.table.rows})" for part in RECORD_PARTS if part.table)


def convert(
    source: Annotated[
        Path,
        Argument(
            metavar="IN",
            help=f"Finished dump ({', '.join(DUMPS)} or a folder), report of run (.json), or table of "
            f"either ({', '.join(TABLES)}).",
            autocompletion=completion.files,
        ),
    ],
    target: Annotated[
        Path,
        Argument(
            metavar="OUT",
            help=f"{' or '.join(TABLES)} for a table; {', '.join(DUMPS)}, or a name without extension for a folder.",
            autocompletion=completion.files,
        ),
    ],
    table: Annotated[
        Table | None,
        choice(
            "--table",
            Table,
            group="Options",
            help=f"Table to write: {_TABLES}; default: the first of these that IN has.",
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
