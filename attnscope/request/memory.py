"""Count parameters and bytes, and refuse what does not fit into memory."""

from dataclasses import dataclass, field

from attnscope.base.errors import AttnscopeError, MemoryExceeded, arg, spell_options
from attnscope.base.model_config import ModelConfig
from attnscope.base.system.machine import available_memory, resident_memory
from attnscope.request.options import on_command_line

_MIB = 1 << 20
PROGRAM = 264 << 20  # bytes of Python, torch for CPUs and the libraries that every run imports
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class MemoryBound:
    """The bytes that a run may take."""

    size: int
    what: str  # source of the bound, for errors
    most: int | None  # the most that the option `max_memory` can raise it to; None for any number


def layer_parameters(c: ModelConfig) -> int:
    """Return the number of parameters of one block."""
    heads_out = c.n_heads * c.d_head
    keys = c.n_kv_heads * c.d_head
    values = c.n_kv_heads * c.d_value
    count = c.d_model * (heads_out + keys + values) + (heads_out + keys + values) * c.qkv_bias
    if c.out_projection:
        count += c.n_heads * c.d_value * c.d_model + c.d_model * c.out_bias
    if c.d_mlp:
        mlp = (2 + c.gated) * c.d_model * c.d_mlp + (
            (1 + c.gated) * c.d_mlp + c.d_model
        ) * c.mlp_bias
        if c.n_experts:
            count += c.n_experts * (mlp + c.d_model + c.router_bias)
        else:
            count += mlp
    count += c.n_heads * c.sinks
    if (table := c.disentangled) is not None and not table.shared:
        count += (table.content_position + table.position_content) * (c.d_model + 1) * heads_out
    of_mlp = bool(c.d_mlp) and not c.shared_norm
    norms = (2 if c.norm_order == "sandwich" else 1) * (1 + of_mlp) * norm_parameters(c, c.d_model)
    if c.qk_norm:
        per_layer = c.qk_norm == "whole"
        norms += sum(
            norm_parameters(c, c.d_head * (n if per_layer else 1))
            for n in (c.n_heads, c.n_kv_heads)
        )
    return count + norms


def norm_parameters(c: ModelConfig, width: int) -> int:
    """Return the number of parameters of one norm of this width."""
    return {"layernorm": 1 + c.norm_bias, "rmsnorm": 1, "none": 0}[c.norm] * width


def embedding_parameters(c: ModelConfig) -> int:
    """Return the number of parameters before the first block, less those of a norm that this block does without."""
    rows = c.vocab_size + c.n_segments
    if c.positions == "learned":
        rows += (c.max_positions or 0) + c.position_offset
    shared = 0 if c.relative_bias is None else c.relative_bias.buckets * c.n_heads
    if c.disentangled is not None:
        shared += 2 * c.disentangled.span * c.d_model + c.disentangled.norm * norm_parameters(
            c, c.d_model
        )
    norms = c.embedding_norm - (not c.first_norm)
    return rows * c.d_model + norms * norm_parameters(c, c.d_model) + shared


def head_parameters(c: ModelConfig) -> int:
    """Return the number of parameters after the last block, without a shared embedding."""
    if c.head is None:
        return 0
    count = (c.head.norm + bool(c.head.transform)) * norm_parameters(c, c.d_model)
    count += (c.d_model + c.head.transform_bias) * c.d_model * bool(c.head.transform)
    return count + c.head.predicts * c.vocab_size * (c.d_model * (not c.head.tied) + c.head.bias)


def cache_bytes(c: ModelConfig, dtype: str, tokens: int) -> int:
    """Return the bytes of a KV cache of this many tokens, plus one layer's copy while it grows."""
    return (c.n_layers + 1) * tokens * c.n_kv_heads * (c.d_head + c.d_value) * DTYPE_BYTES[dtype]


@dataclass
class MemoryLimit:
    """Stop a run that exceeds its memory although its estimate did not.

    Memory that the process held before, beyond the program itself (a caller's own data, a loaded model), does not
    count.
    """

    limit: int
    what: str  # source of the limit, for the error
    estimate: int
    before: int = field(default_factory=lambda: max(0, resident_memory() - PROGRAM))

    def check(self) -> None:
        """Compare the memory of the process with the limit; takes microseconds, so every tile can afford it.

        Raises:
            MemoryExceeded: It holds more.
        """
        held = resident_memory() - self.before
        if held > self.limit:
            message = f"stopped at {format_bytes(held)} of memory: {self.what} is {format_bytes(self.limit)}"
            message = f"{message} (the estimate was about {format_bytes(self.estimate)})"
            raise MemoryExceeded(
                message, hint=f"raise {arg('max_memory')}, and please report the estimate"
            )


def memory_bound(limit: int | None) -> MemoryBound:
    """Return the bytes of this machine that a run may take."""
    if limit is not None:
        return MemoryBound(limit, arg("max_memory"), None)
    free = available_memory()
    return MemoryBound(free // 2, "half of the free memory", free)


def find_stream_reason(
    kept_bytes: dict[str, int], streamed: dict[str, int] | None, bound: MemoryBound, less: str
) -> str:
    """Return why weights, which do not fit in memory, are read again in every pass.

    Args:
        kept_bytes: Bytes by purpose if weights are kept.
        streamed: Bytes by purpose if weights are read again; None if they cannot be.
        less: See require_memory.
    """
    least = streamed and {
        "weights, two layers at a time" if n == "weights" else n: size
        for n, size in streamed.items()
    }
    require_memory(least or kept_bytes, bound, less)
    total = format_bytes(sum(kept_bytes.values()))
    weights = format_bytes(kept_bytes["weights"])
    what = spell_options(bound.what, on_command_line)
    return f"keeping all of them ({weights}) needs about {total}, but {what} is {format_bytes(bound.size)}"


def require_memory(need: dict[str, int], bound: MemoryBound, less: str = "") -> None:
    """Refuse what does not fit into memory.

    Args:
        need: Bytes by purpose, such as from `estimate.estimate_memory`.
        less: What the user can do to take less memory; empty for nothing.
    """
    total = sum(need.values())
    if total <= bound.size:
        return
    raised = f"use {arg('max_memory', f'{-(-total // _MIB)}M')} or more"
    if bound.most is not None and bound.most < total:
        raised = f"free memory, of which {format_bytes(total)} is needed"
    parts = " + ".join(f"{name} {format_bytes(size)}" for name, size in need.items())
    message = f"needs about {format_bytes(total)} ({parts}), but {bound.what} is {format_bytes(bound.size)}"
    raise AttnscopeError(message, hint=f"{less}, or {raised}" if less else raised)


def format_bytes(size: int) -> str:
    """Return a number of bytes as `3.2 GiB`."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    if unit == "B":
        return f"{value:.0f} {unit}"
    return f"{value:,.1f} {unit}"
