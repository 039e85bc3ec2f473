"""Make a tokenizer.json of the files that older checkpoints have in its place, as transformers does.

Only the class of the tokenizer determines how a text is split; a vocabulary alone fits many classes. A class is
therefore accepted only for the models it belongs to, and other options of tokenizer_config.json are refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import as_object, format_value, identify_bytes, parse_json
from attnscope.checkpoints.tokenization.hugging_face import FileTokenizer
from attnscope.checkpoints.tokenization.sentencepiece_model import (
    BPE,
    CONTROL,
    NORMAL,
    USER_DEFINED,
    SentencePieceModel,
    read_sentencepiece,
)

VOCAB_TXT, VOCAB_JSON, MERGES, MODEL = "vocab.txt", "vocab.json", "merges.txt", "tokenizer.model"
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")  # in this order
_LONGEST = 1000  # longest piece in characters; SentencePiece creates none of more than 16 by default
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
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


@dataclass(frozen=True)
class Sources:
    """The files that a tokenizer is made of.

    Attributes:
        folder: Where they are.
        data: Bytes of every file by name.
        options: Content of tokenizer_config.json, special_tokens_map.json and added_tokens.json.
    """

    folder: Path
    data: Mapping[str, bytes]
    options: Mapping[str, Any]

    def flag(self, name: str, default: bool) -> bool:
        """Return an option that is true or false.

        Raises:
            AttnscopeError: It is something else.
        """
        value = self.options.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            hint = "expected true or false"
            raise AttnscopeError(f"is {format_value(value)}", where=f"{self._config}: {name}", hint=hint)
        return value

    def refuse_options(self) -> None:
        """Refuse what would change tokens in a way that is not done here.

        Raises:
            AttnscopeError: There is such an option.
        """
        for name, harmless in _REFUSED.items():
            if self.options.get(name, harmless[0]) not in harmless:
                found = f"{name} is {format_value(self.options[name])}, which tokenizer.json cannot express"
                hint = "pass --tokenizer with a tokenizer.json of this model"
                raise AttnscopeError(found, where=self._config, hint=hint)

    @property
    def _config(self) -> Path:
        return self.folder / "tokenizer_config.json"

    def special_tokens(self, named: Mapping[str, str], vocab: Mapping[str, int], file: str) -> "SpecialTokens":
        """Return all tokens that are looked for before a text is split.

        Args:
            named: Special tokens of the class by their role, such as `unk_token`.
            vocab: Ids of the vocabulary; tokens that it lacks follow after its last one, as in transformers.
            file: The file that the vocabulary comes from, for errors.

        Raises:
            AttnscopeError: A token is neither text nor a description of one.
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
            for one in listed if isinstance(listed, list) else as_object(listed, f"{self._config}: {key}").values():
                token = self._token(one, key)
                tokens.setdefault(token["content"], token)
        following = max(vocab.values(), default=-1) + 1
        for content, token in tokens.items():
            token["id"] = vocab.get(content, token.get("id", following))
            following = max(following, token["id"] + 1)
        return SpecialTokens(roles, tokens, known, self.folder / file)

    def _decoder(self) -> dict[int, dict[str, Any]]:
        """List added tokens whose ids are given."""
        where = f"{self._config}: added_tokens_decoder"
        found = {}
        for number, given in as_object(self.options.get("added_tokens_decoder") or {}, where).items():
            if not str(number).isascii() or not str(number).isdigit() or len(str(number)) > 9:
                raise AttnscopeError(f"has the id {format_value(number)}", where=where, hint="expected a number")
            found[int(number)] = self._token(given, "added_tokens_decoder", special=False)
        return found

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
        tokens: All by their text, as a tokenizer.json has them.
        known: Those that the files themselves give an id.
        path: The file of the vocabulary, for errors.
    """

    roles: dict[str, str]
    tokens: dict[str, dict[str, Any]]
    known: set[str]
    path: Path

    @property
    def listed(self) -> list[dict[str, Any]]:
        """All in the order of their ids, as the library wants them."""
        return sorted(self.tokens.values(), key=lambda token: token["id"])

    def required(self, role: str) -> str:
        """Return the token of a role that no text can do without.

        Raises:
            AttnscopeError: The vocabulary does not have it.
        """
        content = self.roles.get(role)
        if content not in self.known:
            found = f"has no token '{content or role}', which every text needs"
            hint = "name it in tokenizer_config.json, or pass --tokenizer with a tokenizer.json of this model"
            raise AttnscopeError(found, where=self.path, hint=hint)
        return str(content)

    def template(self, opens: Sequence[str], closes: Sequence[str], second: Sequence[str]) -> dict[str, Any] | None:
        """Return a template of the tokens before and after each text; None where there are none.

        Args:
            opens: Tokens before the first text.
            closes: Tokens after each text.
            second: Tokens before the second text of a pair.
        """
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
        content: Content of the tokenizer.json.
        note: Decisions made while building it; empty if there were none.
    """

    content: dict[str, Any]
    note: str = ""


def _whole(model: dict[str, Any], special: SpecialTokens, **parts: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return {"version": "1.0", **empty, **parts, "added_tokens": special.listed, "model": model}


def _wordpiece(sources: Sources) -> Built:
    """Build BertTokenizer's: words and punctuation, cut into the longest pieces that the vocabulary has."""
    path = sources.folder / VOCAB_TXT
    vocab = _lines(sources.data[VOCAB_TXT], path)
    named = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")}
    special = sources.special_tokens(named, vocab, VOCAB_TXT)
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
    whole = _whole(model, special, normalizer=normalizer, pre_tokenizer=split, post_processor=template)
    return Built(whole, note)


def _bracketed(word: str) -> bool:
    """Tell whether a piece is something other than text, such as `[UNK]` or `<S>`."""
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
    """Build LlamaTokenizer's: spaces become ▁, one is put before the text, and what has no piece becomes bytes.

    transformers 5 puts none before a text that starts with a space. SentencePiece does, which the models were trained
    with, and so do the tokenizer.json files that were published with them: `legacy` keeps to these.
    """
    given = _sentencepiece(sources)
    prefix = sources.flag("add_prefix_space", given.add_dummy_prefix)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    parts: dict[str, Any] = {"normalizer": spaces}
    if prefix and sources.flag("legacy", True):
        parts = {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces]}}
    elif prefix:
        parts = {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}}
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return _piece_bpe(sources, given, named, parts)


def _gemma(sources: Sources) -> Built:
    given = _sentencepiece(sources)
    if given.add_dummy_prefix:
        found = "puts a space before texts, which no Gemma model does"
        raise AttnscopeError(found, where=sources.folder / MODEL, hint="pass --tokenizer with a tokenizer.json")
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return _piece_bpe(sources, given, {**named, "mask_token": "<mask>"}, {"normalizer": spaces})


def _sentencepiece(sources: Sources) -> SentencePieceModel:
    """Return the model, once it is known to do nothing that its fast tokenizer would leave out."""
    path = sources.folder / MODEL
    given = read_sentencepiece(sources.data[MODEL], path)
    hint = "pass --tokenizer with a tokenizer.json of this model"
    if given.algorithm != BPE:
        raise AttnscopeError("is not a BPE model, as this kind of tokenizer needs", where=path, hint=hint)
    if given.remove_extra_whitespaces or not given.keeps_characters:
        found = f"changes texts before it splits them (rules '{given.normalizer}')"
        raise AttnscopeError(found, where=path, hint=hint)
    return given


def _piece_bpe(sources: Sources, given: SentencePieceModel, named: dict[str, str], parts: dict[str, Any]) -> Built:
    path = sources.folder / MODEL
    vocab = {piece: number for number, (piece, _, _) in enumerate(given.pieces)}
    if len(vocab) != len(given.pieces):
        raise AttnscopeError("has a piece twice", where=path, hint="download it again")
    if (longest := max(map(len, vocab))) > _LONGEST:  # every split into two pieces is tried
        raise AttnscopeError(f"has a piece of {longest:,} characters", where=path, hint=f"at most {_LONGEST} are read")
    special = sources.special_tokens(named, vocab, MODEL)
    for piece, _, kind in given.pieces:
        if kind in (CONTROL, USER_DEFINED):
            token = {"id": vocab[piece], "content": piece, **dict.fromkeys(_FLAGS, False), "special": kind == CONTROL}
            special.tokens.setdefault(piece, token)
    more = {"unk_token": special.required("unk_token"), "fuse_unk": True, "byte_fallback": given.byte_fallback}
    more |= {"continuing_subword_prefix": None, "end_of_word_suffix": None}
    ends = _begin_and_end(sources, special, begin=True)
    return Built(_whole(_bpe(vocab, _piece_merges(given, vocab), **more), special, post_processor=ends, **parts))


def _piece_merges(given: SentencePieceModel, vocab: dict[str, int]) -> list[list[str]]:
    """List every way to put a piece together from two others, in the order of the pieces, that of their scores."""
    merges: list[tuple[tuple[int, int, int], int, int, list[str]]] = []
    for number, (piece, _, kind) in enumerate(given.pieces):
        for cut in range(1, len(piece)) if kind == NORMAL else ():
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                merges.append(((number, len(left), len(right)), vocab[left], vocab[right], [left, right]))
    return [pair for *_, pair in sorted(merges)]


def _lines(data: bytes, path: Path) -> dict[str, int]:
    """Return the words of a vocab.txt, one a line; a word that occurs twice has its later id, as in transformers."""
    lines = [line.rstrip() for line in _text_of(data, path).split("\n")]
    words = {line: number for number, line in enumerate(lines) if line}
    if not words:
        raise AttnscopeError("has no words", where=path, hint="download it again")
    return words


def _merges(data: bytes, path: Path) -> list[list[str]]:
    found = []
    for number, line in enumerate(_text_of(data, path).split("\n"), 1):
        if line and not line.startswith("#version"):
            pair = line.removesuffix("\r").split(" ")
            if len(pair) != 2:
                raise AttnscopeError(f"line {number} is {format_value(line)}, not two pieces", where=path)
            found.append(pair)
    return found


def _text_of(data: bytes, path: Path) -> str:
    if wrong := identify_bytes(data):
        raise AttnscopeError(f"is {wrong[0]}, not a vocabulary", where=path, hint=wrong[1])
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        found = f"byte 0x{data[e.start]:02x} at offset {e.start} is not UTF-8"
        raise AttnscopeError(found, where=path, hint="download it again") from e


def _begin_and_end(sources: Sources, special: SpecialTokens, *, begin: bool) -> dict[str, Any] | None:
    """Return a template that puts the token of the beginning before each text, or that of the end behind it."""
    opens = [special.required("bos_token")] if sources.flag("add_bos_token", begin) else []
    closes = [special.required("eos_token")] if sources.flag("add_eos_token", False) else []
    return special.template(opens, closes, opens)


@dataclass(frozen=True)
class Kind:
    """A class of tokenizers that can be built.

    Attributes:
        name: Name of the class in transformers, without `Fast`.
        build: Makes it.
        files: Files that it is built from.
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
)


def build_tokenizer(kind: Kind, sources: Sources) -> FileTokenizer:
    """Build a tokenizer; its notes say that it was built, its warnings what was decided on the way.

    Raises:
        AttnscopeError: A file is damaged, or asks for something that no tokenizer.json can say.
    """
    sources.refuse_options()
    built = kind.build(sources)
    path = sources.folder / kind.files[0]
    tokenizer = FileTokenizer(path, msgspec.json.encode(built.content))
    for token in built.content["added_tokens"]:
        if tokenizer.id_of(token["content"]) != token["id"]:  # the library numbers them one after the other
            found = f"has {len(built.content['model']['vocab']):,} words, after which no token can have the id"
            hint = "pass --tokenizer with a tokenizer.json of this model"
            raise AttnscopeError(f"{found} {token['id']} ('{token['content']}')", where=path, hint=hint)
    made = f"tokenizer built from {' and '.join(kind.files)}, as {kind.name} of transformers does"
    tokenizer.notes = [made, *tokenizer.notes]
    tokenizer.warnings = [built.note] if built.note else []
    return tokenizer
