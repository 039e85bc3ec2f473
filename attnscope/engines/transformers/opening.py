"""Open a checkpoint, or a model that is in memory, for the transformers engine.

The attention of such a model is only known after loading, so opening it imports torch and reads its weights.
"""

import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import sha256
from inspect import signature
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import UsageError, arg
from attnscope.base.model_config import ModelConfig
from attnscope.base.system.escape import as_unicode
from attnscope.checkpoints.chat.files import chat_templates, read_templates
from attnscope.checkpoints.chat.templates import ChatTemplates, templates_of
from attnscope.checkpoints.families.config_reader import drop_keys, ignored_notes
from attnscope.checkpoints.generation_rules import parse_rules, read_rules
from attnscope.checkpoints.locating import locate, open_checkpoint
from attnscope.checkpoints.source import DEFAULT_MODEL, ModelSource, begin_id, training_facts
from attnscope.checkpoints.tokenization.hugging_face import FileTokenizer
from attnscope.checkpoints.tokenization.word_tokenizer import MissingTokenizer
from attnscope.checkpoints.tokenizers import FoundTokenizer, find_tokenizer, open_tokenizer
from attnscope.request.memory import DTYPE_BYTES, memory_bound, require_memory
from attnscope.request.run_config import RunConfig

if TYPE_CHECKING:
    import torch

    from attnscope.engines.transformers.loading import TransformersModel


def open_transformers(run: RunConfig) -> ModelSource:
    """Open and load the checkpoint that a run names, for `--engine transformers`."""
    if run.config is not None:
        hint = f"remove {arg('engine')}"
        raise UsageError("a TOML stack is not a transformers model", where=arg("engine"), hint=hint)
    name = DEFAULT_MODEL if run.model is None else run.model
    located = locate(name)
    folder = open_checkpoint(located.path, run.adapter, located.weights)
    ignored_keys = ignored_notes(run.ignore_key, folder.config)
    kept_config = drop_keys(folder.config, run.ignore_key, str(folder.config_path))
    ignored = tuple(name for name in folder.config if name not in kept_config)
    folder = replace(folder, config=kept_config)
    weights, masks = training_facts(folder)
    # every tensor as it is read, and again in the type that the model runs in
    numbers = sum(prod(tensor.shape) for tensor in folder.tensors.values())
    need = {"tensors": numbers * 4, "weights": numbers * DTYPE_BYTES[run.dtype]}
    require_memory(need, memory_bound(run.max_memory))
    import torch

    from attnscope.engines.transformers.loading import load_model
    from attnscope.engines.transformers.model_class import check_own_code, find_model_class

    # before a missing tokenizer is reported: models that take pictures or sound alone have none
    model_class = find_model_class(folder, run.media_kind)
    trust = check_own_code(folder, model_class, trusted=run.trust_config)
    is_text = model_class.takes == "input_ids" or model_class.config.is_encoder_decoder
    if is_text:
        tokenizer_files = find_tokenizer(folder, run.tokenizer)
    else:
        tokenizer_files = FoundTokenizer(_NO_TOKENIZER, {}, "")
    loaded = load_model(folder, getattr(torch, run.dtype), run.media_kind)
    source = _source(name, loaded, tokenizer_files.tokenizer, folder.fingerprint, run.part)
    source = tokenizer_files.give_to(
        replace(
            source,
            family=str(folder.config["model_type"]),
            weights=weights,
            folder=folder,
            notes=(*located.notes, *trust, *ignored_keys, *folder.notes, *loaded.notes),
            details=(*located.details, *folder.details),
            trained_masks=masks,
            ignored_keys=ignored,
            generation=read_rules(folder.config, folder.path),
            begin=begin_id(folder.config, loaded.vocab_size),
            chat=partial(chat_templates, folder, tokenizer_files),
        )
    )
    return _with_sound(
        _with_media(source, loaded, folder.path), loaded, folder.path, folder.path, run.device
    )


# of models whose tokens are patches of a picture, or frames of a sound
_NO_TOKENIZER = MissingTokenizer(
    UsageError(
        "the model takes no text",
        where=arg("text"),
        hint=f"pass {arg('image', placeholder='FILE')} or {arg('audio', placeholder='FILE')}",
    )
)


@dataclass(frozen=True)
class LiveModel:
    """A model that is in memory already, and somebody else's."""

    model: Any  # the model of transformers, while it is borrowed (see live.borrowed)
    # its tokenizer, or a value of `--tokenizer`; None for the tokenizer beside the model's checkpoint
    tokenizer: Any
    name: str

    def open(self, run: RunConfig) -> ModelSource:
        return open_live(self, run)

    def borrowed(self) -> AbstractContextManager[None]:
        from attnscope.engines.transformers.live import borrowed

        return borrowed(self.model)


def is_pretrained(model: Any) -> bool:
    """Tell whether it is a model of transformers; then transformers has been imported."""
    transformers: Any = sys.modules.get("transformers")
    return transformers is not None and isinstance(model, transformers.PreTrainedModel)


def pretrained_inside(wrapper: Any) -> str | None:
    """Return the name of the first model of transformers inside a module (of peft, torch.compile); None without one."""
    if hasattr(wrapper, "named_modules"):
        named_modules = wrapper.named_modules()
    else:
        named_modules = ()
    return next((name for name, module in named_modules if is_pretrained(module)), None)


def open_live(live: LiveModel, run: RunConfig) -> ModelSource:
    """Open a model that is in memory."""
    from attnscope.engines.transformers.live import fingerprint_live
    from attnscope.engines.transformers.loading import inspect_model
    from attnscope.engines.transformers.output_head import base_of, is_predicting

    body = base_of(live.model)
    loaded = inspect_model(body, live.name)
    is_text = loaded.layout is None and (loaded.frames is None or body.config.is_encoder_decoder)
    tokenizer, digest = _live_tokenizer(live) if is_text else (_NO_TOKENIZER, b"")
    if body is not live.model and is_predicting(live.model):
        loaded = replace(loaded, predicting=live.model)
    source = _source(live.name, loaded, tokenizer, fingerprint_live(live.model, digest), run.part)
    told = getattr(live.model, "generation_config", None) or live.model.config.get_text_config()
    begin = begin_id(live.model.config.to_dict(), loaded.vocab_size)
    chat = partial(_live_templates, live)
    source = replace(source, generation=parse_rules(told.to_dict()), begin=begin, chat=chat)
    path = str(live.model.config.name_or_path or "")
    source = _with_media(source, loaded, Path(path), live.tokenizer)
    processor = None if isinstance(live.tokenizer, str | Path) else live.tokenizer
    return _with_sound(source, loaded, processor or path, None)


def _live_templates(live: LiveModel) -> ChatTemplates:
    """Return the chat templates of the tokenizer that was given, or of the folder that it comes from."""
    if live.tokenizer is not None:
        tokenizer = live.tokenizer
    else:
        tokenizer = str(live.model.config.name_or_path)
    if isinstance(tokenizer, str | Path):
        path = Path(tokenizer)
        return read_templates(path if path.is_dir() else path.parent)
    special_tokens = getattr(tokenizer, "special_tokens_map", {})
    return templates_of(
        getattr(tokenizer, "chat_template", None), special_tokens, type(tokenizer).__name__
    )


def _live_tokenizer(live: LiveModel) -> tuple[FileTokenizer | MissingTokenizer, bytes]:
    """Return the tokenizer, and a digest of its files; without one, the model takes token ids alone."""
    from attnscope.engines.transformers.live import tokenizer_json_of

    tokenizer = live.tokenizer
    if tokenizer is None:
        tokenizer = str(live.model.config.name_or_path or "")
        if not tokenizer or not Path(tokenizer).is_dir():
            hint = "pass tokenizer=, such as AutoTokenizer.from_pretrained(…), or input_ids= in place of the text"
            error = UsageError(
                f"there is no tokenizer for {live.name}", where="tokenizer", hint=hint
            )
            return MissingTokenizer(error), b""
    if isinstance(tokenizer, str | Path):
        opened = open_tokenizer(str(tokenizer), live.model.config.to_dict())
        return opened.tokenizer, bytes.fromhex(opened.digest)
    json_bytes = tokenizer_json_of(tokenizer)
    return FileTokenizer(Path("tokenizer"), json_bytes), sha256(json_bytes).digest()


def _source(
    name: str,
    loaded: "TransformersModel",
    tokenizer: FileTokenizer | MissingTokenizer,
    fingerprint: str,
    part: str | None,
) -> ModelSource:
    """Return a loaded model as a source; its weights are called `live`."""
    from attnscope.engines.transformers.engine import OpenedModel

    chosen_part = loaded.resolve_part(part)

    def load(n_layers: int, dtype: "torch.dtype", device: "torch.device") -> OpenedModel:
        (loaded.predicting or loaded.model).to(device)
        return OpenedModel(replace(loaded, chosen=chosen_part))

    layers = loaded.parts[chosen_part].layers
    start = loaded.decoder_start if chosen_part in ("decoder", "cross") else None
    biases = 0
    if any(part.position_bias for part in loaded.parts.values()):
        # a decoder's is there beside one of zeros for the other half (T5)
        biases = 2 if chosen_part in ("decoder", "cross") else 1
    decoder_start = None
    if start is not None:
        decoder_start = tokenizer.special_token(start)
    return ModelSource(
        name=as_unicode(name),
        family=str(loaded.model.config.model_type),
        config=_config(loaded, chosen_part),
        weights="live",
        fingerprint=fingerprint,
        tokenizer=tokenizer,
        load=load,
        folder=None,
        notes=loaded.notes,
        details=tuple(tokenizer.notes),
        engine="transformers",
        part=chosen_part or None,
        decoder_start=decoder_start,
        no_projection=loaded.parts[chosen_part].no_projection,
        libraries=("tokenizers", "transformers"),
        layerwise=False,
        mask_known=False,
        dense_masks=True,
        dense_biases=biases,
        predicts=loaded.predicts,
        layers=tuple(layers) if len(layers) < loaded.parts[chosen_part].n_layers else None,
        mixing=loaded.parts[chosen_part].mixing,
    )


def _with_media(
    source: ModelSource, loaded: "TransformersModel", path: Path, given: Any = None
) -> ModelSource:
    """Return a model that reads pictures, if it takes them.

    Args:
        path: Folder of its processor.
        given: The processor, or its image processor, if it is in memory.
    """
    from attnscope.engines.transformers.media import (
        PictureReader,
        open_image_processor,
        processor_of,
    )
    from attnscope.engines.transformers.prompts import PromptReader, open_processor

    if loaded.layout is not None:
        if given is None:
            open_images = partial(open_image_processor, path)
        else:
            open_images = partial(processor_of, given)
        return replace(
            source, read_media=PictureReader(loaded.layout, cache(open_images)), only_media="image"
        )
    if "pixel_values" not in signature(loaded.model.forward).parameters:
        return source
    open_prompts = cache(partial(open_processor, path, loaded.model.config))
    return replace(
        source, read_media=PromptReader(loaded.model, open_prompts, source.tokenizer, source.chat)
    )


def _with_sound(
    source: ModelSource,
    loaded: "TransformersModel",
    processor: Any,
    path: Path | None,
    device: str | None = None,
) -> ModelSource:
    """Return a model that reads sound, if it takes it.

    Args:
        processor: Its processor, its feature extractor, or the folder of that.
        path: The folder of its rules for generation; None for those of a model in memory.
        device: See SoundReader.
    """
    if loaded.frames is None:
        return source
    from attnscope.engines.transformers.sound import SoundReader, open_extractor, open_generation

    reader = SoundReader(
        loaded.model,
        loaded.predicting,
        source.part or "",
        loaded.frames,
        source.tokenizer,
        cache(partial(open_extractor, processor)),
        cache(partial(open_generation, loaded.predicting, path)),
        device,
    )
    return replace(source, read_media=reader, only_media="audio", decoder_start=None)


def _config(loaded: "TransformersModel", chosen_part: str) -> ModelConfig:
    """Return the sizes that the rest of the program needs; the mathematics is left to transformers."""
    part = loaded.parts[chosen_part]
    # as in RoBERTa: positions are counted from the row after that of padding, and padding is not counted
    tables = (module for name, module in loaded.model.named_modules() if "position" in name)
    padding_ids = (getattr(module, "padding_idx", None) for module in tables)
    padding_id = next((int(token_id) for token_id in padding_ids if token_id is not None), None)
    return ModelConfig(
        padding_id=padding_id,
        position_offset=0 if padding_id is None else padding_id + 1,
        vocab_size=loaded.vocab_size,
        d_model=loaded.d_model,
        n_layers=part.n_layers,
        n_heads=part.n_heads,
        n_kv_heads=part.n_kv_heads,
        d_head=part.d_head,
        d_value=part.d_value,
        max_positions=loaded.max_positions,
        scale=part.scale,
        n_segments=loaded.n_segments,
        cross_attention=chosen_part == "cross",
        layer_kinds=part.layer_kinds,
    )
