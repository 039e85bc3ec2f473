"""Find the tokenizer of a checkpoint, or of `--tokenizer`: a tokenizer.json, or files to build one from."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.base.files.reading import as_object, format_value, parse_json, read_file, read_json
from attnscope.checkpoints.folder import CONFIG, MAX_CONFIG, MAX_TOKENIZER, TOKENIZER, Folder
from attnscope.checkpoints.locating import locate
from attnscope.checkpoints.samples import exists
from attnscope.checkpoints.source import ModelSource
from attnscope.checkpoints.tokenization.hugging_face import FileTokenizer, load_tokenizer
from attnscope.checkpoints.tokenization.word_tokenizer import MissingTokenizer

OPTION = arg("tokenizer")
_TOKENIZER_CONFIG = "tokenizer_config.json"
_SPECIAL = "special_tokens_map.json"
_ADDED = "added_tokens.json"
_OPTIONS = (_TOKENIZER_CONFIG, _SPECIAL, _ADDED)
_GENERIC = ("PreTrainedTokenizer", "TokenizersBackend")  # classes that only read a tokenizer.json
_MAX_OPTIONS = 20 * MAX_CONFIG  # some list thousands of added tokens
_HINT = (
    f"pass {arg('tokenizer', placeholder='PATH')}: a tokenizer.json of this model, or a folder that has one, as "
    "transformers writes with AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW)"
)
# Names of vocabulary files, including those that are not supported.
_VOCABULARIES = (
    "vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model",
    "tokenizer.model.v3", "tekken.json", "bpe.codes", "source.spm", "target.spm", "tiktoken.model", "qwen.tiktoken",
)  # fmt: skip


@dataclass(frozen=True)
class FoundTokenizer:
    """A tokenizer, opened."""

    tokenizer: FileTokenizer | MissingTokenizer
    files: dict[str, int]  # name and size in bytes of its files, if a Folder does not list them
    # SHA-256 (hex) over these files; empty if the Folder's fingerprint counts the tokenizer
    digest: str
    name: str | None = None  # name that the user gave; None for the checkpoint's own tokenizer

    def give_to(self, source: ModelSource) -> ModelSource:
        """Return a model with this tokenizer."""
        fingerprint = source.fingerprint
        if self.digest:
            fingerprint = sha256((fingerprint + self.digest).encode()).hexdigest()[:16]
        return replace(
            source,
            tokenizer=self.tokenizer,
            fingerprint=fingerprint,
            notes=(*source.notes, *self.tokenizer.warnings),
            details=(*source.details, *self.tokenizer.notes),
            tokenizer_name=self.name,
            tokenizer_files=self.files,
        )


def find_tokenizer(folder: Folder, tokenizer_name: str | None) -> FoundTokenizer:
    """Open the tokenizer of a checkpoint, or the named one; if the checkpoint has none, a MissingTokenizer."""
    if tokenizer_name is not None:
        return open_tokenizer(tokenizer_name, folder.config)
    try:
        if folder.tokenizer is not None:
            return FoundTokenizer(FileTokenizer(folder.path, folder.tokenizer), {}, "")
        present = set(os.listdir(folder.path))
        if TOKENIZER in present:
            return FoundTokenizer(load_tokenizer(folder.path / TOKENIZER), {}, "")
        return _build(folder.path, present, folder.config)
    except AttnscopeError as e:
        return FoundTokenizer(MissingTokenizer(e), {}, "")


def open_tokenizer(tokenizer_name: str, config: Mapping[str, Any]) -> FoundTokenizer:
    """Open a tokenizer.json (of any name), a vocabulary file, a folder with one, or that of a model, by its name.

    The model's config.json decides how a vocabulary is used if the folder does not.
    """
    path = Path(tokenizer_name)
    if not exists(path, folder=False):
        path = locate(tokenizer_name, OPTION).path
        present = set(os.listdir(path))
        if TOKENIZER not in present:
            if CONFIG in present:
                config = as_object(read_json(path / CONFIG, cap=MAX_CONFIG), str(path / CONFIG))
            return replace(_build(path, present, config), name=tokenizer_name)
        path /= TOKENIZER
    elif path.name in _VOCABULARIES:
        built = _build(path.parent, set(os.listdir(path.parent)), config, path.name)
        return replace(built, name=tokenizer_name)
    elif path.suffix != ".json" or path.name in (CONFIG, *_OPTIONS):
        hint = "pass a tokenizer.json, vocab.txt, vocab.json, tokenizer.model, or a folder that has one"
        raise UsageError(f"'{path.name}' is not a tokenizer", where=OPTION, hint=hint)
    data = read_file(path, cap=MAX_TOKENIZER)
    return FoundTokenizer(
        FileTokenizer(path, data), {path.name: len(data)}, sha256(data).hexdigest(), tokenizer_name
    )


def _build(
    path: Path, present: set[str], config: Mapping[str, Any], file: str | None = None
) -> FoundTokenizer:
    from attnscope.checkpoints.tokenization.building import (
        KINDS,
        VOCAB_TXT,
        WORDPIECE,
        Sources,
        build_tokenizer,
    )

    option_files = _read_options(path, present)
    options = _options(path, option_files)
    stated = options.get("tokenizer_class") or config.get("tokenizer_class")
    name = str(stated).removesuffix("Fast") if stated else None
    family = config.get("model_type")
    fitting = [
        tokenizer_kind
        for tokenizer_kind in KINDS
        if family in tokenizer_kind.families and name in (None, tokenizer_kind.name)
    ]
    # A class that transformers makes of the same files for any model.
    is_wordpiece = name == WORDPIECE.name
    if is_wordpiece or (file == VOCAB_TXT and name in (None, *_GENERIC)):
        fitting += [WORDPIECE]
    tokenizer_kind = next(
        (
            tokenizer_kind
            for tokenizer_kind in fitting
            if present.issuperset(tokenizer_kind.files) and file in (None, *tokenizer_kind.files)
        ),
        None,
    )
    if tokenizer_kind is None:
        raise _refuse(path, present, name, family)
    data = {name: read_file(path / name, cap=MAX_TOKENIZER) for name in tokenizer_kind.files}
    tokenizer = build_tokenizer(tokenizer_kind, Sources(path, data, options))
    used = data | option_files
    digest = sha256(b"".join(sha256(used[name]).digest() for name in sorted(used))).hexdigest()
    return FoundTokenizer(tokenizer, {name: len(used[name]) for name in used}, digest)


def read_options(path: Path, present: Collection[str]) -> dict[str, Any]:
    """Read a folder's options for special tokens, the treatment of texts, and chat templates."""
    return _options(path, _read_options(path, present))


def _read_options(path: Path, present: Collection[str]) -> dict[str, bytes]:
    return {name: read_file(path / name, cap=_MAX_OPTIONS) for name in _OPTIONS if name in present}


def _options(path: Path, option_files: Mapping[str, bytes]) -> dict[str, Any]:
    """Read options for special tokens and the treatment of texts, in transformers' order of precedence."""
    read = {
        name: as_object(parse_json(data, str(path / name)), str(path / name))
        for name, data in option_files.items()
    }
    options = dict(read.get(_TOKENIZER_CONFIG, {}))
    if "added_tokens_decoder" in options:
        return options
    options |= read.get(_SPECIAL, {})
    special = {
        str(token)
        for value in options.values()
        for token in (value if isinstance(value, list) else [value])
    }
    decoder = {}
    for content, token_id in read.get(_ADDED, {}).items():
        if type(token_id) is not int or token_id < 0:
            message = f"{format_value(content)} has the id {format_value(token_id)}"
            raise AttnscopeError(f"{message}; expected a whole number", where=path / _ADDED)
        decoder[str(token_id)] = {"content": content, "special": content in special}
    return options | {"added_tokens_decoder": decoder}


def _refuse(path: Path, present: set[str], name: str | None, family: Any) -> AttnscopeError:
    """Return the error for a folder without a usable tokenizer; it names the files that exist."""
    there = [file for file in _VOCABULARIES if file in present]
    there += sorted(file for file in present if file.endswith(".tiktoken") and file not in there)
    if not there:
        return AttnscopeError("has no tokenizer", where=path, hint=_HINT)
    listed = ", ".join(there)
    if name is None or name in _GENERIC:
        why = f"it is unknown which tokenizer {format_value(family)} uses with them"
    else:
        why = f"the {format_value(name)} of {format_value(family)} cannot be built from them"
    return AttnscopeError(f"has no {TOKENIZER}, but {listed}: {why}", where=path, hint=_HINT)
