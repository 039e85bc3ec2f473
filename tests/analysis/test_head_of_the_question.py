"""The question chooses the head: every first answer is that of all heads of SmolLM2 in transformers.

Texts are drawn; what a head adds to a logit is recomputed in float64 from what goes into transformers' projections.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import attnscope
from attnscope.api.model import OpenModel
from attnscope.cli import main
from tests.helpers.draws import drawn, in_two
from tests.helpers.reference_smollm2 import open_reference

NAMES = "Mary John Alice Tom Sarah Paul Emma David Anna Peter".split()
PLACES = "store park school office station".split()
THINGS = "drink book ring ball letter".split()
ANSWERED = [
    ("The capital of France is", " Paris"),
    ("Monday Tuesday Wednesday", " Thursday"),
    ("red blue green red blue", " green"),
    ("The opposite of hot is", " cold"),
    ("He put the key in the lock and turned the", " key"),
    ("one two three four", " five"),
]


def _questions(seed: int) -> list[tuple[str, str, str]]:
    """Draw texts whose last word asks for a name: the text, the name, and the text with both names swapped."""
    source = random.Random(seed)
    questions = []
    for _ in range(drawn(10)):
        answer, other = source.sample(NAMES, 2)
        place, thing = source.choice(PLACES), source.choice(THINGS)
        text = f"When {{}} and {{}} went to the {place}, {other} gave a {thing} to"
        questions.append((text.format(answer, other), f" {answer}", text.format(other, answer)))
    return questions


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Iterator[OpenModel]:
    with attnscope.open_model(smollm2) as opened:
        yield opened


def _ids(text: str, model: OpenModel) -> list[int]:
    return [
        token.id
        for token in model.inspect(text, stages=[], layer=0, head=0, top=0).data.texts[0].tokens
    ]


@torch.no_grad()
def _added(path: Path, ids: list[int], target: int) -> NDArray[np.float64]:
    """Return what every head adds to a logit of the last token, (layers, heads), with the final norm's scale frozen."""
    model = open_reference(path)
    mixed: list[torch.Tensor] = []
    final: list[torch.Tensor] = []
    hooks = [
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda _, given: mixed.append(given[0][0, -1].double())
        )
        for layer in model.layers
    ]
    hooks.append(
        model.norm.register_forward_pre_hook(
            lambda _, given: final.append(given[0][0, -1].double())
        )
    )
    model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    state = final[0]
    scale = (state.pow(2).mean() + model.config.rms_norm_eps) ** -0.5
    direction = model.embed_tokens.weight[target].double() * model.norm.weight.double() * scale
    heads = []
    for layer, values in zip(model.layers, mixed, strict=True):
        pulled = layer.self_attn.o_proj.weight.double().T @ direction  # (heads · width,)
        heads.append((values * pulled).view(9, -1).sum(-1))
    return torch.stack(heads).numpy()


def _weights(path: Path, ids: list[int]) -> NDArray[np.float64]:
    """Return all weights, (layers, heads, queries, keys)."""
    with torch.no_grad():
        attentions = open_reference(path)(torch.tensor([ids]), output_attentions=True).attentions
    return torch.stack(attentions)[:, 0].double().numpy()


def _largest(values: NDArray[np.float64]) -> tuple[int, int]:
    layer, head = np.unravel_index(values.argmax(), values.shape)
    return int(layer), int(head)


def _first_head(report: Any) -> tuple[int, int]:
    """Return the head that a report shows first."""
    head = report.data.texts[0].heads[0]
    return head.layer, head.head


TARGETS = [*random.Random(5).sample(ANSWERED, 4), *(drawn[:2] for drawn in _questions(seed=5)[:6])]


@in_two("targets", TARGETS, short=3)
def test_the_head_that_adds_most_to_the_logit_is_shown(
    model: OpenModel, smollm2: Path, targets: list[tuple[str, str]]
) -> None:
    heads = set()
    for text, target in targets:
        (target_id,) = _ids(target, model)
        expected = _largest(_added(smollm2, _ids(text, model), target_id))
        heads.add(expected)
        assert _first_head(model.inspect(text, by="logit", target=target)) == expected, text
    assert len(heads) > 1, "one head answers all drawn questions, so that a constant would pass"


def test_the_shortest_command_shows_it(
    smollm2: Path, model: OpenModel, capsys: pytest.CaptureFixture[str]
) -> None:
    text, target, _ = _questions(seed=5)[0]
    layer, head = _largest(_added(smollm2, _ids(text, model), _ids(target, model)[0]))
    assert main(["run", text, "--target", target, "--model", str(smollm2), "--color", "never"]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert f"L{layer}H{head} chosen automatically: adds most to the logit of '{target}'" in screen


@in_two("questions", _questions(seed=6)[:3], short=1)
def test_without_a_target_it_is_about_the_next_token(
    model: OpenModel, smollm2: Path, questions: list[tuple[str, str, str]]
) -> None:
    for text, _, _ in questions:
        prediction = model.inspect(text, predict=True).data.texts[0].predictions[0].tokens[0]
        expected = _largest(_added(smollm2, _ids(text, model), prediction.id))
        assert _first_head(model.inspect(text, by="logit")) == expected, text
        # The first generated token is the target, at the row before it.
        for count in (1, 3):
            report = model.inspect(text, generate=count, by="logit")
            assert report.data.texts[0].attribution.target.id == prediction.id
            assert _first_head(report) == expected, text


def test_a_difference_of_two_logits(model: OpenModel, smollm2: Path) -> None:
    text, target, swapped = _questions(seed=7)[0]
    against = f" {swapped.split()[1]}"
    ids = _ids(text, model)
    first, second = (_added(smollm2, ids, _ids(token, model)[0]) for token in (target, against))
    assert _first_head(model.inspect(text, by="logit", target=(target, against))) == _largest(
        first - second
    )


@in_two("questions", _questions(seed=8), short=3)
def test_the_head_with_the_largest_weight_of_a_query_on_a_key(
    model: OpenModel, smollm2: Path, questions: list[tuple[str, str, str]]
) -> None:
    source = random.Random(8)
    for text, _, _ in questions:
        weights = _weights(smollm2, _ids(text, model))
        key, query = sorted(source.sample(range(1, weights.shape[-1]), 2))
        expected = _largest(weights[:, :, query, key])
        assert _first_head(model.inspect(text, query=query, key=key)) == expected, (
            text,
            query,
            key,
        )
        explanation = model.explain(text, query=query, key=key)
        assert (explanation.layer, explanation.head) == expected, (text, query, key)


@in_two("questions", _questions(seed=9)[:2], short=1)
def test_the_head_that_moves_most_between_two_texts(
    model: OpenModel,
    smollm2: Path,
    capsys: pytest.CaptureFixture[str],
    questions: list[tuple[str, str, str]],
) -> None:
    for text, name, _ in questions:
        another = next(other for other in NAMES if other not in text)
        other_text = text.replace(name, f" {another}")
        first, second = (_weights(smollm2, _ids(side, model)) for side in (text, other_text))
        # a replaced token is paired by its position
        moved = 0.5 * np.abs(second - first).sum(-1).max(-1)
        layer, head = _largest(moved)
        assert main(["compare", text, other_text, "--model", str(smollm2), "--color", "never"]) == 0
        screen = capsys.readouterr().out
        assert f"\nL{layer}H{head}  " in screen, text
        assert "largest share of a row's weight that moved" in " ".join(screen.split())


def test_another_mask_keeps_the_head_of_the_models_own(capsys: pytest.CaptureFixture[str]) -> None:
    text = "The bank by the river"
    for query in ("bank", "by", "river"):
        heads = []
        for mask in ("own", "causal", "window:2"):
            assert main(["explain", text, "--query", query, "--mask", mask, "--json"]) == 0
            explanation = json.loads(capsys.readouterr().out)
            heads.append((explanation["layer"], explanation["head"]))
        assert len(set(heads)) == 1, (query, heads)
        assert (
            main(
                [
                    "run",
                    text,
                    "--query",
                    query,
                    "--mask",
                    "causal",
                    "--what-if",
                    "same-scores",
                    "--json",
                ]
            )
            == 0
        )
        shown = json.loads(capsys.readouterr().out)["texts"][0]["heads"]
        assert tuple(shown["units"][0]) == heads[0]
        assert "under the mask bidirectional" in shown["chosen"][0]


def test_the_terminal_and_the_page_of_a_comparison_open_the_same_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.page.reading import PageData

    sides = ["She sat by the river bank", "She sat by the savings bank"]
    page = tmp_path / "page.html"
    for options in (sides, [sides[0], "--mask", "own", "--mask", "causal"]):
        assert main(["compare", *options, "--color", "never"]) == 0
        screen = capsys.readouterr().out
        assert main(["compare", *options, "-o", str(page), "--force"]) == 0
        ((walk),) = PageData(page.read_text()).of_kind("walk")
        layer, head = walk["scenes"][0]["first"]
        assert f"\nL{layer}H{head}  " in screen
