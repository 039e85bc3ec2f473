"""The description of a model as text: what it says of each kind of model, with nothing that a terminal obeys."""

import re

import pytest

from attnscope.base.model_config import ModelConfig, Rope, RopeScaling
from attnscope.findings.info import Description
from attnscope.studies.info.screen import BINARY, present_info, scaled
from attnscope.views.terminal import as_text

SIZES = dict(
    vocab_size=50257, d_model=64, n_layers=2, n_heads=4, n_kv_heads=2, d_head=16, d_value=16
)

SHARED, WIDE = "4 that share 2 key/value heads", "queries and keys 16 wide, values 16 wide"


def describe(**config):
    return Description(
        name="my\x1b[2Jmodel", family="llama", engine="native", weights="trained", fingerprint="0" * 16,
        config=ModelConfig(**SIZES | config), mask="causal", attention_scale=config.get("scale", 0.25),
        parameters=1234567, stored_parameters=2000, dtypes={"F32": 2000}, tokenizer="BPE", tokenizer_size=50257,
        files={"a\nb.safetensors": 5 << 20}, notes=["x\x9b ignored"],
    )  # fmt: skip


def drawn(**config):
    return as_text(present_info(describe(**config), None), 200)


def facts(**config):
    lines = re.sub(r"\n {13}", " ", drawn(**config)).splitlines()
    return dict(line.split(maxsplit=1) for line in lines)


def test_info_of_a_config_is_as_reviewed():
    text = drawn(max_positions=2048, mask="causal")
    assert (
        text
        == r"""name         my\x1b[2Jmodel
family       llama
weights      from the checkpoint
fingerprint  0000000000000000
layers       2, 64 wide
heads        4 that share 2 key/value heads, queries and keys 16 wide, values 16 wide
scores       q·k ÷ √16 (head width)
mask         causal
positions    none, up to 2,048 tokens
norm         layernorm (pre), ε 1e-05
MLP          none
residual     yes
vocabulary   50,257 rows
tokenizer    BPE, 50,257 words
parameters   1,234,567 in embeddings and blocks
checkpoint   2,000 numbers: 2,000 × F32
file         a\nb.safetensors  5.00 MiB
note         x\x9b ignored
"""
    )


@pytest.mark.parametrize(
    ("config", "name", "line"),
    [
        (dict(scale=0.5, softcap=50.0), "scores", "q·k × 0.5, soft-capped at 50"),
        (dict(sinks=True), "scores", "q·k ÷ √16 (head width), a sink in every head"),
        (dict(d_mlp=40), "MLP", "40 wide, gelu"),
        (dict(d_mlp=1536), "MLP", "1,536 wide, gelu"),
        (
            dict(
                d_mlp=40,
                gated=True,
                activation="quick_gelu",
                glu_limit=7.0,
                n_experts=32,
                experts_per_token=4,
            ),
            "MLP",
            "40 wide, gated quick_gelu, bounded at 7; 4 of 32 experts for each token",
        ),
        (dict(qk_norm=True), "scores", "q·k ÷ √16 (head width), q and k normed per head"),
        (dict(positions="rope"), "positions", "rope (theta 10,000), of any length"),
        (
            dict(positions="rope", rope=Rope(5e5, 0.25)),
            "positions",
            "rope (theta 500,000, 0.25 of each head), of any length",
        ),
        (
            dict(positions="rope", rope=Rope(scaling=RopeScaling("yarn", 4.0)), max_positions=4096),
            "positions",
            "rope (theta 10,000, yarn × 4), up to 4,096 tokens",
        ),
        (dict(norm="none"), "norm", "none"),
        (dict(d_mlp=256, gated=True, activation="silu"), "MLP", "256 wide, gated silu"),
        (dict(parallel=True), "layers", "2, 64 wide, attention and MLP in parallel"),
        (dict(n_kv_heads=4), "heads", "4, queries and keys 16 wide, values 16 wide"),
        (dict(cross_attention=True), "heads", SHARED + ", keys and values from --context, " + WIDE),
        (dict(n_segments=2), "vocabulary", "50,257 rows, segments: 2"),
        (dict(residual=False), "residual", "no"),
    ],
)
def test_info_has_a_line_for_each_kind_of_config(config, name, line):
    assert facts(**config)[name] == line


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1024, "1.00 KiB"),
        (1 << 20, "1.00 MiB"),
        (150 << 20, "150 MiB"),
    ],
)
def test_sizes_have_binary_units(size, shown):
    assert scaled(size, 1024, BINARY) == shown
