"""Build the tokenizer.json that a GGUF file's metadata describes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import format_value
from attnscope.checkpoints.tokenization.pieces import byte_alphabet
from attnscope.checkpoints.tokenization.tokenizer_json import (
    LETTERS,
    QWEN2,
    REST,
    assemble,
    isolate,
    template,
)

# token types
_CONTROL = 3
_USER_DEFINED = 4
_SPECIAL = ("bos", "eos", "unknown", "padding")
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_SLASHED = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = LETTERS + r"\p{N}{1,3}" + REST
_TEKKEN = f"{_UPPER}|{_LOWER}" + r"|\p{N}" + _SLASHED
_GPT4O = f"{_UPPER}{_ENDINGS}|{_LOWER}{_ENDINGS}" + r"|\p{N}{1,3}" + _SLASHED
_GPT2 = ""  # the library's own expression
_PER_DIGIT = "digits"  # the same, after every digit is split off
# `tokenizer.ggml.pre` to how words are split before merges, as in llama.cpp, which has several names for one way.
_SPLITS = {
    "gpt-2": _GPT2,
    "smollm": _PER_DIGIT,
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "dbrx", "smaug-bpe"), _LLAMA3
    ),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), QWEN2),
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
}
# a word that is in the vocabulary is one token, whatever the merges
_WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe")


def tokenizer_json(
    metadata: Mapping[str, Any], architecture: str, path: Path
) -> tuple[bytes, tuple[str, ...]]:
    """Return the tokenizer.json, and notes; `general.architecture` alone says how sentencepiece treats spaces."""
    vocabulary = _TokenizerMetadata(metadata, path)
    model_type = vocabulary.get("model", str)
    notes = list[str]()
    if model_type == "gpt2":
        content = _byte_level(vocabulary, notes)
    elif model_type == "llama":
        content = _sentencepiece(vocabulary, architecture)
    else:
        hint = "expected gpt2 (byte-level BPE) or llama (sentencepiece)"
        raise vocabulary.wrong("model", f"is {format_value(model_type)}", hint)
    return msgspec.json.encode(content), tuple(notes)


class _TokenizerMetadata:
    """The tokenizer's part of the metadata."""

    def __init__(self, metadata: Mapping[str, Any], path: Path) -> None:
        self.metadata = metadata
        self.path = path
        self.tokens: list[str] = self._texts("tokens")
        types = self.get("token_type", list, [])
        self.types: list[Any] = types + [1] * (len(self.tokens) - len(types))

    def get(self, name: str, value_type: type[Any], default: Any = ...) -> Any:
        value = self.metadata.get(f"tokenizer.ggml.{name}")
        if value is None and default is not ...:
            return default
        if not isinstance(value, value_type):
            message = "is missing" if value is None else f"is {format_value(value)}"
            raise self.wrong(name, message, "the text cannot be tokenized without it")
        return value

    def wrong(self, name: str, message: str, hint: str) -> AttnscopeError:
        return AttnscopeError(message, where=f"{self.path}: tokenizer.ggml.{name}", hint=hint)

    def _texts(self, name: str) -> list[str]:
        values: list[str] = self.get(name, list)
        if not values or not all(isinstance(value, str) for value in values):
            raise self.wrong(
                name, "is not a list of texts", "the file is damaged: download it again"
            )
        return values

    def special(self, name: str) -> int | None:
        """Return the id of a special token; None if there is none."""
        token_id: int | None = self.get(f"{name}_token_id", int, None)
        if token_id is not None and not 0 <= token_id < len(self.tokens):
            hint = f"the vocabulary has {len(self.tokens):,} tokens"
            raise self.wrong(f"{name}_token_id", f"is {token_id}", hint)
        return token_id

    def pairs(self) -> list[list[str]] | None:
        """Return the merges; None if there are none."""
        if "tokenizer.ggml.merges" not in self.metadata:
            return None
        merges = [merge.split(" ") for merge in self._texts("merges")]
        if any(len(pair) != 2 for pair in merges):
            raise self.wrong(
                "merges",
                "has an entry that is not two pieces",
                "the file is damaged: download it again",
            )
        return merges

    def scores(self) -> list[float]:
        scores: list[float] = self.get("scores", list)
        if len(scores) != len(self.tokens) or not all(isinstance(score, float) for score in scores):
            raise self.wrong(
                "scores", "is not one number per token", "the file is damaged: download it again"
            )
        return scores

    def content(
        self, model: dict[str, Any], add_start: bool, spelled: Sequence[str]
    ) -> dict[str, Any]:
        """Return what all kinds of tokenizer.json share; `add_start` begins texts with the start token by default."""
        specials = {self.special(name) for name in _SPECIAL}
        added = [
            {"id": n, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": n in specials or token_type == _CONTROL}
            for n, (token, token_type) in enumerate(zip(self.tokens, self.types, strict=False))
            if (n in specials or token_type in (_CONTROL, _USER_DEFINED)) and spelled[n] == token
        ]  # fmt: skip
        return assemble({"type": "BPE", **model}, added, post_processor=self._template(add_start))

    def _template(self, add_start: bool) -> dict[str, Any]:
        start = None
        if self.get("add_bos_token", bool, add_start):
            start = self.special("bos")
        end = self.special("eos") if self.get("add_eos_token", bool, False) else None
        opens, closes = ([] if n is None else [self.tokens[n]] for n in (start, end))
        return template(
            {self.tokens[n]: n for n in (start, end) if n is not None}, opens, closes, opens
        )


def _byte_level(vocabulary: _TokenizerMetadata, notes: list[str]) -> dict[str, Any]:
    """Make a BPE over bytes, each spelled as a letter."""
    name = vocabulary.get("pre", str, "default")
    if name not in _SPLITS and name != "default":
        hint = f"known: {', '.join(_SPLITS)}"
        raise vocabulary.wrong("pre", f"is {format_value(name)}", hint)
    if name == "default":
        notes.append(
            "the GGUF file does not say how words are split (tokenizer.ggml.pre): split as GPT-2 does"
        )
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    alphabet = set(letters.values())
    spelled = []
    for token in vocabulary.tokens:
        if alphabet.issuperset(token):
            spelled.append(token)
        else:
            spelled.append("".join(letters[byte] for byte in token.encode()))
    model = {
        "vocab": {token: n for n, token in enumerate(spelled)},
        "merges": vocabulary.pairs() or [],
        "ignore_merges": name in _WHOLE_WORDS,
    }
    split = _SPLITS.get(name, _GPT2)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    steps: list[dict[str, Any]]
    if split == _PER_DIGIT:
        steps = [{"type": "Digits", "individual_digits": True}, level | {"use_regex": True}]
    elif split == _GPT2:
        steps = [level | {"use_regex": True}]
    else:
        steps = [isolate(split), level | {"use_regex": False}]
    return vocabulary.content(model, name in _WHOLE_WORDS, spelled) | {
        "normalizer": {"type": "NFC"} if name == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": level | {"use_regex": True},
    }


def _sentencepiece(vocabulary: _TokenizerMetadata, architecture: str) -> dict[str, Any]:
    """Make a BPE over characters, with a mark for spaces, and bytes for characters that the vocabulary lacks."""
    tokens = vocabulary.tokens
    gemma = architecture.startswith("gemma")
    pairs = vocabulary.pairs()
    if gemma:
        # Runs of spaces are stored as they are, and merges are ranked by the id of their result.
        tokens = ["▁" * len(token) if token and not token.strip(" ") else token for token in tokens]
    if pairs is None:
        if gemma:
            ranks = [-float(n) for n in range(len(tokens))]
        else:
            ranks = vocabulary.scores()
        pairs = _merges(tokens, ranks)
    unknown = vocabulary.special("unknown")
    model = {
        "vocab": {token: n for n, token in enumerate(tokens)},
        "merges": pairs,
        "fuse_unk": True,
        "byte_fallback": True,
        "unk_token": None if unknown is None else tokens[unknown],
    }
    content = vocabulary.content(model, True, tokens)
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    if architecture == "phi3":
        prefix = {"type": "Prepend", "prepend": "▁"}
        content["normalizer"] = {"type": "Sequence", "normalizers": [prefix, space]}
    elif gemma:
        content["normalizer"] = space
    else:
        scheme = "never"
        if vocabulary.get("add_space_prefix", bool, True):
            scheme = "first"
        content["pre_tokenizer"] = {
            "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False
        }  # fmt: skip
    return content


def _merges(tokens: Sequence[str], scores: Sequence[float]) -> list[list[str]]:
    """Return the merges that a vocabulary with scores implies: all splits of a token into two, the best first."""
    places = {token: n for n, token in enumerate(tokens)}
    best = dict(zip(tokens, scores, strict=True))
    merges: list[tuple[float, int, int, str, str]] = []
    for token, score in best.items():
        cuts = [(token[:n], token[n:]) for n in range(1, len(token))]
        known_pairs = [(left, right) for left, right in cuts if left in places and right in places]
        known_pairs.sort(key=lambda pair: (places[pair[0]], places[pair[1]]))
        merges += [(score, len(left), len(right), left, right) for left, right in known_pairs]
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    return [[left, right] for *_, left, right in merges]
