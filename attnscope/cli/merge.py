"""The command `attnscope merge`: join the parts of a dump that were written with `--shard`."""

from pathlib import Path

from attnscope.base.errors import UsageError, arg
from attnscope.base.system.escape import escape_control
from attnscope.cli.next_command import suggest
from attnscope.cli.parameters import Given
from attnscope.cli.process import describe_counts, print_notice
from attnscope.cli.progress import progress

EXAMPLES = """
attnscope merge part-1.jsonl part-2.jsonl part-3.jsonl --status
attnscope merge part-1.jsonl part-2.jsonl part-3.jsonl -o dump.jsonl
"""


def merge(options: Given) -> None:
    """Join the parts of a dump that batch wrote with --shard.

    The parts may be given in any order. The result is byte for byte the file that one process writes.
    """
    from msgspec.structs import asdict

    from attnscope.batch.convert import merge as make
    from attnscope.batch.parquet_sink import manifest_path
    from attnscope.batch.parts import describe_status, gather_parts_of

    parts = [Path(part) for part in options.parts]
    if not parts:
        raise UsageError(
            "no parts given", hint="pass what batch with --shard wrote, such as part-*.jsonl"
        )
    if options.status:
        lines = [manifest_path(part) if part.suffix == ".parquet" else part for part in parts]
        print(escape_control(describe_status(gather_parts_of(lines, count=True))))
        return
    if options.output is None:
        raise UsageError(
            "no output given", hint=f"add {arg('output', 'dump.jsonl')}, or {arg('status', True)}"
        )
    with progress(quiet=options.quiet) as bar:
        on_progress = None if bar is None else lambda done, total: bar("merging", done, total)
        end = make(parts, options.output, force=options.force, on_progress=on_progress)
    if not options.quiet:
        print_notice(
            "merged", f"{escape_control(str(options.output))} ({describe_counts(asdict(end))})"
        )
    suggest(["verify", str(options.output)], options)
