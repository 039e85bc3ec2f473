"""Recompute `ablate --each span` with hooks on transformers: `python -m tests.chat.span_cuts --cases 200 --seed 1`.

Texts, spans, answers, layers, heads and who is cut off are drawn at random; every number of the findings is computed
again from a model of transformers whose masks, or whose weights, are changed by hooks.
"""

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnscope.request.run_config import TextInput
from attnscope.request.selection import PositionSelection
from attnscope.request.spans import SpanRange, SpanRequest
from attnscope.studies.ablate.run import survey_effects
from tests.helpers.architectures import WORDS, write_tokenizer
from tests.helpers.effect_arithmetic import divergence, log_softmax
from tests.helpers.effect_arithmetic import rank_correlation as counted_correlation
from tests.helpers.requests import cutting, requested
from tests.helpers.tiny_models import TABLE
from tests.parity.test_cuts import PLACES, ZEROED, masked_edges

LAYERS, HEADS = 3, 4


def save(path: Path) -> Any:
    """Write a tiny GPT-2 with a tokenizer; return the same model of transformers."""
    (row,) = (row for row in TABLE if row.name == "gpt2")
    model = row.save(path)
    write_tokenizer(path)
    return model


def ran(model: Any, ids: list[int]) -> tuple[Any, Any, Any]:
    """Log-probabilities after every token, final states after the last norm, and weights (L, H, T, T), in float64."""
    entered = []
    handle = model.transformer.ln_f.register_forward_hook(
        lambda _, __, made: entered.append(made[0])
    )
    with torch.inference_mode():
        made = model(input_ids=torch.tensor([ids]), output_attentions=True)
    handle.remove()
    weights = torch.stack([one[0] for one in made.attentions]).double().numpy()
    return log_softmax(made.logits[0].double().numpy()), entered[0].double().numpy(), weights


def cut(
    model: Any, ids: list[int], edges: list[Any], *, renormalised: bool
) -> tuple[Any, Any, Any]:
    """Run with edges cut: (layer, heads, queries, keys) each."""
    if renormalised:
        with masked_edges(model, "gpt2", edges, len(ids)):
            return ran(model, ids)
    before = model.config._attn_implementation
    for layer, *one in edges:
        ZEROED[id(model.get_submodule(PLACES["gpt2"][0].format(layer)))] = tuple(one)
    try:
        model.set_attn_implementation("zeroing")
        return ran(model, ids)
    finally:
        model.set_attn_implementation(before)
        ZEROED.clear()


def draw(rng: random.Random) -> tuple[TextInput, dict[str, Any], dict[str, Any]]:
    """Return a text with spans, and what is asked for: fields of a RunConfig, and of AblationOptions."""
    words = rng.choices(WORDS[4:], k=rng.randint(6, 14))
    edges = sorted(rng.sample(range(1, len(words)), rng.randint(1, 4)))
    bounds = list(zip([0, *edges], [*edges, len(words)], strict=True))
    kept = [pair for pair in bounds if rng.random() < 0.85] or bounds[:1]
    spans = tuple(SpanRange(f"s{n}", *pair, unit="tokens") for n, pair in enumerate(kept))
    asked: dict[str, Any] = {"each": "span"}
    run: dict[str, Any] = {"spans": SpanRequest("ranges")}
    kind = rng.choice(("given", "generated", "query", "last"))
    if kind == "given":
        asked["answer"] = " " + " ".join(rng.choices(WORDS[4:], k=rng.randint(1, 4)))
    elif kind == "generated":
        asked["generate"] = rng.randint(1, 4)
    elif kind == "query":
        run["query"] = PositionSelection.of(sorted(rng.sample(range(1, len(words)), 2)))
    else:
        asked["generate"] = 0
    if rng.random() < 0.3:
        run["layer"] = rng.choice(("0", "1-2", "-1"))
    if rng.random() < 0.3:
        run["head"] = rng.choice(("0,2", "3", "1-3"))
    return TextInput(" ".join(words), spans=spans), run, asked


def check(path: Path, model: Any, engine: str, seed: int) -> None:
    """Compare one case with hooks on transformers."""
    rng = random.Random(seed)
    text, typed, asked = draw(rng)
    run = requested(
        (text,), model=str(path), engine=engine, **{"layer": "all", "head": "all", **typed}
    )
    found = survey_effects(run, cutting(**asked))
    ids = [token.id for token in found.tokens]
    layers, heads = run.layer.numbers(LAYERS, "layer"), run.head.numbers(HEADS, "head")
    assert found.spans is not None
    of_token, rows = found.spans.of_token, found.rows
    assert [position - 1 for position in found.answer] in ([], found.positions)
    if typed.get("query") is None:
        assert rows == found.positions
    if "answer" in asked:
        assert [found.tokens[n].text for n in found.answer] == asked["answer"].split()
    before, hidden, weights = ran(model, ids)
    answered = [ids[n] for n in found.answer]
    total = sum(before[n - 1, ids[n]] for n in found.answer) / np.log(2)
    if answered:
        np.testing.assert_allclose(found.log_probability, total, rtol=1e-4)
    read = [
        sum(weights[np.ix_(layers, heads, rows, [key])].mean() for key in _keys(of_token, n))
        for n in found.span_numbers
    ]
    np.testing.assert_allclose(found.weights, read, atol=1e-6)
    own = {of_token[n] for n in found.answer}
    last = max(rows)
    assert found.span_numbers == [
        n for n in range(len(found.spans.names)) if n not in own and _keys(of_token, n)[0] <= last
    ]
    for effects, renormalised in zip(found.effects, (True, False), strict=True):
        kl, loss, moved = [], [], []
        for number in found.span_numbers:
            keys = [key for key in _keys(of_token, number) if key <= last]
            edges = [(layer, heads, rows, keys) for layer in layers]
            after, changed, _ = cut(model, ids, edges, renormalised=renormalised)
            kl.append(np.mean([divergence(before[n], after[n]) for n in found.positions]))
            loss.append(total - sum(after[n - 1, ids[n]] for n in found.answer) / np.log(2))
            sizes = np.linalg.norm(changed - hidden, axis=-1) / np.linalg.norm(hidden, axis=-1)
            moved.append(sizes[found.positions].mean())
        if _never_blind(found, renormalised):  # a row without any key is defined differently
            np.testing.assert_allclose(effects.kl, kl, rtol=2e-3, atol=2e-5)
            np.testing.assert_allclose(effects.hidden, moved, rtol=1e-3, atol=1e-5)
            if answered:
                np.testing.assert_allclose(effects.loss, loss, rtol=1e-3, atol=5e-4)
                assert found.order()[0] == int(np.argmax(found.effects[0].loss))
        ranked = effects.loss if answered else effects.kl
        correlation = counted_correlation(found.weights.tolist(), ranked.tolist())
        if not np.isnan(correlation):
            np.testing.assert_allclose(effects.correlation, correlation, atol=1e-6)


def _keys(of_token: list[int], number: int) -> list[int]:
    return [n for n, span in enumerate(of_token) if span == number]


def _never_blind(found: Any, renormalised: bool) -> bool:
    """Whether no cut takes all keys from a row: transformers then gives each of them the same weight."""
    return not renormalised or all(
        any(span != number for span in found.spans.of_token[: row + 1])
        for row in found.rows
        for number in found.span_numbers
    )


def main() -> None:
    """Compare as many cases as asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = save(Path(folder))
        for number in range(asked.cases):
            check(
                Path(folder),
                model,
                ("native", "transformers")[number % 2],
                asked.seed * 100_000 + number,
            )
    print(f"{asked.cases} cases agree")


if __name__ == "__main__":
    main()
