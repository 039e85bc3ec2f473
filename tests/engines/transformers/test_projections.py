"""The transformers engine finds the weights of values and outputs where the native engine knows the architecture."""

import numpy as np
import pytest
import torch
import transformers as hf
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

import attnscope
from attnscope.checkpoints.families import FAMILIES
from attnscope.checkpoints.locating import open_checkpoint
from attnscope.engines.transformers.engine import TransformersEngine
from attnscope.engines.transformers.loading import load_model
from attnscope.studies.heads.measure import copying_scores
from tests.helpers import architectures
from tests.helpers.reference_stages import uses_interface
from tests.helpers.tiny_models import TABLE
from tests.parity.test_logits import SETTINGS, open_native

OTHERS = (
    "gemma3",
    "llama one kv head, tied",
    "llama head_dim",
    "qwen3 windows, biases",
    "mixtral window, three of five",
)
ROWS = [row for row in TABLE if row.name in (*FAMILIES, *OTHERS) and uses_interface(row.model)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_copying_is_that_of_the_native_engine(row, tmp_path):
    row.save(tmp_path)
    native = open_native(tmp_path)
    theirs = TransformersEngine(load_model(open_checkpoint(tmp_path), torch.float32), SETTINGS)
    found = copying_scores(theirs)
    np.testing.assert_allclose(found, copying_scores(native), rtol=0, atol=1e-4)
    assert np.ptp(found) > 0.1
    for layer in range(native.sizes[0]):
        with native.holding(layer):
            for one, other in zip(
                theirs.value_and_output(layer), native.value_and_output(layer), strict=True
            ):
                assert torch.equal(one, other)


def test_every_family_is_compared():
    usable = {row.model.config_class.model_type for row in TABLE if uses_interface(row.model)}
    assert {row.model.config_class.model_type for row in ROWS} == usable


WORDS = "the bank by the river was old and we sat on it"


def live(model):
    tokens = hf.PreTrainedTokenizerFast(
        tokenizer_file=str(model.config.name_or_path) + "/tokenizer.json"
    )
    found = attnscope.heads(model, WORDS, tokenizer=tokens, role=["previous", "copying"], draws=2)
    return found["copying"], [note for note in found.data.notes if "copying" in note]


def opened(kind, folder):
    architectures.save(folder, architectures.make(kind, architectures.ONE_PART[kind]))
    return hf.AutoModel.from_pretrained(folder)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "phi3"])
def test_copying_of_a_model_in_memory(kind, tmp_path):
    model = opened(kind, tmp_path)
    found, notes = live(model)
    assert not notes
    native = attnscope.heads(tmp_path, WORDS, role="copying", draws=2)
    np.testing.assert_allclose(found, native["copying"], rtol=0, atol=1e-4)
    theirs = attnscope.heads(tmp_path, WORDS, role="copying", draws=2, engine="transformers")
    np.testing.assert_allclose(theirs["copying"], native["copying"], rtol=0, atol=1e-4)


def adapted(model):
    inject_adapter_in_model(LoraConfig(target_modules=["v_proj"], r=2), model)


def replaced(model):
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model.layers[1].self_attn.o_proj.__class__ = Doubled


def extended(model):
    class Own(type(model.layers[0].self_attn)):
        pass

    model.layers[0].self_attn.__class__ = Own


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("opt", lambda model: None, "which weights compute attention in 'opt' is not known"),
        ("llama", adapted, "the tensor 'layers.0.self_attn.v_proj.weight' is missing"),
        (
            "llama",
            replaced,
            "'layers.1.self_attn.o_proj.weight' (Doubled, 32 × 32) is not what a 'llama' has there",
        ),
        ("llama", extended, "'Own' is no module of transformers"),
    ],
)
def test_what_is_not_known_is_not_measured(kind, change, reason, tmp_path):
    model = opened(kind, tmp_path)
    change(model)
    found, notes = live(model)
    assert np.isnan(found).all()
    assert notes == [f"copying is not measured: {reason}"]
