"""Every family and variant equals eager transformers, stage by stage, on every layer and head."""

from importlib import import_module

import pytest
import torch
import transformers as hf

from attnscope.checkpoints.families import FAMILIES, read_config
from attnscope.model.layers import make_norm
from attnscope.model.stack import Stack
from tests.helpers import native_stages, reference_stages
from tests.helpers.published_configs import PUBLISHED
from tests.helpers.reference_stages import STAGES, Stages
from tests.helpers.stage_differences import TOLERANCE, differences
from tests.helpers.tiny_models import TABLE, VOCAB, Row
from tests.helpers.token_batches import INPUTS, Batch, batch

Pair = tuple[Stack, hf.PreTrainedModel]


@pytest.fixture(scope="module", params=TABLE, ids=lambda row: row.name)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    row: Row = request.param
    folder = tmp_path_factory.mktemp("model")
    theirs = row.save(folder)
    return native_stages.open_stack(folder), theirs


def _batch(pair: Pair, lengths: list[int]) -> Batch:
    stack, theirs = pair
    padding = getattr(theirs.config, "pad_token_id", None) or 0
    return batch(lengths, vocabulary=VOCAB, padding=padding, segments=stack.config.n_segments)


@pytest.mark.parametrize("lengths", INPUTS.values(), ids=INPUTS)
def test_every_stage_equals_eager_transformers(pair: Pair, lengths: list[int]) -> None:
    stack, theirs = pair
    b = _batch(pair, lengths)
    found = differences(
        native_stages.run(stack, b.ids, b.lengths, b.segments),
        reference_stages.run(theirs, b.ids, b.lengths, b.segments),
        b.lengths,
    )
    assert max(found.values()) < TOLERANCE, found


def test_heads_and_layers_that_nobody_watches_change_nothing(pair: Pair) -> None:
    """They go another way through attention, which knows sinks, soft-caps and windows as well."""
    b, some = _batch(pair, [9, 14]), {1: [0], 2: [1]}
    every = native_stages.run(pair[0], b.ids, b.lengths, b.segments)
    beside = [
        Stages(*(getattr(every[layer], stage)[:, heads] for stage in STAGES))
        for layer, heads in some.items()
    ]
    found = differences(
        native_stages.run(pair[0], b.ids, b.lengths, b.segments, some), beside, b.lengths
    )
    assert max(found.values()) < TOLERANCE, found


def test_a_padded_key_gets_exactly_nothing(pair: Pair) -> None:
    b = _batch(pair, [4, 7])
    for layer in native_stages.run(pair[0], b.ids, b.lengths, b.segments):
        assert (layer.masked[0, :, :, 4:] == -torch.inf).all()
        assert (layer.weights[0, :, :4, 4:] == 0).all()


_NORMS = {
    "llama": "Llama",
    "mixtral": "Mixtral",
    "gemma2": "Gemma2",
    "olmo2": "Olmo2",
    "gpt_oss": "GptOss",
}


@pytest.mark.parametrize("name", _NORMS)
def test_norms_round_where_transformers_rounds(name: str) -> None:
    """In 16 bits it matters whether the weight comes before the rounding or after it."""
    raw = next(raw for raw in PUBLISHED.values() if raw["model_type"] == name)
    ours_norm = make_norm(read_config(FAMILIES[name], raw, "config.json"), 64).bfloat16()
    module = import_module(f"transformers.models.{name}.modeling_{name}")
    norm = getattr(module, f"{_NORMS[name]}RMSNorm")(64, eps=ours_norm.eps).bfloat16()
    generator = torch.Generator().manual_seed(1)
    for parameter in (ours_norm.weight, norm.weight):
        parameter.data.copy_(torch.randn(64, generator=generator.manual_seed(2)))
    x = torch.randn(50, 64, generator=generator).bfloat16()
    assert torch.equal(ours_norm(x), norm(x))


def test_the_table_has_a_row_for_every_family() -> None:
    assert {row.model.config_class.model_type for row in TABLE} == set(FAMILIES)
