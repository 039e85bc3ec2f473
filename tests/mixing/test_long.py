"""A text of 20,000 tokens: rows, their strongest sources and a map of the whole matrix, without a tensor of T×T."""

import numpy as np
import pytest
import torch

from attnscope.findings.tokens import Token
from attnscope.model.mixing import MixingInputs
from attnscope.request.run_config import RunConfig
from attnscope.run.analysis.mixing import LayerRecorder
from attnscope.run.text_plan import TextPlan
from tests.model.test_long import Largest

LONG = 20_000
POOL = 64


def draw_inputs(rng, length, *, by_channel, delta, heads=2, width=16):
    """A layer whose states fade over a few tokens in some places and over thousands in others."""
    q, k, v = (
        torch.tensor(rng.normal(size=(1, heads, length, width)), dtype=torch.float32)
        for _ in range(3)
    )
    k = k / k.norm(dim=-1, keepdim=True)
    fades = np.exp(rng.uniform(-9, -1, size=(1, heads, length, width if by_channel else 1)))
    write = torch.tensor(rng.uniform(0, 1, size=(1, heads, length)), dtype=torch.float32)
    log_decay = -torch.tensor(fades, dtype=torch.float32)
    return MixingInputs("gated delta", q, k, v, log_decay, torch.empty(0), delta, write)


def outputs(inputs, head, rows):
    """What the recurrence gives in these rows, in float64."""
    q, k, v, decay, write = (
        x[0, head].double().numpy()
        for x in (inputs.q, inputs.k, inputs.v, inputs.log_decay.double().exp(), inputs.write)
    )
    state = np.zeros((k.shape[1], v.shape[1]))
    found = {}
    for t in range(len(k)):
        state = state * np.broadcast_to(decay[t], k[t].shape)[:, None]
        held = k[t] @ state if inputs.delta else 0.0
        state += np.outer(k[t], write[t] * (v[t] - held))
        if t in rows:
            found[t] = q[t] @ state
    return found


CASES = [
    (LONG, False, True, None),
    (LONG, False, False, None),
    (LONG, True, True, None),
    (5000, False, True, POOL),
]


@pytest.mark.parametrize(("length", "by_channel", "delta", "pool"), CASES)
def test_a_text_of_20000_tokens_takes_no_matrix(length, by_channel, delta, pool):
    rng = np.random.default_rng()
    inputs = draw_inputs(rng, length, by_channel=by_channel, delta=delta)
    rows = sorted({0, length - 1, *rng.integers(length, size=3).tolist()})
    tokens = [Token(5, "a", "a", 2 * n, 2 * n + 1) for n in range(length)]
    text = TextPlan(tokens, None, None, rows, list(range(length)), pool, [])
    recorder = LayerRecorder(RunConfig((), top=3), [text], 0, [1], lambda: None)
    with Largest() as largest, torch.inference_mode():
        recorder.record(inputs)
    assert largest.elements < 500 * length  # linear: a matrix would have length × length
    (kept,) = recorder.kept
    matrix = kept["matrix"][0].astype(np.float64)
    values = inputs.v[0, 1].double().numpy()
    for row, expected in outputs(inputs, 1, rows).items():
        product = matrix[rows.index(row)] @ values
        np.testing.assert_allclose(product, expected, atol=2e-5 * max(1.0, np.abs(expected).max()))
    np.testing.assert_array_equal(kept["keys"][0][:, 0], np.abs(matrix).argmax(1))
    if pool:
        np.testing.assert_allclose(kept["pooled"][0].sum(1), 1, atol=1e-4)
        assert not np.triu(kept["pooled"][0], 1).any()
