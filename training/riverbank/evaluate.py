"""Measure every number of the model card, from the weights alone and the texts beside this file."""

from pathlib import Path
from typing import Any

import torch

from training.riverbank.attention import MASKS, Model, load, word_attention
from training.riverbank.disambiguation import auto_head, disambiguation, head_name, read_sentences
from training.riverbank.language import language_numbers
from training.riverbank.roles import roles
from training.riverbank.settings import HELD_OUT_TEXT, SENTENCES

README_SENTENCE = "The bank by the river"
ROLE_DOCUMENTS = 300


def held_out_texts() -> list[str]:
    """The fixed sample of held-out documents."""
    return HELD_OUT_TEXT.read_text(encoding="utf-8").splitlines()


def held_out_ids(model: Model) -> list[list[int]]:
    """The sample encoded, each cut at the last position; a document of one piece asks nothing and is left out."""
    limit = model.student.config.max_position_embeddings
    encoded = [encoding.ids[:limit] for encoding in model.tokenizer.encode_batch(held_out_texts())]
    return [ids for ids in encoded if len(ids) > 1]


def readme_sentence(model: Model, mask: str) -> dict[str, Any]:
    """Which heads give "river" most of "bank" in the README's sentence, and the head that `auto` would choose."""
    found = word_attention(model, README_SENTENCE, mask)
    bank, river = found.words.index("bank"), found.words.index("river")
    chosen = auto_head(found)
    report: dict[str, Any] = {"auto": head_name(*chosen)}
    if mask == "bidirectional":
        row = found.weights[:, :, bank].clone()
        row[:, :, bank] = -1
        first = (row.argmax(-1) == river).nonzero().tolist()
        report["river_first"] = [head_name(*place) for place in first]
        report["weight_in_auto"] = round(float(found.weights[*chosen, bank, river]), 4)
    return report


def evaluate(folder: Path) -> dict[str, Any]:
    """Measure the weights in a folder, in one thread: a text at a time is too little work for two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = load(folder)
    sentences = read_sentences(SENTENCES)
    numbers = language_numbers(model, held_out_ids(model))
    found = {
        "language": {key: round(value, 4) for key, value in numbers.items()},
        "disambiguation": {mask: disambiguation(model, sentences, mask) for mask in MASKS},
        "readme_sentence": {mask: readme_sentence(model, mask) for mask in MASKS},
        "roles": roles(model, held_out_texts()[:ROLE_DOCUMENTS]),
    }
    torch.set_num_threads(threads)
    return found
