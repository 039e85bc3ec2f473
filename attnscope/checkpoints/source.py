"""A model that is described and checked, but not loaded; its texts as tokens.

Everything that can be refused without torch is refused here, before torch is imported.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.base.layer_kinds import MixingLayer
from attnscope.base.model_config import ModelConfig
from attnscope.checkpoints.chat.templates import ChatTemplates
from attnscope.checkpoints.folder import Folder
from attnscope.checkpoints.generation_rules import GenerationRules
from attnscope.checkpoints.tokenization.given import GivenTokens
from attnscope.checkpoints.tokenization.hugging_face import FileTokenizer
from attnscope.checkpoints.tokenization.word_tokenizer import MissingTokenizer, WordTokenizer
from attnscope.findings.predictions import PredictionKind
from attnscope.findings.tokens import Token
from attnscope.request.masks.expression import parse_stored_mask
from attnscope.request.media import MediaKind

DEFAULT_MODEL = "riverbank"


@dataclass(frozen=True)
class ModelSource:
    """A model that has been described, checked as far as that goes without torch, and not loaded."""

    name: str
    family: str
    config: ModelConfig
    weights: str  # `trained` (from a checkpoint that does not say otherwise), `random`, or `live`
    fingerprint: str
    tokenizer: FileTokenizer | WordTokenizer | MissingTokenizer | GivenTokens
    # loads the first n layers: called with n, a torch.dtype and a torch.device
    load: Callable[..., Any]
    folder: Folder | None
    # remarks for the user that affect how the numbers are read, such as what was ignored when the model was opened
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()  # how it was found and read, as a matter of course
    trained_masks: tuple[str, ...] = ()  # masks that it was trained under, if more than its own
    engine: str = "native"
    # `encoder`, `decoder` or `cross` of a model with two halves; None elsewhere
    part: str | None = None
    decoder_start: Token | None = None
    no_projection: str = ""  # why `projected` contributions cannot be computed; empty if they can
    has_values: bool = True
    stages: tuple[str, ...] | None = None  # stages that can be shown; None for all of them
    runs: bool = True  # there are layers to run; False if their queries and keys were given
    # layers whose attention can be shown, ascending; None for all
    layers: tuple[int, ...] | None = None
    # layers with a path that has no softmax, whose matrix between tokens can be shown
    mixing: Mapping[int, MixingLayer] = field(default_factory=dict)
    # compares given outputs of attention with computed ones, for an engine and a batch; None if none were given
    compare_outputs: Callable[..., Any] | None = None
    # origin of a text to the first position whose query is known, if queries of a text's last tokens alone were given
    first_queries: Mapping[str, int] = field(default_factory=dict)
    dtype: str | None = None
    # libraries that tokenize its texts and run it, other than torch
    libraries: tuple[str, ...] = ()
    # whether its weights can be read layer by layer, because they are not in memory yet
    layerwise: bool = True
    # whether the config determines each layer's mask; otherwise only running the model does
    mask_known: bool = True
    dense_masks: bool = False  # running it makes masks of the size (texts, tokens, tokens)
    # how many biases of the size (heads, tokens, tokens) it holds at once while it runs
    dense_biases: int = 0
    # tokenizer that the user named instead of the model's own; None if none
    tokenizer_name: str | None = None
    # name and size in bytes of the files of a tokenizer that `folder` does not list
    tokenizer_files: dict[str, int] = field(default_factory=dict)
    # keys of its config.json that no code reads or the user wanted ignored
    ignored_keys: tuple[str, ...] = ()
    # its head's target, `next` or `masked` token; None without a head
    predicts: PredictionKind | None = None
    generation: GenerationRules = field(default_factory=GenerationRules)
    # id of the token that its config names as the begin of a text; None if it names none
    begin: int | None = None
    chat: Callable[[], ChatTemplates] = ChatTemplates
    # reads a text with pictures or sounds, a TextInput, to a MediaText; None for a model that takes characters alone
    read_media: Callable[..., Any] | None = None
    # the kind of media that it takes in place of characters; None for none
    only_media: MediaKind | None = None

    @property
    def shown_layers(self) -> Sequence[int]:
        """Layers whose attention can be shown, ascending."""
        if self.layers is None:
            return range(self.config.n_layers)
        return self.layers

    def require_model(self, what: str) -> None:
        """Refuse a purpose that has to run layers."""
        if not self.runs:
            hint = f"use {arg('model')} instead"
            message = f"{what} needs a model, and only {'weights' if self.stages else 'queries and keys'} are given"
            raise UsageError(message, where=arg("qkv"), hint=hint)

    @property
    def needs_context(self) -> bool:
        """A second text goes into the model."""
        return self.config.cross_attention or self.part == "decoder"

    @property
    def can_stream(self) -> bool:
        """Its layers can be read one by one, as often as they are needed."""
        return self.layerwise and self.folder is not None

    @property
    def copied_elements(self) -> int:
        """Numbers in the largest tensor that holds all experts of a layer, whose parts are copied as it is read."""
        tensors = (
            self.folder.tensors.values() if self.can_stream and self.folder is not None else ()
        )
        return max((prod(tensor.shape) for tensor in tensors if len(tensor.shape) == 3), default=0)


def begin_id(config: Mapping[str, Any], vocab_size: int) -> int | None:
    """Return the id of the token that a config names as the begin of a text; None if it names none that exists."""
    token_id = config.get("bos_token_id")
    if type(token_id) is int and 0 <= token_id < vocab_size:
        return token_id
    return None


def training_facts(folder: Folder) -> tuple[str, tuple[str, ...]]:
    """Return what config.json says under attnscope's key: `trained` or `random`, and the masks trained under."""
    where = f"{folder.config_path}: attnscope"
    training_facts = folder.config.get("attnscope", {})
    if not isinstance(training_facts, dict) or not set(training_facts) <= {
        "random_weights",
        "trained_masks",
    }:
        raise AttnscopeError(
            "is not understood", where=where, hint="expected random_weights and trained_masks"
        )
    random = training_facts.get("random_weights", False)
    masks = training_facts.get("trained_masks", [])
    if (
        not isinstance(random, bool)
        or not isinstance(masks, list)
        or not all(isinstance(m, str) for m in masks)
    ):
        hint = "expected random_weights true or false, trained_masks a list of masks"
        raise AttnscopeError("has a value of the wrong type", where=where, hint=hint)
    for mask in masks:
        parse_stored_mask(mask, f"{where}.trained_masks")
    return "random" if random else "trained", tuple(masks)


def tokenize(
    source: ModelSource,
    text: str,
    pair: str | None,
    where: str,
    *,
    truncate: bool,
    special: bool = True,
) -> tuple[list[Token], list[str]]:
    """Return the tokens of one text, checked against the model's limits, and warnings about what was changed.

    Special tokens are added, unless a rendered chat has its own.
    """
    tokens = source.tokenizer.encode(text, pair, where=where, special=special)
    warnings = list[str]()
    c = source.config
    if source.decoder_start is not None and where != arg("context"):
        # as in training: the start, then the text, without the special token that ends it
        tokens = [source.decoder_start, *(tokens[:-1] if _closes(tokens[-1]) else tokens)]
    check_tokens(source, tokens, where, truncate=truncate)
    if c.max_positions is not None and len(tokens) > c.max_positions:
        warnings.append(f"truncated from {len(tokens)} to {c.max_positions} tokens")
        tokens = _shortened(tokens, c.max_positions)
    if all([token.special for token in tokens]):
        warnings.append("the text has only special tokens")
    return tokens, warnings


def _shortened(tokens: list[Token], size: int) -> list[Token]:
    """Cut a text, or of a pair the longer one, at its end, as `truncation=True` of transformers; special tokens stay."""
    lengths = [0, 0]
    for token in tokens:
        lengths[token.segment] += not _closes(token)
    room = size - (len(tokens) - sum(lengths))
    shorter = lengths.index(min(lengths))
    lengths[shorter] = min(lengths[shorter], room // 2)
    lengths[1 - shorter] = room - lengths[shorter]
    kept = []
    for token in tokens:
        if not _closes(token):
            lengths[token.segment] -= 1
        if _closes(token) or lengths[token.segment] >= 0:
            kept.append(token)
    return kept[:size]


def check_tokens(
    source: ModelSource,
    tokens: list[Token],
    where: str,
    *,
    truncate: bool = False,
    given: bool = False,
) -> None:
    """Refuse tokens that the model's tables have no row for, and without `truncate` more than it has positions.

    `given`: no tokenizer chose the ids, which the user gave.
    """
    c = source.config
    # a model without a segment table takes no types
    if c.n_segments and max([token.type_id for token in tokens]) >= c.n_segments:
        worst = max(tokens, key=lambda token: token.type_id)
        rows = "1 row, for a single text" if c.n_segments == 1 else f"{c.n_segments} rows"
        message = f"token '{worst.text}' has type id {worst.type_id}, but the model's segment table has {rows}"
        paired = any(token.segment for token in tokens)
        hint = "use the model's own tokenizer"
        if given:
            hint = f"use type ids below {c.n_segments}"
        elif paired:
            where = arg("pair")
            hint = f"remove {arg('pair')}, or use the model's own tokenizer"
        raise AttnscopeError(f"{message} (type_vocab_size)", where=where, hint=hint)
    if max([token.id for token in tokens]) >= c.vocab_size:
        worst = max(tokens, key=lambda token: token.id)
        message = (
            f"token '{worst.piece}' has id {worst.id}, but the embedding has {c.vocab_size} rows"
        )
        hint = "the tokenizer belongs to another model"
        if given:
            hint = f"use ids below {c.vocab_size}"
        raise AttnscopeError(message, where=where, hint=hint)
    if c.max_positions is not None and len(tokens) > c.max_positions and not truncate:
        message = f"{len(tokens)} tokens, but the model takes at most {c.max_positions}"
        raise AttnscopeError(
            message, where=where, hint=f"pass {arg('truncate', True)} to truncate the text"
        )


def _closes(token: Token) -> bool:
    """Tell whether the tokenizer added it; special tokens that the user wrote or the model made are text."""
    return token.special and token.start is None and not token.made


def closing_token(tokens: Sequence[Token]) -> Token | None:
    """Return the special token that the tokenizer ended a text with; None if it did not."""
    if len(tokens) > 1 and _closes(tokens[-1]):
        return tokens[-1]
    return None


def count_closing(tokens: Sequence[Token]) -> int:
    """Count the special tokens at the end of a text that its tokenizer added."""
    closing = 0
    while closing < len(tokens) and _closes(tokens[-1 - closing]):
        closing += 1
    return closing
