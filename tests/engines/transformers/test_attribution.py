"""`--by logit` in models that transformers runs: the parts of a logit, and the head that makes it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import attnscope
from attnscope.base.errors import UsageError
from tests.helpers.hybrids import make_hybrid, save_hybrid
from tests.parity.test_generation import CAUSAL

TEXT = "the bank by the river was old"
NATIVE = [
    row
    for row in CAUSAL
    if "Bert" not in row.model.__name__ and "Roberta" not in row.model.__name__
]
QUICK = ("llama", "gpt2", "gemma2", "olmo2", "gpt_neox")


def _attribution(report: Any) -> Any:
    (found,) = [text.attribution for text in report.data.texts]
    assert found is not None
    return found


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=() if row.name in QUICK else pytest.mark.exhaustive, id=row.name)
        for row in NATIVE
    ],
)
def test_both_engines_take_a_logit_apart_alike(row, tmp_path):
    row.save(tmp_path)
    options = {
        "model": str(tmp_path),
        "by": "logit",
        "layer": 0,
        "head": 0,
        "stages": [],
        "input_ids": [3, 14, 15, 9, 26],
    }
    native, other = (
        _attribution(attnscope.inspect(engine=engine, **options))
        for engine in ("native", "transformers")
    )
    assert native.target.id == other.target.id
    for name in ("total", "embedding", "constant", "heads", "attention_biases", "mlps", "sources"):
        np.testing.assert_allclose(
            getattr(other, name), getattr(native, name), atol=2e-4, err_msg=name
        )


def _direct_effect(
    model: Any, projection: str, width: int, layer: int, head: int, ids: Tensor, target: int
) -> float:
    """What a head adds to a logit: how the logit changes if what it writes is taken out of the last hidden state alone.

    The final norm keeps the scale that it has. For models that add the output projection to the residual stream.
    """
    kept: dict[str, Tensor] = {}
    norm = getattr(model.base_model, "norm", None) or model.base_model.embedding_norm
    module = model.get_submodule(projection.format(layer=layer))
    handles = [
        module.register_forward_pre_hook(lambda _, args: kept.update(written=args[0].detach())),
        norm.register_forward_hook(
            lambda _, args, output: kept.update(states=args[0].detach(), normed=output.detach())
        ),
    ]
    with torch.no_grad():
        model(input_ids=ids)
    for handle in handles:
        handle.remove()
    alone = torch.zeros_like(kept["written"][0, -1])
    alone[head * width : (head + 1) * width] = kept["written"][
        0, -1, head * width : (head + 1) * width
    ]
    written = module.weight.detach().double() @ alone.double()
    scale = kept["normed"][0, -1].double() / kept["states"][0, -1].double()
    return float((written * scale) @ model.get_output_embeddings().weight[target].detach().double())


HYBRIDS = {
    "qwen3_next": "model.layers.{layer}.self_attn.o_proj",
    "lfm2": "model.layers.{layer}.self_attn.out_proj",
}


@pytest.mark.parametrize(
    "model_type", ["qwen3_next", pytest.param("lfm2", marks=pytest.mark.exhaustive)]
)
def test_heads_of_a_hybrid_add_what_they_write_into_the_last_state(model_type, tmp_path):
    save_hybrid(tmp_path, make_hybrid(model_type))
    report = attnscope.inspect(
        TEXT, model=str(tmp_path), by="logit", stages=[], layer=-1, head="all"
    )
    found = _attribution(report)
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="eager", dtype=torch.float32
    ).eval()
    text = report.data.texts[0]
    ids = torch.tensor([[token.id for token in text.tokens][: found.position + 1]])
    with torch.no_grad():
        logit = float(model(input_ids=ids).logits[0, -1, found.target.id])
    parts = (
        found.heads.sum()
        + found.mlps.sum()
        + found.attention_biases.sum()
        + found.embedding
        + found.constant
    )
    assert float(parts) == pytest.approx(logit, abs=1e-4)
    layers = [layer for layer in range(len(found.heads)) if found.heads[layer].any()]
    assert layers
    assert len(layers) < len(found.heads)
    name = HYBRIDS[model_type]
    width = (
        model.get_submodule(name.format(layer=layers[0])).weight.shape[1] // found.heads.shape[1]
    )
    for layer in layers:
        for head in range(found.heads.shape[1]):
            expected = _direct_effect(model, name, width, layer, head, ids, found.target.id)
            assert float(found.heads[layer, head]) == pytest.approx(expected, abs=1e-4)


def test_a_factor_on_the_residual_stream_is_counted(tmp_path):
    """Granite multiplies what a layer adds, and divides its logits."""
    model = make_hybrid("granitemoehybrid", residual_multiplier=0.25, logits_scaling=4.0)
    save_hybrid(tmp_path, model)
    found = _attribution(
        attnscope.inspect(TEXT, model=str(tmp_path), by="logit", stages=[], layer=-1, head=0)
    )
    eager = AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="eager", dtype=torch.float32
    ).eval()
    report = attnscope.inspect(TEXT, model=str(tmp_path), layer=-1, head=0, stages=[])
    ids = torch.tensor([[token.id for token in report.data.texts[0].tokens][: found.position + 1]])
    with torch.no_grad():
        logit = float(eager(input_ids=ids).logits[0, -1, found.target.id])
    assert found.total == pytest.approx(logit, abs=1e-4)
    name = "model.layers.{layer}.self_attn.o_proj"
    (layer, *_) = [layer for layer in range(len(found.heads)) if found.heads[layer].any()]
    width = eager.get_submodule(name.format(layer=layer)).weight.shape[1] // found.heads.shape[1]
    for head in range(found.heads.shape[1]):
        plain = _direct_effect(eager, name, width, layer, head, ids, found.target.id)
        assert float(found.heads[layer, head]) == pytest.approx(plain * 0.25 / 4.0, abs=1e-4)


def test_a_head_that_is_more_than_a_matrix_is_refused():
    with pytest.raises(
        UsageError, match="are not a sum over its parts: its output head is more than a matrix"
    ):
        attnscope.inspect("the [MASK] bank", engine="transformers", by="logit")


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        # the residual stream of MiniMax is what its norms give
        ("minimax", "layer 1 does more than add to its residual stream"),
        # Zamba2 adds its shared attention to the input of a Mamba layer
        ("zamba2", "layer 2 does more than add to its residual stream"),
    ],
)
def test_a_layer_that_does_more_than_add_is_refused(model_type, reason, tmp_path):
    save_hybrid(tmp_path, make_hybrid(model_type))
    with pytest.raises(
        UsageError, match=f"the logits of {model_type} are not a sum over its parts: {reason}"
    ):
        attnscope.inspect(TEXT, model=str(tmp_path), by="logit")
