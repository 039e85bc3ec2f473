"""Replacements for the output of a head: fixed outputs, or its output in another text."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attnscope.model.batch import Batch
from attnscope.model.recorders import MatrixRecorder, ValueRecorder
from attnscope.model.tile import Recorder
from attnscope.run.cut_plan import Cut


class FixedOutputs:
    """The same output for every query: zeros, or a mean.

    Args:
        outputs: Output of every head, (H, Ev), by layer; zeros for a missing layer.
    """

    def __init__(self, outputs: Mapping[int, Tensor]) -> None:
        self._outputs = outputs

    def head(self, layer: int, head: int) -> Tensor | None:
        """Return the head's output, (Ev,)."""
        given = self._outputs.get(layer)
        return None if given is None else given[head]

    def edges(self, layer: int, heads: Sequence[int], queries: Sequence[int], keys: Sequence[int]) -> Tensor | None:
        """Return None: edges that are cut are not replaced."""
        return None


class OtherText:
    """Outputs of heads and edges at the same positions of another text, and the recorders that read them.

    Attributes:
        recorders: Recorders, by layer.
    """

    def __init__(self, batch: Batch, cuts: Sequence[Cut]) -> None:
        rows, heads = range(batch.tokens.real.shape[1]), dict[int, set[int]]()
        for cut in cuts:
            for layer, head in cut.heads if cut.queries is None else ():
                heads.setdefault(layer, set()).add(head)
        self._outputs = {n: MatrixRecorder(["output"], sorted(chosen), rows, []) for n, chosen in heads.items()}
        self._row, self._key, self._weights = edge_recorders(cuts)
        self._values = {n: ValueRecorder(recorder.heads, recorder.rows) for n, recorder in self._weights.items()}
        self.recorders: dict[int, list[Recorder]] = {}
        for recorders in (self._outputs, self._weights, self._values):
            for layer, recorder in recorders.items():
                self.recorders.setdefault(layer, []).append(recorder)
        self._made: dict[tuple[str, int], Tensor] = {}

    def head(self, layer: int, head: int) -> Tensor:
        """Return the head's output for every query, (Q, Ev)."""
        place = self._outputs[layer].heads.index(head)
        return self._matrices("output", layer, self._outputs[layer])[place]

    def edges(self, layer: int, heads: Sequence[int], queries: Sequence[int], keys: Sequence[int]) -> Tensor:
        """Return Σ α_ij·v_j over these keys in the other text, (heads, queries, Ev)."""
        recorder = self._weights[layer]
        places = [recorder.heads.index(head) for head in heads]
        rows, columns = [self._row[query] for query in queries], [self._key[key] for key in keys]
        weights = self._matrices("weights", layer, recorder)[places][:, rows][:, :, columns]
        return weights @ self._values[layer].compute()[places][:, list(keys)]

    def _matrices(self, stage: str, layer: int, recorder: MatrixRecorder) -> Tensor:
        """Return a stage of a layer, (heads, rows, columns); 0 for a row that sees nothing."""
        if (stage, layer) not in self._made:
            self._made[stage, layer] = torch.nan_to_num(recorder.compute()[stage][0], nan=0.0)
        return self._made[stage, layer]


def edge_recorders(cuts: Sequence[Cut]) -> tuple[dict[int, int], dict[int, int], dict[int, MatrixRecorder]]:
    """Return the row and column numbers of the edges' queries and keys, and recorders of their weights by layer."""
    edges = [cut for cut in cuts if cut.queries is not None]
    rows = sorted({query for cut in edges for query in cut.queries or ()})
    keys = sorted({key for cut in edges for key in cut.keys or ()})
    chosen: dict[int, set[int]] = {}
    for cut in edges:
        for layer, head in cut.heads:
            chosen.setdefault(layer, set()).add(head)
    matrices = {layer: MatrixRecorder(["weights"], sorted(heads), rows, keys) for layer, heads in chosen.items()}
    row, key = ({place: n for n, place in enumerate(side)} for side in (rows, keys))
    return row, key, matrices
