"""Objects of stores that fsspec reaches (s3://, gs://, hf://): read in pieces, and written as a whole or not at all."""

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from attnscope.base.errors import REMOTE, AttnscopeError

SCHEMES = ("s3", "gs", "hf")
_URL = re.compile(rf"({'|'.join(SCHEMES)}):/+(.*)", re.DOTALL)
_PIECE = 1 << 23  # bytes of a request
_WAITS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before a request that failed is sent again
_LASTING = (
    "NoCredentialsError",
    "PermissionError",
    "FileNotFoundError",
    "NotADirectoryError",
    "IsADirectoryError",
)
_MISSING = "no such bucket or object"
T = TypeVar("T")


def url_of(name: str | Path) -> str | None:
    """Return the URL in a name, with the slashes that Path joins restored; None for a local name."""
    match = _URL.fullmatch(str(name))
    if match is None:
        return None
    return f"{match[1]}://{match[2]}"


def shown(name: str | Path) -> str:
    """Return a name as the user typed it."""
    return url_of(name) or str(name)


class Store:
    """The store of a URL."""

    def __init__(self, url: str) -> None:
        REMOTE.require("a remote path", where=url)
        import fsspec

        self.url = url.rstrip("/")
        try:
            self._files, self._path = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        except (ImportError, ValueError) as e:
            hint = f"pip install 'attnscope[{REMOTE.name}]'"
            raise AttnscopeError(
                f"cannot be opened ({_first_line(e)})", where=url, hint=hint
            ) from e

    def size(self, name: str = "") -> int | None:
        """Return the bytes of an object in the URL's folder, or of the URL itself; None if there is none."""
        info = self._info(name)
        if info is None or info["type"] == "directory":
            return None
        return int(info["size"])

    def names(self) -> list[str]:
        """Return the names of all objects in the folder of the URL and in its folders."""
        paths = self._tried(lambda: self._files.find(self._path), self.url)
        if paths is None:
            return []
        return [path.removeprefix(self._path).lstrip("/") for path in paths]

    def read(self, file: IO[bytes], name: str = "") -> None:
        """Copy an object to a file, piece by piece; a failed request is repeated from its offset."""
        url, path = self._name(name)
        before = self._info(name)
        if before is None or before["type"] == "directory":
            raise AttnscopeError(_MISSING if before is None else "is a folder", where=url)
        size = int(before["size"])
        for start in range(0, size, _PIECE):
            piece = partial(self._piece, path, start, min(size, start + _PIECE))
            file.write(self._tried(piece, url) or b"")
        if _version(before) != _version(self._info(name)):
            raise AttnscopeError(
                "changed while it was read", where=url, hint="run the command again"
            )

    def write(self, file: Path, name: str = "") -> None:
        """Send a file, which becomes visible as a whole object."""
        url, path = self._name(name)

        def send() -> None:
            self._files.put_file(str(file), path)
            if self.size(name) != file.stat().st_size:
                raise OSError("it arrived with another size")

        self._tried(send, url)

    def remove(self, name: str = "") -> None:
        """Remove an object, if it is there."""
        url, path = self._name(name)

        def remove() -> None:
            # that it is missing is an error of its own; Hugging Face refuses to remove it
            self._files.info(path)
            self._files.rm_file(path)

        self._tried(remove, url, missing=True)

    def _name(self, name: str) -> tuple[str, str]:
        if name:
            return (f"{self.url}/{name}", f"{self._path}/{name}")
        return (self.url, self._path)

    def _info(self, name: str) -> dict[str, Any] | None:
        url, path = self._name(name)
        info: dict[str, Any] | None = self._tried(lambda: self._files.info(path), url, missing=True)
        return info

    def _piece(self, path: str, start: int, stop: int) -> bytes:
        content: bytes = self._files.cat_file(path, start=start, end=stop)
        if len(content) != stop - start:
            raise OSError("the answer was cut off")
        return content

    def _tried(self, request: Callable[[], T], url: str, *, missing: bool = False) -> T | None:
        """Send a request until it is answered; if an object may be `missing`, return None for that."""
        for wait in (*_WAITS, None):
            try:
                self._files.invalidate_cache()
                return request()
            except FileNotFoundError as e:
                if missing:
                    return None
                raise AttnscopeError(_MISSING, where=url) from e
            except Exception as e:  # each store has exceptions of its own
                if wait is None or type(e).__name__ in _LASTING:
                    hint = "check the address, the network and your credentials, and run the same command again"
                    raise AttnscopeError(
                        f"the store does not answer ({_first_line(e)})", where=url, hint=hint
                    ) from e
                time.sleep(wait)
        raise AssertionError


def _version(info: dict[str, Any] | None) -> Any:
    """Return a value that differs between two versions of an object."""
    return info and [info.get(name) for name in ("size", "ETag", "etag", "generation", "blob_id")]


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
