"""Random calls of run on layers without softmax, against their recurrence in NumPy float64, token after token.

What the layer computes from is read of the arguments of transformers' own functions and modules, in a run of
transformers alone.
"""

import inspect
import json
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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

# model type → function of its modelling file that computes the layer
_FUNCTIONS = {
    "qwen3_next": "torch_chunk_gated_delta_rule",
    "kimi_linear": "chunk_kimi_delta_attention",
    "granitemoehybrid": "mamba2_chunk_scan",
    "mamba": "mamba_selective_scan",
    "rwkv": "rwkv_linear_attention",
}
# model type → module that computes the layer
_MODULES = {"recurrent_gemma": "rg_lru", "xlstm": "mlstm_backend"}
_WITHOUT_ATTENTION = ("mamba", "rwkv", "xlstm")  # in the others, every second layer has attention
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
    for name, parameter in made.named_parameters():
        if name.endswith("igate_preact.bias"):
            # so that some rows of an xlstm, not all, sum to more than 1, and are divided
            parameter.data += 3
    return hybrids.save_hybrid(Path(tempfile.mkdtemp()) / model_type, made)


def call(_models: Models, seed: int, number: int) -> MixingCall:
    """Draw a call."""
    random = Random(f"mixing {seed} {number}")
    model_type = random.choice([*_FUNCTIONS, *_MODULES])
    text = " ".join(random.choices(_WORDS, k=random.randint(1, 60)))
    layer = random.choice((0, 1) if model_type in _WITHOUT_ATTENTION else (0, 2))
    head = random.randrange(4)
    argv = [
        "run",
        text,
        "--model",
        str(_folder(model_type)),
        "--layer",
        str(layer),
        "--head",
        str(head),
        "--json",
    ]
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
        allowed = [
            key for key in range(row + 1) if "--no-special" not in drawn.argv or _is_word(text, key)
        ]
        best = sorted((measure[key] for key in allowed), reverse=True)[: len(keys)]
        _same(f"strongest of row {row}", measure[listed], np.array(best))
        _same(
            f"M of row {row}",
            np.array(mixing["mixing"][0][row][: len(listed)], float),
            matrix[row, listed],
        )


def _is_word(text: dict[str, Any], position: int) -> bool:
    return position > 0 and not text["tokens"][position].get("special", False)


def _same(name: str, found: Array, expected: Array) -> None:
    scale = float(np.abs(expected).max(initial=0.0)) or 1.0
    if found.shape != expected.shape or not np.allclose(
        found, expected, rtol=1e-3, atol=2e-5 * scale
    ):
        raise Mismatch(f"{name} is not that of the recurrence")


def _expected(drawn: MixingCall, ids: list[int]) -> tuple[Array, Array]:
    """Return M of the recurrence in float64, (T, T), and the norms of values, (T,)."""
    model = hf.AutoModelForCausalLM.from_pretrained(
        _folder(drawn.model_type), attn_implementation="eager"
    )
    calls = (
        _module_calls(model, drawn)
        if drawn.model_type in _MODULES
        else _function_calls(model, drawn)
    )
    with calls as found, torch.inference_mode():
        model(input_ids=torch.tensor([ids]), use_cache=False)
    arguments = found[drawn.layer if drawn.model_type in _WITHOUT_ATTENTION else drawn.layer // 2]
    arrays = {
        key: value.detach().double().numpy()
        for key, value in arguments.items()
        if isinstance(value, torch.Tensor)
    }
    return _RECURRENCES.get(drawn.model_type, _state_recurrence)(arrays, drawn.head)


@contextmanager
def _function_calls(model: Any, drawn: MixingCall) -> Iterator[list[dict[str, Any]]]:
    """Gather the arguments of every call of the function that computes these layers."""
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
        yield calls
    finally:
        setattr(file, name, original)


@contextmanager
def _module_calls(model: Any, drawn: MixingCall) -> Iterator[list[dict[str, Any]]]:
    """Gather the arguments and parameters of every module that computes these layers."""
    calls: list[dict[str, Any]] = []

    def keep(module: Any, args: Any, kwargs: Any) -> None:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        calls.append({**bound.pop("kwargs", {}), **bound, **dict(module.named_parameters())})

    for path, module in model.named_modules():
        if path.rpartition(".")[2] == _MODULES[drawn.model_type]:
            module.register_forward_pre_hook(keep, with_kwargs=True)
    yield calls


def _state_recurrence(arrays: dict[str, Array], head: int) -> tuple[Array, Array]:
    """Run the states of one head of the first text for unit vectors as values."""
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


def _gated_recurrence(arrays: dict[str, Array], channel: int) -> tuple[Array, Array]:
    """Run the state of one channel of an RG-LRU for unit inputs (De et al., 2024, "Griffin", equations 1 to 4)."""
    x = arrays["activations"][0]
    block, place = divmod(channel, arrays["input_gate_bias"].shape[1])
    of_block = x.reshape(len(x), -1, arrays["input_gate_bias"].shape[1])[:, block]
    recurrence_gate, input_gate = (
        1
        / (
            1
            + np.exp(
                -of_block @ arrays[f"{name}_weight"][block][:, place]
                - arrays[f"{name}_bias"][block, place]
            )
        )
        for name in ("recurrent_gate", "input_gate")
    )
    decay = (1 / (1 + np.exp(arrays["recurrent_param"][channel]))) ** (8 * recurrence_gate)
    state = np.zeros(len(x))
    rows = []
    for token, unit in enumerate(np.eye(len(x))):
        kept = np.sqrt(1 - decay[token] ** 2) if token else 1.0  # the first token is written whole
        state = decay[token] * state + kept * input_gate[token] * unit
        rows.append(state)
    return np.array(rows), np.abs(x[:, channel])


def _matrix_memory(arrays: dict[str, Array], head: int) -> tuple[Array, Array]:
    """Run the memory of an xLSTM for unit values (Beck et al., 2024, equations 19 to 27, stabilised as 15 to 17)."""
    q, k, v, write, forget = (
        arrays[name][0, head] for name in ("query", "key", "value", "igate", "fgate")
    )
    q = q / np.sqrt(q.shape[1])
    memory = np.zeros((k.shape[1], len(k)))
    normalizer = np.zeros(k.shape[1])
    largest = 0.0
    rows = []
    for token, unit in enumerate(np.eye(len(k))):
        faded = largest - np.log1p(np.exp(-forget[token]))
        largest = max(faded, write[token])
        memory = np.exp(faded - largest) * memory + np.exp(write[token] - largest) * np.outer(
            k[token], unit
        )
        normalizer = (
            np.exp(faded - largest) * normalizer + np.exp(write[token] - largest) * k[token]
        )
        rows.append(q[token] @ memory / (max(abs(q[token] @ normalizer), np.exp(-largest)) + 1e-6))
    return np.array(rows), np.linalg.norm(v, axis=1)


def _average(arrays: dict[str, Array], channel: int) -> tuple[Array, Array]:
    """Run the average of one channel of RWKV-4 for unit values (Peng et al., 2023, equation 16)."""
    k = arrays["key"][0, :, channel]
    fade = np.exp(-np.exp(arrays["time_decay"][channel]))
    total = np.zeros(len(k))
    rows = []
    for token, unit in enumerate(np.eye(len(k))):
        row = total + np.exp(k[token] + arrays["time_first"][channel]) * unit
        rows.append(row / row.sum())
        total = fade * total + np.exp(k[token]) * unit
    return np.array(rows), np.abs(arrays["value"][0, :, channel])


_RECURRENCES = {"recurrent_gemma": _gated_recurrence, "xlstm": _matrix_memory, "rwkv": _average}


def _unit(vectors: Array) -> Array:
    """Return vectors of length 1, as the delta rule takes them."""
    return vectors / np.sqrt((vectors**2).sum(-1, keepdims=True) + 1e-6)
