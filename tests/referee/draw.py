"""Draw random calls of `attnscope run`. Nothing here knows what a call must give."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
from safetensors.numpy import save_file

from tests.referee import spanning
from tests.referee.call import Call
from tests.referee.models import MINILM, ROWS, Model, Models

_STAGES = ("scores", "scaled", "masked", "weights", "output")
_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 31)


def call(
    models: Models,
    seed: int,
    number: int,
    names: "tuple[str, ...] | None" = None,
    *,
    divided: bool = True,
) -> Call:
    """One random call.

    Args:
        models: The models.
        seed: Which sequence of calls.
        number: Which call of the sequence.
        names: The models to choose from; None for all, the real one a little less often.
        divided: Some texts are divided into spans.
    """
    random = Random(f"{seed}:{number}")
    name = (
        random.choice(names)
        if names
        else MINILM
        if random.random() < 0.06
        else random.choice(tuple(ROWS))
    )
    model = models[name]
    texts, pair = _texts(random, model)
    counts = [count_tokens(model, text, pair) for text in texts]
    spans, apart = None, Random(f"spans {seed}:{number}")
    # a sequence of its own, so that the other options stay as they were drawn
    if divided and apart.random() < 0.3:
        spans, texts = spanning.draw(apart, texts, counts, models.place / f"spans-{seed}-{number}")
    layers, heads = (6, 12) if name == MINILM else (3, 4)
    mask = _mask(random, models.place, counts, seed, number)
    chance = random.random
    made = Call(
        model=name,
        folder=model.path,
        texts=texts,
        pair=pair,
        file=_file(models.place / f"texts-{seed}-{number}.txt", texts) if len(texts) > 1 else None,
        layer=_pick(random, layers),
        head=_pick(random, heads),
        query=places(random, texts, counts) if chance() < 0.55 else None,
        key=places(random, texts, counts) if chance() < 0.4 else None,
        stage=",".join(random.sample(_STAGES, random.randint(0, 5))) or "none"
        if chance() < 0.6
        else None,
        mask=mask,
        what_if=random.choice((None, "stack", "same-scores")) if mask else None,
        spans=spans,
        hide=hidden(seed, number, texts, counts) if number % 6 == 5 else None,
        top=random.choice((0, 1, 2, 3, 4, 8, 9, 30)) if chance() < 0.6 else None,
        by=random.choice(("weight", "value", "projected")) if chance() < 0.6 else None,
        no_special=chance() < 0.3,
        pool=random.choice((1, 2, 3, 5, 8, 64)) if chance() < 0.3 else None,
        engine="transformers" if chance() < 0.2 else None,
    )
    # most people type few options; what is left out takes ways of its own through the recorders
    if chance() < 0.3:
        few = {
            "mask": None,
            "what_if": None,
            "hide": None,
            "by": None,
            "no_special": False,
            "pool": None,
            "engine": None,
            "spans": spans if apart.random() < 0.5 else None,
            "top": None,
        }
        query = made.query or places(random, texts, counts)
        made = replace(
            made,
            **few,
            query=query,
            layer=random.choice(("all", "0,1", "1")),
            head=_pick(random, heads),
        )
    # a measure that ranks nothing is refused
    return replace(made, by=None) if made.top == 0 else made


def _texts(random: Random, model: Model) -> tuple[tuple[str, ...], str | None]:
    """One text, a pair, or several texts of different length; one in eight has more than 64 tokens."""
    kind = random.random()
    if kind < 0.12:
        return (_text(random, model, random.randint(65, 90)),), None
    if kind < 0.3:
        return (_text(random, model),), _text(random, model)
    if kind < 0.6:
        return tuple(_text(random, model) for _ in range(random.randint(2, 5))), None
    return (_text(random, model),), None


def _text(random: Random, model: Model, length: int | None = None) -> str:
    """Words, few different ones in some texts, so that the same word stands at several places."""
    length = length or random.choice(_LENGTHS)
    words = random.sample(model.words, random.choice((1, 2, 4, len(model.words))))
    if random.random() < 0.15:
        words += model.odd
    return " ".join(random.choice(words) for _ in range(length))


def count_tokens(model: Model, text: str, pair: str | None) -> int:
    behind = 0 if pair is None else len(pair.split()) + model.after_pair
    return model.before + len(text.split()) + model.after + behind


def _file(path: Path, texts: tuple[str, ...]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(text + "\n" for text in texts))
    return path


def _pick(random: Random, count: int) -> str | None:
    """Layers or heads."""
    kind = random.random()
    if kind < 0.3:
        return random.choice((None, "auto", "all", "mean", "mean", "all"))
    parts = []
    for _ in range(random.choice((1, 1, 2, 3))):
        low = random.randrange(count)
        parts.append(
            random.choice(
                (str(low), str(low), str(low - count), f"{low}-{random.randrange(low, count)}")
            )
        )
    return ",".join(parts)


def places(random: Random, texts: tuple[str, ...], counts: list[int]) -> str:
    """Rows or columns that every text has."""
    shortest = min(counts)
    shared = sorted(set.intersection(*(set(text.split()) for text in texts)))
    parts = []
    for _ in range(random.choice((1, 1, 2, 3))):
        kind, at = random.random(), random.randrange(shortest)
        if kind < 0.2 and shared:
            parts.append(random.choice(shared))
        elif kind < 0.4:
            parts.append(str(at - shortest))
        elif kind < 0.7:
            end = random.choice((str(random.randint(at + 1, shortest)), ""))
            parts.append(f"{random.choice((str(at), '')) if end else at}:{end}")
        else:
            parts.append(str(at))
    return ",".join(parts)


def hidden(seed: int, number: int, texts: tuple[str, ...], counts: list[int]) -> str:
    """Tokens that no query may see; a sequence of its own, so that the other options stay as they were drawn."""
    return places(Random(f"hide {seed}:{number}"), texts, counts)


def _mask(random: Random, place: Path, counts: list[int], seed: int, number: int) -> str | None:
    """A mask expression, None for the model's own; a file where all texts have one size."""
    if random.random() < 0.5:
        return None
    terms: list[str] = []
    for _ in range(random.choice((1, 1, 2, 3))):
        kind = random.choice(
            ("own", "causal", "bidirectional", "window", "prefix", "block", "sink", "docs", "file")
        )
        if kind == "file":
            if len(set(counts)) == 1:
                terms.append(
                    str(_mask_file(random, place / f"mask-{seed}-{number}-{len(terms)}", counts[0]))
                )
        elif kind == "docs":
            if len(set(counts)) == 1:
                terms.append(f"docs:{','.join(map(str, documents(random, counts[0])))}")
        elif kind in ("window", "prefix", "block", "sink"):
            terms.append(f"{kind}:{random.choice((1, 2, 3, 5, 9))}")
        else:
            terms.append(kind)
    return joined(random, terms) or None


def documents(random: Random, count: int) -> list[int]:
    """Lengths of documents that a text of so many tokens consists of."""
    ends = sorted({*random.sample(range(1, count + 1), random.randint(0, min(3, count))), count})
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def joined(random: Random, terms: list[str]) -> str:
    """An expression of terms with random marks and parentheses."""
    if len(terms) < 2:
        return "".join(terms)
    middle = random.randint(1, len(terms) - 1)
    sides = [joined(random, side) for side in (terms[:middle], terms[middle:])]
    sides = [f"({side})" if random.random() < 0.4 else side for side in sides]
    return random.choice("++|").join(sides)


def _mask_file(random: Random, stem: Path, count: int) -> Path:
    """Random cells, and some rows that may see nothing."""
    generator = np.random.default_rng(random.randrange(1 << 30))
    matrix = generator.random((count, count)) < random.choice((0.3, 0.7, 0.95))
    matrix &= generator.random((count, 1)) < random.choice((0.7, 1.0))
    path = stem.with_suffix(random.choice((".json", ".npy", ".safetensors")))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        path.write_text(json.dumps(matrix.tolist()))
    elif path.suffix == ".npy":
        np.save(path, matrix)
    else:
        save_file({"mask": matrix}, path)
    return path
