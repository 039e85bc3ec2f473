"""Find a repository in the Hugging Face cache, by its published layout alone: no network, no library.

`models--ORG--NAME` has `refs/main` (the commit of the branch), `snapshots/COMMIT/` (the files of a commit, as links)
and `blobs/` (the targets of the links); see https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
"""

import os
import re
from pathlib import Path

from attnscope.base.errors import AttnscopeError, did_you_mean
from attnscope.base.files.reading import read_file

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_NAME = rf"(?:{_PART}/)?{_PART}"
_PREFIX = "models--"
_SNAPSHOTS = "snapshots"
_REFS = "refs"
_BLOBS = "blobs"
_REF_BYTES = 1000
# extensions of the files that are read if they exist
_NEEDED = (".json", ".txt", ".model", ".safetensors")
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx")


def is_repository(name: str) -> bool:
    """Tell whether a repository of the hub can have this name."""
    plain = re.fullmatch(_NAME, name) is not None
    return plain and "--" not in name and ".." not in name and not name.endswith(".git")


def cache_folder() -> Path:
    """Return the cache folder of `huggingface_hub`."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    home = os.environ.get("HF_HOME") or os.path.join(home, "huggingface")
    cache = (
        os.environ.get("HF_HUB_CACHE")
        or os.environ.get("HUGGINGFACE_HUB_CACHE")
        or os.path.join(home, "hub")
    )
    return Path(os.path.expandvars(os.path.expanduser(cache)))


def cached_folder(name: str) -> Path:
    """Return the folder that a repository has in the cache, if it is there."""
    return cache_folder() / (_PREFIX + name.replace("/", "--"))


def is_cache_entry(path: Path) -> bool:
    """Tell whether a folder is that of a repository in some cache."""
    return path.name.startswith(_PREFIX) and (path / _SNAPSHOTS).is_dir()


def find_snapshot(path: Path, *, weights: bool) -> tuple[Path, bool]:
    """Return the folder, named by the commit, of `main` or of the only snapshot, and whether it is that of `main`."""
    name = "/".join(path.name.removeprefix(_PREFIX).split("--", 1))
    hint = f"run: hf download {name}"
    try:
        commits = sorted(
            entry.name for entry in list(os.scandir(path / _SNAPSHOTS)) if entry.is_dir()
        )
    except OSError:
        commits = []
    try:
        interrupted = any(name.endswith(".incomplete") for name in os.listdir(path / _BLOBS))
    except OSError:
        interrupted = False
    why = " (a download was interrupted)" if interrupted else ""
    if not commits:
        raise AttnscopeError(f"has no snapshot{why}", where=path, hint=hint)
    branch = path / _REFS / "main"
    main = None
    if branch.is_file():
        main = read_file(branch, cap=_REF_BYTES).decode("ascii", "replace").strip()
    if main in commits:
        commit = main
    elif len(commits) == 1:
        commit = commits[0]
    else:
        message = f"has {len(commits)} snapshots, and refs/main names none of them"
        raise AttnscopeError(
            message, where=path, hint=f"pass one of them, such as {path / _SNAPSHOTS / commits[0]}"
        )
    snapshot = path / _SNAPSHOTS / commit
    _require_files(snapshot, hint, why, weights=weights)
    return snapshot, commit == main


def _require_files(snapshot: Path, hint: str, why: str, *, weights: bool) -> None:
    """Refuse a snapshot that has a link to a file that is not there, or lacks the config or the weights."""
    try:
        entries = list(os.scandir(snapshot))
    except OSError as e:
        raise AttnscopeError(f"cannot be listed: {e.strerror}", where=snapshot) from e
    names = sorted(entry.name for entry in entries)
    dangling = [
        entry.name for entry in entries if entry.is_symlink() and not os.path.exists(entry.path)
    ]
    if missing := sorted(name for name in dangling if name.endswith(_NEEDED)):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise AttnscopeError(
            f"the blob of {missing[0]}{more} is missing{why}", where=snapshot, hint=hint
        )
    # A snapshot of sentence-transformers has its model in a folder.
    nested = any(entry.is_dir() for entry in entries)
    there = {
        "config.json": "config.json" in names,
        "weights": any(name.endswith(_WEIGHTS) for name in names),
    }
    for what, present in there.items():
        if not (present or nested) and (weights or what == "config.json"):
            held = ", ".join(names[:3]) or "nothing"
            raise AttnscopeError(f"holds {held}, but no {what}{why}", where=snapshot, hint=hint)


def not_cached(name: str, model_names: list[str], where: str | None) -> AttnscopeError:
    """Return the error for a model that is neither a path nor in the cache."""
    near = did_you_mean(name, model_names) if model_names else ""
    try:
        cached = [
            folder.removeprefix(_PREFIX)
            for folder in os.listdir(cache_folder())
            if folder.startswith(_PREFIX)
        ]
    except OSError:
        cached = []
    names = ["/".join(folder.split("--", 1)) for folder in cached]
    last = name.lower().rpartition("/")[2]
    # the same name of other authors, or in other capitals
    if similar := sorted(other for other in names if other.lower().rpartition("/")[2] == last):
        hint = f"the Hugging Face cache has {' and '.join(similar)}"
    elif near.startswith("did"):
        hint = near
    else:
        hint = f"to download it, run: hf download {name} (or attnscope pull {name}, which skips files it does not need)"
    message = "no such folder, bundled sample or repository in the Hugging Face cache"
    return AttnscopeError(message, where=f"{where}: {name}" if where else name, hint=hint)
