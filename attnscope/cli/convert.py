"""A finished dump in; the same as another kind of file out: `attnscope convert`."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from attnscope.cli import complete
from attnscope.cli.options import option
from attnscope.cli.process import complain
from attnscope.visible import visible

EXAMPLES = """
attnscope convert dump.jsonl dump.parquet
attnscope convert dump.jsonl dump.csv
attnscope convert matrices matrices.jsonl
attnscope convert report.json report.csv
"""


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
            help=".csv or .parquet for a flat table; .jsonl, .json, or a name without ending for a folder.",
            autocompletion=complete.files,
        ),
    ],
    force: Annotated[bool, option("--force", group="Options", help="Replace OUT if it exists.")] = False,
    quiet: Annotated[bool, option("--quiet", group="Options", help="No remarks on standard error.")] = False,
) -> None:
    """Make a table, or another kind of dump, of a finished dump.

    A table has one row per text, layer, head, query and rank; what run wrote as .json becomes one, too.
    """
    from attnscope.batch.convert import convert as make

    count, what = make(source, target, force=force)
    if not quiet:
        complain("wrote", f"{visible(str(target))} ({count:,} {what})")
