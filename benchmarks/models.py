"""Make GPT-2-shaped checkpoints with random weights, and texts of any number of tokens."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

WORDS = 50257


def write_gpt2(
    folder: Path, *, layers: int = 12, width: int = 768, heads: int = 12, positions: int = 8192
) -> Path:
    """Write a checkpoint as `transformers` saves it: config.json, tokenizer.json, model.safetensors.

    Weights are random; those of queries and keys are large enough that rows of attention are neither flat nor one-hot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    tensors: dict[str, tuple[int, ...]] = {
        "wte.weight": (WORDS, width),
        "wpe.weight": (positions, width),
    }
    for layer in range(layers):
        for name, shape in (
            ("attn.c_attn", (width, 3 * width)),
            ("attn.c_proj", (width, width)),
            ("mlp.c_fc", (width, 4 * width)),
            ("mlp.c_proj", (4 * width, width)),
        ):
            tensors |= {f"h.{layer}.{name}.weight": shape, f"h.{layer}.{name}.bias": shape[1:]}
        for name in ("ln_1", "ln_2"):
            tensors |= {f"h.{layer}.{name}.weight": (width,), f"h.{layer}.{name}.bias": (width,)}
    tensors |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
    save_file(
        {name: _random(name, shape) for name, shape in tensors.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    config = {
        "architectures": ["GPT2Model"],
        "model_type": "gpt2",
        "vocab_size": WORDS,
        "n_positions": positions,
    }
    config |= {"n_embd": width, "n_layer": layers, "n_head": heads}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    return folder


def _random(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    if name.split(".")[-2].startswith("ln_"):
        return torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)
    return torch.randn(shape) * (0.05 if "c_attn" in name else 0.02)


def write_text(path: Path, tokens: int) -> Path:
    """Write a text of so many tokens on one line."""
    path.write_text(words(tokens, 1) + "\n")
    return path


def words(count: int, seed: int) -> str:
    """Return a text of so many random words, each of which is a token."""
    ids = torch.randint(WORDS, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return " ".join(f"w{i}" for i in ids)
