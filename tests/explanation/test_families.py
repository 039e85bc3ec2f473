"""Every family and position scheme, and every shipped config: parts sum to wholes, and the numbers are those of run."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from attnscope.findings.heads import STAGES
from attnscope.request.run_config import TextInput
from attnscope.run.session import Session, inspect
from attnscope.studies.explain.run import explain
from attnscope.studies.explain.screen import present_explanation
from attnscope.views.parts import Strips
from attnscope.views.settings import DisplaySettings
from tests.helpers.explanation_arithmetic import assert_inputs_sum, assert_sums, failed
from tests.helpers.requests import requested
from tests.helpers.tiny_models import TABLE, VOCAB

CONFIGS = sorted((Path(__file__).parent.parent.parent / "configs").glob("*.toml"))
TEXT = "w7 w21 w9 w40 w9 w33 w12 w8 w50"
QUERY = 5


def save(row, folder):
    """The row's model with a tokenizer of words w0 … w59."""
    model = row.save(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return model


@pytest.fixture(scope="module", params=TABLE, ids=lambda row: row.name)
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    save(request.param, path)
    return str(path)


def both(session, **options):
    """The explanation, and what run says about the same row."""
    asked = requested(texts=tuple(session.texts), **options)
    explained = explain(asked)
    text = inspect(
        requested(texts=asked.texts, stages=STAGES, top=1, **options), session=session
    ).texts[0]
    return explained, text.heads[0]


def assert_agrees(e, head):
    """The same numbers as in run's matrices, to the last bit, and in its ranking."""
    assert (e.layer, e.head, e.scale, e.softcap, e.bias) == (
        head.layer,
        head.head,
        head.scale,
        head.softcap,
        head.bias,
    )
    for stage in ("scores", "scaled", "masked", "weights"):
        np.testing.assert_array_equal(getattr(e.row, stage), head.stages[stage][0])
    np.testing.assert_array_equal(e.output, head.stages["output"][0])
    assert (e.sink is None) == (head.rows.sink is None)
    assert e.sink is None or e.sink.weight == head.rows.sink[0]
    best = int(head.top.keys[0, 0])
    assert e.row.weights[best] == head.top.weight[0, 0]
    assert e.row.weights[best] * e.row.value_norms[best] == pytest.approx(
        head.top.value[0, 0], rel=1e-6
    )


def test_the_layers_output_is_that_of_transformers(request, folder):
    """Attention, residual, norms and MLP: the state after layer 1, which is not the last."""
    row = request.node.callspec.params["folder"]
    session = Session((TextInput(TEXT),))
    e, _ = both(session, model=folder, layer="1", head="0", query=str(QUERY))
    model = row.model.from_pretrained(folder).eval()
    model = getattr(model, model.base_model_prefix, model)
    ids = torch.tensor([[token.id for token in e.tokens]])
    with torch.inference_mode():
        states = model(ids, output_hidden_states=True).hidden_states
    output = e.rest_of_layer[-1]
    assert output.name == "output"
    np.testing.assert_allclose(output.values, states[2][0, QUERY].numpy(), atol=2e-5, rtol=2e-5)
    residual = next(vector for vector in e.rest_of_layer if vector.name == "residual")
    attention = next(vector for vector in e.rest_of_layer if vector.name in ("attention", "normed"))
    assert residual.origin.startswith("the layer's input + ")
    assert np.linalg.norm(attention.values) > 0
    assert "value" in {check.name for check in e.checks}
    assert not failed(e)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_parts_sum_to_wholes_and_agree_with_run(folder, layer):
    session = Session((TextInput(TEXT),))
    e, head = both(session, model=folder, layer=str(layer), head=str(3 - layer), query=str(QUERY))
    assert_sums(e)
    assert_agrees(e, head)
    assert not failed(e), [check for check in e.checks if not check.holds]
    assert {check.name for check in e.checks} >= {
        "query",
        "key",
        "position",
        "parts",
        "scaled",
        "weights",
        "output",
    }
    if layer == 0:
        assert_inputs_sum(e)
    assert len(e.inputs) >= layer + 1


def test_rotated_pairs_are_named_with_their_wavelengths(folder):
    config = json.loads((Path(folder) / "config.json").read_text())
    e = explain(requested((TextInput(TEXT),), model=folder, layer="0", head="0", query=str(QUERY)))
    (cell,) = e.cells
    lengths = [part.wavelength for part in cell.parts if part.wavelength is not None]
    unturned = config.get("no_rope_layers", [1])[0] == 0
    unturned = unturned or config["model_type"] in ("bert", "roberta", "distilbert", "gpt2")
    if unturned or config["model_type"] in ("mpnet", "bloom", "mpt", "gpt_neo", "deberta-v2", "t5"):
        assert not lengths and all(len(part.dims) == 1 for part in cell.parts)
        return
    assert len(lengths) == len(set(lengths)) and min(lengths) >= 2 * np.pi * (1 - 1e-6)
    pairs = sorted(part.dims for part in cell.parts if part.wavelength is not None)
    if config["model_type"] in ("cohere", "cohere2", "glm", "glm4"):
        assert pairs == [[2 * i, 2 * i + 1] for i in range(len(pairs))]
    else:
        assert pairs == [[i, i + len(pairs)] for i in range(len(pairs))]
    for steps in (e.query_steps, cell.key_steps):
        before, after = (np.linalg.norm(step.values[: 2 * len(pairs)]) for step in steps[-2:])
        named = re.search(r"× (\S+)$", steps[-1].formula)
        assert after / before == pytest.approx(float(named[1]) if named else 1.0, rel=5e-4)


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        (['kind = "yarn"', "factor = 4.0"], ", × 1.139"),  # 0.1·ln 4 + 1
        (['kind = "yarn"', "factor = 4.0", "attention_factor = 1.0"], ""),
        (['kind = "linear"', "factor = 4.0"], ""),
    ],
)
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_what_the_rotation_multiplies_by_is_named(tmp_path, scaling, said, fraction):
    path = tmp_path / "stack.toml"
    lines = [
        "d_model = 16",
        "n_heads = 2",
        'positions = "rope"',
        'mask = "causal"',
        "[rope]",
        f"fraction = {fraction}",
    ]
    original = ["original_max_positions = 16"] if "yarn" in scaling[0] else []
    path.write_text("\n".join([*lines, "[rope.scaling]", *scaling, *original, ""]))
    e = explain(requested((TextInput("a bank by a river"),), config=str(path), query="1", key="0"))
    if fraction != 1:
        said = said.replace("×", "the rotated dimensions ×")
    assert e.query_steps[-1].formula == f"rotated by position 1{said}"
    assert e.cells[0].key_steps[-1].formula == f"rotated by position 0{said}"
    shown = "".join(str(part) for part in present_explanation(e, DisplaySettings(precision=2)))
    assert f"rotated, each by its own position{said}'" in shown


def words_for(path):
    """A text that the config's tokenizer knows."""
    file = tomllib.loads(path.read_text())
    if file.get("tokenizer", "words") == "words":
        return "The bank by the river", file
    known = Tokenizer.from_file(str(path.parent / file["tokenizer"])).get_vocab()
    plain = [word for word, _ in sorted(known.items(), key=lambda item: item[1]) if word.isalnum()]
    return " ".join(plain[:5]), file


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config(path):
    text, file = words_for(path)
    context = text if file.get("cross_attention") else None
    session = Session((TextInput(text, context=context),))
    for layer in range(file.get("n_layers", 1)):
        e, head = both(session, config=str(path), layer=str(layer), head="-1", query="2")
        assert_sums(e)
        assert_agrees(e, head)
        assert not failed(e)


def test_auto_takes_the_head_that_run_takes():
    texts = (TextInput("The bank by the river was eroded"),)
    e = explain(requested(texts, config="causal", query="river"))
    (head,) = inspect(requested(texts, config="causal", query="river")).texts[0].heads
    assert (e.layer, e.head, e.chosen) == (head.layer, head.head, head.chosen)


def test_a_real_bert(minilm):
    """L0H4 gives "river" about 0.70 of "bank"."""
    texts = (TextInput("The bank by the river was eroded"),)
    e = explain(requested(texts, model=str(minilm), layer="0", head="4", query="bank", key="river"))
    assert_sums(e)
    assert_inputs_sum(e)
    assert not failed(e)
    assert e.sources[e.cells[0].key].text == "river"
    assert e.row.weights[e.cells[0].key] == pytest.approx(0.70, abs=0.005)


def test_strips_are_q_and_k_of_every_dimension_and_end_with_the_score_of_run(folder):
    session = Session((TextInput(TEXT),))
    e, head = both(session, model=folder, layer="1", head="2", query=str(QUERY))
    (cell,) = e.cells
    strips = next(
        part for part in present_explanation(e, DisplaySettings()) if isinstance(part, Strips)
    )
    dims = [int(name.removeprefix("dim ")) for name in strips.cells]
    assert sorted(dims) == list(range(e.head_width))
    values = {strip.name: np.array(strip.values) for strip in strips.strips}
    k = e.key_vectors[e.keys.index(cell.key)][dims].astype(float)
    q = e.query_steps[-1].values[dims].astype(float)
    np.testing.assert_allclose(values["q"], q, rtol=1e-6)
    np.testing.assert_allclose(values["k"], k, rtol=1e-6)
    np.testing.assert_allclose(values["q × k"], q * k, rtol=1e-5)
    np.testing.assert_allclose(values["so far"], np.cumsum(q * k), rtol=1e-4, atol=1e-4)
    assert values["so far"][-1] == pytest.approx(
        head.stages["scores"][0][cell.key], rel=1e-4, abs=1e-4
    )
