"""What our own stack computes, through our own loader: folder, family, checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from msgspec.structs import replace
from torch import Tensor

from attnscope.config import ModelConfig
from attnscope.families import family_for, read_config
from attnscope.folder import open_folder
from attnscope.model.checkpoint import load
from attnscope.model.masks import build, padding
from attnscope.model.recorders import Matrices
from attnscope.model.stack import Stack
from attnscope.model.watch import Watch
from attnscope.selection import parse_mask
from tests.parity.reference import STAGES, Stages
from tests.whole import whole


def open_stack(path: Path, change: Callable[[ModelConfig], ModelConfig] = lambda config: config) -> Stack:
    """The model of an HF-layout folder, all of it read; `change` may spoil its config on the way."""
    folder = open_folder(path)
    where = str(path / "config.json")
    family = family_for(folder.config, where)
    config = change(read_config(family, folder.config, where))
    return whole(load(family, config, folder, config.n_layers, torch.float32, torch.device("cpu")))


def run(
    stack: Stack,
    ids: Tensor,
    lengths: list[int],
    segments: Tensor | None = None,
    watched: Mapping[int, Sequence[int]] | None = None,
) -> list[Stages]:
    """The stages of every layer, or of these heads of some, over a batch padded on the right."""
    c, n = stack.config, ids.shape[1]
    heads = dict.fromkeys(range(c.n_layers), range(c.n_heads)) if watched is None else watched
    recorders = {layer: [Matrices(STAGES, chosen, range(n), range(n))] for layer, chosen in heads.items()}
    masks = [build(parse_mask(c.mask_of(layer))) for layer in range(c.n_layers)]
    segments = torch.zeros_like(ids) if segments is None else segments
    stack.run((ids, segments), masks, padding(lengths, n, ids.device), Watch(recorders))
    return [Stages(**recorders[layer][0].result()) for layer in heads]


def with_mask(config: ModelConfig, mask: str) -> ModelConfig:
    """The same model under another mask."""
    return replace(config, mask=mask)
