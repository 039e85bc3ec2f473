"""Patches, draws from other texts and logits of targets against forward hooks on eager `transformers` models."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

import attnscope
from attnscope.cli import main
from tests.helpers.architectures import write_tokenizer
from tests.helpers.effect_arithmetic import divergence, log_softmax
from tests.helpers.tiny_models import TABLE
from tests.parity.test_cuts import PLACES

TEXT, OTHER = "the bank by the river was old and we sat", "the dog by the river was we and old sat"
AT, HEADS, LAYERS = 4, 4, 3
TARGETS = ("river", "old")
FAMILIES = ("bert with heads", "gpt2", "llama", "gpt_oss")
RTOL = 1e-5
Seen = dict[int, Tensor]  # what each output projection reads, (T, H, Ev)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory) -> tuple[str, str, PreTrainedModel]:
    """A tiny model with a tokenizer, its family's name, and the same model of transformers."""
    (row,) = (row for row in TABLE if row.name == request.param)
    path = tmp_path_factory.mktemp("model")
    model = row.save(path)
    write_tokenizer(path)
    return request.param, str(path), model


@contextmanager
def projected(
    model: PreTrainedModel, name: str, change: Callable[[int, Tensor], Tensor]
) -> Iterator[None]:
    """Change what the output projection of each layer reads, as (T, H, Ev)."""

    def hook(layer: int) -> Any:
        def run(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
            return (change(layer, args[0][0].unflatten(-1, (HEADS, -1))).flatten(-2)[None],)

        return run

    places = [model.get_submodule(PLACES[name][1].format(layer)) for layer in range(LAYERS)]
    handles = [place.register_forward_pre_hook(hook(layer)) for layer, place in enumerate(places)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def logits_of(model: PreTrainedModel, ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        made = model(input_ids=torch.tensor([ids]))
    return (
        (made.prediction_logits if "prediction_logits" in made else made.logits)[0, AT]
        .double()
        .numpy()
    )


def seen(model: PreTrainedModel, name: str, ids: list[int]) -> tuple[Seen, np.ndarray]:
    """What every output projection reads, and the logits."""
    kept: Seen = {}

    def keep(layer: int, joined: Tensor) -> Tensor:
        kept[layer] = joined.clone()
        return joined

    with projected(model, name, keep):
        logits = logits_of(model, ids)
    return kept, logits


def patched(
    model: PreTrainedModel,
    name: str,
    ids: list[int],
    other: Seen,
    where: dict[int, tuple[Any, Any]],
) -> np.ndarray:
    """Logits with what some heads give at some positions, by layer, taken from another text."""

    def change(layer: int, joined: Tensor) -> Tensor:
        if layer in where:
            rows, heads = where[layer]
            joined = joined.clone()
            joined[rows, heads] = other[layer][rows, heads]
        return joined

    with projected(model, name, change):
        return logits_of(model, ids)


def difference(logits: np.ndarray, targets: list[int]) -> float:
    return float(logits[targets[0]] - (logits[targets[1]] if len(targets) > 1 else 0.0))


def assert_near(ours: Any, theirs: Any, size: float) -> None:
    """1e-5 of the largest logit, as between two float32 passes of models with large weights."""
    np.testing.assert_allclose(ours, theirs, atol=RTOL * size, rtol=RTOL)


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_every_patch_is_that_of_hooks(family, engine):
    name, path, model = family
    asked: dict[str, Any] = {
        "model": path,
        "engine": engine,
        "patch_from": OTHER,
        "target": TARGETS,
        "at": AT,
    }
    found = attnscope.ablate(TEXT, each="head", **asked)
    ids = [token.id for token in found.data.tokens]
    (tokens,) = found.data.replacing.tokens
    targets = [target.id for target in found.targets]
    other, there = seen(model, name, [token.id for token in tokens])
    _, before = seen(model, name, ids)
    size, start = float(np.abs(before).max()), difference(before, targets)
    assert_near([target.logit for target in found.targets], before[targets], size)
    assert_near([target.other for target in found.targets], there[targets], size)
    after = [
        patched(model, name, ids, other, {layer: (slice(None), head)})
        for layer in range(LAYERS)
        for head in range(4)
    ]
    expected = np.array([difference(one, targets) - start for one in after])
    assert_near(found.effect, expected, size)
    assert np.abs(expected).max() > 0.01 * size  # a patch that changes nothing would prove nothing
    shares = np.reshape(expected / (difference(there, targets) - start), (LAYERS, 4))
    np.testing.assert_allclose(found.restored, shares, rtol=1e-3, atol=1e-4)
    assert found.restored.shape == found.values.shape
    kl = [divergence(log_softmax(before), log_softmax(one)) for one in after]
    np.testing.assert_allclose(found.data.effects[0].kl, kl, rtol=1e-3, atol=1e-5)
    assert found.data.order() == np.argsort(-np.abs(found.effect), kind="stable").tolist()

    layers = attnscope.ablate(TEXT, each="layer", **asked)
    after = [
        patched(model, name, ids, other, {layer: (slice(None), slice(None))})
        for layer in range(LAYERS)
    ]
    assert_near(layers.effect, [difference(one, targets) - start for one in after], size)

    cut = attnscope.ablate(TEXT, cut=["L0H1: 7→", "L1H2", "L0H1: 7,8→", "L2"], **asked)
    where = {0: ([7, 8], [1, 1]), 1: (slice(None), 2), 2: (slice(None), slice(None))}
    expected_one = patched(model, name, ids, other, where)
    assert cut.effects[0].how == "patch"
    assert_near(cut.target_change, difference(expected_one, targets) - start, size)
    assert cut.kl[0] == pytest.approx(
        divergence(log_softmax(before), log_softmax(expected_one)), rel=1e-3
    )


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_draws_from_other_texts_are_those_of_hooks(family, engine):
    name, path, model = family
    others = [
        "we sat by the old bank and the river",
        "old dog was the bank by river and dog was by the",
    ]
    asked: dict[str, Any] = {
        "model": path,
        "engine": engine,
        "target": "river",
        "at": AT,
        "others": others,
    }
    asked |= {"replacement": "resample", "draws": 3, "seed": 7}
    found = attnscope.ablate(TEXT, each="head", **asked)
    ids, (target,) = [token.id for token in found.data.tokens], found.targets
    _, before = seen(model, name, ids)
    size, changes, kls = float(np.abs(before).max()), [], []
    assert found.data.replacing.seed == 7 and len(found.data.replacing.tokens) == 3
    pool = [word for text in others for word in text.split()]
    for tokens in found.data.replacing.tokens:
        said = [token.text for token in tokens if not token.special]
        assert any(said == pool[n : n + len(said)] for n in range(len(pool)))
        assert [token.special for token in tokens] == [token.special for token in found.data.tokens]
        other, _ = seen(model, name, [token.id for token in tokens])
        after = [
            patched(model, name, ids, other, {n: (slice(None), h)})
            for n in range(LAYERS)
            for h in range(HEADS)
        ]
        changes.append([one[target.id] - before[target.id] for one in after])
        kls.append([divergence(log_softmax(before), log_softmax(one)) for one in after])
    assert_near(found.effect, np.mean(changes, axis=0), size)
    np.testing.assert_allclose(found.data.effects[0].kl, np.mean(kls, axis=0), rtol=1e-3, atol=1e-5)
    assert np.std(changes, axis=0).max() > 0.01 * size  # draws differ

    cut = attnscope.ablate(TEXT, cut=["L0H1: 7→", "L1H2"], **asked)
    where, logs = {0: ([7], [1]), 1: (slice(None), 2)}, []
    for tokens in cut.data.replacing.tokens:
        other, _ = seen(model, name, [token.id for token in tokens])
        logs.append(log_softmax(patched(model, name, ids, other, where)))
    mean = np.mean(np.exp(logs), axis=0)
    (change,) = cut.effects[0].predictions
    assert change.kl == pytest.approx(
        np.mean([divergence(log_softmax(before), one) for one in logs]), rel=1e-3
    )
    for token in change.tokens:
        assert token.after == pytest.approx(mean[token.id], rel=1e-4)
    assert {int(n) for n in np.argsort(-mean)[:5]} <= {token.id for token in change.tokens}


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> str:
    (row,) = (row for row in TABLE if row.name == "gpt2")
    path = tmp_path_factory.mktemp("gpt2")
    row.save(path)
    write_tokenizer(path)
    return str(path)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["--from", "the bank"],
            "--patch-from: has 3 tokens, but the text has 11: patches go from token to token",
        ),
        (
            ["--from", OTHER, "--with", "mean"],
            "--patch-from and --replacement mean cannot be used together",
        ),
        (["--draws", "3"], "--draws: applies only to --replacement resample"),
        (["--seed", "3", "--from", OTHER], "--seed: applies only to --replacement resample"),
        (["--target", "sea side"], "--target: 'sea side' is"),
        (["--target", "old", "--target", "bank", "--target", "river"], "--target: given 3 times"),
        (
            ["--with", "resample", "--from-file", "few.txt"],
            "--others: the other texts have 2 tokens, fewer than",
        ),
    ],
)
def test_what_cannot_be_patched_is_refused(gpt2, args, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.txt").write_text("old bank\n")
    assert main(["ablate", TEXT, "--each", "head", "--model", gpt2, *args]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_nothing_is_drawn_for_a_text_without_words(capsys):
    assert main(["ablate", "[MASK]", "--each", "head", "--with", "resample"]) == 2
    assert (
        "--replacement resample: the text has special and mask tokens alone, which stay"
        in capsys.readouterr().err
    )


def test_targets_need_a_prediction(capsys):
    assert main(["ablate", "a bank by the river", "--each", "head", "--target", "river"]) == 2
    assert "--target: the text has no mask token to predict" in " ".join(
        capsys.readouterr().err.split()
    )


def test_the_seed_chooses_draws(gpt2):
    asked: dict[str, Any] = {
        "model": gpt2,
        "cut": "L0H0",
        "replacement": "resample",
        "others": [TEXT, OTHER, TEXT],
    }
    first, same, different = (attnscope.ablate(TEXT, **asked, seed=seed) for seed in (None, 0, 1))
    assert first.to_json() == same.to_json()
    assert first.data.replacing.tokens != different.data.replacing.tokens


@pytest.mark.parametrize("unit", ["head", "layer"])
def test_where_texts_do_not_differ_yet_rounding_is_no_effect(gpt2, unit, capsys):
    """A patch of the first tokens, which both texts share, restored -9.5 and correlated with weights."""
    other = TEXT.replace(" sat", " ran")
    asked: dict[str, Any] = {"model": gpt2, "patch_from": other, "each": unit, "target": "old"}
    early, late = (attnscope.ablate(TEXT, at=at, **asked) for at in (2, len(TEXT.split()) - 1))
    assert np.abs(early.effect).max() < 1e-4 < 1e-3 < np.abs(late.effect).max()
    assert (early.restored, early.correlation) == (None, None)
    assert late.restored is not None and late.correlation is not None
    command = ["ablate", TEXT, "--patch-from", other, "--each", unit, "--model", gpt2]
    assert main([*command, "--target", "old", "--at", "2"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"no {unit} has an effect here" in shown
    assert "restored" not in shown and "has the largest effect" not in shown


def test_an_edge_behind_the_compared_token_has_no_effect(gpt2, capsys):
    edges = ["--each", "edge", "--layer", "0", "--head", "0", "--query", "5"]
    assert main(["ablate", TEXT, "--model", gpt2, *edges, "--at", "3"]) == 0
    shown = capsys.readouterr().out
    assert "no edge has an effect here" in shown and "more weight" not in shown
    assert main(["ablate", TEXT, "--model", gpt2, *edges, "--at", "5"]) == 0
    assert "has the largest effect" in capsys.readouterr().out


def test_what_only_16_bits_change_is_no_effect(gpt2, tmp_path, capsys):
    """Heads that write a thousandth: in 16 bits, the last bits of states flip at any change, and none is told apart."""
    folder = shutil.copytree(gpt2, tmp_path / "quiet")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    (name,) = [name for name in tensors if name.endswith("h.2.attn.c_proj.weight")]
    tensors[name] *= 1e-3
    save_file(tensors, file, metadata={"format": "pt"})
    command = ["ablate", TEXT, "--model", str(folder), "--each", "head", "--layer", "2"]
    for dtype, has_effect in [("float32", True), ("bfloat16", False), ("float16", False)]:
        survey = attnscope.ablate(TEXT, model=folder, each="head", layer=2, dtype=dtype)
        assert survey.data.effects[0].hidden.max() > 3e-5
        assert (survey.correlation is not None) == has_effect
        assert main([*command, "--dtype", dtype]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert ("no head has an effect here beyond rounding" in shown) == (not has_effect)
        assert ("has the largest effect" in shown) == has_effect
