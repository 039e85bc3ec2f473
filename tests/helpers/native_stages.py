"""What our own stack computes, through our own loader: folder, family, checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from msgspec.structs import replace
from torch import Tensor

from attnscope.base.model_config import ModelConfig
from attnscope.checkpoints.families import family_for, read_config
from attnscope.checkpoints.locating import open_checkpoint
from attnscope.model.checkpoint import load_stack
from attnscope.model.hooks import AttentionHooks
from attnscope.model.masks import build_mask, padding_mask
from attnscope.model.recorders import MatrixRecorder
from attnscope.model.stack import Stack
from attnscope.request.masks.expression import parse_mask
from tests.helpers.loaded_stack import load_all
from tests.helpers.reference_stages import STAGES, Stages


def open_stack(
    path: Path,
    change: Callable[[ModelConfig], ModelConfig] = lambda config: config,
    device: str = "cpu",
) -> Stack:
    """The model of an HF-layout folder or a GGUF file, all of it read; `change` may spoil its config on the way."""
    folder = open_checkpoint(path)
    where = str(folder.config_path)
    family = family_for(folder.config, where)
    config = change(read_config(family, folder.config, where))
    return load_all(
        load_stack(family, config, folder, config.n_layers, torch.float32, torch.device(device))
    )


def run(
    stack: Stack,
    ids: Tensor,
    lengths: list[int],
    segments: Tensor | None = None,
    recorded: Mapping[int, Sequence[int]] | None = None,
) -> list[Stages]:
    """The stages of every layer, or of these heads of some, over a batch padded on the right."""
    c, n = stack.config, ids.shape[1]
    heads = dict.fromkeys(range(c.n_layers), range(c.n_heads)) if recorded is None else recorded
    recorders = {
        layer: [MatrixRecorder(STAGES, chosen, range(n), range(n))]
        for layer, chosen in heads.items()
    }
    masks = [build_mask(parse_mask(c.mask_of(layer))) for layer in range(c.n_layers)]
    segments = torch.zeros_like(ids) if segments is None else segments
    stack.run(
        (ids, segments), masks, padding_mask(lengths, n, ids.device), AttentionHooks(recorders)
    )
    return [Stages(**recorders[layer][0].compute()) for layer in heads]


def with_mask(config: ModelConfig, mask: str) -> ModelConfig:
    """The same model under another mask."""
    return replace(config, mask=mask)
