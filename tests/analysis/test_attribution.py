"""A logit is the sum of what the parts add, and what a head adds is what transformers' own tensors say."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.base.model_config import ModelConfig, OutputHead
from attnscope.engines.native import NativeEngine
from attnscope.engines.protocol import EngineSettings
from attnscope.findings.attribution import Attribution
from attnscope.findings.codec import from_json, to_json
from attnscope.findings.tokens import Token
from attnscope.model.batch import make_batch
from attnscope.model.logit_parts import HeadLogits, LogitParts, StreamCapture, logit_parts
from attnscope.model.randomize import make_random
from attnscope.request.masks.terms import Own
from attnscope.run.analysis.predictions import attribution
from tests.helpers.tiny_models import Row
from tests.parity.test_generation import CAUSAL
from tests.parity.test_logits import CPU, open_native

TEXTS = [[3, 14, 15, 9, 26, 5, 35, 8], [32, 38, 46, 26, 43]]
POSITIONS, TARGETS = [6, 4], [(7, None), (11, 20)]
PRE_NORM = [
    row
    for row in CAUSAL
    if "Bert" not in row.model.__name__ and "Roberta" not in row.model.__name__
]


def _attributed(engine: NativeEngine) -> list[Attribution]:
    """Of two texts side by side: a logit of the one, a difference of two of the other."""
    stack = engine.stack
    batch = make_batch([[Token(number, "x", "x") for number in ids] for ids in TEXTS], None, CPU)
    capture = StreamCapture(stack, POSITIONS)
    with capture.capturing():
        engine.forward(batch, {}, final=True)
    directions = capture.directions(TARGETS)
    n_keys = max(map(len, TEXTS))
    recorders = {
        layer: HeadLogits(stack.config.n_heads, POSITIONS, there, n_keys)
        for layer, (there, _) in directions.layers.items()
    }
    engine.forward(batch, {layer: [one] for layer, one in recorders.items()})
    parts = logit_parts(capture, directions, recorders)
    about = [(len(ids), lambda i: ("x", "x"), None) for ids in TEXTS]
    chosen = zip(parts, POSITIONS, TARGETS, about, strict=True)
    return [attribution(one, place, pair, lambda i: 0.0, text) for one, place, pair, text in chosen]


def _logit(rows: torch.Tensor, cap: float | None, pair: tuple[int, int | None]) -> float:
    logits = rows.double() if cap is None else torch.atanh(rows.double() / cap) * cap
    return float(logits[pair[0]] - (0.0 if pair[1] is None else logits[pair[1]]))


def _sum(found: Attribution) -> float:
    parts: Sequence[float] = [found.embedding, found.constant]
    return float(sum(parts) + found.heads.sum() + found.mlps.sum() + found.attention_biases.sum())


@pytest.mark.parametrize("row", PRE_NORM, ids=lambda row: row.name)
def test_parts_sum_to_the_logit_of_transformers(row: Row, tmp_path: Path) -> None:
    model = row.save(tmp_path)
    cap = getattr(model.config, "final_logit_softcapping", None)
    for ids, found, place, pair in zip(
        TEXTS, _attributed(open_native(tmp_path)), POSITIONS, TARGETS, strict=True
    ):
        with torch.inference_mode():
            rows = model(torch.tensor([ids])).logits[0, place]
        # rounding hides what the cap was applied to
        if cap is not None and float((rows / cap).abs().max()) > 0.999:
            continue
        expected = _logit(rows, cap, pair)
        assert found.total == pytest.approx(expected, abs=1e-4 * max(1, abs(expected)))
        assert _sum(found) == pytest.approx(found.total, abs=1e-4)
        np.testing.assert_allclose(found.sources.sum(), found.heads.sum(), rtol=0, atol=1e-4)
        np.testing.assert_array_equal(found.sources[place + 1 :], 0)  # causal


def test_a_stack_with_every_bias_and_layer_norms_behind_attention_sums_up() -> None:
    """What no family has: biases of final norms and heads, ALiBi, sandwich layer norms, no output projection's peer."""
    for changes in (
        {"norm_order": "sandwich"},
        {"norm_order": "output"},
        {"parallel": True},
        {"norm": "none"},
    ):
        config = ModelConfig(
            60, 24, 2, 4, 2, 6, 6, 40, mlp_bias=True, out_bias=True, qkv_bias=True, positions="alibi",
            head=OutputHead(tied=False, bias=True), **changes,
        )  # fmt: skip
        stack = make_random(config, 7, 2, torch.float32, CPU)
        torch.manual_seed(0)
        with torch.no_grad():
            for name, parameter in stack.named_parameters():
                if "norm" in name or name == "head.bias":
                    parameter.add_(torch.randn_like(parameter) * 0.3)
        engine = NativeEngine(stack, EngineSettings((Own(),)))
        batch = make_batch(
            [[Token(number, "x", "x") for number in ids] for ids in TEXTS], None, CPU
        )
        hidden = engine.forward(batch, {}, final=True)
        assert hidden is not None
        for text, found in enumerate(_attributed(engine)):
            logits = engine.logits(hidden[text, POSITIONS[text]][None])[0]
            assert found.total == pytest.approx(_logit(logits, None, TARGETS[text]), abs=1e-4)
            assert _sum(found) == pytest.approx(found.total, abs=1e-4)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_what_a_source_adds_through_a_head_is_made_of_transformers_own_tensors(
    name: str, tmp_path: Path
) -> None:
    """α_ij v_j W_O^h, in NumPy float64, behind the norms of the layer and in front of the final one."""
    row = next(row for row in PRE_NORM if row.name == name)
    model, heads = row.save(tmp_path), []
    ids, place, (target, _) = TEXTS[0], POSITIONS[0], TARGETS[0]
    kept: dict[str, list[torch.Tensor]] = {"values": [], "attended": [], "final": []}
    base = model.base_model
    blocks = base.h if name == "gpt2" else base.layers
    final = base.ln_f if name == "gpt2" else base.norm
    for block in blocks:
        attention = block.attn if name == "gpt2" else block.self_attn
        source = attention.c_attn if name == "gpt2" else attention.v_proj
        source.register_forward_hook(lambda _, __, made: kept["values"].append(made))
        attention.register_forward_hook(lambda _, __, made: kept["attended"].append(made[0]))
    final.register_forward_hook(lambda _, given, __: kept["final"].append(given[0]))
    with torch.inference_mode():
        made = model(torch.tensor([ids]), output_attentions=True)
    weight, x = final.weight.double(), kept["final"][0][0, place].double()
    row_of = model.get_output_embeddings().weight[target].double()
    if name == "gpt2":
        direction = row_of * weight * (x.var(unbiased=False) + final.eps) ** -0.5
        direction = direction - direction.mean()
    else:
        direction = (
            row_of
            * (weight + (name == "gemma2"))
            * (x.pow(2).mean() + model.config.rms_norm_eps) ** -0.5
        )
    for layer, block in enumerate(blocks):
        alpha = made.attentions[layer][0, :, place].double()  # (H, T)
        v = kept["values"][layer][0].double()
        count = len(alpha)
        if name == "gpt2":
            v, out = v[:, -24:], block.attn.c_proj.weight.double()  # (H·E, D)
        else:
            out = block.self_attn.o_proj.weight.double().T
        width = out.shape[0] // count
        v = v.unflatten(-1, (-1, width)).transpose(0, 1)  # (G, T, E)
        v = v.repeat_interleave(count // len(v), 0)
        vectors = torch.einsum("ht,hte,hed->htd", alpha, v, out.unflatten(0, (count, width)))
        before = direction
        if name == "gemma2":
            norm, given = block.post_attention_layernorm, kept["attended"][layer][0, place].double()
            before = (
                direction * (1 + norm.weight.double()) * (given.pow(2).mean() + norm.eps) ** -0.5
            )
        heads.append((vectors @ before).detach())
    expected = torch.stack(heads)  # (L, H, T)
    found = _attributed(open_native(tmp_path))[0]
    np.testing.assert_allclose(found.heads, expected.sum(-1).numpy(), rtol=0, atol=1e-4)
    np.testing.assert_allclose(found.sources, expected.sum((0, 1)).numpy(), rtol=0, atol=1e-4)
    assert len(found.edges) == 20
    sizes = expected.abs().flatten().sort(descending=True).values
    for rank, edge in enumerate(found.edges):
        assert edge.value == pytest.approx(
            float(expected[edge.layer, edge.head, edge.source]), abs=1e-4
        )
        assert abs(edge.value) == pytest.approx(float(sizes[rank]), abs=1e-4)


def test_a_run_takes_the_logit_of_a_real_model_apart(smollm2: Path) -> None:
    text, names = "When Mary and John went to the store, John gave a drink to", (" Mary", " John")
    with attnscope.open_model(smollm2) as model:
        with pytest.raises(AttnscopeError, match=r"' Xylophonists' is \d tokens: "):
            model.inspect("The bank", by="logit", target=" Xylophonists")
        report = model.inspect(text, by="logit", target=names, stages=[], layer=0, head=0)
        default = model.inspect(text, by="logit", stages=[], layer=0, head=0).attribution
        query = model.inspect(text, by="logit", stages=[], layer=0, head=0, query=9)
    found = report.attribution
    assert found is not None
    assert default is not None
    assert [found.target.text, found.against and found.against.text, default.target.text] == [
        *names,
        " Mary",
    ]
    (prediction,) = report.predictions
    assert prediction.tokens[0].text == " Mary"
    assert default.total == pytest.approx(prediction.tokens[0].logit, abs=1e-4)
    assert default.target.logit == pytest.approx(prediction.tokens[0].logit, abs=1e-4)
    assert found.against is not None
    assert found.total == pytest.approx(found.target.logit - found.against.logit, abs=1e-4)
    assert _sum(found) == pytest.approx(found.total, abs=1e-4)
    # the second John, read by the head that moves the other name to the end
    assert (found.edges[0].layer, found.edges[0].head, found.edges[0].source) == (23, 3, 9)
    assert query.attribution is not None
    assert query.attribution.position == 9
    assert query.attribution.total == pytest.approx(query.predictions[0].tokens[0].logit, abs=1e-4)
    shown = report.text(width=110)
    for said in (
        "logit of ␣Mary minus that of ␣John  after 13 to: 6.12",
        "L23H3 ← 9 John 2.87",
        "289 other parts",
    ):
        assert said in shown
    assert from_json(to_json(report.data)).texts[0].attribution is not None
    for changes, message in (
        (
            {"sources": found.sources[1:]},
            "attribution.sources has shape \\[13\\], expected \\[14\\]",
        ),
        ({"mlps": found.mlps[1:]}, "attribution.mlps has shape \\[29\\], expected \\[30\\]"),
        ({"position": 14}, "attribution.position has a position of 14 or more"),
        (
            {"edges": [msgspec.structs.replace(found.edges[0], layer=30)]},
            "layer has a position of 30 or more",
        ),
        (
            {"edges": [msgspec.structs.replace(found.edges[0], head=9)]},
            "head has a position of 9 or more",
        ),
    ):
        wrong = msgspec.structs.replace(found, **changes)
        one = msgspec.structs.replace(report.data.texts[0], attribution=wrong)
        with pytest.raises(AttnscopeError, match=message):
            from_json(to_json(msgspec.structs.replace(report.data, texts=[one])))


@pytest.mark.parametrize("shape", [(5, 3, 7), (30, 2, 3), (1, 4, 40), (1, 1, 1)])
def test_the_strongest_edges_are_those_of_all_layers(shape: tuple[int, int, int]) -> None:
    """Also where a layer has fewer edges than are kept, or all of them."""
    edges = torch.from_numpy(np.random.default_rng(1).normal(size=shape))
    parts = LogitParts(0.0, 0.0, [0.0] * shape[0], [0.0] * shape[0], edges)
    found = attribution(
        parts, 0, (0, None), lambda i: 0.0, (shape[2], lambda i: ("x", "x"), None)
    ).edges
    flat = edges.numpy().ravel()
    best = np.argsort(-np.abs(flat))[:20]
    places = zip(*np.unravel_index(best, shape), strict=True)
    assert [(one.layer, one.head, one.source) for one in found] == [
        tuple(map(int, place)) for place in places
    ]
    assert [one.value for one in found] == flat[best].tolist()


@pytest.mark.parametrize("target", [["<late>"], ["bank", "<late>"]])
def test_a_target_that_the_model_has_no_logit_for_is_refused_before_it_is_loaded(
    target: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer with tokens that were added to it, and not to the model."""
    row = next(row for row in PRE_NORM if row.name == "llama")
    row.save(tmp_path)
    size = row.config["vocab_size"]
    vocabulary = {"bank": 0, **{f"word{number}": number for number in range(1, size)}}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="bank"))
    tokenizer.add_tokens(["<late>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr("attnscope.model.checkpoint.load_stack", None)
    message = f"target: '<late>' has id {size}, but the vocabulary of .* has {size} tokens; use a token with an id"
    with pytest.raises(AttnscopeError, match=message):
        attnscope.inspect("bank", model=tmp_path, by="logit", target=target)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"by": "logit"},
            "the logits of riverbank are not a sum over its parts: its output head has a non-linear",
        ),
        (
            {"by": "logit", "engine": "transformers"},
            "riverbank predicts nothing in this text; put the mask token",
        ),
        ({"by": "logit", "config": "causal"}, "by='logit': causal has no output head"),
        ({"target": "bank", "config": "causal"}, "^target: causal has no output head"),
        (
            {"by": "weight", "target": "bank"},
            "target and by='weight' cannot be used together: a target is the token of a logit",
        ),
        (
            {"by": "logit", "target": ["a", "b", "c"]},
            "given 3 times; give one token, or two for a difference",
        ),
    ],
)
def test_logits_that_cannot_be_taken_apart_are_refused(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(AttnscopeError, match=message):
        attnscope.inspect("The bank by the river", **options)
