"""Write the text of the model card from the measured numbers and the folder that they were measured on."""

import json
from collections.abc import Iterable
from pathlib import Path
from string import Template
from typing import Any

from training.riverbank.attention import MASKS
from training.riverbank.disambiguation import HALVES, head_name
from training.riverbank.evaluate import ROLE_DOCUMENTS
from training.riverbank.roles import PLACES
from training.riverbank.settings import HERE, Settings

Numbers = dict[str, Any]


def render(numbers: Numbers, folder: Path) -> str:
    """Fill the template `card.md`."""
    settings = Settings()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    training, readme = numbers["training"], numbers["readme_sentence"]
    size = (folder / "model.safetensors").stat().st_size
    return Template((HERE / "card.md").read_text(encoding="utf-8")).substitute(
        parameters=f"{size / 2e6:.1f} million",
        n_layers=config["num_hidden_layers"],
        n_heads=config["num_attention_heads"],
        d_model=config["hidden_size"],
        d_mlp=config["intermediate_size"],
        max_positions=config["max_position_embeddings"],
        vocab_size=f"{config['vocab_size']:,}",
        megabytes=f"{(size + (folder / 'tokenizer.json').stat().st_size) / 1e6:.1f}",
        documents=f"{training['documents']:,}",
        pieces=f"{training['pieces']:,}",
        relation_heads=listed(head_name(*head) for head in settings.relation_heads),
        steps=f"{training['steps']:,}",
        student_minutes=training["student_minutes"],
        curve=curve_table(training["curve"]),
        language=language_rows(numbers),
        disambiguation=disambiguation_table(numbers["disambiguation"]),
        river_first=listed(readme["bidirectional"]["river_first"]) or "no head",
        auto_both=readme["bidirectional"]["auto"],
        auto_past=readme["causal"]["auto"],
        weight_in_auto=f"{readme['bidirectional']['weight_in_auto']:.2f}",
        role_documents=ROLE_DOCUMENTS,
        roles="\n\n".join(f"{mask}:\n\n{roles_table(numbers['roles'][mask])}" for mask in MASKS),
    )


def listed(names: Iterable[str]) -> str:
    """`a, b and c`."""
    found = list(names)
    return f"{', '.join(found[:-1])} and {found[-1]}" if len(found) > 1 else "".join(found)


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def curve_table(curve: list[dict[str, float]]) -> str:
    """About ten points of the training curve, the first and the last among them."""
    stride = max(1, len(curve) // 10)
    points = [*curve[: len(curve) - 1 : stride], curve[-1]]
    parts = ["masked", "causal", "relation_both", "relation_past"]
    head = ["step", "masked piece", "next piece", "relations, bidirectional", "relations, causal"]
    return table(
        head,
        [[f"{point['step']:.0f}", *(f"{point[part]:.2f}" for part in parts)] for point in points],
    )


def language_rows(numbers: Numbers) -> str:
    """The model and the two baselines."""
    found, base = numbers["language"], numbers["training"]["baselines"]
    rows = [("this model", found["masked_accuracy"], found["causal_perplexity"])]
    rows += [
        (name, base[f"{name}_masked_accuracy"], base[f"{name}_perplexity"])
        for name in ("bigram", "unigram")
    ]
    return "\n".join(
        f"| {name} | {100 * accuracy:.1f} % | {perplexity:.1f} |"
        for name, accuracy, perplexity in rows
    )


def disambiguation_table(found: Numbers) -> str:
    """One row for each mask and half."""
    rows = []
    for mask in MASKS:
        for half in HALVES:
            scores = found[mask][half]
            shares = [
                f"{100 * scores[key]:.1f} %" for key in ("cue_first", "auto", "random", "nearest")
            ]
            rows.append([mask, half, str(scores["sentences"]), found[mask]["head"], *shares])
    return table(
        ["mask", "half", "sentences", "best head", "cue first", "auto", "random", "nearest"], rows
    )


def roles_table(heads: Numbers) -> str:
    """One row for each head."""
    rows = [
        [name, f"**{one['role']}**", *(f"{one[place]:.2f}" for place in PLACES)]
        for name, one in heads.items()
    ]
    return table(["head", "named", *PLACES], rows)
