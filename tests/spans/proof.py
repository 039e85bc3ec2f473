"""Weights between random spans of random texts, against sums of whole matrices: `python -m tests.spans.proof`.

Every case draws a model, one text or several of different length, a mask, hidden tokens, an engine and spans. The
weights between spans are recomputed in float64 from the matrices of all heads, which another recorder keeps.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import transformers as hf

import attnscope
from tests.helpers.row_statistics import group_means
from tests.referee.models import ROWS, Model, Models

LIMIT = 1e-6


def draw(models: Models, seed: int, number: int) -> tuple[Model, list[str], dict[str, Any]]:
    """One random call: the model, the texts, and the options of `inspect`."""
    random = Random(f"spans {seed}:{number}")
    model = models[random.choice(tuple(ROWS))]
    texts = [_text(random, model) for _ in range(random.choice((1, 1, 1, 2, 3)))]
    options: dict[str, Any] = {}
    if random.random() < 0.5:
        terms = (
            "causal",
            "bidirectional",
            "window:3",
            "window:6",
            "prefix:4",
            "block:5",
            "causal+window:4",
        )
        options["mask"] = random.choice(terms)
        options["what_if"] = random.choice(("stack", "same-scores"))
    if random.random() < 0.3:
        options["hide"] = random.choice((0, 1, -1, [0, 2], slice(0, 2)))
    if random.random() < 0.35:
        options["engine"] = "transformers"
    return model, texts, {**options, "spans": [_spans(random, text) for text in texts]}


def _text(random: Random, model: Model) -> str:
    words = [random.choice(model.words) for _ in range(random.choice((3, 5, 9, 20, 40, 90)))]
    return " ".join(
        word + "." if word.isalpha() and random.random() < 0.15 else word for word in words
    )


def _spans(random: Random, text: str) -> dict[str, Any]:
    """Ranges of characters that overlap nowhere, some of them with the same name, some parts in none."""
    starts = [0] + [at + 1 for at, character in enumerate(text) if character == " "]
    count = random.randint(1, min(len(starts), 12))
    bounds = [*sorted(random.sample(starts, count)), len(text)]
    spans: dict[str, Any] = {}
    for start, end in pairwise(bounds):
        if random.random() < 0.8 or not spans:
            spans.setdefault(f"part {random.randint(0, count)}", []).append((start, end))
    return spans


def check(model: Model, texts: Sequence[str], options: dict[str, Any]) -> float:
    """Compare all weights between spans with sums; return the largest difference."""
    given = {
        **options,
        "model": model.path,
        "layer": "all",
        "head": "all",
        "stages": "weights",
        "top": 0,
    }
    report = attnscope.inspect(list(texts), **given, max_memory="4G")
    worst = 0.0
    for text, ranges in zip(report.texts, options["spans"], strict=True):
        # (L, H, T, T)
        weights, of_token = text.weights.astype(np.float64), np.array(text.span_of_token)
        members = np.eye(len(text.spans))[of_token]  # (T, S)
        assert members.sum(1).tolist() == [1.0] * len(text.tokens), (
            "a token is in no span, or in several"
        )
        _check_members(text, ranges)
        dead = np.isnan(weights).all(-1)  # (L, H, T)
        expected = group_means(weights, of_token, of_token)
        worst = max(worst, _differ(text.span_weights, expected, "weights"))
        found = text.data.spans
        assert found is not None
        rows = np.flatnonzero(of_token == found.query)
        assert rows.tolist() == found.rows
        counted = (~dead).sum((0, 1))  # (T,)
        with np.errstate(invalid="ignore"):
            shares = np.einsum("lhqk,ks->qs", np.nan_to_num(weights), members) / counted[:, None]
            received = np.nan_to_num(weights)[:, :, rows].sum((0, 1, 2)) / counted[rows].sum()
        worst = max(worst, _differ(found.shares, shares[rows], "shares"))
        worst = max(worst, _differ(found.received, received, "received"))
        left = 1 - expected.sum(-1)
        if found.sink is not None:
            worst = max(worst, _differ(found.sink, left, "sink"))
        else:
            assert np.nanmax(np.abs(left), initial=0.0) < 2e-6, "rows do not sum to 1"
    return worst


def _check_members(text: Any, ranges: dict[str, Any]) -> None:
    """Every token is in the span that its characters are in, unless it is the first or special."""
    for position, (token, span) in enumerate(zip(text.tokens, text.span_of_token, strict=True)):
        name = text.spans[span]
        start = -1 if token.start is None else token.start
        inside = [
            name for name, pairs in ranges.items() for first, end in pairs if first <= start < end
        ]
        own = "(first)" if position == 0 else "(special)" if token.special else None
        if own is None or name not in (own, *inside):
            assert name == (inside[0] if inside and own is None else own or "(rest)"), (
                position,
                token,
                name,
                inside,
            )


def _differ(found: Any, expected: Any, what: str) -> float:
    assert found.dtype == np.float32, what
    assert found.shape == expected.shape, f"{what}: {found.shape}, expected {expected.shape}"
    assert np.array_equal(np.isnan(found), np.isnan(expected)), f"{what}: null elsewhere"
    off = float(np.nanmax(np.abs(found - expected), initial=0.0))
    assert off <= LIMIT, f"{what}: off by {off}"
    return off


def main() -> int:
    """Play some cases; 1 where any of them went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="only this one")
    given = parser.parse_args()
    hf.utils.logging.disable_progress_bar()
    hf.utils.logging.set_verbosity_error()
    wrong, worst = 0, 0.0
    with tempfile.TemporaryDirectory() as place:
        models = Models(Path(place))
        for number in range(given.cases) if given.case is None else [given.case]:
            model, texts, options = draw(models, given.seed, number)
            try:
                worst = max(worst, check(model, texts, options))
            except (AssertionError, attnscope.AttnscopeError) as e:
                wrong += 1
                print(f"case {number}: {e}\n  {model.name} {texts} {options}", flush=True)
    print(f"{given.cases} cases, {wrong} wrong, largest difference {worst:.1e}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
