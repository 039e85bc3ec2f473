"""What is read of layers without softmax makes the matrix that times the values is the layer's own output."""

import numpy as np
import pytest
import torch
import transformers as hf

from attnscope.engines.transformers.mixing import watching_mixing
from attnscope.model.mixing import HeadMixing
from tests.helpers import hybrids
from tests.helpers.tiny_models import raise_weights

# model_type → kind, and the number of layers that have it
MIXING = {
    "qwen3_next": ("gated delta", 2),
    "qwen3_5_text": ("gated delta", 2),
    "olmo_hybrid": ("gated delta", 2),
    "kimi_linear": ("kimi delta", 2),
    "bamba": ("mamba", 2),
    "granitemoehybrid": ("mamba", 2),
    "nemotron_h": ("mamba", 1),
    "falcon_h1": ("mamba", 4),
    "zamba2": ("mamba", 6),
    "minimax": ("lightning", 2),
}


def observe(model, ids, mask=None):
    """What every layer without softmax mixes these tokens by, in order."""
    seen = []
    with torch.inference_mode(), watching_mixing(model, seen.append):
        model(input_ids=ids, attention_mask=mask, use_cache=False)
    return seen


def times_values(inputs, text, head, length):
    """Every row of a head's matrix, and their products with its values, in float64."""
    matrix = inputs.one_head(text, head, length).rows(range(length)).double()
    return matrix, matrix @ inputs.v[text, head, :length].double()


def check_outputs(seen, lengths):
    for inputs in seen:
        assert inputs.n_heads > 1
        for text, length in enumerate(lengths):
            for head in range(inputs.n_heads):
                _, product = times_values(inputs, text, head, length)
                expected = inputs.output[text, head, :length].double()
                error = float((product - expected).abs().max())
                assert error < 1e-5 * max(1.0, float(expected.abs().max())), (inputs.kind, text, head, error)


@pytest.mark.parametrize("model_type", MIXING)
def test_the_matrix_times_the_values_is_the_output_of_the_layer(model_type):
    """Of random texts that are longer than several chunks, beside a shorter one with padding."""
    rng = np.random.default_rng()
    long, short = 150, int(rng.integers(2, 100))
    ids = torch.tensor(rng.integers(4, 60, size=(2, long)))
    mask = torch.ones_like(ids)
    mask[1, short:] = 0
    seen = observe(
        hybrids.with_long_states(hybrids.make_hybrid(model_type, max_position_embeddings=256).model), ids, mask
    )
    kind, count = MIXING[model_type]
    assert [inputs.kind for inputs in seen] == [kind] * count
    check_outputs(seen, (long, short))


def test_a_model_without_any_softmax_is_read_as_well():
    torch.manual_seed(0)
    config = hf.Mamba2Config(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, state_size=8, head_dim=16, num_heads=4, n_groups=2,
        expand=2, chunk_size=4,
    )  # fmt: skip
    model = raise_weights(hf.Mamba2Model(config).eval())
    seen = observe(model, torch.tensor(np.random.default_rng().integers(4, 60, size=(1, 40))))
    assert [inputs.kind for inputs in seen] == ["mamba"] * 2
    check_outputs(seen, [40])


@pytest.mark.parametrize("model_type", ["qwen3_next", "kimi_linear"])
def test_the_form_without_the_inverse_fails(model_type):
    ids = torch.tensor(np.random.default_rng().integers(4, 60, size=(1, 60)))
    for inputs in observe(hybrids.with_long_states(hybrids.make_hybrid(model_type).model), ids):
        expected = inputs.output[0].double()
        for head in range(inputs.n_heads):
            one = inputs.one_head(0, head, 60)
            plain = HeadMixing(one.q, one.k, one.log_decay, one.write, False, one.skip).rows(range(60)).double()
            error = float((plain @ inputs.v[0, head].double() - expected[head]).abs().max())
            assert error > 0.01 * float(expected[head].abs().max())


def test_the_functions_of_transformers_are_restored_and_elsewhere_untouched():
    file = hf.models.qwen3_next.modeling_qwen3_next
    before = file.torch_chunk_gated_delta_rule
    model = hybrids.make_hybrid("qwen3_next").model

    def fail(inputs):
        assert file.torch_chunk_gated_delta_rule is not before
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), watching_mixing(model, fail):
        model(input_ids=torch.tensor([[4, 5]]))
    assert file.torch_chunk_gated_delta_rule is before
    ids = torch.tensor([[4, 5, 6, 7]])
    with torch.inference_mode():
        alone = model(input_ids=ids).last_hidden_state
        with watching_mixing(model, lambda inputs: None):
            watched = model(input_ids=ids).last_hidden_state
    assert torch.equal(alone, watched)
