"""Random calls of run on layers without softmax, against their recurrence in NumPy float64, token after token.

What the layer computes from is read of the arguments of transformers' own functions, in a run of transformers alone.
"""

import inspect
import json
import shlex
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import transformers as hf

from tests.helpers import hybrids
from tests.referee.models import Models
from tests.referee.runner import output
from tests.referee.verify import Mismatch

# model type → function of its modelling file
_FUNCTIONS = {
    "qwen3_next": "torch_chunk_gated_delta_rule",
    "kimi_linear": "chunk_kimi_delta_attention",
    "granitemoehybrid": "mamba2_chunk_scan",
    "mamba": "mamba_selective_scan",
}
_WORDS = ("the", "bank", "by", "river", "was", "old", "we", "sat")
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class MixingCall:
    """One call, as it is typed."""

    model_type: str
    argv: tuple[str, ...]
    layer: int
    head: int

    def command(self) -> str:
        """Return the command for a shell."""
        return "attnscope " + shlex.join(self.argv)


@cache
def _folder(model_type: str) -> Path:
    made = hybrids.with_long_states(hybrids.make_hybrid(model_type, max_position_embeddings=512))
    return hybrids.save_hybrid(Path(tempfile.mkdtemp()) / model_type, made)


def call(_models: Models, seed: int, number: int) -> MixingCall:
    """Draw a call."""
    random = Random(f"mixing {seed} {number}")
    model_type = random.choice([*_FUNCTIONS])
    text = " ".join(random.choices(_WORDS, k=random.randint(1, 60)))
    layer = random.choice((0, 1) if model_type == "mamba" else (0, 2))
    head = random.randrange(4)
    argv = ["run", text, "--model", str(_folder(model_type)), "--layer", str(layer), "--head", str(head), "--json"]
    argv += ["--top", str(random.randint(1, 5))]
    if random.random() < 0.5:
        argv += ["--by", "value"]
    if random.random() < 0.3:
        argv += ["--no-special"]
    return MixingCall(model_type, tuple(argv), layer, head)


def check(drawn: MixingCall, _models: Models) -> None:
    """Compare what a call prints with the recurrence."""
    text = json.loads(output(list(drawn.argv)))["texts"][0]
    mixing = text["mixing"]
    ids = [token["id"] for token in text["tokens"]]
    matrix, norms = _expected(drawn, ids)
    _same("matrix", np.array(mixing["matrix"][0]), matrix)
    _same("row_sum", np.array(mixing["row_sum"][0]), matrix.sum(1))
    sizes = np.abs(matrix)
    _same("size", np.array(mixing["size"][0]), sizes.sum(1))
    by_value = "value" in drawn.argv
    for row, keys in enumerate(mixing["keys"][0]):
        listed = [key for key in keys if key >= 0]
        measure = sizes[row] * norms if by_value else sizes[row]
        allowed = [key for key in range(row + 1) if "--no-special" not in drawn.argv or _is_word(text, key)]
        best = sorted((measure[key] for key in allowed), reverse=True)[: len(keys)]
        _same(f"strongest of row {row}", measure[listed], np.array(best))
        _same(f"M of row {row}", np.array(mixing["mixing"][0][row][: len(listed)], float), matrix[row, listed])


def _is_word(text: dict[str, Any], position: int) -> bool:
    return position > 0 and not text["tokens"][position].get("special", False)


def _same(name: str, found: Array, expected: Array) -> None:
    scale = float(np.abs(expected).max(initial=0.0)) or 1.0
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-3, atol=2e-5 * scale):
        raise Mismatch(f"{name} is not that of the recurrence")


def _expected(drawn: MixingCall, ids: list[int]) -> tuple[Array, Array]:
    """Return M of the recurrence in float64, (T, T), and the norms of values, (T,)."""
    model = hf.AutoModelForCausalLM.from_pretrained(_folder(drawn.model_type), attn_implementation="eager")
    file = inspect.getmodule(type(model))
    name = _FUNCTIONS[drawn.model_type]
    original = getattr(file, name)
    calls: list[dict[str, Any]] = []

    def spy(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(original).bind(*args, **kwargs).arguments
        calls.append({**bound.pop("kwargs", {}), **bound})
        return original(*args, **kwargs)

    setattr(file, name, spy)
    try:
        with torch.inference_mode():
            model(input_ids=torch.tensor([ids]), use_cache=False)
    finally:
        setattr(file, name, original)
    return _recurrence(calls[drawn.layer if drawn.model_type == "mamba" else drawn.layer // 2], drawn.head)


def _recurrence(bound: dict[str, Any], head: int) -> tuple[Array, Array]:
    """Run the states of one head of the first text for unit vectors as values."""
    arrays = {key: value.detach().double().numpy() for key, value in bound.items() if isinstance(value, torch.Tensor)}
    skip = 0.0
    delta = "g" in arrays
    if delta:
        group = head // (arrays["value"].shape[2] // arrays["key"].shape[2])
        q, k = (_unit(arrays[key][0, :, group]) for key in ("query", "key"))
        q = q / np.sqrt(q.shape[1])
        decay = np.exp(arrays["g"][0, :, head]).reshape(len(q), -1)
        write = arrays["beta"][0, :, head]
        v = arrays["value"][0, :, head]
    elif arrays["hidden_states"].ndim == 3:  # a channel of Mamba-1
        q, k = arrays["C"][0].T, arrays["B"][0].T
        write = np.log1p(np.exp(arrays["dt"][0, head] + arrays["delta_bias"][head]))
        decay = np.exp(write[:, None] * arrays["A"][head])
        v = arrays["hidden_states"][0, head][:, None]
        skip = float(arrays["D"][head])
    else:
        group = head // (arrays["hidden_states"].shape[2] // arrays["B"].shape[2])
        q, k = arrays["C"][0, :, group], arrays["B"][0, :, group]
        write = np.log1p(np.exp(arrays["dt"][0, :, head] + arrays["dt_bias"][head]))
        decay = np.exp(write * arrays["A"][head])[:, None]
        v = arrays["hidden_states"][0, :, head]
        skip = float(arrays["D"][head])
    state = np.zeros((k.shape[1], len(k)))
    rows = []
    for token, unit in enumerate(np.eye(len(k))):
        state = state * np.broadcast_to(decay[token], k[token].shape)[:, None]
        held = k[token] @ state if delta else 0.0
        state += np.outer(k[token], write[token] * (unit - held))
        rows.append(q[token] @ state + skip * unit)
    return np.array(rows), np.linalg.norm(v, axis=1)


def _unit(vectors: Array) -> Array:
    """Return vectors of length 1, as the delta rule takes them."""
    return vectors / np.sqrt((vectors**2).sum(-1, keepdims=True) + 1e-6)
