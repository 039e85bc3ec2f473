"""Find the folder of what `--model` names: a folder or file, a bundled sample, a repository in the Hugging Face cache.

Other layouts are recognised by their files, and either used or named in an error.
"""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnscope.base.errors import AttnscopeError, arg, suggestion
from attnscope.base.files.reading import as_object, format_value, read_json
from attnscope.checkpoints.folder import (
    CONFIG,
    INDEX,
    MAX_CONFIG,
    MAX_INDEX,
    SINGLE,
    Folder,
    open_folder,
)
from attnscope.checkpoints.hub_cache import (
    cached_folder,
    find_snapshot,
    is_cache_entry,
    is_repository,
    not_cached,
)
from attnscope.checkpoints.samples import GGUF, exists, sample_names, samples_folder

MODULES = "modules.json"
_ADAPTER = "adapter_config.json"
_PARAMS = "params.json"
_BEFORE = "sentence_bert_config.json"
_TRAINER = r"checkpoint-(\d{1,18})"
_HUB = r"(?:https?://huggingface\.co/|hf://)(?:models/)?([^/?#]+/[^/?#]+).*"
_SAFETENSORS = "use the model's safetensors version"
# File extensions, what such files are, and what to do with them.
_FILES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        (".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tar.xz", ".tar.zst"),
        "an archive",
        "unpack it: tar xf {}",
    ),
    ((".zip",), "an archive", "unpack it: unzip {}"),
    ((".onnx", ".ort"), "an ONNX graph, which does not show where its attention is", _SAFETENSORS),
    ((".h5", ".keras", ".pb"), "a model of TensorFlow", _SAFETENSORS),
    ((".msgpack",), "a model of Flax", _SAFETENSORS),
    (
        (".tflite", ".mlmodel", ".engine", ".pte"),
        "a compiled model, which does not show its attention",
        _SAFETENSORS,
    ),
)


@dataclass(frozen=True)
class Located:
    """Location of a model."""

    path: Path
    weights: str | None = None
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()


def locate(name: str, option: str | None = None) -> Located:
    """Find a model, without a network; `option` is that which names a tokenizer in place of a model.

    A folder or file of this name comes first, then a bundled sample, then a repository in the Hugging Face cache.
    """
    if not name:
        # An empty environment variable; Path("") is the current folder.
        raise AttnscopeError(
            "the name is empty", where=option or arg("model"), hint="name a folder, or leave it out"
        )
    path = Path(name)
    if exists(path, folder=True):
        return _folder(path, weights=option is None)
    if exists(path, folder=False):
        return _file(path)
    samples = sample_names("sample_weights")
    if name in samples:
        return Located(samples_folder("sample_weights") / name)
    if is_repository(name) and (folder := cached_folder(name)).is_dir():
        return _snapshot(folder, name, weights=option is None)
    if name.lower().endswith((GGUF, ".safetensors", ".json", ".toml")):
        raise AttnscopeError(
            "no such file", where=f"{option}: {name}" if option else name, hint="check the path"
        )
    if is_repository(name):
        raise not_cached(name, samples, option)
    hint = suggestion(name, samples)
    if web := re.fullmatch(_HUB, name):
        hint = f"use its name: {web[1]}"
    if hint is None and option is not None:
        hint = "name a tokenizer.json, or a folder that has one"
    elif hint is None:
        ways = f"a folder with {CONFIG}, a {GGUF} file, or a repository in the Hugging Face cache (organization/name)"
        hint = f"name {ways}; bundled samples: {', '.join(samples)}"
    where = f"{option}: {name}" if option else name
    raise AttnscopeError("no such folder, file or bundled sample", where=where, hint=hint)


def _snapshot(folder: Path, name: str, *, weights: bool) -> Located:
    snapshot, is_main = find_snapshot(folder, weights=weights)
    revision = f"revision {snapshot.name[:12]} of {name} in the Hugging Face cache"
    inner = _folder(snapshot, weights=weights)
    if is_main:
        return replace(inner, details=(revision, *inner.details))
    return replace(inner, notes=(f"{revision}, which is not that of its branch main", *inner.notes))


def _folder(path: Path, *, weights: bool) -> Located:
    """Resolve a folder: one with a model, or the model's folder near one that was named by mistake."""
    if _has(path, MODULES):
        return _sentence_transformers(path)
    if _has(path, CONFIG):
        return Located(path)
    if is_cache_entry(path):
        return _snapshot(path, "/".join(path.name.split("--")[1:]), weights=weights)
    if weights:
        _refuse_other_layouts(path)
    # The caller that opens it reports what is missing.
    return Located(path)


def _has(path: Path, name: str) -> bool:
    return exists(path / name, folder=False)


def transformer_folder(path: Path) -> str | None:
    """Name the transformer's folder within a sentence-transformers folder; empty for itself, None for none."""
    where = path / MODULES
    listed = read_json(where, cap=MAX_CONFIG)
    modules = [
        as_object(module, str(where))
        for module in (listed if isinstance(listed, list) else [listed])
    ]
    kinds = (".Transformer", ".BERT")
    inner = [
        module.get("path") for module in modules if str(module.get("type", "")).endswith(kinds)
    ]
    if (
        len(inner) != 1
        or not isinstance(inner[0], str)
        or inner[0] in (".", "..")
        or set(inner[0]) & {*"/\\\0"}
    ):
        return None
    return inner[0]


def _sentence_transformers(path: Path) -> Located:
    inner = transformer_folder(path)
    if inner is None and not _has(path, CONFIG):
        hint = f"pass the folder of the model that has a {CONFIG}"
        raise AttnscopeError("names no transformer in a subfolder", where=path / MODULES, hint=hint)
    folder = path / (inner or "")
    details = (f"the transformer of a sentence-transformers folder: {inner}",) if inner else ()
    notes: tuple[str, ...] = ()
    if _has(folder, _BEFORE):
        settings = as_object(read_json(folder / _BEFORE, cap=MAX_CONFIG), str(folder / _BEFORE))
        if settings.get("do_lower_case") is True:
            notes = (
                "sentence-transformers lower-cases texts before tokenizing them; attnscope does not",
            )
    return Located(folder, notes=notes, details=details)


def _refuse_other_layouts(path: Path) -> None:
    """Refuse a folder without config.json whose other files are recognised."""
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return
    if _ADAPTER in names:
        raise _adapter(path)
    if _PARAMS in names:
        hint = "download it in Hugging Face layout, or convert it with transformers' convert_*_weights_to_hf.py"
        message = f"is a model in its authors' own layout ({_PARAMS}), without {CONFIG}"
        raise AttnscopeError(message, where=path, hint=hint)
    steps = sorted(
        (int(match[1]), match[0]) for name in names if (match := re.fullmatch(_TRAINER, name))
    )
    steps = [
        (step, name)
        for step, name in steps
        if _has(path / name, CONFIG) or _has(path / name, _ADAPTER)
    ]
    if steps:
        message = f"is the output folder of a training run, with {len(steps)} checkpoint{'s' * (len(steps) > 1)}"
        raise AttnscopeError(
            message, where=path, hint=f"pass one of them: {arg('model', path / steps[-1][1])}"
        )
    if inner := [
        name for name in names if exists(path / name, folder=True) and _has(path / name, CONFIG)
    ]:
        more = f" (or {', '.join(inner[1:4])})" if inner[1:] else ""
        hint = f"pass the folder that has one: {arg('model', path / inner[0])}{more}"
        raise AttnscopeError(f"has no {CONFIG}", where=path, hint=hint)
    if files := [name for name in names if name.endswith(GGUF)]:
        hint = f"pass the GGUF file: {arg('model', path / files[0])}"
        raise AttnscopeError(f"has no {CONFIG}", where=path, hint=hint)
    for name in names:
        if kind_and_hint := _kind(name):
            raise AttnscopeError(
                f"has no {CONFIG}; {name} is {kind_and_hint[0]}", where=path, hint=_SAFETENSORS
            )


def _adapter(path: Path) -> AttnscopeError:
    """Return the refusal of a LoRA adapter that was named as a model."""
    config: dict[str, Any] = as_object(
        read_json(path / _ADAPTER, cap=MAX_CONFIG), str(path / _ADAPTER)
    )
    base = config.get("base_model_name_or_path")
    model = arg("model", placeholder="BASE")
    whose = "another model"
    if isinstance(base, str) and base:
        model = arg("model", _openable(Path(base)) or base)
        whose = format_value(base)
    message = f"is an adapter of {whose}, not a model"
    return AttnscopeError(message, where=path, hint=f"pass both: {model} {arg('adapter', path)}")


def _openable(folder: Path) -> Path | None:
    """Return the value of `--model` for the model in a folder: the folder, or a GGUF file; None for no model."""
    if _has(folder, CONFIG) or _has(folder, MODULES):
        return folder
    try:
        return next(
            (folder / name for name in sorted(os.listdir(folder)) if name.endswith(GGUF)), None
        )
    except OSError:
        return None


def _kind(name: str) -> tuple[str, str] | None:
    """Return what kind of file this name suggests, with a hint; None if it may be part of a checkpoint."""
    return next(
        ((what, hint) for endings, what, hint in _FILES if name.lower().endswith(endings)), None
    )


def _file(path: Path) -> Located:
    """Return the folder of a safetensors file, or a GGUF file; any other file is refused."""
    if path.suffix == GGUF:
        return Located(path)
    if path.suffix == ".safetensors":
        if _has(path.parent, CONFIG):
            return Located(path.parent, _single(path))
        if _has(path.parent, _ADAPTER):
            raise _adapter(path.parent)
        hint = f"put {CONFIG} and tokenizer.json of the model beside it"
        raise AttnscopeError(
            f"has only the weights: there is no {CONFIG} beside it", where=path, hint=hint
        )
    if kind_and_hint := _kind(path.name):
        what, hint = kind_and_hint
        raise AttnscopeError(f"is {what}", where=path, hint=hint.format(path))
    if path.suffix == ".toml":
        raise AttnscopeError(
            "is a TOML file, not a model", where=path, hint=f"use {arg('config', path)}"
        )
    model = _openable(path.parent)
    if model is None:
        hint = f"use a folder with {CONFIG}, or a {GGUF} file"
    else:
        hint = f"try {model}"
    raise AttnscopeError("is a file, not a model", where=path, hint=hint)


def _single(path: Path) -> str | None:
    """Return a file that has all weights; None if the folder would use it anyway, or if it is a shard."""
    if path.name == SINGLE:
        return None
    if _has(path.parent, INDEX):
        table = as_object(
            read_json(path.parent / INDEX, cap=MAX_INDEX), str(path.parent / INDEX)
        ).get("weight_map")
        if (
            isinstance(table, dict)
            and path.name in table.values()
            and not _has(path.parent, SINGLE)
        ):
            return None
    return path.name


def open_checkpoint(path: Path, adapter: str | None = None, weights: str | None = None) -> Folder:
    """Read the config and all tensor headers of a checkpoint; `weights` is the file that has them, None to find it."""
    if path.suffix != GGUF or path.is_dir():
        folder = open_folder(path, weights)
    else:
        from attnscope.checkpoints.gguf import open_gguf

        folder = open_gguf(path)
    if adapter is None:
        return folder
    from attnscope.checkpoints.adapter import add_adapter

    return add_adapter(folder, Path(adapter))
