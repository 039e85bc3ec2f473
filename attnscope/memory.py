"""Sizes in; the bytes that a run will take, before anything is allocated, out. No torch in here."""

from dataclasses import dataclass
from pathlib import Path

from attnscope.config import ModelConfig
from attnscope.errors import AttnscopeError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_TILE = 1 << 20  # scores in a tile, at least one row
_BYTES_PER_CHARACTER = 200  # tokens, pieces and spans of a text as Python objects


def layer_parameters(c: ModelConfig) -> int:
    """Parameters of one block."""
    heads_out, keys, values = c.n_heads * c.d_head, c.n_kv_heads * c.d_head, c.n_kv_heads * c.d_value
    count = c.d_model * (heads_out + keys + values) + (heads_out + keys + values) * c.qkv_bias
    if c.out_projection:
        count += c.n_heads * c.d_value * c.d_model + c.d_model * c.out_bias
    if c.d_mlp:
        mlp = (2 + c.gated) * c.d_model * c.d_mlp + ((1 + c.gated) * c.d_mlp + c.d_model) * c.mlp_bias
        count += c.n_experts * (mlp + c.d_model + c.router_bias) if c.n_experts else mlp
    count += c.n_heads * c.sinks
    norms = (2 if c.norm_order == "sandwich" else 1) * (1 + bool(c.d_mlp)) * norm_parameters(c, c.d_model)
    if c.qk_norm:
        whole = c.qk_norm == "whole"
        norms += sum(norm_parameters(c, c.d_head * (n if whole else 1)) for n in (c.n_heads, c.n_kv_heads))
    return count + norms


def norm_parameters(c: ModelConfig, width: int) -> int:
    """Parameters of one norm of this width."""
    return {"layernorm": 2, "rmsnorm": 1, "none": 0}[c.norm] * width


def embedding_parameters(c: ModelConfig) -> int:
    """Parameters in front of the first block."""
    rows = c.vocab_size + c.n_segments
    rows += (c.max_positions or 0) + c.position_offset if c.positions == "learned" else 0
    return rows * c.d_model + c.embedding_norm * norm_parameters(c, c.d_model)


@dataclass(frozen=True)
class Demand:
    """What a run asks for.

    Attributes:
        layers: Blocks that are loaded.
        batch: Texts.
        tokens: Tokens of the longest text.
        characters: Characters of all texts.
        cells: Matrix cells kept, over all texts, stages, layers and heads.
        rows: Rows kept, over all texts, layers and heads.
        top: Contributors a row.
        as_text: The findings are turned into JSON as a whole.
    """

    layers: int
    batch: int
    tokens: int
    characters: int
    cells: int
    rows: int
    top: int
    as_text: bool


def estimate(c: ModelConfig, dtype: str, d: Demand) -> dict[str, int]:
    """Bytes by purpose: `weights`, `activations`, `tile`, `kept` and `text`."""
    size = DTYPE_BYTES[dtype]
    parameters = embedding_parameters(c) + d.layers * layer_parameters(c)
    stacked = c.n_experts * (1 + c.gated) or 1  # one tensor may hold every expert's gate and up
    largest = max(c.vocab_size * c.d_model, (c.d_mlp or c.d_model) * c.d_model * stacked)
    per_token = 6 * c.d_model + c.n_heads * (2 * c.d_head + c.d_value) + 2 * c.n_kv_heads * (c.d_head + c.d_value)
    per_token += (2 + c.gated) * c.d_mlp + (c.n_experts + 2 * c.d_model) * bool(c.n_experts)
    values = d.cells + d.rows * (6 + 4 * d.top)
    tile = max(_TILE, d.batch * d.tokens)
    return {
        "weights": parameters * size + largest * 4,
        "activations": d.batch * d.tokens * (per_token * size + (c.d_head + c.d_value) * 4),
        "tile": 6 * tile * 4,
        "kept": values * (4 + 16 * d.as_text),
        "text": d.characters * _BYTES_PER_CHARACTER,
    }


def require(need: dict[str, int], limit: int, what: str) -> None:
    """Refuse what would not fit.

    Args:
        need: From `estimate`.
        limit: Bytes that may be taken.
        what: Where the limit comes from, for the error.

    Raises:
        AttnscopeError: The sum is above the limit; the message holds the formula and the numbers.
    """
    total = sum(need.values())
    if total > limit:
        parts = " + ".join(f"{name} {readable(size)}" for name, size in need.items())
        hint = "select fewer cells with --layer, --head, --query, --key or --stage, or raise --max-memory"
        raise AttnscopeError(f"needs about {readable(total)} ({parts}), {what} is {readable(limit)}", hint=hint)


def readable(size: int) -> str:
    """A number of bytes as `3.2 GiB`."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"


def available() -> int:
    """Bytes that this process may still take: MemAvailable, or less where the cgroup allows less."""
    free = [1 << 62]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        pass  # not Linux: nothing known, nothing refused by default
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            free.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):
            continue  # no such cgroup version, or "max"
    return max(0, min(free))
