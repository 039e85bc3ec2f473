"""Open a checkpoint folder or a TOML stack for the native engine, without importing torch."""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.checkpoints.folder import open_folder, open_weights
from attnscope.checkpoints.samples import find_config, find_model
from attnscope.checkpoints.source import DEFAULT_MODEL, ModelSource, training_facts
from attnscope.checkpoints.stack_file import StackDescription, read_stack
from attnscope.config import TextInput
from attnscope.families import OWN, check_counts, family_for, read_config
from attnscope.system.escape import as_unicode
from attnscope.tokenization.hugging_face import FileTokenizer, load_tokenizer
from attnscope.tokenization.words import WordTokenizer

if TYPE_CHECKING:
    import torch

    from attnscope.model.stack import Stack


def open_native(model: str | None, config: str | None, texts: Iterable[TextInput]) -> ModelSource:
    """Open what `--model` or `--config` names.

    Args:
        model: Folder or shipped sample; None for the default where `config` is None, too.
        config: TOML file or shipped config.
        texts: What a tokenizer made from words is made of.

    Raises:
        AttnscopeError: It cannot be read, or is not supported.
    """
    if config is not None:
        return _from_stack(read_stack(find_config(config)), config, texts)
    return _from_folder(find_model(model or DEFAULT_MODEL), model or DEFAULT_MODEL)


def _from_folder(path: Path, name: str) -> ModelSource:
    folder = open_folder(path)
    where = str(folder.path / "config.json")
    family = family_for(folder.config, where)
    config = read_config(family, folder.config, where)
    check_counts(family, config, {name: tensor.shape for name, tensor in folder.tensors.items()}, where)
    tokenizer = load_tokenizer(folder.path / "tokenizer.json")

    def load(n_layers: int, dtype: "torch.dtype", device: "torch.device") -> "Stack":
        from attnscope.model.checkpoint import load_stack as load_checkpoint

        return load_checkpoint(family, config, folder, n_layers, dtype, device)

    trained, masks = training_facts(folder)
    notes = (*folder.notes, *tokenizer.notes)
    return ModelSource(
        as_unicode(name), family.name, config, trained, folder.fingerprint, tokenizer, load, folder, notes, masks
    )


def _from_stack(described: StackDescription, name: str, texts: Iterable[TextInput]) -> ModelSource:
    file = described.file
    tokenizer = _tokenizer(described, texts)
    config = described.config(max(1, tokenizer.vocab_size))  # a text without words is refused when it is tokenized
    weights = None if file.weights is None else open_weights(described.path.parent / file.weights)

    def load(n_layers: int, dtype: "torch.dtype", device: "torch.device") -> "Stack":
        from attnscope.model.checkpoint import load_stack as load_checkpoint
        from attnscope.model.randomize import make_random

        if weights is None:
            return make_random(config, file.seed, n_layers, dtype, device)
        return load_checkpoint(OWN, config, weights, n_layers, dtype, device)

    digest = sha256(described.data + (weights.fingerprint.encode() if weights else b"")).hexdigest()[:16]
    return ModelSource(
        name=as_unicode(name),
        family="config",
        config=config,
        weights="random" if weights is None or file.random_weights else "trained",
        fingerprint=digest,
        tokenizer=tokenizer,
        load=load,
        folder=weights,
        notes=tuple(tokenizer.notes),
    )


def _tokenizer(described: StackDescription, texts: Iterable[TextInput]) -> FileTokenizer | WordTokenizer:
    file = described.file
    if file.tokenizer == "words":
        return WordTokenizer(
            (t for text in texts for t in (text.text, text.pair, text.context) if t), punctuation=file.punctuation
        )
    return load_tokenizer(described.path.parent / file.tokenizer)
