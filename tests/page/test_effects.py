"""What cutting each head changes, on a page: against copies of a model without a head, and where it is not measured."""

import copy
import json
import re
import shlex

import numpy as np
import pytest
import torch
import transformers as hf

import attnscope
from attnscope.base.errors import AttnscopeError, Exit, arg
from attnscope.cli import main
from attnscope.studies.ablate import head_effects
from tests.helpers.architectures import save_gpt2, write_tokenizer
from tests.helpers.effect_arithmetic import divergence, log_softmax
from tests.helpers.tiny_models import TABLE
from tests.page.gallery import FOLDER
from tests.page.reading import read_page
from tests.page.test_heads import click_cell
from tests.page.walking import number, shows

TEXT = "the bank by the river was old and we sat"
LAST = 9  # position of "sat", before </s>
MATTERS = "document.querySelector('.matters').textContent"


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A tiny GPT-2 with a tokenizer, and the same model of transformers."""
    return save_gpt2(tmp_path_factory.mktemp("gpt2"))


def without(model, layer, head):
    """A copy of a GPT-2 whose projection reads nothing of a head of 6 numbers."""
    cut = copy.deepcopy(model)
    with torch.no_grad():
        cut.transformer.h[layer].attn.c_proj.weight[6 * head : 6 * head + 6] = 0.0
    return cut


def predictions(model, ids):
    """Natural log-probabilities after every token, (T, V), and final states, (T, D), float64."""
    with torch.inference_mode():
        made = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
    return log_softmax(made.logits[0].double().numpy()), made.hidden_states[-1][0].double().numpy()


def scene_of(path):
    data = read_page(path)
    (walk,) = data.of_kind("walk")
    return data, walk["scenes"][0]


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_effects_at_every_token_are_those_of_models_without_a_head(gpt2, tmp_path, engine):
    folder, model = gpt2
    path = tmp_path / "page.html"
    assert (
        main(["run", TEXT, "--model", folder, "--engine", engine, "-o", str(path), "--quiet"]) == 0
    )
    data, scene = scene_of(path)
    effects = scene["effects"]
    ids = ids_of(folder)
    before, _ = predictions(model, ids)
    likeliest = before.argmax(-1)
    assert effects["ofPredictions"] is True
    assert effects["positions"] == [LAST]
    expected_before = np.exp(before[LAST, likeliest[LAST]])
    np.testing.assert_allclose(data.raw(effects["before"]), [expected_before], rtol=1e-4)
    kl = np.empty((3, 4, len(ids)))
    after = np.empty((3, 4, 1))
    for layer in range(3):
        for head in range(4):
            logs, _ = predictions(without(model, layer, head), ids)
            kl[layer, head] = [divergence(*rows) for rows in zip(before, logs, strict=True)]
            after[layer, head] = np.exp(logs[LAST, likeliest[LAST]])
    np.testing.assert_allclose(data.raw(effects["values"]), kl, rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(data.raw(effects["after"]), after, rtol=1e-4)
    (of_head,) = (one for one in scene["numbers"] if one["name"] == "effect of head")
    np.testing.assert_allclose(data.raw(of_head["values"]), kl[..., LAST], rtol=2e-3, atol=1e-6)
    assert f", at {LAST} sat, if the head's output is replaced by 0." in of_head["meaning"]


def ids_of(folder):
    """Ids of the text's tokens, as a report of the model has them."""
    return [token.id for token in attnscope.inspect(TEXT, model=folder).texts[0].tokens]


def test_the_page_says_whether_a_head_matters(open_page, gpt2, tmp_path):
    folder, model = gpt2
    path = tmp_path / "page.html"
    assert main(["run", TEXT, "--model", folder, "-o", str(path), "--quiet"]) == 0
    ids = ids_of(folder)
    before, _ = predictions(model, ids)
    top = int(before[LAST].argmax())
    query, key = 5, 1
    kl = np.empty((2, 3, 4))
    shares = np.empty((3, 4))
    for layer in range(3):
        for head in range(4):
            logs, _ = predictions(without(model, layer, head), ids)
            kl[:, layer, head] = [divergence(before[at], logs[at]) for at in (LAST, query)]
            shares[layer, head] = np.exp(logs[LAST, top])
    page = open_page(path, size=(1280, 800)).page
    click_cell(page.locator("#panel-matrix"), query, key)
    assert shows(page, f"{MATTERS}.includes(' matter')", True)
    said = page.evaluate(MATTERS)
    layer, head = map(int, re.match(r"L(\d+)H(\d+) has ", said).groups())
    rank = 1 + int((kl[0] > kl[0, layer, head]).sum())
    assert f"number {rank} of 12 heads" in said
    share = kl[0, layer, head] / kl[0].max()
    word = (
        "More than any other head" if rank == 1
        else "Much" if share >= 0.5 else "Somewhat" if share >= 0.1 else "Little"
    )  # fmt: skip
    assert f"? {word}: number {rank}" in said
    if rank > 1:
        strongest = np.unravel_index(kl[0].argmax(), (3, 4))
        percent, best = re.search(r", (\S+) % of the strongest, (L\d+H\d+)\.", said).groups()
        assert best == "L{}H{}".format(*strongest)
        assert float(percent) == pytest.approx(100 * share, rel=0.02, abs=0.51)
    first, second, bits = re.search(r" (\S+) % → (\S+) %, (\S+) bits\. After ", said).groups()
    assert float(first) == pytest.approx(100 * np.exp(before[LAST, top]), abs=0.051)
    assert float(second) == pytest.approx(100 * shares[layer, head], abs=0.051)
    assert number(bits) == pytest.approx(kl[0, layer, head], rel=0.06)
    here, of_row = re.search(r"After was: (\S+) bits, number (\d+)\.", said).groups()
    assert number(here) == pytest.approx(kl[1, layer, head], rel=0.06)
    assert int(of_row) == 1 + int((kl[1] > kl[1, layer, head]).sum())
    # and every head of the list has its effect and rank
    listed = page.evaluate(
        "[...document.querySelectorAll('[data-effect]')].map((one) => [one.dataset.effect, one.textContent])"
    )
    assert len(listed) == 9
    for name, text in listed:
        layer, head = map(int, name[1:].split("H"))
        value, place = re.fullmatch(r"(\S+) bits · #(\d+)", text).groups()
        assert number(value) == pytest.approx(kl[0, layer, head], rel=0.06), name
        assert int(place) == 1 + int((kl[0] > kl[0, layer, head]).sum()), name


def test_a_model_without_an_output_head_has_effects_on_its_final_states(open_page, tmp_path):
    (row,) = (row for row in TABLE if row.name == "llama")
    model = hf.LlamaModel(hf.LlamaConfig(**row.config, tie_word_embeddings=False)).eval()
    folder = tmp_path / "llama"
    model.save_pretrained(folder)
    write_tokenizer(folder)
    path = tmp_path / "page.html"
    assert main(["run", TEXT, "--model", str(folder), "-o", str(path), "--quiet"]) == 0
    data, scene = scene_of(path)
    effects = scene["effects"]
    ids = torch.tensor([ids_of(str(folder))])
    cut = copy.deepcopy(model)
    layer, head = 1, 2
    width = model.layers[layer].self_attn.head_dim
    with torch.inference_mode():
        cut.layers[layer].self_attn.o_proj.weight[:, width * head : width * (head + 1)] = 0.0
        before, after = (one(ids).last_hidden_state[0].double().numpy() for one in (model, cut))
    moved = np.linalg.norm(after - before, axis=-1) / np.linalg.norm(before, axis=-1)
    assert (effects["ofPredictions"], effects["before"], effects["after"]) == (False, None, None)
    assert effects["positions"] == list(range(ids.shape[1]))
    np.testing.assert_allclose(data.raw(effects["values"])[layer, head], moved, rtol=1e-3)
    (of_head,) = (one for one in scene["numbers"] if one["name"] == "effect of head")
    assert data.raw(of_head["values"])[layer, head] == pytest.approx(moved.mean(), rel=1e-3)
    page = open_page(path, "#head=L1H1&query=5&key=1", size=(1280, 800)).page
    page.keyboard.press("]")
    assert shows(page, f"{MATTERS}.startsWith('L1H2 has ')", True)
    said = page.evaluate(MATTERS)
    percent = re.search(r"the final states of all tokens change by (\S+) %\.", said)
    assert float(percent[1]) == pytest.approx(100 * moved.mean(), rel=0.06)


def test_heads_are_ranked_as_ablate_ranks_them(tmp_path):
    """By the predictions at every [MASK]; without one, by the final states of all tokens."""
    for text, by in (
        ("The [MASK] by the [MASK] was steep", "kl"),
        ("The bank was steep", "hidden"),
    ):
        page, effects = tmp_path / f"{by}.html", tmp_path / f"{by}.json"
        assert main(["run", text, "-o", str(page), "--quiet"]) == 0
        assert main(["ablate", text, "--each", "head", "-o", str(effects), "--quiet"]) == 0
        (expected,) = json.loads(effects.read_text())["effects"]
        assert (expected["kl"] is None) == (by == "hidden")
        data, scene = scene_of(page)
        (of_head,) = (one for one in scene["numbers"] if one["name"] == "effect of head")
        np.testing.assert_allclose(
            data.raw(of_head["values"]).ravel(), expected[by], rtol=1e-4, atol=1e-7
        )
        assert scene["effects"]["ofPredictions"] == (by == "kl")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--no-effects"], "--no-effects left it out"),
        (["--cut", "L0H1"], "the run is one with cuts"),
        (["--generate", "2"], "the text is continued by the model"),
        (["--mask", "window:3", "--what-if", "same-scores"], "the mask is applied to the scores of another"),
    ],
)  # fmt: skip
def test_a_page_says_why_effects_are_not_measured(gpt2, tmp_path, options, reason):
    path = tmp_path / "page.html"
    assert main(["run", TEXT, "--model", gpt2[0], *options, "-o", str(path), "--quiet"]) == 0
    _, scene = scene_of(path)
    assert (scene["effects"], scene["noEffects"]) == (None, reason)


def test_large_work_is_left_out_unless_it_is_asked_for(gpt2, open_page, monkeypatch, tmp_path):
    folder, model = gpt2
    parameters = sum(one.numel() for one in model.parameters())
    cost = 12 * (LAST + 2) * parameters
    path = tmp_path / "page.html"
    command = ["run", TEXT, "--model", folder, "-o", str(path), "--quiet", "--force"]

    def measured(*options):
        assert main([*command, *options]) == 0
        return scene_of(path)[1]["effects"] is not None

    monkeypatch.setattr(head_effects, "_COST", cost)
    assert measured()
    monkeypatch.setattr(head_effects, "_COST", cost - 1)
    monkeypatch.setattr(head_effects, "_COST_OF_CELL", cost)
    assert measured("--query", "was", "--key", "bank")
    assert measured("--effects")
    assert not measured("--query", "was")
    assert not measured()
    page = open_page(path, "#head=L1H2&query=5&key=1", size=(1280, 800)).page
    said = page.evaluate(MATTERS)
    assert "Not measured: 12 heads × 11 tokens × " in said
    assert "(in the folder of the model) attnscope ablate " in said
    below = page.locator(".command").text_content()
    assert below.startswith(
        "This matrix in a terminal: (in the folder of the model) attnscope run "
    )
    typed = shlex.split(page.locator(".matters code").text_content())
    typed[typed.index("--model") + 1] = folder
    assert main([*typed[1:], "--quiet"]) == 0


def test_a_question_opens_the_page_at_its_answer(open_page, tmp_path):
    text = "The bank by the river was steep"
    path = tmp_path / "page.html"
    command = ["run", text, "--query", "river", "--key", "bank", "-o", str(path), "--quiet"]
    assert main(command) == 0
    _, scene = scene_of(path)
    assert len(scene["queries"]["names"]) == 7  # not the row alone
    weights = attnscope.inspect(text, layer="all", head="all", stages="weights").weights
    strongest = "L{}H{}".format(*np.unravel_index(weights[..., 4, 1].argmax(), (4, 4)))
    page = open_page(path, size=(1280, 800)).page
    said = page.evaluate(MATTERS)
    assert said.startswith(f"{strongest} has ")
    assert f"river ← bank, the most of all heads. Does {strongest} matter? " in said
    assert page.locator("#where").text_content() == strongest
    assert "query=4&key=1" in page.evaluate("location.hash")
    assert page.locator(".heads-panel select").input_value() == "lens"
    # a word that is not there is refused as ever
    assert main([*command[:4], "castle", *command[5:], "--force"]) == Exit.USAGE


def test_effects_go_only_with_pages_of_heads(gpt2, tmp_path, capsys):
    for options in (["--effects"], ["--no-effects", "-o", str(tmp_path / "report.json")]):
        assert main(["run", TEXT, "--model", gpt2[0], *options]) == Exit.USAGE
        assert (
            "--effects: applies only to --output FILE.html or --open; add --output FILE.html"
            in (capsys.readouterr().err)
        )


def test_the_page_of_a_dump_says_what_its_effects_say(open_page, tmp_path):
    texts, dump, path = (tmp_path / name for name in ("texts.txt", "dump.jsonl", "page.html"))
    texts.write_text("She sat by the [MASK] of the river\n", encoding="utf-8")
    assert main(["batch", str(texts), "-o", str(dump), "--keep", "top,effects", "--quiet"]) == 0
    assert main(["convert", str(dump), str(path), "--quiet"]) == 0
    kl = np.array(json.loads(dump.read_text(encoding="utf-8").splitlines()[1])["effects"]["kl"])
    page = open_page(path, "#head=L2H1&query=4&key=5", size=(1280, 800)).page
    said = page.evaluate(MATTERS)
    name = said.split()[0]
    layer, head = map(int, name[1:].split("H"))
    own = kl.reshape(4, 4)[layer, head]
    assert f": number {1 + (kl > own).sum()} of 16 heads" in said
    value = re.search(rf"Without {name}, (\S+)\. KL\(before ‖ after\)", said)[1]
    assert number(value) == pytest.approx(own, rel=0.06)


def test_a_page_keeps_effects_at_every_token_only_if_they_are_few(
    gpt2, open_page, monkeypatch, tmp_path
):
    path = tmp_path / "page.html"
    command = ["run", TEXT, "--query", "was", "--key", "bank", "--model", gpt2[0]]
    for limit, is_kept in ((12 * 11, True), (12 * 11 - 1, False)):
        monkeypatch.setattr(head_effects, "_KEPT", limit)
        assert main([*command, "-o", str(path), "--quiet", "--force"]) == 0
        assert (scene_of(path)[1]["effects"]["values"] is not None) == is_kept
        page = open_page(path, size=(1280, 800)).page
        said = page.evaluate(MATTERS)
        assert " of 12 heads" in said
        assert (" After was: " in said) == is_kept


def test_a_page_says_what_ablation_refuses(gpt2, monkeypatch, tmp_path):
    """With the names of options as they are typed; --effects fails instead."""

    def refuse(*_args):
        raise AttnscopeError(f"{arg('max_memory')} is too small for cuts")

    monkeypatch.setattr(head_effects, "run_uncut", refuse)
    path = tmp_path / "page.html"
    command = ["run", TEXT, "--model", gpt2[0], "-o", str(path), "--quiet", "--force"]
    assert main(command) == 0
    assert scene_of(path)[1]["noEffects"] == "--max-memory is too small for cuts"
    assert main([*command, "--effects"]) == Exit.FAILED


def test_the_word_of_an_effect_follows_its_share_of_the_largest(open_page):
    """The page of the gallery, whose model has 270 heads; heads beside the limits of the words."""
    path = FOLDER / "smollm2-it.html"
    data, scene = scene_of(path)
    (of_head,) = (one for one in scene["numbers"] if one["name"] == "effect of head")
    effects = data.raw(of_head["values"])
    shares = effects / effects.max()
    order = np.argsort(-shares, axis=None)
    limits = [int((shares >= limit).sum()) for limit in (0.5, 0.1)]
    page = open_page(path, "#query=8&key=1", size=(1280, 800)).page
    words = set()
    for n in {1, *(at + step for at in limits for step in (-1, 0))} - {0}:
        layer, head = (int(index) for index in np.unravel_index(order[n], shares.shape))
        click_cell(page.locator("#panel-heads"), layer, head)
        assert shows(page, f"{MATTERS}.startsWith('L{layer}H{head} has ')", True)
        said = page.evaluate(MATTERS)
        word, rank = re.search(r"matter\? (\w+): number (\d+) of 270", said).groups()
        assert int(rank) == n + 1
        share = shares[layer, head]
        assert word == ("Much" if share >= 0.5 else "Somewhat" if share >= 0.1 else "Little")
        words.add(word)
    assert {"Somewhat", "Little"} <= words
