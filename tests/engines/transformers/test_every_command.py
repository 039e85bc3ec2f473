"""The models that people run, without an option about layers or engines: commands work, with the numbers of eager."""

import asyncio
import json

import numpy as np
import pytest
import torch

import attnscope
from attnscope.cli import main
from tests.families.census import watch_attention
from tests.helpers import hybrids
from tests.helpers.architectures import write_tokenizer
from tests.helpers.tiny_models import TABLE
from tests.page.reading import read_page

TEXT = "the bank by the river was old"
OTHER = "the bank by the water was old"
SHORT = "the river"
NATIVE = {row.name: row for row in TABLE if row.name in ("mpnet", "deberta_v2", "bloom", "falcon")}
TYPES = [
    "qwen3_next", "qwen3_5_text", "kimi_linear", "olmo_hybrid", "nemotron_h", "falcon_h1", "granitemoehybrid", "jamba",
    "zamba2", "lfm2", "minimax", "recurrent_gemma", "deepseek_v32", "glm_moe_dsa", *NATIVE,
]  # fmt: skip
# Where these models, which have functions of their own for attention, take the heads' outputs together.
OUTPUTS = {
    "mpnet": "mpnet.encoder.layer.{}.attention.attn.o",
    "deberta-v2": "deberta.encoder.layer.{}.attention.output.dense",
    "bloom": "transformer.h.{}.self_attention.dense",
    "falcon": "transformer.h.{}.self_attention.dense",
}
CLOSE = {"rtol": 0, "atol": 1e-5}
PADDED = {"rtol": 0, "atol": 3e-5}  # a scan over a padded text adds in another order


@pytest.fixture(scope="module", params=TYPES)
def folder(request, tmp_path_factory):
    """The folder of a tiny model, and the model."""
    path = tmp_path_factory.mktemp(request.param)
    if request.param in NATIVE:
        model = NATIVE[request.param].save(path).eval()
        model.set_attn_implementation("eager")
        write_tokenizer(path)
    else:
        model = hybrids.make_hybrid(request.param)
        hybrids.save_hybrid(path, model)
    return str(path), model


def ids_of(text):
    return torch.tensor([[token.id for token in text.tokens]])


def same_weights(text, model, close):
    """Compare the weights of all heads of a text with eager attention's."""
    expected = watch_attention(model, ids_of(text)).weights
    layers = sorted({head.layer for head in text.heads})
    assert len(layers) == len(expected)
    for head in text.heads:
        theirs = expected[layers.index(head.layer)][0, head.head].float().numpy()
        np.testing.assert_allclose(head.stages["weights"], theirs, **close)


def test_run_equals_eager(folder):
    path, model = folder
    options = {"model": path, "layer": "all", "head": "all", "stages": "weights"}
    same_weights(attnscope.inspect(TEXT, **options).data.texts[0], model, CLOSE)
    for text in attnscope.inspect([TEXT, SHORT], **options).data.texts:
        same_weights(text, model, PADDED)


def test_predictions_and_generation_equal_those_of_the_model(folder):
    path, model = folder
    if not model.can_generate():
        pytest.skip("it predicts masked tokens, and the tokenizer has none")
    text = attnscope.inspect(TEXT, model=path, predict=True).data.texts[0]
    logits = watch_attention(model, ids_of(text)).logits[0]
    for prediction in text.predictions:
        shares = logits[prediction.position].softmax(-1)
        for token in prediction.tokens:
            assert token.probability == pytest.approx(float(shares[token.id]), abs=1e-5)
    prompt = ids_of(text)[:, :-1]
    expected = model.generate(prompt, max_new_tokens=4, do_sample=False, pad_token_id=0)[0].tolist()
    continued = attnscope.inspect(TEXT, model=path, generate=4).data.texts[0]
    ids = ids_of(continued)[0].tolist()
    assert ids == expected[: len(ids)]
    assert len(ids) > 8 or expected[7] == 2


def same_sources(text, model):
    """Compare the strongest sources of every row of all shown heads with eager attention's."""
    expected = watch_attention(model, ids_of(text)).weights
    layers = list(dict.fromkeys(head.layer for head in text.heads))
    assert len(layers) == len(expected)
    for head in text.heads:
        theirs = expected[layers.index(head.layer)][0, head.head].float().numpy()
        for query, keys, weights in zip(text.queries, head.top.keys, head.top.weight, strict=True):
            there = keys >= 0
            np.testing.assert_allclose(weights[there], theirs[query][keys[there]], **CLOSE)


def test_studies_equal_eager(folder):
    path, model = folder
    sides = attnscope.compare(TEXT, OTHER, model=path).data.sides
    assert len(sides) == 2
    for side in sides:
        same_sources(side.report.texts[0], model)
    explained = attnscope.explain(TEXT, query="river", model=path)
    weights = watch_attention(model, ids_of(explained.data)).weights
    attending = attending_layers(path)
    theirs = (
        weights[attending.index(explained.data.layer)][0, explained.data.head, explained.data.query]
        .float()
        .numpy()
    )
    np.testing.assert_allclose(explained.data.row.weights, theirs[explained.data.keys], **CLOSE)
    assert explained.holds
    asked = attnscope.heads(text=TEXT, query="river", key="bank", model=path)
    river, bank = (
        next(n for n, t in enumerate(explained.data.tokens) if t.text == word)
        for word in ("river", "bank")
    )
    for layer, of_layer in zip(attending, weights, strict=True):
        np.testing.assert_allclose(
            asked.values[layer], of_layer[0, :, river, bank].float().numpy(), **CLOSE
        )
    assert attnscope.heads(model=path, draws=2)
    assert attnscope.check(TEXT, model=path).passed


def attending_layers(path):
    """Numbers of the layers with attention."""
    text = attnscope.inspect(TEXT, model=path, layer="all", head=0).data.texts[0]
    return [head.layer for head in text.heads]


def logits_without(model, ids, index, layer, head):
    """Logits with a head's output replaced by 0; `index` counts the layers with attention."""
    if model.config.model_type not in OUTPUTS:
        watched = watch_attention(model, ids, cut=(index, head))
        assert watched.cuts
        return watched.logits
    module = model.get_submodule(OUTPUTS[model.config.model_type].format(layer))
    width = module.in_features // model.config.num_attention_heads

    def cut(_, inputs):
        outputs = inputs[0].clone()
        outputs[..., head * width : (head + 1) * width] = 0
        return (outputs, *inputs[1:])

    hook = module.register_forward_pre_hook(cut)
    with torch.inference_mode():
        logits = model(input_ids=ids).logits
    hook.remove()
    return logits


def test_every_cut_head_changes_what_a_hook_changes(folder):
    """Probabilities after one cut; and after each, the divergence of the predictions in bits."""
    path, model = folder
    layers = attending_layers(path)
    cut = attnscope.ablate(TEXT, model=path, cut=f"L{layers[0]}H1", at=5).data.effects[0]
    effects = attnscope.ablate(TEXT, model=path, each="head", at=5).values
    assert np.isfinite(effects[layers]).all()
    if not cut.predictions:
        pytest.skip("it predicts masked tokens, and the tokenizer has none")
    ids = ids_of(attnscope.inspect(TEXT, model=path).data.texts[0])
    at = cut.predictions[0].position
    whole = watch_attention(model, ids).logits[0, at].double().log_softmax(-1)
    for index, layer in enumerate(layers):
        for head in range(effects.shape[1]):
            logits = logits_without(model, ids, index, layer, head)
            after = logits[0, at].double().log_softmax(-1)
            bits = float((whole.exp() * (whole - after)).sum()) / np.log(2)
            assert effects[layer, head] == pytest.approx(bits, rel=1e-3, abs=1e-6)
            if (layer, head) == (layers[0], 1):
                for token in cut.predictions[0].tokens:
                    assert token.after == pytest.approx(float(after.exp()[token.id]), abs=1e-5)


def test_a_dump_holds_the_weights_of_eager_attention(folder, tmp_path):
    path, model = folder
    texts = tmp_path / "texts.txt"
    texts.write_text(f"{TEXT}\n{SHORT}\n")
    dump = tmp_path / "dump.jsonl"
    assert main(["batch", str(texts), "--model", path, "--stage", "weights", "-o", str(dump)]) == 0
    for line in dump.read_text().splitlines()[1:]:
        record = json.loads(line)
        if record.get("status") != "ok":
            continue
        ids = torch.tensor([[token["id"] for token in record["tokens"]]])
        expected = watch_attention(model, ids).weights
        layers = sorted({layer for layer, _ in record["units"]})
        assert len(layers) == len(expected)
        for (layer, head), weights in zip(
            record["units"], record["stages"]["weights"], strict=True
        ):
            theirs = expected[layers.index(layer)][0, head].float().numpy()
            np.testing.assert_allclose(np.array(weights), theirs, **PADDED)


def test_a_page_holds_the_weights_of_eager_attention(folder, tmp_path):
    path, model = folder
    file = tmp_path / "page.html"
    assert main(["run", TEXT, "--model", path, "-o", str(file)]) == 0
    page = read_page(file)
    (scene,) = page.of_kind("walk")[0]["scenes"]
    text = attnscope.inspect(TEXT, model=path, layer="all", head="all").data.texts[0]
    expected = watch_attention(model, ids_of(text)).weights
    assert len(scene["layers"]) == len(expected)
    assert len(scene["units"]) == sum(weights.shape[1] for weights in expected)
    for unit in scene["units"]:
        theirs = expected[scene["layers"].index(unit["layer"])][0, unit["head"]].float().numpy()
        np.testing.assert_allclose(page.stage(unit, "weights"), theirs, **CLOSE)
    # heads whose lists another pass computed, with other last digits, are a group of their own
    assert sum(len(group["units"]) for group in scene["groups"]) == len(scene["units"])
    for group in scene["groups"]:
        places, weights = page.places(group), page.listed(scene, group)
        for n, (layer, head) in enumerate(group["units"]):
            theirs = expected[layer][0, head].float().numpy()
            for query in range(len(text.queries)):
                there = weights[:, n, query] > 0
                np.testing.assert_allclose(
                    weights[there, n, query],
                    theirs[query][places[there, n, query]],
                    rtol=0,
                    atol=1e-3,
                )
                assert weights[0, n, query] == pytest.approx(theirs[query].max(), abs=1e-3)


def test_explore_shows_the_weights_of_eager_attention(folder, monkeypatch):
    path, model = folder
    pytest.importorskip("textual", reason="textual is not installed")
    from attnscope.cli import explore
    from attnscope.views.explore.app import ExploreApp
    from tests.explore.proof import settled

    seen = []

    def run(app):
        async def walk():
            async with app.run_test(size=(120, 40)) as pilot:
                await settled(app, pilot)
                await pilot.press("down")
                await settled(app, pilot)
                seen.append((app.state.head, app.state.place.spot.query))
                await pilot.press("q")

        asyncio.run(walk())

    monkeypatch.setattr(ExploreApp, "run", run)
    for name in ("_check_terminal", "_at_terminal"):
        monkeypatch.setattr(explore, name, lambda: None)
    text = attnscope.inspect(TEXT, model=path, layer="all", head=0, stages="weights").data.texts[0]
    assert main(["explore", TEXT, "--model", path]) == 0
    ((head, query),) = seen
    layers = [other.layer for other in text.heads]
    expected = (
        watch_attention(model, ids_of(text))
        .weights[layers.index(head.layer)][0, head.head]
        .float()
        .numpy()
    )
    np.testing.assert_allclose(head.row("weights", query), expected[query], **CLOSE)
