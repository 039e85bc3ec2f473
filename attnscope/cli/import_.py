"""The command `attnscope import`: convert pickled weights to safetensors."""

from attnscope.base.system.escape import escape_control
from attnscope.cli.next_command import suggest
from attnscope.cli.parameters import Given
from attnscope.cli.process import print_notice

EXAMPLES = """
attnscope import ./old-bert ./new-bert
attnscope import ./old-bert ./new-bert --max-memory 8G
"""


def import_(options: Given) -> None:
    """Convert pickled weights (.bin) to safetensors.

    A pickle can contain code. A separate process with limits on time and memory reads it and runs none of that code; a
    pickle that needs code is refused.
    """
    from attnscope.checkpoints.convert_pickle.folder import import_folder
    from attnscope.request.memory import format_bytes

    done = import_folder(options.source, options.target, options.max_memory)
    if not options.quiet:
        copied = f"; copied {', '.join(done.copied)}" if done.copied else ""
        what = f"{done.tensors:,} tensors, {format_bytes(done.size)}{copied}"
        print_notice("wrote", escape_control(f"{options.target} ({what})"))
    suggest(["check", "--model", str(options.target)], options)
