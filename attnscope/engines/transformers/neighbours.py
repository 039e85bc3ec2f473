"""Embed each text of a padded batch as if it were alone.

MobileBERT embeds a token with its neighbours, and zeros beyond the ends of a batch. transformers reads the embedding of
the padding token beyond the end of a shorter text, which is not zero in every checkpoint.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from attnscope.model.module_hooks import in_this_thread, listening


@contextmanager
def padding_embedded_as_zero(model: Any, real: Tensor) -> Iterator[None]:
    """Let a model that embeds neighbours see zeros in place of padding; `real` tokens are not padding, (B, T)."""
    if not getattr(model.config, "trigram_input", False):
        yield
        return

    def without_padding(module: Any, args: Any, embedded: Tensor) -> Tensor:
        return embedded * real[..., None]

    with listening([model.get_input_embeddings().register_forward_hook(in_this_thread(without_padding))]):
        yield
