"""The command `attnscope pull`: download a model."""

from typing import Annotated

from typer import Argument

from attnscope.base.system.escape import escape_control
from attnscope.cli.options import option
from attnscope.cli.process import allow_network, print_notice

EXAMPLES = """
attnscope pull google-bert/bert-base-uncased
attnscope run "The bank by the river" --model google-bert/bert-base-uncased
"""


def pull(
    name: Annotated[str, Argument(metavar="ORG/NAME", help="Repository on the Hugging Face Hub.")],
    quiet: Annotated[
        bool, option("--quiet", group="Options", help="Hide progress and notes on standard error.")
    ] = False,
) -> None:
    """Download a model into the Hugging Face cache.

    Fetches config, tokenizer and safetensors, nothing else, and prints the folder. This is the only command that uses
    the network; HF_HOME, HF_ENDPOINT and HF_TOKEN work as they do for the hf command.
    """
    import sys

    from attnscope.checkpoints.pulling import pull as fetch

    allow_network()
    bars = not quiet and sys.stderr is not None and sys.stderr.isatty()
    path = fetch(name, bars=bars)
    sys.stdout.write(f"{escape_control(str(path))}\n")
    if not quiet:
        print_notice("next", f'attnscope run "The bank by the river" --model {escape_control(name)}')
