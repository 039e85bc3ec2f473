"""LongRoPE equals that of transformers, on both sides of the length that the model was trained on."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from attnscope.base.errors import AttnscopeError
from attnscope.base.model_config import ModelConfig, Rope, RopeScaling, check_sizes
from attnscope.checkpoints.locating import open_checkpoint
from attnscope.engines.transformers.engine import TransformersEngine
from attnscope.engines.transformers.loading import load_model
from attnscope.findings.tokens import Token
from attnscope.model.batch import make_batch
from attnscope.model.positions import rotary_frequencies
from tests.helpers import native_stages, reference_stages
from tests.helpers.reference_stages import STAGES
from tests.helpers.stage_differences import TOLERANCE, differences
from tests.helpers.tiny_models import LONGROPE, VOCAB, Row
from tests.helpers.token_batches import batch
from tests.parity.test_logits import CPU, SETTINGS

_ORIGINAL = 12
_SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 40, "max_position_embeddings": 48, "original_max_position_embeddings": _ORIGINAL,
    "pad_token_id": 0,
}  # fmt: skip


def _open(folder: Path, **more: Any) -> tuple[Any, hf.PreTrainedModel]:
    table = {**LONGROPE["rope_parameters"], **more}
    theirs = Row("phi3 longrope", hf.Phi3ForCausalLM, {**_SIZES, "rope_parameters": table}).save(
        folder
    )
    return native_stages.open_stack(folder), theirs


@pytest.mark.parametrize(
    "more", [{}, {"attention_factor": 1.7}, {"factor": 2.0}], ids=["plain", "given", "factor"]
)
@pytest.mark.parametrize("length", [5, _ORIGINAL, _ORIGINAL + 1, 20])
def test_every_stage_equals_eager_transformers(
    tmp_path: Path, length: int, more: dict[str, Any]
) -> None:
    stack, theirs = _open(tmp_path, **more)
    b = batch([length], vocabulary=VOCAB, padding=0, segments=0)
    arguments = b.ids, b.lengths, b.segments
    found = differences(
        native_stages.run(stack, *arguments), reference_stages.run(theirs, *arguments), b.lengths
    )
    assert max(found.values()) < TOLERANCE, found


def test_texts_beside_each_other_are_rotated_each_by_its_own_length(tmp_path: Path) -> None:
    stack, _ = _open(tmp_path)
    b = batch([20, 5], vocabulary=VOCAB, padding=0, segments=0)
    together = native_stages.run(stack, b.ids, b.lengths, b.segments)
    alone = native_stages.run(stack, b.ids[1:, :5], [5])
    for layer, one in zip(together, alone, strict=True):
        for stage in STAGES:
            kept = getattr(layer, stage)[1, :, :5]
            kept = kept if stage == "output" else kept[..., :5]
            torch.testing.assert_close(kept, getattr(one, stage)[0], rtol=0, atol=TOLERANCE)


def test_the_transformers_engine_rotates_texts_beside_each_other_by_their_own_lengths(
    tmp_path: Path,
) -> None:
    _open(tmp_path)
    engine = TransformersEngine(load_model(open_checkpoint(tmp_path), torch.float32), SETTINGS)
    b = batch([20, 5, _ORIGINAL + 1, _ORIGINAL], vocabulary=VOCAB, padding=0, segments=0)
    texts = [
        [Token(int(number), "x", "x") for number in ids[:n]]
        for ids, n in zip(b.ids, b.lengths, strict=True)
    ]
    together = engine.forward(make_batch(texts, None, CPU), {}, final=True)
    assert together is not None
    for hidden, text in zip(together, texts, strict=True):
        alone = engine.forward(make_batch([text], None, CPU), {}, final=True)
        assert alone is not None
        torch.testing.assert_close(hidden[: len(text)], alone[0], rtol=0, atol=TOLERANCE)


def test_short_and_long_texts_differ() -> None:
    rope = Rope(
        scaling=RopeScaling("longrope", 4.0, 12, short_factors=(1.0, 1.5), long_factors=(2.0, 3.0))
    )
    (short, factor), (long, same) = (
        rotary_frequencies(rope, 4, n, torch.device("cpu")) for n in (12, 13)
    )
    assert short.tolist() == pytest.approx([1.0, 0.01 / 1.5]) and long.tolist() == pytest.approx(
        [0.5, 0.01 / 3]
    )
    assert factor == same == pytest.approx(1.2482, abs=1e-4)  # √(1 + ln 4 / ln 12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"long_factors": (1.0,)},
            "rotary scaling 'longrope' has 1 long_factors; expected 2, one for each rotated",
        ),
        ({"short_factors": ()}, "rotary scaling 'longrope' has 0 short_factors; expected 2"),
        ({"original_max_positions": 1}, "trained on one token; set original_max_positions"),
        (
            {"original_max_positions": None},
            "rotary scaling 'longrope' has no original_max_positions",
        ),
    ],
)
def test_parameters_that_cannot_be_used_are_refused(changes: dict[str, Any], message: str) -> None:
    parameters = {
        "original_max_positions": 12,
        "short_factors": (1.0, 1.5),
        "long_factors": (2.0, 3.0),
        **changes,
    }
    rope = Rope(scaling=RopeScaling("longrope", 4.0, **parameters))
    config = ModelConfig(8, 4, 1, 1, 1, 4, 4, positions="rope", rope=rope)
    with pytest.raises(AttnscopeError, match=message):
        check_sizes(config, "stack.toml")
