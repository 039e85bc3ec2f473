"""What cutting each head changes, on a page: against copies of a model without a head, and where it is not measured."""

import copy
import json
import re
import shlex
from itertools import pairwise

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
def test_effects_are_those_of_models_without_a_head(gpt2, tmp_path, engine):
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
    assert effects["positions"] == [LAST]
    expected_before = np.exp(before[LAST, likeliest[LAST]])
    np.testing.assert_allclose(data.raw(effects["before"]), [expected_before], rtol=1e-4)
    kl = np.empty((3, 4))
    after = np.empty((3, 4, 1))
    for layer in range(3):
        for head in range(4):
            logs, _ = predictions(without(model, layer, head), ids)
            kl[layer, head] = divergence(before[LAST], logs[LAST])
            after[layer, head] = np.exp(logs[LAST, likeliest[LAST]])
    np.testing.assert_allclose(data.raw(effects["after"]), after, rtol=1e-4)
    (of_head,) = (one for one in scene["numbers"] if one["name"] == "effect of head")
    np.testing.assert_allclose(data.raw(of_head["values"]), kl, rtol=2e-3, atol=1e-6)
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
    kl = np.empty((3, 4))
    shares = np.empty((3, 4))
    for layer in range(3):
        for head in range(4):
            logs, _ = predictions(without(model, layer, head), ids)
            kl[layer, head] = divergence(before[LAST], logs[LAST])
            shares[layer, head] = np.exp(logs[LAST, top])
    page = open_page(path, size=(1280, 800)).page
    click_cell(page.locator("#panel-matrix"), query, key)
    assert shows(page, f"{MATTERS}.includes(' matter')", True)
    said = page.evaluate(MATTERS)
    layer, head = map(int, re.match(r"L(\d+)H(\d+) has ", said).groups())
    rank = 1 + int((kl > kl[layer, head]).sum())
    word, after, first, second, bits, place = re.search(
        r"\? ([\w ]+): without it, \S+ after (\w+) (\S+) % → (\S+) %, (\S+) bits, number (\d+) of 12 heads\.",
        said,
    ).groups()
    assert (word, after) == (word_in_documentation(kl[layer, head], 1), "sat")
    assert int(place) == rank
    assert float(first) == pytest.approx(100 * np.exp(before[LAST, top]), abs=0.051)
    assert float(second) == pytest.approx(100 * shares[layer, head], abs=0.051)
    assert number(bits) == pytest.approx(kl[layer, head], rel=0.06)
    assert said.count("number ") == 1  # one rank, among all heads
    # and every head of the list has its effect and rank
    listed = page.evaluate(
        "[...document.querySelectorAll('[data-effect]')].map((one) => [one.dataset.effect, one.textContent])"
    )
    assert len(listed) == 9
    assert page.locator(".lens .effects").text_content() == "effect of a cut · rank of 12"
    # of which the sentence names the one with the largest effect, unless it is about that one
    effect_of = {name: kl[tuple(map(int, name[1:].split("H")))] for name, _ in listed}
    ordered = sorted(effect_of, key=effect_of.__getitem__)
    for name in (ordered[0], ordered[-1]):
        page.locator(f".lens [data-lens={name}]").click()
        assert shows(page, f"{MATTERS}.startsWith('{name} has ')", True)
        more = re.search(
            r"Of the 9 heads that are known to have most of it, (L\d+H\d+) matters most: (\S+) bits\.",
            page.evaluate(MATTERS),
        )
        assert (more is None) == (name == ordered[-1])
        if more is not None:
            assert more[1] == ordered[-1]
            assert number(more[2]) == pytest.approx(effect_of[ordered[-1]], rel=0.06)
    for name, text in listed:
        layer, head = map(int, name[1:].split("H"))
        value, place = re.fullmatch(r"(\S+) bits · #(\d+)", text).groups()
        assert number(value) == pytest.approx(kl[layer, head], rel=0.06), name
        assert int(place) == 1 + int((kl > kl[layer, head]).sum()), name


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
    assert (effects["before"], effects["after"]) == (None, None)
    assert effects["positions"] == list(range(ids.shape[1]))
    (of_head,) = (one for one in scene["numbers"] if one["name"] == "effect of head")
    assert data.raw(of_head["values"])[layer, head] == pytest.approx(moved.mean(), rel=1e-3)
    page = open_page(path, "#head=L1H1&query=5&key=1", size=(1280, 800)).page
    page.keyboard.press("]")
    assert shows(page, f"{MATTERS}.startsWith('L1H2 has ')", True)
    said = page.evaluate(MATTERS)
    percent = re.search(r"the final states of all tokens change by (\S+) %, number ", said)
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
        assert of_head["ending"] == {"kl": " bits", "hidden": "%"}[by]


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
    assert (scene["effects"], scene["noEffects"]) == (None, f"Not measured: {reason}. ")


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
    report = str(tmp_path / "report.json")
    for options, hint in (
        (["--effects"], "add --output FILE.html"),
        (["--no-effects", "-o", report], f"use --output FILE.html instead of --output {report}"),
    ):
        assert main(["run", TEXT, "--model", gpt2[0], *options]) == Exit.USAGE
        said = f"{options[0]}: applies only to --output FILE.html or --open; {hint}\n"
        assert capsys.readouterr().err.endswith(said)


def test_the_page_of_a_dump_says_what_its_effects_say(open_page, tmp_path):
    texts, dump, path = (tmp_path / name for name in ("texts.txt", "dump.jsonl", "page.html"))
    texts.write_text("She sat by the [MASK] of the river\n", encoding="utf-8")
    assert main(["batch", str(texts), "-o", str(dump), "--keep", "top,effects", "--quiet"]) == 0
    assert main(["convert", str(dump), str(path), "--quiet"]) == 0
    kl = np.array(json.loads(dump.read_text(encoding="utf-8").splitlines()[1])["effects"]["kl"])
    _, scene = scene_of(path)
    best = "L{}H{}".format(*np.unravel_index(kl.argmax(), (4, 4)))
    word = word_in_documentation(kl.max(), 1).lower()
    first = re.match(
        rf"Largest effect of a cut: {best} (\S+) bits \({word}\), then L", scene["answer"]
    )
    assert float(first[1]) == pytest.approx(kl.max(), rel=0.01)
    page = open_page(path, "#head=L2H1&query=4&key=5", size=(1280, 800)).page
    said = page.evaluate(MATTERS)
    name = said.split()[0]
    layer, head = map(int, name[1:].split("H"))
    own = kl.reshape(4, 4)[layer, head]
    value, rank = re.search(
        r": (\S+) bits, number (\d+) of 16 heads\. .*KL\(before ‖ after\)", said
    ).groups()
    assert int(rank) == 1 + (kl > own).sum()
    assert number(value) == pytest.approx(own, rel=0.06)


def test_a_page_says_what_ablation_refuses(gpt2, monkeypatch, tmp_path):
    """With the names of options as they are typed; --effects fails instead."""

    def refuse(*_args):
        raise AttnscopeError(f"{arg('max_memory')} is too small for cuts")

    monkeypatch.setattr(head_effects, "run_uncut", refuse)
    path = tmp_path / "page.html"
    command = ["run", TEXT, "--model", gpt2[0], "-o", str(path), "--quiet", "--force"]
    assert main(command) == 0
    assert scene_of(path)[1]["noEffects"] == "Not measured: --max-memory is too small for cuts. "
    assert main([*command, "--effects"]) == Exit.FAILED


def table_in_documentation():
    """Rows of the table of words in docs/ablation.md, as text: the word, limits and bounds; the word for the most first."""
    path = FOLDER.parent / "ablation.md"
    section = re.split(
        r"\n##+ ", path.read_text(encoding="utf-8").split("### How much is much")[1]
    )[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return rows[1:]


def word_in_documentation(effect, column):
    """The word for an effect: `column` is 1 for bits, 3 for a share of the states, 5 for a logit."""
    for row in table_in_documentation():
        limit = re.match(r"from (\S+)( %)? on", row[column])
        if limit is None or abs(effect) >= float(limit[1]) / (100 if limit[2] else 1):
            return row[0].capitalize()
    raise AssertionError("no word")


def test_the_bounds_of_words_are_those_of_pinsker_and_of_angles():
    """The table of docs/ablation.md; a bound of a row belongs to the limit of the row above."""
    rows = table_in_documentation()
    assert [row[0] for row in rows] == ["much", "somewhat", "little", "hardly"]
    for above, row in pairwise(rows):
        bits, share = (float(re.search(r"[\d.]+", above[column])[0]) for column in (1, 3))
        points, angle = (float(re.search(r"[\d.]+", row[column])[0]) for column in (2, 4))
        assert points == round(100 * np.sqrt(bits * np.log(2) / 2), 1)
        assert angle == round(np.degrees(np.arcsin(share / 100)), 1)


@pytest.mark.parametrize(("page_name", "column"), [("smollm2-it", 1), ("minilm", 3)])
def test_the_word_of_an_effect_follows_its_size(open_page, page_name, column):
    """Pages of the gallery: heads beside the limits of the words, and the head of rank 13 that docs/ablation.md names."""
    path = FOLDER / f"{page_name}.html"
    data, scene = scene_of(path)
    (of_head,) = (one for one in scene["numbers"] if one["name"] == "effect of head")
    effects = data.raw(of_head["values"])
    order = np.argsort(-effects, axis=None)
    words = [word_in_documentation(effect, column) for effect in effects.ravel()[order]]
    changes = [n for n in range(1, len(words)) if words[n] != words[n - 1]]
    page = open_page(path, "#query=8&key=1", size=(1280, 800)).page
    for n in {1, 12, *(at + step for at in changes for step in (-1, 0))} - {0}:
        layer, head = (int(index) for index in np.unravel_index(order[n], effects.shape))
        click_cell(page.locator("#panel-heads"), layer, head)
        assert shows(page, f"{MATTERS}.startsWith('L{layer}H{head} has ')", True)
        word, rank = re.search(
            rf"matter\? (\w+): .* (?:bits|%), number (\d+) of {len(words)}", page.evaluate(MATTERS)
        ).groups()
        assert (word, int(rank)) == (words[n], n + 1)
    assert {
        "minilm": {"Much", "Somewhat", "Little"},
        "smollm2-it": {"Much", "Somewhat", "Little", "Hardly"},
    }[page_name] == set(words)


def test_the_effect_that_the_documentation_tells_of():
    data, scene = scene_of(FOLDER / "smollm2-it.html")
    (of_head,) = (one for one in scene["numbers"] if one["name"] == "effect of head")
    effects = data.raw(of_head["values"]).ravel()
    rank_13 = int(np.argsort(-effects)[12])
    shares = (
        data.raw(scene["effects"]["before"])[0],
        data.raw(scene["effects"]["after"]).ravel()[rank_13],
    )
    told = (
        (FOLDER.parent / "ablation.md").read_text(encoding="utf-8").split("### How much is much")[1]
    )
    before, after, bits = re.search(
        r"with (\d+) %, the head of rank 13 of 270 matters somewhat: without it, (\d+) % remain \((\S+) bits\)",
        told,
    ).groups()
    assert [int(before), int(after)] == [round(100 * float(share)) for share in shares]
    assert float(bits) == round(float(effects[rank_13]), 3)


def test_a_page_of_effects_has_the_predictions_that_change(tmp_path, capsys):
    path = tmp_path / "page.html"
    text = "The bank by the [MASK] was steep"
    assert main(["ablate", text, "--each", "head", "-o", str(path), "--quiet"]) == 0
    assert main(["run", text, "--predict", "--json"]) == 0
    (expected,) = json.loads(capsys.readouterr().out)["texts"][0]["predictions"]
    (scene,) = read_page(path).of_kind("walk")[0]["scenes"]
    (shown,) = scene["predictions"]
    assert shown["position"] == expected["position"]
    assert shown["tokens"] == [token["text"] for token in expected["tokens"]]
    probabilities = [token["probability"] for token in expected["tokens"]]
    assert shown["probabilities"] == pytest.approx(probabilities, abs=1e-6)


def test_a_page_of_effects_elsewhere_has_no_predictions(tmp_path):
    path = tmp_path / "page.html"
    text = "The bank by the [MASK] was steep"
    options = ["--each", "head", "--at", "bank", "-o", str(path), "--quiet"]
    assert main(["ablate", text, *options]) == 0
    (scene,) = read_page(path).of_kind("walk")[0]["scenes"]
    assert not scene["predictions"]
