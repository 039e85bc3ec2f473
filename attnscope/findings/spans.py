"""Spans of a text and the weight between them, as plain data."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec
import numpy as np

from attnscope.findings.arrays import (
    Floats,
    Matrices,
    Matrix,
    Tensor4,
    UnitMatrices,
    UnitVectors,
    along,
)

# Own shares are kept of this number of the reading span's tokens: memory does not grow with its length.
KEPT_ROWS = 1024
# Name of the span of the tokens that a model generates.
ANSWER = "answer"
SpanKind = Literal["text", "answer", "first", "special", "template", "pair", "rest"]


class CharacterRange(msgspec.Struct, frozen=True):
    """Characters of a text.

    Attributes:
        start: First character.
        end: End, exclusive.
        segment: 0, or 1 for the second text of a pair.
    """

    start: int
    end: int
    segment: int = 0


class TextSpans(msgspec.Struct, frozen=True):
    """A text divided into spans: each of its tokens belongs to exactly one.

    Attributes:
        names: Names of the spans: `(first)`, then those of the text in the order of their first tokens, then
            `(special)`, `(template)`, `(pair)` and `(rest)`; of these only such that have tokens.
        kinds: What each span is: `text`; the `answer`, which the model generated, a chat ends with, or a range of that
            name at the text's end; the `first` token; `special` tokens; tokens of a chat's `template`; the second text
            of a `pair`; or the `rest`.
        of_token: Number of each token's span.
        characters: Ranges of characters of each span; empty if its tokens cover none.
    """

    names: Annotated[list[str], along("span", filled=True)]
    kinds: Annotated[list[SpanKind], along("span")]
    of_token: Annotated[list[int], along("word", positions="span")]
    characters: list[list[CharacterRange]]

    def number(self, name: str) -> int | None:
        """Return a span's number by its name, ignoring case and a colon; None if there is none.

        `answer` is also the last turn of a chat if that is the assistant's.
        """
        if name in self.names:
            return self.names.index(name)
        wanted = _plain(name)
        numbers = [
            index for index, span_name in enumerate(self.names) if _plain(span_name) == wanted
        ]
        if not numbers and wanted == ANSWER:
            numbers = [index for index, span_kind in enumerate(self.kinds) if span_kind == "answer"]
        return numbers[0] if len(numbers) == 1 else None

    @property
    def sizes(self) -> list[int]:
        """Number of tokens of each span."""
        sizes: list[int] = np.bincount(self.of_token, minlength=len(self.names)).tolist()
        return sizes

    @property
    def outside(self) -> list[bool]:
        """Whether each span is something else than a part of the text or the answer, such as special tokens."""
        return [span_kind not in ("text", "answer") for span_kind in self.kinds]

    def tokens(self, span_index: int) -> list[int]:
        """Return the positions of a span's tokens."""
        return [position for position, span in enumerate(self.of_token) if span == span_index]


def _plain(name: str) -> str:
    return " ".join(name.casefold().split()).rstrip(":").rstrip()


class SpanArrays(msgspec.Struct, frozen=True, omit_defaults=True):
    """The weight between the spans of a text in a dump; `divided` has their names.

    Attributes:
        weights: Average weight of the query span's tokens on the key span's tokens together, (unit, query span, key
            span); null in the rows of a span that may attend to nothing.
        sink: Average weight that the tokens of a span give to the head's sink, (unit, query span); absent if no layer
            has sinks.
    """

    weights: Annotated[UnitMatrices, along("unit", "span", "key span")]
    sink: Annotated[UnitVectors, along("unit", "span")] | None = None


class SpanReport(msgspec.Struct, frozen=True):
    """The weight that the spans of a text give each other, in every layer and head of the model.

    Attributes:
        division: How the text was divided, such as `sentences` or the marks.
        text: The spans.
        query: Number of the span whose reading is shown: the one that the user named, or the last of the text.
        weights: Average weight of the query span's tokens on the key span's tokens together, (layer, head, query span,
            key span). A row sums to 1, or to 1 minus the sink's share; it is null if no token of the query span may
            attend to anything.
        sink: Average weight that the tokens of a span give to the head's sink, (layer, head, query span); None if no
            layer has sinks.
        received: Average weight of the tokens of the span `query` on each token, over all layers and heads.
        rows: Positions of the tokens of the span `query`; of more than 1,024, the last.
        shares: Average weight, over all layers and heads, of each of these tokens on every span, (row, span).
        selected: Layer and head of each head that the user selected; None for all.
        generated: The same of the token before each generated one, from which it was predicted, (generated, span);
            null if none were generated.
    """

    division: str
    text: TextSpans
    query: Annotated[int, along(positions="span")]
    weights: Annotated[Tensor4, along("model layer", "model head", "span", "key span")]
    sink: Annotated[Matrices, along("model layer", "model head", "span")] | None
    received: Annotated[Floats, along("word")]
    rows: Annotated[list[int], along("span row", positions="word", ascending=True)]
    shares: Annotated[Matrix, along("span row", "key span")]
    generated: Annotated[Matrix, along("generated", "key span")] | None = None
    selected: list[tuple[int, int]] | None = None

    def contradictions(self, lengths: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield contradictions that axes cannot express; see `axes`."""
        if lengths.get("span") != lengths.get("key span"):
            yield "weights", "has not as many key spans as query spans"
