"""Weights of what will be cut, and mean outputs of heads, recorded without cuts."""

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from attnscope.model.batch import Batch
from attnscope.model.recorders import ColumnRecorder, MeanOutputRecorder
from attnscope.model.tile import Recorder
from attnscope.run.cut_plan import Cut
from attnscope.studies.ablate.replacing import edge_recorders


class UncutWeights:
    """Recorders of a run without cuts.

    Args:
        cuts: What will be cut.
        heads: Number of query heads in a layer, and width of a value.
        means: Whether to average the output of every head over the text.
    """

    def __init__(self, batch: Batch, cuts: Sequence[Cut], heads: tuple[int, int], *, means: bool) -> None:
        self._batch = batch
        every, n_queries = range(heads[0]), batch.tokens.real.shape[1]
        counted = batch.tokens.real & ~batch.tokens.special
        counted[:, 0] = False
        counted = counted if bool(counted.any()) else batch.tokens.real
        self._counted = int(counted.sum())
        head_layers = sorted({layer for cut in cuts if cut.queries is None for layer in cut.layers})
        self._columns = {n: ColumnRecorder(every, range(n_queries), counted, batch.sources) for n in head_layers}
        self._means = {n: MeanOutputRecorder(every, heads[1], batch.tokens.real) for n in head_layers if means}
        self._row, self._key, self._matrices = edge_recorders(cuts)
        self._off_sink: dict[int, list[float]] = {}
        self._weights: dict[int, np.ndarray] = {}

    @property
    def recorders(self) -> dict[int, list[Recorder]]:
        """Recorders, by layer."""
        by_layer: dict[int, list[Recorder]] = {}
        for recorders in (self._columns, self._means, self._matrices):
            for layer, recorder in recorders.items():
                by_layer.setdefault(layer, []).append(recorder)
        return by_layer

    def mean_outputs(self) -> Mapping[int, Tensor]:
        """Return the mean output of every head, (H, Ev), by layer; empty unless means are recorded."""
        return {layer: recorder.compute() for layer, recorder in self._means.items()}

    def weight(self, cut: Cut) -> float:
        """Return the weight that the cut removes; see `CutPart`."""
        if cut.queries is None or cut.keys is None:
            return float(np.mean([self._weight_off_sink(layer)[head] for layer, head in cut.heads]))
        rows, keys = [self._row[query] for query in cut.queries], [self._key[key] for key in cut.keys]
        weights = []
        for layer, head in cut.heads:
            place = self._matrices[layer].heads.index(head)
            weights.append(self._matrix(layer)[place][np.ix_(rows, keys)].sum(-1).mean())
        return float(np.mean(weights))

    def _weight_off_sink(self, layer: int) -> list[float]:
        """Return each head's weight off the first and special tokens, averaged over words."""
        if layer not in self._off_sink:
            mass = self._columns[layer].compute()[0].cpu().double()  # (H, K)
            content = self._batch.sources.content()[0].cpu()
            self._off_sink[layer] = (mass[:, content].sum(-1) / self._counted).tolist()
        return self._off_sink[layer]

    def _matrix(self, layer: int) -> "np.ndarray":
        """Return weights, (heads, rows, keys); 0 for a row that sees nothing."""
        if layer not in self._weights:
            weights = self._matrices[layer].compute()["weights"][0].cpu().double().numpy()
            self._weights[layer] = np.nan_to_num(weights, nan=0.0)
        return self._weights[layer]
