"""What `attnscope run` found, as plain data: tokens, provenance, masks, matrices, top contributors, row statistics."""

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
import numpy as np

from attnscope.findings.arrays import Array, along
from attnscope.findings.attribution import Attribution
from attnscope.findings.given_output import GivenOutput
from attnscope.findings.heads import Heads
from attnscope.findings.hints import Hint
from attnscope.findings.images import ImageGrid
from attnscope.findings.merge_pieces import TextWords, WordWeights, merge_weights, words_of
from attnscope.findings.mixing import Mixing
from attnscope.findings.predictions import Prediction
from attnscope.findings.provenance import ModelFindings, TokenizedText
from attnscope.findings.rollout import TokenRollout
from attnscope.findings.sound import Sound
from attnscope.findings.spans import SpanReport

SCHEMA = "attnscope.report/2"
_ROUNDING = 0.01  # by which a row of 16-bit weights may miss 1


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
        message = Hint.ROWS_FOR_WORDS.after("--words merges rows and columns, not runs of a map")
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

    def contradictions(self, _lengths: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield weights that no softmax gives; see `axes`."""
        given = self.provenance.weights == "given"
        for index, text in enumerate(self.texts):
            for where, fault in _impossible_weights(text, given=given):
                yield f"texts[{index}].heads.{where}", fault


def _impossible_weights(text: TextReport, *, given: bool) -> Iterator[tuple[str, str]]:
    """Yield rows of weights that no softmax gives, as a file may have that was edited.

    Given weights may lack a row in some of the heads, which means of heads then have a part of.
    """
    units = text.heads.units
    sink = None if text.heads.rows is None else text.heads.rows.sink
    weights = text.heads.stages.get("weights")
    if weights is not None:
        whole = not given and len(text.keys) == len(text.sources)
        for unit, row, fault in _impossible_rows(weights, sink, whole=whole):
            yield f"stages.weights of {units[unit]}, query {text.queries[row]}:", fault
    pooled = text.heads.pooled
    if pooled is not None:
        # the sink's share of a run is not kept
        whole = not given and sink is None
        for unit, row, fault in _impossible_rows(pooled.weights, None, whole=whole):
            yield f"pooled.weights of {units[unit]}, query {pooled.queries[row]}:", fault


def _impossible_rows(
    weights: Array, sink: Array | None, *, whole: bool
) -> Iterator[tuple[int, int, str]]:
    """Yield the unit and the number of every row that a softmax cannot give, and why; a row may be null.

    Args:
        weights: (units, rows, columns).
        sink: What the sinks have of every row, (units, rows); None without.
        whole: Whether each row has all of its columns, and sums to 1 with its sink.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        sums = weights.sum(-1)
        if sink is not None:
            sums = sums + sink
        least = weights.min(-1, initial=0)
    wrong = (least < 0) | (sums > 1 + _ROUNDING)
    if whole:
        wrong |= sums < 1 - _ROUNDING
    # a comparison with null is false
    unknown = np.isnan(sums)
    wrong[unknown] |= ~np.isnan(weights[unknown]).all(-1)
    expected = f"{'' if whole else 'at most '}1{' with their sink' if sink is not None else ''}"
    for unit, row in np.argwhere(wrong).tolist():
        if least[unit, row] < 0:
            fault = f"{least[unit, row]:.6g}, expected 0 or more"
        elif unknown[unit, row]:
            fault = "null in some columns, expected in all or none"
        else:
            fault = f"a sum of {sums[unit, row]:.6g}, expected {expected}"
        yield unit, row, fault
