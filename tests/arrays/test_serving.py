"""Files in the layouts of vLLM's plug-ins give the weights that their own documented formula gives."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import attnscope
from attnscope.base.errors import AttnscopeError

HEADS, GROUPS, WIDTH, TOKENS = 4, 2, 8, 7
LENS = [
    {"scale": 0.3, "sliding_window": [-1, -1], "logits_soft_cap": 0.0, "alibi_slopes": None, "sinks": None},
    {"scale": 0.2, "sliding_window": [2, 0], "logits_soft_cap": 1.5, "alibi_slopes": None,
     "sinks": [0.5, -1.0, 2.0, 0.0]},
]  # fmt: skip


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4))


def lens_weights(q, k, meta):
    """What vllm-lens documents: softmax(mask(cap(q·k × scale))), with sinks in the sum; (heads, queries, keys)."""
    k = k.double().repeat_interleave(HEADS // GROUPS, dim=1)
    logits = torch.einsum("qhd,khd->hqk", q.double(), k) * meta["scale"]
    if meta["logits_soft_cap"]:
        logits = torch.tanh(logits / meta["logits_soft_cap"]) * meta["logits_soft_cap"]
    distance = torch.arange(len(q))[:, None] - torch.arange(len(k))[None]
    left = meta["sliding_window"][0]
    barred = (distance < 0) | (
        (distance > left) if left >= 0 else torch.zeros_like(distance, dtype=torch.bool)
    )
    logits = logits.masked_fill(barred, -torch.inf)
    sinks = (
        torch.full((HEADS,), -torch.inf) if meta["sinks"] is None else torch.tensor(meta["sinks"])
    )
    column = sinks.double()[:, None, None].expand(-1, len(q), 1)
    return torch.cat((logits, column), -1).softmax(-1)[..., :-1]


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_output_qk_of_vllm_lens(tmp_path, ending):
    q, k = drawn(2, TOKENS, HEADS, WIDTH), drawn(2, TOKENS, GROUPS, WIDTH)
    path, texts = (
        tmp_path / f"lens.{ending}",
        {"qk_layers": json.dumps([3, 12]), "qk_meta": json.dumps(LENS)},
    )
    if ending == "npz":
        np.savez(path, attn_q=q.numpy(), attn_k=k.numpy(), **texts)
    else:
        save_file({"attn_q": q, "attn_k": k}, path, texts)
    report = attnscope.inspect(qkv=path, layer="all", head="all")
    assert sorted({head.layer for head in report.data.texts[0].heads}) == [3, 12]
    expected = torch.cat([lens_weights(q[i], k[i], meta) for i, meta in enumerate(LENS)]).numpy()
    shown = np.stack([head.stages["weights"] for head in report.data.texts[0].heads])
    np.testing.assert_allclose(shown, expected, rtol=0, atol=1e-6)


def save_hook(folder, *, compact, change=lambda about: about):
    """Write qk.safetensors and qk.json as vLLM-Hook does for one request, or two that are padded."""
    lengths = [TOKENS] if compact else [TOKENS, 4]
    tensors, order, made = {}, [], {}
    for layer in (1, 5):
        name = f"model.layers.{layer}.self_attn.attn"
        key = name.replace(".", "__")
        order.append({"key_q": f"{key}__q", "key_k": f"{key}__k", "module_name": name, "layer_num": layer,
                      "hookq_mode": "all_tokens"})  # fmt: skip
        made[layer] = [
            [drawn(n, heads * WIDTH) * (1 + layer + n) / 9 for n in lengths]
            for heads in (HEADS, GROUPS)
        ]
        for letter, parts in zip("qk", made[layer], strict=True):
            padded = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
            tensors[f"{key}__{letter}"] = torch.cat(parts) if compact else padded
    config = {"num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "hidden_size": 32, "head_dim": WIDTH,
              "attention_multiplier": 0.4}  # fmt: skip
    about = {"config": config, "layer_order": order, "batch_size": len(lengths), "hookq_mode": "all_tokens",
             "tp_rank": 0, "q_seq_lens": lengths}  # fmt: skip
    about |= (
        {"compact_all_tokens": True, "k_full_lens": lengths} if compact else {"k_seq_lens": lengths}
    )
    save_file(tensors, folder / "qk.safetensors")
    (folder / "qk.json").write_text(json.dumps(change(about)))
    return folder / "qk.safetensors", made, lengths


@pytest.mark.parametrize("compact", [True, False])
def test_files_of_vllm_hook(tmp_path, compact):
    path, made, lengths = save_hook(tmp_path, compact=compact)
    report = attnscope.inspect(qkv=path, layer="all", head="all").data
    assert len(report.texts) == len(lengths)
    meta = {"scale": 0.4, "sliding_window": [-1, -1], "logits_soft_cap": 0.0, "sinks": None}
    for index, text in enumerate(report.texts):
        expected = []
        for layer in (1, 5):
            q, k = (
                made[layer][side][index].view(-1, count, WIDTH)
                for side, count in ((0, HEADS), (1, GROUPS))
            )
            expected.append(lens_weights(q, k, meta))
        shown = np.stack([head.stages["weights"] for head in text.heads])
        np.testing.assert_allclose(shown, torch.cat(expected).numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hookq_mode": "last_token", "layer_order": None}, "does not describe its tensors"),
        ({"config": {}}, "does not describe its tensors"),
        ({"tp_shard": {"tp_size": 2}}, "holds the heads of one GPU of several"),
        ({"q_seq_lens": [1, 1]}, "holds steps of decoding"),
    ],
)
def test_what_vllm_hook_cannot_mean_is_refused(tmp_path, change, message):
    path, _, _ = save_hook(tmp_path, compact=False, change=lambda about: {**about, **change})
    with pytest.raises(AttnscopeError, match=message):
        attnscope.inspect(qkv=path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alibi_slopes": [0.5] * HEADS}, "alibi_slopes is set, which is not read"),
        ({"sliding_window": [3, 2]}, "sliding_window reaches 2 tokens ahead"),
    ],
)
def test_what_vllm_lens_cannot_mean_is_refused(tmp_path, change, message):
    q, k = drawn(1, TOKENS, HEADS, WIDTH).numpy(), drawn(1, TOKENS, GROUPS, WIDTH).numpy()
    meta = json.dumps([{**LENS[0], **change}])
    np.savez(tmp_path / "x.npz", attn_q=q, attn_k=k, qk_layers=json.dumps([0]), qk_meta=meta)
    with pytest.raises(AttnscopeError, match=message):
        attnscope.inspect(qkv=tmp_path / "x.npz")
