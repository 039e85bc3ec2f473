"""A folder's or TOML file's name in; something that turns texts into tokens and can load its stack out.

Everything that can be refused without torch is refused here, before torch is imported.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.config import ModelConfig, TextInput
from attnscope.errors import AttnscopeError, UsageError
from attnscope.families import OWN, check_counts, family_for, read_config
from attnscope.filetokenizer import FileTokenizer, load_tokenizer
from attnscope.folder import Folder, open_folder, open_weights
from attnscope.report import Token
from attnscope.selection import parse_mask
from attnscope.shipped import find_config, find_model
from attnscope.stackfile import Described, read_stack
from attnscope.tokens import WordTokenizer
from attnscope.visible import as_unicode

if TYPE_CHECKING:
    import torch

    from attnscope.hosted import Guest
    from attnscope.model.stack import Stack

DEFAULT_MODEL = "riverbank"


@dataclass(frozen=True)
class Source:
    """A model that has been described, checked as far as that goes without torch, and not loaded.

    Attributes:
        name: What the user named.
        family: `model_type`, or `config`.
        config: The model.
        weights: `trained` where they come from a checkpoint that does not say otherwise, or `random`.
        fingerprint: See report.Provenance.
        tokenizer: Text to tokens.
        load: Builds the first n layers with this dtype on this device.
        folder: The checkpoint; None where there is none.
        notes: What was switched off or ignored while opening it.
        trained_masks: Masks that it was trained under, where that is more than its own.
        engine: `native` or `transformers`.
        part: `encoder`, `decoder` or `cross` of a model with two halves; None elsewhere.
        start: What a decoder's text begins with; None where nothing is put before it.
        projects: The output projection is known, which `projected` contributions need.
    """

    name: str
    family: str
    config: ModelConfig
    weights: str
    fingerprint: str
    tokenizer: FileTokenizer | WordTokenizer
    load: "Callable[[int, torch.dtype, torch.device], Stack | Guest]"
    folder: Folder | None
    notes: tuple[str, ...] = ()
    trained_masks: tuple[str, ...] = ()
    engine: str = "native"
    part: str | None = None
    start: Token | None = None
    projects: bool = True

    @property
    def needs_context(self) -> bool:
        """A second text goes into the model."""
        return self.config.cross_attention or self.part == "decoder"

    @property
    def rereads(self) -> bool:
        """Its layers can be read one by one, as often as they are needed."""
        return self.engine == "native" and self.folder is not None

    @property
    def copied(self) -> int:
        """Numbers in the largest tensor that holds all experts of a layer, whose parts are copied as it is read."""
        tensors = self.folder.tensors.values() if self.rereads and self.folder is not None else ()
        return max((prod(tensor.shape) for tensor in tensors if len(tensor.shape) == 3), default=0)


def open_source(model: str | None, config: str | None, texts: Iterable[TextInput]) -> Source:
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


def _from_folder(path: Path, name: str) -> Source:
    folder = open_folder(path)
    where = str(folder.path / "config.json")
    family = family_for(folder.config, where)
    config = read_config(family, folder.config, where)
    check_counts(family, config, {name: tensor.shape for name, tensor in folder.tensors.items()}, where)
    tokenizer = load_tokenizer(folder.path / "tokenizer.json")

    def load(n_layers: int, dtype: "torch.dtype", device: "torch.device") -> "Stack":
        from attnscope.model.checkpoint import load as load_checkpoint

        return load_checkpoint(family, config, folder, n_layers, dtype, device)

    trained, masks = card(folder)
    notes = (*folder.notes, *tokenizer.notes)
    return Source(
        as_unicode(name), family.name, config, trained, folder.fingerprint, tokenizer, load, folder, notes, masks
    )


def card(folder: Folder) -> tuple[str, tuple[str, ...]]:
    """What config.json says of its training under our own key: `trained` or `random`, and the masks trained under."""
    where = f"{folder.path / 'config.json'}: attnscope"
    card = folder.config.get("attnscope", {})
    if not isinstance(card, dict) or not set(card) <= {"random_weights", "trained_masks"}:
        raise AttnscopeError("is not understood", where=where, hint="expected random_weights and trained_masks")
    random, masks = card.get("random_weights", False), card.get("trained_masks", [])
    if not isinstance(random, bool) or not isinstance(masks, list) or not all(isinstance(m, str) for m in masks):
        hint = "expected random_weights true or false, trained_masks a list of masks"
        raise AttnscopeError("holds a value of the wrong type", where=where, hint=hint)
    for mask in masks:
        try:
            parse_mask(mask, f"{where}.trained_masks")
        except UsageError as e:
            raise AttnscopeError(e.found, where=e.where, hint=e.hint) from e
    return "random" if random else "trained", tuple(masks)


def _from_stack(described: Described, name: str, texts: Iterable[TextInput]) -> Source:
    file = described.file
    tokenizer = _tokenizer(described, texts)
    config = described.config(max(1, tokenizer.vocab_size))  # a text without words is refused when it is tokenized
    weights = None if file.weights is None else open_weights(described.path.parent / file.weights)

    def load(n_layers: int, dtype: "torch.dtype", device: "torch.device") -> "Stack":
        from attnscope.model.checkpoint import load as load_checkpoint
        from attnscope.model.randomize import make_random

        if weights is None:
            return make_random(config, file.seed, n_layers, dtype, device)
        return load_checkpoint(OWN, config, weights, n_layers, dtype, device)

    digest = sha256(described.data + (weights.fingerprint.encode() if weights else b"")).hexdigest()[:16]
    return Source(
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


def _tokenizer(described: Described, texts: Iterable[TextInput]) -> FileTokenizer | WordTokenizer:
    file = described.file
    if file.tokenizer == "words":
        return WordTokenizer(
            (t for text in texts for t in (text.text, text.pair, text.context) if t), punctuation=file.punctuation
        )
    return load_tokenizer(described.path.parent / file.tokenizer)


def tokenize(
    source: Source, text: str, pair: str | None, where: str, *, truncate: bool
) -> tuple[list[Token], list[str]]:
    """The tokens of one text, checked against what the model can take, and notes on what was done to them.

    Raises:
        AttnscopeError: There are none, an id is beyond the embedding, or there are more than the model has positions.
    """
    tokens, notes = source.tokenizer.encode(text, pair, where=where), list[str]()
    c = source.config
    if source.start is not None and where != "--context":
        tokens = shifted(tokens, source.start)
        notes.append(f"a decoder's text: '{source.start.piece}' goes before it, and no end of sentence after it")
    _check_types(tokens, c.n_segments, where)
    worst = max(tokens, key=lambda t: t.id)
    if worst.id >= c.vocab_size:
        found = f"token '{worst.piece}' has id {worst.id}, the embedding has {c.vocab_size} rows"
        raise AttnscopeError(found, where=where, hint="tokenizer and weights are not of one model")
    if c.max_positions is not None and len(tokens) > c.max_positions:
        if not truncate:
            found = f"{len(tokens)} tokens, the model takes {c.max_positions}"
            raise AttnscopeError(found, where=where, hint="--truncate cuts the text")
        notes.append(f"cut from {len(tokens)} to {c.max_positions} tokens")
        tokens = _cut(tokens, c.max_positions)
    if all(t.special for t in tokens):
        notes.append("the text has special tokens only")
    return tokens, notes


def _check_types(tokens: list[Token], n_segments: int, where: str) -> None:
    """Refuse a type id that the model's segment table has no row for; a model without such a table takes none."""
    worst = max(tokens, key=lambda t: t.type_id)
    if n_segments and worst.type_id >= n_segments:
        rows = "1 row" if n_segments == 1 else f"{n_segments} rows"
        found = f"token '{worst.text}' has type id {worst.type_id}, the model's segment table has {rows}"
        paired = any(token.segment for token in tokens)
        hint = "leave --pair out, or take the model's own tokenizer" if paired else "take the model's own tokenizer"
        raise AttnscopeError(f"{found} (type_vocab_size)", where=where, hint=hint)


def shifted(tokens: list[Token], start: Token) -> list[Token]:
    """A decoder's input as in training: the start, then the text, without the special token that ends it."""
    return [start, *(tokens[:-1] if _closes(tokens[-1]) else tokens)]


def _closes(token: Token) -> bool:
    """It was added by the tokenizer; a special token that the user wrote is part of the text."""
    return token.special and token.start is None


def _cut(tokens: list[Token], longest: int) -> list[Token]:
    """The first tokens, with the special tokens that the tokenizer closed the text with still closing it."""
    closing = 0
    while closing < min(len(tokens), longest) and _closes(tokens[-1 - closing]):
        closing += 1
    return tokens[: longest - closing] + (tokens[-closing:] if closing else [])
