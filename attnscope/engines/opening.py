"""Open the checkpoint or TOML stack of a run with its engine.

The native engine's models are opened without importing torch.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from attnscope.base.errors import UsageError, arg
from attnscope.base.model_config import ModelConfig
from attnscope.base.system.escape import as_unicode
from attnscope.checkpoints.chat.files import chat_templates
from attnscope.checkpoints.families import (
    FAMILIES,
    NATIVE_LAYOUT,
    check_counts,
    native_family,
    open_config,
)
from attnscope.checkpoints.families.lm_head import separate_head
from attnscope.checkpoints.families.names import find_prefix, unused_tensors
from attnscope.checkpoints.folder import CONFIG, open_weights, read_config_file, unused_note
from attnscope.checkpoints.generation_rules import read_rules
from attnscope.checkpoints.locating import locate, open_checkpoint
from attnscope.checkpoints.samples import find_config
from attnscope.checkpoints.source import DEFAULT_MODEL, ModelSource, begin_id, training_facts
from attnscope.checkpoints.stack_file import StackDescription, read_stack
from attnscope.checkpoints.tokenization.hugging_face import FileTokenizer, load_tokenizer
from attnscope.checkpoints.tokenization.word_tokenizer import WordTokenizer
from attnscope.checkpoints.tokenizers import find_tokenizer
from attnscope.findings.predictions import PredictionKind
from attnscope.request.masks.expression import parse_mask
from attnscope.request.run_config import RunConfig, TextInput

if TYPE_CHECKING:
    import torch

    from attnscope.engines.native import NativeModel


def open_source(run: RunConfig, texts: Iterable[TextInput]) -> ModelSource:
    """Open the model of a run with its engine; a tokenizer of words takes its vocabulary from the texts."""
    if run.qkv is not None:
        from attnscope.engines.arrays.making import from_file
        from attnscope.engines.arrays.opening import open_arrays

        return open_arrays(from_file(Path(run.qkv)), run)
    if run.media_kind is not None and run.config is None:
        if run.engine == "native":
            hint = f"remove {arg('engine')}"
            raise UsageError("takes texts alone", where=arg("engine", "native"), hint=hint)
        from attnscope.engines.transformers.opening import open_transformers

        return open_transformers(run)
    foreign = _foreign_type(run) if run.engine == "auto" else None
    if run.engine != "transformers" and (foreign is None or find_spec("transformers") is None):
        return open_native(run, texts)
    from attnscope.engines.transformers.opening import open_transformers

    if foreign is None:
        return open_transformers(run)
    source = open_transformers(run)
    what = "this kind of" if foreign in FAMILIES else "the architecture"
    note = f"transformers runs it: attnscope itself does not have {what} {as_unicode(foreign)}"
    return replace(source, notes=(note, *source.notes))


def _foreign_type(run: RunConfig) -> str | None:
    """Return the model_type of a folder if no native family has it; None if one has, or the folder names none."""
    if run.config is not None:
        return None
    path = locate(DEFAULT_MODEL if run.model is None else run.model).path / CONFIG
    if not path.is_file():
        return None
    raw = read_config_file(path)[1]
    model_type = raw.get("model_type")
    if isinstance(model_type, str) and native_family(raw) is None:
        return model_type
    return None


def open_native(run: RunConfig, texts: Iterable[TextInput]) -> ModelSource:
    """Open the model of a run with the native engine."""
    if run.part is not None:
        message = "only works for a model with an encoder and a decoder"
        raise UsageError(message, where=arg("part"), hint="remove it")
    if run.config is not None:
        return _from_stack(read_stack(find_config(run.config)), run, texts)
    name = DEFAULT_MODEL if run.model is None else run.model
    located = locate(name)
    folder = open_checkpoint(located.path, run.adapter, located.weights)
    where = str(folder.config_path)
    shapes = {name: tensor.shape for name, tensor in folder.tensors.items()}
    described = open_config(
        folder.config, where, shapes, ignore=run.ignore_key, trusted=run.trust_config
    )
    family = described.family
    config = described.config
    folder = replace(folder, config=described.raw)
    if run.scale is not None:
        config = structs.replace(config, scale=run.scale)
    if folder.replaced:
        config, matrices = separate_head(family, config, folder.tensors, folder.replaced, where)
        added = {
            name: replace(folder.replaced[embedding], name=name)
            for name, embedding in matrices.items()
        }
        folder = replace(folder, tensors=folder.tensors | added)
    check_counts(family, config, shapes, where)

    def load(n_layers: int, dtype: "torch.dtype", device: "torch.device") -> "NativeModel":
        from attnscope.engines.native import NativeModel
        from attnscope.model.checkpoint import load_stack

        return NativeModel(load_stack(family, config, folder, n_layers, dtype, device))

    leftover = unused_tensors(family, find_prefix(family, folder.tensors, where), folder.tensors)
    unused = [name for name, noted in leftover.items() if noted]
    trained, masks = training_facts(folder)
    tokenizer = find_tokenizer(folder, run.tokenizer)
    source = ModelSource(
        name=as_unicode(name),
        family=family.name,
        config=config,
        predicts=_predicts(config),
        generation=read_rules(described.raw, folder.path),
        begin=begin_id(described.raw, config.vocab_size),
        weights=trained,
        fingerprint=folder.fingerprint,
        tokenizer=tokenizer.tokenizer,
        load=load,
        folder=folder,
        notes=(
            *located.notes,
            *described.notes,
            *folder.notes,
            *([unused_note(unused)] if unused else []),
        ),
        details=(*located.details, *folder.details),
        trained_masks=masks,
        libraries=("tokenizers",),
        ignored_keys=described.ignored_keys,
    )
    return replace(tokenizer.give_to(source), chat=partial(chat_templates, folder, tokenizer))


def _predicts(config: ModelConfig) -> PredictionKind | None:
    """Return the target of an output head: a model that sees no later tokens predicts the next one."""
    if config.head is None or not config.head.predicts:
        return None
    left_to_right = any(term.left_to_right for term in parse_mask(config.mask))
    return "next" if left_to_right else "masked"


def _from_stack(
    described: StackDescription, run: RunConfig, texts: Iterable[TextInput]
) -> ModelSource:
    file = described.file
    tokenizer = _tokenizer(described, texts)
    # A text without words is refused when it is tokenized.
    config = described.config(max(1, tokenizer.vocab_size))
    if run.scale is not None:
        config = structs.replace(config, scale=run.scale)
    weights = None
    if file.weights is not None:
        weights = open_weights(described.path.parent / file.weights)

    def load(n_layers: int, dtype: "torch.dtype", device: "torch.device") -> "NativeModel":
        from attnscope.engines.native import NativeModel
        from attnscope.model.checkpoint import load_stack
        from attnscope.model.randomize import make_random

        if weights is None:
            words = tokenizer.words if isinstance(tokenizer, WordTokenizer) else None
            return NativeModel(make_random(config, file.seed, n_layers, dtype, device, words))
        return NativeModel(load_stack(NATIVE_LAYOUT, config, weights, n_layers, dtype, device))

    digest = sha256(
        described.data + (weights.fingerprint.encode() if weights else b"")
    ).hexdigest()[:16]
    libraries: tuple[str, ...] = ()
    if file.tokenizer != "words":
        libraries = ("tokenizers",)
    return ModelSource(
        name=as_unicode(str(run.config)),
        family="config",
        config=config,
        predicts=_predicts(config),
        weights="random" if weights is None or file.random_weights else "trained",
        fingerprint=digest,
        tokenizer=tokenizer,
        load=load,
        folder=weights,
        details=tuple(tokenizer.notes),
        libraries=libraries,
    )


def _tokenizer(
    described: StackDescription, texts: Iterable[TextInput]
) -> FileTokenizer | WordTokenizer:
    file = described.file
    if file.tokenizer == "words":
        return WordTokenizer(
            (t for text in texts for t in (text.text, text.pair, text.context) if t),
            punctuation=file.punctuation,
        )
    return load_tokenizer(described.path.parent / file.tokenizer)
