"""What is seen of a text without cuts: weights of what will be cut, and mean outputs of heads."""

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from attnscope.model.batch import Batch
from attnscope.model.recorders import ColumnRecorder, MeanOutputRecorder
from attnscope.model.tile import Recorder
from attnscope.run.cut_plan import Cut
from attnscope.studies.ablate.replacing import edge_recorders


class Seen:
    """The recorders of a run without cuts.

    Args:
        batch: The text.
        cuts: What will be cut.
        heads: Query heads of a layer, and the width of a value.
        means: Average the output of every head over the text.
    """

    def __init__(self, batch: Batch, cuts: Sequence[Cut], heads: tuple[int, int], *, means: bool) -> None:
        self._batch = batch
        every, n_queries = range(heads[0]), batch.tokens.real.shape[1]
        counted = batch.tokens.real & ~batch.tokens.special
        counted[:, 0] = False
        counted = counted if bool(counted.any()) else batch.tokens.real
        self._counted = int(counted.sum())
        whole = sorted({layer for cut in cuts if cut.queries is None for layer in cut.layers})
        self._columns = {n: ColumnRecorder(every, range(n_queries), counted, batch.sources) for n in whole}
        self._means = {n: MeanOutputRecorder(every, heads[1], batch.tokens.real) for n in whole if means}
        self._row, self._key, self._matrices = edge_recorders(cuts)
        self._off_sink: dict[int, list[float]] = {}
        self._weights: dict[int, np.ndarray] = {}

    @property
    def recorders(self) -> dict[int, list[Recorder]]:
        """Layer to its recorders."""
        found: dict[int, list[Recorder]] = {}
        for some in (self._columns, self._means, self._matrices):
            for layer, recorder in some.items():
                found.setdefault(layer, []).append(recorder)
        return found

    def mean_outputs(self) -> Mapping[int, Tensor]:
        """Return the mean output of every head, (H, Ev), by layer; nothing where it was not asked for."""
        return {layer: recorder.compute() for layer, recorder in self._means.items()}

    def weight(self, cut: Cut) -> float:
        """Return the weight of what is cut; see report.ablation.CutPart."""
        if cut.queries is None or cut.keys is None:
            return float(np.mean([self._weight_off_sink(layer)[head] for layer, head in cut.heads]))
        rows, keys = [self._row[query] for query in cut.queries], [self._key[key] for key in cut.keys]
        found = []
        for layer, head in cut.heads:
            place = self._matrices[layer].heads.index(head)
            found.append(self._matrix(layer)[place][np.ix_(rows, keys)].sum(-1).mean())
        return float(np.mean(found))

    def _weight_off_sink(self, layer: int) -> list[float]:
        """Return the weight of every head off the first and special tokens, averaged over words."""
        if layer not in self._off_sink:
            mass = self._columns[layer].compute()[0].cpu().double()  # (H, K)
            content = self._batch.sources.content()[0].cpu()
            self._off_sink[layer] = (mass[:, content].sum(-1) / self._counted).tolist()
        return self._off_sink[layer]

    def _matrix(self, layer: int) -> "np.ndarray":
        """Return weights, (heads, rows, keys); 0 where a query may see nothing."""
        if layer not in self._weights:
            found = self._matrices[layer].compute()["weights"][0].cpu().double().numpy()
            self._weights[layer] = np.nan_to_num(found, nan=0.0)
        return self._weights[layer]
