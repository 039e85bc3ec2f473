"""The engine of given arrays: it hands queries, keys and values over to `attend`, and runs nothing."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from attnscope.base.errors import AttnscopeError, arg
from attnscope.engines.arrays.given import GivenArrays
from attnscope.engines.arrays.settings import GivenRope
from attnscope.engines.arrays.tensors import as_tensor, pack, pad
from attnscope.engines.arrays.weights import record_weights
from attnscope.engines.protocol import EngineSettings
from attnscope.model.attention import attend
from attnscope.model.batch import Batch
from attnscope.model.inputs import AttentionInputs, AttentionSpec, Rotation
from attnscope.model.masks import (
    FunctionMask,
    GivenQueriesMask,
    ScoreFunctionMask,
    build_mask,
    intersect,
    mask_from_matrix,
)
from attnscope.model.positions import rotary_frequencies, rotary_tables, rotate
from attnscope.model.stack import Progress
from attnscope.model.tile import Recorders, Workspace
from attnscope.request.masks.expression import mask_files, parse_mask
from attnscope.request.masks.terms import Mask, MatrixFile


@dataclass
class ArraysModel:
    """Given arrays on a device; see protocol.LoadedModel."""

    given: GivenArrays
    device: torch.device
    stream: bool = False

    @property
    def module(self) -> nn.Module:
        return nn.Module()

    @property
    def n_layers(self) -> int:
        return 1 + max(self.given.layers)

    def under(self, settings: EngineSettings) -> "ArraysEngine":
        return ArraysEngine(self.given, self.device, settings)


def _refuse(what: str) -> Callable[..., NoReturn]:
    """Return a method that takes a model."""

    def method(*_: Any, **__: Any) -> NoReturn:
        hint = f"use {arg('model')} instead of {arg('qkv')}"
        raise AttnscopeError(
            f"{what} needs a model, and only queries, keys and values are given", hint=hint
        )

    return method


@dataclass(frozen=True)
class ArraysEngine:
    """Given arrays under a mask; see protocol.Engine.

    A mask other than their own applies to their scores: no layer can be run again.
    """

    given: GivenArrays
    device: torch.device
    settings: EngineSettings
    _masks: dict[tuple[str, tuple[int, ...]], Mask] = field(
        default_factory=dict, repr=False, compare=False
    )

    def forward(
        self,
        batch: Batch,
        recorders: Recorders,
        progress: Progress | None = None,
        *,
        final: bool = False,
    ) -> Tensor | None:
        """Show every recorded layer that is there to its recorders; layers that were not given are passed over."""
        assert not final, "a source without an output head has no final states"
        workspace = Workspace()
        layers = sorted(set(recorders) & set(self.given.layers))
        with torch.inference_mode():
            for layer in layers:
                inputs = self.inputs(layer, batch)
                if self.given.weights:
                    where = f"{self.given.name}: layer {layer}"
                    record_weights(inputs, recorders[layer], batch.tokens.lengths, where)
                else:
                    attend(
                        inputs,
                        recorders[layer],
                        observed=self._observed(layer, batch),
                        need_output=False,
                        tile_elements=self.settings.tile_elements,
                        workspace=workspace,
                    )
                if progress is not None:
                    progress(layer + 1, layers[-1] + 1)
        return None

    def inputs(self, layer: int, batch: Batch) -> AttentionInputs:
        """Return a layer's queries, keys and values as attention takes them."""
        inputs = self._tensors(layer, batch)
        rotation = self.given.settings[layer].rope
        if rotation is None:
            return inputs
        unturned = [neighbours_apart(side, rotation) for side in (inputs.q, inputs.k)]
        lengths = batch.tokens.lengths
        rope = rotation.rope
        width = rotation.width(inputs.q.shape[-1])
        q, k = (
            rotate(x, *rotary_tables(rope, width, lengths, x.shape[2], x.device, x.dtype))
            for x in unturned
        )
        frequencies, factor = rotary_frequencies(rope, width, max(lengths), q.device)
        return replace(
            inputs, q=q, k=k, rotation=Rotation(unturned[0], unturned[1], frequencies, factor)
        )

    def _tensors(self, layer: int, batch: Batch) -> AttentionInputs:
        """Return the arrays of a layer for the texts of a batch, on the device."""
        given_arrays = self.given
        arrays = given_arrays.read(layer)
        sides = {
            name: self._padded(name, array, layer, batch)
            for name, array in arrays.items()
            if name != "output"
        }
        if given_arrays.weights:
            weights = sides["weights"][..., : max(batch.tokens.lengths)]  # (B, H, Q, K)
            nothing = weights.new_empty(*weights.shape[:3], 0)
            return AttentionInputs(layer, weights, nothing, nothing, self._spec(layer, batch))
        q = sides["q"]
        k = sides["k"]
        v = sides.get("v")
        return AttentionInputs(
            layer, q, k, k[..., :0] if v is None else v, self._spec(layer, batch)
        )

    def side(self, layer: int, batch: Batch, name: str) -> Tensor:
        """Return one of a layer's arrays for the texts of a batch, (B, heads, T, width), on the device."""
        return self._padded(name, self.given.read(layer)[name], layer, batch)

    def _padded(self, name: str, array: Any, layer: int, batch: Batch) -> Tensor:
        given_arrays = self.given
        where = f"{given_arrays.name}: layer {layer}: {name}"
        tensor = as_tensor(array, where, given_arrays.dtype)
        if given_arrays.weights:
            # Rows that see nothing are NaN in reports, and 0 here.
            tensor = tensor.masked_fill(tensor.isnan().all(-1, keepdim=True), 0.0)
        if name in ("k", "v"):
            ranges = given_arrays.ranges
        else:
            ranges = given_arrays.query_ranges
        rows = [ranges[index] for index in self.numbers(batch)]
        return pad(pack(tensor, given_arrays.axes, where), rows, batch.tokens.lengths, self.device)

    def numbers(self, batch: Batch) -> list[int]:
        """Return the numbers of a batch's texts, by identity of their tokens: equal texts have separate arrays."""
        numbers = {id(tokens[0]): index for index, (_, tokens) in enumerate(self.given.texts)}
        return [numbers[id(tokens[0])] for tokens in batch.texts]

    def _spec(self, layer: int, batch: Batch) -> AttentionSpec:
        settings = self.given.settings[layer]
        if settings.scale is None:
            scale = max(1, self.given.sizes.width) ** -0.5
        else:
            scale = settings.scale
        sinks = None
        if settings.sinks is not None:
            sinks = torch.tensor(settings.sinks, device=self.device)
        pad = batch.tokens.padding(padded_rows=self.settings.padded_rows)
        mask = intersect(
            (self._own(layer, batch), *self._queries(batch), *self._score_masks(batch), pad)
        )
        bias = self._bias(layer)
        return AttentionSpec(
            scale, mask, settings.softcap, bias, None if bias is None else "given", sinks
        )

    def _queries(self, batch: Batch) -> list[Mask]:
        """Return the mask that leaves rows whose queries were not given without keys, if there are any."""
        firsts = [self.given.first_queries[index] for index in self.numbers(batch)]
        if any(firsts):
            return [GivenQueriesMask(tuple(firsts), torch.tensor(firsts, device=self.device))]
        return []

    def _bias(self, layer: int) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
        """Return what a layer's mask adds to scores; None if it adds nothing."""
        names = mask_files(parse_mask(self.given.config().mask_of(layer)))
        biases = [
            torch.from_numpy(self.given.biases[name]) for name in names if name in self.given.biases
        ]
        if not biases:
            return None
        (bias,) = (matrix.to(self.device) for matrix in biases)

        def added(q: Tensor, k: Tensor, heads: Tensor) -> Tensor:
            if bias.ndim == 2:
                return bias[q, k]
            return bias[heads[:, None, None], q, k]

        return added

    def _score_masks(self, batch: Batch) -> list[Mask]:
        """Return the mask that changes scores as the arrays' own function does, if there is one."""
        if self.given.score_mod is None:
            return []
        function = self.given.score_mod.function
        numbers = torch.tensor(self.numbers(batch), device=self.device)
        return [ScoreFunctionMask(lambda score, b, h, q, k: function(score, numbers[b], h, q, k))]

    def _own(self, layer: int, batch: Batch) -> Mask:
        terms = parse_mask(self.given.config().mask_of(layer))
        return build_mask(
            terms,
            resolved={t: self._named(t.path, batch) for t in terms if isinstance(t, MatrixFile)},
        )

    def _named(self, name: str, batch: Batch) -> Mask:
        """Return the mask of a matrix or of a function, which counts texts as they were given.

        The layers of a batch share it, including the evaluated cells of a function.
        """
        numbers = self.numbers(batch)
        matrix = self.given.matrices[name]
        key = name, tuple(numbers)
        if key not in self._masks:
            if callable(matrix):
                on_device = torch.tensor(numbers, device=self.device)
                sizes = len(numbers), self.given.sizes.heads, max(batch.tokens.lengths)
                self._masks[key] = FunctionMask(
                    lambda b, h, q, k: matrix(on_device[b], h, q, k), *sizes, device=self.device
                )
            else:
                self._masks[key] = mask_from_matrix(matrix, self.device)
        return self._masks[key]

    def _observed(self, layer: int, batch: Batch) -> Mask | None:
        """Return the mask that recorders see instead; None for the arrays' own."""
        if not self.settings.same_scores:
            return None
        pad = batch.tokens.padding(padded_rows=self.settings.padded_rows)
        requested = build_mask(self.settings.terms, self._own(layer, batch), self.settings.resolved)
        return intersect((*self._score_masks(batch), requested, *self._queries(batch), pad))

    @property
    def sizes(self) -> tuple[int, int]:
        return 1 + max(self.given.layers), self.given.sizes.heads

    @property
    def layers(self) -> Sequence[int]:
        return self.given.layers

    def describe_mask(self) -> str:
        return self.given.config().describe_mask()

    def describe_layer_mask(self, layer: int) -> str:
        return self.given.config().mask_of(layer)

    def output_projections(self, batch: Batch) -> list[nn.Module | None]:
        return [None] * self.sizes[0]

    def value_and_output(self, layer: int) -> tuple[Tensor, Tensor] | str:
        return "given arrays come without weights"

    def holding(self, layer: int) -> AbstractContextManager[None]:
        return nullcontext()

    logits = _refuse("logits")
    final_states = _refuse("hidden states")
    continuation = _refuse("continuing a text")
    run_uncut = _refuse("ablation")
    run_blocks = _refuse("running a layer again")
    modules_of = _refuse("what queries and keys are made of")


def neighbours_apart(x: Tensor, rotation: GivenRope) -> Tensor:
    """Return queries or keys, (B, H, T, E), with rotated pairs half a width apart, as in the native layout.

    The order of dimensions does not change the products of queries and keys.
    """
    if not rotation.interleaved:
        return x
    width = rotation.width(x.shape[-1])
    order = torch.cat(
        (torch.arange(0, width, 2), torch.arange(1, width, 2), torch.arange(width, x.shape[-1]))
    )
    return x[..., order.to(x.device)]
