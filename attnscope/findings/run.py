"""What `attnscope run` found, as plain data: tokens, provenance, masks, matrices, top contributors, row statistics."""

from collections.abc import Iterator, Mapping
from typing import Annotated, NamedTuple

import msgspec

from attnscope.findings.arrays import Floats, Matrix, Places, along
from attnscope.findings.attribution import Attribution
from attnscope.findings.given_output import GivenOutput
from attnscope.findings.merge_pieces import TextWords, WordWeights, merge_weights, words_of
from attnscope.findings.predictions import Prediction
from attnscope.findings.provenance import ModelFindings, TokenizedText
from attnscope.findings.rollout import TokenRollout
from attnscope.findings.row_statistics import Means, Rows
from attnscope.findings.spans import SpanReport
from attnscope.findings.tokens import LeftOut

SCHEMA = "attnscope.report/1"
STAGES = ("scores", "scaled", "masked", "weights", "output")


class Top(msgspec.Struct, frozen=True):
    """The strongest sources of every shown query: arrays of one shape (queries, rank), strongest first.

    If a query has fewer sources than ranks, `keys` is −1 and the numbers are null.

    Attributes:
        by: The measure that ranks them: `weight`, `value` or `projected`.
        keys: Position of the source.
        weight: α_ij, the attention weight.
        value: α_ij·‖v_j‖.
        projected: α_ij·‖v_j W_O^h‖ (Kobayashi et al., 2020); None unless requested.
        left_out: Tokens that are excluded from the ranking.
    """

    by: str
    keys: Annotated[Places, along("query", "rank", positions="source", or_none=True)]
    weight: Annotated[Matrix, along("query", "rank")]
    value: Annotated[Matrix, along("query", "rank")]
    projected: Annotated[Matrix, along("query", "rank")] | None = None
    left_out: list[LeftOut] = []

    def contradictions(self, _lengths: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield contradictions that axes cannot express; see `axes`."""
        if self.by not in ("weight", "value", "projected") or getattr(self, self.by) is None:
            yield "by", f"is {self.by[:40]!r}, which top does not have"


class HeadRef(NamedTuple):
    """A layer and head, each a number or `mean`; as text `L1H2`, `L1 mean`, `mean H2` or `mean`."""

    layer: int | str
    head: int | str

    def __str__(self) -> str:
        """Return the name of the head."""
        layer = "mean" if self.layer == "mean" else f"L{self.layer}"
        if self.head == "mean":
            return layer if layer == "mean" else f"{layer} mean"
        return f"mean H{self.head}" if layer == "mean" else f"{layer}H{self.head}"


class Pooled(msgspec.Struct, frozen=True):
    """A map that replaces a matrix of weights: whole rows, whole columns, no weight lost.

    A run is a sequence of adjacent tokens: run i starts at token `queries[i]` and ends before `queries[i + 1]`.

    Attributes:
        queries: Start of every run of queries, then the number of tokens.
        keys: Start of every run of keys, then the number of tokens.
        weights: Average weight of the run's queries on the run's keys together, (runs of queries, runs of keys). A row
            sums to 1, or to 1 minus the sink's share; it is null if no query of the run may attend to anything.
    """

    queries: Annotated[list[int], along("query run", runs="token")]
    keys: Annotated[list[int], along("key run", runs="source")]
    weights: Annotated[Matrix, along("query run", "key run")]


class HeadReport(msgspec.Struct, frozen=True):
    """One layer and head over one text.

    Attributes:
        layer: Number from 0, or `mean` over the selected layers.
        head: Number from 0, or `mean` over the selected heads.
        chosen: Why it is shown, if the user did not name it, such as `chosen automatically: most weight on other words
            (0.71)`.
        scale: Factor from `scores` to `scaled`.
        softcap: c of c·tanh(x/c), applied to the scaled scores; None if the model has none.
        bias: Name of the position bias that `scaled` contains, such as `alibi`; None if there is none.
        stages: Stage name to matrix of shape (queries, keys); `output` is (queries, value width). In `masked`,
            −inf in memory and null in JSON mean "not allowed".
        fully_masked: Positions of the queries that may attend to nothing; their weights and output are null.
        top: Strongest sources per query.
        rows: Statistics per query.
        pooled: The whole matrix of weights as a map of fixed size; None if neither requested nor needed.
        columns: Total weight that every source receives from all queries; None without a map.
        means: Averages over every query of the text; None without a map.
        received: Weight that every source receives from the shown queries other than itself, divided by what it would
            receive if each of them spread its weight evenly over the keys that it may attend to; null for a source that
            none of them may attend to. None unless requested (`--least`).
        words: The weights between words (`--words`); None unless requested.
        score_mod: Name of the Python function that changed `scaled` last; None if there is none.
    """

    layer: int | str
    head: int | str
    chosen: str | None
    scale: float
    softcap: float | None
    bias: str | None
    stages: Annotated[dict[str, Matrix], along("query", "key", names=STAGES, members=(("output", ("query", "width")),))]
    fully_masked: Annotated[list[int], along(positions="token")]
    top: Top
    rows: Rows
    pooled: Pooled | None = None
    columns: Annotated[Floats, along("source")] | None = None
    means: Means | None = None
    received: Annotated[Floats, along("source")] | None = None
    words: WordWeights | None = None
    score_mod: str | None = None

    @property
    def ref(self) -> HeadRef:
        """Its layer and head."""
        return HeadRef(self.layer, self.head)

    def contradictions(self, lengths: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield contradictions that axes cannot express; see `axes`."""
        for name in ("layer", "head"):
            number = getattr(self, name)
            if number != "mean" and not (isinstance(number, int) and number >= 0):
                yield name, f"is {number!r}, neither a number from 0 nor 'mean'"
        if self.pooled is None and not lengths["query"]:
            yield "pooled", "is missing, and there are no queries"


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
    assistant: Annotated[list[int], along("assistant token", positions="token", ascending=True)] | None = None


class TextReport(TokenizedText, frozen=True):
    """One text.

    Attributes:
        index: Number of the text within the call, from 0.
        queries: Positions of the rows of every matrix.
        keys: Positions of the columns of every matrix.
        heads: One entry per shown layer and head.
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
    """

    index: int
    queries: Annotated[list[int], along("query", positions="token", ascending=True)]
    keys: Annotated[list[int], along("key", positions="source", ascending=True)]
    heads: list[HeadReport]
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

    def axis_lengths(self) -> dict[str, int]:
        """Return the lengths of axes that all heads share."""
        lengths = super().axis_lengths() | {"word": len(self.tokens) - self.padding}
        lengths |= {"query": len(self.queries), "key": len(self.keys)}
        if self.words is not None:
            lengths |= {"query word": len(self.words.queries), "key word": len(self.words.keys)}
        return lengths | ({"rank": self.heads[0].top.keys.shape[1]} if self.heads else {})

    def contradictions(self, lengths: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield contradictions that axes cannot express; see `axes`."""
        if not 0 <= self.padding < max(1, len(self.tokens)):
            yield "padding", f"is {self.padding} of {len(self.tokens)} tokens"
        if any(prediction.position >= lengths["word"] - 1 for prediction in self.generated):
            yield "generated", f"has a position of {lengths['word'] - 1} or more"
        for number, head in enumerate(self.heads):
            if head.stages.keys() != self.heads[0].stages.keys():
                yield f"heads[{number}].stages", "are not those of heads[0]"


def with_words(text: TextReport) -> TextReport:
    """Return a text with the weights between words, of heads that keep weights."""
    if not text.queries or not text.keys:
        message = "--words merges rows and columns, not runs of a map: add --query ROWS"
        return msgspec.structs.replace(text, notes=[*text.notes, message])
    words, places = words_of(text.tokens, text.sources, text.queries, text.keys), (text.queries, text.keys)
    heads = [
        msgspec.structs.replace(
            head, words=merge_weights(words, head.stages["weights"], places, head.fully_masked, head.rows.sink)
        )
        for head in text.heads
    ]
    return msgspec.structs.replace(text, words=words, heads=heads)


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
