"""A config and the names and shapes of a checkpoint's tensors in; a refusal out where the config promises more.

Layers and vocabulary are the two numbers from which everything is made, so they are held against the weights before
anything is: a config of a billion layers costs no list of a billion entries. No torch in here.
"""

import re
from collections.abc import Container, Mapping

from attnscope.config import ModelConfig
from attnscope.errors import AttnscopeError
from attnscope.families.spec import Chunk, Family

NOT_ONE_MODEL = "config and weights are not of one model"


def theirs(entry: str | Chunk) -> str:
    """Their module in an entry of `Family.modules`."""
    return entry.module if isinstance(entry, Chunk) else entry


def find_prefix(family: Family, names: Container[str], where: str) -> str:
    """What stands before the names of this checkpoint's tensors.

    Raises:
        AttnscopeError: The token embedding is not there under any prefix.
    """
    name = theirs(family.modules["embed.tokens"]) + ".weight"
    for prefix in family.prefixes:
        if prefix + name in names:
            return prefix
    tried = " or ".join(f"'{prefix}{name}'" for prefix in family.prefixes)
    hint = f"family '{family.name}' needs its token embedding"
    raise AttnscopeError(f"the tensor {tried} is missing", where=where, hint=hint)


def check_counts(family: Family, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Hold a config's layers, vocabulary and width against a checkpoint.

    Args:
        family: The family.
        config: What the config says.
        shapes: Shape of every tensor by name.
        where: The config, for errors.

    Raises:
        AttnscopeError: The weights hold other numbers of them, or no token embedding.
    """
    prefix = find_prefix(family, shapes, where)
    blocks = next(theirs(entry) for ours, entry in family.modules.items() if "{l}" in ours)
    layer = re.compile(re.escape(prefix + blocks.partition("{l}")[0]) + r"(\d{1,9})\.")
    held = 1 + max((int(m[1]) for m in map(layer.match, shapes) if m), default=-1)
    if config.n_layers != held:
        found = f"config says {config.n_layers} layers, the weights hold {held}"
        raise AttnscopeError(found, where=where, hint=NOT_ONE_MODEL)
    words = f"{prefix}{theirs(family.modules['embed.tokens'])}.weight"
    if shapes[words] != (config.vocab_size, config.d_model):
        found = f"config says a vocabulary of {config.vocab_size} and a width of {config.d_model}"
        found = f"{found}, the weights hold {list(shapes[words])} in '{words}'"
        raise AttnscopeError(found, where=where, hint=NOT_ONE_MODEL)
