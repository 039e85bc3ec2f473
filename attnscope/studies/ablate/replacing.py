"""What cuts take away, and replacements for the output of a head: fixed outputs, or its output in another text."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from attnscope.model.batch import Batch
from attnscope.model.recorders import (
    ColumnRecorder,
    MatrixRecorder,
    MeanOutputRecorder,
    ValueRecorder,
)
from attnscope.model.tile import Recorder
from attnscope.run.cut_plan import Cut


class FixedOutputs:
    """The same output for every query: (H, Ev) by layer, zeros for a missing layer."""

    def __init__(self, outputs: Mapping[int, Tensor]) -> None:
        self._outputs = outputs

    def head(self, layer: int, head: int) -> Tensor | None:
        """Return the head's output, (Ev,)."""
        outputs = self._outputs.get(layer)
        return None if outputs is None else outputs[head]

    def edges(
        self, layer: int, heads: Sequence[int], queries: Sequence[int], keys: Sequence[int]
    ) -> Tensor | None:
        """Return None: edges that are cut are not replaced."""
        return None


class OtherText:
    """Outputs of heads and edges at the same positions of another text, and the recorders that read them."""

    def __init__(self, batch: Batch, cuts: Sequence[Cut]) -> None:
        rows = range(batch.tokens.real.shape[1])
        heads = dict[int, set[int]]()
        for cut in cuts:
            for layer, head in cut.heads if cut.queries is None else ():
                heads.setdefault(layer, set()).add(head)
        self._outputs = {
            n: MatrixRecorder(["gated"], sorted(layer_heads), rows, [])
            for n, layer_heads in heads.items()
        }
        self._row, self._key, self._weights = _edge_recorders(cuts)
        self._values = {
            n: ValueRecorder(recorder.heads, recorder.rows) for n, recorder in self._weights.items()
        }
        self.recorders = _by_layer(self._outputs, self._weights, self._values)
        self._made: dict[tuple[str, int], Tensor] = {}

    def head(self, layer: int, head: int) -> Tensor:
        """Return the head's output for every query, behind its gate if it has one, (Q, Ev)."""
        index = self._outputs[layer].heads.index(head)
        return self._matrices("gated", layer, self._outputs[layer])[index]

    def edges(
        self, layer: int, heads: Sequence[int], queries: Sequence[int], keys: Sequence[int]
    ) -> Tensor:
        """Return Σ α_ij·v_j over these keys in the other text, (heads, queries, Ev)."""
        recorder = self._weights[layer]
        places = [recorder.heads.index(head) for head in heads]
        rows = [self._row[query] for query in queries]
        columns = [self._key[key] for key in keys]
        weights = self._matrices("weights", layer, recorder)[places][:, rows][:, :, columns]
        return weights @ self._values[layer].compute()[places][:, list(keys)]

    def _matrices(self, stage: str, layer: int, recorder: MatrixRecorder) -> Tensor:
        """Return a stage of a layer, (heads, rows, columns); 0 for a row that sees nothing."""
        if (stage, layer) not in self._made:
            self._made[stage, layer] = torch.nan_to_num(recorder.compute()[stage][0], nan=0.0)
        return self._made[stage, layer]


class UncutWeights:
    """Recorders of a run without cuts, and of mean outputs if wanted.

    `heads` are the number of query heads in a layer, and the width of a value.
    """

    def __init__(
        self, batch: Batch, cuts: Sequence[Cut], heads: tuple[int, int], *, means: bool
    ) -> None:
        self._batch = batch
        every = range(heads[0])
        n_queries = batch.tokens.real.shape[1]
        counted = batch.tokens.real & ~batch.tokens.special
        counted[:, 0] = False
        counted = counted if bool(counted.any()) else batch.tokens.real
        self._counted = int(counted.sum())
        head_layers = sorted({layer for cut in cuts if cut.queries is None for layer in cut.layers})
        self._columns = {
            n: ColumnRecorder(every, range(n_queries), counted, batch.sources) for n in head_layers
        }
        self._means = {
            n: MeanOutputRecorder(every, heads[1], batch.tokens.real) for n in head_layers if means
        }
        self._row, self._key, self._matrices = _edge_recorders(cuts)
        self.recorders = _by_layer(self._columns, self._means, self._matrices)
        self._off_sink: dict[int, list[float]] = {}
        self._weights: dict[int, np.ndarray] = {}

    def mean_outputs(self) -> Mapping[int, Tensor]:
        """Return the mean output of every head, (H, Ev), by layer; empty unless means are recorded."""
        return {layer: recorder.compute() for layer, recorder in self._means.items()}

    def weight(self, cut: Cut) -> float:
        """Return the weight that the cut removes; see `CutPart`."""
        if cut.queries is None or cut.keys is None:
            return float(np.mean([self._weight_off_sink(layer)[head] for layer, head in cut.heads]))
        rows = [self._row[query] for query in cut.queries]
        keys = [self._key[key] for key in cut.keys]
        weights = []
        for layer, head in cut.heads:
            index = self._matrices[layer].heads.index(head)
            weights.append(self._matrix(layer)[index][np.ix_(rows, keys)].sum(-1).mean())
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


def _edge_recorders(
    cuts: Sequence[Cut],
) -> tuple[dict[int, int], dict[int, int], dict[int, MatrixRecorder]]:
    """Return the row and column numbers of the edges' queries and keys, and recorders of their weights by layer."""
    edges = [cut for cut in cuts if cut.queries is not None]
    rows = sorted({query for cut in edges for query in cut.queries or ()})
    keys = sorted({key for cut in edges for key in cut.keys or ()})
    heads_by_layer: dict[int, set[int]] = {}
    for cut in edges:
        for layer, head in cut.heads:
            heads_by_layer.setdefault(layer, set()).add(head)
    matrices = {
        layer: MatrixRecorder(["weights"], sorted(heads), rows, keys)
        for layer, heads in heads_by_layer.items()
    }
    row, key = ({position: n for n, position in enumerate(side)} for side in (rows, keys))
    return row, key, matrices


def _by_layer(*groups: Mapping[int, Recorder]) -> dict[int, list[Recorder]]:
    layers = sorted({layer for group in groups for layer in group})
    return {layer: [group[layer] for group in groups if layer in group] for layer in layers}
