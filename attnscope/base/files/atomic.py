"""Write files atomically: a reader never sees half a file, and a failure leaves no trace."""

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.system.file_system import copy_permissions, create_new, rename_new, sync_folder
from attnscope.base.system.signals import at_signal, defer_signals

# how the names of files begin that a checkpoint's folder is read from
_CHECKPOINT_FILES = (
    *(
        "config.json",
        "generation_config.json",
        "model",
        "pytorch_model",
        "adapter_config.json",
        "adapter_model",
    ),
    *("tokenizer", "special_tokens_map.json", "added_tokens.json", "vocab", "merges"),
)


def check_target(path: Path, *, force: bool) -> None:
    """Refuse a target that `write_atomic` would refuse, before hours of work go into it.

    A symbolic link is refused even with `force`: replacing it would leave the file it points to as it was, and writing
    through it would put the temporary file, and the rename, in a folder that the user did not name.
    """
    check_name(path)
    try:
        status = path.lstat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            message = "is not a folder" if path.parent.exists() else "no such folder"
            raise AttnscopeError(
                message, where=path.parent, hint="use an existing folder"
            ) from None
        return
    except OSError as e:
        raise _write_error(path, e) from e
    _check_existing(path, status.st_mode, force=force)


def check_not_read(path: Path, inputs: Iterable[object]) -> None:
    """Refuse a target that the same command reads, whatever `--force` says.

    Args:
        inputs: Inputs that the user named: files, folders of checkpoints, masks, texts; lists of these; None for
            nothing.
    """
    for name in {
        part for text in _texts(inputs) for part in (text, *map(str.strip, text.split("+")))
    }:
        with suppress(OSError, ValueError):
            # One of the paths does not exist, or cannot be opened.
            belongs = (
                path.name.startswith(_CHECKPOINT_FILES)
                and path.exists()
                and os.path.samefile(path.parent, name)
            )
            if belongs or os.path.samefile(path, name):
                message = "is an input of this command"
                if belongs:
                    message = f"is a file of {name}"
                raise AttnscopeError(message, where=path, hint="choose another output")


def _texts(inputs: Iterable[object]) -> Iterator[str]:
    for value in inputs:
        if isinstance(value, list | tuple):
            yield from _texts(value)
        elif value is not None:
            yield str(value)


def check_name(path: Path) -> None:
    """Refuse a name that no file can have, before checking whether it exists."""
    try:
        path.lstat()
    except ValueError as e:
        # NUL, or what the file system's encoding cannot spell.
        raise AttnscopeError(
            "is not a valid file name", where=path, hint="choose another name"
        ) from e
    except OSError as e:
        if e.errno == errno.ENAMETOOLONG:
            raise AttnscopeError(
                "the name is too long", where=path, hint="choose another name"
            ) from e


def write_atomic(path: Path, parts: Iterable[bytes], *, force: bool) -> int:
    """Put a whole file in place: temporary file in the same folder, fsync, rename, fsync of the folder.

    Args:
        force: An existing regular file may be replaced; it keeps its permissions.

    Returns:
        Its size.
    """
    check_target(path, force=force)
    temporary = path.parent / f".attnscope-{secrets.token_hex(6)}.tmp"
    with at_signal(temporary.unlink):
        try:
            size = _write(temporary, parts, like=path)
            _rename(temporary, path, force=force)
            sync_folder(path.parent)
        except OSError as e:
            raise _write_error(path, e) from e
        finally:
            with suppress(OSError):
                temporary.unlink()
    return size


def _check_existing(path: Path, mode: int, *, force: bool) -> None:
    if stat.S_ISDIR(mode):
        raise AttnscopeError("is a folder", where=path, hint="add a file name")
    if stat.S_ISLNK(mode):
        message = f"is a symbolic link to '{os.readlink(path)}'"
        raise AttnscopeError(message, where=path, hint="use the file itself, or remove the link")
    if not stat.S_ISREG(mode):
        raise AttnscopeError("is not a regular file", where=path, hint="choose another name")
    if not force:
        raise AttnscopeError(
            "exists", where=path, hint=f"pass {arg('force', True)} to overwrite it"
        )
    # A rename would replace even a read-only file, since only the permissions of the folder matter for it.
    if not mode & 0o222:
        raise AttnscopeError(
            "is read-only", where=path, hint="make it writable, or choose another name"
        )


def _write(temporary: Path, parts: Iterable[bytes], *, like: Path) -> int:
    with defer_signals():
        # If a signal arrives before, there is nothing to remove.
        descriptor = create_new(temporary)
    with open(descriptor, "wb") as file:
        if like.exists():
            copy_permissions(descriptor, like)
        size = sum(file.write(part) for part in parts)
        file.flush()
        os.fsync(descriptor)
    return size


def _rename(temporary: Path, path: Path, *, force: bool) -> None:
    if force:
        os.replace(temporary, path)
        return
    try:
        rename_new(temporary, path)
    except FileExistsError:
        raise AttnscopeError(
            "exists", where=path, hint=f"pass {arg('force', True)} to overwrite it"
        ) from None


def _write_error(path: Path, error: OSError) -> AttnscopeError:
    reason = error.strerror or type(error).__name__
    return AttnscopeError(
        f"cannot be written ({reason})", where=path, hint="choose a folder you can write to"
    )
