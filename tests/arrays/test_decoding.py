"""Queries of the last tokens alone, as a step of decoding with a cache has them."""

import json

import numpy as np
import pytest
import torch
import transformers as hf

import attnscope
from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.cli import main
from attnscope.engines.transformers.blocks import cache_argument
from tests.helpers import architectures

TOKENS = "the old bank by the river was very old".split()
RNG = np.random.default_rng(0)
Q, K, V = RNG.normal(size=(3, 2, 4, 9, 8)).astype("float32")  # 2 layers × 4 heads × 9 tokens × 8


def test_rows_are_those_of_all_queries():
    every = attnscope.from_qkv(list(Q), list(K), list(V), tokens=TOKENS, window=5)
    for n in (1, 3):
        last = attnscope.from_qkv(list(Q[:, :, -n:]), list(K), list(V), tokens=TOKENS, window=5)
        assert last.data.texts[0].queries == list(range(9 - n, 9))
        np.testing.assert_allclose(last.weights, every.weights[:, :, -n:], atol=1e-6)
        np.testing.assert_allclose(
            last.measure_heads(measure="entropy").values,
            every.measure_heads(measure="entropy", query=tuple(range(9 - n, 9))).values,
            atol=1e-5,
        )
        explained = last.explain(query="old", layer=1, head=2)
        assert explained.holds
        assert explained.data.query == 8


def test_a_step_of_transformers_with_a_cache_is_the_last_row_of_eager_attention(
    tmp_path, monkeypatch
):
    folder = architectures.save(
        tmp_path, architectures.make("llama", architectures.ONE_PART["llama"])
    )
    model = hf.AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    eager = hf.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    ids = torch.tensor([[1, 5, 3, 8, 2, 7]])
    calls, original = [], torch.nn.functional.scaled_dot_product_attention

    def keep(q, k, v, *args, scale=None, **named):
        result = original(q, k, v, *args, scale=scale, **named)
        calls.append({"q": q[0], "k": k[0], "v": v[0], "output": result[0], "scale": scale})
        return result

    with torch.no_grad():
        weights = [
            layer[0, :, -1:].numpy() for layer in eager(ids, output_attentions=True).attentions
        ]
        name = cache_argument(model)
        cache = model(ids[:, :-1], use_cache=True)[name]
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", keep)
        model(ids[:, -1:], **{name: cache})
    step = attnscope.from_qkv(**{name: [call[name] for call in calls] for name in calls[0]})
    assert step.data.texts[0].queries == [5]
    np.testing.assert_allclose(step.weights, np.stack(weights), atol=1e-6)
    assert step.data.texts[0].given_output.agrees


def test_rotation_and_masks_count_from_the_first_key():
    options = {"tokens": TOKENS, "rope": 10000.0}
    for mask, of_last in (
        ("causal+(sink:1|window:3)",) * 2,
        (np.tri(9, dtype=bool), np.tri(9, dtype=bool)[-2:]),
        (lambda b, h, q, k: (q - k) * (h + 1) >= 0,) * 2,
    ):
        every = attnscope.from_qkv(Q[0], K[0], mask=mask, **options)
        last = attnscope.from_qkv(Q[0, :, -2:], K[0], mask=of_last, **options)
        np.testing.assert_allclose(last.weights[0], every.weights[0][:, -2:], atol=1e-6)


def test_texts_of_a_batch_have_their_own_last_tokens():
    lengths, counts = [4, 5], [1, 2]
    packed = attnscope.from_qkv(Q[0], K[0], cu_seqlens=[0, 4, 9])
    rows = [3, 7, 8]  # the last of the first text, the last two of the second
    last = attnscope.from_qkv(Q[0][:, rows], K[0], cu_seqlens=[0, 4, 9], cu_seqlens_q=[0, 1, 3])
    padded_k = np.zeros((2, 4, 5, 8), "float32")
    padded_k[0, :, :4], padded_k[1] = K[0][:, :4], K[0][:, 4:]
    one_each = np.stack([Q[0][:, 3:4], Q[0][:, 8:9]])
    padded = attnscope.from_qkv(one_each, padded_k, layout="bhtd", lengths=lengths)
    for number, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        expected = packed.texts[number].weights[0]
        assert last.data.texts[number].queries == list(range(length - count, length))
        np.testing.assert_allclose(last.texts[number].weights[0], expected[:, -count:], atol=1e-6)
        np.testing.assert_allclose(padded.texts[number].weights[0], expected[:, -1:], atol=1e-6)


def test_given_weights_of_the_last_tokens():
    weights = attnscope.from_qkv(Q[0], K[0], tokens=TOKENS).weights[0]
    last = attnscope.from_weights(weights[:, -2:], TOKENS)
    assert last.data.texts[0].queries == [7, 8]
    np.testing.assert_array_equal(last.weights[0], weights[:, -2:])


def test_commands_read_them_from_a_file(tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    arrays = {f"layer.{n}.{name}": side[n] for n in range(2) for name, side in (("k", K), ("v", V))}
    np.savez(
        "step.npz", **arrays, **{f"layer.{n}.q": Q[n, :, -1:] for n in range(2)}, tokens=TOKENS
    )
    every = attnscope.from_qkv(list(Q), list(K), list(V), tokens=TOKENS)
    assert main(["run", "--qkv", "step.npz", "--layer", "1", "--head", "2"]) == 0
    screen = capfdbinary.readouterr().out.decode()
    assert "queries are those of the last token of 9" in " ".join(screen.split())
    assert "row 8 old" in screen
    assert (
        main(
            [
                "explain",
                "--qkv",
                "step.npz",
                "--query",
                "8",
                "--layer",
                "0",
                "--head",
                "1",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capfdbinary.readouterr().out)["query"] == 8
    assert main(["batch", "--qkv", "step.npz", "-o", "dump.jsonl", "--quiet"]) == 0
    (record,) = attnscope.read_dump("dump.jsonl")
    # of the only row, with three digits
    entropy = np.asarray(record.rows.entropy, float).reshape(2, 4)
    expected = np.stack([[every[n, h].rows.entropy[8] for h in range(4)] for n in range(2)])
    np.testing.assert_allclose(entropy, expected, atol=6e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attnscope.from_qkv(Q[0], K[0][:, :5]), "q has 9 tokens, k 5"),
        (lambda: attnscope.from_qkv(Q[0][:, :5], K[0], cu_seqlens=[0, 4, 9]), "pass cu_seqlens_q"),
        (
            lambda: attnscope.from_qkv(
                Q[0][:, :5], K[0], cu_seqlens=[0, 4, 9], cu_seqlens_q=[0, 5]
            ),
            "texts of 5 queries and 4, 5 keys",
        ),
        (
            lambda: attnscope.from_qkv(
                Q[0][:, :6], K[0], cu_seqlens=[0, 4, 9], cu_seqlens_q=[0, 5, 6]
            ),
            "texts of 5, 1 queries and 4, 5 keys",
        ),
        (
            lambda: attnscope.from_qkv(Q[0][:, -1:], K[0]).inspect(query=3),
            "not among the given ones",
        ),
        (
            lambda: attnscope.from_qkv(Q[0][:, -1:], K[0]).measure_heads(),
            "roles need the queries of all tokens",
        ),
        (
            lambda: attnscope.from_qkv(Q[0][:, -1:], K[0], measure="rollout"),
            "needs the queries of all tokens",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(call, message):
    with pytest.raises((AttnscopeError, UsageError), match=message):
        call()
