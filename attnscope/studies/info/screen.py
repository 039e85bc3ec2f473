"""A model's description and cost table as parts or JSON."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from attnscope.base.layer_kinds import attends, count_attending, spell_legend, spell_map
from attnscope.findings.info import TOP, TRANSFERRED, CostRow, KnownModels
from attnscope.findings.row_statistics import STATISTICS
from attnscope.request.selection import POOL, PRINTED
from attnscope.studies.screens.header import path_items
from attnscope.views.numbers import scale_text
from attnscope.views.parts import GAP, Column, Facts, Table, Text, ViewPart, paragraph
from attnscope.views.spans import Spans, note, ours

if TYPE_CHECKING:
    from attnscope.base.model_config import ModelConfig
    from attnscope.findings.info import Description

# Facts that attnscope knows of the models that it runs itself.
_NATIVE_FACTS = ("scores", "mask", "positions", "norm", "MLP", "residual", "parameters")
_WEIGHTS = {
    "trained": "from the checkpoint",
    "random": "random (the model is untrained)",
    "none": "none: this is a config.json alone",
}
BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
DECIMAL = ("", "k", "M", "G", "T", "P", "E")
# Heading, field of CostRow, and the units of each column.
_COLUMNS = (
    ("q·k", "qk_flops", 1000, DECIMAL),
    ("weights·v", "av_flops", 1000, DECIMAL),
    ("projections", "projection_flops", 1000, DECIMAL),
    ("scores", "scores_bytes", 1024, BINARY),
    ("weights", "weights_bytes", 1024, BINARY),
    ("kept", "kept_bytes", 1024, BINARY),
)


# Another library runs the layers of these engines, so that their config says only what follows from its fields.
_KNOWN_CONFIG = {"transformers": TRANSFERRED}
_UNKNOWN_FACTS = {"transformers": _NATIVE_FACTS}


def as_json(description: "Description", cost: Sequence[CostRow] | None) -> bytes:
    """Write the description as strict JSON on one line; with the rows of the cost table, if any, under `cost`."""
    facts: dict[str, Any] = msgspec.to_builtins(description)
    field_names = _KNOWN_CONFIG.get(description.engine)
    if field_names is not None:
        facts["config"] = {name: facts["config"][name] for name in field_names}
    return msgspec.json.encode(facts if cost is None else {**facts, "cost": cost}) + b"\n"


def present_info(
    description: "Description", cost: Sequence[CostRow] | None, *, data_only: bool = False
) -> Iterator[ViewPart]:
    """Turn a description into parts, a fact per line, with the cost table below it if there is one."""
    facts = [
        ("file", f"{name}  {scaled(size, 1024, BINARY)}")
        for name, size in description.files.items()
    ]
    facts += [("note", text) for text in description.notes if not data_only]
    # Values may quote untrusted text.
    lines: list[tuple[str, Spans | Text]] = [("name", Text(path_items(description.name), ""))]
    for name, value in _facts(description):
        if value:  # a line breaks between its items: `35,136 × F32` stays whole
            lines.append((name, Text([note(item) for item in value.split(", ")], ", ")))
    lines += [(name, note(value)) for name, value in facts]
    yield Facts(lines, remark=False)
    if cost is not None:
        yield GAP
        yield from _cost(cost, data_only=data_only)


def models_as_json(models: KnownModels) -> bytes:
    """Write the known models as strict JSON on one line."""
    return msgspec.json.encode(models) + b"\n"


def present_models(models: KnownModels) -> Iterator[ViewPart]:
    """Turn the known models into parts, each beside the option that selects it."""
    for title, facts in (
        ("samples, for --model", models.samples),
        ("configs, for --config", models.configs),
    ):
        yield paragraph(ours(title, "bold"))
        yield Facts(
            [(name, ours(text)) for name, text in facts.items()], remark=False, indent=1, look=""
        )
        yield GAP
    yield paragraph(ours("families (model_type in a config.json)", "bold"))
    yield Text([ours(family) for family in models.families], ", ", indent=1)


def _facts(d: "Description") -> list[tuple[str, str]]:
    c = d.config
    stored = ", ".join(f"{count:,} × {dtype}" for dtype, count in d.dtypes.items())
    of_text = d.tokenizer_size is None
    words = "made from the text itself"
    if not of_text:
        words = f"{d.tokenizer_size:,} words"
    tokenizer = "none that can be used; see below"
    if d.tokenizer != "none":
        tokenizer = f"{d.tokenizer}, {words}"
    rows = "one row per word of the text" if of_text else f"{c.vocab_size:,} rows"
    if d.tokenizer == "image":
        tokenizer = "none: its tokens are patches of a picture"
        rows = ""
    facts = [
        ("family", d.family),
        ("weights", _WEIGHTS[d.weights]),
        ("fingerprint", d.fingerprint),
        (
            "layers",
            f"{c.n_layers}, {c.d_model:,} wide" + (", attention and MLP in parallel" * c.parallel),
        ),
        ("layer map", _layer_map(c)),
        ("heads", _heads(c)),
        ("scores", _scores(c, d.attention_scale)),
        ("mask", d.mask or ""),
        ("positions", _positions(c)),
        ("norm", "none" if c.norm == "none" else f"{c.norm} ({c.norm_order}), ε {c.norm_eps:g}"),
        ("MLP", _mlp(c)),
        ("residual", "yes" if c.residual else "no"),
        ("vocabulary", rows + (f", segments: {c.n_segments}" if c.n_segments else "")),
        ("tokenizer", tokenizer if d.weights != "none" else ""),
        ("parameters", f"{d.parameters or 0:,} in embeddings and blocks"),
        (
            "checkpoint",
            f"{d.stored_parameters:,} numbers: {stored}" if d.stored_parameters is not None else "",
        ),
    ]
    unknown = _UNKNOWN_FACTS.get(d.engine, ())
    return [(name, value) for name, value in facts if name not in unknown]


def _layer_map(c: "ModelConfig") -> str:
    """Write the kinds of the layers; nothing if all are the same."""
    if not c.layer_kinds and not c.windows:  # however many there are
        return ""
    kinds = c.layer_map
    if len(set(kinds)) == 1 and len(kinds[0]) == 1 and attends(kinds[0]):
        return ""
    return f"{spell_map(kinds, whole=True)}  {count_attending(kinds)} ({spell_legend(kinds)})"


def _heads(c: "ModelConfig") -> str:
    if not c.attention_layers:
        return ""
    shared = ""
    if c.n_kv_heads != c.n_heads:
        shared = f" that share {c.n_kv_heads} key/value heads"
    shared += ", keys and values from --context" * c.cross_attention
    return f"{c.n_heads}{shared}, queries and keys {c.d_head} wide, values {c.d_value} wide"


def _scores(c: "ModelConfig", scale: float) -> str:
    capped = f", soft-capped at {c.softcap:g}" if c.softcap is not None else ""
    normed = {
        False: "",
        True: ", q and k normed per head",
        "whole": ", q and k normed over all heads",
    }[c.qk_norm]
    return (
        f"q·k {scale_text(scale, c.d_head, reason=True)}{capped}{normed}"
        + ", a sink in every head" * c.sinks
    )


def _mlp(c: "ModelConfig") -> str:
    if not c.d_mlp:
        return "none"
    bounded = f", bounded at {c.glu_limit:g}" if c.glu_limit is not None else ""
    experts_text = ""
    if c.n_experts:
        experts_text = f"; {c.experts_per_token} of {c.n_experts} experts for each token"
    return f"{c.d_mlp:,} wide, {'gated ' * c.gated}{c.activation}{bounded}{experts_text}"


def _positions(c: "ModelConfig") -> str:
    turned = ""
    if c.positions == "rope":
        turned = f" (theta {c.rope.theta:,.10g}" + (
            f", {c.rope.fraction:g} of each head" if c.rope.fraction < 1 else ""
        )
        if c.rope.scaling:
            turned += f", {c.rope.scaling.kind} × {c.rope.scaling.factor:g})"
        else:
            turned += ")"
    return f"{c.positions}{turned}, " + (
        f"up to {c.max_positions:,} tokens" if c.max_positions else "of any length"
    )


def _cost(rows: Sequence[CostRow], *, data_only: bool) -> Iterator[ViewPart]:
    """Present the cost of attention, a line for each length of text, and the meaning of columns."""
    tokens = [f"{row.tokens:,}" for row in rows]
    columns = [
        Column(heading, [scaled(getattr(row, name), step, units) for row in rows])
        for heading, name, step, units in _COLUMNS
    ]
    columns.append(Column("", ["" if row.fits else "*" for row in rows]))
    widest = max(map(len, (*tokens, "tokens")))
    if not data_only:
        yield paragraph(
            ours("cost of attention in all heads of one text: three columns of FLOPs, then bytes")
        )
    yield Table(
        "tokens".rjust(widest), columns, labels=[ours(f"{n:>{widest}}") for n in tokens], indent=0
    )
    if data_only:
        return
    if not all(row.fits for row in rows):
        yield paragraph(ours("* more tokens than the model has positions"))
    yield Facts([(name, ours(meaning)) for name, meaning in _MEANINGS], remark=False)


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


def scaled(amount: int, step: int, units: Sequence[str]) -> str:
    """Format a number with three digits and a unit: 1048576 as `1.00 MiB`."""
    value = float(amount)
    unit = 0
    while value >= 999.5 and unit < len(units) - 1:
        value = value / step
        unit = unit + 1
    digits = 0 if unit == 0 else max(0, 3 - len(str(int(value))))
    return f"{value:.{digits}f} {units[unit]}".rstrip()
