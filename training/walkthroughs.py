"""Write the weights of the worked examples to sample_weights/, from seeds: `python -m training.walkthroughs`.

Each example draws its numbers in the order in which a reader types them, so that they come out to the digit.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

SAMPLES = Path(__file__).parent.parent / "sample_weights"
WORDS = ["Life", "dessert", "eat", "first", "is", "short"]
CONTEXT = [f"s{i}" for i in range(8)]


def life_is_short() -> dict[str, Tensor]:
    """One head over six words: 24-wide queries and keys, 28-wide values, every number positive uniform."""
    torch.manual_seed(123)
    words = torch.nn.Embedding(6, 16).weight.detach()
    torch.manual_seed(123)
    return _stack(words, torch.rand(24, 16), torch.rand(24, 16), torch.rand(28, 16))


def life_is_short_three_heads() -> dict[str, Tensor]:
    """The same with three heads: each projection is 3 matrices, one per head."""
    words = life_is_short()["embed.tokens.weight"]
    torch.manual_seed(123)
    return _stack(words, *(torch.rand(3, width, 16).flatten(0, 1) for width in (24, 24, 28)))


def life_is_short_cross() -> dict[str, Tensor]:
    """The one head again, with eight more embeddings to take keys and values from."""
    one = life_is_short()
    torch.manual_seed(123)
    one["embed.tokens.weight"] = torch.cat([one["embed.tokens.weight"], torch.rand(8, 16)])
    return one


def four_tokens() -> dict[str, Tensor]:
    """Four normal vectors of width 8, then three fresh linear layers without bias."""
    torch.manual_seed(0)
    x = torch.randn(1, 4, 8)
    query, key, value = (torch.nn.Linear(8, 8, bias=False).weight.detach() for _ in range(3))
    return _stack(x[0], query, key, value)


def _stack(words: Tensor, query: Tensor, key: Tensor, value: Tensor) -> dict[str, Tensor]:
    names = {"q": query, "k": key, "v": value}
    projections = {
        f"blocks.0.attention.{name}.weight": weight.contiguous() for name, weight in names.items()
    }
    return {"embed.tokens.weight": words.contiguous(), **projections}


def word_tokenizer(words: list[str]) -> str:
    """A tokenizer.json that knows these words and drops everything that is no letter or digit."""
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "[^\\w]+"},
            "behavior": "Removed",
            "invert": False,
        },
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: i for i, word in enumerate(words)},
            "unk_token": "<unk>",
        },
    }
    return json.dumps(content, indent=1) + "\n"


EXAMPLES = {
    "life-is-short": (life_is_short, WORDS),
    "life-is-short-three-heads": (life_is_short_three_heads, WORDS),
    "life-is-short-cross": (life_is_short_cross, WORDS + CONTEXT),
    "four-tokens": (four_tokens, ["t0", "t1", "t2", "t3"]),
}


def main() -> None:
    """Write them all."""
    for name, (make, words) in EXAMPLES.items():
        folder = SAMPLES / name
        folder.mkdir(parents=True, exist_ok=True)
        save_file(make(), folder / "weights.safetensors")
        (folder / "tokenizer.json").write_text(word_tokenizer(words))


if __name__ == "__main__":
    main()
