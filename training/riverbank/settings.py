"""Settings of the recipe: sizes, seed, schedule, and which heads learn from the teacher."""

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "riverbank"
WEIGHTS = ROOT / "sample_weights" / "riverbank"
HELD_OUT_TEXT = HERE / "held_out.txt"
SENTENCES = HERE / "disambiguation.toml"


@dataclass(frozen=True)
class Settings:
    """Sizes of the student and of its training.

    Attributes:
        relation_heads: (layer, head) pairs whose attention rows learn the teacher's relations; the others are free.
        steps: optimiser steps.
        batch_tokens: pieces per step, counting padding; each is seen once under each mask.
        embedding_scale: standard deviation of the starting embeddings.
        checkpoint_every: steps between checkpoints, which are also the points of the training curve.
    """

    vocab_size: int = 9_984
    d_model: int = 192
    n_layers: int = 4
    n_heads: int = 4
    d_mlp: int = 768
    max_positions: int = 128
    relation_heads: tuple[tuple[int, int], ...] = ((2, 0), (3, 0))
    steps: int = 2_500
    batch_tokens: int = 4_000
    learning_rate: float = 1.5e-3
    warmup: int = 200
    weight_decay: float = 0.01
    embedding_scale: float = 0.05
    checkpoint_every: int = 100
    seed: int = 2006
