"""Models that compute attention by operators of their own, outside of transformers' attention interface."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.cli import main
from tests.engines.transformers.test_refusals import refused
from tests.families.census import build, text_class
from tests.helpers.architectures import write_tokenizer

TEXT, SHORT = "the bank by the river was old", "the river"
# One of each way to write it: a bias in four dimensions, scores of heads side by side, einsum, and convolutions.
QUICK = ["rembert", "xglm", "xlnet", "convbert"]
OTHERS = [
    "deberta",
    "flaubert",
    "fsmt",
    "gpt_neox_japanese",
    "ibert",
    "mvp",
    "openai-gpt",
    "roformer",
    "tapas",
    "xlm",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a function that writes a type as a tiny random folder, once."""
    written: dict[str, tuple[Path, Any]] = {}

    def write(model_type: str) -> tuple[Path, Any]:
        if model_type not in written:
            path = tmp_path_factory.mktemp(model_type)
            kind = text_class(hf.CONFIG_MAPPING[model_type])
            build(model_type, kind).save_pretrained(path)
            write_tokenizer(path)
            model = kind.from_pretrained(
                path, attn_implementation="eager", dtype=torch.float32
            ).eval()
            written[model_type] = path, model
        return written[model_type]

    return write


@torch.inference_mode()
def _outputs(model: Any, ids: list[int]) -> Any:
    tensor = torch.tensor([ids])
    more = {"decoder_input_ids": tensor} if model.config.is_encoder_decoder else {}
    return model(
        input_ids=tensor, attention_mask=torch.ones_like(tensor), output_attentions=True, **more
    )


def _part(model: Any) -> dict[str, str]:
    return {"part": "encoder"} if model.config.is_encoder_decoder else {}


@pytest.mark.parametrize(
    "model_type", [*QUICK, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in OTHERS)]
)
def test_weights_of_followed_operators_are_those_that_eager_transformers_returns(
    folder, model_type
):
    path, model = folder(model_type)
    options = {"layer": "all", "head": "all", "stages": ("masked", "weights"), **_part(model)}
    report = attnscope.inspect([TEXT, SHORT], model=str(path), **options)  # a batch, padded
    for text in report.data.texts:
        outputs = _outputs(model, [token.id for token in text.tokens])
        expected = outputs.get("encoder_attentions") or outputs["attentions"]
        for head in text.heads:
            weights = expected[int(head.layer)][0, int(head.head)].numpy()
            np.testing.assert_allclose(head.stages["weights"], weights, atol=2e-5)
            masked = torch.from_numpy(head.stages["masked"].copy())
            np.testing.assert_allclose(masked.softmax(-1), weights, atol=2e-5)


@pytest.mark.parametrize("model_type", ["rembert", "xglm"])
def test_a_borrowed_model_is_followed_and_is_as_it_was_afterwards(folder, model_type):
    path, model = folder(model_type)
    tokenizer = str(path / "tokenizer.json")
    hooks = [len(module._forward_hooks) for module in model.modules()]
    live = attnscope.inspect(TEXT, model=model, tokenizer=tokenizer, layer="all", head="all")
    stored = attnscope.inspect(TEXT, model=str(path), layer="all", head="all")
    for mine, other in zip(live.data.texts[0].heads, stored.data.texts[0].heads, strict=True):
        np.testing.assert_allclose(mine.stages["weights"], other.stages["weights"], atol=1e-6)
    assert model.config._attn_implementation == "eager"
    assert [len(module._forward_hooks) for module in model.modules()] == hooks


def test_a_head_that_is_cut_changes_the_prediction_as_a_hook_does(folder):
    path, model = folder("xglm")
    layer, head = 2, 1
    cut = attnscope.ablate(
        TEXT, model=str(path), each="head", layer=layer, head=head, replacement="zero"
    )
    tokens = cut.data.tokens
    width = model.config.d_model // model.config.attention_heads

    def without_head(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        (states,) = args
        states = states.clone()
        states[..., head * width : (head + 1) * width] = 0
        return (states,)

    ids = [token.id for token in tokens]
    before = _outputs(model, ids)
    handle = model.get_submodule(
        f"model.layers.{layer}.self_attn.out_proj"
    ).register_forward_pre_hook(without_head)
    after = _outputs(model, ids)
    handle.remove()
    expected, changed = (
        outputs["logits"][0, cut.data.positions].log_softmax(-1) for outputs in (before, after)
    )
    # in bits
    divergence = float((expected.exp() * (expected - changed)).sum(-1).mean()) / np.log(2)
    assert divergence > 1e-3
    assert float(cut.data.effects[0].kl[0]) == pytest.approx(divergence, abs=1e-4)


def test_a_mask_as_a_what_if_bars_the_cells_it_names(folder):
    path, model = folder("rembert")
    report = attnscope.inspect(TEXT, model=str(path), mask="causal", layer=0, head="all")
    ids = torch.tensor([[token.id for token in report.data.texts[0].tokens]])
    causal = torch.full((1, 1, ids.shape[1], ids.shape[1]), torch.finfo(torch.float32).min).triu(1)
    with torch.inference_mode():
        expected = model(input_ids=ids, attention_mask=causal, output_attentions=True)[
            "attentions"
        ][0][0]
    for head in report.data.texts[0].heads:
        np.testing.assert_allclose(head.stages["weights"], expected[int(head.head)], atol=2e-5)


@pytest.mark.parametrize(
    "altered",
    [
        pytest.param(lambda weights: weights * 1.5, id="scaled"),
        pytest.param(
            lambda weights: torch.nn.functional.threshold(weights, 0.3, 0.0), id="thresholded"
        ),
        pytest.param(lambda weights: (weights + 1.0).softmax(-1), id="softmax_of_weights"),
    ],
)
def test_weights_that_are_more_than_a_softmax_of_scores_are_refused(folder, altered):
    path, model = folder("rembert")
    model = deepcopy(model)

    class Altered(nn.Module):
        def forward(self, weights: Tensor) -> Tensor:
            return altered(weights)

    for layer in model.base_model.encoder.layer:
        layer.attention.self.dropout = Altered()
    with pytest.raises(AttnscopeError):
        attnscope.inspect(TEXT, model=model, tokenizer=str(path / "tokenizer.json"))


@pytest.mark.parametrize("model_type", ["rembert", "squeezebert"])
def test_check_compares_followed_attention_with_what_transformers_returns(
    folder, capsys, model_type
):
    path, _ = folder(model_type)
    assert main(["check", TEXT, "--model", str(path)]) == 0
    compared = (
        "transformers returns no attention weights for this model"
        not in capsys.readouterr().out.replace("\n   ", " ")
    )
    assert compared == (model_type == "rembert")  # what SqueezeBERT returns as weights are scores


def test_attention_by_other_operators_is_refused_by_name(folder):
    path, _ = folder("fnet")
    assert "no attention was found in 'fnet'" in refused(path)
