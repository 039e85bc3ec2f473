"""What our own stack computes, through our own loader: folder, family, checkpoint."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from attnscope.config import ModelConfig
from attnscope.families import family_for, read_config
from attnscope.folder import open_folder
from attnscope.model.checkpoint import load
from attnscope.model.masks import build, padding
from attnscope.model.recorders import Matrices
from attnscope.model.stack import Stack, Watch
from attnscope.selection import parse_mask
from tests.parity.reference import STAGES, Stages


def open_stack(path: Path, change: Callable[[ModelConfig], ModelConfig] = lambda config: config) -> Stack:
    """The model of an HF-layout folder; `change` may spoil its config on the way."""
    folder = open_folder(path)
    where = str(path / "config.json")
    family = family_for(folder.config, where)
    config = change(read_config(family, folder.config, where))
    return load(family, config, folder, config.n_layers, torch.float32, torch.device("cpu"))


def run(
    stack: Stack, ids: Tensor, lengths: list[int], segments: Tensor | None = None, tile: int = 1 << 20
) -> list[Stages]:
    """Every layer's stages over a batch padded on the right."""
    c, n = stack.config, ids.shape[1]
    recorders = {layer: [Matrices(STAGES, range(c.n_heads), range(n), range(n))] for layer in range(c.n_layers)}
    masks = [build(parse_mask(c.mask_of(layer))) for layer in range(c.n_layers)]
    segments = torch.zeros_like(ids) if segments is None else segments
    stack.run((ids, segments), masks, padding(lengths, n, ids.device), Watch(recorders))
    return [Stages(**recorders[layer][0].result()) for layer in range(c.n_layers)]
