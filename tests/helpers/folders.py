"""Write model folders from tensors and JSON, damaged on request."""

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

CONFIG = {"model_type": "bert", "hidden_size": 4, "num_hidden_layers": 1}
TENSORS = {
    "embed.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "blocks.0.bias": np.full(5, 0.5, dtype=np.float16),
    "scalar": np.array(7, dtype=np.int64),
}
_NAMES = {"float32": "F32", "float16": "F16", "int64": "I64", "float64": "F64"}


def raw(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A safetensors file with this header, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def safetensors(tensors: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, array in tensors.items():
        body = array.tobytes()
        header[name] = entry(
            _NAMES[array.dtype.name], list(array.shape), len(data), len(data) + len(body)
        )
        data += body
    return raw(header, data)


def write_folder(path: Path, config: Any = CONFIG, weights: bytes | None = None) -> Path:
    """A folder with config.json and model.safetensors."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_bytes(
        config if isinstance(config, bytes) else json.dumps(config).encode()
    )
    (path / "model.safetensors").write_bytes(safetensors(TENSORS) if weights is None else weights)
    return path


def write_sharded(path: Path, weight_map: Mapping[str, Any] | None = None) -> Path:
    """A folder with `embed.weight` and `scalar` in a.safetensors, `blocks.0.bias` in b.safetensors, and an index."""
    write_folder(path)
    (path / "model.safetensors").unlink()
    places = {
        "embed.weight": "a.safetensors",
        "scalar": "a.safetensors",
        "blocks.0.bias": "b.safetensors",
    }
    for shard in ("a.safetensors", "b.safetensors"):
        (path / shard).write_bytes(
            safetensors({n: TENSORS[n] for n, s in places.items() if s == shard})
        )
    index = {"metadata": {}, "weight_map": places if weight_map is None else weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail, even out of a blocked system call, where the body takes longer."""

    def expire(_: int, __: FrameType | None) -> None:
        raise AssertionError(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
