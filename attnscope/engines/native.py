"""The native engine: attnscope's own stack under a mask."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnscope.engines.protocol import EngineSettings, UncutRun
from attnscope.model.batch import Batch, TokenTensors
from attnscope.model.cuts import Variant
from attnscope.model.head_capture import LayerModules, attention_of, modules_of
from attnscope.model.hooks import AttentionHooks
from attnscope.model.layers import KeyValueCache
from attnscope.model.logit_parts import StreamCapture
from attnscope.model.masks import build_mask, intersect
from attnscope.model.module_hooks import listening
from attnscope.model.positions import same_rotation
from attnscope.model.stack import BlockObserver, Progress, Stack
from attnscope.model.tile import Recorders
from attnscope.request.masks.expression import parse_mask
from attnscope.request.masks.terms import Mask


@dataclass
class NativeModel:
    """A stack with weights; see protocol.LoadedModel."""

    stack: Stack

    @property
    def module(self) -> nn.Module:
        return self.stack

    @property
    def n_layers(self) -> int:
        return len(self.stack.blocks)

    @property
    def stream(self) -> bool:
        """Weights are read again in every pass."""
        return not self.stack.weights.keep

    @stream.setter
    def stream(self, stream: bool) -> None:
        self.stack.weights.keep = not stream

    def under(self, settings: EngineSettings) -> "NativeEngine":
        return NativeEngine(self.stack, settings)


@dataclass(frozen=True)
class NativeEngine:
    """A stack under a mask; see protocol.Engine."""

    stack: Stack
    settings: EngineSettings

    def forward(
        self,
        batch: Batch,
        recorders: Recorders,
        progress: Progress | None = None,
        *,
        final: bool = False,
    ) -> Tensor | None:
        settings = self.settings
        pad = batch.keys.padding(padded_rows=self.settings.padded_rows)
        own, used = self._masks()
        hooks = AttentionHooks(
            recorders, {}, settings.tile_elements, settings.all_outputs or final, settings.variants
        )
        if settings.same_scores:
            hooks.observed = {layer: intersect((mask, pad)) for layer, mask in enumerate(used)}
        masks = own if settings.same_scores else used
        context = None if batch.context is None else batch.context.ids
        return self.stack.run(
            batch.tokens.ids, masks, pad, hooks, context=context, progress=progress, final=final
        )

    def _masks(self) -> tuple[list[Mask], list[Mask]]:
        """Return the model's own mask of every layer, and the one that was asked for."""
        config = self.stack.config
        settings = self.settings
        own = [
            build_mask(parse_mask(config.mask_of(layer))) for layer in range(len(self.stack.blocks))
        ]
        return own, [build_mask(settings.terms, mask, settings.resolved) for mask in own]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.stack.logits(hidden)

    def final_states(self, hidden: Tensor) -> Tensor:
        return self.stack.final_states(hidden)

    def residual_stream(self, batch: Batch, positions: Sequence[int]) -> StreamCapture:
        return StreamCapture(self.stack, positions)

    def continuation(self, media: Mapping[str, Tensor] | None = None) -> "NativeContinuation":
        return NativeContinuation(self.stack, self._masks()[1])

    def run_uncut(
        self, batch: Batch, recorders: Recorders, progress: Progress | None = None
    ) -> UncutRun:
        """Run all layers, and keep the input of each: a variant starts at the first layer in which it has a cut."""
        inputs: list[Tensor] = []
        handles = [
            block.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
            for block in self.stack.blocks
        ]
        with listening(handles):
            hidden = self.forward(batch, recorders, progress, final=True)
        assert hidden is not None
        masks = self._masks()[1]

        def run(
            variants: Sequence[Variant],
            progress: Progress | None = None,
            rows: Sequence[int] | None = None,
        ) -> Tensor:
            hooks = AttentionHooks(
                {}, {}, self.settings.tile_elements, all_outputs=True, variants=variants
            )
            context = None if batch.context is None else batch.context.ids
            positions = batch.tokens.positions
            return self.stack.run_variants(
                inputs,
                masks,
                hooks,
                context=context,
                progress=progress,
                rows=rows,
                positions=positions,
            )

        return UncutRun(hidden, run)

    def run_blocks(self, batch: Batch, last: int, observe: BlockObserver) -> None:
        hooks = AttentionHooks({last: ()}, all_outputs=True)
        self.stack.run(
            batch.tokens.ids, self._masks()[1], batch.keys.padding(), hooks, observe=observe
        )

    @property
    def sizes(self) -> tuple[int, int]:
        return self.stack.config.n_layers, self.stack.config.n_heads

    @property
    def layers(self) -> Sequence[int]:
        return range(self.stack.config.n_layers)

    def describe_mask(self) -> str:
        return self.stack.config.describe_mask()

    def describe_layer_mask(self, layer: int) -> str:
        return self.stack.config.mask_of(layer)

    def output_projections(self, batch: Batch) -> list[nn.Module | None]:
        return [attention_of(self.stack, layer).out for layer in range(self.sizes[0])]

    def value_and_output(self, layer: int) -> tuple[Tensor, Tensor] | str:
        attention = attention_of(self.stack, layer)
        if attention.out is None:
            return "there is no output projection"
        return (attention.v.weight, attention.out.weight)

    def modules_of(self, layer: int) -> LayerModules:
        return modules_of(self.stack, layer)

    def holding(self, layer: int) -> AbstractContextManager[None]:
        return self.stack.weights.holding(layer)


class NativeContinuation:
    """A text that grows, with a cache of keys and values; see protocol.Continuation."""

    def __init__(self, stack: Stack, masks: Sequence[Mask]) -> None:
        self._stack = stack
        self._masks = masks
        self._cache = KeyValueCache()

    def logits(self, tokens: TokenTensors) -> Tensor:
        seen = self._cache.length
        n = tokens.ids[0].shape[1]
        if seen and (
            self._sees_new_tokens(tokens.ids[0]) or not same_rotation(self._stack.config, seen, n)
        ):
            self._cache = KeyValueCache()
        return self._stack.logits(self._stack.extend(tokens.ids, self._masks, self._cache))[0]

    def _sees_new_tokens(self, ids: Tensor) -> bool:
        """Tell whether cached tokens see new ones, which would change their keys and values."""
        q = torch.arange(self._cache.length, device=ids.device)[:, None]
        k = torch.arange(self._cache.length, ids.shape[1], device=ids.device)[None]
        seen = (mask.allowed(q, k) for mask in dict.fromkeys(self._masks))
        return any(allowed is None or bool(allowed.any()) for allowed in seen)
