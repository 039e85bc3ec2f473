"""What `attnscope.callbacks.AttentionStatistics` costs, as a multiple of a forward pass of the same text.

Run with `python benchmarks/callback.py`: a GPT-2-small-shaped model in evaluation mode, texts of 128 and 512 tokens,
one thread, the median of pairs of measurements taken in turn.
"""

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from attnscope.callbacks import AttentionStatistics


def main() -> None:
    """Print a line for every length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    given = parser.parse_args()
    torch.manual_seed(0)
    model = hf.GPT2LMHeadModel(hf.GPT2Config()).eval()
    words = Tokenizer(WordLevel({f"w{n}": n for n in range(1000)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=words)
    for length in given.lengths:
        text = " ".join(f"w{n % 1000}" for n in range(length))
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        callback = AttentionStatistics(text, tokenizer=tokenizer)
        callback.measure(model)  # opens the model, once
        ratios = [
            _time(callback.measure, model) / _time(_forward, model, ids)
            for _ in range(given.rounds)
        ]
        print(
            f"{length} tokens: {median(ratios):.2f} × a forward pass ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def _forward(model: Any, ids: torch.Tensor) -> None:
    with torch.inference_mode():
        model(ids)


def _time(call: Callable[..., Any], *given: Any) -> float:
    start = perf_counter()
    call(*given)
    return perf_counter() - start


if __name__ == "__main__":
    main()
