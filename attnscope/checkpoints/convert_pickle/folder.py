"""Convert a folder whose weights are pickles into one whose weights are safetensors."""

import json
import os
import secrets
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.files.atomic import check_name
from attnscope.base.files.reading import MB, as_object, format_value, open_regular, read_json
from attnscope.base.system.machine import available_memory
from attnscope.base.system.signals import at_signal, defer_signals
from attnscope.checkpoints.adapter import ADAPTER_WEIGHTS
from attnscope.checkpoints.folder import INDEX, MAX_INDEX, SINGLE, find_pickles
from attnscope.checkpoints.headers import read_header
from attnscope.checkpoints.hub_cache import is_cache_entry

_PICKLE = "pytorch_model.bin"
_PICKLE_INDEX = "pytorch_model.bin.index.json"
_ADAPTER = "adapter_model.bin"
# extensions of the files that are copied: configs, tokenizers, licence
_BESIDE = (".json", ".txt", ".model", ".md", ".jinja", ".vocab")
_LARGEST_BESIDE = 200 * MB
# Time limit: a base, and a second for this many bytes.
_SECONDS = 600
_BYTES_A_SECOND = 10 * MB


@dataclass(frozen=True)
class Imported:
    """Summary of the written files."""

    tensors: int
    size: int
    copied: tuple[str, ...]


def import_folder(source: Path, target: Path, max_memory: int | None) -> Imported:
    """Write a folder's pickled weights as safetensors, reading each within `max_memory`, and copy what lies beside."""
    files = _plan(source)
    check_name(target)
    if target.exists() or target.is_symlink():
        raise AttnscopeError("exists", where=target, hint="use a folder that does not exist yet")
    if not target.parent.is_dir():
        raise AttnscopeError("no such folder", where=target.parent, hint="use an existing folder")
    other_files = _files_beside(source)
    part = target.parent / f".attnscope-{secrets.token_hex(6)}.tmp"
    with at_signal(lambda: shutil.rmtree(part)):
        try:
            with defer_signals():
                part.mkdir()
            tables = _convert(
                {source / name: part / new for name, new in files.items()}, max_memory
            )
            sizes = dict(zip(files.values(), tables, strict=True))
            for new in sizes:
                read_header(part / new)
            if len(files) > 1:
                shards = {name: file for file, tensors in sizes.items() for name in tensors}
                if len(shards) != sum(map(len, sizes.values())):
                    hint = "download the shards again"
                    raise AttnscopeError(
                        "a tensor is in more than one shard", where=part / INDEX, hint=hint
                    )
                total = sum(size for tensors in sizes.values() for size in tensors.values())
                index = {"metadata": {"total_size": total}, "weight_map": shards}
                (part / INDEX).write_text(json.dumps(index, indent=2))
            for path in other_files:
                shutil.copyfile(path, part / path.name)
            os.rename(part, target)
        except OSError as e:
            raise AttnscopeError(f"cannot be written ({e.strerror or e})", where=target) from e
        finally:
            with suppress(OSError):
                shutil.rmtree(part)
    every = [size for table in sizes.values() for size in table.values()]
    return Imported(len(every), sum(every), tuple(path.name for path in other_files))


def _plan(source: Path) -> dict[str, str]:
    """Return each pickle, and the name of the safetensors file that is made of it."""
    if not source.is_dir():
        message = "is a file, not a folder" if source.exists() else "no such folder"
        raise AttnscopeError(
            message, where=source, hint="pass the folder that contains the config and the weights"
        )
    present = set(os.listdir(source))
    if SINGLE in present or INDEX in present:
        hint = f"use it as it is: {arg('model', str(source))}"
        raise AttnscopeError("already has safetensors", where=source, hint=hint)
    if _PICKLE_INDEX in present:
        return _shards(source, present)
    for usual, new in ((_PICKLE, SINGLE), (_ADAPTER, ADAPTER_WEIGHTS)):
        if usual in present:
            return {usual: new}
    pickles = find_pickles(present)
    if len(pickles) != 1:
        pickle_names = ""
        if pickles:
            pickle_names = f": {', '.join(map(format_value, pickles[:3]))}"
        message = f"has {len(pickles) or 'no'} files with pickled weights{pickle_names}"
        raise AttnscopeError(message, where=source, hint=f"expected {_PICKLE}")
    return {pickles[0]: SINGLE}


def _shards(source: Path, present: set[str]) -> dict[str, str]:
    where = f"{source / _PICKLE_INDEX}: weight_map"
    index = as_object(read_json(source / _PICKLE_INDEX, cap=MAX_INDEX), str(source / _PICKLE_INDEX))
    names = sorted({str(name) for name in as_object(index.get("weight_map", {}), where).values()})
    for name in names:
        if name not in present:
            raise AttnscopeError(
                f"the shard {format_value(name)} is missing", where=where, hint="download it"
            )
    if not names:
        raise AttnscopeError("lists no tensors", where=where, hint="download the index again")
    return {name: f"model-{n:05}-of-{len(names):05}.safetensors" for n, name in enumerate(names, 1)}


def _convert(files: dict[Path, Path], max_memory: int | None) -> list[dict[str, int]]:
    """Convert files in a separate process; return the bytes of every tensor of each file, by name."""
    size = 0
    for source in files:
        with open_regular(source) as (_, status):
            size += status.st_size
    memory = available_memory() // 2 if max_memory is None else max_memory
    seconds = _SECONDS + size // _BYTES_A_SECOND
    package = str(Path(__file__).parents[3])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH")))),
    }
    paths = [str(path.absolute()) for pair in files.items() for path in pair]
    module = "attnscope.checkpoints.convert_pickle.unpickle"
    command = [sys.executable, "-P", "-m", module, str(memory), str(seconds), *paths]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=2 * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        raise AttnscopeError(
            f"took more than {2 * seconds:,} seconds to read", where=next(iter(files)).parent
        ) from e
    try:
        answers = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        answers = []
    answers = answers if isinstance(answers, list) else []
    for source, answer in zip(files, answers, strict=False):
        if "error" in answer:
            raise AttnscopeError(answer["error"], where=source, hint=answer.get("hint"))
    if done.returncode or len(answers) != len(files):
        hint = f"raise {arg('max_memory')}, or download the file again"
        where = list(files)[min(len(answers), len(files) - 1)]
        message = f"could not be read (the reading process ended with exit code {done.returncode})"
        raise AttnscopeError(message, where=where, hint=hint)
    return [answer["tensors"] for answer in answers]


def _files_beside(source: Path) -> list[Path]:
    """Return config, tokenizer and licence, which are copied; never code or other pickles."""
    folder = source.resolve()
    inside = next((parent for parent in folder.parents if is_cache_entry(parent)), folder)
    files = []
    for path in sorted(source.iterdir()):
        wanted = path.suffix.lower() in _BESIDE or path.name.upper().startswith("LICENSE")
        if (
            not wanted
            or path.name == _PICKLE_INDEX
            or not path.is_file()
            or path.stat().st_size > _LARGEST_BESIDE
        ):
            continue
        if not path.resolve().is_relative_to(inside):
            message = f"is a link to {path.resolve()}, outside of the folder"
            raise AttnscopeError(
                message, where=path, hint="remove the link, or put the file in its place"
            )
        files.append(path)
    return files
