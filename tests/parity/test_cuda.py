"""Every family and variant gives on CUDA what it gives on the CPU, stage by stage, on every layer and head."""

from collections.abc import Callable
from pathlib import Path

import pytest
import transformers as hf
from msgspec.structs import replace

from attnscope.base.model_config import ModelConfig
from tests.helpers import native_stages
from tests.helpers.reference_stages import STAGES, Stages
from tests.helpers.stage_differences import differences
from tests.helpers.tiny_models import LONGROPE, TABLE, VOCAB, Row
from tests.helpers.token_batches import batch

TOLERANCE = 1e-4  # float32 on both sides, whose products are summed in another order


_LONG = {  # a text of 11 tokens is longer than 8
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 40, "max_position_embeddings": 48, "original_max_position_embeddings": 8, "pad_token_id": 0,
}  # fmt: skip
ROWS = (*TABLE, Row("phi3 longrope", hf.Phi3ForCausalLM, {**_LONG, **LONGROPE}))


@pytest.mark.cuda
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_stage_equals_the_cpu(gpu: str, row: Row, tmp_path: Path) -> None:
    assert _difference(row, tmp_path, gpu) < TOLERANCE


def test_the_comparison_sees_a_model_that_is_changed(tmp_path: Path) -> None:
    """The comparison itself, where no GPU is: between two models on the CPU."""
    assert _difference(TABLE[0], tmp_path, "cpu") == 0
    assert (
        _difference(TABLE[0], tmp_path, "cpu", lambda config: replace(config, scale=0.3))
        > 100 * TOLERANCE
    )


def _difference(
    row: Row,
    folder: Path,
    device: str,
    change: Callable[[ModelConfig], ModelConfig] = lambda config: config,
) -> float:
    theirs = row.save(folder)
    cpu, other = native_stages.open_stack(folder), native_stages.open_stack(folder, change, device)
    padding = getattr(theirs.config, "pad_token_id", None) or 0
    b = batch([6, 11, 3], vocabulary=VOCAB, padding=padding, segments=cpu.config.n_segments)
    segments = None if b.segments is None else b.segments.to(device)
    found = native_stages.run(other, b.ids.to(device), b.lengths, segments)
    found = [Stages(*(getattr(one, stage).cpu() for stage in STAGES)) for one in found]
    return max(
        differences(found, native_stages.run(cpu, b.ids, b.lengths, b.segments), b.lengths).values()
    )
