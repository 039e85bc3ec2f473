"""Examine a checkpoint in a folder, a GGUF file or the Hugging Face cache."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace as replace_fields
from math import prod
from typing import Any

import torch

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families.config_reader import drop_keys, ignored_notes
from attnscope.checkpoints.locating import locate, open_checkpoint
from attnscope.checkpoints.source import DEFAULT_MODEL
from attnscope.checkpoints.tokenization.word_tokenizer import MissingTokenizer
from attnscope.checkpoints.tokenizers import find_tokenizer
from attnscope.engines.torch_setup import choose_device, set_threads
from attnscope.engines.transformers.backends import backend_of, load_examined
from attnscope.engines.transformers.media import open_image_processor
from attnscope.engines.transformers.model_class import check_own_code, find_model_class
from attnscope.findings.doctor import DoctorReport
from attnscope.request.memory import DTYPE_BYTES, memory_bound, require_memory
from attnscope.request.run_config import RunConfig
from attnscope.studies.doctor.pictures import takes_pictures
from attnscope.studies.doctor.run import LONGEST_PROBE, OnProgress, examine

_USUAL = ("eager", "sdpa")
_MUCH = 1 << 40  # multiplications of hundreds of passes: worth a GPU and every thread


def examine_checkpoint(
    run: RunConfig, values: Mapping[str, Any], progress: OnProgress | None = None, **more: Any
) -> DoctorReport:
    """Do what `attnscope doctor` does, without printing.

    Args:
        run: The model, and texts for the probes; none for built-in ones.
        values: `attn`, `dtype` and `longest_probe`; None for what is not given.
        **more: Further arguments of `examine`: a batch, a collator and what is known of them.
    """
    name = DEFAULT_MODEL if run.model is None else run.model
    located = locate(name)
    folder = open_checkpoint(located.path, run.adapter, located.weights)
    ignored_keys = ignored_notes(run.ignore_key, folder.config)
    kept_config = drop_keys(folder.config, run.ignore_key, str(folder.config_path))
    folder = replace_fields(folder, config=kept_config)
    dtype_name = str(
        kept_config.get("dtype") or kept_config.get("torch_dtype") or "float32"
    ).removeprefix("torch.")
    dtype = values.get("dtype") or (dtype_name if dtype_name in DTYPE_BYTES else "float32")
    numbers = sum(prod(tensor.shape) for tensor in folder.tensors.values())
    need = {"tensors": numbers * 4, "weights": numbers * DTYPE_BYTES[dtype]}
    if dtype != "float32":
        need["a copy in float32"] = numbers * 4
    require_memory(need, memory_bound(run.max_memory))
    model_class = find_model_class(folder)
    trust = check_own_code(folder, model_class, trusted=run.trust_config)
    own_tokenizer: Any = None
    if takes_pictures(model_class.model, model_class.config):
        with suppress(AttnscopeError):
            own_tokenizer = open_image_processor(folder.path)
    elif not isinstance(found := find_tokenizer(folder, run.tokenizer).tokenizer, MissingTokenizer):
        own_tokenizer = found
    if progress is not None:
        progress("loading", 0, 1)
    set_threads(_MUCH, run.threads)
    device = choose_device(run.device, _MUCH)
    model = load_examined(folder, getattr(torch, dtype)).to(device)
    attn = values.get("attn") or tuple(dict.fromkeys((*_USUAL, backend_of(model) or "eager")))
    return examine(
        model,
        tokenizer=more.pop("tokenizer", None) or own_tokenizer,
        attn=attn,
        with_backends=bool(values.get("attn")),
        texts=[text.text for text in run.texts],
        longest_probe=values.get("longest_probe") or LONGEST_PROBE,
        name=name,
        notes=[*located.notes, *trust, *ignored_keys, *folder.notes],
        progress=progress,
        **more,
    )
