"""Weights between the spans of texts, in every layer and head."""

from collections.abc import Sequence

import torch

from attnscope.engines.protocol import Engine
from attnscope.findings.spans import KEPT_ROWS, SpanReport, TextSpans
from attnscope.model.batch import Batch
from attnscope.model.recorders import SpanRecorder, SpanTokens, TokenReading
from attnscope.model.tile import Recorder


class SpanRecorders:
    """A recorder for every layer, with all of its heads.

    Args:
        engine: Its layers and heads are recorded.
        queries: Number of the span of each text whose tokens are also kept one by one.
        predicting: Rows of every text from which the model generated its tokens; empty for none.
    """

    def __init__(
        self,
        batch: Batch,
        spans: Sequence[TextSpans],
        queries: Sequence[int],
        engine: Engine,
        predicting: Sequence[Sequence[int]] = (),
    ) -> None:
        tokens = span_tokens(batch, spans)
        self._predicting = predicting or [()] * len(spans)
        self._spans = spans
        self._queries = queries
        self._sizes = engine.sizes
        self._rows = [
            recorder.tokens(query)[-KEPT_ROWS:]
            for recorder, query in zip(spans, queries, strict=True)
        ]
        self._kept = [
            sorted({*rows, *more}) for rows, more in zip(self._rows, self._predicting, strict=True)
        ]
        self._reading = TokenReading(tokens, queries, self._kept)
        heads = range(engine.sizes[1])
        self._of_layers = {
            layer: SpanRecorder(heads, tokens, reading=self._reading) for layer in engine.layers
        }
        self.recorders: dict[int, list[Recorder]] = {
            layer: [recorder] for layer, recorder in self._of_layers.items()
        }

    def report(
        self, text: int, division: str, selected: list[tuple[int, int]] | None = None
    ) -> SpanReport:
        """Return the recorded weights of a text.

        `selected`: see SpanReport.
        """
        spans = self._spans[text]
        query = self._queries[text]
        count = len(spans.names)
        n = len(spans.of_token)
        # A layer without attention over tokens has no weights.
        device = self._reading.received.device
        weights = torch.full((*self._sizes, count, count), torch.nan, device=device)
        sinks = torch.full((*self._sizes, count), torch.nan, device=device)
        has_sinks = False
        for layer, recorder in self._of_layers.items():
            weights[layer] = recorder.compute()[text, :, :count, :count]
            of_layer = recorder.sink()
            has_sinks |= of_layer is not None
            # A layer without sinks gives them no weight.
            sinks[layer] = 0.0 if of_layer is None else of_layer[text, :, :count]
        received, counted = (
            x[text, :n].cpu().double() for x in (self._reading.received, self._reading.counted)
        )
        kept_rows = self._kept[text]
        rows = self._rows[text]
        predicting = self._predicting[text]
        shares = self._reading.shares[text][:, :count].cpu().double() / counted[kept_rows][:, None]
        index_of = {position: index for index, position in enumerate(kept_rows)}
        return SpanReport(
            division,
            spans,
            query,
            weights.cpu().numpy(),
            sinks.cpu().numpy() if has_sinks else None,
            (received / counted[spans.tokens(query)].sum()).float().numpy(),
            rows,
            shares[[index_of[row] for row in rows]].float().numpy(),
            shares[[index_of[row] for row in predicting]].float().numpy() if predicting else None,
            selected,
        )


def span_tokens(batch: Batch, spans: Sequence[TextSpans]) -> SpanTokens:
    """Return the spans of the tokens of a batch."""
    real = batch.tokens.real
    longest = real.shape[1]
    padded = [[*text.of_token, *[-1] * (longest - len(text.of_token))] for text in spans]
    return SpanTokens(
        torch.tensor(padded, device=real.device), max(len(text.names) for text in spans)
    )
