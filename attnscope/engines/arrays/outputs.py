"""Compare given outputs of attention with those that are computed from the same queries, keys and values."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import torch
from torch import Tensor

from attnscope.engines.arrays.engine import ArraysEngine
from attnscope.findings.given_output import GivenOutput, TriedRule
from attnscope.model.attention import attended
from attnscope.model.batch import Batch
from attnscope.model.inputs import AttentionInputs
from attnscope.model.masks import Intersection, ShiftedMask, intersect
from attnscope.request.masks.terms import Bidirectional, Causal, Mask, MaskTerm, SlidingWindow

# shares of the largest output that rounding explains: of float32, and of 16 bits
_EXACT = 1e-4
_NARROW = 2e-2


def compare_outputs(engine: ArraysEngine, batch: Batch) -> list[GivenOutput]:
    """Compare the given outputs of every text in a batch with the computed ones."""
    layers = engine.given.layers
    lengths = batch.tokens.lengths
    firsts = [engine.given.first_queries[index] for index in engine.numbers(batch)]
    # given, computed, difference
    texts: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in lengths]
    with torch.inference_mode():
        for layer in layers:
            inputs, given_output = _layer(engine, layer, batch)
            computed = attended(inputs)
            sides = given_output, computed, (given_output - computed).abs()
            for rows, first_query, length, layer_outputs in zip(
                range(len(lengths)), firsts, lengths, texts, strict=True
            ):
                here = slice(first_query, length)
                layer_outputs.append(tuple(side[rows, :, here].cpu() for side in sides))  # type: ignore[arg-type]
        outputs = [
            _compared(list(layers), layer_outputs, first_query)
            for layer_outputs, first_query in zip(texts, firsts, strict=True)
        ]
        return [
            output if output.first_layer is None else _with_tries(engine, batch, index, output)
            for index, output in enumerate(outputs)
        ]


def _layer(engine: ArraysEngine, layer: int, batch: Batch) -> tuple[AttentionInputs, Tensor]:
    """Return the inputs of a layer in float32, and the given output, (B, H, Q, E)."""
    inputs = engine.inputs(layer, batch)
    wide = replace(inputs, q=inputs.q.float(), k=inputs.k.float(), v=inputs.v.float())
    return wide, engine.side(layer, batch, "output").float()


def _share(output: Tensor) -> float:
    """Return the share of the largest output that rounding explains; 16-bit numbers may have been saved as float32."""
    narrow = any(
        torch.equal(output.to(dtype).float(), output) for dtype in (torch.bfloat16, torch.float16)
    )
    return _NARROW if narrow else _EXACT


def _compared(
    layers: list[int], layer_outputs: Sequence[tuple[Tensor, Tensor, Tensor]], first_query: int
) -> GivenOutput:
    """Compare one text; `first_query` is the position of its first query."""
    # (layers, heads)
    differences = np.stack([gap.amax((1, 2)).numpy() for _, _, gap in layer_outputs])
    limits = [
        _share(given_output) * max(1e-6, float(computed.abs().max()))
        for given_output, computed, _ in layer_outputs
    ]
    beyond = [
        layer
        for layer, row, limit in zip(layers, differences, limits, strict=True)
        if row.max() > limit
    ]
    at, head = map(int, np.unravel_index(int(differences.argmax()), differences.shape))
    given_output, computed, gap = layer_outputs[at]
    query, dimension = np.unravel_index(int(gap[head].argmax()), gap[head].shape)
    cell = head, int(query), int(dimension)
    return GivenOutput(
        layers=layers,
        differences=differences.astype(np.float32),
        layer=layers[at],
        head=head,
        query=first_query + int(query),
        dimension=int(dimension),
        given=float(given_output[cell]),
        computed=float(computed[cell]),
        limit=limits[layers.index(beyond[0]) if beyond else at],
        agrees=not beyond,
        first_layer=beyond[0] if beyond else None,
    )


def _with_tries(engine: ArraysEngine, batch: Batch, text: int, output: GivenOutput) -> GivenOutput:
    """Compute the first layer that differs under other rules, and add which of them explains the given output."""
    assert output.first_layer is not None
    right, given_output = _layer(engine, output.first_layer, batch)
    here = slice(
        engine.given.first_queries[engine.numbers(batch)[text]], batch.tokens.lengths[text]
    )
    tried = [
        TriedRule(rule, float((given_output - attended(inputs))[text, :, here].abs().max()))
        for rule, inputs in _other_rules(engine, right, batch)
    ]
    tried.sort(key=lambda attempt: attempt.difference)
    explains = tried and tried[0].difference <= output.limit
    return msgspec.structs.replace(
        output, tried=tried, explained_by=tried[0].rule if explains else None
    )


def _other_rules(
    engine: ArraysEngine, inputs: AttentionInputs, batch: Batch
) -> Iterator[tuple[str, AttentionInputs]]:
    """Yield the mistakes that programs make, each with the inputs under it."""
    spec = inputs.spec
    sizes = engine.given.sizes

    def under(**changes: object) -> AttentionInputs:
        return replace(inputs, spec=replace(spec, **changes))  # type: ignore[arg-type]

    if isinstance(spec.mask, Intersection):
        parts = spec.mask.parts
    else:
        parts = (spec.mask,)
    terms = [part for part in parts if isinstance(part, MaskTerm)]
    restrictions = [part for part in parts if not isinstance(part, MaskTerm)]

    def masked(*masks: Mask) -> AttentionInputs:
        return under(mask=intersect((*masks, *restrictions)))

    windows = [term for term in terms if isinstance(term, SlidingWindow)]
    plain = [term for term in terms if not isinstance(term, SlidingWindow)]
    causal = any(isinstance(term, Causal) for term in terms)
    if causal:
        yield (
            "mask bidirectional",
            masked(*[term for term in terms if not isinstance(term, Causal)]),
        )
    elif not terms or terms == [Bidirectional()]:
        yield "mask causal", masked(Causal())
    firsts = [engine.given.first_queries[index] for index in engine.numbers(batch)]
    if causal and any(firsts):
        kept_terms = [term for term in terms if not isinstance(term, Causal)]
        yield (
            "causal from the first key on (top left)",
            masked(*kept_terms, ShiftedMask(Causal(), -firsts[0])),
        )
    for window in windows[:1]:
        yield "no window", masked(*plain)
        for size in (window.size - 1, window.size + 1):
            if size > 0:
                yield f"window {size}", masked(*plain, SlidingWindow(size))
    if spec.softcap is not None:
        yield "no soft-cap", under(softcap=None)
    if spec.sinks is not None:
        yield "no sinks", under(sinks=None)
    root = max(1, sizes.width) ** -0.5
    for name, scale in (("scale 1/√width", root), ("scale 1", 1.0)):
        if abs(scale - spec.scale) > 1e-6 * abs(scale):
            yield name, under(scale=scale)
    if sizes.kv_heads not in (1, sizes.heads):
        order = torch.arange(sizes.heads) % sizes.kv_heads
        shared = replace(inputs, k=inputs.k[:, order], v=inputs.v[:, order])
        yield "heads that share keys in turn (h mod groups)", shared
