"""Against a checkpoint: where given arrays differ from it."""

import numpy as np
import pytest

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
    parts = {
        name: {layer: getattr(inputs, name)[0] for layer, inputs in kept.items()}
        for name in ("q", "k", "v")
    }
    tokens = [token.text for token in report.texts[0].tokens]
    return attnscope.from_qkv(**{**parts, **settings, "tokens": tokens, **changes})


def compared(captured, **changes):
    return attnscope.compare(
        qkv=arrays(captured, **changes), model=captured[1].model, text=captured[1].texts[0].text
    )


def largest_change(result):
    return max(float(np.max(head.total_variation)) for head in result.data.changes[0].heads)


def test_arrays_of_the_model_agree_with_it(captured):
    assert largest_change(compared(captured)) < 1e-5


def test_a_step_of_decoding_is_compared_with_the_model(captured):
    kept = captured[3]
    last = {layer: inputs.q[0][:, -2:] for layer, inputs in kept.items()}
    result = compared(captured, q=last)
    assert largest_change(result) < 1e-5
    count = kept[0].k.shape[2]
    assert result.data.sides[1].report.texts[0].queries == [count - 2, count - 1]
    assert largest_change(compared(captured, q=last, scale=0.11)) > 1e-3


def test_a_forgotten_scale_changes_what_numpy_says(captured):
    """Half the sum of |difference| of every row and of the sink, from the model's weights and those of the arrays."""
    report, kept = captured[2:4]
    result = compared(captured, scale=0.11)
    weights = arrays(captured, scale=0.11).weights
    of_model = {(head.layer, head.head): head.stages["weights"] for head in report.texts[0].heads}
    for change in result.data.changes[0].heads:
        place = change.first.layer, change.first.head
        difference = weights[list(kept).index(place[0])][place[1]] - of_model[place]
        expected = (np.abs(difference).sum(-1) + np.abs(difference.sum(-1))) / 2
        np.testing.assert_allclose(change.total_variation, expected, atol=1e-5)


def test_compare_finds_a_wrong_output_of_arrays_beside_the_model(captured, capsys, tmp_path):
    folder, run, report, kept, masks = captured
    model = ["--model", str(run.model)]
    assert (
        main(["compare", "--qkv", str(folder / "right.safetensors"), *model, "--tolerance", "1e-4"])
        == 0
    )
    capsys.readouterr()
    save(tmp_path / "wrong.npz.safetensors", kept, report, masks, settings=False)
    assert (
        main(
            [
                "compare",
                "--qkv",
                str(tmp_path / "wrong.npz.safetensors"),
                *model,
                "--tolerance",
                "1e-4",
            ]
        )
        == 1
    )
    out = capsys.readouterr()
    assert "layer 0 is the first that differs" in out.out
    text = "w1 w2"
    assert main(["compare", text, "--qkv", str(folder / "right.safetensors"), *model]) == 1
    assert "2 tokens of it, the arrays have 13" in capsys.readouterr().err
    assert (
        main(["compare", "--qkv", str(folder / "right.safetensors"), "--model", "riverbank"]) == 1
    )
    assert (
        main(["compare", *["--qkv", str(folder / "right.safetensors")] * 2, "--tolerance", "0"])
        == 0
    )
