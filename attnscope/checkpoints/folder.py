"""Open a Hugging Face checkpoint folder: config, and the location of each tensor."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import (
    MB,
    as_object,
    format_value,
    open_regular,
    parse_json,
    read_at_most,
    read_file,
    read_json,
)
from attnscope.checkpoints.chat.templates import ChatTemplates
from attnscope.checkpoints.headers import FileStamp, SafetensorsHeader, TensorInfo, read_header

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_CONFIG = 4 * MB
MAX_TOKENIZER = 200 * MB
MAX_INDEX = 50 * MB
# pickles that hold no weights
_TRAINING = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True)
class Folder:
    """An HF-layout folder, opened."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, TensorInfo]
    files: dict[str, int]
    # SHA-256 over config.json, tokenizer.json, tensor headers and samples, first 16 hex digits
    fingerprint: str
    metadata: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    # of files with tensors, as their headers were read
    stamps: dict[Path, FileStamp] = field(default_factory=dict)
    # content of the tokenizer.json, if it was built from another file
    tokenizer: bytes | None = None
    replaced: dict[str, TensorInfo] = field(default_factory=dict)
    # its chat templates, if no file of their own has them; None if files have them
    chat: ChatTemplates | None = None

    @property
    def config_path(self) -> Path:
        """The file that holds the config, for errors."""
        if CONFIG in self.files:
            return self.path / CONFIG
        return self.path


def open_folder(path: Path, weights: str | None = None) -> Folder:
    """Read the config and all tensor headers of an HF-layout folder.

    `model.safetensors` comes first, then the shards of `model.safetensors.index.json`, as in transformers. Pickles are
    never opened.
    """
    present = _list_folder(path)
    if CONFIG not in present:
        raise AttnscopeError(
            f"has no {CONFIG}",
            where=path,
            hint="expected config.json, tokenizer.json, *.safetensors",
        )
    raw_config, config = read_config_file(path / CONFIG)
    headers = _headers(path, present, weights)
    stored = {name: info for header in headers.values() for name, info in header.tensors.items()}
    refuse_quantised(stored, path)
    tensors, unwrapped = unwrap_names(stored)
    tensors, converted = pair_mxfp4(tensors)
    if converted:
        # The key repeats what the blocks already show.
        config.pop("quantization_config", None)
    digest = hashlib.sha256(hashlib.sha256(raw_config).digest())
    sizes = {CONFIG: len(raw_config)}
    if TOKENIZER in present:
        raw_tokenizer = read_file(path / TOKENIZER, cap=MAX_TOKENIZER)
        digest.update(hashlib.sha256(raw_tokenizer).digest())
        sizes[TOKENIZER] = len(raw_tokenizer)
    for header in headers.values():
        digest.update(header.digest)
    return Folder(
        path=path,
        config=config,
        tensors=tensors,
        files=sizes | {file.name: header.stamp.size for file, header in headers.items()},
        fingerprint=digest.hexdigest()[:16],
        metadata={
            key: text for header in headers.values() for key, text in header.metadata.items()
        },
        notes=(*unwrapped, *converted),
        stamps={file: header.stamp for file, header in headers.items()},
    )


def read_config_file(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return a config.json as bytes and parsed."""
    data = read_file(path, cap=MAX_CONFIG)
    return data, as_object(parse_json(data, str(path)), str(path))


def without_mxfp4(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config without the key for experts in four-bit blocks (MXFP4), which `open_folder` can read."""
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict) or quantization.get("quant_method") != "mxfp4":
        return config
    return {name: value for name, value in config.items() if name != "quantization_config"}


def open_weights(path: Path) -> Folder:
    """Read the tensor headers of one safetensors file that has no config beside it."""
    header = read_header(path)
    return Folder(
        path=path.parent,
        config={},
        tensors=header.tensors,
        files={path.name: header.stamp.size},
        fingerprint=header.digest.hex()[:16],
        metadata=header.metadata,
        stamps={path: header.stamp},
    )


def hash_weights(folder: Folder) -> str:
    """Return the SHA-256 (hex) of all files with tensors, in name order; for a single file, that of `sha256sum`."""
    digest = hashlib.sha256()
    for path in sorted(folder.stamps):
        with open_regular(path) as (file, status):
            if FileStamp.of(status) != folder.stamps[path]:
                raise AttnscopeError("changed while it was read", where=path, hint="run again")
            while block := file.read(MB):
                digest.update(block)
    return digest.hexdigest()


def _list_folder(path: Path) -> set[str]:
    try:
        return set(os.listdir(path))
    except NotADirectoryError as e:
        raise AttnscopeError(
            "is a file, not a model folder", where=path, hint=f"try {path.parent}"
        ) from e
    except FileNotFoundError as e:
        raise AttnscopeError("no such folder", where=path) from e
    except (OSError, ValueError) as e:
        raise AttnscopeError(
            f"cannot be listed: {getattr(e, 'strerror', None) or e}", where=path
        ) from e


def _headers(path: Path, present: set[str], weights: str | None) -> dict[Path, SafetensorsHeader]:
    """Return the headers of the files that hold the weights, by file."""
    if weights is not None or SINGLE in present:
        file = path / (weights or SINGLE)
        return {file: read_header(file)}
    if INDEX in present:
        return _shard_headers(path, present)
    if pickles := find_pickles(present):
        with open_regular(path / pickles[0]) as (stream, _):
            start = read_at_most(stream, 2)
        if not start.startswith((b"\x80", b"PK")):  # a pickle, or a zip file of one
            raise AttnscopeError(
                "is no file of PyTorch, and there are no other weights",
                where=path / pickles[0],
                hint=f"get the model in the form of transformers, with {SINGLE}",
            )
        message = f"has its weights only as pickles ({', '.join(map(format_value, pickles[:3]))}), which can run code"
        import shlex

        absolute = path.absolute()
        paths = (str(path), str(absolute.parent / f"{absolute.name}-safetensors"))
        hint = f"convert them, without running code: attnscope import {shlex.join(paths)}"
        raise AttnscopeError(message, where=path, hint=hint)
    weight_files = sorted(name for name in present if name.endswith(".safetensors"))
    hint = f"expected {SINGLE} or {INDEX}"
    if weight_files:
        hint = f"found {', '.join(map(format_value, weight_files[:3]))}; {INDEX} is missing"
    raise AttnscopeError("has no weights", where=path, hint=hint)


def find_pickles(names: Iterable[str]) -> list[str]:
    """Return the files that may be pickled weights; trainer state is not counted."""
    return sorted(
        name for name in names if name.endswith(_PICKLES) and not name.startswith(_TRAINING)
    )


def _shard_headers(path: Path, present: set[str]) -> dict[Path, SafetensorsHeader]:
    """Return the headers of all shards, once they agree with the index."""
    index = path / INDEX
    where = f"{index}: weight_map"
    table = as_object(
        as_object(read_json(index, cap=MAX_INDEX), str(index)).get("weight_map", {}), where
    )
    if not table:
        raise AttnscopeError("lists no tensors", where=where, hint="download the index again")
    for name, shard in table.items():
        _check_shard_name(shard, f"{where}.{format_value(name)[1:-1]}", present)
    headers = {path / shard: read_header(path / shard) for shard in sorted(set(table.values()))}
    _check_index(table, headers, path)
    return headers


def _check_shard_name(shard: Any, where: str, present: set[str]) -> None:
    """Refuse anything that is not the plain name of a safetensors file in the folder, before it is opened."""
    if (
        not isinstance(shard, str)
        or any(c in shard for c in "/\\\0:")
        or not shard.endswith(".safetensors")
    ):
        hint = "expected the plain name of a *.safetensors file"
        raise AttnscopeError(f"is {format_value(shard)}", where=where, hint=hint)
    if shard not in present:
        hint = "download it, or the whole folder"
        raise AttnscopeError(f"the shard {format_value(shard)} is missing", where=where, hint=hint)


def _check_index(table: dict[str, Any], headers: dict[Path, SafetensorsHeader], path: Path) -> None:
    """Refuse an index and shards that do not list the same tensors in the same places."""
    holders = {name: file.name for file, header in headers.items() for name in header.tensors}
    twice = [
        n
        for n, count in Counter(n for h in headers.values() for n in h.tensors).items()
        if count > 1
    ]
    if twice:
        raise AttnscopeError(
            "is in more than one shard", where=f"{path}: {format_value(twice[0])[1:-1]}"
        )
    for name, shard in table.items():
        if holders.get(name) != shard:
            held = ""
            if name in holders:
                held = f" but in {format_value(holders[name])}"
            where = f"{path / INDEX}: {format_value(name)[1:-1]}"
            hint = "download the index and the shards again"
            raise AttnscopeError(f"is not in {format_value(shard)}{held}", where=where, hint=hint)
    for name, shard in holders.items():
        if name not in table:
            where = f"{path / INDEX}: {format_value(name)[1:-1]}"
            message = f"is in {format_value(shard)}, but not in the index"
            raise AttnscopeError(message, where=where, hint="download the index again")


# Prefixes that saving a wrapped model leaves: DataParallel and DeepSpeed, torch.compile, peft.
_WRAPPERS = ("module.", "_orig_mod.", "base_model.model.")
_BLOCKS = "_blocks"
_SCALES = "_scales"
MXFP4_BLOCK = (32, 16)  # numbers and bytes


def unused_note(names: Sequence[str]) -> str:
    """Return a note on tensors that a reader may expect to be used."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"tensors that attention does not use: {', '.join(names[:3])}{more}"


def unwrap_names(
    tensors: Mapping[str, TensorInfo],
) -> tuple[dict[str, TensorInfo], tuple[str, ...]]:
    """Return the tensors without a wrapper's prefix that all of them have, and a note on it."""
    unwrapped = dict(tensors)
    removed = ""
    while prefix := next(
        (p for p in _WRAPPERS if unwrapped and all(name.startswith(p) for name in unwrapped)), None
    ):
        unwrapped = {
            name.removeprefix(prefix): replace(info, name=name.removeprefix(prefix))
            for name, info in unwrapped.items()
        }
        removed += prefix
    if not removed:
        return unwrapped, ()
    return unwrapped, (f"every tensor's name starts with '{removed}', which is ignored",)


def refuse_quantised(tensors: Mapping[str, TensorInfo], path: Path) -> None:
    """Refuse the quantised weights of other programs, by the names that each gives its tensors."""
    endings = {name.rpartition(".")[2] for name in tensors}
    packed = any(info.dtype == "U32" and name.endswith(".weight") for name, info in tensors.items())
    format_name = None
    if "qweight" in endings:
        format_name = "GPTQ" if "g_idx" in endings else "AWQ"
    elif (
        "absmax" in endings
        or "SCB" in endings
        or any("bitsandbytes" in ending for ending in endings)
    ):
        format_name = "bitsandbytes"
    elif packed and {"scales", "biases"} <= endings:
        format_name = "MLX"
    elif "weight_packed" in endings:
        format_name = "compressed-tensors"
    if format_name is not None:
        hint = "use the floating-point model that they were made from, or a GGUF file of it"
        raise AttnscopeError(f"the weights are quantised ({format_name})", where=path, hint=hint)


def pair_mxfp4(tensors: Mapping[str, TensorInfo]) -> tuple[dict[str, TensorInfo], tuple[str, ...]]:
    """Replace every pair of experts' blocks and scales by the tensor that they encode; add a note.

    Blocks of shape (experts, out, groups, 16) with scales of shape (experts, out, groups) become (experts, in, out), as
    transformers has them (`convert_moe_packed_tensors`).
    """
    paired = dict(tensors)
    for name, blocks in tensors.items():
        stem = name.removesuffix(_BLOCKS)
        scales = tensors.get(stem + _SCALES)
        if stem == name or scales is None or {blocks.dtype, scales.dtype} != {"U8"}:
            continue
        if (
            len(blocks.shape) == 4
            and blocks.shape[3] == MXFP4_BLOCK[1]
            and scales.shape == blocks.shape[:3]
        ):
            del paired[name], paired[stem + _SCALES]
            experts, out, groups, _ = blocks.shape
            shape = experts, groups * MXFP4_BLOCK[0], out
            paired[stem] = replace(
                blocks, name=stem, dtype="MXFP4", shape=shape, block=MXFP4_BLOCK, scales=scales
            )
    note = "experts in four-bit blocks (MXFP4), converted to floating point as they are read"
    return paired, (note,) if len(paired) < len(tensors) else ()
