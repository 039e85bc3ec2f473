"""Read a tokenizer.json, and disable options that drop, add or vary tokens.

Nearly all of a tokenizer.json is vocabulary and merges. They stay text for the library that uses them: parsing them
into Python objects would take longer than everything else in opening a checkpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import as_object, parse_json, refuse_non_json
from attnscope.checkpoints.tokenization.rust import call_rust

# how words are split before merges, in the spelling of the library's regular expressions
LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LETTERS + r"\p{N}" + REST
_LARGE = 1 << 16  # smallest size in bytes of values that are not parsed
_PREFIX = 1 << 10  # bytes by which it is found


class _LargeValues(msgspec.Struct):
    vocab: msgspec.Raw = msgspec.Raw()
    merges: msgspec.Raw = msgspec.Raw()


class _ModelOnly(msgspec.Struct):
    model: _LargeValues


@dataclass(frozen=True)
class TokenizerJson:
    """A tokenizer.json, ready for use."""

    content: dict[str, Any]  # its values; null for a vocabulary and merges that stay text
    text: str
    notes: list[str]
    # entries of a vocabulary that stays text, if it is an object: duplicate words count twice
    unparsed: int | None
    merges: int


def read_tokenizer_json(data: bytes, path: Path) -> TokenizerJson:
    """Parse a tokenizer.json, with vocabulary and merges left as text."""
    bulk, content = _parse_apart(data, str(path))
    if content is None:
        bulk = {}
        content = as_object(parse_json(data, str(path)), str(path))
    notes, changed = call_rust(lambda: _disable_stored_options(content), path, "cannot be used")
    raw_parts = {name: msgspec.Raw(value) for name, value in bulk.items()}
    kept_content = content | ({"model": content["model"] | raw_parts} if raw_parts else {})
    text = call_rust(
        lambda: (msgspec.json.encode(kept_content) if changed else data).decode(),
        path,
        "cannot be used",
    )
    vocab = bulk.get("vocab", b"")
    merges = bulk.get("merges", b"")
    unparsed = _count_strings(vocab) if vocab.startswith(b"{") else None
    # A merge is a pair of strings; in older files it is one string.
    pairs = merges[1:].lstrip().startswith(b"[")
    return TokenizerJson(content, text, notes, unparsed, _count_strings(merges) // (1 + pairs))


def _parse_apart(data: bytes, where: str) -> tuple[dict[str, bytes], dict[str, Any] | None]:
    """Return the large parts of a tokenizer.json as text, and the rest parsed, with null in place of these.

    The rest is None if only parsing all of it can tell.
    """
    refuse_non_json(data, where)
    try:
        model = msgspec.json.decode(data, type=_ModelOnly).model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}, None
    values = {"vocab": bytes(model.vocab), "merges": bytes(model.merges)}
    bulk = {name: value for name, value in values.items() if len(value) >= _LARGE}
    for value in bulk.values():
        # Searching for all of it takes longer.
        start = data.find(value[:_PREFIX])
        end = start + len(value)
        if data[start:end] != value:
            return bulk, None
        data = b"%bnull%b" % (data[:start], data[end:])
    try:
        content = as_object(parse_json(data, where), where)
    except AttnscopeError:
        return bulk, None
    return bulk, content if all(content["model"][name] is None for name in bulk) else None


def _count_strings(data: bytes) -> int:
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    return data.count(b'"') // 2


def _disable_stored_options(content: dict[str, Any]) -> tuple[list[str], bool]:
    """Remove options that drop, add or vary tokens; return notes, and whether anything changed."""
    notes = list[str]()
    changed = False
    for key in ("truncation", "padding"):
        if content.get(key) is not None:
            notes.append(f"ignoring the {key} stored in tokenizer.json")
            content[key] = None
            changed = True
    model = content.get("model")
    if isinstance(model, dict) and model.get("dropout") is not None:
        if model["dropout"] != 0:
            notes.append(f"ignoring the BPE dropout {model['dropout']} stored in tokenizer.json")
        model["dropout"] = None
        changed = True
    for part in components(content.get("post_processor")):
        if part.get("trim_offsets") is True:
            # Spans that cover the white space, trimmed later: same ids.
            part["trim_offsets"] = False
            changed = True
    return notes, changed


def isolate(expression: str) -> dict[str, Any]:
    """Return a pre-tokenizer that splits a text into what a regular expression matches, and what is between."""
    return {
        "type": "Split",
        "pattern": {"Regex": expression},
        "behavior": "Isolated",
        "invert": False,
    }


def assemble(
    model: Mapping[str, Any], added_tokens: Sequence[Mapping[str, Any]], **parts: Any
) -> dict[str, Any]:
    """Return the content of a tokenizer.json, without the parts that are not given."""
    empty = dict.fromkeys(
        ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    )
    if model["type"] == "BPE":
        defaults = dict.fromkeys(
            ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
        )
        model = {
            **defaults,
            **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False),
            **model,
        }
    return {"version": "1.0", **empty, **parts, "added_tokens": added_tokens, "model": model}


def template(
    ids: Mapping[str, int], opens: Sequence[str], closes: Sequence[str], second: Sequence[str]
) -> dict[str, Any]:
    """Return a post-processor that puts special tokens around every text, and `second` before that of a pair."""

    def side(name: str, type_id: int, before: Sequence[str]) -> list[dict[str, Any]]:
        opening, closing = (
            [{"SpecialToken": {"id": t, "type_id": type_id}} for t in tokens]
            for tokens in (before, closes)
        )
        return [*opening, {"Sequence": {"id": name, "type_id": type_id}}, *closing]

    single = side("A", 0, opens)
    special_tokens = {
        name: {"id": name, "ids": [token_id], "tokens": [name]} for name, token_id in ids.items()
    }
    pair = [*single, *side("B", 1, second)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": special_tokens,
    }


def components(*roots: Any) -> Iterator[dict[str, Any]]:
    """Yield the components of a tokenizer, those within a Sequence included."""
    for root in roots:
        if isinstance(root, dict):
            yield root
            for key in ("processors", "pretokenizers", "decoders", "normalizers"):
                if isinstance(root.get(key), list):
                    yield from components(*root[key])
