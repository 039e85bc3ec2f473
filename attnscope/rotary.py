"""Rotary positions as data: how fast each pair of dimensions turns, and how that is stretched; no torch in here."""

from typing import Annotated, Literal

import msgspec

Positive = Annotated[float, msgspec.Meta(ge=1e-30, le=1e30)]  # what float32 holds, and so do products of two of them


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
    factor: Positive
    original_max_positions: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)] | None = None
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    attention_factor: Positive | None = None
    truncate: bool = True


class Rope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rotary positions (Su et al., 2021), half-split layout.

    Attributes:
        theta: Base of the frequencies theta^(−2i/width).
        fraction: Share of each head's width that is rotated.
        scaling: Stretching for long texts; None for none.
    """

    theta: Positive = 10000.0
    fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    scaling: RopeScaling | None = None
