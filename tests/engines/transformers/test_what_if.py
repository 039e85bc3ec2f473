"""Other masks, other ways of ranking, and the forms in which a mask may come, under the transformers engine."""

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModel

from attnscope.base.errors import AttnscopeError
from attnscope.engines.opening import open_source
from attnscope.engines.transformers import interface
from attnscope.engines.transformers.engine import describe_allowed
from attnscope.model.attention import attend
from attnscope.request.masks.terms import Bidirectional
from attnscope.request.run_config import TextInput
from attnscope.run.plan import make_plan
from benchmarks.memory import required_memory
from tests.helpers.requests import requested
from tests.helpers.transformers_runs import SOURCE, run


def pairs(one, other):
    for a, b in zip(one.texts, other.texts, strict=True):
        yield from zip(a.heads, b.heads, strict=True)


@pytest.mark.parametrize("what_if", ["stack", "same-scores"])
@pytest.mark.parametrize(
    ("name", "mask"), [("bert", "causal"), ("llama", "own+window:2"), ("gemma2", "bidirectional")]
)
def test_both_engines_mean_the_same(folders, name, mask, what_if):
    ours, theirs = (
        run(folders(name), engine=e, mask=mask, what_if=what_if) for e in ("native", "transformers")
    )
    assert ours.mask.what_if == theirs.mask.what_if == what_if
    for a, b in pairs(ours, theirs):
        np.testing.assert_allclose(a.stages["weights"], b.stages["weights"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "texts",
    [("the", "the bank by the river was there"), ("the bank by the river was there", "the")],
)
def test_the_models_mask_is_described_by_the_longest_text(folders, texts):
    """A text shorter than the window cannot show the window, so causal would pass for the model's own mask."""
    reports = [
        run(folders("gemma2"), texts, engine=e, mask="causal") for e in ("native", "transformers")
    ]
    assert [report.mask.what_if for report in reports] == ["stack", "stack"]
    assert all("window:3" in report.mask.own for report in reports)


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_same_scores_changes_only_the_softmax_of_a_decoder(folders, name):
    own = run(folders(name), part="decoder", context=SOURCE)
    other = run(
        folders(name), part="decoder", context=SOURCE, mask="own+window:2", what_if="same-scores"
    )
    for a, b in pairs(own, other):
        np.testing.assert_allclose(a.stages["scores"], b.stages["scores"], rtol=0, atol=1e-4)
        far = (
            np.subtract.outer(range(len(a.stages["weights"])), range(len(a.stages["weights"]))) >= 2
        )
        assert (b.stages["weights"][far] == 0).all() and (a.stages["weights"][far] > 0).any()


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "distilbert", "gpt_neox"])
def test_projected_norms_are_those_of_our_own_engine(folders, name):
    ours, theirs = (
        run(folders(name), engine=e, by="projected", head="0") for e in ("native", "transformers")
    )
    for a, b in pairs(ours, theirs):
        np.testing.assert_array_equal(a.top.keys, b.top.keys)
        np.testing.assert_allclose(a.top.projected, b.top.projected, rtol=1e-3, atol=1e-4)


def test_projected_norms_need_an_output_projection_that_is_known(folders, monkeypatch):
    monkeypatch.setattr(interface.AttentionCapture, "_out_weight", lambda *given: None)
    with pytest.raises(AttnscopeError, match="output projection was not found"):
        run(folders("llama"), by="projected")


@pytest.mark.parametrize(
    ("name", "part", "words"),
    [
        ("bert", None, "bidirectional"),
        ("llama", None, "causal"),
        ("mistral", None, "causal+window:3"),
        ("gemma2", None, "causal+window:3 in 1 of 2 layers, causal in 1 of 2 layers"),
        ("t5", "decoder", "causal"),
        ("t5", "cross", "bidirectional"),
    ],
)
def test_the_models_own_mask_in_words(folders, name, part, words):
    assert run(folders(name), part=part, context=SOURCE if part else None).mask.own == words


@pytest.mark.parametrize(("part", "bias"), [("encoder", "relative position"), ("cross", None)])
def test_a_bias_is_named_where_there_is_one(folders, part, bias):
    """T5 hands one of zeros to the attention between its halves."""
    (text, _) = run(folders("t5"), part=part, context=SOURCE if part == "cross" else None).texts
    assert {head.bias for head in text.heads} == {bias}


@pytest.mark.parametrize(("part", "count"), [("encoder", 1), ("decoder", 2), ("cross", 2)])
def test_a_bias_for_every_pair_of_positions_is_in_the_memory_estimate(folders, part, count):
    """Against the size of the tensor that T5 makes; attention between its halves has one of zeros as large."""
    texts = (TextInput("the bank " * 40, context=None if part == "encoder" else "the river " * 30),)
    asked = requested(texts, model=str(folders("t5")), engine="transformers", part=part)
    source = open_source(asked, texts)
    plan = make_plan(asked, source)
    n = len(plan.text_plans[0].tokens)
    table = next(
        m
        for name, m in source.load(1, None, "cpu").module.named_modules()
        if "attention_bias" in name
    )
    made = table(torch.zeros(n, n, dtype=torch.int64))  # (T, T, H)
    assert required_memory(plan)["position bias"] >= count * made.nbytes
    with pytest.raises(AttnscopeError, match=r"position bias \d"):
        make_plan(
            msgspec.structs.replace(asked, max_memory=sum(required_memory(plan).values()) - 1),
            source,
        )
    plain = msgspec.structs.replace(
        asked, model=str(folders("bert")), part=None, texts=(TextInput("the bank"),)
    )
    assert "position bias" not in required_memory(make_plan(plain, open_source(plain, plain.texts)))


def test_a_mask_that_no_expression_says():
    odd = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 0]], dtype=torch.bool)[None, None]
    assert (
        describe_allowed(interface.ProvidedMask(odd, None), 3, 3)
        == "custom, without a mask expression"
    )
    assert describe_allowed(Bidirectional(), 3, 3) == "bidirectional"


def test_an_additive_mask_is_permission_and_bias():
    model = nn.ModuleDict({"attention": nn.Linear(2, 2)})
    model.config = CONFIG_MAPPING["bert"]()
    seen = []

    def watch(part, module, inputs):
        seen.append(inputs.spec)
        return attend(inputs)

    q = torch.randn(1, 1, 3, 4)
    mask = torch.tensor([[0.0, 1.5, torch.finfo(torch.float32).min]] * 3)[None, None]
    output = interface.AttentionCapture(model, watch).run_attention(
        model["attention"], q, q, q, mask, {"scaling": 0.5}
    )
    expected = ((q @ q.mT) * 0.5 + mask).softmax(-1) @ q
    torch.testing.assert_close(output, expected)
    assert seen[0].bias_name == "position"


def test_patches_of_a_picture_go_the_same_way():
    config = CONFIG_MAPPING["vit"](
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        image_size=16,
        patch_size=4,
    )
    torch.manual_seed(0)
    model = AutoModel.from_config(config, attn_implementation="eager").eval()
    picture = torch.randn(1, 3, 16, 16)
    seen = []

    def watch(part, module, inputs):
        seen.append((inputs.q @ inputs.k.mT * inputs.spec.scale).softmax(-1))
        return attend(inputs)

    with torch.no_grad():
        theirs = model(picture, output_attentions=True).attentions
        interface.register()
        model.set_attn_implementation(interface.NAME)
        with interface.capturing(interface.AttentionCapture(model, watch)):
            model(picture)
    for ours, its in zip(seen, theirs, strict=True):
        torch.testing.assert_close(ours, its, rtol=0, atol=1e-5)
