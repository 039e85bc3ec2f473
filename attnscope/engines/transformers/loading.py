"""Load a checkpoint into a `transformers` model whose attention goes through attnscope.

The tensors are read by our own reader. A checkpoint with missing tensors is refused; transformers would initialize them
randomly.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from attnscope.base.errors import AttnscopeError, UsageError, arg, did_you_mean
from attnscope.checkpoints.folder import Folder, unused_note
from attnscope.engines.transformers.default_inputs import default_inputs, default_notes, defaults_of
from attnscope.engines.transformers.followed import WEIGHS_TWICE
from attnscope.engines.transformers.interface import (
    NAME,
    OVER_LAYERS,
    AttentionCapture,
    OnAttention,
)
from attnscope.engines.transformers.media import (
    PIXELS,
    PatchLayout,
    find_layout,
    probe_pixels,
    vision_inputs,
)
from attnscope.engines.transformers.model_class import (
    ModelClass,
    find_model_class,
    first_line,
    named_class,
    part_of_config,
    quiet,
)
from attnscope.engines.transformers.output_head import base_of, head_class, head_kind, is_predicting
from attnscope.engines.transformers.probe import (
    ModelPart,
    count_segments,
    max_text_length,
    probe,
    probe_tokens,
)
from attnscope.engines.transformers.sound import SOUNDS, FrameLayout, find_frames, probe_sound
from attnscope.findings.predictions import PredictionKind
from attnscope.model.tensors import read_tensors
from attnscope.request.media import MediaKind

# tensors that do not affect attention and that checkpoints may omit
_AFTER = re.compile(r"(.*\.)?pooler\..*")


@dataclass(frozen=True)
class TransformersModel:
    """A loaded model."""

    model: Any
    # the attention of each part; a model with one part has an empty name
    parts: dict[str, ModelPart]
    vocab_size: int
    d_model: int
    max_positions: int | None  # longest text; None if nothing limits it
    n_segments: int  # rows of the segment embedding; 0 where there is none
    decoder_start: int | None  # the id that a decoder starts with; None if there is none
    notes: tuple[str, ...]  # remarks on parts of the folder that are not used
    chosen: str = ""  # the part whose attention is shown; empty if there is only one
    # the tokens of a vision model; None for a model that takes token ids
    layout: PatchLayout | None = None
    frames: FrameLayout | None = None  # those of a model that takes sound; None for others
    defaults: tuple[str, ...] = ()  # inputs that a text does not have; see default_inputs
    # the same model with its head for language, if the checkpoint has one; else None
    predicting: Any = None

    @property
    def predicts(self) -> PredictionKind | None:
        """Target of its head; None if it has none."""
        if self.predicting is None or self.frames is not None:
            return None
        return head_kind(
            self.predicting, looks_ahead=any(part.looks_ahead for part in self.parts.values())
        )

    @property
    def part(self) -> ModelPart:
        """The attention that is shown."""
        return self.parts[self.chosen]

    def capture(self, on_attention: OnAttention, gated: Collection[str] = ()) -> AttentionCapture:
        """Return what hands over the attention of all parts; a vision tower in front of them has modules of its own."""
        call_layers = {name: part.call_layers for name, part in self.parts.items()}
        attending = frozenset[str]().union(*(part.modules for part in self.parts.values()))
        return AttentionCapture(self.model, on_attention, call_layers, gated, attending)

    def resolve_part(self, name: str | None) -> str:
        """Return the part that the user means."""
        part_names = [part for part in self.parts if part]
        if name is None and not part_names:
            return ""
        if name is None and self.frames is not None and "cross" in part_names:
            return "cross"
        if name is None:
            raise UsageError(
                "the model has several parts",
                where=arg("part"),
                hint=f"use one of {', '.join(part_names)}",
            )
        if not part_names:
            hint = f"remove {arg('part')}: the model has only one"
            raise UsageError(f"the model has no part '{name}'", where=arg("part"), hint=hint)
        if name in ("encoder", "decoder", "cross") and name not in part_names:
            message = f"no attention between tokens alone was found in the part '{name}'"
            raise UsageError(message, where=arg("part"), hint=f"use {' or '.join(part_names)}")
        if name not in part_names:
            raise UsageError(
                f"the model has no part '{name}'",
                where=arg("part"),
                hint=did_you_mean(name, part_names),
            )
        return name


def load_model(
    folder: Folder, dtype: torch.dtype, media: MediaKind | None = None
) -> TransformersModel:
    """Load a checkpoint with transformers, and inspect its attention; see `find_model_class` for `media`."""
    model_class = find_model_class(folder, media)
    if model_class.within:
        return _load(model_class, folder, dtype)
    predicting = head_class(model_class)
    if predicting is not None:
        return _load(replace(model_class, model=predicting), folder, dtype)
    try:
        return _load(model_class, folder, dtype)
    except _LackingTensors:
        # A checkpoint of another class may lack what the base model has (SeamlessM4TForTextToText).
        saved = named_class(folder.config.get("architectures"))
        if saved in (None, model_class.model):
            raise
    try:
        return _load(replace(model_class, model=saved), folder, dtype)
    except _LackingTensors:
        return _load(model_class, folder, dtype)


class _LackingTensors(AttnscopeError):
    """Raised where a folder lacks tensors of a model."""


def _load(model_class: ModelClass, folder: Folder, dtype: torch.dtype) -> TransformersModel:
    """Load a model of a class, and inspect its base model, or the part of it that the class means."""
    whole, info = _model(model_class, folder, dtype)
    _separate_head(whole, folder)
    missing = (info["missing_keys"] | _silently_missing(whole, folder)) - _computed(whole)
    model = whole.get_submodule(model_class.within)
    base = base_of(model)
    # Missing tensors of the head, with any of which the model has no head, or of other parts.
    names = {name for name, module in whole.named_modules() if module is base} - {""}
    outside = {
        name
        for name in missing
        if names and not any(name.startswith(f"{inner}.") for inner in names)
    }
    notes = _check_loaded(model, model_class.within, info, missing - outside, folder)
    language = next((part for part in (model, model.base_model) if is_predicting(part)), None)
    predicting = None if outside else language
    try:
        return replace(inspect_model(base, folder.path, notes), predicting=predicting)
    except AttnscopeError as e:
        configs = [getattr(whole.config, f"{kind}_config", None) for kind in ("text", "encoder")]
        text_config = next((config for config in configs if config is not None), None)
        within = ""
        if model is whole and text_config is not None:
            within = part_of_config(whole, text_config)
        if not within or model_class.takes != "input_ids":
            raise
        part = whole.get_submodule(within)
        notes += (f"the text model '{within}' is shown alone: {e.message}",)
        try:
            inspected = inspect_model(base_of(part), folder.path, notes)
        except AttnscopeError:
            raise e from None
        return replace(inspected, predicting=part if is_predicting(part) and not outside else None)


def inspect_model(model: Any, where: str | Path, notes: tuple[str, ...] = ()) -> TransformersModel:
    """Inspect the attention of a model that already runs through attnscope."""
    layout = None
    frames = None
    defaults: tuple[str, ...] = ()
    if model.main_input_name == PIXELS:
        pixels = probe_pixels(model, where)
        layout = find_layout(model, pixels, where)
        parts = probe(model, vision_inputs(model, pixels), where)
        vocab_size = 1
        d_model = int(model.config.hidden_size)
    elif model.main_input_name in SOUNDS:
        sounds = probe_sound(model)
        frames = find_frames(model, sounds, where)
        parts = probe(model, sounds, where)
        vocab_size = 1
        d_model = int(getattr(model.config, "hidden_size", None) or model.config.d_model)
        if model.config.is_encoder_decoder:
            vocab_size, d_model = _table(model, where)
    else:
        vocab_size, d_model = _table(model, where)
        # ALBERT and ELECTRA project narrower embeddings.
        d_model = int(getattr(model.config, "hidden_size", None) or d_model)
        tokens = probe_tokens(model, vocab_size)
        try:
            parts = probe(model, tokens, where)
        except AttnscopeError:
            defaults = defaults_of(model)
            # Funnel cannot halve the number of two tokens twice
            longer = {name: ids.repeat(1, 4) for name, ids in tokens.items()}
            if defaults:
                tokens |= default_inputs(model, defaults, tokens["input_ids"])
            else:
                tokens |= longer
            parts = probe(model, tokens, where)
            notes += default_notes(defaults)
    return TransformersModel(
        model=model,
        parts=parts,
        vocab_size=vocab_size,
        d_model=d_model,
        max_positions=max_text_length(model, model.config.get_text_config()),
        n_segments=count_segments(model, model.config),
        decoder_start=_decoder_start(model.config, vocab_size, where),
        notes=notes + _calling_notes(model, parts),
        layout=layout,
        frames=frames,
        defaults=defaults,
    )


def _calling_notes(model: Any, parts: Mapping[str, ModelPart]) -> tuple[str, ...]:
    """Return notes on modules that attend several times in a pass."""
    notes = []
    for part in parts.values():
        count = len(part.modules)
        if count < len(part.layers):
            calls = f"{count} module{'s' * (count > 1)} attend{'s' * (count == 1)} {len(part.layers)} times"
            notes.append(f"{calls} in a pass: layers are numbered as they run")
    if any(module in OVER_LAYERS for module in model.modules()):
        notes.append(
            "each token also attends to what earlier layers gave for it, which is not shown"
        )
    if any(module in WEIGHS_TWICE for module in model.modules()):
        notes.append("its weights are applied to two sets of values, of which the last are shown")
    return tuple(notes)


def _table(model: Any, where: str | Path) -> tuple[int, int]:
    tables = {
        name: part.weight
        for name, part in model.named_modules()
        if isinstance(part, torch.nn.Embedding) and "position" not in name
    }
    try:
        weight = getattr(model.get_input_embeddings(), "weight", None)
        if weight is None:  # a module that also embeds codes of sound (CSM)
            of_text = [table for name, table in tables.items() if "text" in name]
            weight = of_text[0] if len(of_text) == 1 else None
    except NotImplementedError:
        # A class of transformers with several embeddings, none, or one of another name (Dia) raises this.
        alone = len(tables) == 1 and not model.config.is_encoder_decoder
        weight = next(iter(tables.values())) if alone else None
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
        message = f"no table of token embeddings was found in '{model.config.model_type}'"
        raise AttnscopeError(
            message, where=where, hint="attnscope shows attention between the tokens of a text"
        )
    return weight.shape[0], weight.shape[1]


def _decoder_start(config: Any, vocabulary: int, where: str | Path) -> int | None:
    name = "decoder_start_token_id"
    token_id = getattr(config, name, None) if config.is_encoder_decoder else None
    if token_id is None or (type(token_id) is int and 0 <= token_id < vocabulary):
        return token_id
    where = where / "config.json" if isinstance(where, Path) else where
    hint = f"expected an id below {vocabulary}"
    raise AttnscopeError(f"{name} is {str(token_id)[:80]!r}", where=where, hint=hint)


def _model(
    model_class: ModelClass, folder: Folder, dtype: torch.dtype
) -> tuple[Any, dict[str, Any]]:
    tensors = dict(read_tensors(folder, folder.tensors))
    # Parts of a class may refuse what the class as a whole takes (Unlimited OCR).
    for implementation in (NAME, "eager"):
        try:
            with quiet():
                model, info = model_class.model.from_pretrained(
                    None,
                    config=model_class.config,
                    state_dict=tensors,
                    dtype=dtype,
                    attn_implementation=implementation,
                    output_loading_info=True,
                    trust_remote_code=False,
                    local_files_only=True,
                )
            return model.eval(), info
        except Exception as e:
            # A class of transformers may raise anything for a strange value.
            if implementation == NAME and isinstance(e, KeyError) and e.args == (NAME,):
                continue
            raise AttnscopeError(
                f"transformers cannot load it ({first_line(e)})", where=folder.path
            ) from e
    raise AssertionError


def _separate_head(model: Any, folder: Folder) -> None:
    """Give a head that is tied the base's embedding if an adapter replaced it: peft's copy is not tied to the head."""
    if not folder.replaced:
        return
    embedding = model.get_input_embeddings()
    head = model.get_output_embeddings()
    if head is None or head.weight is not embedding.weight:
        return
    if (name := _stored(model, embedding, folder.replaced)) and not _stored(
        model, head, folder.tensors
    ):
        ((_, weight),) = read_tensors(
            replace(folder, tensors=folder.replaced), [name], embedding.weight.dtype
        )
        head.weight = torch.nn.Parameter(weight, requires_grad=False)


def _stored(model: Any, module: Any, names: Iterable[str]) -> str | None:
    """Return the name of a module's weight among `names`, which may lack the prefix or have another."""
    called = next(name for name, other in model.named_modules() if other is module)
    ends = (f".{called}.weight", f".{called.removeprefix(f'{model.base_model_prefix}.')}.weight")
    return next((name for name in names if f".{name}".endswith(ends)), None)


def _silently_missing(model: Any, folder: Folder) -> set[str]:
    """Return missing tensors of which transformers says nothing, because the class of the model allows for it.

    A scale of 1 changes nothing (the layer scales of RADIO, which published files leave out). Files whose modules have
    other names have as many tensors of the allowed ending as the model.
    """
    allowed = re.compile("|".join(model._keys_to_ignore_on_load_missing or ()) or "(?!)")
    endings = {
        name: name[match.start() :]
        for name, tensor in model.state_dict().items()
        if (match := allowed.search(name)) and not bool((tensor == 1).all())
    }
    needed = Counter(endings.values())
    held = {
        ending: sum(f".{stored}".endswith(f".{ending}") for stored in folder.tensors)
        for ending in needed
    }
    return {
        name
        for name, ending in endings.items()
        if held[ending] < needed[ending]
        and not any(f".{stored}".endswith(f".{name}") for stored in folder.tensors)
    }


def _computed(model: Any) -> set[str]:
    """Return computed parameters: sinusoids of positions that equal their module's own."""
    computing = [
        (name, module) for name, module in model.named_modules() if hasattr(module, "create_weight")
    ]
    return {
        f"{name}.weight"
        for name, module in computing
        if torch.equal(module.weight, module.create_weight())
    }


def _part_without_tensors(missing: Sequence[str], within: str, folder: Folder) -> str:
    """Return the first module, the largest if several are nested, of which the folder has no tensor; empty for none."""
    if missing and within and not any(name.startswith(f"{within}.") for name in folder.tensors):
        return within
    held = {part for name in folder.tensors for part in name.split(".")}
    return next((part for name in missing for part in name.split(".")[:2] if part not in held), "")


def _check_loaded(
    model: Any, within: str, info: dict[str, Any], lacking: set[str], folder: Folder
) -> tuple[str, ...]:
    """Refuse weights that transformers would initialise at random; note unused ones."""
    missing = sorted(name for name in lacking if not _AFTER.fullmatch(name))
    named = folder.config.get("architectures")
    written = named[0] if isinstance(named, list) and len(named) == 1 else None
    if part := _part_without_tensors(missing, within, folder):
        message = f"there are no tensors of '{part}', which {type(model).__name__} needs"
        hint = f"attnscope opens a whole {type(model).__name__}"
        if written is not None:
            message = f"holds {written}: {message}"
        raise _LackingTensors(message, where=folder.path, hint=hint)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        hint = "transformers would initialize it randomly; download the checkpoint again"
        if written not in (None, type(model).__name__):
            hint = (
                f"{type(model).__name__} would initialize it randomly; the folder holds {written}"
            )
        raise _LackingTensors(
            f"the tensor '{missing[0]}'{more} is missing", where=folder.path, hint=hint
        )
    if info.get("mismatched_keys"):
        name = str(sorted(map(str, info["mismatched_keys"]))[0])
        raise AttnscopeError(
            f"the tensor {name} has a shape that contradicts config.json", where=folder.path
        )
    if within:
        others = [name for name in folder.tensors if not name.startswith(f"{within}.")]
    else:
        others = []
    unused = sorted([*info["unexpected_keys"], *others])
    return (unused_note(unused),) if unused else ()
