"""The matrix of a layer without softmax times its values is what the recurrence gives, token after token."""

import numpy as np
import pytest
import torch

from attnscope.model.mixing import HeadMixing
from tests.helpers.draws import drawn

# decay of each channel, delta rule, write strength, skip
KINDS = {
    "gated delta": (False, True, True, False),
    "kimi delta": (True, True, True, False),
    "mamba-2": (False, False, True, True),
    "mamba-1": (True, False, True, True),
    "lightning": (False, False, False, False),
}
ALL = (*KINDS, "rwkv", "rg-lru", "mlstm")


def draw_head(rng, kind, length, width=6):
    """The inputs of one head in float64, like a real one: keys of length 1, decays that fade over a few tokens."""
    if kind == "rwkv":
        k = torch.tensor(rng.normal(scale=3, size=(length, 1)))
        decay = torch.full((length, 1), -float(rng.exponential(0.3)), dtype=torch.float64)
        return HeadMixing(torch.ones_like(k), k, decay, None, False, None, float(rng.normal()))
    if kind == "rg-lru":
        ones = torch.ones(length, 1, dtype=torch.float64)
        decay = -torch.tensor(rng.exponential(0.3, size=(length, 1)))
        return HeadMixing(
            ones, ones, decay, torch.tensor(rng.uniform(0, 1, size=length)), False, None
        )
    if kind == "mlstm":
        return draw_mlstm(rng, length, width)
    by_channel, delta, writes, skips = KINDS[kind]
    q, k = (torch.tensor(rng.normal(size=(length, width))) for _ in range(2))
    k = k / k.norm(dim=-1, keepdim=True) if delta else k
    log_decay = -torch.tensor(rng.exponential(0.3, size=(length, width if by_channel else 1)))
    log_decay[rng.integers(length)] = 0
    write = torch.tensor(rng.uniform(0, 1, size=length)) if writes else None
    return HeadMixing(q, k, log_decay, write, delta, float(rng.normal()) if skips else None)


EPSILON = 1e-6  # of the memory of an xLSTM


def draw_mlstm(rng, length, width):
    """Gates that open and close: some rows are divided by their sum, others are not."""
    q, k = (torch.tensor(rng.normal(size=(length, width))) for _ in range(2))
    opens = rng.normal(scale=3, size=length)
    log_decay = -rng.exponential(0.3, size=(length, 1))
    largest = []
    m = 0.0
    for decay, gate in zip(log_decay[:, 0], opens, strict=True):
        m = max(decay + m, gate)
        largest.append(m)
    stabilizer = EPSILON * torch.tensor(largest, dtype=torch.float64).exp()
    write = torch.tensor(opens).exp()
    return HeadMixing(q, k, torch.tensor(log_decay), write, False, None, None, stabilizer)


def stabilized_memory(head, v):
    """What an xLSTM gives: memory and normalizer, both divided by the exponential of the largest gate so far."""
    memory = np.zeros((head.k.shape[1], v.shape[1]))
    normalizer = np.zeros(head.k.shape[1])
    m = 0.0
    outputs = []
    gates = head.write.log().numpy()
    for t, (q, k, log_decay) in enumerate(
        zip(head.q.numpy(), head.k.numpy(), head.log_decay[:, 0].numpy(), strict=True)
    ):
        larger = max(log_decay + m, gates[t])
        forget, write = np.exp(log_decay + m - larger), np.exp(gates[t] - larger)
        m = larger
        memory = forget * memory + write * np.outer(k, v[t])
        normalizer = forget * normalizer + write * k
        outputs.append(q @ memory / (max(abs(q @ normalizer), np.exp(-m)) + EPSILON))
    return np.array(outputs)


def recurrence(head, v):
    """What the layer gives, by NumPy: decay the state, take away what it holds, write, read."""
    if head.bonus is not None:
        return averages(head, v)
    if head.stabilizer is not None:
        return stabilized_memory(head, v)
    state = np.zeros((head.k.shape[1], v.shape[1]))
    outputs = []
    for t, (q, k, decay) in enumerate(
        zip(head.q.numpy(), head.k.numpy(), head.log_decay.exp().numpy(), strict=True)
    ):
        state = state * np.broadcast_to(decay, k.shape)[:, None]
        write = 1.0 if head.write is None else float(head.write[t])
        held = k @ state if head.delta else 0.0
        state = state + np.outer(k, write * (v[t] - held))
        outputs.append(q @ state + (head.skip or 0.0) * v[t])
    return np.array(outputs)


def averages(head, v):
    """What RWKV-4 gives: an average whose numerator and denominator decay, with another weight of the own token."""
    numerator = np.zeros(v.shape[1])
    denominator = 0.0
    outputs = []
    for t, (k, decay) in enumerate(
        zip(head.k.numpy()[:, 0], head.log_decay.exp().numpy()[:, 0], strict=True)
    ):
        own = np.exp(k + head.bonus)
        outputs.append((numerator + own * v[t]) / (denominator + own))
        numerator = decay * numerator + np.exp(k) * v[t]
        denominator = decay * denominator + np.exp(k)
    return np.array(outputs)


@pytest.mark.parametrize("kind", ALL)
def test_the_matrix_times_the_values_is_the_recurrence(kind):
    rng = np.random.default_rng()
    for _ in range(drawn(4)):
        length = int(rng.integers(1, 200))
        head = draw_head(rng, kind, length)
        v = rng.normal(size=(length, 5))
        rows = sorted(
            rng.choice(length, size=int(rng.integers(1, length + 1)), replace=False).tolist()
        )
        chunk = int(rng.choice([1, 3, 16, 64, 500]))
        matrix = head.rows(rows, chunk).numpy()
        expected = recurrence(head, v)
        assert np.abs(matrix @ v - expected[rows]).max() < 1e-12 * max(1, np.abs(expected).max()), (
            kind,
            length,
            chunk,
        )
        assert not np.triu(head.rows(range(length)).numpy(), 1).any()


@pytest.mark.parametrize("kind", ["gated delta", "kimi delta"])
def test_the_form_without_the_inverse_is_another_matrix(kind):
    """What other tools draw, tril(QKᵀ ⊙ Γ) diag(β), gives another output, and another strongest source in many rows."""
    rng = np.random.default_rng()
    length = 120
    head = draw_head(rng, kind, length)
    v = rng.normal(size=(length, 5))
    exact = head.rows(range(length)).numpy()
    plain = (
        HeadMixing(head.q, head.k, head.log_decay, head.write, False, None)
        .rows(range(length))
        .numpy()
    )
    expected = recurrence(head, v)
    assert np.abs(exact @ v - expected).max() < 1e-12 * np.abs(expected).max()
    assert np.abs(plain @ v - expected).max() > 0.1 * np.abs(expected).max()
    assert (np.abs(exact).argmax(1) != np.abs(plain).argmax(1)).any()


def test_a_layer_that_decays_nothing_is_linear_attention():
    rng = np.random.default_rng()
    q, k = (torch.tensor(rng.normal(size=(9, 4))) for _ in range(2))
    head = HeadMixing(q, k, torch.zeros(9, 1, dtype=q.dtype), None, False, None)
    np.testing.assert_allclose(head.rows(range(9), 4), np.tril(q.numpy() @ k.numpy().T), atol=1e-14)


def test_blocks_are_all_rows():
    rng = np.random.default_rng()
    head = draw_head(rng, "gated delta", 700)
    blocks = list(head.blocks(range(700)))
    assert len(blocks) > 2
    assert [row for rows, _ in blocks for row in rows] == list(range(700))
    np.testing.assert_allclose(
        torch.cat([block for _, block in blocks]), head.rows(range(700)), atol=1e-13
    )


def test_strong_decays_and_long_texts_stay_exact_in_float32():
    """No product of decays over the whole text is formed, which float32 could not hold."""
    rng = np.random.default_rng()
    for kind in KINDS:
        head = draw_head(rng, kind, 1500)
        single = HeadMixing(
            head.q.float(), head.k.float(), head.log_decay.float() * 30,
            None if head.write is None else head.write.float(), head.delta, head.skip,
        )  # fmt: skip
        rows = [0, 63, 64, 700, 1499]
        exact = HeadMixing(
            head.q, head.k, single.log_decay.double(), head.write, head.delta, head.skip
        ).rows(rows)
        assert torch.isfinite(single.rows(rows)).all()
        np.testing.assert_allclose(
            single.rows(rows).double(), exact, atol=2e-6 * float(exact.abs().max())
        )
