"""GGUF files: every stage of every layer equals transformers, of every type, every architecture, and a real model."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from tests.helpers import gguf_files, native_stages, reference_stages
from tests.helpers.reference_smollm2 import open_reference
from tests.helpers.stage_differences import TOLERANCE, differences
from tests.helpers.token_batches import Batch, batch

KINDS = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K".split()


def largest(path: Path, theirs: hf.PreTrainedModel, b: Batch) -> float:
    mine = native_stages.run(native_stages.open_stack(path), b.ids, b.lengths)
    return max(
        differences(mine, reference_stages.run(theirs, b.ids, b.lengths), b.lengths).values()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_type(tmp_path: Path, kind: str) -> None:
    theirs = gguf_files.write(tmp_path / "m.gguf", "llama", kind)
    assert (
        largest(tmp_path / "m.gguf", theirs, batch([9], vocabulary=60, padding=0, segments=0))
        < TOLERANCE
    )


@pytest.mark.parametrize("kind", ["F16", "Q4_K"])
@pytest.mark.parametrize("architecture", gguf_files.MODELS)
def test_every_architecture(tmp_path: Path, architecture: str, kind: str) -> None:
    theirs = gguf_files.write(tmp_path / "m.gguf", architecture, kind)
    # a soft-cap hides how large scores were when they were rounded
    tolerance = 3 * TOLERANCE if architecture == "gemma2" else TOLERANCE
    assert (
        largest(tmp_path / "m.gguf", theirs, batch([12, 7], vocabulary=60, padding=0, segments=0))
        < tolerance
    )


@pytest.mark.parametrize("scaled", [False, True])
def test_windows_of_olmo_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scaled: bool) -> None:
    """It has the architecture of OLMo 2; rotary positions are stretched only in layers without a window."""
    types = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    stretched = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0} if scaled else plain
    rope = {"full_attention": stretched, "sliding_attention": plain}
    config = {
        "num_hidden_layers": 4,
        "sliding_window": 5,
        "layer_types": types,
        "rope_parameters": rope,
    }
    said = {
        "block_count": 4,
        "rope.freq_base": 10000.0,
        "attention.sliding_window": 5,
        "attention.sliding_window_pattern": [name == "sliding_attention" for name in types],
    }
    if scaled:
        said |= {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    monkeypatch.setitem(gguf_files.MODELS, "olmo2", (hf.Olmo3ForCausalLM, config, said))
    theirs = gguf_files.write(tmp_path / "m.gguf", "olmo2", "F16")
    b = batch([12, 7], vocabulary=60, padding=0, segments=0)
    assert largest(tmp_path / "m.gguf", theirs, b) < TOLERANCE
    stack = native_stages.open_stack(tmp_path / "m.gguf")
    layers = native_stages.run(stack, b.ids, b.lengths)
    reach = [int((layer.weights[0, 0, 11] > 0).nonzero()[0]) for layer in layers]
    assert [11 - first for first in reach] == [4, 11, 4, 11]


@pytest.mark.parametrize("tokens", [8, 12])
def test_factors_of_long_texts(tmp_path: Path, tokens: int) -> None:
    """LongRoPE as convert_hf_to_gguf.py writes it: two tables, and the factor that follows from both lengths."""
    short, long = (np.geomspace(1, most, 16, dtype=np.float32) for most in (1.5, 20))
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    said = {"short_factor": short.tolist(), "long_factor": long.tolist()}
    config = {"original_max_position_embeddings": 8, "rope_parameters": rope | said}
    more = {
        "phi3.rope.scaling.original_context_length": 8,
        "phi3.rope.scaling.attn_factor": math.sqrt(1 + math.log(48 / 8) / math.log(8)),
    }
    tables = {"rope_factors_long.weight": long, "rope_factors_short.weight": short}
    theirs = gguf_files.write(tmp_path / "m.gguf", "phi3", "F32", more, tables, config)
    assert theirs.model.rotary_emb.attention_scaling == pytest.approx(
        more["phi3.rope.scaling.attn_factor"]
    )
    b = batch([tokens], vocabulary=60, padding=0, segments=0)
    assert largest(tmp_path / "m.gguf", theirs, b) < TOLERANCE


def test_a_real_model(smollm2: Path) -> None:
    ids = torch.tensor([[504, 5193, 411, 260, 7365, 436, 10850, 345]])
    assert largest(smollm2, open_reference(smollm2), Batch(ids, [ids.shape[1]], None)) < TOLERANCE
