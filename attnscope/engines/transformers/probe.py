"""Run two tokens through a `transformers` model to find its parts, layers and heads."""

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.base.errors import AttnscopeError
from attnscope.base.layer_kinds import LayerPaths, MixingLayer
from attnscope.engines.transformers.followed import OTHERWISE, WEIGHS_TWICE
from attnscope.engines.transformers.interface import (
    CALLED_TWICE,
    FOLLOWED,
    NAME,
    OVER_LAYERS,
    RELATIVE,
    AttentionCapture,
    capturing,
    check_sizes,
    has_indexer,
    through_interface,
)
from attnscope.engines.transformers.layer_lists import ListItem, RunningLayers
from attnscope.engines.transformers.live import set_implementation
from attnscope.engines.transformers.mixing import watching_mixing
from attnscope.engines.transformers.model_class import first_line
from attnscope.engines.transformers.output_paths import OutputPaths
from attnscope.model.attention import attended
from attnscope.model.inputs import AttentionInputs
from attnscope.model.mixing import MixingInputs


@dataclass(frozen=True)
class ModelPart:
    """The attention of one part of a model: one stack of layers."""

    n_layers: int
    layers: tuple[int, ...]  # numbers of the layers that have attention over tokens, ascending
    # the layer of each call of attention, in order, if modules number themselves otherwise (Zamba); else empty
    call_layers: tuple[int, ...]
    layer_kinds: tuple[LayerPaths, ...]  # see ModelConfig
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_value: int
    scale: float
    no_projection: str  # why what a head adds to the residual stream is not known; empty if it is
    gated: frozenset[str]  # names of the modules that multiply the output of attention by a gate
    looks_ahead: bool  # the first of two tokens sees the second
    position_bias: bool  # a layer adds a bias for every pair of positions (T5)
    modules: frozenset[str] = frozenset()  # names of the modules that attend
    # name of the list of its layers in the model; empty if they are not the items of one
    listed: str = ""
    # layers with a path without softmax
    mixing: Mapping[int, MixingLayer] = field(default_factory=dict)


def no_attention_found(family: str, where: str | Path) -> AttnscopeError:
    """Build the error for an architecture whose attention cannot be observed."""
    message = f"no attention was found in '{family}'"
    hint = f"attnscope finds softmax(q·kᵀ)·v between tokens, not other operators; {OTHERWISE}"
    return AttnscopeError(message, where=where, hint=hint)


@dataclass
class _Calls:
    """Calls of the attention of one part, in order."""

    inputs: list[AttentionInputs] = field(default_factory=list)
    listed: list[ListItem | None] = field(default_factory=list)  # the layer that was running
    kinds: list[LayerPaths] = field(default_factory=list)  # how it attends
    modules: list[nn.Module] = field(default_factory=list)
    gated: set[nn.Module] = field(default_factory=set)  # modules with a gate
    paths: OutputPaths = field(default_factory=OutputPaths)  # from each to its output projection


N_PROBED = 2  # tokens that a model is run on; more where it does not run on these


def probe_tokens(model: Any, vocab_size: int) -> dict[str, Any]:
    """Return two tokens as a model takes them."""
    ids = torch.full((1, N_PROBED), min(5, vocab_size - 1), device=model.device)
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **more}


def probe(model: Any, inputs: Mapping[str, Any], where: str | Path) -> dict[str, ModelPart]:
    """Run a small input, such as two tokens, and see which parts, layers and heads there are."""
    parts, running = _run(model, inputs, where)
    unseen = not parts and not running.mixing
    if through_interface(model) and (
        unseen or (model.config.is_encoder_decoder and "encoder" not in parts)
    ):
        set_implementation(model, "eager")
        followed, running_followed = _run(model, inputs, where)
        if len(followed) > len(parts):
            FOLLOWED.add(model)
            parts = followed
            running = running_followed
        else:
            set_implementation(model, NAME)
    if not parts and running.mixing:
        return {"": _without_attention(running)}
    if not parts:
        raise no_attention_found(model.config.model_type, where)
    # BigBird exchanges modules while it runs
    names = {module: name for name, module in model.named_modules()}
    changed = {calls.modules[index] for calls in parts.values() for index in calls.paths.changed}
    if changed or any(module in CALLED_TWICE or module in WEIGHS_TWICE for module in names):
        parts, running = _run(model, inputs, where, changed)
    return {part: _facts(calls, running, names, where) for part, calls in parts.items()}


def _run(
    model: Any, inputs: Mapping[str, Any], where: str | Path, changed: Collection[nn.Module] = ()
) -> tuple[dict[str, _Calls], RunningLayers]:
    """Run a small input, and find the gates of modules whose output is `changed` in front of the output projection."""
    parts: dict[str, _Calls] = {}
    running = RunningLayers(model)
    sessions: list[AttentionCapture] = []

    def on_attention(part: str, module: nn.Module, inputs: AttentionInputs) -> Tensor:
        session = sessions[0]
        if inputs.q.shape[1:3] == (n_tokens, 1) and through_interface(model):
            OVER_LAYERS.add(module)
            return attended(inputs)
        if n_tokens > N_PROBED and part == "":
            check_sizes(inputs, (len(inputs.q), n_tokens, n_tokens))
        calls = parts.setdefault(part, _Calls())
        calls.inputs.append(inputs)
        calls.listed.append(running.item)
        calls.kinds.append((_attention_kind(module, inputs),))
        calls.modules.append(module)
        output = attended(inputs)
        gate = _find_gate(session, module, output) if module in changed else None
        if gate is not None:
            calls.gated.add(module)
        taken = output if gate is None else output * gate
        calls.paths.expect(len(calls.inputs) - 1, session.projection, taken, inputs.out_weight)
        return output

    def on_mixing(inputs: MixingInputs) -> None:
        if running.item is not None:
            running.mixing[running.item] = MixingLayer(
                inputs.kind, inputs.n_heads, inputs.k.shape[-1]
            )

    n_tokens = inputs["input_ids"].shape[1] if "input_ids" in inputs else 0
    more: dict[str, Any] = {}
    if "use_cache" in inspect.signature(model.forward).parameters:
        more["use_cache"] = False
    names = [name for name, module in model.named_modules() if module in changed]
    sessions.append(AttentionCapture(model, on_attention, gated=names))
    try:
        with (
            torch.inference_mode(),
            running.watching(),
            capturing(sessions[0]),
            watching_mixing(model, on_mixing),
        ):
            model(**inputs, **more)
    except AttnscopeError:
        raise
    except Exception as e:  # every language model accepts two tokens
        message = f"transformers cannot run it on tokens alone ({first_line(e)})"
        hint = f"attnscope finds layers and heads by a run on a text alone; {OTHERWISE}"
        raise AttnscopeError(message, where=where, hint=hint) from e
    finally:
        for calls in parts.values():
            for handle in calls.paths.handles:
                handle.remove()
        # it has on_attention, which has it: the two would keep the model's weights
        sessions.clear()
    return parts, running


def _find_gate(session: AttentionCapture, module: nn.Module, output: Tensor) -> Tensor | None:
    """Return the gate of a running module; None if what its projection takes is no product of a gate and the output."""
    if session.projection is None:
        return None
    try:
        gate = session.taken_outputs.gate(module, session.projection, output)
        explained = gate is not None and session.taken_outputs.explains(
            gate, module, session.projection, output
        )
    except Exception:  # a module may not run twice
        return None
    return gate if explained else None


def _facts(
    calls: _Calls, running: RunningLayers, names: Mapping[nn.Module, str], where: str | Path
) -> ModelPart:
    inputs = calls.inputs
    shapes = {
        (call.q.shape[1], call.k.shape[1], call.q.shape[-1], call.v.shape[-1]) for call in inputs
    }
    if len({heads for heads, *_ in shapes}) > 1:
        raise AttnscopeError(
            "its layers have different numbers of heads", where=where, hint=OTHERWISE
        )
    first_inputs = inputs[0]
    numbers = [call.layer for call in inputs]
    n_layers = 1 + max(numbers)
    kinds = tuple[LayerPaths, ...]()
    call_layers: tuple[int, ...] = ()
    name = ""
    if (listed := _numbers_in_list(calls.listed)) is not None:
        name, indices = listed
        if indices != numbers:
            call_layers = tuple(indices)
            numbers = indices
        attention = dict(zip(numbers, calls.kinds, strict=True))
        kinds = running.kinds(name, attention)
        n_layers = len(kinds)
        if {*kinds} <= {("softmax",), ("window",)}:
            kinds = ()
    return ModelPart(
        n_layers=n_layers,
        layers=tuple(sorted(set(numbers))),
        call_layers=call_layers,
        layer_kinds=kinds,
        n_heads=first_inputs.q.shape[1],
        n_kv_heads=first_inputs.k.shape[1],
        d_head=first_inputs.q.shape[-1],
        d_value=first_inputs.v.shape[-1],
        scale=first_inputs.spec.scale,
        no_projection=_no_projection(calls),
        gated=frozenset(names[module] for module in calls.gated),
        modules=frozenset(names[module] for module in calls.modules),
        looks_ahead=any(map(_looks_ahead, inputs)),
        position_bias=any(call.spec.bias_name == RELATIVE for call in inputs),
        listed=name,
        mixing=running.mixing_of(name),
    )


def _without_attention(running: RunningLayers) -> ModelPart:
    """Return the only part of a model whose layers all have a matrix without softmax."""
    name, _ = next(iter(running.mixing))
    mixing = running.mixing_of(name)
    kinds = running.kinds(name, {})
    path = mixing[min(mixing)]
    return ModelPart(
        n_layers=len(kinds),
        layers=(),
        call_layers=(),
        layer_kinds=kinds,
        n_heads=1 if path.by_channel else path.n_heads,
        n_kv_heads=1,
        d_head=path.width,
        d_value=path.width,
        scale=1.0,
        no_projection="it has no attention",
        gated=frozenset(),
        looks_ahead=False,
        position_bias=False,
        listed=name,
        mixing=mixing,
    )


def _attention_kind(module: nn.Module, inputs: AttentionInputs) -> str:
    """Return the kind of a path that attends."""
    if inputs.unselective is not None or has_indexer(module):
        return "sparse"
    if getattr(module, "sliding_window", None):
        return "window"
    return "softmax"


def _no_projection(calls: _Calls) -> str:
    """Say why what a head adds to the residual stream is not known; empty if it is."""
    if any(module in CALLED_TWICE for module in calls.modules):
        return "the outputs of two heads are subtracted in front of the output projection"
    if any(call.out_weight is None for call in calls.inputs):
        return "the model's output projection was not found"
    if calls.paths.changed:
        layer = calls.inputs[min(calls.paths.changed)].layer
        return f"in layer {layer}, something other than a gate stands between weights·v and the output projection"
    if calls.paths.not_linear:
        layer = calls.inputs[min(calls.paths.not_linear)].layer
        return f"in layer {layer}, the output projection does more than multiply by its weight"
    return ""


def _looks_ahead(inputs: AttentionInputs) -> bool:
    """Tell whether the first of two tokens sees the second."""
    first_id = torch.tensor([[0]])
    second_id = torch.tensor([[1]])
    device = inputs.q.device
    allowed = inputs.spec.mask.allowed(first_id.to(device), second_id.to(device))
    return allowed is None or bool(allowed.any())


def _numbers_in_list(listed: Sequence[ListItem | None]) -> tuple[str, list[int]] | None:
    """Return the list that all of these layers are in and their indices; None unless each is another item of one."""
    items = [item for item in listed if item is not None]
    names = {name for name, _ in items}
    if len(items) < len(listed) or len(names) != 1 or len(set(items)) < len(items):
        return None
    return names.pop(), [index for _, index in items]


def max_text_length(model: Any, config: Any) -> int | None:
    """Return the longest text that a model takes, in tokens; None if nothing limits it."""
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:
        return None
    tables = [
        table
        for name, table in model.named_modules()
        if isinstance(table, nn.Embedding) and "position" in name
    ]
    counted = [table.padding_idx for table in tables if table.padding_idx is not None]
    # Positions that start after the padding index (RoBERTa).
    return limit - 1 - counted[0] if counted else limit


def count_segments(model: Any, config: Any) -> int:
    """Return rows of the segment embedding; 0 where there is none."""
    takes = "token_type_ids" in inspect.signature(model.forward).parameters
    if takes:
        return int(getattr(config, "type_vocab_size", 0) or 0)
    return 0
