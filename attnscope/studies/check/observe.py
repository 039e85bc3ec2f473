"""Record every stage of every layer and head without reduction."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock

import torch
from torch import Tensor

from attnscope.engines.protocol import Engine
from attnscope.findings.heads import STAGES
from attnscope.model.batch import Batch
from attnscope.model.inputs import AttentionInputs
from attnscope.model.masks import MatrixMask
from attnscope.model.matmul import has_float64
from attnscope.model.tile import Recorder, Tile
from attnscope.request.masks.terms import Bidirectional, Mask


@dataclass
class LayerStages:
    """One layer's attention over a batch."""

    inputs: AttentionInputs
    stages: dict[str, Tensor]  # stage to matrix, (B, H, Q, K), or output, (B, H, Q, Ev)
    fully_masked: Tensor  # rows that see nothing, (B, H, Q)
    sink: Tensor  # weight of each row on the sink, (B, H, Q); 0 if there is none


class StageRecorder(Recorder):
    """Keep all stages of a layer, independently of the other recorders.

    Without `include_masked`, a tile is as narrow as its mask.
    """

    def __init__(
        self, n_heads: int, n_queries: int, n_keys: int, *, include_masked: bool = True
    ) -> None:
        super().__init__(range(n_heads), range(n_queries))
        self._keys = n_keys
        self._include_masked = include_masked
        self.seen: LayerStages | None = None
        self._making = Lock()

    needs_scores = needs_masked = True  # every stage is kept

    def score_range(self) -> tuple[int, int] | None:
        """Ask for the scores of every key, if those that are not allowed are kept."""
        if self._include_masked:
            return (0, self._keys)
        return None

    def update(self, tile: Tile) -> None:
        """Copy a tile into the stages."""
        with self._making:
            if self.seen is None:
                self.seen = self._empty(tile)
        rows = slice(tile.q0, tile.q1)
        keys = slice(tile.k0, tile.k1)
        for stage in STAGES:
            where = slice(None) if stage == "output" else keys
            self.seen.stages[stage][:, tile.heads, rows, where] = tile.stage(stage)
        if tile.fully_masked is not None:
            self.seen.fully_masked[:, tile.heads, rows] = tile.fully_masked
        if tile.sink is not None:
            self.seen.sink[:, tile.heads, rows] = tile.sink

    def _empty(self, tile: Tile) -> LayerStages:
        shape = (len(tile.masked), len(self.heads), len(self.rows))
        like = tile.masked
        if not self._include_masked:
            beyond = {"masked": -torch.inf, "weights": 0.0}
        else:
            beyond = {}
        stages = {
            stage: like.new_full((*shape, self._keys), beyond.get(stage, torch.nan))
            for stage in STAGES[:4]
        }
        stages["output"] = like.new_full((*shape, tile.output.shape[-1]), torch.nan)
        # drop the model's weight, so that it can be freed
        inputs = replace(tile.inputs, out_weight=None)
        return LayerStages(
            inputs, stages, like.new_zeros(shape, dtype=torch.bool), like.new_zeros(shape)
        )


def layer_numbers(layers: Sequence[LayerStages]) -> list[int]:
    """Return the number of each layer in the model."""
    return [layer.inputs.layer for layer in layers]


def record_stages(
    engine: Engine, batch: Batch, *, include_masked: bool = True
) -> list[LayerStages]:
    """Return every layer's attention over a batch; see StageRecorder."""
    sizes = engine.sizes[1], batch.tokens.ids[0].shape[1], batch.sources.real.shape[1]
    recorders = {
        layer: StageRecorder(*sizes, include_masked=include_masked) for layer in engine.layers
    }
    engine.forward(batch, {layer: [recorder] for layer, recorder in recorders.items()})
    layers = [recorder.seen for recorder in recorders.values() if recorder.seen is not None]
    if has_float64(batch.tokens.real.device):
        return layers
    return [_on_cpu(layer) for layer in layers]


def _on_cpu(layer: LayerStages) -> LayerStages:
    """Copy the stages to the CPU, where laws can be computed in float64."""
    inputs = layer.inputs
    spec = inputs.spec
    n_queries, n_keys = layer.stages["scores"].shape[2:]
    at = [torch.arange(n, device=inputs.q.device) for n in (n_queries, n_keys, inputs.q.shape[1])]
    allowed = spec.mask.allowed(at[0][:, None], at[1][None])
    bias = None
    if spec.bias is not None:
        bias = spec.bias(at[0][:, None], at[1][None], at[2]).cpu()
    mask: Mask = Bidirectional()
    if allowed is not None:
        mask = MatrixMask(allowed.cpu())
    sinks = None
    if spec.sinks is not None:
        sinks = spec.sinks.cpu()
    spec = replace(
        spec,
        mask=mask,
        bias=None if bias is None else lambda q, k, heads: bias[..., heads[:, None, None], q, k],
        sinks=sinks,
    )
    gate = None if inputs.gate is None else inputs.gate.cpu()
    sides = replace(inputs, q=inputs.q.cpu(), k=inputs.k.cpu(), v=inputs.v.cpu())
    return LayerStages(
        replace(sides, spec=spec, gate=gate, unselective=None),
        {stage: values.cpu() for stage, values in layer.stages.items()},
        layer.fully_masked.cpu(),
        layer.sink.cpu(),
    )
