"""Cuts against `transformers`: a hook on the output projection's input, the same 4-D mask, weights set to 0."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from attnscope.checkpoints.locating import open_checkpoint
from attnscope.engines.protocol import Engine
from attnscope.engines.transformers.engine import TransformersEngine
from attnscope.engines.transformers.loading import load_model
from attnscope.findings.tokens import Token
from attnscope.model.batch import Batch, make_batch
from attnscope.model.cuts import EdgeCut, HeadCut, LayerCut, Variant
from attnscope.model.recorders import MeanOutputRecorder
from tests.helpers.tiny_models import TABLE
from tests.parity.test_logits import SETTINGS, open_native

CPU = torch.device("cpu")
IDS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]
# Of each: the attention module of a layer and its output projection. Norms, positions, soft-cap, windows, sinks differ.
PLACES = {
    "bert with heads": (
        "bert.encoder.layer.{}.attention.self",
        "bert.encoder.layer.{}.attention.output.dense",
    ),
    "distilbert": (
        "distilbert.transformer.layer.{}.attention",
        "distilbert.transformer.layer.{}.attention.out_lin",
    ),
    "gpt2": ("transformer.h.{}.attn", "transformer.h.{}.attn.c_proj"),
    "llama": ("model.layers.{}.self_attn", "model.layers.{}.self_attn.o_proj"),
    "gemma2": ("model.layers.{}.self_attn", "model.layers.{}.self_attn.o_proj"),
    "gpt_oss": ("model.layers.{}.self_attn", "model.layers.{}.self_attn.o_proj"),
}
HEADS = [(0, 1), (2, 3)]  # layer and head
EDGES = [(0, [0, 3], [4, 9], [0, 2]), (1, [2], [7], [3, 7])]  # layer, heads, queries, keys


def batch() -> Batch:
    return make_batch([[Token(number, "x", "x") for number in IDS]], None, CPU)


def engines(path: Path) -> Iterator[Engine]:
    yield open_native(path)
    yield TransformersEngine(load_model(open_checkpoint(path), torch.float32), SETTINGS)


def logits(model: PreTrainedModel) -> Tensor:
    with torch.inference_mode():
        made = model(input_ids=torch.tensor([IDS]))
    return (made.prediction_logits if "prediction_logits" in made else made.logits)[0]


@contextmanager
def heads_replaced(model: PreTrainedModel, row: str, values: dict[int, Tensor]) -> Iterator[None]:
    """Write what stands for heads into what the output projection reads; of each layer (H, Ev), NaN for as it is."""
    handles = []
    for layer, given in values.items():

        def replace(module: nn.Module, args: tuple[Tensor], given: Tensor = given) -> tuple[Tensor]:
            joined = args[0].unflatten(-1, given.shape)
            return (torch.where(given.isnan(), joined, given).flatten(-2),)

        out = model.get_submodule(PLACES[row][1].format(layer))
        handles.append(out.register_forward_pre_hook(replace))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def masked_edges(
    model: PreTrainedModel,
    row: str,
    edges: Sequence[tuple[int, list[int], list[int], list[int]]],
    n: int = len(IDS),
) -> Iterator[None]:
    """Give the attention of some layers a 4-D mask of its own for every head."""
    handles = []
    for layer, heads, queries, keys in edges:

        def narrow(
            module: nn.Module,
            args: tuple[Any, ...],
            named: dict[str, Any],
            cut=(heads, queries, keys),
        ) -> Any:
            mask = named.get("attention_mask")
            place = next(
                (i for i, a in enumerate(args) if isinstance(a, Tensor) and a.ndim == 4), None
            )
            mask = args[place] if mask is None and place is not None else mask
            mask = torch.zeros(1, 1, n, n) if mask is None else mask
            wide = mask.expand(1, model.config.num_attention_heads, n, n).clone()
            h, q, k = (torch.tensor(one) for one in cut)
            wide[0, h[:, None, None], q[:, None], k] = torch.finfo(torch.float32).min
            if place is not None and "attention_mask" not in named:
                return (*args[:place], wide, *args[place + 1 :]), named
            return args, {**named, "attention_mask": wide}

        handles.append(
            model.get_submodule(PLACES[row][0].format(layer)).register_forward_pre_hook(
                narrow, with_kwargs=True
            )
        )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# id of an attention module to what has no weight
ZEROED: dict[int, tuple[list[int], list[int], list[int]]] = {}


def zeroing(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float | None = None,
    softcap: float | None = None, s_aux: Tensor | None = None, **_: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Eager attention with some weights set to 0 after the softmax."""
    share = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask[..., : k.shape[2]]
    if s_aux is not None:
        sink = s_aux[None, :, None, None].expand(len(q), -1, q.shape[2], 1)
        weights = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    if id(module) in ZEROED:
        h, i, j = (torch.tensor(one) for one in ZEROED[id(module)])
        weights[0, h[:, None, None], i[:, None], j] = 0.0
    return (weights @ v).transpose(1, 2).contiguous(), weights


AttentionInterface.register("zeroing", zeroing)
AttentionMaskInterface.register("zeroing", eager_mask)


def assert_near(ours: Tensor, theirs: Tensor) -> None:
    """1e-5 of the largest logit: float32 over three layers with large weights."""
    difference = float((ours - theirs).abs().max() / theirs.abs().max())
    assert difference < 1e-5, difference


def variants(means: dict[int, Tensor]) -> list[Variant]:
    """Zeroed heads, mean heads, edges both ways, and all of it at once; sorted by the first layer of each."""
    zero = {layer: LayerCut((HeadCut(head),)) for layer, head in HEADS}
    mean = {layer: LayerCut((HeadCut(head, means[layer][head]),)) for layer, head in HEADS}
    found: list[Variant] = [zero, mean]
    for renormalised in (True, False):
        found.append({n: LayerCut((), (EdgeCut(*cut, renormalised),)) for n, *cut in EDGES})
    both = {
        layer: LayerCut(zero.get(layer, LayerCut()).heads, found[2].get(layer, LayerCut()).edges)
        for layer in range(3)
    }
    return [*found, both, {2: LayerCut((HeadCut(0),))}]


@pytest.mark.parametrize("name", PLACES)
def test_cuts_equal_transformers(name: str, tmp_path: Path) -> None:
    (row,) = (row for row in TABLE if row.name == name)
    model = row.save(tmp_path)
    plain = logits(model)
    shape = model.config.num_attention_heads
    n_layers = model.config.num_hidden_layers
    for engine in engines(tmp_path):
        recorders = {
            n: MeanOutputRecorder(range(shape), width(engine), batch().tokens.real)
            for n in range(n_layers)
        }
        told: list[tuple[int, int]] = []
        uncut = engine.run_uncut(batch(), {n: [one] for n, one in recorders.items()})
        assert_near(engine.logits(uncut.hidden[0]), plain)
        means = {n: one.compute() for n, one in recorders.items()}
        found = uncut.run(
            variants(means), lambda done, total, told=told: told.append((done, total))
        )
        assert told[-1][0] == told[-1][1]
        torch.testing.assert_close(
            uncut.run(variants(means), rows=[2, 8]), found[:, [2, 8]], rtol=1e-5, atol=1e-5
        )
        ours = [engine.logits(one) for one in found]
        empty = torch.full((n_layers, shape, width(engine)), torch.nan)
        zero, mean, last = (empty.clone() for _ in range(3))
        for layer, head in HEADS:
            zero[layer, head] = 0.0
            mean[layer, head] = means[layer][head]
        last[2, 0] = 0.0
        expected = []
        for values in (zero, mean):
            with heads_replaced(model, name, dict(enumerate(values))):
                expected.append(logits(model))
        with masked_edges(model, name, EDGES):
            expected.append(logits(model))
            with heads_replaced(model, name, dict(enumerate(zero))):
                both = logits(model)
        expected.append(zeroed(model, name))
        with heads_replaced(model, name, dict(enumerate(last))):
            expected += [both, logits(model)]
        for mine, theirs in zip(ours, expected, strict=True):
            assert_near(mine, theirs)
            # a cut that changes nothing would prove nothing
            assert float((theirs - plain).abs().max()) > 1e-3


def width(engine: Engine) -> int:
    """Width of a value."""
    seen: list[int] = []

    class Watch(MeanOutputRecorder):
        def update(self, tile):
            seen.append(tile.output.shape[-1])

    engine.forward(batch(), {0: [Watch([0], 1, batch().tokens.real)]})
    return seen[0]


def zeroed(model: PreTrainedModel, name: str) -> Tensor:
    """Logits under weights set to 0."""
    before = model.config._attn_implementation
    for layer, *cut in EDGES:
        ZEROED[id(model.get_submodule(PLACES[name][0].format(layer)))] = tuple(cut)
    try:
        model.set_attn_implementation("zeroing")
        return logits(model)
    finally:
        model.set_attn_implementation(before)
        ZEROED.clear()
