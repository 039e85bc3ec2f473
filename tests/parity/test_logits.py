"""Logits of both engines are those of transformers, for every family with an output head."""

from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families import FAMILIES, open_config
from attnscope.checkpoints.locating import open_checkpoint
from attnscope.engines.native import NativeEngine
from attnscope.engines.protocol import Engine, EngineSettings
from attnscope.engines.transformers.engine import TransformersEngine
from attnscope.engines.transformers.loading import load_model
from attnscope.findings.tokens import Token
from attnscope.model.batch import Batch, make_batch
from attnscope.model.checkpoint import load_stack
from attnscope.request.masks.terms import Own
from attnscope.request.memory import embedding_parameters, head_parameters, layer_parameters
from tests.helpers.architectures import write_tokenizer
from tests.helpers.reference_stages import uses_interface
from tests.helpers.tiny_models import _GQA, _SIZES, TABLE, Row

CPU = torch.device("cpu")
TEXTS = [[3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9], [32, 38, 46, 26, 43, 38, 32]]
SETTINGS = EngineSettings((Own(),))
EXTRA = (
    Row(
        "gemma2 other cap",
        hf.Gemma2ForCausalLM,
        {**_GQA, "head_dim": 12, "final_logit_softcapping": 0.7},
    ),
    Row(
        "gemma2 uncapped",
        hf.Gemma2ForCausalLM,
        {**_GQA, "head_dim": 12, "final_logit_softcapping": None},
    ),
    Row(
        "gemma3 capped",
        hf.Gemma3ForCausalLM,
        {**_GQA, "head_dim": 12, "final_logit_softcapping": 1.5},
    ),
    Row(
        "bert untied",
        hf.BertForMaskedLM,
        {**_SIZES, "tie_word_embeddings": False, "hidden_act": "relu"},
    ),
    Row("roberta relu", hf.RobertaForMaskedLM, {**_SIZES, "pad_token_id": 1, "hidden_act": "relu"}),
    Row(
        "roberta untied",
        hf.RobertaForCausalLM,
        {**_SIZES, "pad_token_id": 1, "tie_word_embeddings": False},
    ),
)
WITH_HEAD = [
    row for row in (*TABLE, *EXTRA) if "For" in row.model.__name__ or "LMHead" in row.model.__name__
]


def _batch() -> Batch:
    return make_batch([[Token(number, "x", "x") for number in ids] for ids in TEXTS], None, CPU)


def open_native(path: Path) -> NativeEngine:
    folder = open_checkpoint(path)
    shapes = {name: info.shape for name, info in folder.tensors.items()}
    found = open_config(folder.config, str(path), shapes)
    stack = load_stack(
        found.family, found.config, folder, found.config.n_layers, torch.float32, CPU
    )
    return NativeEngine(stack, SETTINGS)


def _logits(engine: Engine) -> list[Tensor]:
    """Every row of every text, (T, V) each."""
    hidden = engine.forward(_batch(), {}, final=True)
    assert hidden is not None
    return [engine.logits(hidden[i, : len(ids)]) for i, ids in enumerate(TEXTS)]


def _theirs(model: hf.PreTrainedModel) -> list[Tensor]:
    with torch.inference_mode():
        made = [model(input_ids=torch.tensor([ids])) for ids in TEXTS]
    return [
        (one.prediction_logits if "prediction_logits" in one else one.logits)[0] for one in made
    ]


def test_every_family_has_a_row_with_a_head() -> None:
    assert {row.model.config_class.model_type for row in WITH_HEAD} == set(FAMILIES) - {"t5"}


@pytest.mark.parametrize("row", WITH_HEAD, ids=lambda row: row.name)
def test_logits_are_those_of_transformers(row: Row, tmp_path: Path) -> None:
    expected = _theirs(row.save(tmp_path))
    engine = open_native(tmp_path)
    for ours, theirs in zip(_logits(engine), expected, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    if uses_interface(row.model):
        loaded = load_model(open_checkpoint(tmp_path), torch.float32)
        for ours, theirs in zip(
            _logits(TransformersEngine(loaded, SETTINGS)), expected, strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    config = engine.stack.config
    counted = (
        embedding_parameters(config)
        + config.n_layers * layer_parameters(config)
        + head_parameters(config)
    )
    assert counted == sum(parameter.numel() for parameter in engine.stack.parameters())


OTHERS = (
    Row("opt", hf.OPTForCausalLM, {**_SIZES, "ffn_dim": 40, "word_embed_proj_dim": 24}),
    Row("opt narrow", hf.OPTForCausalLM, {**_SIZES, "ffn_dim": 40, "word_embed_proj_dim": 16}),
    Row("cohere", hf.CohereForCausalLM, {**_GQA, "logit_scale": 0.3}),
    Row("granite", hf.GraniteForCausalLM, {**_GQA, "logits_scaling": 3.0}),
    Row("albert", hf.AlbertForMaskedLM, {**_SIZES, "embedding_size": 16}),
    Row(
        "llama4",
        hf.Llama4ForCausalLM,
        {**_GQA, "head_dim": 8, "intermediate_size_mlp": 40, "num_local_experts": 2},
    ),
)


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: row.name)
def test_logits_of_architectures_that_only_transformers_runs(row: Row, tmp_path: Path) -> None:
    expected = _theirs(row.save(tmp_path))
    loaded = load_model(open_checkpoint(tmp_path), torch.float32)
    for ours, theirs in zip(_logits(TransformersEngine(loaded, SETTINGS)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "kind", [hf.LlamaModel, hf.GPT2Model, hf.BertModel], ids=lambda kind: kind.__name__
)
def test_engines_agree_whether_a_base_model_predicts(
    kind: type[hf.PreTrainedModel], tied: bool, tmp_path: Path
) -> None:
    sizes = {
        hf.GPT2Model: {"vocab_size": 60, "n_embd": 24, "n_layer": 2, "n_head": 4},
        hf.LlamaModel: _GQA,
        hf.BertModel: _SIZES,
    }[kind]
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    Row("base", kind, {**sizes, **ids, "tie_word_embeddings": tied}).save(tmp_path)
    write_tokenizer(tmp_path)
    native, theirs = (
        attnscope.inspect("the bank", model=tmp_path, engine=engine)
        for engine in ("native", "transformers")
    )
    assert native.provenance.notes == theirs.provenance.notes
    assert bool(native.predictions) == (tied and kind is not hf.BertModel)
    for ours, expected in zip(native.predictions, theirs.predictions, strict=True):
        assert [token.logit for token in ours.tokens] == pytest.approx(
            [token.logit for token in expected.tokens], 1e-4
        )


def test_a_missing_layer_beside_a_head_is_not_made_up(tmp_path: Path) -> None:
    OTHERS[-1].save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.self_attn.q_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        AttnscopeError, match=r"'model.layers.1.self_attn.q_proj.weight' is missing"
    ):
        load_model(open_checkpoint(tmp_path), torch.float32)
