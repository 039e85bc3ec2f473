"""Open a checkpoint for the transformers engine.

What such a model looks like is seen only once it is loaded: opening one imports torch and reads its weights.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from attnscope.checkpoints.folder import Folder, open_folder
from attnscope.checkpoints.samples import find_model
from attnscope.checkpoints.source import DEFAULT_MODEL, ModelSource, training_facts
from attnscope.config import ModelConfig, RunConfig, TextInput
from attnscope.errors import UsageError
from attnscope.planning.memory import DTYPE_BYTES, memory_limit, require_memory
from attnscope.system.escape import as_unicode
from attnscope.tokenization.hugging_face import load_tokenizer

if TYPE_CHECKING:
    import torch

    from attnscope.engines.transformers.loading import TransformersModel


def open_transformers(run: RunConfig, texts: Iterable[TextInput]) -> ModelSource:
    """Open and load the checkpoint that a run names, for `--engine transformers`.

    Args:
        run: What the user asked.
        texts: Not needed here.

    Raises:
        AttnscopeError: It cannot be read or loaded, transformers is not there, or does not show its attention.
        UsageError: The run names a TOML stack, or a part that the model does not have.
    """
    if run.config is not None:
        raise UsageError("a TOML stack is not a transformers model", where="--engine", hint="remove --engine")
    name = run.model or DEFAULT_MODEL
    folder = open_folder(find_model(name))
    weights, masks = training_facts(folder)
    _require_memory(folder, run)
    import torch

    from attnscope.engines.transformers.engine import OpenedModel
    from attnscope.engines.transformers.loading import load_model
    from attnscope.engines.transformers.model_class import find_model_class

    find_model_class(folder)  # before its tokenizer is missed: a model of pictures has none
    tokenizer = load_tokenizer(folder.path / "tokenizer.json")
    loaded = load_model(folder, getattr(torch, run.dtype))
    chosen = loaded.resolve_part(run.part)

    def load(n_layers: int, dtype: "torch.dtype", device: "torch.device") -> OpenedModel:
        loaded.model.to(device)
        return OpenedModel(replace(loaded, chosen=chosen))

    starts = chosen in ("decoder", "cross") and loaded.decoder_start is not None
    return ModelSource(
        name=as_unicode(name),
        family=str(folder.config["model_type"]),
        config=_config(loaded, chosen),
        weights=weights,
        fingerprint=folder.fingerprint,
        tokenizer=tokenizer,
        load=load,
        folder=folder,
        notes=(*folder.notes, *tokenizer.notes, *loaded.notes),
        trained_masks=masks,
        engine="transformers",
        part=chosen or None,
        decoder_start=tokenizer.special_token(loaded.decoder_start)
        if starts and loaded.decoder_start is not None
        else None,
        has_projection=loaded.parts[chosen].has_projection,
        libraries=("tokenizers", "transformers"),
        layerwise=False,
        mask_known=False,
        dense_masks=True,
    )


def _config(loaded: "TransformersModel", chosen: str) -> ModelConfig:
    """The sizes that the rest of the program asks for; how the model computes is none of its business."""
    part = loaded.parts[chosen]
    return ModelConfig(
        vocab_size=loaded.vocab_size,
        d_model=loaded.d_model,
        n_layers=part.n_layers,
        n_heads=part.n_heads,
        n_kv_heads=part.n_kv_heads,
        d_head=part.d_head,
        d_value=part.d_value,
        max_positions=loaded.max_positions,
        scale=part.scale,
        n_segments=loaded.n_segments,
        cross_attention=chosen == "cross",
    )


def _require_memory(folder: Folder, run: RunConfig) -> None:
    """Every tensor as it is read, and again in the type that the model runs in."""
    numbers = sum(prod(tensor.shape) for tensor in folder.tensors.values())
    need = {"tensors": numbers * 4, "weights": numbers * DTYPE_BYTES[run.dtype]}
    require_memory(need, *memory_limit(run.max_memory))
