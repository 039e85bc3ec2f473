"""Write top contributors and row statistics of every head as JSON lines, as a transformers user would."""

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

TOP = 5


class Plain:
    """A transformers model that gives its attentions.

    Args:
        folder: The checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        logging.disable_progress_bar()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
        words = self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer)))
        self.punctuation = torch.tensor([_is_punctuation(word) for word in words])

    def one_by_one(self, texts: Sequence[str], path: Path) -> None:
        """Each text alone."""
        with open(path, "w") as file:
            for text in texts:
                file.write(json.dumps(self._records([text])[0]) + "\n")

    def padded(self, texts: Sequence[str], path: Path) -> None:
        """Thirty-two texts at a time, padded to the longest of them."""
        with open(path, "w") as file:
            for start in range(0, len(texts), 32):
                file.writelines(
                    json.dumps(record) + "\n" for record in self._records(texts[start : start + 32])
                )

    @torch.inference_mode()
    def _records(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        encoded = self.tokenizer(
            list(texts),
            return_tensors="pt",
            padding=len(texts) > 1,
            return_special_tokens_mask=True,
        )
        special = encoded.pop("special_tokens_mask").bool()
        real = encoded["attention_mask"].bool()
        # (B, L, H, T, T)
        weights = torch.stack(self.model(**encoded, output_attentions=True).attentions, 1)
        top = weights.topk(min(TOP, weights.shape[-1]))
        marks = self.punctuation[encoded["input_ids"]] & real & ~special
        stats = statistics(weights, special & real, real, marks)
        records = []
        for i, text in enumerate(texts):
            n = int(real[i].sum())
            rank = min(TOP, n)
            records.append(
                {
                    "text": text,
                    "tokens": self.tokenizer.convert_ids_to_tokens(encoded["input_ids"][i, :n]),
                    "keys": top.indices[i, :, :, :n, :rank].tolist(),
                    "weight": top.values[i, :, :, :n, :rank].tolist(),
                    **{name: values[i, :, :, :n].tolist() for name, values in stats.items()},
                }
            )
        return records


def _is_punctuation(word: str) -> bool:
    return all(unicodedata.category(mark).startswith("P") for mark in word.removeprefix("##"))


def statistics(
    weights: torch.Tensor, special: torch.Tensor, real: torch.Tensor, punctuation: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Statistics of every row, (B, L, H, T)."""
    at = torch.arange(weights.shape[-1])
    apart = (at[None] - at[:, None]).abs()
    content = real & ~special
    content[:, 0] = False
    own = weights.diagonal(dim1=-2, dim2=-1)
    return {
        "entropy": torch.special.entr(weights).sum(-1) / torch.log(torch.tensor(2.0)),
        "first": weights[..., 0],
        "special": (weights * special[:, None, None, None]).sum(-1),
        "self": own,
        "other": (weights * content[:, None, None, None]).sum(-1) - own * content[:, None, None],
        "distance": (weights * apart).sum(-1),
        "punctuation": (weights * punctuation[:, None, None, None]).sum(-1),
        **{f"within_{n}": (weights * (apart <= n)).sum(-1) for n in (16, 64, 256, 1024)},
    }
