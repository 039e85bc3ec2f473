"""The command `attnscope pull`: download a model."""

import sys

from attnscope.base.system.escape import escape_control
from attnscope.cli.parameters import Given
from attnscope.cli.process import allow_network, print_notice

EXAMPLES = """
attnscope pull google-bert/bert-base-uncased
attnscope run "The bank by the river" --model google-bert/bert-base-uncased
"""


def pull(options: Given) -> None:
    """Download a model into the Hugging Face cache.

    Fetches config, tokenizer and safetensors, nothing else, and prints the folder. Only pull uses the network, and
    batch if its input or output is a URL; HF_HOME, HF_ENDPOINT and HF_TOKEN work as they do for the hf command.
    """
    from attnscope.checkpoints.pulling import pull as fetch

    allow_network()
    bars = not options.quiet and sys.stderr is not None and sys.stderr.isatty()
    path = fetch(options.name, bars=bars)
    sys.stdout.write(f"{escape_control(str(path))}\n")
    if not options.quiet:
        print_notice(
            "next", f'attnscope run "The bank by the river" --model {escape_control(options.name)}'
        )
