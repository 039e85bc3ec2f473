"""Write a dump to an object store: on this disk first, where it can be resumed, and then as whole objects.

A file is sent once it is complete. Of a folder, each shard or part is sent as soon as it is safe, and leaves an empty
file on this disk; what says that they are all there (the index, or the manifest and `_SUCCESS.parquet`) is sent last.
No reader of the store ever finds a part of an object, or an index of objects that are not there.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.base.system.file_system import FileSystem
from attnscope.batch.dump import write_dump
from attnscope.batch.file_errors import naming_errors
from attnscope.batch.loading import DumpConfig
from attnscope.batch.parquet_sink import COMPLETE, MANIFEST, manifest_path
from attnscope.batch.remote import Store, url_of
from attnscope.batch.sinks import INDEX
from attnscope.batch.summary import Summary

_PARTS = (".safetensors", ".parquet")


def staging_path(url: str) -> Path:
    """Return the local folder of a dump until its store has all of it."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    digest = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    return (
        Path(cache).expanduser()
        / "attnscope"
        / "remote"
        / digest
        / url.rstrip("/").rpartition("/")[2]
    )


def write_remote_dump(
    order: DumpConfig, on_progress: Callable[[Summary, int], None], **options: Any
) -> Summary:
    """Write a dump whose output is a URL, or resume one; see write_dump."""
    url = url_of(order.output)
    assert url is not None
    if url_of(order.input) == url:
        raise AttnscopeError("is an input of this command", where=url, hint="choose another output")
    staged = _Staged(url)
    staged.prepare(force=order.force)
    summary = write_dump(
        replace(order, output=staged.path), on_progress, files=staged.files, **options
    )
    if not summary.stopped:
        staged.finish()
    return summary


class _Staged:
    """A dump on this disk, and in its store."""

    def __init__(self, url: str) -> None:
        self.path = staging_path(url)
        self.store = Store(url)
        if not self.path.name or self.store.url.count("/") < 3:
            raise UsageError(
                "has no name", where=arg("output", url), hint=f"use {url.rstrip('/')}/dump.jsonl"
            )
        self.is_table = self.path.suffix == ".parquet"
        self.is_folder = self.is_table or not self.path.suffix
        self.files = _SendingFiles(self)
        self._manifest = Store(f"{self.store.url}{MANIFEST}") if self.is_table else self.store
        self._fetched: tuple[int, int] | None = None
        self._sent = False

    @property
    def lines(self) -> Path:
        if self.is_table:
            return manifest_path(self.path)
        if self.is_folder:
            return self.path / INDEX
        return self.path

    def prepare(self, *, force: bool) -> None:
        """Make the folder, and fetch the files of a dump that only the store has."""
        with naming_errors(self.path):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if force or self.lines.exists():
            return
        name = INDEX if self.is_folder and not self.is_table else ""
        if self._manifest.size(name) is None:
            if self.is_folder and self.store.names():
                hint = f"choose a new folder, or pass {arg('force', True)} to replace them"
                raise AttnscopeError(
                    "is a folder with other files", where=self.store.url, hint=hint
                )
            return
        with naming_errors(self.path):
            if self.is_folder:
                self.path.mkdir(exist_ok=True)
            temporary = self.lines.with_name(f".{self.lines.name}.part")
            with open(temporary, "wb") as file:
                self._manifest.read(file, name)
            for part in self.store.names() if self.is_folder else ():
                if _is_part(part):
                    (self.path / part).parent.mkdir(exist_ok=True)
                    (self.path / part).touch()
            os.replace(temporary, self.lines)
        self._fetched = _state(self.lines)

    def send(self, path: Path) -> None:
        """Send a part that has its name, and leave an empty file of it."""
        # what says that the dump in the store is complete goes before one of its parts is replaced
        if not self._sent:
            self._sent = True
            self.store.remove(COMPLETE if self.is_table else INDEX)
            if self.is_table:
                self._manifest.remove()
        self.store.write(path, str(path.relative_to(self.path)))
        os.truncate(path, 0)

    def finish(self) -> None:
        """Send missing files, remove others from the store, and delete the local folder."""
        changed = _state(self.lines) != self._fetched
        if self.is_folder:
            parts = sorted(path for path in self.path.rglob("*") if _is_part(path.name))
            for path in parts:
                if path.stat().st_size:
                    self.send(path)
            if changed:
                here = {str(path.relative_to(self.path)) for path in parts}
                for name in self.store.names():
                    if _is_part(name) and name not in here:
                        self.store.remove(name)
        if changed and self.is_table:
            self._manifest.write(self.lines)
            self.store.write(self.path / COMPLETE, COMPLETE)
        elif changed:
            self.store.write(self.lines, INDEX if self.is_folder else "")
        shutil.rmtree(self.path.parent)


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _is_part(name: str) -> bool:
    return name.endswith(_PARTS) and not name.endswith(COMPLETE)


class _SendingFiles(FileSystem):
    """The local file system, which also sends parts to a store."""

    def __init__(self, staged: _Staged) -> None:
        self._staged = staged

    def replace(self, old: Path, new: Path) -> None:
        """Rename a file, and send it if it is now a part."""
        super().replace(old, new)
        if _is_part(new.name):
            self._staged.send(new)
