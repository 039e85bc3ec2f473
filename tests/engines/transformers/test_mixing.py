"""What is read of layers without softmax makes the matrix that times the values is the layer's own output."""

import re

import numpy as np
import pytest
import torch
import transformers as hf

from attnscope.base.layer_kinds import LAYER_KINDS
from attnscope.engines.transformers.mixing import watching_mixing
from attnscope.model.mixing import HeadMixing
from tests.helpers import hybrids

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
    "mamba2": ("mamba", 2),
    "jamba": ("mamba-1", 2),
    "zamba": ("mamba-1", 6),
    "mamba": ("mamba-1", 2),
    "falcon_mamba": ("mamba-1", 2),
    "rwkv": ("rwkv", 2),
    "recurrent_gemma": ("rg-lru", 2),
    "xlstm": ("mlstm", 2),
}
KINDS = ("gated delta", "kimi delta", "mamba", "lightning", "rwkv", "recurrent", "mlstm")
PROJECTIONS = ("out_proj", "o_proj", "output", "linear_out")  # names of output projections


def observe(model, ids, mask=None):
    """What every layer without softmax mixes these tokens by, in order."""
    seen = []
    with torch.inference_mode(), watching_mixing(model, seen.append):
        model(input_ids=ids, attention_mask=mask, use_cache=False)
    return seen


def check_outputs(seen, lengths):
    """Compare every row of every matrix, times the values, with what the model computed, in float64."""
    for inputs in seen:
        assert inputs.n_heads > 1
        for text, length in enumerate(lengths):
            for heads, mixing in inputs.heads(text, range(inputs.n_heads), length):
                product = (
                    mixing.rows(range(length)).double() @ inputs.v[text, heads, :length].double()
                )
                if inputs.gated:
                    product = product * inputs.gate[text, heads, :length].double()
                expected = inputs.output[text, heads, :length].double()
                error = float((product - expected).abs().max())
                assert error < 1e-5 * float(expected.abs().max()), (inputs.kind, text, error)


@pytest.mark.parametrize("model_type", MIXING)
def test_the_matrix_times_the_values_is_the_output_of_the_layer(model_type):
    """Of random texts that are longer than several chunks, beside a shorter one with padding."""
    rng = np.random.default_rng()
    long, short = 150, int(rng.integers(2, 100))
    ids = torch.tensor(rng.integers(4, 60, size=(2, long)))
    mask = torch.ones_like(ids)
    mask[1, short:] = 0
    seen = observe(
        hybrids.with_long_states(
            hybrids.make_hybrid(model_type, max_position_embeddings=256).base_model
        ),
        ids,
        mask,
    )
    kind, count = MIXING[model_type]
    assert [inputs.kind for inputs in seen] == [kind] * count
    check_outputs(seen, (long, short))


@pytest.mark.parametrize("model_type", MIXING)
def test_output_norm_and_gate_are_what_the_output_projection_takes(model_type):
    """The output, normed by hand before or behind the gate as the kind of layer does, in float64."""
    model = hybrids.make_hybrid(model_type).base_model
    length = 12
    ids = torch.tensor(np.random.default_rng().integers(4, 60, size=(1, length)))
    taken = []

    def keep(module, args):
        taken.append(args[0].double())

    mixers = [
        module
        for module in model.modules()
        if any(re.fullmatch(LAYER_KINDS[kind].classes, type(module).__name__) for kind in KINDS)
    ]
    mixers = [mixer for mixer in mixers if any(hasattr(mixer, name) for name in PROJECTIONS)]
    for mixer in mixers:
        (projection,) = [getattr(mixer, name) for name in PROJECTIONS if hasattr(mixer, name)]
        projection.register_forward_pre_hook(keep)
    seen = observe(model, ids)
    assert len(taken) == len(seen) == len(mixers)
    for inputs, mixer, projected in zip(seen, mixers, taken, strict=True):
        output = inputs.output[0].double().transpose(0, 1)  # (T, H, Ev)
        gate = inputs.gate[0].double().transpose(0, 1)
        norm = next(
            (getattr(mixer, name) for name in ("norm", "o_norm") if hasattr(mixer, name)), None
        )
        if norm is None and inputs.kind == "mlstm":
            norm = mixer.multihead_norm
            centred = output - output.mean(-1, keepdim=True)
            scaled = centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
            expected = scaled.flatten(1) * norm.weight.detach().double() * gate.flatten(1)
        elif norm is None or isinstance(norm, torch.nn.Identity):
            expected = output if inputs.gated else output * gate
        elif inputs.kind == "mamba":
            expected = normed(
                (output * gate).flatten(1), norm, getattr(norm, "group_size", gate[0].numel())
            )
        elif inputs.kind == "lightning":
            expected = normed(output.flatten(1), norm, output[0].numel()) * gate.flatten(1)
        else:
            expected = normed(output, norm, output.shape[-1]) * gate
        np.testing.assert_allclose(
            projected[0].reshape(length, -1), expected.reshape(length, -1), atol=1e-5
        )


def normed(x, norm, size):
    """RMS norm over groups of this many numbers."""
    groups = x.reshape(*x.shape[:-1], -1, size)
    scaled = groups / (groups.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
    return scaled.reshape(x.shape) * norm.weight.detach().double()


@pytest.mark.parametrize("model_type", ["qwen3_next", "kimi_linear"])
def test_the_form_without_the_inverse_fails(model_type):
    ids = torch.tensor(np.random.default_rng().integers(4, 60, size=(1, 60)))
    for inputs in observe(hybrids.with_long_states(hybrids.make_hybrid(model_type).model), ids):
        expected = inputs.output[0].double()
        for head in range(inputs.n_heads):
            one = inputs.one_head(0, head, 60)
            plain = (
                HeadMixing(one.q, one.k, one.log_decay, one.write, False, one.skip)
                .rows(range(60))
                .double()
            )
            error = float((plain @ inputs.v[0, head].double() - expected[head]).abs().max())
            assert error > 0.01 * float(expected[head].abs().max())


def test_some_rows_of_an_xlstm_are_divided_and_a_long_text_runs_in_one_piece():
    """Between pieces, transformers would round states to bfloat16."""
    model = hybrids.with_long_states(hybrids.make_hybrid("xlstm")).base_model
    ids = torch.tensor(np.random.default_rng().integers(4, 60, size=(1, 70)))
    whole = observe(model, ids)
    model.config.max_inference_chunksize = 40
    seen = observe(model, ids)
    assert model.config.max_inference_chunksize == 40
    check_outputs(seen, [70])
    for inputs, of_whole in zip(seen, whole, strict=True):
        assert torch.equal(inputs.output, of_whole.output)
        sums = torch.stack(
            [inputs.one_head(0, head, 70).rows(range(70)).sum(1) for head in range(4)]
        ).abs()
        undivided = sums < 0.99
        assert undivided.any() and not undivided.all()


def test_documents_of_a_packed_text_do_not_read_each_other():
    """Positions that start anew reset the states of RecurrentGemma."""
    model = hybrids.with_long_states(hybrids.make_hybrid("recurrent_gemma")).base_model
    ids = torch.tensor(np.random.default_rng().integers(4, 60, size=(1, 20)))
    seen = []
    with torch.inference_mode(), watching_mixing(model, seen.append):
        model(input_ids=ids, position_ids=torch.tensor([[*range(8), *range(12)]]), use_cache=False)
    check_outputs(seen, [20])
    for inputs in seen:
        matrix = inputs.mean(0, 20).rows(range(20))
        assert not matrix[8:, :8].any() and matrix[8:, 8].all()


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
