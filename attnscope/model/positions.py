"""Position encodings: sinusoidal, learned, ALiBi, rotary."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attnscope.base.model_config import Disentangled, ModelConfig, Rope, RopeScaling, rotated_pairs

# function of query positions (Q, 1), key positions (1, K) and heads (H,) to (H, Q, K) or (H, 1, K)
PositionBias = Callable[[Tensor, Tensor, Tensor], Tensor]


def sinusoidal(n: int, width: int, device: torch.device) -> Tensor:
    """Compute position vectors, (n, width): sine at even, cosine at odd places (Vaswani et al., 2017, section 3.5)."""
    rates = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(10000.0) / width))
    angles = torch.arange(n, device=device)[:, None] * rates  # (n, width / 2, rounded up)
    table = torch.zeros(n, width, device=device)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles[:, : width // 2].cos()
    return table


def learned_rows(ids: Tensor, config: ModelConfig) -> Tensor:
    """Return the row of the position table that each token takes, (B, T) or (1, T)."""
    if config.padding_id is None:
        return torch.arange(ids.shape[1], device=ids.device)[None] + config.position_offset
    counted = ids != config.padding_id
    return torch.where(counted, counted.cumsum(1) - 1 + config.position_offset, config.padding_id)


def alibi_slopes(n_heads: int) -> list[float]:
    """Return one slope per head (Press et al., 2022): geometric from 2^(−8/n); between powers of two, interleaved."""
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes + [2 ** (-4 * (2 * i + 1) / power) for i in range(n_heads - power)]


def alibi(q: Tensor, k: Tensor, heads: Tensor, n_heads: int) -> Tensor:
    """Return −slope · |query − key|, (H, Q, K), for q (Q, 1), k (1, K) and heads (H,) (Press et al., 2022)."""
    slopes = torch.tensor(alibi_slopes(n_heads), device=q.device)[heads]
    return -slopes[:, None, None] * (q - k).abs()


def position_bias(config: ModelConfig, table: Tensor | None) -> tuple[PositionBias, str]:
    """Return what every layer adds to the scaled scores, and its name; `table` are the rows of a RelativeBias."""
    if config.relative_bias is not None:
        assert table is not None
        return partial(
            relative, table=table, max_distance=config.relative_bias.max_distance
        ), "relative"
    return partial(alibi, n_heads=config.n_heads), "alibi"


def relative(q: Tensor, k: Tensor, heads: Tensor, table: Tensor, max_distance: int) -> Tensor:
    """Return the rows of `table`, (buckets, H), of each distance, (H, Q, K), float32."""
    buckets = relative_buckets(k - q, len(table), max_distance)  # (Q, K)
    return table[buckets][..., heads].permute(2, 0, 1).float()


def relative_buckets(distances: Tensor, n_buckets: int, max_distance: int) -> Tensor:
    """Return the bucket of each distance from the query to the key (T5: Raffel et al., 2020, section 2.1).

    Half of the buckets are for keys after the query. In each half, the first buckets have one distance each, and the
    others cover logarithmically growing ranges up to `max_distance`.
    """
    half = n_buckets // 2
    exact = half // 2
    far = distances.abs()
    growth = torch.log(far.float().clamp_min(1) / exact) / math.log(max_distance / exact)
    logarithmic = (exact + (growth * (half - exact)).long()).clamp_max(half - 1)
    return (distances > 0) * half + torch.where(far < exact, far, logarithmic)


@dataclass(frozen=True)
class DisentangledBias:
    """The scores of content with distances in one layer (DeBERTa: He et al., 2021, equation 4)."""

    config: Disentangled
    scale: float
    q: Tensor  # (B, H, Q, E)
    k: Tensor  # (B, G, K, E)
    # keys made of distances, (H, 2·span, E); None without `content_position`
    distance_k: Tensor | None
    # queries made of distances, (H, 2·span, E); None without `position_content`
    distance_q: Tensor | None
    start: int = 0  # position of the first query

    def __call__(self, q_at: Tensor, k_at: Tensor, heads: Tensor) -> Tensor:
        """Return the sum of the parts, (B, H, Q, K), float32, for q_at (Q, 1), k_at (1, K) and heads (H,)."""
        return torch.stack(list(self.parts(q_at, k_at, heads).values())).sum(0)

    def parts(self, q_at: Tensor, k_at: Tensor, heads: Tensor) -> dict[str, Tensor]:
        """Return the parts by their names, (B, H, Q, K) each, float32."""
        parts: dict[str, Tensor] = {}
        if self.distance_k is not None:
            queries = self.q[:, heads][:, :, q_at[:, 0] - self.start].float()  # (B, H, Q, E)
            products = queries @ self.distance_k[heads].float().mT  # (B, H, Q, 2·span)
            rows = self._rows(q_at - k_at)
            parts["content_position"] = (
                products.gather(-1, rows.expand(*products.shape[:2], -1, -1)) * self.scale
            )
        if self.distance_q is not None:
            # (B, H, K, E)
            keys = self.k[:, heads // (self.q.shape[1] // self.k.shape[1])][:, :, k_at[0]].float()
            products = keys @ self.distance_q[heads].float().mT  # (B, H, K, 2·span)
            rows = self._rows(q_at - k_at).mT
            products = products.gather(-1, rows.expand(*products.shape[:2], -1, -1)) * self.scale
            parts["position_content"] = products.mT
        return parts

    def _rows(self, distances: Tensor) -> Tensor:
        """Return the row of each distance in the table of 2·span, (Q, K)."""
        span = self.config.span
        furthest = self.config.max_distance
        if furthest is not None:
            middle = span // 2
            far = distances.abs().clamp_min(middle)
            growth = torch.log(far / middle) / math.log((furthest - 1) / middle)
            buckets = torch.ceil(growth * (middle - 1)) + middle
            distances = torch.where(
                distances.abs() <= middle, distances, (buckets * distances.sign()).long()
            )
        return (distances + span).clamp(0, 2 * span - 1)


def rotary_frequencies(
    rope: Rope, width: int, n: int, device: torch.device
) -> tuple[Tensor, float]:
    """Compute each rotated pair's angular frequency, (width / 2,), in radians a token, and the factor on cos and sin.

    The factor is the attention factor of YaRN and LongRoPE, 1.0 elsewhere.
    """
    exponents = torch.arange(0, width, 2, device=device, dtype=torch.int64).float() / width
    base = 1.0 / (rope.theta**exponents)
    if rope.scaling is None:
        return base, 1.0
    match rope.scaling.kind:
        case "linear":
            return base / rope.scaling.factor, 1.0
        case "llama3":
            return _llama3(base, rope.scaling), 1.0
        case "yarn":
            return _yarn(base, rope, rope.scaling)
        case "longrope":
            return _longrope(base, rope.scaling, n)


def _llama3(base: Tensor, s: RopeScaling) -> Tensor:
    """Divide long wavelengths by the factor, keep short ones, and blend those between (Llama 3.1)."""
    original = s.original_max_positions or 1
    rotations = original * base / (2 * math.pi)
    keep = ((rotations - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)).clamp(0, 1)
    return (1 - keep) * base / s.factor + keep * base


def _yarn(base: Tensor, rope: Rope, s: RopeScaling) -> tuple[Tensor, float]:
    """Blend kept and divided frequencies along a ramp, with a temperature (YaRN: Peng et al., 2023, section 3)."""
    width = 2 * len(base)
    original = s.original_max_positions or 1

    def dimension(rotations: float) -> float:
        return width * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = dimension(s.beta_fast)
    high = dimension(s.beta_slow)
    if s.truncate:
        low = math.floor(low)
        high = math.ceil(high)
    low = max(low, 0)
    high = min(high, width - 1)
    ramp = (torch.arange(len(base), device=base.device) - low) / (high - low or 0.001)
    keep = 1 - ramp.clamp(0, 1)
    temperature = 0.1 * math.log(s.factor) + 1.0 if s.factor > 1 else 1.0
    factor = temperature if s.attention_factor is None else s.attention_factor
    return (1 - keep) * base / s.factor + keep * base, factor


def _longrope(base: Tensor, s: RopeScaling, n: int) -> tuple[Tensor, float]:
    """Divide each frequency by its divisor, which differs for longer texts (LongRoPE: Ding et al., 2024)."""
    original = s.original_max_positions or 1
    divisors = torch.tensor(s.long_factors if n > original else s.short_factors, device=base.device)
    grown = 1.0
    if s.factor > 1:
        grown = math.sqrt(1 + math.log(s.factor) / math.log(original))
    return base / divisors, grown if s.attention_factor is None else s.attention_factor


def rotary_tables(
    rope: Rope, width: int, lengths: Sequence[int], n: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of every position, (n, width) each, or (B, 1, n, width) if texts differ."""
    original = None
    if rope.scaling and rope.scaling.kind == "longrope":
        original = rope.scaling.original_max_positions
    if original is None or len({length > original for length in lengths}) == 1:
        return rotary_table(rope, width, n, max(lengths), device, dtype)
    tables = [rotary_table(rope, width, n, length, device, dtype) for length in lengths]
    cos, sin = (torch.stack(table)[:, None] for table in zip(*tables, strict=True))
    return cos, sin


def at_positions(table: Tensor, positions: Tensor) -> Tensor:
    """Return rows, (B, 1, T, width), of a table of rotary_tables at positions (B, T)."""
    if table.ndim == 2:
        return table[positions][:, None]
    return torch.stack([rows[0, at] for rows, at in zip(table, positions, strict=True)])[:, None]


def same_rotation(config: ModelConfig, n: int, longer: int) -> bool:
    """Tell whether the first tokens of a text of n tokens are rotated as they are in a longer one."""
    ropes = {config.rope_of(layer) for layer in range(config.n_layers)}
    scalings = (rope.scaling for rope in ropes if rope is not None)
    limits = [
        rope.original_max_positions
        for rope in scalings
        if rope is not None and rope.kind == "longrope"
    ]
    return all(limit is None or (n > limit) == (longer > limit) for limit in limits)


def rotary_table(
    rope: Rope, width: int, n: int, length: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute cos and sin of n positions and every rotated dimension, (n, width) each."""
    frequencies, factor = rotary_frequencies(rope, width, length, device)
    # (n, width / 2)
    angles = torch.arange(n, device=device, dtype=torch.float32)[:, None] * frequencies
    # (n, width)
    if rope.interleaved:
        angles = angles.repeat_interleave(2, -1)
    else:
        angles = torch.cat((angles, angles), -1)
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Rotate the first R dimensions of (B, H, T, E) by tables of at least T positions (Su et al., 2021)."""
    width = cos.shape[-1]
    first, second = rotated_pairs(width, interleaved=interleaved)
    cos = cos[..., : x.shape[2], :]
    sin = sin[..., : x.shape[2], :]
    if width == x.shape[-1]:
        rotated = x * cos
    else:
        rotated = x.clone()
        rotated[..., :width] *= cos
    # In place: allocating memory for long texts is slow.
    rotated[..., first].addcmul_(x[..., second], sin[..., first], value=-1)
    rotated[..., second].addcmul_(x[..., first], sin[..., second])
    return rotated
