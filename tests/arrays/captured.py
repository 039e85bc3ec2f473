"""Queries, keys and values of a model, as another program would save them: by transformers, whose engine runs it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

import attnscope.engines.transformers.engine as engine_module
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import ALL
from attnscope.run import session as session_module


def capture(run: RunConfig) -> tuple[Any, dict[int, Any]]:
    """Run a model with the engine of transformers; return its Report, and the inputs of every layer's attention."""
    kept: dict[int, Any] = {}
    attend = engine_module.attend

    def keep(inputs: Any, *args: Any, **named: Any) -> Any:
        kept[inputs.layer] = inputs
        return attend(inputs, *args, **named)

    engine_module.attend = keep
    try:
        report = session_module.inspect(replace(run, engine="transformers", layer=ALL, head=ALL))
    finally:
        engine_module.attend = attend
    return report, kept


def save(
    path: Path, kept: dict[int, Any], report: Any, masks: dict[int, str], *, settings: bool = True
) -> None:
    """Write what was captured of one text in the layout of docs/other-engines.md."""
    import json

    import msgspec
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    metadata: dict[str, str] = {"layout": "heads,tokens,width", "text": report.texts[0].text}
    metadata["tokens"] = json.dumps(msgspec.to_builtins(report.texts[0].tokens))
    for layer, inputs in kept.items():
        for name in ("q", "k", "v"):
            tensors[f"layer.{layer}.{name}"] = getattr(inputs, name)[0].contiguous().clone()
        if settings:
            metadata[f"layer.{layer}.scale"] = repr(inputs.spec.scale)
            metadata[f"layer.{layer}.mask"] = masks[layer]
            if inputs.spec.softcap is not None:
                metadata[f"layer.{layer}.softcap"] = repr(inputs.spec.softcap)
            if inputs.spec.sinks is not None:
                tensors[f"layer.{layer}.sinks"] = inputs.spec.sinks.float().clone()
    save_file(tensors, path, metadata)


def text_of(words: str) -> RunConfig:
    """A request for every stage of a text."""
    stages = ("scores", "scaled", "masked", "weights", "output")
    return RunConfig((TextInput(words),), stages=stages)


def numbers(text: Any) -> dict[str, np.ndarray]:
    """Every array of a text's report by name."""
    from attnscope.findings.axes import every_array

    return {f"{place} {name}": array for place, (name, array) in enumerate(every_array(text))}
