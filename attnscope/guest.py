"""A folder's name in; the same Source as of our own engine, of a model that `transformers` runs, out.

What such a model looks like is seen only once it is loaded: opening one imports torch and reads its weights.
"""

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from attnscope.config import ModelConfig, RunConfig
from attnscope.errors import UsageError
from attnscope.filetokenizer import load_tokenizer
from attnscope.folder import Folder, open_folder
from attnscope.memory import DTYPE_BYTES, limit, require
from attnscope.shipped import find_model
from attnscope.source import DEFAULT_MODEL, Source, card
from attnscope.visible import as_unicode

if TYPE_CHECKING:
    import torch

    from attnscope.hosted import Guest


def open_guest(run: RunConfig) -> Source:
    """Open and load the checkpoint that a run names, for `--engine transformers`.

    Raises:
        AttnscopeError: It cannot be read or loaded, transformers is not there, or does not show its attention.
        UsageError: The run names a TOML stack, or a part that the model does not have.
    """
    if run.config is not None:
        raise UsageError("a TOML stack is no model of transformers", where="--engine", hint="leave --engine out")
    name = run.model or DEFAULT_MODEL
    folder = open_folder(find_model(name))
    weights, masks = card(folder)
    _require_memory(folder, run)
    import torch

    from attnscope.hosted import find_kind, load_guest

    find_kind(folder)  # before its tokenizer is missed: a model of pictures has none
    tokenizer = load_tokenizer(folder.path / "tokenizer.json")
    guest = load_guest(folder, getattr(torch, run.dtype))
    chosen = guest.part(run.part)

    def load(n_layers: int, dtype: "torch.dtype", device: "torch.device") -> "Guest":
        guest.model.to(device)
        return replace(guest, chosen=chosen)

    starts = chosen in ("decoder", "cross") and guest.start is not None
    return Source(
        name=as_unicode(name),
        family=str(folder.config["model_type"]),
        config=_config(guest, chosen),
        weights=weights,
        fingerprint=folder.fingerprint,
        tokenizer=tokenizer,
        load=load,
        folder=folder,
        notes=(*folder.notes, *tokenizer.notes, *guest.notes),
        trained_masks=masks,
        engine="transformers",
        part=chosen or None,
        start=tokenizer.special(guest.start) if starts and guest.start is not None else None,
        projects=guest.parts[chosen].projects,
    )


def _config(guest: "Guest", chosen: str) -> ModelConfig:
    """The sizes that the rest of the program asks for; how the model computes is none of its business."""
    part = guest.parts[chosen]
    return ModelConfig(
        vocab_size=guest.vocab_size,
        d_model=guest.d_model,
        n_layers=part.n_layers,
        n_heads=part.n_heads,
        n_kv_heads=part.n_kv_heads,
        d_head=part.d_head,
        d_value=part.d_value,
        max_positions=guest.max_positions,
        scale=part.scale,
        n_segments=guest.n_segments,
        cross_attention=chosen == "cross",
    )


def _require_memory(folder: Folder, run: RunConfig) -> None:
    """Every tensor as it is read, and again in the type that the model runs in."""
    numbers = sum(prod(tensor.shape) for tensor in folder.tensors.values())
    need = {"tensors": numbers * 4, "weights": numbers * DTYPE_BYTES[run.dtype]}
    require(need, *limit(run.max_memory))
