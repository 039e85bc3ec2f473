"""The command `attnscope convert`: convert a finished dump to another file format."""

from attnscope.base.errors import UsageError, arg
from attnscope.base.system.escape import escape_control
from attnscope.cli.parameters import Given
from attnscope.cli.process import print_notice

EXAMPLES = """
attnscope convert dump.jsonl contributors.parquet
attnscope convert dump.jsonl rows.csv --table rows
attnscope convert matrices cells.parquet --table matrices
attnscope convert matrices matrices.jsonl
attnscope convert dump.jsonl page.html
attnscope convert report.json report.csv
"""


def convert(given: Given) -> None:
    """Convert a finished dump to a table or to another kind of dump.

    Every row of a table names its text, layer and head. Reports that run saved as .json can be converted to tables
    and to pages, too.
    """
    if given.target.suffix.lower() == ".html":
        size, what = _page(given)
        if not given.quiet:
            print_notice("wrote", f"{escape_control(str(given.target))} ({what}, {size:,} bytes)")
        return
    from attnscope.batch.convert import convert as make

    count, what = make(given.source, given.target, given.table, force=given.force)
    if not given.quiet:
        print_notice("wrote", f"{escape_control(str(given.target))} ({count:,} {what})")


def _page(given: Given) -> tuple[int, str]:
    from attnscope.base.files.atomic import check_not_read, check_target, write_atomic
    from attnscope.batch.page import page_of

    if given.table is not None:
        hint = f"{arg('table')} needs a .csv or .parquet OUT"
        raise UsageError("OUT is not a table", where=arg("table"), hint=hint)
    check_not_read(given.target, [given.source])
    check_target(given.target, force=given.force)
    parts, what = page_of(given.source)
    return write_atomic(given.target, parts, force=given.force), what
