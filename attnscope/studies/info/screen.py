"""A model's description and cost table as text or JSON."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from attnscope.findings.info import TOP, CostRow, KnownModels
from attnscope.findings.row_statistics import STATISTICS
from attnscope.request.selection import POOL, PRINTED
from attnscope.views.plain import PAGE, Page

if TYPE_CHECKING:
    from attnscope.base.model_config import ModelConfig
    from attnscope.findings.info import Description

_WEIGHTS = {
    "trained": "from the checkpoint",
    "random": "random (the model is untrained)",
    "none": "none: this is a config.json alone",
}
_NAMES = 12  # width of the column of names
BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_HEADINGS = ("tokens", "q·k", "weights·v", "projections", "scores", "weights", "kept", "")


def as_json(description: "Description", cost: Sequence[CostRow] | None) -> bytes:
    """Write the description as strict JSON on one line; with the rows of the cost table, if any, under `cost`."""
    facts: dict[str, Any] = msgspec.to_builtins(description)
    return msgspec.json.encode(facts if cost is None else {**facts, "cost": cost}) + b"\n"


def as_text(
    description: "Description", cost: Sequence[CostRow] | None, page: Page = PAGE, *, data_only: bool = False
) -> str:
    """Write the description, a fact per line, and the cost table below it.

    Args:
        description: The model.
        cost: Rows of the cost table; None for no table.
        page: Where the text goes.
        data_only: Leave out notes, and what the columns mean.
    """
    facts = [(name, value) for name, value in _facts(description, page.safe) if value]
    files = description.files.items()
    facts += [("file", f"{page.safe(name)}  {scaled(size, 1024, BINARY)}") for name, size in files]
    facts += [("note", page.note(note)) for note in description.notes if not data_only]
    lines = page.facts(facts, _NAMES)
    if cost is not None:
        lines += ["", *_cost_lines(cost, page, data_only=data_only)]
    return "\n".join(lines) + "\n"


def models_as_json(models: KnownModels) -> bytes:
    """Write the known models as strict JSON on one line."""
    return msgspec.json.encode(models) + b"\n"


def models_as_text(models: KnownModels, page: Page) -> str:
    """Write the known models, each beside the option that takes its name."""
    blocks = []
    for title, facts in (("samples, for --model", models.samples), ("configs, for --config", models.configs)):
        blocks.append([*page.wrapped(title), *page.facts([(f"  {name}", said) for name, said in facts.items()], 28)])
    families = ", ".join(models.families)
    blocks.append([*page.wrapped("families (model_type in a config.json)"), *page.wrapped(families, indent=2)])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _facts(d: "Description", safe: Callable[[str], str]) -> list[tuple[str, str]]:
    c = d.config
    stored = ", ".join(f"{count:,} × {safe(dtype)}" for dtype, count in d.dtypes.items())
    of_text = d.tokenizer_size is None
    words = "made from the text itself" if of_text else f"{d.tokenizer_size:,} words"
    tokenizer = f"{safe(d.tokenizer)}, {words}" if d.tokenizer != "none" else "none that can be used; see below"
    rows = "one row per word of the text" if of_text else f"{c.vocab_size:,} rows"
    return [
        ("name", safe(d.name)),
        ("family", safe(d.family)),
        ("weights", _WEIGHTS[d.weights]),
        ("fingerprint", d.fingerprint),
        ("layers", f"{c.n_layers}, {c.d_model} wide" + (", attention and MLP in parallel" * c.parallel)),
        ("heads", _heads(c)),
        ("scores", _scores(c, d.attention_scale)),
        ("mask", safe(d.mask)),
        ("positions", _positions(c)),
        ("norm", "none" if c.norm == "none" else f"{c.norm} ({c.norm_order}), ε {c.norm_eps:g}"),
        ("MLP", _mlp(c)),
        ("residual", "yes" if c.residual else "no"),
        ("vocabulary", rows + (f", segments: {c.n_segments}" if c.n_segments else "")),
        ("tokenizer", tokenizer if d.weights != "none" else ""),
        ("parameters", f"{d.parameters:,} in embeddings and blocks"),
        ("checkpoint", f"{d.stored_parameters:,} numbers: {stored}" if d.stored_parameters is not None else ""),
    ]


def _heads(c: "ModelConfig") -> str:
    shared = f" that share {c.n_kv_heads} key/value heads" if c.n_kv_heads != c.n_heads else ""
    shared += ", keys and values from --context" * c.cross_attention
    return f"{c.n_heads}{shared}, queries and keys {c.d_head} wide, values {c.d_value} wide"


def _scores(c: "ModelConfig", scale: float) -> str:
    how = f" (1/√{c.d_head})" if c.scale is None else ""
    capped = f", soft-capped at {c.softcap:g}" if c.softcap is not None else ""
    normed = {False: "", True: ", q and k normed per head", "whole": ", q and k normed over all heads"}[c.qk_norm]
    return f"q·k × {scale:.4g}{how}{capped}{normed}" + ", a sink in every head" * c.sinks


def _mlp(c: "ModelConfig") -> str:
    if not c.d_mlp:
        return "none"
    bounded = f", bounded at {c.glu_limit:g}" if c.glu_limit is not None else ""
    chosen = f"; {c.experts_per_token} of {c.n_experts} experts for each token" if c.n_experts else ""
    return f"{c.d_mlp} wide, {'gated ' * c.gated}{c.activation}{bounded}{chosen}"


def _positions(c: "ModelConfig") -> str:
    turned = ""
    if c.positions == "rope":
        turned = f" (theta {c.rope.theta:g}" + (f", {c.rope.fraction:g} of each head" if c.rope.fraction < 1 else "")
        turned += f", {c.rope.scaling.kind} × {c.rope.scaling.factor:g})" if c.rope.scaling else ")"
    return f"{c.positions}{turned}, " + (f"up to {c.max_positions:,} tokens" if c.max_positions else "of any length")


def _cost_lines(rows: Sequence[CostRow], page: Page, *, data_only: bool) -> list[str]:
    """Write the cost table: one line for every length of text, and what its columns mean."""
    table = page.table([_HEADINGS, *(_cost_cells(row) for row in rows)], str.rjust)
    if data_only:
        return table
    return [
        *page.wrapped("cost of attention, over all layers and heads of one text"),
        *table,
        *(page.wrapped("* more tokens than the model has positions") if not all(row.fits for row in rows) else []),
        *page.facts(_MEANINGS, 16),
    ]


_MEANINGS = (
    ("q·k, weights·v", "FLOPs for the pairs that the mask allows; projections: FLOPs"),
    ("scores, weights", "bytes of these matrices as float32"),
    (
        "kept",
        f"bytes that attnscope keeps instead: the top {TOP} sources and {len(STATISTICS)} statistics of every row, and "
        f"a {POOL}×{POOL} map with the weight every token receives (up to {PRINTED} tokens: scores, masked and "
        "weights)",
    ),
    (
        "growth",
        "attention costs O(B·T²·D) and holds O(B·T²) weights, because every token attends to every other: any two "
        "tokens are one step apart; a recurrent network costs O(B·T·D²), but its tokens are up to T steps apart",
    ),
)


def _cost_cells(row: CostRow) -> tuple[str, ...]:
    flops = (row.qk_flops, row.av_flops, row.projection_flops)
    sizes = (row.scores_bytes, row.weights_bytes, row.kept_bytes)
    return (
        f"{row.tokens:,}",
        *(scaled(n, 1000, DECIMAL) for n in flops),
        *(scaled(n, 1024, BINARY) for n in sizes),
        "" if row.fits else "*",
    )


def scaled(number: int, step: int, units: Sequence[str]) -> str:
    """Format a number with three digits and a unit: 1048576 as `1.00 MiB`."""
    value, unit = float(number), 0
    while value >= 999.5 and unit < len(units) - 1:
        value, unit = value / step, unit + 1
    digits = 0 if unit == 0 else max(0, 3 - len(str(int(value))))
    return f"{value:.{digits}f} {units[unit]}".rstrip()
