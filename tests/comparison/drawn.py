"""Draw pairs of models that differ in one tensor, or in nothing, and run `compare --tolerance` on each.

Whether a changed tensor changes attention at all is decided by transformers in float64: W_q in front of a norm of
queries, or the norm behind the last layer, may be multiplied without any effect on scores and weights.
"""

import json
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from attnscope.checkpoints.samples import samples_folder
from tests.helpers import gguf_files
from tests.referee import reference, runner
from tests.referee.models import NAMES, Model, Models
from tests.referee.verify import tokenizer_of

TOLERANCE = 1e-4
SEEN = 1.5 * TOLERANCE  # a change of a weight in float64 that float32 cannot hide
EQUAL_KINDS = ("engines", "shards", "gguf")
_KINDS = {
    "W_q": r"(q_proj|query|q_lin|c_attn|query_key_value|qkv_proj)\.weight$",
    "W_k": r"(k_proj|key|k_lin)\.weight$",
    "norm": r"(norm|ln_\w+|LayerNorm|layer_norm)\.weight$",
    "embedding": r"(embed_tokens|embed_in|wte|wpe|\w+_embeddings)\.weight$",
}
_RIVERBANK = "riverbank"
_GGUF_KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K")


@dataclass(frozen=True)
class Pair:
    """Two sides of a comparison."""

    argv: list[str]  # the arguments after `attnscope`
    # largest change of a weight in every layer, in float64; empty if the sides are equal
    difference: list[float]
    about: str  # what was drawn

    def fault(self) -> str:
        """Run the comparison; return what is wrong with its verdict, or nothing."""
        code, out, errors = runner.run(
            [*self.argv, "--tolerance", str(TOLERANCE), "--format", "json", "--quiet"]
        )
        if not out:
            return f"{self}: exit code {code}: {errors.strip()}"
        verdict = json.loads(out)["verdict"]
        told = f"{self}: exit code {code}, {verdict['heads']} of {verdict['of_heads']} heads: {errors.strip()}"
        wrong = (code, verdict["passed"]) != ((1, False) if self.difference else (0, True))
        if wrong or verdict["heads"] != verdict["of_heads"]:
            return told
        first = next((n for n, size in enumerate(self.difference) if size > SEEN), None)
        if first is not None and (verdict["first_layer"] is None or verdict["first_layer"] > first):
            return f"{told}: the first layer that differs is {first}, not {verdict['first_layer']}"
        return ""

    def __str__(self) -> str:
        return f"{self.about}\n  attnscope {shlex.join(self.argv)}"


def changed(models: Models, place: Path, seed: int, number: int) -> Pair:
    """Draw a model, a tensor of it and a factor, until transformers sees a change of attention weights.

    Args:
        models: The models.
        place: Folder for the changed copy.
        seed: Seed of all pairs.
        number: Number of this pair.
    """
    random = Random(f"changed {seed}:{number}")
    while True:
        model = _model(models, random)
        tensors = load_file(model.path / "model.safetensors")
        kinds = {
            kind: [name for name in tensors if re.search(form, name)]
            for kind, form in _KINDS.items()
        }
        kind = random.choice([kind for kind, names in kinds.items() if names])
        name, factor = random.choice(kinds[kind]), random.uniform(1.05, 2)
        copy = place / f"changed-{number}"
        shutil.copytree(model.path, copy, dirs_exist_ok=True)
        save_file(
            tensors | {name: (tensors[name] * factor).astype(tensors[name].dtype)},
            copy / "model.safetensors",
        )
        text = _text(random, model)
        difference = _difference(model, copy, text)
        if max(difference) > SEEN:
            argv = ["compare", text, "-m", str(model.path), "-m", str(copy)]
            return Pair(argv, difference, f"{model.name}: {kind} {name} × {factor:.3f}")
        shutil.rmtree(copy)


def equal(models: Models, place: Path, seed: int, number: int, kind: str) -> Pair:
    """Draw two ways to the same numbers: other arguments as for `changed`."""
    random = Random(f"equal {seed}:{number}:{kind}")
    if kind == "gguf":
        architecture, stored = random.choice(list(gguf_files.MODELS)), random.choice(_GGUF_KINDS)
        path = place / f"{architecture}-{stored}"
        if not path.exists():
            gguf_files.write(path.with_suffix(".gguf"), architecture, stored).save_pretrained(path)
        words = models["llama"]
        sides = ["-m", str(path.with_suffix(".gguf")), "-m", str(path)]
        argv = [
            "compare",
            _text(random, words),
            *sides,
            "--tokenizer",
            str(words.path / "tokenizer.json"),
        ]
        return Pair(argv, [], f"{architecture} {stored}, folder and GGUF")
    model = _model(models, random)
    text = _text(random, model)
    if kind == "engines":
        argv = [
            "compare",
            text,
            "-m",
            str(model.path),
            "--engine",
            "native",
            "--engine",
            "transformers",
        ]
        return Pair(argv, [], f"{model.name}, both engines")
    copy = place / f"shards-{number}"
    shutil.copytree(model.path, copy, ignore=shutil.ignore_patterns("model.safetensors"))
    _write_shards(load_file(model.path / "model.safetensors"), copy, random)
    return Pair(
        ["compare", text, "-m", str(model.path), "-m", str(copy)],
        [],
        f"{model.name}, one file and shards",
    )


def _model(models: Models, random: Random) -> Model:
    name = random.choice((*NAMES, _RIVERBANK))
    if name != _RIVERBANK:
        return models[name]
    words = "the bank of river was old and we sat by water".split()
    return Model(name, samples_folder("sample_weights") / name, words, 1, 1, 1, False)


def _text(random: Random, model: Model) -> str:
    return " ".join(random.choice(model.words) for _ in range(random.randint(2, 12)))


def _difference(model: Model, copy: Path, text: str) -> list[float]:
    """Largest change of a weight in every layer."""
    encoding = tokenizer_of(model.path).encode(text)
    types = encoding.type_ids if model.segments else None
    sides = [_weights(path, encoding.ids, types) for path in (model.path, copy)]
    return [float(np.abs(a - b).max()) for a, b in zip(*sides, strict=True)]


def _weights(path: Path, ids: list[int], types: list[int] | None) -> list[Any]:
    layers = reference.run(path, ids, types)
    reference.load.cache_clear()
    masked = [np.where(layer.own, reference.raw_and_scaled(layer)[1], -np.inf) for layer in layers]
    return [
        reference.softmax(each, layer.sinks)[0] for each, layer in zip(masked, layers, strict=True)
    ]


def _write_shards(tensors: dict[str, Any], folder: Path, random: Random) -> None:
    """Write tensors into two to four files, and the index that says which is where."""
    count = random.randint(2, 4)
    names = [f"model-{n + 1:05}-of-{count:05}.safetensors" for n in range(count)]
    places = {name: random.choice(names) for name in tensors}
    for file in names:
        save_file(
            {name: tensors[name] for name, where in places.items() if where == file}, folder / file
        )
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
