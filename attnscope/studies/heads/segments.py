"""Measure what heads do with parts of texts: which sentences later ones read, and how one segment follows another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnscope.base.errors import UsageError, arg
from attnscope.findings.arrays import Array
from attnscope.findings.head_roles import APART, FEWEST_SPANS
from attnscope.findings.spans import TextSpans
from attnscope.findings.tokens import Token
from attnscope.model.batch import Batch
from attnscope.model.recorders import AlignmentRecorder, SpanRecorder
from attnscope.request.dividing import divide
from attnscope.request.run_config import RunConfig
from attnscope.request.spans import SpanRequest
from attnscope.run.analysis.spans import span_tokens
from attnscope.run.text_plan import divide_text

if TYPE_CHECKING:
    from attnscope.engines.protocol import Engine
    from attnscope.model.tile import Recorder
    from attnscope.studies.heads.measure import Sums

# Names of the sums that roles of spans and of segments are computed from; the last of each is a number of texts.
_RECEIVER = "receiver", "receivers"
_ALIGNMENT = (
    "alignment",
    "alignment-share",
    "alignment-sharpness",
    "alignment-monotonicity",
    "alignments",
)


@dataclass(frozen=True)
class Segments:
    """Two segments of a text."""

    read: list[int]  # positions of the first segment's tokens
    reading: list[int]  # positions of the second segment's tokens


def segments_of(tokens: Sequence[Token], spans: TextSpans | None) -> Segments | None:
    """Return the two texts of a pair, or the two spans of a text with exactly two; None for neither."""
    words = [position for position, token in enumerate(tokens) if position and not token.special]
    if any(tokens[position].segment for position in words):
        sides = [
            [position for position in words if tokens[position].segment == side] for side in (0, 1)
        ]
    else:
        text_spans = [] if spans is None else _text_spans(spans)
        if spans is None or len(text_spans) != 2:
            sides = []
        else:
            sides = [spans.tokens(index) for index in text_spans]
    if len(sides) == 2 and len(sides[0]) > 1 and len(sides[1]) > 1:
        return Segments(*sides)
    return None


def _text_spans(spans: TextSpans) -> list[int]:
    return [index for index, outside in enumerate(spans.outside) if not outside]


@dataclass(frozen=True)
class TextParts:
    """Spans and segments of the texts, one entry for each."""

    spans: list[TextSpans]  # empty if `receiver` is not measured
    segments: list[Segments]  # empty if `alignment` is not measured

    @property
    def sums(self) -> tuple[str, ...]:
        """Names of the sums that they need."""
        return (*(_RECEIVER if self.spans else ()), *(_ALIGNMENT if self.segments else ()))


def divided_texts(
    run: RunConfig, roles: Sequence[str] | None, texts: Sequence[list[Token]]
) -> TextParts:
    """Divide texts for the roles that need spans: `receiver` takes sentences unless the user divides them otherwise."""
    divided = [
        divide_text(run, text, tokens) for text, tokens in zip(run.texts, texts, strict=True)
    ]
    segments = [segments_of(tokens, spans) for tokens, spans in zip(texts, divided, strict=True)]
    if "receiver" in (roles or ()) and all(spans is None for spans in divided):
        request = SpanRequest("sentences")
        divided = [
            divide(text, tokens, request, truncated=True)
            for text, tokens in zip(run.texts, texts, strict=True)
        ]
    aligned = any(name.startswith("alignment") for name in roles or ())
    known_segments = [sides for sides in segments if sides is not None]
    if aligned and len(known_segments) < len(texts):
        hint = f"add {arg('pair')}, or divide the text into two with {arg('spans')}"
        raise UsageError("alignment needs two segments", where=arg("role", "alignment"), hint=hint)
    known_spans = [spans for spans in divided if spans is not None]
    reads_spans = roles is None or "receiver" in roles
    if not reads_spans or len(known_spans) < len(texts):
        known_spans = []
    reads_segments = roles is None or aligned
    if not reads_segments or len(known_segments) < len(texts):
        known_segments = []
    return TextParts(known_spans, known_segments)


class SegmentPass:
    """The recorders of one batch of texts that have spans, or two segments."""

    def __init__(
        self, batch: Batch, numbers: Sequence[int], parts: TextParts, engine: "Engine"
    ) -> None:
        import torch

        self._numbers = numbers
        self._spans = [parts.spans[index] for index in numbers] if parts.spans else []
        self._segments = [parts.segments[index] for index in numbers] if parts.segments else []
        self._receivers: dict[int, SpanRecorder] = {}
        self._alignments: dict[int, AlignmentRecorder] = {}
        heads = range(engine.sizes[1])
        real = batch.tokens.real
        if self._spans:
            tokens = span_tokens(batch, self._spans)
            self._receivers = {layer: SpanRecorder(heads, tokens) for layer in engine.layers}
        if self._segments:
            rows = torch.zeros_like(real)
            keys = torch.zeros_like(real)
            for text, sides in enumerate(self._segments):
                rows[text, sides.reading] = True
                keys[text, sides.read] = True
            self._alignments = {
                layer: AlignmentRecorder(heads, rows, keys) for layer in engine.layers
            }
        self.recorders: dict[int, list[Recorder]] = {layer: [] for layer in engine.layers}
        for of_layers in (self._receivers, self._alignments):
            for layer, recorder in of_layers.items():
                self.recorders[layer].append(recorder)

    def add_to(self, sums: "Sums") -> None:
        """Add the recorded sums."""
        for layer, receiver in self._receivers.items():
            weights = receiver.compute().cpu().double().numpy()
            for text, spans in enumerate(self._spans):
                kurtosis = receiver_kurtosis(weights[text], spans)
                if kurtosis is not None:
                    is_known = np.isfinite(kurtosis)
                    indices = [self._numbers[text]]
                    sums.add("receiver", layer, indices, np.where(is_known, kurtosis, 0.0)[None])
                    sums.add("receivers", layer, indices, is_known.astype(np.float64)[None])
        for layer, alignment in self._alignments.items():
            moments = alignment.sums.cpu().double().numpy()
            for text, sides in enumerate(self._segments):
                for name, value in alignment_parts(moments[text], len(sides.read)).items():
                    sums.add(name, layer, [self._numbers[text]], value[None])


def receiver_kurtosis(weights: Array, spans: TextSpans) -> Array | None:
    """Return the excess kurtosis over sentences of the weight that they receive from later ones (Bogdan et al., 2025).

    The score of a sentence is the mean over the sentences at least APART behind it of their weight on one of its
    tokens. The weights are (heads, spans, spans); spans of kind `text` are the sentences. The kurtosis is (heads,), NaN
    if all scores of a head are equal; None for fewer than FEWEST_SPANS sentences.
    """
    sentences = _text_spans(spans)
    if len(sentences) < FEWEST_SPANS:
        return None
    sizes = np.array(spans.sizes)[sentences]
    per_token = np.nan_to_num(weights[:, sentences][:, :, sentences]) / sizes
    scores = np.stack(
        [per_token[:, at + APART :, at].mean(1) for at in range(len(sentences) - APART)], -1
    )
    off = scores - scores.mean(-1, keepdims=True)
    variance = (off**2).mean(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        kurtosis: Array = np.where(variance > 0, (off**4).mean(-1) / variance**2 - 3, np.nan)
    return kurtosis


def alignment_parts(moments: Array, n_keys: int) -> dict[str, Array]:
    """Return share, sharpness and monotonicity of every head, (heads, 8), from an AlignmentRecorder's sums."""
    rows, s, entropy, si, sc, sii, scc, sic = np.moveaxis(moments, -1, 0)
    total = np.maximum(s, 1e-30)
    share = s / np.maximum(rows, 1.0)
    sharpness = np.where(s > 0, 1 - entropy / total / np.log(n_keys), 0.0)
    spread = np.maximum(sii / total - (si / total) ** 2, 0.0) * np.maximum(
        scc / total - (sc / total) ** 2, 0.0
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        monotonicity = np.where(
            spread > 1e-18, (sic / total - si * sc / total**2) / np.sqrt(spread), 0.0
        )
    return {
        "alignment": share * sharpness * monotonicity,
        "alignment-share": share,
        "alignment-sharpness": sharpness,
        "alignment-monotonicity": monotonicity,
        "alignments": np.ones_like(share),
    }
