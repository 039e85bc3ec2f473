"""The process that reads pickled weights: with torch's loader that runs no code, and limits on time and memory.

`python -m attnscope.checkpoints.convert_pickle.unpickle MEMORY SECONDS IN OUT [IN OUT …]` writes safetensors files, and
prints one line of JSON for each of them: the names and bytes of its tensors, or an error, which ends the process.
"""

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import save_file

from attnscope.base.system.machine import limit_process

_GLOBAL = re.compile(r"(?:GLOBAL|global|class) ([\w.]+)")
# keys under which training scripts store the weights
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")


class _NotWeights(Exception):
    """The file contains something other than a table of tensors."""


def main(memory: int, seconds: int, *paths: str) -> list[dict[str, Any]]:
    """Convert files in order, and stop at the first that fails; `paths` are pairs of a pickle and its safetensors file.

    `memory` is in addition to that of Python and torch, `seconds` are CPU time of all files together. Returns for each
    pickle `tensors`, the bytes of every tensor by its name, or `error` and `hint`.
    """
    limit_process(memory, seconds)
    reports: list[dict[str, Any]] = []
    for source, target in zip(paths[::2], paths[1::2], strict=True):
        reports.append(_convert(source, target))
        if "error" in reports[-1]:
            break
    return reports


def _convert(source: str, target: str) -> dict[str, Any]:
    try:
        tensors = _tensors(torch.load(source, map_location="cpu", weights_only=True))
        save_file(tensors, target, metadata={"format": "pt"})
    except _NotWeights as e:
        return {"error": str(e)}
    except MemoryError:
        return {"error": "needs more memory than the limit allows", "hint": "raise --max-memory"}
    except Exception as e:
        # A damaged file may raise anything.
        return _described(e)
    return {"tensors": {name: tensor.nbytes for name, tensor in tensors.items()}}


def _tensors(table: Any) -> dict[str, torch.Tensor]:
    """Return the table of tensors in a loaded object, each with its own memory; refuse what safetensors cannot hold."""
    for name in _WRAPPERS:
        if isinstance(table, Mapping) and isinstance(table.get(name), Mapping):
            table = table[name]
    if not isinstance(table, Mapping) or not table:
        raise _NotWeights(f"holds {_kind(table)}, not a table of tensors")
    tensors: dict[str, torch.Tensor] = {}
    for name, value in table.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise _NotWeights(f"holds {_kind(value)} under '{str(name)[:60]}', not a tensor")
        if value.layout != torch.strided or value.is_quantized or value.is_complex():
            raise _NotWeights(f"'{name[:60]}' is a sparse, quantised or complex tensor")
        tensors[name] = value.detach().clone(memory_format=torch.contiguous_format)
    return tensors


def _kind(value: Any) -> str:
    if isinstance(value, Mapping) and not value:
        return "an empty table"
    return f"a {type(value).__name__}"


def _described(error: Exception) -> dict[str, Any]:
    text = " ".join(str(error).split())
    if "weights_only" in text or "Weights only" in text or "Unsupported" in text:
        reference = _GLOBAL.search(text)
        what = "contains more than tensors"
        if reference:
            what = f"refers to {reference[1]}, which is code"
        return {
            "error": f"{what}: it was not run",
            "hint": "get the model as safetensors, from someone you trust",
        }
    if "memory" in text:
        return {"error": "needs more memory than the limit allows", "hint": "raise --max-memory"}
    return {
        "error": f"cannot be read ({type(error).__name__}: {text[:120]})",
        "hint": "download it again",
    }


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))}\n")
