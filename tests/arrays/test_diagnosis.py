"""Against a checkpoint: where given arrays differ from it, and which of its settings they were computed without."""

import numpy as np
import pytest
import torch

import attnscope
from attnscope.cli import main
from tests.arrays.captured import save
from tests.arrays.test_families import made, rows


@pytest.fixture(scope="module", params=["gemma2", "gpt_oss"])
def captured(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("captured")
    run, report, kept, masks = made(rows()[request.param], folder)
    save(folder / "right.safetensors", kept, report, masks)
    return folder, run, report, kept, masks


def arrays(captured, **changes):
    """The captured arrays with the settings of the model, of which some are changed."""
    _, _, report, kept, masks = captured
    settings = {
        "scale": {layer: inputs.spec.scale for layer, inputs in kept.items()},
        "softcap": {layer: inputs.spec.softcap for layer, inputs in kept.items()},
        "sinks": {layer: inputs.spec.sinks for layer, inputs in kept.items()},
        "mask": masks,
    }
    parts = {name: {layer: getattr(inputs, name)[0] for layer, inputs in kept.items()} for name in ("q", "k", "v")}
    tokens = [token.text for token in report.texts[0].tokens]
    return attnscope.from_qkv(**{**parts, **settings, "tokens": tokens, **changes})


def diagnosed(captured, **changes):
    return attnscope.compare(qkv=arrays(captured, **changes), model=captured[1].model, text=captured[1].texts[0].text)


def test_arrays_of_the_model_agree_with_it(captured):
    found = diagnosed(captured).data.diagnosis
    assert found.agrees and found.needed == [] and found.tried == [] and found.first_layer is None
    assert found.difference < 1e-5


def test_a_step_of_decoding_is_compared_with_the_model(captured):
    kept = captured[3]
    last = {layer: inputs.q[0][:, -2:] for layer, inputs in kept.items()}
    found = diagnosed(captured, q=last)
    assert found.data.diagnosis.agrees
    count = kept[0].k.shape[2]
    assert found.data.sides[1].report.texts[0].queries == [count - 2, count - 1]
    forgotten = diagnosed(captured, q=last, scale=0.11).data.diagnosis
    assert not forgotten.difference < 1e-3
    assert forgotten.needed == ["scale"]


def test_each_forgotten_setting_is_named(captured):
    report, kept = captured[2:4]
    forgotten = {"scale": {"scale": 0.11}, "window": {"mask": "causal"}}
    if any(inputs.spec.softcap for inputs in kept.values()):
        forgotten["softcap"] = {"softcap": None}
    if any(inputs.spec.sinks is not None for inputs in kept.values()):
        forgotten["sinks"] = {"sinks": None}
    assert len(forgotten) == 3
    for name, change in forgotten.items():
        result = diagnosed(captured, **change)
        found = result.data.diagnosis
        assert found.needed == [name] and found.agrees and found.remaining < 1e-5
        (tried,) = (each for each in found.tried if each.name == name)
        assert tried.difference < 1e-5 < found.difference
        gaps = {}
        wrong = arrays(captured, **change)
        for at, layer in enumerate(kept):
            gaps[layer] = np.abs(wrong.weights[0 + at] - np.stack([h.stages["weights"] for h in heads(report, layer)]))
        worst = max(gaps, key=lambda layer: gaps[layer].max())
        assert (found.layer, found.difference) == (worst, pytest.approx(gaps[worst].max(), abs=1e-5))
        assert gaps[worst][found.head, found.query].max() == pytest.approx(found.difference, abs=1e-5)
        assert found.first_layer == next(layer for layer, gap in gaps.items() if gap.max() > 1e-4)
        assert "forgets" in result.text()


def heads(report, layer):
    return [head for head in report.texts[0].heads if head.layer == layer]


def test_two_forgotten_settings_are_both_needed(captured):
    found = diagnosed(captured, scale=0.11, mask="causal").data.diagnosis
    assert sorted(found.needed) == ["scale", "window"] and found.agrees
    assert all(each.difference > 1e-2 for each in found.tried)


def test_a_scale_in_the_queries_is_found(captured):
    kept = captured[3]
    q = {layer: inputs.q[0] * inputs.spec.scale for layer, inputs in kept.items()}
    assert diagnosed(captured, q=q).data.diagnosis.needed == ["scale in q"]


def test_queries_and_keys_from_before_the_rotation_are_found(tmp_path):
    run, report, kept, masks = made(rows()["llama"], tmp_path)
    theta = hf_rope(run.model)
    q, k = (
        {layer: turned_back(getattr(inputs, name)[0], theta) for layer, inputs in kept.items()} for name in ("q", "k")
    )
    scale = {layer: inputs.spec.scale for layer, inputs in kept.items()}
    given = attnscope.from_qkv(q, k, scale=scale, mask=masks, tokens=[t.text for t in report.texts[0].tokens])
    found = attnscope.compare(qkv=given, model=run.model, text=run.texts[0].text).data.diagnosis
    assert (found.needed, found.agrees, found.tried) == (["rope"], True, [])
    assert found.difference > 1e-2 > 1e-5 > found.remaining


def hf_rope(model):
    import json
    from pathlib import Path

    config = json.loads((Path(model) / "config.json").read_text())
    return config.get("rope_theta") or config["rope_parameters"]["rope_theta"]


def turned_back(x, theta):
    """Rotate (H, T, E) by the positions, backwards."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1])[:, None] * theta ** (-torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos + second * sin, second * cos - first * sin), -1)


def test_other_queries_are_no_setting(captured):
    _, _, _, kept, _ = captured
    q = {
        layer: inputs.q[0] * (1.0 if layer == 0 else 0.7) + (0.0 if layer == 0 else 0.3)
        for layer, inputs in kept.items()
    }
    found = diagnosed(captured, q=q).data.diagnosis
    assert not found.agrees and found.needed == [] and found.first_layer == found.first_scores == 1


def test_on_the_command_line(captured, capsys, tmp_path):
    folder, run, report, kept, masks = captured
    model = ["--model", str(run.model)]
    assert main(["compare", "--qkv", str(folder / "right.safetensors"), *model, "--tolerance", "1e-4"]) == 0
    assert "the weights agree" in capsys.readouterr().out
    save(tmp_path / "wrong.npz.safetensors", kept, report, masks, settings=False)
    assert main(["compare", "--qkv", str(tmp_path / "wrong.npz.safetensors"), *model, "--tolerance", "1e-4"]) == 1
    out = capsys.readouterr()
    assert "the other side forgets" in " ".join(out.out.split()) and "layer 0 is the first that differs" in out.out
    text = "w1 w2"
    assert main(["compare", text, "--qkv", str(folder / "right.safetensors"), *model]) == 1
    assert "2 tokens of it, the arrays have 13" in capsys.readouterr().err
    assert main(["compare", "--qkv", str(folder / "right.safetensors"), "--model", "riverbank"]) == 1
    assert main(["compare", *["--qkv", str(folder / "right.safetensors")] * 2, "--tolerance", "0"]) == 0
