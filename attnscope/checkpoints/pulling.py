"""Fetch a repository into the Hugging Face cache: config, tokenizer and safetensors, and nothing else.

Beside batch/remote.py, this is the only module that uses the network. It relies on `huggingface_hub`, so that locks,
resumed downloads and the layout of the cache are those of other tools.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from attnscope.base.errors import AttnscopeError, UsageError, arg, listed
from attnscope.base.files.reading import as_object, read_json
from attnscope.checkpoints.chat.templates import TEMPLATE_FILE, TEMPLATE_FOLDER
from attnscope.checkpoints.folder import CONFIG, INDEX, MAX_INDEX, SINGLE
from attnscope.checkpoints.hub_cache import cache_folder, is_repository
from attnscope.checkpoints.locating import MODULES, transformer_folder

_T = TypeVar("_T")
_SMALL = (
    CONFIG, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentence_bert_config.json",
    TEMPLATE_FILE,
)  # fmt: skip
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_SHOWN = 3  # names of files in an error


def pull(name: str, *, bars: bool = False) -> Path:
    """Fetch a repository's files that attnscope reads, with the library's bars or without, and return their folder."""
    if not is_repository(name):
        hint = "use a name such as org/name"
        raise UsageError(f"'{name}' is not the name of a repository", where="ORG/NAME", hint=hint)
    hub = _Hub(name, bars=bars)
    names = hub.names()
    inner = ""
    if MODULES in names:
        inner = transformer_folder(hub.fetch(MODULES).parent) or ""
    prefix = f"{inner}/" if inner else ""
    above = 1 if inner else 0
    folders = {hub.fetch(file).parents[above] for file in _wanted(hub, names, prefix)}
    if len(folders) > 1:
        raise AttnscopeError(
            "has changed while it was downloaded", where=name, hint="run the command again"
        )
    return folders.pop()


def _wanted(hub: "_Hub", names: set[str], prefix: str) -> Iterator[str]:
    """Yield the files that are read, the weights last."""
    if prefix + CONFIG not in names:
        raise _lacks(hub.name, CONFIG, names)
    if prefix + SINGLE in names:
        weights = [prefix + SINGLE]
    elif prefix + INDEX in names:
        path = hub.fetch(prefix + INDEX)
        table = as_object(
            as_object(read_json(path, cap=MAX_INDEX), str(path)).get("weight_map", {}), str(path)
        )
        shards = sorted({prefix + str(shard) for shard in table.values()})
        if missing := [shard for shard in shards if shard not in names]:
            raise AttnscopeError(f"has no {missing[0]}, which {INDEX} lists", where=hub.name)
        weights = [prefix + INDEX, *shards]
    else:
        raise _lacks(hub.name, "safetensors", names)
    yield from (prefix + file for file in _SMALL if prefix + file in names)
    templates = f"{prefix}{TEMPLATE_FOLDER}/"
    yield from sorted(
        name for name in names if name.startswith(templates) and name.endswith(".jinja")
    )
    yield from weights


def _lacks(name: str, what: str, names: set[str]) -> AttnscopeError:
    """Return the error for a repository without config or safetensors; it names the files that exist."""
    pickles = sorted(file for file in names if file.endswith(_PICKLES))
    gguf = sorted(file for file in names if file.endswith(".gguf"))
    if what != CONFIG and pickles:
        hint = f"run: hf download {name}, then attnscope import turns its weights into safetensors"
        return AttnscopeError(
            f"has its weights only as pickles ({listed(pickles, _SHOWN)})", where=name, hint=hint
        )
    if gguf:
        hint = (
            f"run: hf download {name} {gguf[0]}, and pass the path that it prints to {arg('model')}"
        )
        return AttnscopeError(f"has no {what}, but {listed(gguf, _SHOWN)}", where=name, hint=hint)
    held = listed(sorted(names), _SHOWN)
    return AttnscopeError(
        f"has no {what} (it has {held or 'no files'})", where=name, hint="use another repository"
    )


class _Hub:
    """One repository, through `huggingface_hub`."""

    def __init__(self, name: str, *, bars: bool) -> None:
        try:
            import huggingface_hub
            import huggingface_hub.utils
        except ImportError as e:
            hint = "pip install huggingface_hub"
            raise AttnscopeError(
                "the library huggingface_hub is not installed", where="pull", hint=hint
            ) from e
        library: Any = huggingface_hub
        self.name = name
        self._library = library
        self._endpoint = os.environ.get("HF_ENDPOINT") or None
        if not bars:
            library.utils.disable_progress_bars()

    def names(self) -> set[str]:
        api = self._library.HfApi(endpoint=self._endpoint)
        info: Any = self._call(lambda: api.model_info(self.name))
        return {file.rfilename for file in info.siblings or ()}

    def fetch(self, file: str) -> Path:
        """Fetch a file, unless the cache has it, and return its path there."""
        cache = cache_folder()
        fetch = self._library.hf_hub_download
        return Path(
            self._call(lambda: fetch(self.name, file, cache_dir=cache, endpoint=self._endpoint))
        )

    def _call(self, call: Callable[[], _T]) -> _T:
        errors = self._library.utils
        try:
            return call()
        except errors.GatedRepoError as e:
            hint = (
                f"accept its terms at https://huggingface.co/{self.name}, and log in: hf auth login"
            )
            raise AttnscopeError("is gated", where=self.name, hint=hint) from e
        except errors.RepositoryNotFoundError as e:
            hint = "check its name; for a private one, log in: hf auth login"
            raise AttnscopeError("there is no such repository", where=self.name, hint=hint) from e
        except errors.OfflineModeIsEnabled as e:
            hint = "unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE"
            raise AttnscopeError(
                "cannot be downloaded in offline mode", where=self.name, hint=hint
            ) from e
        except MemoryError:
            raise
        except Exception as e:
            # Errors of the library's HTTP client, and of the file system.
            reason = " ".join(str(e).split())[:200] or type(e).__name__
            hint = "check the network, and run the command again: finished downloads are kept"
            raise AttnscopeError(
                f"cannot be downloaded ({reason})", where=self.name, hint=hint
            ) from e
