"""Open given arrays as a source of runs. Never imports torch."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.base.errors import UsageError, arg
from attnscope.base.system.escape import as_unicode
from attnscope.checkpoints.source import ModelSource
from attnscope.checkpoints.tokenization.given import GivenTokens
from attnscope.engines.arrays.given import GivenArrays
from attnscope.request.memory import memory_bound, require_memory
from attnscope.request.run_config import RunConfig

if TYPE_CHECKING:
    import torch

    from attnscope.engines.arrays.engine import ArraysEngine, ArraysModel
    from attnscope.findings.given_output import GivenOutput
    from attnscope.model.batch import Batch


@dataclass(frozen=True)
class ArraysInMemory:
    """Arrays that a caller has in memory; see session.InMemory."""

    given: GivenArrays

    def open(self, run: RunConfig) -> ModelSource:
        return open_arrays(self.given, run)

    def borrowed(self) -> AbstractContextManager[None]:
        return nullcontext()


def open_arrays(arrays: GivenArrays, run: RunConfig) -> ModelSource:
    """Return given arrays as a source of runs."""
    _refuse_masks(arrays, run)
    need = {"arrays": 2 * arrays.layer_bytes}  # as they are read, and as they are laid out
    require_memory(need, memory_bound(run.max_memory))

    def load(n_layers: int, dtype: "torch.dtype", device: "torch.device") -> "ArraysModel":
        from attnscope.engines.arrays.engine import ArraysModel

        return ArraysModel(arrays, device)

    def outputs(engine: "ArraysEngine", batch: "Batch") -> "list[GivenOutput]":
        from attnscope.engines.arrays.outputs import compare_outputs

        return compare_outputs(engine, batch)

    config = arrays.config()
    layers = None
    if len(arrays.layers) < config.n_layers:
        layers = arrays.layers
    return ModelSource(
        name=as_unicode(arrays.name),
        family="weights" if arrays.weights else "arrays",
        config=config,
        weights="given",
        fingerprint=arrays.fingerprint,
        tokenizer=GivenTokens(
            {arrays.origin(n): tokens for n, (_, tokens) in enumerate(arrays.texts)}
        ),
        load=load,
        folder=None,
        notes=arrays.notes,
        engine="arrays",
        no_projection="the model's output projection was not found",
        has_values=bool(arrays.sizes.value_width),
        stages=("weights",) if arrays.weights else None,
        layerwise=False,
        runs=False,
        dtype=arrays.dtype,
        compare_outputs=outputs if arrays.outputs else None,
        layers=layers,
        first_queries={
            arrays.origin(n): first_query
            for n, first_query in enumerate(arrays.first_queries)
            if first_query
        },
    )


def _refuse_masks(arrays: GivenArrays, run: RunConfig) -> None:
    """Refuse masks over given weights."""
    if arrays.weights and not run.own_mask:
        name = "hide" if run.hide is not None else "mask"
        hint = f"give queries and keys instead of weights; weights are compared with another {arg('qkv')} or a model"
        raise UsageError(
            "no other mask can be applied to given weights", where=arg(name), hint=hint
        )
