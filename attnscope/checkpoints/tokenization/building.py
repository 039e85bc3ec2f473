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
from attnscope.base.files.reading import as_object, format_value, identify_bytes, parse_json
from attnscope.checkpoints.tokenization.hugging_face import FileTokenizer
from attnscope.checkpoints.tokenization.sentence_pieces import (
    ChangedText,
    PieceModel,
    SentencePieceTokenizer,
    albert_text,
)

VOCAB_TXT, VOCAB_JSON, MERGES = "vocab.txt", "vocab.json", "merges.txt"
MODEL, SPIECE, FAIRSEQ = "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")  # in this order
_BERT_TOKENS = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")}
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
_REFUSED: dict[str, tuple[Any, ...]] = {  # option to its only harmless values
    "do_basic_tokenize": (True,),
    "never_split": (None, []),
    "split_special_tokens": (False,),
    "wordpieces_prefix": ("##",),
    "sp_model_kwargs": (None, {}),
    "auto_map": (None,),
}
# Of Qwen2Tokenizer, in the spelling of the library's regular expressions.
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Of the SmilesTokenizer of rxnmapper and DeepChem: atoms, bonds, rings and brackets (Schwaller et al., 2019).
_SMILES = r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9]"
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


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
            raise AttnscopeError(f"is {format_value(value)}", where=f"{self._config}: {name}", hint=hint)
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

    def special_tokens(self, named: Mapping[str, str], vocab: Mapping[str, int], file: str) -> "SpecialTokens":
        """Return all tokens that are looked for before a text is split.

        Args:
            named: Special tokens of the class by their role, such as `unk_token`.
            vocab: Ids of the vocabulary; tokens that it lacks follow after its last one, as in transformers.
        """
        roles, tokens = dict(named), dict[str, dict[str, Any]]()
        for number, given in sorted(self._decoder().items()):
            tokens[given["content"]] = {**given, "id": number}
        known = {*vocab, *tokens}
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
            for value in listed if isinstance(listed, list) else as_object(listed, f"{self._config}: {key}").values():
                token = self._token(value, key)
                tokens.setdefault(token["content"], token)
        following = max(vocab.values(), default=-1) + 1
        for content, token in tokens.items():
            token["id"] = vocab.get(content, token.get("id", following))
            following = max(following, token["id"] + 1)
        return SpecialTokens(roles, tokens, known, self.folder / file)

    def _decoder(self) -> dict[int, dict[str, Any]]:
        """List added tokens whose ids are given."""
        where = f"{self._config}: added_tokens_decoder"
        tokens = {}
        for number, given in as_object(self.options.get("added_tokens_decoder") or {}, where).items():
            if not str(number).isascii() or not str(number).isdigit() or len(str(number)) > 9:
                raise AttnscopeError(f"has the id {format_value(number)}", where=where, hint="expected a number")
            tokens[int(number)] = self._token(given, "added_tokens_decoder", special=False)
        return tokens

    def _token(self, given: Any, role: str, *, special: bool = True) -> dict[str, Any]:
        """Return an added token as a tokenizer.json has it; as transformers, one that is text alone is special."""
        where = f"{self._config}: {role}"
        fields: dict[str, Any] = {"content": given} if isinstance(given, str) else as_object(given, where)
        content, special = fields.get("content"), fields.get("special", special)
        flags = {name: fields.get(name, name == "normalized" and not special) for name in _FLAGS}
        switches = all(isinstance(flag, bool) for flag in (*flags.values(), special))
        if not isinstance(content, str) or not content or not switches:
            raise AttnscopeError(f"is {format_value(given)}", where=where, hint="expected a token")
        return {"content": content, **flags, "special": special}


@dataclass(frozen=True)
class SpecialTokens:
    """Tokens that are looked for before a text is split.

    Attributes:
        roles: Special tokens by their role, such as `unk_token`.
    """

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

    def template(self, opens: Sequence[str], closes: Sequence[str], second: Sequence[str]) -> dict[str, Any] | None:
        """Return a template of the tokens before and after each text; None if there are none."""
        if not (opens or closes):
            return None
        single = [*_parts(opens, 0), _text("A", 0), *_parts(closes, 0)]
        pair = [*single, *_parts(second, 1), _text("B", 1), *_parts(closes, 1)]
        known = {
            name: {"id": name, "ids": [self.tokens[name]["id"]], "tokens": [name]}
            for name in dict.fromkeys((*opens, *closes))
        }
        return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": known}


def _parts(tokens: Sequence[str], type_id: int) -> list[dict[str, Any]]:
    return [{"SpecialToken": {"id": token, "type_id": type_id}} for token in tokens]


def _text(name: str, type_id: int) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": type_id}}


@dataclass(frozen=True)
class Built:
    """A tokenizer that was made.

    Attributes:
        note: Decisions made while building it; empty if there were none.
        pieces: Splits a text between special tokens, in place of the tokenizer.json's model.
        spaced: Which texts between special tokens a space is put before: `always` or `first`.
        change: Applied to a text before `pieces` splits it.
    """

    content: dict[str, Any]
    note: str = ""
    pieces: PieceModel | None = None
    spaced: str = "always"
    change: Callable[[str], ChangedText] | None = None


def _whole(model: dict[str, Any], special: SpecialTokens, **parts: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return {"version": "1.0", **empty, **parts, "added_tokens": special.listed, "model": model}


def _wordpiece(sources: Sources) -> Built:
    """Build BertTokenizer's: words and punctuation, cut into the longest pieces that the vocabulary has."""
    path = sources.folder / VOCAB_TXT
    vocab = _lines(sources.data[VOCAB_TXT], path)
    special = sources.special_tokens(_BERT_TOKENS, vocab, VOCAB_TXT)
    note = ""
    if sources.options.get("do_lower_case") is None:
        capitals = any(word != word.lower() for word in vocab if not _bracketed(word))
        reason = "words of the vocabulary have" if capitals else "no word of the vocabulary has"
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
    template = special.template([special.required("cls_token")], [special.required("sep_token")], [])
    split = {"type": "BertPreTokenizer"}
    content = _whole(model, special, normalizer=normalizer, pre_tokenizer=split, post_processor=template)
    return Built(content, note)


def _smiles(sources: Sources) -> Built:
    """Build SmilesTokenizer's: tokens of SMILES, each a word of the vocabulary; anything else is an unknown word."""
    path = sources.folder / VOCAB_TXT
    vocab = _lines(sources.data[VOCAB_TXT], path)
    if other := next((word for word in vocab if not re.fullmatch(_SMILES, word)), None):
        message = f"has the word {format_value(other)}, which is no token of SMILES"
        raise AttnscopeError(message, where=path, hint=f"pass {arg('tokenizer')} with a tokenizer.json of this model")
    special = sources.special_tokens(_BERT_TOKENS, vocab, VOCAB_TXT)
    template = special.template([special.required("cls_token")], [special.required("sep_token")], [])
    split = {"type": "Split", "pattern": {"Regex": _SMILES}, "behavior": "Isolated", "invert": False}
    model = {"type": "WordLevel", "unk_token": special.required("unk_token"), "vocab": vocab}
    note = "texts are split as SMILES, as every word of vocab.txt is a token of SMILES"
    return Built(_whole(model, special, pre_tokenizer=split, post_processor=template), note)


def _esm(sources: Sources) -> Built:
    """Build EsmTokenizer's: words of the vocabulary wherever they stand, the longest first; other text is unknown."""
    vocab = _lines(sources.data[VOCAB_TXT], sources.folder / VOCAB_TXT)
    named = {f"{role}_token": f"<{role}>" for role in ("unk", "pad", "cls", "eos", "mask")}
    special = sources.special_tokens(named, vocab, VOCAB_TXT)
    closes = [special.required("eos_token")]
    template = special.template([special.required("cls_token")], closes, [])
    words = "|".join(re.escape(word) for word in sorted(vocab, key=len, reverse=True))
    split = {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False}
    splits = {"type": "Sequence", "pretokenizers": [split, {"type": "WhitespaceSplit"}]}
    model = {"type": "WordLevel", "unk_token": special.required("unk_token"), "vocab": vocab}
    return Built(_whole(model, special, pre_tokenizer=splits, post_processor=template))


def _bracketed(word: str) -> bool:
    """Tell whether a piece is a bracketed mark such as `[UNK]` or `<S>`, not text."""
    return (word[:1], word[-1:]) in (("[", "]"), ("<", ">"))


def _byte_bpe(sources: Sources, prefix: bool) -> tuple[dict[str, int], dict[str, Any], dict[str, Any]]:
    """Return the vocabulary, the model and the pre-tokenizer of a BPE over bytes."""
    path = sources.folder / VOCAB_JSON
    vocab = as_object(parse_json(sources.data[VOCAB_JSON], str(path)), str(path))
    for word, number in vocab.items():
        if type(number) is not int or not 0 <= number < 1 << 31:
            raise AttnscopeError(f"{format_value(word)} has the id {format_value(number)}", where=path)
    merges = _merges(sources.data[MERGES], sources.folder / MERGES)
    return vocab, _bpe(vocab, merges), {**_BYTE_LEVEL, "add_prefix_space": prefix}


def _bpe(vocab: dict[str, int], merges: list[list[str]], **changes: Any) -> dict[str, Any]:
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {**model, **changes, "vocab": vocab, "merges": merges}


def _gpt2(sources: Sources, begin: bool = False, end: str = "<|endoftext|>") -> Built:
    vocab, model, split = _byte_bpe(sources, sources.flag("add_prefix_space", False))
    special = sources.special_tokens(dict.fromkeys(("bos_token", "eos_token", "unk_token"), end), vocab, VOCAB_JSON)
    ends = _begin_and_end(sources, special, begin=begin)
    return Built(_whole(model, special, pre_tokenizer=split, post_processor=ends, decoder=_BYTE_LEVEL))


def _opt(sources: Sources) -> Built:
    """Build GPT-2's; OPT was trained with a token before every text."""
    return _gpt2(sources, begin=True, end="</s>")


def _roberta(sources: Sources) -> Built:
    prefix = sources.flag("add_prefix_space", False)
    vocab, model, split = _byte_bpe(sources, prefix)
    named = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>"}
    special = sources.special_tokens({**named, "pad_token": "<pad>", "mask_token": "<mask>"}, vocab, VOCAB_JSON)
    sep, cls = special.required("sep_token"), special.required("cls_token")
    processor = {
        "type": "RobertaProcessing",
        "sep": [sep, special.tokens[sep]["id"]],
        "cls": [cls, special.tokens[cls]["id"]],
        "trim_offsets": True,
        "add_prefix_space": prefix,
    }
    return Built(_whole(model, special, pre_tokenizer=split, post_processor=processor, decoder=_BYTE_LEVEL))


def _qwen2(sources: Sources) -> Built:
    vocab, model, split = _byte_bpe(sources, sources.flag("add_prefix_space", False))
    words = {"type": "Split", "pattern": {"Regex": _QWEN}, "behavior": "Isolated", "invert": False}
    both = {"type": "Sequence", "pretokenizers": [words, {**split, "use_regex": False}]}
    named = dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>")
    special = sources.special_tokens(named, vocab, VOCAB_JSON)
    ends = _begin_and_end(sources, special, begin=False)
    parts = {"normalizer": {"type": "NFC"}, "pre_tokenizer": both, "post_processor": ends, "decoder": _BYTE_LEVEL}
    return Built(_whole(model, special, **parts))


def _llama(sources: Sources) -> Built:
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return _sentencepiece(sources, MODEL, special, begin=True)


def _gemma(sources: Sources) -> Built:
    special = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return _sentencepiece(sources, MODEL, {**special, "mask_token": "<mask>"}, begin=True)


def _t5(sources: Sources) -> Built:
    """Build T5Tokenizer's, whose ids end with those of `<extra_id_99>` to `<extra_id_0>`."""
    special = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return _sentencepiece(sources, SPIECE, special, end=True, sentinels=100)


def _albert(sources: Sources) -> Built:
    special = {"bos_token": "[CLS]", "eos_token": "[SEP]", "unk_token": "<unk>", "pad_token": "<pad>"}
    special |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    change = partial(
        albert_text, accents=sources.flag("keep_accents", False), lower=sources.flag("do_lower_case", True)
    )
    return _sentencepiece(sources, SPIECE, special, change=change)


def _xlm_roberta(sources: Sources) -> Built:
    """Build XLMRobertaTokenizer's, whose ids are those of fairseq: its own four, then the pieces one further on."""
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    special |= {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
    return _sentencepiece(sources, FAIRSEQ, special, own_ids={"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3})


def _sentencepiece(
    sources: Sources,
    file: str,
    named: Mapping[str, str],
    *,
    begin: bool = False,
    end: bool = False,
    change: Callable[[str], ChangedText] | None = None,
    sentinels: int = 0,
    own_ids: Mapping[str, int] | None = None,
) -> Built:
    """Leave words to SentencePiece, and special tokens to a tokenizer.json whose model knows no other word.

    What is between two special tokens is a text of its own, which SentencePiece puts a space before if the model says
    so; with `legacy: false` only the first one gets it, and none that starts with a space, as in transformers.
    """
    pieces = PieceModel(sources.data[file], sources.folder / file, sources.optional_flag("add_prefix_space"), own_ids)
    special = sources.special_tokens(named, pieces.vocab, file)
    flags = dict.fromkeys(_FLAGS, False)
    for piece in pieces.control:
        special.tokens.setdefault(piece, {"id": pieces.vocab[piece], "content": piece, **flags, "special": True})
    if not sources.options.get("added_tokens_decoder"):
        for number in range(sentinels):
            token, last = f"<extra_id_{number}>", len(pieces.vocab) + sentinels - 1
            special.tokens[token] = {"id": last - number, "content": token, **flags, "special": True}
    words = {"type": "WordLevel", "vocab": pieces.vocab, "unk_token": special.required("unk_token")}
    if "cls_token" in named:
        closes = [special.required("sep_token")]
        ends = special.template([special.required("cls_token")], closes, closes if own_ids else [])
    else:
        ends = _begin_and_end(sources, special, begin=begin, end=end)
    content = _whole(words, special, post_processor=ends)
    return Built(content, pieces=pieces, spaced="always" if sources.flag("legacy", True) else "first", change=change)


def _lines(data: bytes, path: Path) -> dict[str, int]:
    """Return the words of a vocab.txt, one a line; a word that occurs twice has its later id, as in transformers."""
    lines = [line.rstrip() for line in _text_of(data, path).split("\n")]
    words = {line: number for number, line in enumerate(lines) if line}
    if not words:
        raise AttnscopeError("has no words", where=path, hint="download it again")
    return words


def _merges(data: bytes, path: Path) -> list[list[str]]:
    merges = []
    for number, line in enumerate(_text_of(data, path).split("\n"), 1):
        if line and not line.startswith("#version"):
            pair = line.removesuffix("\r").split(" ")
            if len(pair) != 2:
                raise AttnscopeError(f"line {number} is {format_value(line)}, not two pieces", where=path)
            merges.append(pair)
    return merges


def _text_of(data: bytes, path: Path) -> str:
    if wrong := identify_bytes(data):
        raise AttnscopeError(f"is {wrong[0]}, not a vocabulary", where=path, hint=wrong[1])
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        message = f"byte 0x{data[e.start]:02x} at offset {e.start} is not UTF-8"
        raise AttnscopeError(message, where=path, hint="download it again") from e


def _begin_and_end(
    sources: Sources, special: SpecialTokens, *, begin: bool, end: bool = False
) -> dict[str, Any] | None:
    """Return a template that puts the token of the beginning before each text, or that of the end behind it."""
    opens = [special.required("bos_token")] if sources.flag("add_bos_token", begin) else []
    closes = [special.required("eos_token")] if sources.flag("add_eos_token", end) else []
    return special.template(opens, closes, opens)


@dataclass(frozen=True)
class Kind:
    """A class of tokenizers that can be built.

    Attributes:
        name: Name of the class in transformers, without `Fast`.
        families: The `model_type` of models that it belongs to.
    """

    name: str
    build: Callable[[Sources], Built]
    files: tuple[str, ...]
    families: tuple[str, ...]


WORDPIECE = Kind("BertTokenizer", _wordpiece, (VOCAB_TXT,), ("bert", "distilbert", "electra"))
_BYTES = (VOCAB_JSON, MERGES)
KINDS = (
    WORDPIECE,
    Kind("DistilBertTokenizer", _wordpiece, (VOCAB_TXT,), ("distilbert",)),
    Kind("ElectraTokenizer", _wordpiece, (VOCAB_TXT,), ("electra",)),
    Kind("GPT2Tokenizer", _gpt2, _BYTES, ("gpt2", "gpt_neo")),
    Kind("GPT2Tokenizer", _opt, _BYTES, ("opt",)),
    Kind("RobertaTokenizer", _roberta, _BYTES, ("roberta", "bart")),
    Kind("BartTokenizer", _roberta, _BYTES, ("bart",)),
    Kind("Qwen2Tokenizer", _qwen2, _BYTES, ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe")),
    Kind("LlamaTokenizer", _llama, (MODEL,), ("llama", "mistral", "mixtral", "phi3")),
    Kind("GemmaTokenizer", _gemma, (MODEL,), ("gemma2", "gemma3_text", "gemma")),
    Kind("SmilesTokenizer", _smiles, (VOCAB_TXT,), ("albert", "bert", "roberta")),
    Kind("EsmTokenizer", _esm, (VOCAB_TXT,), ("esm",)),
    Kind("T5Tokenizer", _t5, (SPIECE,), ("t5",)),
    Kind("AlbertTokenizer", _albert, (SPIECE,), ("albert",)),
    Kind("XLMRobertaTokenizer", _xlm_roberta, (FAIRSEQ,), ("xlm-roberta",)),
)


def build_tokenizer(kind: Kind, sources: Sources) -> FileTokenizer:
    """Build a tokenizer; its notes state that it was built, its warnings list decisions."""
    sources.refuse_options()
    built = kind.build(sources)
    path = sources.folder / kind.files[0]
    data = msgspec.json.encode(built.content)
    tokenizer = (
        FileTokenizer(path, data)
        if built.pieces is None
        else SentencePieceTokenizer(data, built.pieces, built.spaced, built.change)
    )
    for token in built.content["added_tokens"]:
        if tokenizer.id_of(token["content"]) != token["id"]:  # the library numbers them one after the other
            message = f"has {len(built.content['model']['vocab']):,} words, after which no token can have the id"
            hint = f"pass {arg('tokenizer')} with a tokenizer.json of this model"
            raise AttnscopeError(f"{message} {token['id']} ('{token['content']}')", where=path, hint=hint)
    how = f"as {kind.name} of transformers does" if built.pieces is None else f"by SentencePiece, for a {kind.name}"
    tokenizer.notes = [f"tokenizer built from {' and '.join(kind.files)}, {how}", *tokenizer.notes]
    tokenizer.warnings = [built.note] if built.note else []
    return tokenizer
