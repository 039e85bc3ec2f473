"""The transformer stack: embedding, then blocks, with hooks on attention."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn

from attnscope.base.model_config import ModelConfig, OutputHead, Rope
from attnscope.model.hooks import AttentionHooks
from attnscope.model.inputs import AttentionSpec
from attnscope.model.layers import (
    Embedding,
    KeyValueCache,
    LayerContext,
    Linear,
    TransformerBlock,
    make_norm,
)
from attnscope.model.masks import PaddingMask, ShiftedMask, intersect
from attnscope.model.matmul import linear
from attnscope.model.positions import (
    PositionBias,
    at_positions,
    learned_rows,
    position_bias,
    rotary_tables,
    sinusoidal,
)
from attnscope.model.weights import WeightStore
from attnscope.request.masks.terms import Bidirectional, Mask


class PredictionHead(nn.Module):
    """Maps the last block's output to logits: a norm, a transform, a matrix, a bias and a cap, as configured."""

    def __init__(self, config: ModelConfig, final: OutputHead) -> None:
        super().__init__()
        self.final = final
        d = config.d_model
        self.norm = make_norm(config) if final.norm else nn.Identity()
        self.transform = Linear(d, d, final.transform_bias) if final.transform else None
        self.transform_norm = make_norm(config) if final.transform else nn.Identity()
        self.decoder = None if final.tied else Linear(d, config.vocab_size, bias=False)
        self.bias = nn.Parameter(torch.empty(config.vocab_size)) if final.bias else None

    def forward(self, hidden: Tensor, embedding: Tensor, *, capped: bool = True) -> Tensor:
        """Map final states, (N, D), to logits, (N, V), float32; a tied head multiplies by `embedding`, (V, D)."""
        x = self.norm(hidden)
        if self.transform is not None:
            x = self.transform_norm(self.transform(x, self.final.transform))
        logits = linear(
            x, embedding if self.decoder is None else self.decoder.weight, self.bias
        ).float()
        if self.final.scale is not None:
            logits = logits * self.final.scale
        if capped and self.final.softcap is not None:
            logits = torch.tanh(logits / self.final.softcap) * self.final.softcap
        return logits


# token ids, segments, and position ids that take the place of counted ones, (B, T) each, int64, padded on the right
Ids = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor | None]
RunBlock = Callable[[Tensor, AttentionHooks], Tensor]  # runs a block on another input (B, T, D)
# called after each layer with the layers done, and all that run
Progress = Callable[[int, int], None]
# layer, its block, input, output, and mask
BlockObserver = Callable[[int, RunBlock, Tensor, Tensor, Mask], None]


class Embed(nn.Module):
    """Token, position and segment vectors, summed, scaled and normed as configured; and what all layers share."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = Embedding(config.vocab_size, config.d_model)
        rows = (config.max_positions or 0) + config.position_offset
        self.positions = None
        if config.positions == "learned":
            self.positions = Embedding(rows, config.d_model)
        self.segments = None
        if config.n_segments:
            self.segments = Embedding(config.n_segments, config.d_model)
        self.norm = make_norm(config) if config.embedding_norm else nn.Identity()
        relative = config.relative_bias
        if relative is None:
            self.relative_bias = None
        else:
            self.relative_bias = Embedding(relative.buckets, config.n_heads)

        table = config.disentangled
        self.distances = None if table is None else Embedding(2 * table.span, config.d_model)
        if table is not None and table.norm:
            self.distances_norm = make_norm(config)
        else:
            self.distances_norm = nn.Identity()

    def forward(self, ids: Tensor, segments: Tensor, positions: Tensor | None = None) -> Tensor:
        """Map (B, T) ids, segments and positions to (B, T, D); None for positions that follow from the ids."""
        x = self.tokens(ids)  # (B, T, D)
        if self.config.embedding_scale is not None:
            x = x * torch.tensor(self.config.embedding_scale, dtype=x.dtype, device=x.device)
        n = ids.shape[1]
        if self.segments is not None:
            x = x + self.segments(segments)
        if self.positions is not None:
            x = x + self.positions(
                learned_rows(ids, self.config) if positions is None else positions
            )
        if self.config.positions == "sinusoidal":
            x = x + sinusoidal(n, self.config.d_model, x.device).to(x.dtype)
        return self.norm(x)  # type: ignore[no-any-return]


class Stack(nn.Module):
    """The transformer that a ModelConfig describes, up to and including `n_layers` blocks.

    Made under `torch.device("meta")` it takes no memory. `randomize.randomize` fills it; a stack of
    `checkpoint.load_stack` is filled piece by piece while it runs.
    """

    def __init__(self, config: ModelConfig, n_layers: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.embed = Embed(config)
        self.blocks = nn.ModuleList(
            TransformerBlock(config, layer) for layer in range(n_layers or config.n_layers)
        )
        self.head = None if config.head is None else PredictionHead(config, config.head)
        self.weights = WeightStore(self.embed, list(self.blocks), head=self.head)

    @torch.inference_mode()
    def run(
        self,
        tokens: Ids,
        masks: Sequence[Mask],
        padding: Mask,
        hooks: AttentionHooks,
        *,
        context: Ids | None = None,
        progress: Progress | None = None,
        final: bool = False,
        observe: BlockObserver | None = None,
    ) -> Tensor | None:
        """Run the blocks, and pass the attention of every recorded layer to its recorders.

        With `final`, all blocks run, also those above the last recorded layer, the hooks compute all outputs, and the
        output of the last block, (B, Q, D), is returned. `observe` is called after each block, whose output is computed
        then, while its weights are in memory.
        """
        count = len(self.blocks) if final else hooks.last + 1
        n_texts, n_queries = tokens[0].shape
        n_keys = (context or tokens)[0].shape[1]
        prepare = partial(hooks.prepare, masks, (n_texts, n_queries, n_keys), tokens[0].device)
        with self.weights.in_order(
            count, meanwhile=None if self.config.sinks else prepare
        ) as blocks:
            x: Tensor | None = self.embed(*tokens)  # (B, Q, D)
            source = None if context is None else self.embed(*context)  # (B, K, D)
            longest = max(n_queries, n_keys)
            positions = tokens[2] if len(tokens) > 2 else None
            settings = self._settings(masks, padding, longest, source, hooks, positions)
            for layer, (block, setting) in enumerate(zip(blocks, settings, strict=False)):
                entering = x
                x = block(x, setting)
                if observe is not None and entering is not None and x is not None:
                    observe(
                        layer, partial(_run_block, block, setting), entering, x, setting.spec.mask
                    )
                if progress is not None:
                    progress(layer + 1, count)
        return x if final else None

    @torch.inference_mode()
    def extend(self, tokens: Ids, masks: Sequence[Mask], cache: KeyValueCache) -> Tensor:
        """Run the tokens of a text, (1, T), that a cache has not seen, and put their keys and values into it.

        Returns the output of the last block for the last token, (1, D).
        """
        start = cache.length
        longest = tokens[0].shape[1]
        shifted = [ShiftedMask(mask, start) if start else mask for mask in masks]
        hooks = AttentionHooks({}, all_outputs=True)
        with self.weights.in_order(len(self.blocks)) as blocks:
            x: Tensor = self.embed(*tokens)[:, start:]  # (1, new, D)
            settings = self._settings(shifted, Bidirectional(), longest, None, hooks)
            for block, setting in zip(blocks, settings, strict=True):
                x = block(x, _from_position(setting, start, cache))
        cache.length = longest
        return x[:, -1]

    @torch.inference_mode()
    def logits(self, hidden: Tensor, *, capped: bool = True) -> Tensor:
        """Return logits, (N, V), float32, of final states, (N, D); not `capped`, they are before the soft-cap."""
        assert self.head is not None
        with self.weights.holding(None), self.weights.holding("head"):
            logits: Tensor = self.head(hidden, self.embed.tokens.weight, capped=capped)
        return logits

    @torch.inference_mode()
    def final_states(self, hidden: Tensor) -> Tensor:
        """Return the last block's output, (…, D), after the model's final norm, if it has one."""
        if self.head is None:
            return hidden
        with self.weights.holding("head"):
            normed: Tensor = self.head.norm(hidden)
        return normed

    @torch.inference_mode()
    def run_variants(
        self,
        inputs: Sequence[Tensor],
        masks: Sequence[Mask],
        hooks: AttentionHooks,
        *,
        context: Ids | None = None,
        progress: Progress | None = None,
        rows: Sequence[int] | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the last block's output for one text under each of several cuts, (V, rows, D).

        Up to the first layer in which it has a cut, a variant equals the text without cuts; it joins the batch at that
        layer, so that no layer runs twice for the same input.

        Args:
            inputs: Input of each block without cuts, (1, T, D).
            hooks: Has the variants, sorted by the first layer in which they have a cut.
            progress: Called with blocks done and to do, each counted once for every variant that runs through it.
            rows: Positions whose final states are wanted, ascending; None for all.
        """
        starts = [min(variant) for variant in hooks.variants]
        first_layer = starts[0]
        count = len(self.blocks)
        done = 0
        total = sum(count - start for start in starts)
        with self.weights.in_order(count, first_layer) as blocks:
            source = None if context is None else self.embed(*context)  # (1, K, D)
            longest = max(inputs[0].shape[1], 0 if context is None else context[0].shape[1])
            settings = self._settings(masks, Mask(), longest, source, hooks, positions)
            x = inputs[first_layer][:0]  # (V, T, D), V grows
            for layer, (block, setting) in enumerate(
                zip(blocks, islice(settings, first_layer, None), strict=False), first_layer
            ):
                x = torch.cat((x, inputs[layer].expand(starts.count(layer), -1, -1)))
                if source is not None:
                    setting = replace(setting, context=source.expand(len(x), -1, -1))
                x = block(x, replace(setting, rows=rows) if layer == count - 1 else setting)
                done += len(x)
                if progress is not None:
                    progress(done, total)
        return x

    def _settings(
        self,
        masks: Sequence[Mask],
        padding: Mask,
        longest: int,
        source: Tensor | None,
        hooks: AttentionHooks,
        positions: Tensor | None = None,
    ) -> Iterator[LayerContext]:
        """Yield the settings of each block; rotary tables are made once for all blocks that share them."""
        c = self.config
        tables: dict[Rope | None, tuple[Tensor, Tensor] | None] = {None: None}
        relative = self.embed.relative_bias
        distances = None
        if self.embed.distances is not None:
            distances = self.embed.distances_norm(self.embed.distances.weight)
        bias: PositionBias | None = None
        bias_name = None
        if c.positions == "alibi" or relative is not None:
            bias, bias_name = position_bias(c, None if relative is None else relative.weight)
        for layer in range(len(self.blocks)):
            mask = intersect((masks[layer], padding))
            spec = AttentionSpec(c.attention_scale, mask, c.softcap, bias, bias_name)
            rotated = c.rope_of(layer)
            if rotated is not None and rotated not in tables:
                like = self.embed.tokens.weight
                lengths = [longest]
                if isinstance(padding, PaddingMask):
                    lengths = list(padding.on_host)
                width = int(c.d_head * rotated.fraction)
                n = longest
                if positions is not None:
                    lengths = (positions.amax(1) + 1).tolist()
                    n = max(lengths)
                cos, sin = rotary_tables(rotated, width, lengths, n, like.device, like.dtype)
                if positions is not None:
                    cos = at_positions(cos, positions)
                    sin = at_positions(sin, positions)
                tables[rotated] = cos, sin
            yield LayerContext(spec, tables[rotated], source, hooks, distances=distances)


def _from_position(setting: LayerContext, start: int, cache: KeyValueCache) -> LayerContext:
    """Return the context of a block for the tokens from a position on."""
    rotary = setting.rotary
    spec = setting.spec
    bias = setting.spec.bias
    if rotary is not None:
        rotary = rotary[0][..., start:, :], rotary[1][..., start:, :]
    if bias is not None:
        spec = replace(spec, bias=lambda q, k, heads: bias(q + start, k, heads))
    return replace(setting, spec=spec, rotary=rotary, cache=cache)


def _run_block(block: nn.Module, setting: LayerContext, x: Tensor, hooks: AttentionHooks) -> Tensor:
    result: Tensor = block(x, replace(setting, hooks=hooks))
    return result
