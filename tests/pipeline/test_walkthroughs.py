"""The worked examples of docs/walkthroughs.md, to the digit."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from attnscope.engines.opening import open_source
from attnscope.findings.heads import STAGES
from attnscope.request.run_config import TextInput
from attnscope.run.session import Session, inspect
from tests.helpers.requests import requested
from training.walkthroughs import EXAMPLES, SAMPLES, word_tokenizer

LIFE = "Life is short, eat dessert first"
MINUTE = ("It took one minute.", "The size was minute.")
SLEEPS = ("the cat sleeps", "the small dog runs fast")


def run(config, *texts, context=None, **options):
    given = tuple(TextInput(text, context=context) for text in texts)
    kept = {"layer": "0", "head": "all", "stages": STAGES} | options
    return inspect(requested(texts=given, config=config, **kept))


def parts(config, texts):
    """The stack itself, and the vectors that enter its first layer."""
    source = open_source(requested((), config=config), [TextInput(text) for text in texts])
    stack = source.load(1, torch.float32, torch.device("cpu")).module
    ids = [torch.tensor([[t.id for t in source.tokenizer.encode(text)]]) for text in texts]
    return stack.blocks[0].attention, [stack.embed(i, torch.zeros_like(i))[0].detach() for i in ids]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_shipped_weights_are_what_the_seeds_give(name):
    make, words = EXAMPLES[name]
    shipped, made = load_file(SAMPLES / name / "weights.safetensors"), make()
    assert shipped.keys() == made.keys()
    assert all(torch.equal(shipped[key], made[key]) for key in made)
    assert (SAMPLES / name / "tokenizer.json").read_text() == word_tokenizer(words)


@pytest.mark.parametrize("text", MINUTE)
def test_single_head_unscaled(text):
    report = run("single-head-unscaled", *MINUTE).texts[MINUTE.index(text)]
    (head,) = report.heads
    attention, vectors = parts("single-head-unscaled", MINUTE)
    x = vectors[MINUTE.index(text)]
    scores = attention.q(x) @ attention.k(x).T
    causal = torch.ones(len(x), len(x)).tril().bool()
    weights = scores.masked_fill(~causal, -torch.inf).softmax(-1)
    assert (attention.q.bias, attention.out, head.scale) == (None, None, 1.0)
    np.testing.assert_allclose(head.stages["scores"], scores.detach(), rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(head.stages["scaled"], head.stages["scores"])
    np.testing.assert_allclose(head.stages["weights"], weights.detach(), atol=1e-5)
    np.testing.assert_allclose(
        head.stages["output"], (weights @ attention.v(x)).detach(), atol=1e-4
    )


def test_the_two_minutes_differ_only_by_where_they_stand():
    """Same word, same embedding; the position and what stands before it make the difference."""
    report = run("single-head-unscaled", *MINUTE)
    first, second = ([t.text for t in text.tokens].index("minute") for text in report.texts)
    assert first == second == 3
    assert report.texts[0].tokens[3].id == report.texts[1].tokens[3].id
    one, other = (text.heads[0].stages["scores"][3] for text in report.texts)
    assert one[3] == pytest.approx(other[3], rel=1e-4), "the same vector meets itself"
    assert not np.allclose(one[:3], other[:3], atol=0.1)


def test_multi_head_unscaled_concatenates_and_then_mixes():
    report = run("multi-head-unscaled", MINUTE[0]).texts[0]
    attention, (x,) = parts("multi-head-unscaled", MINUTE[:1])
    joined = torch.from_numpy(
        np.concatenate([head.stages["output"] for head in report.heads], axis=1)
    )
    q, k, v = (
        layer(x).reshape(len(x), 4, 8).transpose(0, 1)
        for layer in (attention.q, attention.k, attention.v)
    )
    expected = (
        F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        .transpose(0, 1)
        .flatten(1)
    )
    torch.testing.assert_close(attention.out(joined), attention.out(expected), atol=1e-4, rtol=1e-4)
    assert attention.out.bias is not None


@pytest.mark.parametrize("mask", ["own", "causal"])
def test_padded_batch(mask):
    report = run("padded-batch", *SLEEPS, mask=mask)
    attention, vectors = parts("padded-batch", SLEEPS)
    for text, x in zip(report.texts, vectors, strict=True):
        q, k, v = (
            layer(x).reshape(len(x), 4, 16).transpose(0, 1)
            for layer in (attention.q, attention.k, attention.v)
        )
        expected = F.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal").detach()
        for head in text.heads:
            weights = head.stages["weights"]
            assert weights.shape == (len(x), len(x)), "padding is not shown"
            np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
            np.testing.assert_allclose(head.stages["output"], expected[head.head], atol=1e-5)
            assert (mask == "causal") == (np.triu(weights, 1) == 0).all()


@pytest.mark.parametrize("causal", [False, True], ids=["padding alone", "both"])
def test_padding_gets_exactly_nothing(causal):
    """The short text again, with the two keys shown that padding added."""
    from attnscope.model.attention import attend
    from attnscope.model.inputs import AttentionInputs, AttentionSpec
    from attnscope.model.masks import PaddingMask, intersect
    from attnscope.model.recorders import MatrixRecorder
    from attnscope.request.masks.terms import Bidirectional, Causal

    q, k, v = torch.randn(3, 2, 4, 5, 16).unbind(0)
    mask = intersect((Causal() if causal else Bidirectional(), PaddingMask(torch.tensor([3, 5]))))
    seen = MatrixRecorder(["weights"], range(4), range(5), range(5))
    attend(AttentionInputs(0, q, k, v, AttentionSpec(0.25, mask)), [seen])
    weights = seen.compute()["weights"]
    assert (weights[0, :, :3, 3:] == 0).all()
    assert (weights[1, :, -1] > 0).all()


def test_life_is_short_to_the_digit():
    text = run("life-is-short", LIFE).texts[0]
    assert [(t.text, t.id) for t in text.tokens] == [
        ("Life", 0), ("is", 4), ("short", 5), ("eat", 2), ("dessert", 1), ("first", 3),
    ]  # fmt: skip
    (head,) = text.heads
    said = {name: np.round(head.stages[name][1].astype(float), 4).tolist() for name in STAGES}
    assert said["scores"] == [8.5808, -7.6597, 3.2558, 1.0395, 11.1466, -0.48]
    assert said["weights"] == [0.2912, 0.0106, 0.0982, 0.0625, 0.4917, 0.0458]
    assert said["output"][:4] == [-1.5993, 0.0156, 1.267, 0.0032]
    assert said["output"][-2:] == [0.0624, 1.7084]
    assert len(said["output"]) == 28


def test_life_is_short_with_three_heads():
    text = run("life-is-short-three-heads", LIFE).texts[0]
    state = load_file(SAMPLES / "life-is-short-three-heads" / "weights.safetensors")
    x = state["embed.tokens.weight"][[t.id for t in text.tokens]]
    q, k, v = (state[f"blocks.0.attention.{n}.weight"].reshape(3, -1, 16) for n in "qkv")
    assert q.shape == k.shape == (3, 24, 16)
    for n, head in enumerate(text.heads):
        weights = (x @ q[n].T @ (x @ k[n].T).T / 24**0.5).softmax(-1)
        np.testing.assert_allclose(head.stages["weights"], weights, atol=1e-6)
        np.testing.assert_allclose(head.stages["output"], weights @ (x @ v[n].T), atol=1e-5)


def test_life_is_short_as_cross_attention():
    text = run("life-is-short-cross", LIFE, context=" ".join(f"s{i}" for i in range(8))).texts[0]
    state = load_file(SAMPLES / "life-is-short-cross" / "weights.safetensors")
    x, y = (
        state["embed.tokens.weight"][[t.id for t in side]] for side in (text.tokens, text.sources)
    )
    q, k, v = (state[f"blocks.0.attention.{n}.weight"] for n in "qkv")
    weights = (x @ q.T @ (y @ k.T).T / 24**0.5).softmax(-1)
    assert text.heads[0].stages["weights"].shape == (6, 8)
    np.testing.assert_allclose(text.heads[0].stages["weights"], weights, atol=1e-6)
    np.testing.assert_allclose(text.heads[0].stages["output"], weights @ (y @ v.T), atol=1e-5)


def test_four_tokens_make_a_staircase():
    (head,) = run("four-tokens", "t0 t1 t2 t3").texts[0].heads
    torch.manual_seed(0)
    x = torch.randn(1, 4, 8)
    q, k, v = (torch.nn.Linear(8, 8, bias=False)(x) for _ in range(3))
    scores = (q @ k.transpose(-2, -1) * 8**-0.5).masked_fill(
        torch.ones(4, 4).tril() == 0, -torch.inf
    )
    weights = scores.softmax(-1)[0].detach()
    assert ((head.stages["weights"] > 0).sum(-1) == [1, 2, 3, 4]).all()
    np.testing.assert_allclose(head.stages["weights"], weights, atol=1e-6)
    np.testing.assert_allclose(head.stages["output"], (weights @ v[0]).detach(), atol=1e-6)


@pytest.mark.parametrize("mask", ["own", "causal"])
def test_a_transformer_layer_is_that_of_torch(mask):
    """The second layer's scores see the whole first layer: compare with torch's own post-norm layer."""
    text = "The bank by the river was eroded"
    session = Session([TextInput(text)])
    given = (TextInput(text),)
    asked = requested(
        given, config="transformer-layer", layer="1", head="all", stages=STAGES, mask=mask
    )
    report = inspect(asked, session=session).texts[0]
    source = session.source(asked)
    stack = source.load(2, torch.float32, torch.device("cpu")).module
    ours = stack.blocks[0]
    layer = torch.nn.TransformerEncoderLayer(
        64, 4, 256, dropout=0.0, activation="relu", batch_first=True
    )
    a, b = ours.attention, ours
    layer.load_state_dict({
        "self_attn.in_proj_weight": torch.cat([a.q.weight, a.k.weight, a.v.weight]),
        "self_attn.in_proj_bias": torch.cat([a.q.bias, a.k.bias, a.v.bias]),
        "self_attn.out_proj.weight": a.out.weight, "self_attn.out_proj.bias": a.out.bias,
        "linear1.weight": b.mlp.up.weight, "linear1.bias": b.mlp.up.bias,
        "linear2.weight": b.mlp.down.weight, "linear2.bias": b.mlp.down.bias,
        "norm1.weight": b.norm_attention.weight, "norm1.bias": b.norm_attention.bias,
        "norm2.weight": b.norm_mlp.weight, "norm2.bias": b.norm_mlp.bias,
    })  # fmt: skip
    ids = torch.tensor([[t.id for t in report.tokens]])
    x = stack.embed(ids, torch.zeros_like(ids))
    future = torch.ones(7, 7).triu(1).bool() if mask == "causal" else None
    x = layer.train()(x, src_mask=future)[0]
    second = stack.blocks[1].attention
    q, k = second.q(x).reshape(7, 4, 16), second.k(x).reshape(7, 4, 16)
    for head in report.heads:
        scores = q[:, head.head] @ k[:, head.head].T
        np.testing.assert_allclose(head.stages["scores"], scores.detach(), atol=1e-4)
        order = np.argsort(
            -np.where(np.isinf(head.stages["masked"]), -np.inf, head.stages["scores"]), axis=1
        )[:, :3]
        for query, row in enumerate(order):
            n = min(3, query + 1) if mask == "causal" else 3
            assert row[:n].tolist() == head.top.keys[query, :n].tolist(), (
                "three strongest sources by score"
            )


def test_contributions_sum_to_the_output():
    """Σ α·v over every source is the output, and the top five carry α·‖v‖ of the vectors that are summed."""
    text = "The bank by the river was eroded"
    report = run("transformer-layer", text, top=5).texts[0]
    attention, (x,) = parts("transformer-layer", [text])
    for head in report.heads:
        v = attention.v(x).reshape(7, 4, 16)[:, head.head].detach().numpy()
        np.testing.assert_allclose(head.stages["weights"] @ v, head.stages["output"], atol=1e-5)
        contributions = head.stages["weights"][:, :, None] * v
        found = np.take_along_axis(np.linalg.norm(contributions, axis=-1), head.top.keys, axis=1)
        np.testing.assert_allclose(head.top.value, found, atol=1e-5)
