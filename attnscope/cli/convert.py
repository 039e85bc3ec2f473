"""The command `attnscope convert`: convert a finished dump to another file format."""

from attnscope.base.system.escape import escape_control
from attnscope.cli.parameters import Given
from attnscope.cli.process import print_notice

EXAMPLES = """
attnscope convert dump.jsonl contributors.parquet
attnscope convert dump.jsonl rows.csv --table rows
attnscope convert matrices cells.parquet --table matrices
attnscope convert matrices matrices.jsonl
attnscope convert report.json report.csv
"""


def convert(given: Given) -> None:
    """Convert a finished dump to a table or to another kind of dump.

    Every row of a table names its text, layer and head. Reports that run saved as .json can be converted to tables,
    too.
    """
    from attnscope.batch.convert import convert as make

    count, what = make(given.source, given.target, given.table, force=given.force)
    if not given.quiet:
        print_notice("wrote", f"{escape_control(str(given.target))} ({count:,} {what})")
