"""The command `attnscope import`: convert pickled weights to safetensors."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from attnscope.base.system.escape import escape_control
from attnscope.cli import completion
from attnscope.cli.options import option
from attnscope.cli.process import print_notice
from attnscope.request import arguments

EXAMPLES = """
attnscope import ./old-bert ./new-bert
attnscope import ./old-bert ./new-bert --max-memory 8G
"""


def import_(
    source: Annotated[
        Path,
        Argument(
            metavar="SRC",
            help="Folder with pickled weights: pytorch_model.bin, as one file or in shards.",
            autocompletion=completion.files,
        ),
    ],
    target: Annotated[
        Path, Argument(metavar="DST", help="New folder for model.safetensors and copies of config and tokenizer files.")
    ],
    max_memory: Annotated[
        int | None,
        option(
            "--max-memory",
            group="Options",
            metavar="SIZE",
            parser=arguments.size,
            help="Limit the memory of the process that reads the pickles, such as 8G; default: half of the free "
            "memory.",
        ),
    ] = None,
    quiet: Annotated[bool, option("--quiet", group="Options", help="Hide notes on standard error.")] = False,
) -> None:
    """Convert pickled weights (.bin) to safetensors.

    A pickle can contain code. A separate process with limits on time and memory reads it and runs none of that code; a
    pickle that needs code is refused.
    """
    from attnscope.checkpoints.convert_pickle.folder import import_folder
    from attnscope.request.memory import format_bytes

    done = import_folder(source, target, max_memory)
    if not quiet:
        copied = f"; copied {', '.join(done.copied)}" if done.copied else ""
        what = f"{done.tensors:,} tensors, {format_bytes(done.size)}{copied}"
        print_notice("wrote", escape_control(f"{target} ({what})"))
