"""The engine that lets `transformers` run the model."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.checkpoints.families import native_family
from attnscope.engines.protocol import EngineSettings, UncutRun
from attnscope.engines.transformers.blocks import (
    BlockRerunner,
    cache_argument,
    cannot_rerun,
    find_blocks,
)
from attnscope.engines.transformers.default_inputs import default_inputs
from attnscope.engines.transformers.interface import (
    AttentionCapture,
    StopForward,
    capturing,
    check_sizes,
)
from attnscope.engines.transformers.layer_lists import RunningLayers
from attnscope.engines.transformers.loading import TransformersModel
from attnscope.engines.transformers.mixing import watching_mixing
from attnscope.engines.transformers.neighbours import padding_embedded_as_zero
from attnscope.engines.transformers.output_head import apply_head
from attnscope.engines.transformers.projections import layer_modules, value_and_output
from attnscope.engines.transformers.residual import ResidualStream
from attnscope.engines.transformers.rotations import rotated_by_length, rotation_limits
from attnscope.model.attention import attend, attended
from attnscope.model.batch import Batch, TokenTensors, padded_media
from attnscope.model.cuts import Variant, cuts_of_layer
from attnscope.model.head_capture import LayerModules
from attnscope.model.hooks import AttentionHooks
from attnscope.model.inputs import AttentionInputs
from attnscope.model.masks import build_mask, intersect
from attnscope.model.mixing import MixingInputs
from attnscope.model.mixing_shares import show_shares
from attnscope.model.module_hooks import in_this_thread, listening
from attnscope.model.stack import BlockObserver, Progress
from attnscope.model.tile import Recorders
from attnscope.request.masks.terms import Causal, Mask, MaskTerm, Own, SlidingWindow


@dataclass
class OpenedModel:
    """A loaded model of transformers; see protocol.LoadedModel."""

    loaded: TransformersModel
    stream: bool = False  # its weights are always kept

    @property
    def module(self) -> nn.Module:
        module: nn.Module = self.loaded.model
        return module

    @property
    def n_layers(self) -> int:
        return self.loaded.part.n_layers

    def under(self, settings: EngineSettings) -> "TransformersEngine":
        return TransformersEngine(self.loaded, settings)


_CUSTOM = "custom, without a mask expression"
SELECTED = ", of which an indexer selects keys"  # after the description of a mask


@dataclass
class TransformersEngine:
    """A model of transformers under a mask; see protocol.Engine."""

    loaded: TransformersModel
    settings: EngineSettings
    # in words, the masks that the model itself was seen to use on its longest text, by layer
    own: dict[int, str] = field(default_factory=dict)
    _described: dict[int, int] = field(default_factory=dict)
    projections: dict[int, nn.Module] = field(default_factory=dict)
    modules: dict[int, nn.Module] = field(default_factory=dict)

    def forward(
        self,
        batch: Batch,
        recorders: Recorders,
        progress: Progress | None = None,
        *,
        final: bool = False,
        variants: Sequence[Variant] = (),
        share_recorders: Recorders | None = None,
    ) -> Tensor | None:
        """Pass the attention of every recorded layer over a batch to its recorders, under the cuts of its variants.

        Shares of |M| of layers without softmax go to recorders of their own.
        """
        seen: set[int] = set()
        keys = batch.keys
        pad = keys.padding()
        # A window is seen only in a text that is longer than the window.
        longest = max(
            (n, keys.lengths[index], index) for index, n in enumerate(batch.tokens.lengths)
        )
        share_recorders = share_recorders or {}
        last = max(self.layers if final else {*recorders, *share_recorders}, default=-1)
        sizes = (*batch.tokens.real.shape, keys.real.shape[1])

        def on_attention(part: str, module: nn.Module, inputs: AttentionInputs) -> Tensor:
            if part != self.loaded.chosen:
                return attended(inputs)
            check_sizes(inputs, sizes)
            seen.add(inputs.layer)
            if longest[0] > self._described.get(inputs.layer, 0):
                self._described[inputs.layer] = longest[0]
                self.own[inputs.layer] = describe_allowed(
                    inputs.unselective or inputs.spec.mask, *longest
                )
                if inputs.unselective is not None:
                    self.own[inputs.layer] += SELECTED
            self.modules[inputs.layer] = module
            layer_recorders = recorders.get(inputs.layer, ())
            cuts = cuts_of_layer(variants or self.settings.variants, inputs.layer)
            if layer_recorders or cuts is not None:
                inputs = replace(inputs, gate=session.gate_of(module, inputs))
                if cuts is not None and inputs.gate is not None:
                    session.replace_taken(inputs, cuts.replace_heads_)
            if self.loaded.parts[part].no_projection:
                inputs = replace(inputs, out_weight=None)
            elif session.projection is not None:
                self.projections[inputs.layer] = session.projection
            show = partial(
                attend,
                recorders=layer_recorders,
                need_output=self.settings.all_outputs
                or final
                or bool(share_recorders)
                or inputs.layer < last,
                tile_elements=self.settings.tile_elements,
                cuts=cuts,
            )
            inputs = self._rescaled(inputs)
            masked = self._masked(inputs, pad)
            if self.settings.same_scores and masked is not inputs:
                output = show(replace(inputs, unselective=None), observed=masked.spec.mask)
            else:
                output = show(masked)
            if progress is not None:
                progress(inputs.layer + 1, last + 1)
            if output is None:
                raise StopForward
            return output

        session = self.loaded.capture(on_attention, self.loaded.part.gated)

        def on_mixing(layer: int, inputs: MixingInputs) -> None:
            show_shares(layer, inputs, batch.tokens.lengths, share_recorders[layer])

        with self._watching_mixing(share_recorders, on_mixing):
            result = self._run(session, batch)
        if missed := set(recorders) - seen:
            message = f"layer {min(missed)} attended to two tokens and not to this text"
            raise AttnscopeError(
                message, where=arg("layer"), hint=f"select other layers with {arg('layer')}"
            )
        if not final:
            return None
        if getattr(result, "last_hidden_state", None) is None:
            message = f"{type(self.loaded.model).__name__} gives no states behind its last layer"
            raise AttnscopeError(message, where=arg("model"), hint="effects are measured in these")
        hidden: Tensor = result.last_hidden_state
        return hidden

    def _run(self, session: AttentionCapture, batch: Batch) -> Any:
        result = None
        try:
            with torch.inference_mode(), capturing(session):
                result = self.run(batch)
        except IndexError as e:
            names = [
                frame.f_globals["__name__"].partition(".")[0]
                for frame, _ in walk_tb(e.__traceback__)
            ]
            if [name for name in names if name not in ("torch", "numpy")][-1] == "attnscope":
                raise  # a fault of ours, inside the model's attention
            message = f"the model fails on a text of {max(batch.tokens.lengths)} tokens ({e})"
            hint = f"pass {arg('truncate', True)} to truncate the text"
            raise AttnscopeError(message, where=arg("text"), hint=hint) from e
        except ValueError as e:
            written = next(iter(str(e).splitlines()), "")[:200]
            counted = [kind for kind in ("image", "video") if f"{kind} tokens" in written]
            if not batch.media or not counted:
                raise
            # A model may generate the placeholder of a picture, which transformers only reads with one.
            hint = f"generate fewer tokens ({arg('generate')})"
            raise AttnscopeError(
                f"transformers finds other pictures in the text ({written})", hint=hint
            ) from e
        return result

    def logits(self, hidden: Tensor) -> Tensor:
        if self.loaded.frames is not None:
            with torch.inference_mode():
                logits: Tensor = self.loaded.predicting.get_output_embeddings()(hidden).float()
            return logits
        return apply_head(self.loaded.predicting, hidden)

    def final_states(self, hidden: Tensor) -> Tensor:
        """Return hidden states as they are: the model has normed them."""
        return hidden

    def _rescaled(self, inputs: AttentionInputs) -> AttentionInputs:
        """Return one layer's attention with the factor of scores that was asked for."""
        if self.settings.scale is None:
            return inputs
        return replace(inputs, spec=replace(inputs.spec, scale=self.settings.scale))

    def _masked(self, inputs: AttentionInputs, pad: Mask) -> AttentionInputs:
        """Return one layer's attention with the mask that was asked for."""
        own = inputs.spec.mask
        if all(isinstance(term, Own) for term in self.settings.terms):
            return inputs
        used = intersect((build_mask(self.settings.terms, own, self.settings.resolved), pad))
        unselective = inputs.unselective
        if unselective is not None:
            unselective = intersect(
                (build_mask(self.settings.terms, unselective, self.settings.resolved), pad)
            )
        return replace(inputs, spec=replace(inputs.spec, mask=used), unselective=unselective)

    def run(self, batch: Batch, **more: Any) -> Any:
        """Return the model's result for a batch; `more` is passed to it."""
        model = self.loaded.model
        source = batch.context or self.settings.encoder_texts
        if self.loaded.chosen in ("decoder", "cross"):
            inputs = {f"decoder_{name}": value for name, value in _inputs(batch.tokens).items()}
            if self.loaded.frames is None:
                assert source is not None
                inputs |= self._with_defaults(source)
        elif self.loaded.layout is not None or self.loaded.frames is not None:
            inputs = {}
        else:
            inputs = self._with_defaults(batch.tokens)
        inputs |= self._media(batch)
        if self.loaded.chosen == "encoder":
            model = model.get_encoder()
        takes = signature(model.forward).parameters
        if self.loaded.n_segments:
            inputs["token_type_ids"] = batch.tokens.ids[1]
        if batch.tokens.positions is not None:
            if "position_ids" not in takes:
                message = f"{type(model).__name__} takes no position ids"
                hint = "put padding after the text, without position_ids"
                raise UsageError(message, where=arg("input_ids"), hint=hint)
            inputs["position_ids"] = batch.tokens.positions
        if "use_cache" in takes:
            inputs["use_cache"] = False
        if "return_dict" in takes:  # False by default in DPR's encoder
            inputs["return_dict"] = True
        with ExitStack() as stack:
            stack.enter_context(rotated_by_length(self.loaded.model, batch.tokens.lengths))
            if not self.settings.padded_rows:
                stack.enter_context(padding_embedded_as_zero(self.loaded.model, batch.tokens.real))
            return model(**inputs, **more)

    def _with_defaults(self, texts: TokenTensors) -> dict[str, Any]:
        return _inputs(texts) | default_inputs(
            self.loaded.model, self.loaded.defaults, texts.ids[0]
        )

    def _media(self, batch: Batch) -> dict[str, Tensor]:
        """Return the inputs that are no token ids, in the model's type."""
        return _in_type(batch.media, self.loaded.model.dtype)

    def residual_stream(self, batch: Batch, positions: Sequence[int]) -> ResidualStream:
        return ResidualStream(self.loaded, self.output_projections(batch), positions)

    def continuation(self, media: Mapping[str, Tensor] | None = None) -> "TransformersContinuation":
        if self.settings.scale is not None:
            hint = f"remove {arg('generate')}, or {arg('scale')}"
            raise UsageError(
                "transformers continues texts with the model's own factor",
                where=arg("scale"),
                hint=hint,
            )
        return TransformersContinuation(self.loaded, media or {})

    def show_mixing(
        self, batch: Batch, observe: Mapping[int, Callable[[MixingInputs], None]]
    ) -> None:
        """Hand what layers without softmax mix tokens by to functions; layers above the last of these do not run."""

        def on_mixing(layer: int, inputs: MixingInputs) -> None:
            observe[layer](inputs)
            if layer == max(observe):
                raise StopForward

        session = AttentionCapture(
            self.loaded.model, lambda part, module, inputs: attended(inputs), lean=True
        )
        with self._watching_mixing(observe, on_mixing):
            self._run(session, batch)

    @contextmanager
    def _watching_mixing(
        self, layers: Collection[int], on_mixing: Callable[[int, MixingInputs], None]
    ) -> Iterator[None]:
        """Hand what these layers mix tokens by to a function; afterwards, all of them have run."""
        part = self.loaded.part
        running = RunningLayers(self.loaded.model)
        unseen = set(layers)

        def observe(inputs: MixingInputs) -> None:
            if (
                running.item is not None
                and running.item[0] == part.listed
                and running.item[1] in layers
            ):
                unseen.discard(running.item[1])
                on_mixing(running.item[1], inputs)

        if not layers:
            yield
            return
        with running.watching(), watching_mixing(self.loaded.model, observe):
            yield
        if unseen:
            message = f"layer {min(unseen)} ran on two tokens and not on this text"
            raise AttnscopeError(
                message, where=arg("layer"), hint=f"select other layers with {arg('layer')}"
            )

    def run_blocks(self, batch: Batch, last: int, observe: BlockObserver) -> None:
        self.forward(batch, {layer: () for layer in self.layers})  # which shows the modules
        n = batch.tokens.real.shape[1]
        pad = batch.tokens.padding()

        def attend_for(
            part: str, inputs: AttentionInputs, hooks: AttentionHooks
        ) -> tuple[Tensor, Mask | None]:
            if part != self.loaded.chosen:
                return attended(inputs), None
            check_sizes(inputs, (len(inputs.q), n, n))
            inputs = self._masked(self._rescaled(inputs), pad)
            return _required(hooks.attend(inputs)), inputs.spec.mask

        runner = BlockRerunner(self.loaded.model, attend_for, last, observe)
        after = in_this_thread(runner.after_block)
        blocks = find_blocks(self.loaded.model, self.modules.values())
        with listening([block.register_forward_hook(after, with_kwargs=True) for block in blocks]):
            self._run(self.loaded.capture(runner.on_attention), batch)
        if missed := {layer for layer in self.layers if layer <= last} - runner.handed:
            raise cannot_rerun(min(missed))

    @property
    def sizes(self) -> tuple[int, int]:
        part = self.loaded.part
        return part.n_layers, part.n_heads

    @property
    def layers(self) -> Sequence[int]:
        return self.loaded.part.layers

    def describe_mask(self) -> str:
        """Return the model's own mask as it was seen: one expression, or the layers of each."""
        if not self.layers:
            # a recurrence reads what came before
            return "causal"
        by_words: dict[str, list[int]] = {}
        for layer, words in sorted(self.own.items()):
            by_words.setdefault(words, []).append(layer)
        scope = ", in the layers that ran"
        if len(self.own) == len(self.layers):
            scope = ""
        if len(by_words) == 1:
            return next(iter(by_words)) + scope
        counts = (
            f"{words} in {len(layers)} of {len(self.own)} layers"
            for words, layers in by_words.items()
        )
        return ", ".join(counts) + scope

    def describe_layer_mask(self, layer: int) -> str:
        return self.own[layer]

    def output_projections(self, batch: Batch) -> list[nn.Module | None]:
        """Return the output projection of every layer, as far as running the batch shows them."""
        self.forward(batch, {layer: () for layer in self.layers})
        return [self.projections.get(layer) for layer in range(self.sizes[0])]

    def value_and_output(self, layer: int) -> tuple[Tensor, Tensor] | str:
        """Return weights of the value and of the output projection, in architectures that the native engine knows."""
        return value_and_output(self.loaded, layer)

    def modules_of(self, layer: int) -> LayerModules | None:
        """Return the modules in architectures that the native engine knows."""
        is_known = native_family(self.loaded.model.config.to_dict()) is not None
        if is_known:
            return layer_modules(self.loaded, layer)
        return None

    def holding(self, layer: int) -> AbstractContextManager[None]:
        return nullcontext()

    def run_uncut(
        self, batch: Batch, recorders: Recorders, progress: Progress | None = None
    ) -> UncutRun:
        """Run all layers; variants run from the first layer on, because intermediate states are not available."""
        hidden = self.forward(batch, recorders, progress, final=True)
        source = self.settings.encoder_texts

        def run(
            variants: Sequence[Variant],
            progress: Progress | None = None,
            rows: Sequence[int] | None = None,
        ) -> Tensor:
            several = None if source is None else source.repeated(len(variants))
            engine = replace(self, settings=replace(self.settings, encoder_texts=several))
            result = engine.forward(
                batch.repeated(len(variants)), {}, progress, final=True, variants=variants
            )
            if rows is None:
                return _required(result)
            return _required(result)[:, rows]

        return UncutRun(_required(hidden), run)


class TransformersContinuation:
    """A text that grows, with the model's own cache; see protocol.Continuation."""

    def __init__(self, loaded: TransformersModel, media: Mapping[str, Tensor]) -> None:
        self._loaded = loaded
        self._media = media
        self._cache = None
        self._seen = 0
        self._cache_name = cache_argument(loaded.predicting) or "past_key_values"
        part = loaded.part
        # The cache of a hybrid model may count tokens in a layer that does not keep them, and a model that counts
        # positions of pictures (Qwen2.5-Omni) counts again from the first.
        counts_otherwise = any(hasattr(module, "rope_deltas") for module in loaded.model.modules())
        takes_positions = "position_ids" in signature(loaded.predicting.forward).parameters
        self._says_positions = takes_positions and (
            counts_otherwise or len(part.layers) < part.n_layers
        )

    def logits(self, tokens: TokenTensors) -> Tensor:
        session = self._loaded.capture(lambda part, module, inputs: attended(inputs))
        longer = tokens.ids[0].shape[1]
        if any(
            self._seen <= limit < longer for limit in rotation_limits(self._loaded.model.config)
        ):
            # its keys are rotated as those of a short text
            self._cache = None
            self._seen = 0
        ids = tokens.ids[0][:, self._seen :]
        inputs = {
            "input_ids": ids,
            **default_inputs(self._loaded.model, self._loaded.defaults, ids),
        }
        if not self._media or not self._seen:
            inputs["attention_mask"] = tokens.real.long()
        if self._media:
            # Models count positions of pictures in ways of their own, and go on from what they keep of the first call;
            # Qwen's take a mask, which hides nothing here, for new tokens.
            if not self._seen:
                inputs |= _in_type(padded_media(self._media, longer), self._loaded.model.dtype)
        # the cache of a hybrid model may count tokens in a layer that does not keep them
        elif self._says_positions:
            inputs["position_ids"] = torch.arange(self._seen, longer, device=tokens.real.device)[
                None
            ]
        with torch.inference_mode(), capturing(session):
            result = self._loaded.predicting(
                **inputs, **{self._cache_name: self._cache}, use_cache=True
            )
        self._cache = getattr(result, self._cache_name, None)
        # without a cache to hand on, the whole text runs again
        self._seen = 0 if self._cache is None else longer
        logits: Tensor = result.logits[0, -1].float()
        return logits


def _in_type(media: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in media.items()
    }


def _inputs(texts: TokenTensors) -> dict[str, Any]:
    return {"input_ids": texts.ids[0], "attention_mask": texts.real.long()}


def _required(output: Tensor | None) -> Tensor:
    assert output is not None
    return output


def describe_allowed(mask: Mask, n_queries: int, n_keys: int, index: int = 0) -> str:
    """Return a mask expression for the mask of a text of the batch, or a statement that none fits."""
    mask_tensor = getattr(mask, "tensor", None)
    device = torch.device("cpu")
    if isinstance(mask_tensor, Tensor):
        device = mask_tensor.device
    q = torch.arange(n_queries, device=device)[:, None]
    k = torch.arange(n_keys, device=q.device)[None]
    mask_cells = mask.allowed(q, k)
    if mask_cells is None:
        return "bidirectional"
    cells = mask_cells
    if mask_cells.ndim != 2:
        cells = mask_cells[index if len(mask_cells) > 1 else 0]
    allowed = cells if cells.ndim == 2 else cells[0]
    if mask.per_head and not (cells == allowed).all():
        return _CUSTOM
    if allowed.all():
        return "bidirectional"
    if n_queries == n_keys:
        before = int(allowed[-1].sum())
        after = int(allowed[0].sum())
        candidates: list[tuple[MaskTerm, ...]] = [(Causal(),), (Causal(), SlidingWindow(before))]
        for terms in [*candidates, (SlidingWindow(max(before, after)),)]:
            described = build_mask(terms).allowed(q, k)
            if described is not None and torch.equal(allowed, described):
                return "+".join(map(str, terms))
    return _CUSTOM
