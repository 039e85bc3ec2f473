"""Roles of layers without softmax equal plain NumPy over shares of |M|, where M is what unit values give.

The matrix of a layer is found by running the function of transformers on unit vectors in place of values.
"""

import inspect
import json

import numpy as np
import pytest
import torch

import attnscope
from attnscope.base.errors import UsageError
from attnscope.cli import main
from attnscope.findings.head_roles import ROLES
from tests.helpers import head_roles as reference
from tests.helpers import hybrids
from tests.survey.test_roles import WORDS, found_and_expected

# model_type → function of its modelling file, and the argument with the values
FUNCTIONS = {
    "qwen3_next": ("torch_chunk_gated_delta_rule", "value"),
    "granitemoehybrid": ("mamba2_chunk_scan", "hidden_states"),
    "falcon_h1": ("mamba2_chunk_scan", "hidden_states"),
    "jamba": ("mamba_selective_scan", "hidden_states"),
}
WITHOUT = {"next", "copying"}  # roles that a layer without softmax does not have


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("hybrids")

    def folder(model_type):
        path = root / model_type
        if not path.exists():
            made = hybrids.make_hybrid(model_type, max_position_embeddings=512)
            hybrids.save_hybrid(path, hybrids.with_long_states(made))
        return path

    return folder


def unit_matrices(function, name, bound):
    """M of every head of a call, as its output for unit vectors; of a scan by channel, of every channel."""
    length = bound[name].shape[2 if name == "hidden_states" and bound[name].ndim == 3 else 1]
    unit = torch.eye(length)
    if bound[name].ndim == 3:
        columns = [
            function(**bound | {name: unit[j].expand_as(bound[name]), "z": None})
            for j in range(length)
        ]
        return torch.stack(columns, -1)[0].double().numpy()
    output = function(**bound | {name: unit[None, :, None].expand(1, -1, bound[name].shape[2], -1)})
    output = output[0] if isinstance(output, tuple) else output
    return output[0].transpose(0, 1).double().numpy()


class Shares(reference.Eager):
    """A hybrid: attention of layers with softmax, and shares of |M| of the others, as wide as the widest."""

    def __init__(self, folder):
        super().__init__(folder)
        config = self.model.config
        self.name, self.values = FUNCTIONS[config.model_type]
        self.parallel = config.model_type == "falcon_h1"

    def ids(self, ids, special=(), marks=()):
        file = inspect.getmodule(type(self.model))
        original = getattr(file, self.name)
        calls = []

        def spy(*args, **kwargs):
            bound = inspect.signature(original).bind(*args, **kwargs).arguments
            calls.append({**bound.pop("kwargs", {}), **bound})
            return original(*args, **kwargs)

        setattr(file, self.name, spy)
        try:
            with torch.inference_mode():
                output = self.model(
                    input_ids=torch.tensor([ids]), output_attentions=True, use_cache=False
                )
                matrices = [np.abs(unit_matrices(original, self.values, call)) for call in calls]
        finally:
            setattr(file, self.name, original)
        shares = [matrix / matrix.sum(-1, keepdims=True) for matrix in matrices]
        if self.model.config.model_type == "jamba":
            shares = [np.repeat(layer.mean(0)[None], 4, 0) for layer in shares]
        attentions = iter(
            [layer[0].double().numpy() for layer in output.attentions if layer is not None]
        )
        weights = (
            shares
            if self.parallel
            else [layer for share in shares for layer in (share, next(attentions))]
        )
        size = len(ids)
        causal = np.tril(np.ones((len(weights), size, size), dtype=bool))
        none = np.zeros(size, dtype=bool)
        return reference.Seen(
            ids, np.stack(weights), causal, np.array(special or none), np.array(marks or none)
        )


def survey_of(folder, monkeypatch, **options):
    monkeypatch.setattr(reference, "Eager", Shares)
    return found_and_expected(folder, WORDS, "transformers", 3, **options)


def check(survey, expected, rows):
    """Compare rows of layers × heads: layers, and the heads that they have."""
    for role in survey.roles:
        values, errors = expected.get(role.name, (None, None))
        for layer, heads in rows.items():
            shared = layer in survey.shares
            if role.name == "copying" or (shared and role.name in WITHOUT):
                assert np.isnan(role.values[layer]).all(), role.name
                continue
            at = (layer, slice(heads))
            np.testing.assert_allclose(
                role.values[at], values[at], rtol=0, atol=2e-4, err_msg=role.name
            )
            np.testing.assert_allclose(
                role.errors[at], errors[at], rtol=0, atol=2e-4, err_msg=role.name
            )
            assert np.isnan(role.values[layer, heads:]).all()


@pytest.mark.parametrize("model_type", ["qwen3_next", "granitemoehybrid"])
def test_roles_of_both_kinds_of_layers_are_in_one_grid(folders, monkeypatch, model_type):
    survey, expected = survey_of(folders(model_type), monkeypatch)
    assert survey.shares == {0: 4, 2: 4}
    check(survey, expected, dict.fromkeys(range(4), 4))
    assert {role.name for role in survey.roles if not ROLES[role.name].of_shares} == WITHOUT


def test_the_channels_of_mamba_are_one_head_their_mean(folders, monkeypatch):
    survey, expected = survey_of(folders("jamba"), monkeypatch)
    assert (survey.shares, survey.channels) == ({0: 1, 2: 1}, {0: 64, 2: 64})
    check(survey, expected, {0: 1, 1: 4, 2: 1, 3: 4})
    assert all(row[1:] == [None] * 3 for row in survey.main[::2])


def test_measure_mixing_shows_layers_that_also_have_attention(folders, monkeypatch):
    folder = folders("falcon_h1")
    attention = attnscope.heads(model=str(folder), draws=2).data
    assert not attention.shares
    shares = attnscope.heads(str(folder), list(WORDS), draws=2, measure="mixing").data
    monkeypatch.setattr(reference, "Eager", Shares)
    eager = Shares(folder)
    texts = [eager.text(text) for text in WORDS]
    for name in ("previous", "self", "first", "local", "uniform"):
        np.testing.assert_allclose(
            shares.by_name()[name], reference._share(texts, name), rtol=0, atol=2e-4
        )
    assert shares.shares == dict.fromkeys(range(4), 4)


def test_the_screen_marks_what_is_of_shares(folders, tmp_path, capsys):
    folder = str(folders("qwen3_next"))
    assert main(["heads", WORDS[0], "--model", folder, "--draws", "2"]) == 0
    out = capsys.readouterr().out
    assert all(label in out for label in ("L0 G", "L1 A", "L2 G", "L3 A"))
    words = " ".join(out.split())
    assert (
        "roles in layers G are of shares of |M|, the layer's matrix, in place of weights" in words
    )
    assert "they have no role next, copying" in words
    assert main(["heads", WORDS[0], "--model", folder, "--role", "previous", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["shares"] == {"0": 4, "2": 4}
    assert np.isfinite(np.array(data["roles"][0]["values"], dtype=float)).all()
    assert (
        main(["heads", WORDS[0], "--model", folder, "--draws", "2", "-o", str(tmp_path / "a.svg")])
        == 0
    )
    assert "L0 G" in (tmp_path / "a.svg").read_text()
    with pytest.raises(UsageError, match="no layer of this model has a matrix without softmax"):
        attnscope.heads(text=WORDS[0], measure="mixing")
