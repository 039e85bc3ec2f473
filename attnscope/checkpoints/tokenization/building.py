"""Make a tokenizer.json of the files that older checkpoints have in its place, as transformers does.

Only the class of the tokenizer determines how a text is split; a vocabulary alone fits many classes. A class is
therefore accepted only for the models it belongs to, and other options of tokenizer_config.json are refused.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.files.reading import (
    as_object,
    decode_utf8,
    format_value,
    identify_bytes,
    parse_json,
)
from attnscope.checkpoints.tokenization.hugging_face import FileTokenizer
from attnscope.checkpoints.tokenization.sentence_pieces import PieceModel, SentencePieceTokenizer
from attnscope.checkpoints.tokenization.tokenizer_json import QWEN2, assemble, isolate, template

VOCAB_TXT = "vocab.txt"
VOCAB_JSON = "vocab.json"
MERGES = "merges.txt"
MODEL = "tokenizer.model"
# in this order
_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_BERT_TOKENS = {
    f"{role}_token": f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")
}
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
_REFUSED: dict[str, tuple[Any, ...]] = {  # option to its only harmless values
    "do_basic_tokenize": (True,),
    "never_split": (None, []),
    "split_special_tokens": (False,),
    "wordpieces_prefix": ("##",),
    "sp_model_kwargs": (None, {}),
    "auto_map": (None,),
}
# Of the SmilesTokenizer of rxnmapper and DeepChem: atoms, bonds, rings and brackets (Schwaller et al., 2019).
_SMILES = r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9]"
_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": True,
    "trim_offsets": True,
    "use_regex": True,
}


@dataclass(frozen=True)
class Sources:
    """The files that a tokenizer is made of."""

    folder: Path
    data: Mapping[str, bytes]
    options: Mapping[str, Any]

    def flag(self, name: str, default: bool) -> bool:
        """Return an option that is true or false."""
        value = self.optional_flag(name)
        return default if value is None else value

    def optional_flag(self, name: str) -> bool | None:
        """Return an option that is true, false, or left out."""
        value = self.options.get(name)
        if not isinstance(value, bool | None):
            hint = "expected true or false"
            raise AttnscopeError(
                f"is {format_value(value)}", where=f"{self._config}: {name}", hint=hint
            )
        return value

    def refuse_options(self) -> None:
        """Refuse options that change tokens in unsupported ways."""
        for name, harmless in _REFUSED.items():
            if self.options.get(name, harmless[0]) not in harmless:
                message = f"{name} is {format_value(self.options[name])}, which tokenizer.json cannot express"
                hint = f"pass {arg('tokenizer')} with a tokenizer.json of this model"
                raise AttnscopeError(message, where=self._config, hint=hint)

    @property
    def _config(self) -> Path:
        return self.folder / "tokenizer_config.json"

    def special_tokens(
        self, by_role: Mapping[str, str], vocab: Mapping[str, int], file: str
    ) -> "SpecialTokens":
        """Return all tokens that are looked for before a text is split; `by_role` are those of the class by their role.

        Tokens that the vocabulary lacks follow after its last one, as in transformers.
        """
        roles = dict(by_role)
        tokens = dict[str, dict[str, Any]]()
        key = "added_tokens_decoder"
        where = f"{self._config}: {key}"
        decoder = dict[int, Any]()
        for spelled, entry in as_object(self.options.get(key) or {}, where).items():
            if not str(spelled).isascii() or not str(spelled).isdigit() or len(str(spelled)) > 9:
                raise AttnscopeError(
                    f"has the id {format_value(spelled)}", where=where, hint="expected a number"
                )
            decoder[int(spelled)] = self._token(entry, key, special=False)
        for token_id, token in sorted(decoder.items()):
            tokens[token["content"]] = {**token, "id": token_id}
        known_tokens = {*vocab, *tokens}
        for role in _NAMED:
            named_so = self.options.get(role, roles.get(role))
            if named_so is None:
                roles.pop(role, None)
                continue
            token = self._token(named_so, role)
            roles[role] = token["content"]
            tokens.setdefault(token["content"], token)
        for key in ("additional_special_tokens", "extra_special_tokens"):
            listed = self.options.get(key) or []
            for value in (
                listed
                if isinstance(listed, list)
                else as_object(listed, f"{self._config}: {key}").values()
            ):
                token = self._token(value, key)
                tokens.setdefault(token["content"], token)
        following = max(vocab.values(), default=-1) + 1
        for content, token in tokens.items():
            token["id"] = vocab.get(content, token.get("id", following))
            following = max(following, token["id"] + 1)
        return SpecialTokens(roles, tokens, known_tokens, self.folder / file)

    def _token(self, value: Any, role: str, *, special: bool = True) -> dict[str, Any]:
        """Return an added token as a tokenizer.json has it; as transformers, one that is text alone is special."""
        where = f"{self._config}: {role}"
        fields: dict[str, Any]
        if isinstance(value, str):
            fields = {"content": value}
        else:
            fields = as_object(value, where)
        content = fields.get("content")
        special = fields.get("special", special)
        flags = {name: fields.get(name, name == "normalized" and not special) for name in _FLAGS}
        switches = all(isinstance(flag, bool) for flag in (*flags.values(), special))
        if not isinstance(content, str) or not content or not switches:
            raise AttnscopeError(f"is {format_value(value)}", where=where, hint="expected a token")
        return {"content": content, **flags, "special": special}


@dataclass(frozen=True)
class SpecialTokens:
    """Tokens that are looked for before a text is split."""

    roles: dict[str, str]
    tokens: dict[str, dict[str, Any]]
    known: set[str]
    path: Path

    @property
    def listed(self) -> list[dict[str, Any]]:
        """All tokens in the order of their ids, as the library expects."""
        return sorted(self.tokens.values(), key=lambda token: token["id"])

    def required(self, role: str) -> str:
        """Return the token of a role that no text can do without."""
        content = self.roles.get(role)
        if content not in self.known:
            message = f"has no token '{content or role}', which every text needs"
            hint = f"name it in tokenizer_config.json, or pass {arg('tokenizer')} with a tokenizer.json of this model"
            raise AttnscopeError(message, where=self.path, hint=hint)
        return str(content)

    def template(
        self, opens: Sequence[str], closes: Sequence[str], second: Sequence[str]
    ) -> dict[str, Any] | None:
        """Return a template of the tokens before and after each text; None if there are none."""
        ids = {name: self.tokens[name]["id"] for name in (*opens, *closes)}
        if ids:
            return template(ids, opens, closes, second)
        return None


@dataclass(frozen=True)
class Built:
    """A tokenizer that was made."""

    content: dict[str, Any]
    note: str = ""  # decisions made while building it; empty if there were none
    # splits a text between special tokens, in place of the tokenizer.json's model
    pieces: PieceModel | None = None
    # which texts between special tokens a space is put before: `always` or `first`
    spaced: str = "always"


def _wordpiece(sources: Sources) -> Built:
    """Build BertTokenizer's: words and punctuation, cut into the longest pieces that the vocabulary has."""
    path = sources.folder / VOCAB_TXT
    vocab = _lines(sources.data[VOCAB_TXT], path)
    special = sources.special_tokens(_BERT_TOKENS, vocab, VOCAB_TXT)
    note = ""
    if sources.options.get("do_lower_case") is None:
        marks = ("[", "]"), ("<", ">")
        capitals = any(word != word.lower() for word in vocab if (word[:1], word[-1:]) not in marks)
        reason = "no word of the vocabulary has"
        if capitals:
            reason = "words of the vocabulary have"
        note = f"nothing says whether texts are lower-cased: they are{' not' * capitals}, as {reason} capitals"
        lower = not capitals
    else:
        lower = sources.flag("do_lower_case", True)
    strip = sources.options.get("strip_accents")
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": sources.flag("tokenize_chinese_chars", True),
        "strip_accents": None if strip is None else sources.flag("strip_accents", True),
        "lowercase": lower,
    }
    model = {
        "type": "WordPiece",
        "unk_token": special.required("unk_token"),
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": vocab,
    }
    template = special.template(
        [special.required("cls_token")], [special.required("sep_token")], []
    )
    split = {"type": "BertPreTokenizer"}
    content = assemble(
        model, special.listed, normalizer=normalizer, pre_tokenizer=split, post_processor=template
    )
    return Built(content, note)


def _smiles(sources: Sources) -> Built:
    """Build SmilesTokenizer's: tokens of SMILES, each a word of the vocabulary; anything else is an unknown word."""
    path = sources.folder / VOCAB_TXT
    vocab = _lines(sources.data[VOCAB_TXT], path)
    if other := next((word for word in vocab if not re.fullmatch(_SMILES, word)), None):
        message = f"has the word {format_value(other)}, which is no token of SMILES"
        raise AttnscopeError(
            message, where=path, hint=f"pass {arg('tokenizer')} with a tokenizer.json of this model"
        )
    special = sources.special_tokens(_BERT_TOKENS, vocab, VOCAB_TXT)
    template = special.template(
        [special.required("cls_token")], [special.required("sep_token")], []
    )
    model = {"type": "WordLevel", "unk_token": special.required("unk_token"), "vocab": vocab}
    note = "texts are split as SMILES, as every word of vocab.txt is a token of SMILES"
    return Built(
        assemble(model, special.listed, pre_tokenizer=isolate(_SMILES), post_processor=template),
        note,
    )


def _esm(sources: Sources) -> Built:
    """Build EsmTokenizer's: words of the vocabulary wherever they stand, the longest first; other text is unknown."""
    vocab = _lines(sources.data[VOCAB_TXT], sources.folder / VOCAB_TXT)
    tokens_by_role = {f"{role}_token": f"<{role}>" for role in ("unk", "pad", "cls", "eos", "mask")}
    special = sources.special_tokens(tokens_by_role, vocab, VOCAB_TXT)
    closes = [special.required("eos_token")]
    template = special.template([special.required("cls_token")], closes, [])
    words = "|".join(re.escape(word) for word in sorted(vocab, key=len, reverse=True))
    splits = {"type": "Sequence", "pretokenizers": [isolate(words), {"type": "WhitespaceSplit"}]}
    model = {"type": "WordLevel", "unk_token": special.required("unk_token"), "vocab": vocab}
    return Built(assemble(model, special.listed, pre_tokenizer=splits, post_processor=template))


def _byte_bpe(
    sources: Sources, prefix: bool
) -> tuple[dict[str, int], dict[str, Any], dict[str, Any]]:
    """Return the vocabulary, the model and the pre-tokenizer of a BPE over bytes."""
    path = sources.folder / VOCAB_JSON
    vocab = as_object(parse_json(sources.data[VOCAB_JSON], str(path)), str(path))
    for word, token_id in vocab.items():
        if type(token_id) is not int or not 0 <= token_id < 1 << 31:
            message = (
                f"{format_value(word)} has the id {format_value(token_id)}; expected a whole number"
            )
            raise AttnscopeError(message, where=path)
    model = {
        "type": "BPE",
        "vocab": vocab,
        "merges": _merges(sources.data[MERGES], sources.folder / MERGES),
    }
    return vocab, model, {**_BYTE_LEVEL, "add_prefix_space": prefix}


def _gpt2(sources: Sources, begin: bool = False, end: str = "<|endoftext|>") -> Built:
    vocab, model, split = _byte_bpe(sources, sources.flag("add_prefix_space", False))
    special = sources.special_tokens(
        dict.fromkeys(("bos_token", "eos_token", "unk_token"), end), vocab, VOCAB_JSON
    )
    ends = _begin_and_end(sources, special, begin=begin)
    return Built(
        assemble(
            model, special.listed, pre_tokenizer=split, post_processor=ends, decoder=_BYTE_LEVEL
        )
    )


def _roberta(sources: Sources) -> Built:
    prefix = sources.flag("add_prefix_space", False)
    vocab, model, split = _byte_bpe(sources, prefix)
    tokens_by_role = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "sep_token": "</s>",
        "cls_token": "<s>",
        "unk_token": "<unk>",
    }
    special = sources.special_tokens(
        {**tokens_by_role, "pad_token": "<pad>", "mask_token": "<mask>"}, vocab, VOCAB_JSON
    )
    sep = special.required("sep_token")
    cls = special.required("cls_token")
    processor = {
        "type": "RobertaProcessing",
        "sep": [sep, special.tokens[sep]["id"]],
        "cls": [cls, special.tokens[cls]["id"]],
        "trim_offsets": True,
        "add_prefix_space": prefix,
    }
    return Built(
        assemble(
            model,
            special.listed,
            pre_tokenizer=split,
            post_processor=processor,
            decoder=_BYTE_LEVEL,
        )
    )


def _qwen2(sources: Sources) -> Built:
    vocab, model, split = _byte_bpe(sources, sources.flag("add_prefix_space", False))
    both = {"type": "Sequence", "pretokenizers": [isolate(QWEN2), {**split, "use_regex": False}]}
    tokens_by_role = dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>")
    special = sources.special_tokens(tokens_by_role, vocab, VOCAB_JSON)
    ends = _begin_and_end(sources, special, begin=False)
    parts = {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": both,
        "post_processor": ends,
        "decoder": _BYTE_LEVEL,
    }
    return Built(assemble(model, special.listed, **parts))


_OF_LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_OF_GEMMA = {f"{role}_token": f"<{role}>" for role in ("bos", "eos", "unk", "pad", "mask")}


def _sentencepiece(sources: Sources, tokens_by_role: Mapping[str, str]) -> Built:
    """Leave words to SentencePiece, and special tokens to a tokenizer.json whose model knows no other word.

    What is between two special tokens is a text of its own, which SentencePiece puts a space before if the model says
    so; with `legacy: false` only the first one gets it, and none that starts with a space, as in transformers.
    """
    pieces = PieceModel(
        sources.data[MODEL], sources.folder / MODEL, sources.optional_flag("add_prefix_space")
    )
    special = sources.special_tokens(tokens_by_role, pieces.vocab, MODEL)
    flags = dict.fromkeys(_FLAGS, False)
    for piece in pieces.control:
        special.tokens.setdefault(
            piece, {"id": pieces.vocab[piece], "content": piece, **flags, "special": True}
        )
    words = {"type": "WordLevel", "vocab": pieces.vocab, "unk_token": special.required("unk_token")}
    content = assemble(
        words, special.listed, post_processor=_begin_and_end(sources, special, begin=True)
    )
    spaced = "first"
    if sources.flag("legacy", True):
        spaced = "always"
    return Built(content, pieces=pieces, spaced=spaced)


def _lines(data: bytes, path: Path) -> dict[str, int]:
    """Return the words of a vocab.txt, one a line; a word that occurs twice has its later id, as in transformers."""
    lines = [line.rstrip() for line in _text_of(data, path).split("\n")]
    words = {line: token_id for token_id, line in enumerate(lines) if line}
    if not words:
        raise AttnscopeError("has no words", where=path, hint="download it again")
    return words


def _merges(data: bytes, path: Path) -> list[list[str]]:
    merges = []
    for line_number, line in enumerate(_text_of(data, path).split("\n"), 1):
        if line and not line.startswith("#version"):
            pair = line.removesuffix("\r").split(" ")
            if len(pair) != 2:
                raise AttnscopeError(
                    f"line {line_number} is {format_value(line)}, not two pieces", where=path
                )
            merges.append(pair)
    return merges


def _text_of(data: bytes, path: Path) -> str:
    if wrong := identify_bytes(data):
        raise AttnscopeError(f"is {wrong[0]}, not a vocabulary", where=path, hint=wrong[1])
    return decode_utf8(data, path, "download it again")


def _begin_and_end(
    sources: Sources, special: SpecialTokens, *, begin: bool
) -> dict[str, Any] | None:
    """Return a template that puts the token of the beginning before each text, or that of the end behind it."""
    if sources.flag("add_bos_token", begin):
        opens = [special.required("bos_token")]
    else:
        opens = []
    if sources.flag("add_eos_token", False):
        closes = [special.required("eos_token")]
    else:
        closes = []
    return special.template(opens, closes, opens)


@dataclass(frozen=True)
class Kind:
    """A class of tokenizers that can be built."""

    name: str  # name of the class in transformers, without `Fast`
    build: Callable[[Sources], Built]
    files: tuple[str, ...]
    families: tuple[str, ...]  # the `model_type` of models that it belongs to


WORDPIECE = Kind("BertTokenizer", _wordpiece, (VOCAB_TXT,), ("bert", "distilbert", "electra"))
_BYTES = (VOCAB_JSON, MERGES)
KINDS = (
    WORDPIECE,
    Kind("DistilBertTokenizer", _wordpiece, (VOCAB_TXT,), ("distilbert",)),
    Kind("ElectraTokenizer", _wordpiece, (VOCAB_TXT,), ("electra",)),
    Kind("GPT2Tokenizer", _gpt2, _BYTES, ("gpt2", "gpt_neo")),
    Kind("GPT2Tokenizer", partial(_gpt2, begin=True, end="</s>"), _BYTES, ("opt",)),
    Kind("RobertaTokenizer", _roberta, _BYTES, ("roberta", "bart")),
    Kind("BartTokenizer", _roberta, _BYTES, ("bart",)),
    Kind("Qwen2Tokenizer", _qwen2, _BYTES, ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe")),
    Kind(
        "LlamaTokenizer",
        partial(_sentencepiece, tokens_by_role=_OF_LLAMA),
        (MODEL,),
        ("llama", "mistral", "mixtral", "phi3"),
    ),
    Kind(
        "GemmaTokenizer",
        partial(_sentencepiece, tokens_by_role=_OF_GEMMA),
        (MODEL,),
        ("gemma2", "gemma3_text", "gemma"),
    ),
    Kind("SmilesTokenizer", _smiles, (VOCAB_TXT,), ("albert", "bert", "roberta")),
    Kind("EsmTokenizer", _esm, (VOCAB_TXT,), ("esm",)),
)


def build_tokenizer(tokenizer_kind: Kind, sources: Sources) -> FileTokenizer:
    """Build a tokenizer; its notes state that it was built, its warnings list decisions."""
    sources.refuse_options()
    built = tokenizer_kind.build(sources)
    path = sources.folder / tokenizer_kind.files[0]
    data = msgspec.json.encode(built.content)
    if built.pieces is None:
        tokenizer = FileTokenizer(path, data)
    else:
        tokenizer = SentencePieceTokenizer(data, built.pieces, built.spaced)
    for token in built.content["added_tokens"]:
        if tokenizer.id_of(token["content"]) != token["id"]:
            # The library numbers them one after the other.
            message = f"has {len(built.content['model']['vocab']):,} words, after which no token can have the id"
            hint = f"pass {arg('tokenizer')} with a tokenizer.json of this model"
            raise AttnscopeError(
                f"{message} {token['id']} ('{token['content']}')", where=path, hint=hint
            )
    if built.pieces is None:
        how = f"as {tokenizer_kind.name} of transformers does"
    else:
        how = f"by SentencePiece, for a {tokenizer_kind.name}"
    tokenizer.notes = [
        f"tokenizer built from {' and '.join(tokenizer_kind.files)}, {how}",
        *tokenizer.notes,
    ]
    tokenizer.warnings = [built.note] if built.note else []
    return tokenizer
