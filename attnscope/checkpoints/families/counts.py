"""Check that a config does not promise more than the checkpoint's tensors hold.

The numbers of layers, heads, experts and words determine the size of everything else, so they are compared with the
weights first: a config with a billion layers does not cause a list of a billion entries. No torch in here.
"""

import re
from collections.abc import Mapping

from attnscope.base.errors import AttnscopeError
from attnscope.base.model_config import ModelConfig
from attnscope.checkpoints.families.names import Names, find_prefix
from attnscope.checkpoints.families.spec import Family

NOT_ONE_MODEL = "config.json and weights do not match"


def check_counts(family: Family, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Check a config's layers, heads, experts, vocabulary and width against the shapes of a checkpoint."""
    names = Names(family, find_prefix(family, shapes, where), shapes, where)
    before = names.any_block().partition("{l}")[0]
    layer = re.compile(re.escape(names.prefix + before) + r"(\d{1,9})\.")
    held = 1 + max((int(m[1]) for m in map(layer.match, shapes) if m), default=-1)
    if config.n_layers != held:
        message = f"config says {config.n_layers} layers, but the weights have {held}"
        raise AttnscopeError(message, where=where, hint=NOT_ONE_MODEL)
    words = names.find("embed.tokens.weight").tensor
    if shapes[words] != (config.vocab_size, config.d_model):
        message = f"config says a vocabulary of {config.vocab_size} and a width of {config.d_model}"
        message = f"{message}, but the weights have {list(shapes[words])} in '{words}'"
        raise AttnscopeError(message, where=where, hint=NOT_ONE_MODEL)
    queries = names.find("blocks.0.attention.q.weight").tensor
    if config.n_heads * config.d_head > max(shapes[queries], default=0):
        message = f"config says {config.n_heads} heads, {config.d_head} wide each"
        message = f"{message}, but the weights have {list(shapes[queries])} in '{queries}'"
        raise AttnscopeError(message, where=where, hint=NOT_ONE_MODEL)
    if config.n_experts:
        router = names.find("blocks.0.mlp.router.weight").tensor
        if shapes[router] != (config.n_experts, config.d_model):
            message = f"config says {config.n_experts} experts and a width of {config.d_model}"
            message = f"{message}, but the weights have {list(shapes[router])} in '{router}'"
            raise AttnscopeError(message, where=where, hint=NOT_ONE_MODEL)
