"""Published configs are read, and mean what their authors say."""

import pytest

from attnscope.base.model_config import Disentangled, ModelConfig, RelativeBias, Rope, RopeScaling
from attnscope.checkpoints.families import FAMILIES, family_for, read_config
from attnscope.request.memory import embedding_parameters, layer_parameters
from tests.helpers.published_configs import PUBLISHED


def _read(name: str) -> ModelConfig:
    return read_config(family_for(PUBLISHED[name], name), PUBLISHED[name], name)


EXPECTED = {
    "bert-base-multilingual-cased": {
        "mask": "bidirectional", "vocab_size": 119547, "d_head": 64, "n_segments": 2, "norm_order": "post",
        "embedding_norm": True, "norm_eps": 1e-12, "positions": "learned", "max_positions": 512,
    },
    "roberta-base": {"max_positions": 512, "position_offset": 2, "padding_id": 1, "n_segments": 1, "norm_eps": 1e-5},
    "distilbert-base-uncased-finetuned-sst-2-english": {"n_layers": 6, "d_mlp": 3072, "n_segments": 0},
    "gpt2": {"d_mlp": 3072, "activation": "gelu_tanh", "scale": None, "max_positions": 1024, "norm_order": "pre"},
    "pythia-6.9b": {"rope": Rope(fraction=0.25), "rotary_width": 32, "parallel": True, "qkv_bias": True},
    "Llama-3.1-8B": {
        "n_kv_heads": 8, "gated": True, "norm": "rmsnorm",
        "rope": Rope(500000.0, 1.0, RopeScaling("llama3", 8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0)),
    },
    "SmolLM2-135M": {"n_heads": 9, "n_kv_heads": 3, "d_head": 64, "rope": Rope(100000.0)},
    "Mistral-7B-v0.1": {"windows": (4096,) * 32, "mask": "causal"},
    "Qwen2.5-0.5B": {"windows": (), "qkv_bias": True, "out_bias": False},
    "Qwen3-0.6B": {"d_head": 128, "d_model": 1024, "n_heads": 16, "qk_norm": True, "qkv_bias": False},
    "gemma-2-9b": {
        "scale": 1 / 16, "softcap": 50.0, "windows": (4096, None) * 21, "norm_order": "sandwich",
        "norm_plus_one": True, "embedding_scale": 3584**0.5, "activation": "gelu_tanh", "d_head": 256,
    },
    "gemma-3-1b-pt": {
        "windows": ((512,) * 5 + (None,)) * 4 + (512, 512), "rope": Rope(1e6), "rope_local": Rope(1e4),
        "softcap": None, "qk_norm": True, "scale": 1 / 16, "embedding_scale": 1152**0.5, "n_kv_heads": 1,
    },
    "Phi-3-mini-4k-instruct": {"windows": (2047,) * 32, "d_head": 96, "rope": Rope(1e4), "qkv_bias": False},
    "OLMo-2-1124-7B": {"norm_order": "output", "qk_norm": "whole", "rope": Rope(500000.0)},
    "Mixtral-8x7B-v0.1": {"n_experts": 8, "experts_per_token": 2, "d_mlp": 14336, "windows": (), "rope": Rope(1e6)},
    "gpt-oss-20b-BF16": {
        "n_experts": 32, "experts_per_token": 4, "windows": (128, None) * 12, "sinks": True, "out_bias": True,
        "glu_limit": 7.0, "glu_plus_one": True, "router_bias": True, "d_head": 64, "scale": None,
        "rope": Rope(150000.0, 1.0, RopeScaling("yarn", 32.0, 4096, truncate=False)),
    },
    "all-mpnet-base-v2": {"max_positions": 512, "position_offset": 2, "relative_bias": RelativeBias(32, 128)},
    "bloom-560m": {"d_model": 1024, "n_heads": 16, "d_mlp": 4096, "positions": "alibi", "embedding_norm": True},
    "mpt-7b": {"d_mlp": 16384, "positions": "alibi", "norm_bias": False, "max_positions": 2048},
    "falcon-7b": {"n_kv_heads": 1, "d_head": 64, "parallel": True, "shared_norm": True, "d_mlp": 4 * 4544},
    "gpt-neo-125m": {"windows": (None, 256) * 6, "scale": 1.0, "qkv_bias": False, "out_bias": True},
    "nli-deberta-v3-base": {
        "disentangled": Disentangled(256, 512, shared=True, norm=True), "scale": 192**-0.5, "positions": "none",
        "n_segments": 0, "norm_eps": 1e-7,
    },
    "Qwen3-30B-A3B": {
        "n_experts": 128, "experts_per_token": 8, "experts_share": True, "d_mlp": 768, "d_head": 128, "windows": (),
    },
    "OLMoE-1B-7B-0924": {"n_experts": 64, "experts_per_token": 8, "experts_share": False, "qk_norm": "whole"},
    "Olmo-3-1025-7B": {
        "windows": (4096, 4096, 4096, None) * 8, "rope_local": Rope(5e5), "norm_order": "output",
        "rope": Rope(5e5, 1.0, RopeScaling("yarn", 8.0, 8192, attention_factor=1.2079441541679836)),
    },
    "ModernBERT-base": {
        "windows": ((None, 65, 65) * 8)[:22], "rope": Rope(1.6e5), "rope_local": Rope(1e4), "mask": "bidirectional",
        "first_norm": False, "norm_bias": False, "gated": True, "embedding_norm": True,
    },
    "glm-4-9b-chat-hf": {"rope": Rope(1e4, 0.5, None, True), "qkv_bias": True, "out_bias": False, "norm_order": "pre"},
    "GLM-4-9B-0414": {"rope": Rope(1e4, 0.5, None, True), "qkv_bias": False, "norm_order": "sandwich"},
    "granite-3.1-2b-instruct": {"scale": 1 / 64, "embedding_scale": 12, "residual_scale": 0.22, "rope": Rope(5e6)},
    "granite-3.0-1b-a400m-base": {"n_experts": 32, "experts_per_token": 8, "experts_share": True, "d_mlp": 512},
    "c4ai-command-r-v01": {
        "rope": Rope(8e6, interleaved=True), "parallel": True, "shared_norm": True, "norm_bias": False, "windows": (),
    },
    "c4ai-command-r7b-12-2024": {
        "windows": (4096, 4096, 4096, None) * 8, "rope_layers": (True, True, True, False) * 8,
        "rope": Rope(5e4, interleaved=True),
    },
    "sentence-t5-base": {"relative_bias": RelativeBias(), "scale": 1.0, "gated": False, "mask": "bidirectional"},
    "SmolLM3-3B": {"rope_layers": (True, True, True, False) * 9, "windows": (), "rope": Rope(5000000.0)},
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_means_what_it_says(name: str) -> None:
    config = _read(name)
    assert {field: getattr(config, field) for field in EXPECTED[name]} == EXPECTED[name]


def test_every_family_has_a_published_config() -> None:
    assert {raw["model_type"] for raw in PUBLISHED.values()} == set(FAMILIES)


def test_published_sizes_add_up_to_the_published_number_of_parameters() -> None:
    """In billions, the last layer's norm and the output's words apart."""
    published = {
        "Mixtral-8x7B-v0.1": 46.7,
        "gpt-oss-20b-BF16": 20.9,
        "Llama-3.1-8B": 8.03,
        "Qwen3-30B-A3B": 30.5,
    }
    for name, billions in {
        **published,
        "OLMoE-1B-7B-0924": 6.92,
        "granite-3.0-1b-a400m-base": 1.38,
    }.items():
        c = _read(name)
        whole = (
            embedding_parameters(c) + c.n_layers * layer_parameters(c) + c.vocab_size * c.d_model
        )
        assert whole / 1e9 == pytest.approx(billions, abs=0.05)


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_key_that_a_family_reads_is_inert(name: str) -> None:
    family = family_for(PUBLISHED[name], name)
    assert not family.reads & family.inert
