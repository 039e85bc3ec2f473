"""Open a checkpoint, whatever holds it: a folder in Hugging Face layout, or a GGUF file."""

from pathlib import Path

from attnscope.checkpoints.folder import TOKENIZER, Folder, open_folder
from attnscope.checkpoints.samples import GGUF
from attnscope.tokenization.hugging_face import FileTokenizer, load_tokenizer


def open_checkpoint(path: Path, adapter: str | None = None) -> Folder:
    """Read the config and all tensor headers of a checkpoint.

    Args:
        path: Its folder or file.
        adapter: Folder of a LoRA adapter that is added to it; None for none.

    Raises:
        AttnscopeError: A file is missing, damaged, contradicts another, or holds what is not supported.
    """
    if path.suffix != GGUF or path.is_dir():
        folder = open_folder(path)
    else:
        from attnscope.checkpoints.gguf import open_gguf

        folder = open_gguf(path)
    if adapter is None:
        return folder
    from attnscope.checkpoints.adapter import add_adapter

    return add_adapter(folder, Path(adapter))


def load_folder_tokenizer(folder: Folder) -> FileTokenizer:
    """The tokenizer of a checkpoint.

    Raises:
        AttnscopeError: There is none, or it cannot be used.
    """
    if folder.tokenizer is not None:
        return FileTokenizer(folder.path, folder.tokenizer)
    return load_tokenizer(folder.path / TOKENIZER)
