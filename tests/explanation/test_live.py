"""A model of transformers, in memory or from a folder, is explained as the native engine explains it."""

import numpy as np
import pytest
import torch
import transformers as hf
from peft import LoraConfig, inject_adapter_in_model

import attnscope
from tests.explanation.test_families import QUERY, TEXT, save
from tests.helpers.explanation_arithmetic import assert_inputs_sum, assert_sums, failed
from tests.helpers.tiny_models import TABLE

# of every way in which a model makes queries and keys: fused, transposed, normed by head or whole, partly rotated
ROWS = ["bert", "roberta", "gpt2", "gpt_neox", "llama yarn", "qwen3", "gemma2", "gemma3", "phi3", "olmo2", "smollm3",
        "gpt_oss", "cohere", "glm", "granite", "modernbert", "qwen3_moe"]  # fmt: skip


def made(name, folder):
    model = save(next(row for row in TABLE if row.name == name), folder)
    return model, hf.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


# of modules that only our own blocks have
ONLY_NATIVE = ("value", "norm of the residual", "layer output")


def assert_same(one, other):
    """Every number, to float32 rounding after some layers."""
    for name in ("inputs", "query_steps"):
        vectors = zip(getattr(one, name), getattr(other, name), strict=True)
        for mine, its in vectors:
            assert mine.name == its.name
            np.testing.assert_allclose(mine.values, its.values, atol=1e-4)
    for name in (
        "scores",
        "times_scale",
        "scaled",
        "masked",
        "weights",
        "key_norms",
        "value_norms",
    ):
        np.testing.assert_allclose(getattr(one.row, name), getattr(other.row, name), atol=2e-4)
    for name in ("key_vectors", "value_vectors", "output"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-4)
    np.testing.assert_allclose(one.projected.values, other.projected.values, atol=2e-4)
    for name in (
        "text",
        "tokens",
        "query",
        "layer",
        "head",
        "group",
        "scale",
        "softcap",
        "bias",
        "keys",
    ):
        assert getattr(one, name) == getattr(other, name)
    assert (one.layer_mask or one.mask.used) == (other.layer_mask or other.mask.used)
    ours = [check.name for check in other.checks if check.name not in ONLY_NATIVE]
    assert [check.name for check in one.checks if check.name not in ONLY_NATIVE] == ours
    assert [(cell.key, len(cell.parts)) for cell in one.cells] == [
        (cell.key, len(cell.parts)) for cell in other.cells
    ]


@pytest.mark.parametrize("name", ROWS)
def test_a_model_in_memory_is_explained_as_its_own_checkpoint(name, tmp_path):
    model, words = made(name, tmp_path)
    fired: list[object] = []
    for layer in (0, 1):
        given = {"query": QUERY, "layer": layer, "head": 2, "key": [0, 3]}
        hook = model.base_model.register_forward_hook(lambda *seen: fired.append(seen[0]))
        live = attnscope.explain(TEXT, model=model, tokenizer=words, **given).data
        hook.remove()
        assert_same(live, attnscope.explain(TEXT, model=tmp_path, **given).data)
        assert_sums(live)
        assert not failed(live), [check for check in live.checks if not check.holds]
        if layer == 0:
            assert_inputs_sum(live)
        assert live.provenance.weights == "live"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_other_engine_explains_a_folder(tmp_path):
    made("llama", tmp_path)
    given = {
        "model": tmp_path,
        "query": QUERY,
        "layer": 1,
        "mask": "bidirectional",
        "what_if": "same-scores",
    }
    theirs, ours = (
        attnscope.explain(TEXT, engine=engine, **given).data
        for engine in ("transformers", "native")
    )
    assert_same(theirs, ours)
    assert not failed(theirs) and (theirs.row.weights > 0).all()
    assert (theirs.mask.used, theirs.mask.what_if) == ("bidirectional", "same-scores")


def doubled(module, given, made):
    return 2 * made


@pytest.mark.parametrize(
    ("changed", "check"),
    [("self_attn.q_proj", "query"), ("self_attn.k_proj", "key"), ("input_layernorm", "norm")],
)
def test_what_a_model_does_besides_its_weights_fails_the_check_of_that_step(
    changed, check, tmp_path
):
    """The numbers are those of the model's own modules, a user's hook included; the check shows that it is there."""
    model, words = made("qwen3", tmp_path)
    model.get_submodule(f"model.layers.0.{changed}").register_forward_hook(doubled)
    assert failed(
        attnscope.explain(TEXT, model=model, tokenizer=words, query=QUERY, layer=0, head=1).data
    ) == {check}


def test_a_model_whose_steps_are_not_known_is_refused(tmp_path):
    model, words = made("llama", tmp_path)
    inject_adapter_in_model(LoraConfig(target_modules=["q_proj"], r=2), model)
    with pytest.raises(
        attnscope.AttnscopeError,
        match=r"self_attn\.q_proj\.weight' is missing; explain does not foll",
    ):
        attnscope.explain(TEXT, model=model, tokenizer=words, query=QUERY, layer=0, head=1)


def test_of_an_architecture_that_only_transformers_runs_the_row_is_explained_from_its_queries_and_keys(
    tmp_path,
):
    _, words = made("llama", tmp_path)
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 60,
        "hidden_size": 24,
        "ffn_dim": 40,
        "num_attention_heads": 4,
        "word_embed_proj_dim": 24,
    }
    config = hf.OPTConfig(
        num_hidden_layers=2, max_position_embeddings=48, **sizes, attn_implementation="eager"
    )
    opt = hf.OPTModel(config).eval()
    found = attnscope.explain(TEXT, model=opt, tokenizer=words, query=QUERY, layer=0, head=1).data
    with torch.no_grad():
        eager = opt(
            torch.tensor([[token.id for token in found.tokens]]), output_attentions=True
        ).attentions[0]
    np.testing.assert_allclose(found.row.weights, eager[0, 1, found.query], atol=1e-6)
    assert not failed(found)
    assert (found.inputs, [step.name for step in found.query_steps]) == ([], ["q"])
    assert (
        "steps before queries and keys are shown of architectures that attnscope runs itself"
        in found.notes
    )
