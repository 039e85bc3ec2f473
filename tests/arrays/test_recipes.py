"""The recipes of docs/other-engines.md, run as far as this machine can: with stand-ins for what needs another one.

A stand-in has the attributes that the recipe reads, named and shaped as in the library; the arrays are compared with
what the same queries, keys and values give without the recipe.
"""

import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import attnscope

PAGE = (Path(__file__).parent.parent.parent / "docs" / "other-engines.md").read_text()
HEADS, KV_HEADS, TOKENS, WIDTH = 4, 2, 6, 8


def recipe(title, language="python"):
    """The code of a recipe."""
    section = PAGE.partition(f"\n### {title}\n")[2].partition("\n### ")[0]
    (code,) = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    return code


def names(title):
    """What the Python of a recipe defines."""
    found: dict = {}
    exec(recipe(title), found)
    return found


def drawn(layers=2):
    """Queries, keys and values of some layers, (tokens, heads, width)."""
    rng = torch.Generator().manual_seed(0)
    sizes = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
    return [
        {n: torch.randn(TOKENS, h, WIDTH, generator=rng) for n, h in sizes.items()}
        for _ in range(layers)
    ]


def expected(layers, **settings):
    sides = {name: [layer[name] for layer in layers] for name in "qkv"}
    return attnscope.from_qkv(**sides, layout="tokens,heads,width", **settings).weights


def test_plain_pytorch():
    class Block(torch.nn.Module):
        def __init__(self, added=None):
            super().__init__()
            self.qkv, self.added = torch.nn.Linear(12, 36), added

        def forward(self, x):
            q, k, v = (
                side.unflatten(-1, (3, 4)).transpose(1, 2) for side in self.qkv(x).chunk(3, -1)
            )
            mask = {"is_causal": True} if self.added is None else {"attn_mask": self.added}
            made = torch.nn.functional.scaled_dot_product_attention(q, k, v, **mask, scale=0.3)
            return x + made.transpose(1, 2).flatten(2)

    torch.manual_seed(0)
    causal = torch.zeros(5, 5).masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf)
    model, x = (
        torch.nn.Sequential(Block(), Block(torch.randn(1, 3, 5, 5) + causal)),
        torch.randn(1, 5, 12),
    )
    original = torch.nn.functional.scaled_dot_product_attention
    report = names("Plain PyTorch")["report_of"](model, x)
    assert torch.nn.functional.scaled_dot_product_attention is original
    for layer, block in enumerate(model):
        with torch.no_grad():
            q, k, _ = (
                side.unflatten(-1, (3, 4)).transpose(1, 2)[0] for side in block.qkv(x).chunk(3, -1)
            )
            scores = q @ k.mT * 0.3 + (causal if block.added is None else block.added[0])
            x = block(x)
        np.testing.assert_allclose(report.weights[layer], scores.softmax(-1), atol=1e-6)
    given = report.data.texts[0].given_output
    assert given.agrees
    assert given.layers == [0, 1]


class Attention(torch.nn.Module):
    """As vLLM's: joined heads, and settings in `impl`."""

    def __init__(self, layer, **settings):
        super().__init__()
        self.layer_name = f"model.layers.{layer}.self_attn.attn"
        self.num_heads, self.num_kv_heads = HEADS, KV_HEADS
        self.impl = SimpleNamespace(
            scale=0.25, logits_soft_cap=None, sliding_window=(-1, -1), sinks=None
        )
        vars(self.impl).update(settings)

    def forward(self, query, key, value):
        q, k, v = (side.unflatten(-1, (-1, WIDTH)).transpose(0, 1) for side in (query, key, value))
        k, v = (side.repeat_interleave(HEADS // KV_HEADS, 0) for side in (k, v))
        scores, settings = q @ k.mT * self.impl.scale, self.impl
        if settings.logits_soft_cap:
            scores = settings.logits_soft_cap * (scores / settings.logits_soft_cap).tanh()
        at = torch.arange(len(query))
        distance = at[:, None] - at
        allowed = (distance >= 0) & (
            distance <= settings.sliding_window[0] if settings.sliding_window[0] >= 0 else True
        )
        scores = scores.masked_fill(~allowed, -torch.inf)
        if settings.sinks is not None:
            scores = torch.cat(
                (scores, settings.sinks[:, None, None].expand(-1, len(query), 1)), -1
            )
        return (scores.softmax(-1)[..., : len(query)] @ v).transpose(0, 1).flatten(1).bfloat16()


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ({}, {}),
        ({"logits_soft_cap": 2.0}, {"softcap": 2.0}),
        ({"sliding_window": (2, 0)}, {"window": 3}),
        ({"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}, {"sinks": [0.5, -1.0, 2.0, 0.0]}),
    ],
    ids=["none", "soft-cap", "window", "sinks"],
)
def test_vllm(settings, given, tmp_path):
    layers = drawn()
    model = torch.nn.ModuleList(Attention(number, **settings) for number in range(2))
    names("vLLM")["save_qkv"](model, tmp_path / "x.npz")
    for module, sides in zip(model, layers, strict=True):
        module(*(sides[name].flatten(1).bfloat16().float() for name in "qkv"))
    for module in model:  # the next token must not replace the prompt
        module(*(torch.ones(1, heads * WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS)))
    report = attnscope.inspect(qkv=tmp_path / "x.npz", layer="all", head="all")
    assert report.data.texts[0].given_output.agrees
    found = report.weights
    rounded = [{name: side.bfloat16().float() for name, side in layer.items()} for layer in layers]
    np.testing.assert_allclose(found, expected(rounded, scale=0.25, **given), atol=1e-6)


STUB = """
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>
enum ggml_type { GGML_TYPE_F32, GGML_TYPE_F16 };
struct ggml_tensor { ggml_type type; int64_t ne[4]; const char * name; const void * data; };
static const char * ggml_get_name(const ggml_tensor * t) { return t->name; }
static size_t ggml_nbytes(const ggml_tensor * t) { return 4 * t->ne[0] * t->ne[1] * t->ne[2]; }
static void ggml_backend_tensor_get(const ggml_tensor * t, void * to, size_t from, size_t size) {
    memcpy(to, (const char *) t->data + from, size);
}
%s
int main(int count, char ** words) {
    for (int i = 2; i + 1 < count; i += 2) {  // name and file of numbers: width, heads, tokens in front
        FILE * file = fopen(words[i + 1], "rb");
        int64_t sizes[3];
        if (fread(sizes, 8, 3, file) != 3) return 1;
        std::vector<float> data(sizes[0] * sizes[1] * sizes[2]);
        if (fread(data.data(), 4, data.size(), file) != data.size()) return 1;
        fclose(file);
        ggml_tensor t = { GGML_TYPE_F32, { sizes[0], sizes[1], sizes[2], 1 }, words[i], data.data() };
        if (save_qkv(&t, true, words[1])) save_qkv(&t, false, words[1]);
    }
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_llama_cpp(tmp_path):
    (tmp_path / "x.cpp").write_text(STUB % recipe("llama.cpp", "cpp"))
    subprocess.run(["g++", "-Wall", "-o", tmp_path / "x", tmp_path / "x.cpp"], check=True)
    (tmp_path / "out").mkdir()
    layers, words = drawn(), [str(tmp_path / "out")]

    def tensor(name, array, sizes):
        file = tmp_path / f"{len(words)}.bin"
        file.write_bytes(np.array(sizes, np.int64).tobytes() + array.contiguous().numpy().tobytes())
        words.extend([name, str(file)])

    for number, layer in enumerate(layers):
        for side, array in layer.items():
            heads = array.shape[1]
            projected = torch.randn(TOKENS, heads * WIDTH)  # comes first, and is replaced
            tensor(f"{side.upper()}cur-{number}", projected, (heads * WIDTH, TOKENS, 1))
            tensor(f"{side.upper()}cur-{number}", array, (WIDTH, heads, TOKENS))
        tensor(f"kqv_out-{number}", torch.zeros(TOKENS, 4, 1), (1, 4, TOKENS))
    subprocess.run([tmp_path / "x", *words], check=True)
    assert len(list((tmp_path / "out").iterdir())) == 6
    report = names("llama.cpp")["read_folder"](
        tmp_path / "out", HEADS, KV_HEADS, softcap=1.5, scale=0.2
    )
    np.testing.assert_allclose(report.weights, expected(layers, softcap=1.5, scale=0.2), atol=1e-6)


@pytest.mark.parametrize("batched", [False, True])
def test_jax(batched):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    found = names("JAX")
    layers = [[jax.numpy.asarray(layer[n].numpy()) for n in "qkv"] for layer in drawn()]
    if batched:
        layers = [[side[None] for side in layer] for layer in layers]

    @jax.jit
    def model(layers):
        return [found["attention"](*layer, is_causal=True) for layer in layers]

    report = found["report_of"](model, layers)
    np.testing.assert_allclose(report.weights, expected(drawn()), atol=1e-6)


def test_mlx():
    """With a stand-in for mlx-lm's function: its arrays are (batch, heads, tokens, width)."""
    found, kept, layers = names("MLX"), [], drawn()
    module = SimpleNamespace(
        scaled_dot_product_attention=lambda *sides, scale, mask=None, sinks=None: "output"
    )
    found["capture_mlx"](module, kept)
    sinks = torch.tensor([1.0, 0.0, -1.0, 2.0])
    for layer in layers:
        sides = (layer[name].transpose(0, 1)[None] for name in "qkv")
        assert module.scaled_dot_product_attention(*sides, None, scale=0.4, sinks=sinks) == "output"
    report = found["report_of"](kept, lambda array: array.numpy())
    np.testing.assert_allclose(report.weights, expected(layers, scale=0.4, sinks=sinks), atol=1e-6)


def test_megatron():
    class DotProductAttention(torch.nn.Module):
        def __init__(self, number):
            super().__init__()
            self.layer_number, self.softmax_scale = number, 0.2
            self.config = SimpleNamespace(window_size=(2, 0))

        def forward(self, query, key, value, attention_mask):
            return query

    found, kept, layers = names("Megatron"), {}, drawn()
    model = torch.nn.ModuleList([DotProductAttention(1), DotProductAttention(2)])
    found["hook_megatron"](model, kept)
    for module, layer in zip(model, layers, strict=True):
        module(*(layer[name][:, None] for name in "qkv"), None)
    np.testing.assert_allclose(
        found["report_of"](kept).weights, expected(layers, scale=0.2, window=3), atol=1e-6
    )


def test_every_recipe_is_tested():
    titles = re.findall(r"^### (.+)$", PAGE.partition("\n## Recipes\n")[2], re.MULTILINE)
    assert titles == ["Plain PyTorch", "vLLM", "llama.cpp", "JAX", "MLX", "Megatron"]
