"""Token ids, attention masks and position ids, padded on either side: what transformers makes of the same tensors."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.cli import main
from tests.helpers.architectures import write_tokenizer
from tests.helpers.tiny_models import TABLE

IDS = torch.tensor([[0, 0, 4, 9, 5, 6], [4, 5, 6, 7, 8, 9]])
REAL = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
PLACES = torch.tensor([[0, 0, 3, 4, 9, 1], [7, 2, 3, 0, 1, 11]])
SIDES = {
    "left": {"attention_mask": REAL},
    "right": {"attention_mask": REAL.flip(1)},
    "left with positions": {"attention_mask": REAL, "position_ids": PLACES},
    "right with positions": {"attention_mask": REAL.flip(1), "position_ids": PLACES},
}


@pytest.fixture(scope="module", params=["gpt2", "llama", "bert with heads", "roberta"])
def family(request, tmp_path_factory):
    (row,) = [row for row in TABLE if row.name == request.param][:1] or [
        next(row for row in TABLE if row.name.startswith(request.param))
    ]
    path = tmp_path_factory.mktemp("model")
    model = row.save(path)
    write_tokenizer(path)
    return str(path), model


@pytest.mark.parametrize("engine", ["native", "transformers"])
@pytest.mark.parametrize("side", SIDES)
def test_weights_are_those_of_the_same_tensors(family, engine, side):
    path, model = family
    given, ids = dict(SIDES[side]), IDS if "left" in side else IDS.flip(1)
    offset = (
        model.config.pad_token_id + 1
        if model.config.model_type == "roberta" and "position_ids" in given
        else 0
    )
    if offset:
        given["position_ids"] = given["position_ids"] + offset
    with torch.inference_mode():
        expected = torch.stack(
            model(input_ids=ids, output_attentions=True, **given).attentions
        ).numpy()
    found = attnscope.inspect(
        input_ids=ids,
        model=path,
        engine=engine,
        layer="all",
        head="all",
        stages="weights",
        top=0,
        **given,
    )
    for n, text in enumerate(found.data.texts):
        kept = np.flatnonzero(given["attention_mask"][n].numpy())
        assert [token.id for token in text.tokens] == ids[n, kept].tolist()
        ours = np.stack([head.stages["weights"] for head in text.heads]).reshape(
            3, 4, len(kept), len(kept)
        )
        np.testing.assert_allclose(ours, expected[:, n][:, :, kept][..., kept], atol=1e-5)
        if "position_ids" in given:
            assert text.position_ids == given["position_ids"][n, kept].tolist()


def test_ids_need_no_tokenizer(family, tmp_path, capsys):
    path, model = family
    (bare := tmp_path / "bare").mkdir()
    for file in Path(path).iterdir():
        if not file.name.startswith("tokenizer"):
            (bare / file.name).symlink_to(file)
    given = {"input_ids": IDS, "attention_mask": REAL, "layer": 1, "head": 2}
    expected = attnscope.inspect(model=path, **given)
    for source in ({"model": model}, {"model": bare}, {"model": bare, "engine": "transformers"}):
        found = attnscope.inspect(**source, **given)
        assert [token.text for token in found.texts[0].tokens] == ["<4>", "<9>", "<5>", "<6>"]
        for n, text in enumerate(found.texts):
            np.testing.assert_allclose(text.weights, expected.texts[n].weights, atol=1e-5)
        with pytest.raises(AttnscopeError, match="tokenizer"):
            attnscope.inspect("abc", **source)
    (tmp_path / "ids.json").write_text("[4, 5, 6]")
    assert main(["run", "--input-ids", str(tmp_path / "ids.json"), "--model", str(bare)]) == 0
    assert "0 <4>" in capsys.readouterr().out


def test_a_file_of_ids_is_what_python_gives(family, tmp_path, capsys):
    path, _ = family
    file = tmp_path / "ids.json"
    file.write_text(json.dumps({"input_ids": IDS.tolist(), "attention_mask": REAL.tolist()}))
    assert (
        main(
            [
                "run",
                "--input-ids",
                str(file),
                "--model",
                path,
                "--json",
                "--layer",
                "1",
                "--head",
                "2",
            ]
        )
        == 0
    )
    typed = json.loads(capsys.readouterr().out)
    found = attnscope.inspect(
        input_ids=IDS.numpy(), attention_mask=REAL, model=path, layer=1, head=2
    )
    theirs = json.loads(found.to_json())
    assert [text["heads"] for text in typed["texts"]] == [text["heads"] for text in theirs["texts"]]
    assert "padding tokens left out: 2 before the text" in typed["texts"][0]["notes"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"attention_mask": REAL}, "has no input_ids"),
        ({"input_ids": [[1, 2], [3]]}, "has rows of different lengths"),
        ({"input_ids": [1, -2]}, "has -2, which is no whole number of 0 or more"),
        ({"input_ids": [1, 2.5]}, "has 2.5, which is no whole number"),
        (
            {"input_ids": [5, 6], "attention_mask": [1, 1, 1]},
            "has shape [1, 3], but input_ids has [1, 2]",
        ),
        (
            {"input_ids": [5, 6, 7], "attention_mask": [1, 0, 1]},
            "row 0 has a 0 at 1, inside the text",
        ),
        ({"input_ids": [5, 6], "attention_mask": [0, 0]}, "row 0 is all padding"),
        ({"input_ids": [5, 10**6]}, "has id 1000000, but the embedding has"),
        ({"input_ids": [5, 10**6]}, "rows; use ids below "),
        ({"input_ids": [5, 6], "token_type_ids": [0, 7]}, "; use type ids below 1"),
        (
            {"input_ids": [5, 6], "position_ids": [0, 10**6]},
            "position 1000000, but the table of positions has",
        ),
        ({"input_ids": [5, 6], "text": "the bank"}, "input_ids and text cannot be used together"),
    ],
)
def test_what_is_no_ids_is_refused(given, said):
    with pytest.raises(AttnscopeError) as error:
        attnscope.inspect(**given)
    assert said in str(error.value)


@pytest.mark.parametrize("form", ["minus infinity", "smallest", "bfloat16", "four axes"])
def test_additive_masks_are_boolean_ones(form):
    text, allowed = "The bank by the river", torch.tril(torch.ones(5, 5, dtype=torch.bool))
    low = -torch.inf if form == "minus infinity" else torch.finfo(torch.float32).min
    added = torch.zeros(5, 5).masked_fill(~allowed, low)
    added = (
        added.bfloat16()
        if form == "bfloat16"
        else added[None, None]
        if form == "four axes"
        else added
    )
    found, plain = (
        attnscope.inspect(text, mask=mask, layer=0, head=0, stages="weights")
        for mask in (added, allowed)
    )
    np.testing.assert_array_equal(found[0, 0].weights, plain[0, 0].weights)
    with pytest.raises(AttnscopeError, match="has -1, which is neither 0 nor −inf"):
        attnscope.inspect(text, mask=torch.where(allowed, 0.0, -1.0))
