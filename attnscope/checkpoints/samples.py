"""Find bundled samples and configs by name."""

from pathlib import Path
from typing import Literal

from attnscope.base.errors import AttnscopeError, arg, did_you_mean

SampleKind = Literal["sample_weights", "configs"]
GGUF = ".gguf"
_PACKAGE = Path(__file__).parent.parent


def samples_folder(sample_kind: SampleKind) -> Path:
    """Return the folder of everything shipped of one kind: in the wheel, or next to the package in a checkout."""
    in_wheel = _PACKAGE / "_shipped" / sample_kind
    in_checkout = _PACKAGE.parent / sample_kind
    # site-packages may contain another package's folder `configs`, but no pyproject.toml
    if not in_wheel.is_dir() and (_PACKAGE.parent / "pyproject.toml").is_file():
        return in_checkout
    return in_wheel


def sample_names(sample_kind: SampleKind) -> list[str]:
    """Return names of the shipped samples (`sample_weights`) or configs (`configs`), sorted."""
    folder = samples_folder(sample_kind)
    if sample_kind == "configs":
        return sorted(path.stem for path in folder.glob("*.toml"))
    return sorted(path.parent.name for path in folder.glob("*/config.json"))


def find_config(name_or_path: str) -> Path:
    """Return the TOML file of a stack: one that exists, or the shipped config of that name, with or without `.toml`."""
    path = Path(name_or_path)
    if exists(path, folder=False):
        return path
    if exists(path, folder=True):
        hint = f"use {arg('model')} for a checkpoint folder"
        raise AttnscopeError("is a folder, not a TOML file", where=path, hint=hint)
    name = name_or_path.removesuffix(".toml")
    config_names = sample_names("configs")
    if name in config_names:
        return samples_folder("configs") / f"{name}.toml"
    near = did_you_mean(name_or_path, config_names) if config_names else None
    raise AttnscopeError("no such file or bundled config", where=name_or_path, hint=near)


def exists(path: Path, *, folder: bool) -> bool:
    """Tell whether a folder or file of this name exists."""
    try:
        if folder:
            return path.is_dir()
        return path.exists() and not path.is_dir()
    except (OSError, ValueError):
        # The name is too long or contains NUL, or a parent folder is not accessible.
        return False
