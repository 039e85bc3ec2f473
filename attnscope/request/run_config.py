"""What a run is asked for: RunConfig, as strict data, and the arguments of `attnscope.inspect` that become one.

Never imports torch.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict

import msgspec

from attnscope.base.errors import arg
from attnscope.request.arguments import By, Dtype, EngineWord, PartWord, RankBy, WhatIf
from attnscope.request.chat import Chat, RenderedChat
from attnscope.request.given_ids import GivenIds
from attnscope.request.masks.terms import MaskTerm, Own, ScoreFunction
from attnscope.request.media import MediaFile, MediaKind, MediaText
from attnscope.request.selection import AUTO, MEAN, CutExpression, IndexSelection, PositionSelection
from attnscope.request.spans import SpanRange, SpanRequest

if TYPE_CHECKING:
    import numpy as np


class TextInput(msgspec.Struct, frozen=True):
    """One text to run through the model."""

    text: str
    pair: str | None = None  # the second segment of an encoder's pair
    context: str | None = None  # the text that keys and values come from under cross-attention
    where: str = arg("text")  # origin of the text, for errors: `TEXT`, or a file and a line
    # named ranges of this text; empty if RunConfig.spans divides it
    spans: tuple[SpanRange, ...] = ()
    # messages that the text is rendered from once the model is known; None for a text
    chat: Chat | None = None
    rendered: RenderedChat | None = None  # the rendered messages; None before that
    # token ids in place of the text, which is spelled from them once the model is known; None for a text
    given: GivenIds | None = None
    media: tuple[MediaFile, ...] = ()  # pictures and sounds beside, or in place of, the text
    # the text with its media as the model takes them; None before that
    read: MediaText | None = None

    @property
    def turns(self) -> tuple[SpanRange, ...]:
        """Characters of each message of a chat; characters in no turn are the template's own."""
        if self.rendered is None:
            return ()
        return self.rendered.turns

    @property
    def adds_special(self) -> bool:
        """Whether special tokens are added; a chat template writes its own."""
        return self.rendered is None


class RunConfig(msgspec.Struct, frozen=True):
    """A request to `attnscope run`: a field means what the option of its name does (`request/options.py`)."""

    texts: tuple[TextInput, ...]
    model: str | None = None  # None if `config` or `qkv` is given
    config: str | None = None
    adapter: str | None = None
    tokenizer: str | None = None
    qkv: str | None = None
    mask: tuple[MaskTerm, ...] = (Own(),)  # terms of the mask expression; Own is the model's
    what_if: WhatIf = "stack"  # with `qkv` always `same-scores`
    scale: float | None = None  # factor of scores in place of the model's own
    hide: PositionSelection | None = None
    score_mod: ScoreFunction | None = None  # Python function of scaled scores; None for none
    layer: IndexSelection = AUTO
    head: IndexSelection = AUTO
    query: PositionSelection | None = None  # rows; None for all (or the first `window`)
    key: PositionSelection | None = None  # columns; None for all (or the first `window`)
    stages: tuple[str, ...] = ("scores", "masked", "weights")
    top: int = 3
    by: By = "weight"
    special: bool = True  # whether special tokens and the first token take part in the ranking
    device: str = "auto"
    dtype: Dtype = "float32"
    # length in tokens of the longest text whose matrices are shown whole; also the number of rows and columns shown
    # beside those that the user names; None for no limit
    window: int | None = None
    # size of a pooled map to show; None for a map only if a text is longer than `window`
    pool: int | None = None
    truncate: bool = False
    max_memory: int | None = None  # bytes; None for half of the free memory
    threads: int | None = None
    engine: EngineWord = "auto"
    part: PartWord | None = None
    hash_weights: bool = False
    show_padding: bool = False
    measure: str = "weights"
    # the findings are written as an .svg, which is built as a whole before it is written
    picture: bool = False
    ignore_key: tuple[str, ...] = ()
    trust_config: bool = False
    # rows and columns by which `auto` ranks heads, if all of them are kept; None for those of `query` and `key`
    auto_query: PositionSelection | None = None
    auto_key: PositionSelection | None = None
    # None for only if the checkpoint has an output head and predictions cost little
    predict: bool | None = False
    generate: int = 0
    words: bool = False
    least: int = 0
    # tokens whose logit, or whose difference of logits, to break down; empty for the most probable one, None for no
    # breakdown
    target: tuple[str, ...] | None = None
    # arrays that the expression names, (queries, keys) or (heads, queries, keys), bool, True if allowed
    matrices: dict[str, Any] = {}
    # how texts are divided; None for none, unless a text names its own
    spans: SpanRequest | None = None
    # heads and edges that are taken out of attention, in every text
    cuts: tuple[CutExpression, ...] = ()

    def __post_init__(self) -> None:
        """Apply masks to given queries and keys themselves, and search all heads for ignored tokens."""
        if self.qkv is not None:
            msgspec.structs.force_setattr(self, "what_if", "same-scores")
        if self.least and (self.layer, self.head) == (AUTO, AUTO):
            msgspec.structs.force_setattr(self, "layer", MEAN)
            msgspec.structs.force_setattr(self, "head", MEAN)

    @property
    def media_kind(self) -> MediaKind | None:
        """What the texts have besides characters; None for nothing."""
        in_chat = any(text.chat is not None and text.chat.pictures for text in self.texts)
        return next(
            (file.kind for text in self.texts for file in text.media), "image" if in_chat else None
        )

    @property
    def score_functions(self) -> tuple[ScoreFunction, ...]:
        """The functions that change scaled scores, in order."""
        return () if self.score_mod is None else (self.score_mod,)

    @property
    def own_mask(self) -> bool:
        """Whether the mask is the model's own, no token is hidden, and no score is changed."""
        return (
            self.hide is None
            and not self.score_functions
            and all(isinstance(term, Own) for term in self.mask)
        )


IndexWord = Literal["auto", "all", "mean"]
Indices = int | slice | range | Sequence[int] | IndexWord | str | Sequence[str]
Tokens = int | str | slice | range | Sequence[int | str | slice]
RolloutWord = Literal[
    "weights", "rollout", "rollout-no-residual", "value-zeroing", "value-zeroing-rollout", "mixing"
]
Spans = str | Mapping[str, Any] | Sequence[str | tuple[str, str] | Mapping[str, Any]]
Stage = Literal["scores", "scaled", "masked", "weights", "output"]
Progress = Callable[[str, int, int], None]


class PretrainedModel(Protocol):
    """What is known here of a model of `transformers`."""

    @property
    def config(self) -> Any:
        """Its config."""

    @property
    def base_model(self) -> Any:
        """The model without heads for tasks."""


class TorchDtype(Protocol):
    """What is known here of a torch.dtype."""

    @property
    def is_floating_point(self) -> bool:
        """Its numbers are real."""


class TorchDevice(Protocol):
    """What is known here of a torch.device."""

    @property
    def type(self) -> str:
        """Such as `cpu`."""


class TorchTensor(Protocol):
    """What is known here of a torch.Tensor."""

    def detach(self) -> Any:
        """Return it without its gradient."""

    def cpu(self) -> Any:
        """Return it in the memory of the CPU."""


class ReusableModel(Protocol):
    """What is known here of what `attnscope.open_model` returns."""

    def close(self) -> None:
        """Release the model."""


Model = str | os.PathLike[str] | PretrainedModel | ReusableModel
Messages = Sequence[Mapping[str, Any]] | Mapping[str, Any]
if TYPE_CHECKING:
    BoolMatrix = np.ndarray[Any, np.dtype[np.bool_]]
    FloatMatrix = np.ndarray[Any, np.dtype[np.floating[Any]]]
    Mask = str | BoolMatrix | FloatMatrix | TorchTensor | Callable[..., Any]


class MachineArguments(TypedDict, total=False):
    """How a model runs, the same on every side of a comparison.

    Attributes:
        tokenizer: A tokenizer that replaces the model's own: the path of a tokenizer.json, of a vocabulary file, or of
            a folder with one; for a model of transformers also a tokenizer object.
        device: Device to run on: `auto`, `cpu`, `cuda`, `cuda:1`, or a torch.device.
        part: Attention of an encoder-decoder to show (`encoder`, `decoder` or `cross`).
        max_memory: Limit on memory in bytes (or `"1.5G"`); None for half of the free memory.
        threads: Number of CPU threads; None for OMP_NUM_THREADS, or the CPUs available to this process.
        hash_weights: Record a SHA-256 hash of all weights in the report.
        ignore_key: Key of config.json to ignore although it would be refused, or several.
        trust_config: Accept a config.json that refers to its own model code. The code is not run, so the real model may
            differ.
    """

    tokenizer: object
    device: str | TorchDevice
    part: PartWord | None
    max_memory: int | str | None
    threads: int | None
    hash_weights: bool
    ignore_key: str | Sequence[str] | None
    trust_config: bool


class OpenArguments(MachineArguments, total=False):
    """How a model is opened and run; see MachineArguments for the rest.

    Attributes:
        config: A stack described in TOML: a file, or the name of a bundled one.
        adapter: Folder of a LoRA adapter to add to the model's weights.
        dtype: Data type of the model (a name or a torch.dtype); scores and softmax are always float32.
        engine: What runs the model: `native` (attnscope's own code), `transformers`, or `auto`: `native` if it has the
            architecture.
        qkv: Queries, keys and values that take the place of a model: a file, or what `from_qkv` returned. The text is
            left out then.
    """

    qkv: object
    config: str | os.PathLike[str] | None
    adapter: str | os.PathLike[str] | None
    dtype: Dtype | TorchDtype
    engine: EngineWord


class NamedModel(TypedDict, total=False):
    """The model of a function that opens one: a folder, the name of a bundled sample, or a model in memory."""

    model: Model | None


class CallArguments(TypedDict, total=False):
    """Arguments of every call about its text.

    Attributes:
        messages: Messages of a chat in place of the text, rendered with the model's own chat template: a list of dicts
            with role and content, or a dict with `messages` and what else `apply_chat_template` takes, such as
            `documents`; or a list of such chats.
        image: A picture that belongs to the text, or that a vision model sees in place of a text, or several: a path, a
            PIL image, or a uint8 array (height, width, 3). For several texts, one or a list for each.
        audio: A sound that the model hears: the path of a .wav, .flac or .ogg file.
        context: The text that provides keys and values in cross-attention; for several texts, one for each or one for
            all.
        spans: How to divide the text into named spans, which `query` and `key` may then name: `sentences`, `lines`,
            `paragraphs`, `words`, `turns`, marks (`"Doc 1:,Question:"`) or a file; names with their ranges of
            characters, `{"doc": (0, 120)}`; or texts, or pairs (name, text), that joined are the text, which may then
            be left out. For several texts, a list with the ranges of each.
        truncate: Truncate texts that exceed the model's limit, with a note.
        progress: Function that receives the current step, how much of it is done, and its total.
    """

    messages: Messages | Sequence[Messages] | None
    image: object
    audio: str | os.PathLike[str] | None
    context: str | Sequence[str | None] | None
    spans: Spans | None
    truncate: bool
    progress: Progress | None


class PairArguments(CallArguments, total=False):
    """Arguments about both segments of a text, and about scores; see CallArguments, too.

    Attributes:
        pair: The second segment, for an encoder; for several texts, one for each.
        what_if: What a different mask applies to: the whole `stack`, or only the softmax over the `same-scores`.
        scale: A factor of the scores of every layer in place of the model's own; `none` for 1.
        score_mod: A function of a scaled score and of text, head, query and key, as the `score_mod` of FlexAttention,
            that returns the score to use instead; None for none.
    """

    pair: str | Sequence[str | None] | None
    what_if: WhatIf
    scale: float | Literal["none"] | None
    score_mod: Callable[..., Any] | None


class TokenArguments(TypedDict, total=False):
    """Which tokens a call is about.

    Attributes:
        mask: `own` (the model's), `causal`, `bidirectional`, `window:N`, `prefix:N`, `block:N`, `sink:N`,
            `docs:12,30,41`, `docs:eos`, a file with a boolean matrix, or several of them joined by `+` (and), `|` (or)
            and parentheses; a boolean array or tensor, (queries, keys) or (heads, queries, keys), True where allowed,
            or an additive one of floats, 0 where allowed and −inf elsewhere, also as (1, heads, queries, keys);
            or a function of text, head, query and key, as the `mask_mod` of FlexAttention, evaluated in blocks.
        hide: Tokens to hide from every query, in addition to the mask: positions, slices, and words of the text; None
            for none.
        query: Rows: positions, slices, and words or phrases of the text; None for all.
        key: Columns, in the same form.
    """

    mask: "Mask"
    hide: Tokens | None
    query: Tokens | None
    key: Tokens | None


class HeadArguments(TypedDict, total=False):
    """Which layers and heads a call is about.

    Attributes:
        layer: Layers from 0: a number, several, a slice or range, `auto`, `all` or `mean`; -1 is the last. Or heads by
            their labels, as for `head`.
        head: Heads, in the same form, or `"L2H3,L0H1"`; `auto` takes the one with the most weight from `query` on
            `key`; without `key`, the one with the most content weight: on other words, beyond what their distance
            explains and what all rows give to the same word.
    """

    layer: Indices
    head: Indices


class KeepArguments(HeadArguments, total=False):
    """What to keep of every head.

    Attributes:
        stages: Stages whose matrices to keep.
        top: Number of contributors per token.
        special: Include special tokens and the first token in the ranking.
        pool: Size N of an N × N map of runs of tokens that replaces the matrices; None for no map.
        words: Also merge the weights into weights between words, summed over a word's keys and averaged over its
            queries.
        least: If above 0, also find out which tokens receive little weight from others; over all layers and heads,
            unless `layer` or `head` selects some.
        measure: `weights` for the attention of heads; or how much each token contributes to every token over `layer`:
            `rollout`, `rollout-no-residual`, `value-zeroing` or `value-zeroing-rollout`; or `mixing`, the matrices of
            layers without softmax, which are shown anyway if `layer` names only such layers.
    """

    stages: Stage | Sequence[Stage]
    top: int
    special: bool
    pool: int | None
    words: bool
    least: int
    measure: RolloutWord


class ModelInspectArguments(PairArguments, TokenArguments, KeepArguments, total=False):
    """What `inspect` computes and keeps; see PairArguments, TokenArguments and KeepArguments, too.

    Attributes:
        input_ids: Token ids in place of the text, (tokens,) or (texts, tokens): lists, arrays or tensors, as a model of
            `transformers` is given them.
        attention_mask: 1 for tokens and 0 for padding, which may be on either side; None for no padding.
        position_ids: Position of every token; None for what `transformers` would count.
        token_type_ids: Segment of every token, for encoders; None for 0.
        by: Measure that ranks contributors: the weight α, `value` α·‖v‖, or `projected` α·‖v W‖; `logit` ranks by
            weight, and also computes how much each part of the model adds to the logit of `target`.
        predict: Keep the model's predictions; None for only if the checkpoint has an output head and predictions cost
            little.
        generate: Number of tokens by which to continue each text, each the most probable one.
        target: The token whose logit to break down, such as `" store"` with its leading space, or two for the
            difference; implies `by="logit"`, whose default is the most probable token.
        show_padding: With several texts, also keep the rows and columns of padding.
        cut: Heads and edges that the model runs without, as for `ablate`: `L5H1`, `"L5H1: it←animal"`, or several.
    """

    input_ids: object
    attention_mask: object
    position_ids: object
    token_type_ids: object
    by: RankBy
    predict: bool | None
    generate: int
    target: str | Sequence[str] | None
    show_padding: bool
    cut: str | Sequence[str] | None


class InspectArguments(OpenArguments, ModelInspectArguments, NamedModel, total=False):
    """All that `attnscope.inspect` takes in addition to the text."""
