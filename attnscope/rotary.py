"""Rotary positions as data: how fast each pair of dimensions turns, and how that is stretched; no torch in here."""

from typing import Literal

import msgspec


class RopeScaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How rotary frequencies are stretched for texts longer than those trained on.

    Attributes:
        kind: `linear` (Chen et al., 2023), `llama3` (Llama 3.1 release) or `yarn` (Peng et al., 2023).
        factor: Ratio of the new length to the old.
        original_max_positions: The length trained on (`llama3`, `yarn`).
        low_freq_factor: `llama3`: wavelengths above original/low are divided by `factor`.
        high_freq_factor: `llama3`: wavelengths below original/high are kept.
        beta_fast: `yarn`: rotations over the original length above which a frequency is kept.
        beta_slow: `yarn`: rotations below which it is divided by `factor`.
        attention_factor: `yarn`: what cos and sin are multiplied by; None for 0.1·ln(factor) + 1.
        truncate: `yarn`: round the bounds of the ramp to whole dimensions.
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    original_max_positions: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True


class Rope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rotary positions (Su et al., 2021), half-split layout.

    Attributes:
        theta: Base of the frequencies theta^(−2i/width).
        fraction: Share of each head's width that is rotated.
        scaling: Stretching for long texts; None for none.
    """

    theta: float = 10000.0
    fraction: float = 1.0
    scaling: RopeScaling | None = None
