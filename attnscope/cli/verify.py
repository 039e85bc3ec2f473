"""The command `attnscope verify`: check a finished dump against its checksums, its counts and its input."""

from attnscope.base.system.escape import escape_control
from attnscope.cli.next_command import suggest
from attnscope.cli.parameters import Given
from attnscope.cli.process import describe_counts, print_notice
from attnscope.cli.progress import progress

EXAMPLES = """
attnscope verify dump.jsonl
attnscope verify dump.jsonl --input texts.txt
"""


def verify(options: Given) -> None:
    """Check that a finished dump is complete and matches its input.

    Every checksum, count and array is checked, and the header and every record are compared with the input.

    Without --input, the file that the header names is read; if it is not there, the input is not compared.
    """
    from attnscope.batch.verify import verify as check

    with progress(quiet=options.quiet) as bar:
        verified = check(
            options.dump, options.input, lambda done, total: bar and bar("verifying", done, total)
        )
    if options.quiet:
        return
    if verified.input is None:
        compared = f"; its input {verified.header.input.name} is not here and was not compared"
    else:
        compared = f", and the texts are those of {verified.input}"
    line = f"{options.dump} ({describe_counts(verified.counts)}): every checksum and count is right{compared}"
    print_notice("verified", escape_control(line))
    suggest(["convert", str(options.dump), "table.csv"], options)
