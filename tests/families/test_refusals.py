"""What a family does not understand is refused, in words that name file, key or tensor, value and a way on."""

from typing import Any

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families import FAMILIES, family_for, read_config
from tests.helpers.published_configs import PUBLISHED

_BY_TYPE = {raw["model_type"]: raw for name, raw in PUBLISHED.items() if name != "SmolLM2-135M"}
_ROPE = "rope_parameters"


def _refusal(model_type: str, **changes: Any) -> str:
    raw = {**_BY_TYPE[model_type], **changes}
    with pytest.raises(AttnscopeError) as caught:
        read_config(family_for(raw, "config.json"), raw, "config.json")
    return str(caught.value)


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("bert", {"num_hidden_layers": "1"}, 'num_hidden_layers is "1"; expected int'),
        ("bert", {"num_hidden_layers": 1.5}, "num_hidden_layers is 1.5; expected int"),
        ("bert", {"num_hidden_layers": True}, "num_hidden_layers is true; expected int"),
        ("bert", {"num_hidden_layers": -1}, "num_hidden_layers is -1; expected int >= 1"),
        ("bert", {"num_hidden_layers": 0}, "num_hidden_layers is 0; expected int >= 1"),
        ("bert", {"num_hidden_layers": [12]}, "num_hidden_layers is [12]; expected int"),
        ("bert", {"num_hidden_layers": None}, "the key 'num_hidden_layers' is null; the family's "),
        (
            "bert",
            {"num_attention_heads": 7},
            "the width is 768, with 7 heads; it must be a multiple of ",
        ),
        (
            "llama",
            {"num_key_value_heads": 5},
            "n_heads is 32, but n_kv_heads is 5; n_heads must be ",
        ),
        (
            "bert",
            {"hidden_act": "gelu_python"},
            'hidden_act is "gelu_python"; expected one of gelu, gelu_fast, ',
        ),
        ("bert", {"hidden_act": ["gelu"]}, 'hidden_act is ["gelu"]; expected one of gelu, '),
        ("bert", {"is_decoder": "no"}, 'is_decoder is "no"; expected true or false'),
        ("bert", {"is_decoder": 1}, "is_decoder is 1; expected true or false"),
        (
            "bert",
            {"add_cross_attention": True},
            "add_cross_attention is true; expected false, the one value ",
        ),
        ("bert", {"type_vocab_size": -1}, "type_vocab_size is -1; expected int >= 0"),
        ("bert", {"layer_norm_eps": -1.0}, "layer_norm_eps is -1.0; expected float >= 0.0"),
        (
            "bert",
            {"position_embedding_type": "relative_key"},
            'position_embedding_type is "relative_key"; expected "absolute", the one value that',
        ),
        (
            "bert",
            {"pruned_heads": {"0": [1]}},
            'pruned_heads is {"0": [1]}; expected {}, the one value that ',
        ),
        ("gpt2", {"n_inner": 1.5}, "n_inner is 1.5; expected int"),
        (
            "gpt2",
            {"scale_attn_weights": "yes"},
            'scale_attn_weights is "yes"; expected true or false',
        ),
        (
            "gpt2",
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx is true; expected ",
        ),
        (
            "gpt2",
            {"n_positons": 3},
            "unknown key 'n_positons' for family 'gpt2'; did you mean 'n_positions'?",
        ),
        ("gpt_neox", {"rotary_pct": 0.3}, None),
        ("gpt_neox", {"rotary_pct": 1.5}, "partial_rotary_factor is 1.5; expected at most 1"),
        (
            "gpt_neox",
            {"rope_theta": 5},
            "rope_theta is 5; expected 10000, which transformers takes from ",
        ),
        (
            "gpt_neox",
            {"partial_rotary_factor": 1.0},
            "partial_rotary_factor is 1.0; expected 0.25, which transformers ",
        ),
        (
            "llama",
            {"head_dim": 127},
            "rotary width 127 is odd; d_head × rope.fraction must be even",
        ),
        ("llama", {"rope_theta": "1e6"}, 'rope_theta is "1e6"; expected a number above 0'),
        ("llama", {"rope_theta": 0}, "rope_theta is 0; expected a number above 0"),
        (
            "llama",
            {"rope_interleaved": True},
            "rope_interleaved is true; expected false, the one value ",
        ),
        ("llama", {"rope_scaling": [8]}, "rope_scaling is [8]; expected an object"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2}},
            'rope_type is "dynamic"; expected one of default, linear, llama3, yarn',
        ),
        (
            "llama",
            {"rope_scaling": {"type": ["yarn"]}},
            'rope_type is ["yarn"]; expected one of default, ',
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "linear", "factor": 2, "beta_fast": 32}},
            "the rotary key 'beta_fast' is 32; expected only keys of rope_type 'linear'",
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "linear"}},
            "the rotary key 'factor' is null; expected a number for rope_type 'linear'",
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "linear", "factor": -2}},
            "factor is -2; expected a number above 0",
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "yarn", "factor": 2, "truncate": 1}},
            "truncate is 1; expected true or false",
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "yarn", "factor": 2, "truncate": None}},
            "truncate is null; expected true or false",
        ),
        (
            "llama",
            {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 2,
                    "original_max_position_embeddings": 4.5,
                }
            },
            "original_max_position_embeddings is 4.5; expected a whole number of at least 1",
        ),
        (
            "llama",
            {"rope_scaling": None, _ROPE: {"rope_type": "default", "rope_theta": 7.0}},
            "rope_theta is 500000.0; expected the 7.0 of the rotary parameters' rope_theta",
        ),
        ("llama", {_ROPE: {"rope_type": "default"}}, "rope_scaling is "),
        (
            "llama",
            {"rope_scaling": {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor is 0.5; expected 1 in this family",
        ),
        (
            "llama",
            {"attn_logit_softcapping": 50.0},
            "unknown key 'attn_logit_softcapping' for family 'llama'; this looks like gemma2",
        ),
        (
            "llama",
            {"sliding_window": 5},
            "unknown key 'sliding_window' for family 'llama'; this looks like mistral or mixtral or qwen2 or qwen3 or ",
        ),
        (
            "llama",
            {"quantization_config": {"bits": 4}},
            "quantization_config: the weights are quantised; use a checkpoint with floating-point weights, such as ",
        ),
        (
            "gpt_oss",
            {
                "quantization_config": {
                    "quant_method": "mxfp4",
                    "modules_to_not_convert": ["lm_head"],
                }
            },
            "quantization_config: the weights are quantised (mxfp4); use a checkpoint with floating-point weights, ",
        ),
        (
            "gpt_oss",
            {"rope_scaling": None},
            "the key 'rope_parameters' is missing; the family's attention depends on it",
        ),
        (
            "gpt_oss",
            {"swiglu_alpha": 2.0},
            "swiglu_alpha is 2.0; expected 1.702, the one value that family 'gpt_oss' ",
        ),
        ("gpt_oss", {"swiglu_limit": 0}, "swiglu_limit is 0; expected float > 0.0"),
        ("gpt_oss", {"swiglu_limit": 1e300}, "swiglu_limit is 1e+300; expected float <= 1e+38"),
        (
            "mistral",
            {"sliding_window": 10**30},
            f"sliding_window is 1{'0' * 30}; expected at most 4,611,686,018,427,387,904",
        ),
        (
            "gpt_oss",
            {"rope_scaling": {}, "rope_parameters": None},
            "rope_scaling is {}; expected the rotary parameters, with their rope_type",
        ),
        (
            "gemma3_text",
            {"layer_types": None, "sliding_window_pattern": None, "_sliding_window_pattern": 3},
            "_sliding_window_pattern is 3; expected 6 where there is no layer_types",
        ),
        (
            "gemma3_text",
            {"rope_scaling": {"type": "linear", "factor": 8.0}},
            'rope_scaling is {"type": "linear", "factor": 8.0}; expected rope_type: transformers reads no type in ',
        ),
        (
            "gemma3_text",
            {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "truncate": False}},
            "truncate is false; expected true: transformers reads no other value in this family",
        ),
        ("gpt_oss", {"swiglu_limit": "7"}, 'swiglu_limit is "7"; expected float'),
        (
            "gpt_oss",
            {"sliding_window": None},
            "sliding_window is null; expected a window for layer 0",
        ),
        (
            "gpt_oss",
            {"num_local_experts": 0},
            "n_experts is 0, but experts_per_token is 4; n_experts must be ",
        ),
        (
            "gpt_oss",
            {"num_local_experts": 3},
            "n_experts is 3, but experts_per_token is 4; n_experts must be ",
        ),
        (
            "gpt_oss",
            {"num_experts_per_tok": 0},
            "n_experts is 32, but experts_per_token is 0; n_experts must be ",
        ),
        ("gpt_oss", {"num_experts_per_tok": True}, "num_experts_per_tok is true; expected int"),
        (
            "gpt_oss",
            {"num_local_experts": None},
            "the key 'num_local_experts' is null; the family's attention ",
        ),
        ("mixtral", {"num_experts_per_tok": 2.5}, "num_experts_per_tok is 2.5; expected int"),
        (
            "llama",
            {"\x1b[2J": 1},
            r"unknown key '\x1b[2J' for family 'llama'; it may change attention, ",
        ),
        (
            "mistral",
            {"sliding_window": 0},
            "sliding_window is 0; expected a whole number of at least 1",
        ),
        (
            "mistral",
            {"sliding_window": 4.5},
            "sliding_window is 4.5; expected a whole number of at least 1",
        ),
        (
            "mistral",
            {"num_key_value_heads": None},
            "the key 'num_key_value_heads' is null; the family's ",
        ),
        (
            "qwen2",
            {"use_mrope": True},
            "use_mrope is true; expected false, the one value that family 'qwen2' supports",
        ),
        (
            "qwen2",
            {"use_sliding_window": True, "max_window_layers": "2"},
            'max_window_layers is "2"; expected a whole number of at least 0',
        ),
        (
            "qwen2",
            {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": None},
            "sliding_window is null; expected a window for layer 2",
        ),
        (
            "qwen2",
            {"layer_types": ["sliding_attention"] * 24},
            "use_sliding_window is false; expected true, since layer_types has sliding_attention",
        ),
        (
            "qwen3",
            {"layer_types": ["full_attention"]},
            'layer_types is ["full_attention"]; expected a list of 28 ',
        ),
        (
            "qwen3",
            {"layer_types": ["full_attention"] * 27 + ["linear_attention"]},
            'layer_types[27] is "linear_attention"; expected sliding_attention or full_attention',
        ),
        (
            "qwen3",
            {"head_dim": None},
            "the key 'head_dim' is null; the family's attention depends on it",
        ),
        (
            "gemma2",
            {"attn_logit_softcapping": 0},
            "attn_logit_softcapping is 0; expected a number above 0",
        ),
        (
            "gemma2",
            {"query_pre_attn_scalar": -4},
            "query_pre_attn_scalar is -4; expected a number above 0",
        ),
        (
            "gemma2",
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention is true; expected false, ",
        ),
        (
            "gemma2",
            {"num_hidden_layers": 10**9},
            "num_hidden_layers is 1000000000; expected at most 100,000",
        ),
        ("roberta", {"pad_token_id": "1"}, 'pad_token_id is "1"; expected int'),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(
    model_type: str, changes: dict[str, Any], message: str | None
) -> None:
    # 0.3 of a head of 128 is 38.4 dimensions, of which 38 are rotated, as in transformers
    if message is None:
        assert (
            read_config(FAMILIES[model_type], {**_BY_TYPE[model_type], **changes}, "").rotary_width
            == 38
        )
        return
    assert _refusal(model_type, **changes).startswith(f"config.json: {message}")


def test_an_unknown_model_type_is_shown_without_its_control_characters() -> None:
    with pytest.raises(AttnscopeError) as caught:
        family_for({"model_type": "evil\x1b[2J\x9b"}, "config.json")
    message = str(caught.value)
    assert message.startswith(
        r"""config.json: model_type is "evil\x1b[2J\x9b"; pip install 'attnscope[transformers]'"""
    )
    assert message.endswith(f"{', '.join(FAMILIES)}")
    assert message.isprintable()


@pytest.mark.parametrize("raw", [{}, {"model_type": None}])
def test_a_missing_model_type_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(
        AttnscopeError, match="the key 'model_type' is missing; supported: bert, roberta, "
    ):
        family_for(raw, "config.json")


def test_gemma2_that_claims_to_be_llama_is_refused() -> None:
    with pytest.raises(AttnscopeError, match="for family 'llama'; this looks like gemma2"):
        read_config(FAMILIES["llama"], {**_BY_TYPE["gemma2"], "model_type": "llama"}, "config.json")
