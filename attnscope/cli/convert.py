"""The command `attnscope convert`: convert a finished dump to another file format."""

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


def convert(options: Given) -> None:
    """Convert a finished dump to a table or to another kind of dump.

    Every row of a table names its text, layer and head. Reports that run saved as .json can be converted to tables
    and to pages, too.
    """
    if options.out.suffix.lower() == ".html":
        size, what = _page(options)
        if not options.quiet:
            print_notice("wrote", f"{escape_control(str(options.out))} ({what}, {size:,} bytes)")
        return
    from attnscope.batch.convert import convert as make

    count, what = make(options.source, options.out, options.table, force=options.force)
    if not options.quiet:
        print_notice("wrote", f"{escape_control(str(options.out))} ({count:,} {what})")


def _page(options: Given) -> tuple[int, str]:
    from attnscope.base.files.atomic import check_not_read, check_target, write_atomic
    from attnscope.batch.page import page_of

    check_not_read(options.out, [options.source])
    check_target(options.out, force=options.force)
    parts, what = page_of(options.source)
    return write_atomic(options.out, parts, force=options.force), what
