"""Open a checkpoint: a folder in Hugging Face layout, or a GGUF file."""

from pathlib import Path

from attnscope.checkpoints.folder import Folder, open_folder
from attnscope.checkpoints.samples import GGUF


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
