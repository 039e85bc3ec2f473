"""RunConfig: what a run is asked for, as strict data. Never imports torch."""

from typing import Any, Literal

import msgspec

from attnscope.base.errors import arg
from attnscope.request.chat import Chat, RenderedChat
from attnscope.request.given_ids import GivenIds
from attnscope.request.masks.terms import MaskTerm, Own, ScoreFunction
from attnscope.request.selection import AUTO, MEAN, CutExpression, IndexSelection, PositionSelection
from attnscope.request.spans import SpanRange, SpanRequest


class TextInput(msgspec.Struct, frozen=True):
    """One text to run through the model.

    Attributes:
        pair: The second segment of an encoder's pair.
        context: The text that keys and values come from under cross-attention.
        where: Origin of the text, for errors: `TEXT`, or a file and a line.
        spans: Named ranges of this text; empty if RunConfig.spans divides it.
        chat: Messages that the text is rendered from once the model is known; None for a text.
        rendered: The rendered messages; None before that.
        given: Token ids in place of the text, which is spelled from them once the model is known; None for a text.
    """

    text: str
    pair: str | None = None
    context: str | None = None
    where: str = arg("text")
    spans: tuple[SpanRange, ...] = ()
    chat: Chat | None = None
    rendered: RenderedChat | None = None
    given: GivenIds | None = None

    @property
    def turns(self) -> tuple[SpanRange, ...]:
        """Characters of each message of a chat; characters in no turn are the template's own."""
        return () if self.rendered is None else self.rendered.turns

    @property
    def adds_special(self) -> bool:
        """Whether special tokens are added; a chat template writes its own."""
        return self.rendered is None


class RunConfig(msgspec.Struct, frozen=True):
    """A request to `attnscope run`: a field means what the option of its name does (`request/options.py`).

    Attributes:
        model: None if `config` or `qkv` is given.
        mask: Terms of the mask expression; Own is the model's.
        matrices: Arrays that the expression names, (queries, keys) or (heads, queries, keys), bool, True if allowed.
        what_if: With `qkv` always `same-scores`.
        score_mod: Python function of scaled scores; None for none.
        query: Rows; None for all (or the first `window`).
        key: Columns; None for all (or the first `window`).
        special: Whether special tokens and the first token take part in the ranking.
        window: Length in tokens of the longest text whose matrices are shown whole; also the number of rows and columns
            shown beside those that the user names; None for no limit.
        pool: Size of a pooled map to show; None for a map only if a text is longer than `window`.
        max_memory: Bytes; None for half of the free memory.
        predict: None for only if the checkpoint has an output head and predictions cost little.
        target: Tokens whose logit, or whose difference of logits, to break down; empty for the most probable one, None
            for no breakdown.
        auto_key: Columns by which `auto` ranks heads, if all columns are kept; None for those of `key`.
        picture: The findings are written as an .svg, which is built as a whole before it is written.
        spans: How texts are divided; None for none, unless a text names its own.
        cuts: Heads and edges that are taken out of attention, in every text.
    """

    texts: tuple[TextInput, ...]
    model: str | None = None
    config: str | None = None
    adapter: str | None = None
    tokenizer: str | None = None
    qkv: str | None = None
    mask: tuple[MaskTerm, ...] = (Own(),)
    what_if: Literal["stack", "same-scores"] = "stack"
    hide: PositionSelection | None = None
    score_mod: ScoreFunction | None = None
    layer: IndexSelection = AUTO
    head: IndexSelection = AUTO
    query: PositionSelection | None = None
    key: PositionSelection | None = None
    stages: tuple[str, ...] = ("scores", "masked", "weights")
    top: int = 3
    by: Literal["weight", "value", "projected"] = "weight"
    special: bool = True
    device: str = "auto"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    window: int | None = None
    pool: int | None = None
    truncate: bool = False
    max_memory: int | None = None
    threads: int | None = None
    engine: Literal["native", "transformers"] = "native"
    part: Literal["encoder", "decoder", "cross"] | None = None
    hash_weights: bool = False
    show_padding: bool = False
    measure: str = "weights"
    picture: bool = False
    ignore_key: tuple[str, ...] = ()
    trust_config: bool = False
    auto_key: PositionSelection | None = None
    predict: bool | None = False
    generate: int = 0
    words: bool = False
    least: int = 0
    target: tuple[str, ...] | None = None
    matrices: dict[str, Any] = {}
    spans: SpanRequest | None = None
    cuts: tuple[CutExpression, ...] = ()

    def __post_init__(self) -> None:
        """Apply masks to given queries and keys themselves, and search all heads for ignored tokens."""
        if self.qkv is not None:
            msgspec.structs.force_setattr(self, "what_if", "same-scores")
        if self.least and (self.layer, self.head) == (AUTO, AUTO):
            msgspec.structs.force_setattr(self, "layer", MEAN)
            msgspec.structs.force_setattr(self, "head", MEAN)

    @property
    def own_mask(self) -> bool:
        """Whether the mask is the model's own, no token is hidden, and no score is changed."""
        return self.hide is None and self.score_mod is None and all(isinstance(term, Own) for term in self.mask)
