"""What `attnscope run` found, as plain data: tokens, provenance, masks, matrices, top contributors, row statistics."""

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
import numpy as np

from attnscope.findings.arrays import along
from attnscope.findings.attribution import Attribution
from attnscope.findings.given_output import GivenOutput
from attnscope.findings.heads import Heads
from attnscope.findings.images import ImageGrid
from attnscope.findings.merge_pieces import TextWords, WordWeights, merge_weights, words_of
from attnscope.findings.mixing import Mixing
from attnscope.findings.predictions import Prediction
from attnscope.findings.provenance import ModelFindings, TokenizedText
from attnscope.findings.rollout import TokenRollout
from attnscope.findings.sound import Sound
from attnscope.findings.spans import SpanReport

SCHEMA = "attnscope.report/2"


class ChatText(msgspec.Struct, frozen=True):
    """How messages became a text.

    Attributes:
        template: Name of the chat template, and the file that has it.
        messages: Role of each message.
        assistant: Positions of the tokens in the template's `generation` blocks, those that a model is trained on; null
            if the template has no such blocks.
    """

    template: str
    messages: list[str]
    assistant: (
        Annotated[list[int], along("assistant token", positions="token", ascending=True)] | None
    ) = None


class TextReport(TokenizedText, frozen=True):
    """One text.

    Attributes:
        index: Number of the text within the call, from 0.
        queries: Positions of the rows of every matrix.
        keys: Positions of the columns of every matrix.
        heads: What every shown layer and head gave.
        notes: What was left out of this text's report, and which option shows it.
        hidden: Positions of the keys that `--hide` hides from every query.
        predictions: The model's predictions: the next token, or the token at each mask token; empty if the checkpoint
            has no output head, or if not requested.
        generated: For each generated token, the prediction it was chosen from: `position` is that of the token before
            it, and the first of `tokens` is the token itself.
        attribution: Contributions of the model's parts to a logit (`--by logit`); None unless requested.
        padding: How many of the last tokens are padding; 0 unless padding is shown.
        rollouts: Matrices of contributions between tokens over layers (`--measure`); empty unless requested.
        spans: Weights between spans of the text (`--spans`), in every layer and head; None unless requested.
        chat: How messages became the text (`--chat`); None for a text.
        given_output: The given output of attention against the computed one; None unless given with `--qkv`.
        words: The words that rows and columns are tokens of (`--words`); None unless requested.
        position_ids: Position ids that the model was given (`--input-ids`); None for those that it counts itself.
        mixing: What layers without softmax gave; None unless such layers were selected.
        sound: The sound behind the tokens, or behind the keys (`--audio`); None for a text without.
        images: The pictures among the tokens (`--image`), each with the token of every patch; empty for a text without.
        prompt: The text as it was given, of one with pictures: `text` also has their placeholders, and what a chat
            template added. Empty for a vision model, which takes none; None for a text without pictures.
    """

    index: int
    queries: Annotated[list[int], along("query", positions="token", ascending=True)]
    keys: Annotated[list[int], along("key", positions="source", ascending=True)]
    heads: Heads
    notes: list[str] = []
    hidden: Annotated[list[int], along("hidden key", positions="source", ascending=True)] = []
    predictions: list[Prediction] = []
    generated: list[Prediction] = []
    attribution: Attribution | None = None
    rollouts: list[TokenRollout] = []
    padding: int = 0
    spans: SpanReport | None = None
    chat: ChatText | None = None
    given_output: GivenOutput | None = None
    words: TextWords | None = None
    position_ids: list[int] | None = None
    mixing: Mixing | None = None
    images: list[ImageGrid] = []
    prompt: str | None = None
    sound: Sound | None = None

    def axis_lengths(self) -> dict[str, int]:
        """Return the lengths of axes that all heads share."""
        lengths = super().axis_lengths() | {"word": len(self.tokens) - self.padding}
        lengths |= {"query": len(self.queries), "key": len(self.keys)}
        if self.words is not None:
            lengths |= {"query word": len(self.words.queries), "key word": len(self.words.keys)}
        return lengths

    def contradictions(self, lengths: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield contradictions that axes cannot express; see `axes`."""
        if not 0 <= self.padding < max(1, len(self.tokens)):
            yield "padding", f"is {self.padding} of {len(self.tokens)} tokens"
        if any(prediction.position >= lengths["word"] - 1 for prediction in self.generated):
            yield "generated", f"has a position of {lengths['word'] - 1} or more"


def with_words(text: TextReport) -> TextReport:
    """Return a text with the weights between words, of heads that keep weights."""
    if not text.queries or not text.keys:
        message = "--words merges rows and columns, not runs of a map: add --query ROWS"
        return msgspec.structs.replace(text, notes=[*text.notes, message])
    words = words_of(text.tokens, text.sources, text.queries, text.keys)
    positions = text.queries, text.keys
    of_heads = [
        merge_weights(words, head.stages["weights"], positions, head.fully_masked, head.rows.sink)
        for head in text.heads
    ]
    sinks = [of_head.sink for of_head in of_heads if of_head.sink is not None]
    merged = WordWeights(
        np.stack([of_head.weights for of_head in of_heads]), np.stack(sinks) if sinks else None
    )
    return msgspec.structs.replace(
        text, words=words, heads=msgspec.structs.replace(text.heads, words=merged)
    )


class Report(ModelFindings, frozen=True):
    """What `attnscope run` found.

    Attributes:
        texts: One entry per text.
        cuts: What was taken out of attention, as `--cut` takes it: the score of a cut edge is −inf, and the output of a
            cut head 0.
        schema: Name and version of this format.
    """

    texts: Annotated[list[TextReport], along(filled=True)]
    cuts: list[str] = []
    schema: str = SCHEMA
