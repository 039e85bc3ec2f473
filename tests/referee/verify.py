"""Compare a Report of `attnscope run`, as JSON, with what the call must give."""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tests.helpers.head_roles import predicted
from tests.referee import masks, reference, spanning
from tests.referee.call import Call, places
from tests.referee.expected import STATISTICS, Attention, Number, U, Unit
from tests.referee.models import Model
from tests.referee.reference import Allowed, Layer

Json = dict[str, Any]


class Mismatch(AssertionError):
    """Something in a Report that differs from what it must be."""


class Text:
    """One text: its tokens by the library, and every layer's attention over it.

    Args:
        model: The model.
        call: The call.
        number: Which of the texts.

    Attributes:
        longest: Tokens of the longest text of the call: rankings of all texts have as many ranks.
    """

    longest = 0

    def __init__(self, model: Model, call: Call, number: int) -> None:
        encoding = tokenizer_of(model.path).encode(
            call.texts[number], *([] if call.pair is None else [call.pair])
        )
        self.encoding = (
            _grown(encoding, tokenizer_of(model.path), call.grown) if call.grown else encoding
        )
        special = _special(model.path)
        flags = zip(self.encoding.ids, self.encoding.special_tokens_mask, strict=True)
        self.special = [bool(added) or number in special for number, added in flags]
        unknown = _unknown(model.path)
        types = self.encoding.type_ids if model.segments else None
        given = self.texts = [call.texts[number], call.pair or ""]
        spans = zip(self.encoding.sequence_ids, self.encoding.offsets, strict=True)
        written = ["" if text is None else given[text][start:end] for text, (start, end) in spans]
        self.words = [
            word or piece for word, piece in zip(written, self.encoding.tokens, strict=True)
        ]
        if call.grown:
            written[-len(call.grown) :] = self.words[-len(call.grown) :]
        self.division = None if call.spans is None else self._divided(call, number)
        self.words = spanning.named_spans(self.words, self.division)
        tokens = zip(self.encoding.ids, self.encoding.special_tokens_mask, written, strict=True)
        self.unknown = [
            number == unknown[0] and not added and text != unknown[1]
            for number, added, text in tokens
        ]
        marks = [
            text != "" and set(text) <= {*string.punctuation, "…"} and not special
            for text, special in zip(written, self.special, strict=True)
        ]
        self.types = types
        self.mask = masks.expression(call.mask, call.hide, self.words)
        kinds = self.special, marks
        self.layers = attention(
            model.path, self.encoding.ids, types, kinds, self.mask, call.what_if
        )
        # What `auto` chooses by: the same head is shown under every mask.
        self.own_layers = attention(model.path, self.encoding.ids, types, kinds, "own", None)

    def _divided(self, call: Call, number: int) -> spanning.Division:
        texts = [call.texts[number], *([] if call.pair is None else [call.pair])]
        return spanning.divided(call.spans, texts, self.encoding, self.special)

    @property
    def n(self) -> int:
        """Tokens."""
        return len(self.encoding.ids)


@dataclass
class _Grown:
    """An encoding with tokens that a model added."""

    ids: list[int]
    tokens: list[str]
    special_tokens_mask: list[int]
    type_ids: list[int]
    sequence_ids: list[int | None]
    offsets: list[Any]


def _grown(before: Any, tokenizer: Tokenizer, more: Sequence[int]) -> _Grown:
    """What a tokenizer made of a text, without the tokens that it closes it with, and what follows."""
    kept, n = closed_at(before), len(more)
    return _Grown(
        [*before.ids[:kept], *more],
        [*before.tokens[:kept], *(spelled(tokenizer, number) for number in more)],
        [*before.special_tokens_mask[:kept], *[0] * n],
        [*before.type_ids[:kept], *[0] * n],
        [*before.sequence_ids[:kept], *[None] * n],
        [*before.offsets[:kept], *[(None, None)] * n],
    )


def closed_at(encoding: Any) -> int:
    """How many tokens a text has without those that its tokenizer closes it with; at least one."""
    added = encoding.special_tokens_mask
    return max(1, next((n for n in range(len(added), 0, -1) if not added[n - 1]), 1))


def spelled(tokenizer: Tokenizer, number: int) -> str:
    """The piece of an id; `<57>` where the vocabulary has none."""
    return str(tokenizer.id_to_token(number) or f"<{number}>")


@lru_cache(maxsize=128)
def tokenizer_of(folder: Path) -> Tokenizer:
    """The tokenizer of a folder, as it is."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _unknown(folder: Path) -> tuple[int, str]:
    """The token for unknown words: its id, and how it is spelled."""
    tokenizer = tokenizer_of(folder)
    return tokenizer.token_to_id(tokenizer.model.unk_token), tokenizer.model.unk_token


@lru_cache(maxsize=128)
def _special(folder: Path) -> set[int]:
    """Ids that are special wherever they stand; those for unknown words and for the mask stand for a word."""
    tokenizer = tokenizer_of(folder)
    unknown, _ = _unknown(folder)
    return {
        i
        for i, token in tokenizer.get_added_tokens_decoder().items()
        if token.special and i != unknown and token.content not in ("[MASK]", "<mask>")
    }


def attention(
    folder: Path,
    ids: Sequence[int],
    types: Sequence[int] | None,
    kinds: tuple[Sequence[bool], Sequence[bool]],
    expression: str,
    what_if: str | None,
) -> list[Attention]:
    """Every layer's attention over one text, under a mask (see `masks`); kinds: special tokens, punctuation."""

    def change(own: Allowed) -> Allowed:
        return masks.allowed(expression, own)

    whole = expression != "own" and what_if != "same-scores"
    layers = _layers(
        folder, tuple(ids), None if types is None else tuple(types), expression if whole else None
    )
    return [Attention(layer, change(layer.own), *kinds) for layer in layers]


@lru_cache(maxsize=32)
def _layers(
    folder: Path, ids: tuple[int, ...], types: tuple[int, ...] | None, expression: str | None
) -> list[Layer]:
    def change(own: Allowed) -> Allowed:
        return masks.allowed(str(expression), own)

    return reference.run(
        folder, list(ids), None if types is None else list(types), change if expression else None
    )


def numbers(found: Any) -> Any:
    """Lists of numbers and null as float64 with NaN."""
    return np.array(found, dtype=np.float64)


def close(where: str, found: Any, expected: Number) -> None:
    """Compare numbers with the expected ones, cell by cell."""
    ours = numbers(found)
    if ours.size == 0 and expected.value.size == 0:
        return
    if ours.shape != expected.value.shape:
        raise Mismatch(f"{where}: shape {ours.shape}, expected {expected.value.shape}")
    if not np.array_equal(np.isnan(ours), np.isnan(expected.value)):
        at = tuple(np.argwhere(np.isnan(ours) != np.isnan(expected.value))[0])
        raise Mismatch(f"{where}{list(map(int, at))}: {ours[at]}, expected {expected.value[at]}")
    # 0 where there is none, or both are the same infinity
    off = np.fmax(np.abs(ours - expected.value), 0.0)
    allowed = expected.slack + 4 * U * np.fmin(np.abs(expected.value), np.finfo(np.float64).max)
    if (off > allowed).any():
        at = tuple(np.argwhere(off > allowed)[0])
        raise Mismatch(
            f"{where}{list(map(int, at))}: {ours[at]}, expected {expected.value[at]} ± {allowed[at]:.2g}"
        )
    note(where, off, allowed)


def note(where: str, off: Any, allowed: Any) -> None:
    """Called with every difference and what was allowed; does nothing, so that the limits can be looked into."""


def same(where: str, found: Any, expected: Any) -> None:
    """Compare something exactly."""
    if found != expected:
        raise Mismatch(f"{where}: {found}, expected {expected}")


def report(found: Json, call: Call, model: Model) -> None:
    """Compare a whole Report of `attnscope run` with what the call must give."""
    texts = [Text(model, call, i) for i in range(len(call.texts))]
    for text in texts:
        text.longest = max(one.n for one in texts)
    n_layers, n_heads = len(texts[0].layers), len(texts[0].layers[0].raw)
    made = found["provenance"]
    same("provenance.n_layers", made["n_layers"], n_layers)
    same("provenance.n_heads", made["n_heads"], n_heads)
    same("provenance.engine", made["engine"], call.engine or "native")
    pooled = call.pool is not None
    same("provenance.values", made["values"], "pooled" if pooled else "exact")
    _mask(found["mask"], call, texts)
    same("texts", len(found["texts"]), len(texts))
    units = named_units(call, texts, found["texts"][0]["heads"])
    for number, (one, text) in enumerate(zip(found["texts"], texts, strict=True)):
        same("index", one["index"], number)
        same("text", (one["text"], one["pair"]), (call.texts[number], call.pair))
        same("hidden", one["hidden"], [] if call.hide is None else places(call.hide, text.words))
        _tokens(one["tokens"], text)
        words = spanning.named_spans([token["text"] for token in one["tokens"]], text.division)
        nothing = pooled and call.query is None and call.key is None
        default = [] if nothing else list(range(text.n))
        same(
            "queries", one["queries"], default if call.query is None else places(call.query, words)
        )
        same("keys", one["keys"], default if call.key is None else places(call.key, words))
        _notes(one["notes"], call, text.n, nothing)
        _spans(f"text {number} spans.", one["spans"], call, text, one["queries"])
        same("units", [(h["layer"], h["head"]) for h in one["heads"]], [name for name, _ in units])
        for head, (name, (layers, heads)) in zip(one["heads"], units, strict=True):
            unit = Unit([text.layers[i] for i in layers], heads, "mean" not in name)
            _head(
                f"text {number} L{name[0]}H{name[1]} ",
                head,
                unit,
                text,
                one["queries"],
                one["keys"],
                call,
            )


def _mask(found: Json, call: Call, texts: list[Text]) -> None:
    """What is said of the model's own mask is what the model was seen to use, in as many layers."""
    same("mask.hidden", found["hidden"], call.hide)
    _own_mask("mask.own", found["own"], texts[0])
    if found["what_if"] is not None:
        same("mask.what_if", found["what_if"], call.what_if or "stack")
    elif any(
        not np.array_equal(layer.used, layer.layer.own) for text in texts for layer in text.layers
    ):
        raise Mismatch("mask.what_if: none, but the mask is another than the model's")
    if found["hides"] is not None and call.hide is None:
        pairs = [(layer.used, layer.layer.own) for text in texts for layer in text.layers]
        same("mask.hides", found["hides"], any((own & ~used).any() for used, own in pairs))
        added = [used & ~own for used, own in pairs]
        same("mask.added", bool(found["added"]), any(cells.any() for cells in added))
        same(
            "mask.added: later",
            "later" in found["added"],
            any(np.triu(cells, 1).any() for cells in added),
        )


def _own_mask(where: str, found: str, text: Text) -> None:
    """What is called the model's own mask is what the model was seen to use, in as many layers."""
    own = [layer.layer.own for layer in text.own_layers]
    for words, layers in _said(found):
        fits = sum(np.array_equal(masks.allowed(words, one), one) for one in own)
        if fits < layers:
            raise Mismatch(f"{where}: '{found}', but '{words}' fits {fits} of {len(own)} layers")


def _said(words: str) -> list[tuple[str, int]]:
    """The expressions that a model's mask is said to be made of, and in how many layers each holds at least."""
    words = words.removesuffix(", in the layers that ran")
    if match := re.fullmatch(r"(\S+), with (\S+) in (\d+) of (\d+) layers", words):
        return [
            (f"{match[1]}+{match[2]}", int(match[3])),
            (match[1], int(match[4]) - int(match[3])),
        ]
    if " of " in words:
        return [
            (part, int(layers))
            for part, layers in re.findall(r"(\S+) in (\d+) of \d+ layers", words)
        ]
    return [(words, 1)]


def _tokens(found: list[Json], text: Text) -> None:
    e = text.encoding
    same("token ids", [token["id"] for token in found], e.ids)
    same("pieces", [token["piece"] for token in found], e.tokens)
    same("special tokens", [token["special"] for token in found], text.special)
    same("type ids", [token["type_id"] for token in found], e.type_ids)
    same("unknown tokens", [token["unknown"] for token in found], text.unknown)
    for token, span, added in zip(found, e.offsets, e.special_tokens_mask, strict=True):
        same("span", (token["start"], token["end"]), (None, None) if added else span)


def _spans(where: str, found: Json | None, call: Call, text: Text, queries: list[int]) -> None:
    """The spans of a text, and every weight between them."""
    division = text.division
    same(where + "there", found is not None, division is not None)
    if found is None or division is None:
        return
    same(where + "division", found["division"], call.spans)
    divided(where, found["text"], text)
    same(where + "query", found["query"], spanning.reading(division, queries))
    same(where + "rows", found["rows"], division.tokens(found["query"]))
    expected = spanning.expected(text.layers, division, queries)
    same(where + "generated", found["generated"], None)
    same(where + "sink", found["sink"] is not None, "sink" in expected)
    for name, number in expected.items():
        close(where + name, found[name], number)


def divided(where: str, found: Json, text: Text) -> None:
    """Names, kinds and tokens of the spans of a text; the characters of a span are those of its tokens."""
    division = text.division
    assert division is not None
    for name in ("names", "kinds", "of_token"):
        same(where + name, found[name], getattr(division, name))
    parts = zip(text.encoding.offsets, text.encoding.sequence_ids, division.of_token, strict=True)
    covered: list[set[tuple[int, int]]] = [set() for _ in division.names]
    for (start, end), segment, span in parts:
        covered[span] |= (
            {(at, segment) for at in range(start, end)} if segment is not None else set()
        )
    for span, (ranges, characters) in enumerate(zip(found["characters"], covered, strict=True)):
        said = {(at, one["segment"]) for one in ranges for at in range(one["start"], one["end"])}
        blank = [(at, side) for at, side in said - characters if not text.texts[side][at].isspace()]
        same(f"{where}characters of span {span}", (sorted(characters - said), blank), ([], []))


def _notes(found: list[str], call: Call, n: int, nothing: bool) -> None:
    """Numbers in what is said about a map."""
    if nothing:
        assert call.pool is not None
        runs = min(call.pool, n)
        if not any(f"a map of {runs} × {runs} cells" in one for one in found):
            raise Mismatch(f"notes: {found}, expected a map of {runs} × {runs} runs for {n} × {n}")


def named_units(
    call: Call, texts: list[Text], shown: list[Json]
) -> list[tuple[tuple[Any, Any], tuple[list[int], list[int]]]]:
    """Name, layers and heads of every unit, in order; where `auto` chose, that it chose one of the best."""
    n_layers, n_heads = len(texts[0].layers), len(texts[0].layers[0].raw)
    layer, head = call.layer or "auto", call.head or "auto"
    layers = call.numbers(layer, n_layers) or list(range(n_layers))
    heads = call.numbers(head, n_heads) or list(range(n_heads))
    ranking = _ranking(call, texts) if "auto" in (layer, head) else None
    for chosen in [head["chosen"] for head in shown if head["chosen"] is not None]:
        under = re.search(r"chosen automatically(?: under the mask (.+?))?: ", chosen)
        same(f"'{chosen}' names a mask", bool(under and under[1]), not masks.is_own(texts[0].mask))
        if under and under[1]:
            _own_mask(f"'{chosen}'", under[1], texts[0])
    if layer == "mean":
        if head == "mean":
            return [(("mean", "mean"), (layers, heads))]
        if head == "auto" and ranking is not None:
            best = _chosen(
                shown,
                Number(ranking.of.value.mean(0), ranking.of.slack.mean(0)),
                "head",
                ranking.form,
            )
            return [(("mean", best), (layers, [best]))]
        return [(("mean", h), (layers, [h])) for h in heads]
    if layer == "auto" and ranking is not None:
        of_layer = ranking.of[:, heads]
        at = np.arange(n_layers), of_layer.value.argmax(1)
        over = (
            of_layer[at]
            if head == "auto"
            else Number(of_layer.value.mean(1), of_layer.slack.max(1))
        )
        form = (
            ranking.form if head in ("auto", "mean") or len(heads) == 1 else ranking.form_over_heads
        )
        if head != "auto":
            form = re.compile(f"layer {form.pattern}")
        layers = [
            _chosen(
                shown, over, "layer", form, of=n_layers * n_heads if head == "auto" else n_layers
            )
        ]
    units: list[tuple[tuple[Any, Any], tuple[list[int], list[int]]]] = []
    for i, one in enumerate(layers):
        if head == "mean":
            units.append(((one, "mean"), ([one], heads)))
        elif head == "auto" and ranking is not None:
            some = n_heads * (n_layers if layer == "auto" else 1)
            best = _chosen(shown[i : i + 1], ranking.of[one], "head", ranking.form, of=some)
            if layer == "auto":
                _next_heads(shown[i]["chosen"] or "", ranking, (one, best))
            units.append(((one, best), ([one], [best])))
        else:
            units += [((one, h), ([one], [h])) for h in heads]
    return units


@dataclass(frozen=True)
class _Ranking:
    """What `auto` ranks heads by: how that is said of a head, of a layer and where all is 0; (layers, heads) of it."""

    said: str
    mean: str
    none: str
    of: Number

    @property
    def form(self) -> "re.Pattern[str]":
        return self._pattern(self.said)

    @property
    def form_over_heads(self) -> "re.Pattern[str]":
        return self._pattern(self.mean)

    def _pattern(self, said: str) -> "re.Pattern[str]":
        number = re.escape(said).replace("NUMBER", r"(\d\.\d\d)")
        return re.compile(
            rf"chosen automatically(?: under the mask .+?)?: (?:{number}|{re.escape(self.none)})(?:; then .+)?"
        )


def _ranking(call: Call, texts: list[Text]) -> _Ranking:
    """What heads are ranked by: the weight on the keys that were named, or what neither offset nor key explains.

    Both are those under the model's own mask.
    """
    queries, keys = (_named(typed, texts) for typed in (call.query, call.auto_key or call.key))
    words = [
        [i for i in range(text.n) if not text.special[i]] or list(range(text.n)) for text in texts
    ]
    measure = _on_keys if keys is not None else _beyond_means
    by_layer = zip(*(text.own_layers for text in texts), strict=True)
    found = [measure(list(layers), texts, queries or words, keys or words) for layers in by_layer]
    of = Number(np.array([one.value for one in found]), np.array([one.slack for one in found]))
    rows = (
        "all words" + " here" * (keys is None)
        if queries is None
        else "this query"
        if sum(map(len, queries)) == 1
        else "these queries"
    )
    if keys is not None:
        weight = f"weight from {rows} on {'this key' if sum(map(len, keys)) == 1 else 'these keys'}"
        mean = f"the layer with the most {weight} (NUMBER on average over these heads)"
        return _Ranking(
            f"most {weight} (NUMBER)", mean, f"no head has {weight}, so the first is shown", of
        )
    weight = f"content weight from {rows}"
    mean = f"the layer with the most {weight} (NUMBER on average over these heads)"
    return _Ranking(
        f"most {weight} (NUMBER)", mean, f"no head has {weight}, so the first is shown", of
    )


def _named(typed: str | None, texts: list[Text]) -> list[list[int]] | None:
    """Positions in every text; None where none were named, or all."""
    if typed is None:
        return None
    found = [places(typed, text.words) for text in texts]
    return (
        None if all(len(some) == text.n for some, text in zip(found, texts, strict=True)) else found
    )


def _on_keys(
    layers: list[Attention], texts: list[Text], rows: list[list[int]], keys: list[list[int]]
) -> Number:
    """Weight of the average row on the keys, (H,)."""
    parts = []
    for one, some, wanted in zip(layers, rows, keys, strict=True):
        weights = one.number("weights")[:, some][:, :, wanted]
        parts.append(Number(np.nan_to_num(weights.value).sum((1, 2)), weights.slack.sum((1, 2))))
    count = sum(map(len, rows))
    return Number(sum(p.value for p in parts) / count, sum(p.slack for p in parts) / count + 4 * U)


def _beyond_means(
    layers: list[Attention], texts: list[Text], rows: list[list[int]], words: list[list[int]]
) -> Number:
    """Mean over rows of how far weights on other words exceed what both their offset and their key have on average.

    Each of these means is over all other pairs and one of 0; weights below 1/16 count nothing.
    """
    total = slacks = np.zeros(len(layers[0].raw))
    for one, text, some, every in zip(layers, texts, rows, words, strict=True):
        weights = one.number("weights")
        counted = np.zeros(one.used.shape, dtype=bool)
        counted[sorted({*some, *every})] = True
        counted &= one.used & ~np.array(text.special)[None]
        counted[:, 0] = False
        np.fill_diagonal(counted, False)
        value = np.where(counted, np.nan_to_num(weights.value), 0.0)  # (H, Q, K)
        offset = np.arange(text.n) - np.arange(text.n)[:, None]
        beyond = np.maximum(value - predicted(value, counted, offset), 0.0)[:, some]
        least, slack = value[:, some] - 1 / 16, weights.slack[:, some]
        total = total + np.where(least >= 0, beyond, 0.0).sum((1, 2))
        off = np.where(least >= -slack, 2 * slack, 0.0) + np.where(
            np.abs(least) <= slack + 1e-6, beyond, 0.0
        )
        slacks = slacks + off.sum((1, 2))
    count = sum(map(len, rows))
    return Number(total / count, slacks / count + 1e-5)


def _chosen(
    shown: list[Json], over: Number, what: str, form: "re.Pattern[str]", of: int = 2
) -> int:
    """Which layer or head was chosen, after a look whether it is one of the best and its figure is right.

    Nothing may be said of a choice `of` one.
    """
    (name,) = {head[what] for head in shown}
    if not isinstance(name, int) or not 0 <= name < len(over.value):
        raise Mismatch(f"auto: chose {what} {name}")
    if over.value[name] < over.value.max() - 2 * over.slack.max():
        raise Mismatch(f"auto: chose {what} {name} of {over.value}")
    for head in shown:
        if of == 1 and head["chosen"] is None:
            continue
        match = form.fullmatch(head["chosen"] or "")
        if not match or abs(float(match[1] or 0) - over.value[name]) > 0.005 + 2 * over.slack.max():
            raise Mismatch(f"auto: says {head['chosen']} for {over.value[name]}")
    return name


def _next_heads(chosen: str, ranking: _Ranking, best: tuple[int, int]) -> None:
    """Up to four heads behind the chosen one, from the largest weight on the named keys to 0.005."""
    named = re.findall(r"L(\d+)H(\d+) (\d\.\d\d)", chosen.partition("; then ")[2])
    cells = [(int(layer), int(head)) for layer, head, _ in named]
    others = ranking.of.value.copy()
    others[best] = -1.0
    slack = 2 * float(ranking.of.slack.max())
    largest = np.sort(others.ravel())[::-1][:4]
    at_least = int((largest >= 0.005 + slack).sum())
    at_most = int((largest >= 0.005 - slack).sum())
    if not ranking.said.startswith("most weight"):
        at_least = at_most = 0
    repeated = len({best, *cells}) <= len(cells)
    if repeated or not at_least <= len(cells) <= at_most:
        raise Mismatch(f"auto: says {chosen}, expected {at_least} to {at_most} other heads")
    for (_, _, written), cell, value in zip(named, cells, largest, strict=False):
        if abs(others[cell] - value) > slack or abs(float(written) - value) > 0.005 + slack:
            raise Mismatch(
                f"auto: says {chosen}, expected {value} for the head L{cell[0]}H{cell[1]}"
            )


def _head(
    where: str, found: Json, unit: Unit, text: Text, queries: list[int], keys: list[int], call: Call
) -> None:
    """Everything that is said of one unit over one text."""
    layer = unit.layers[0].layer
    close(where + "scale", found["scale"], Number(np.array(layer.scale), np.array(0.0)))
    same(where + "softcap", found["softcap"], layer.softcap)
    same(where + "bias", found["bias"], None)
    if call.layer not in ("auto", None) and call.head not in ("auto", None):
        same(where + "chosen", found["chosen"], None)
    same(where + "stages", list(found["stages"]), call.stages if queries else [])
    for stage, matrix in found["stages"].items():
        expected = unit.number(stage)[queries]
        close(where + stage, matrix, expected if stage == "output" else expected[:, keys])
    same(where + "fully_masked", found["fully_masked"], [q for q in queries if unit.dead[q]])
    ranking(where + "top", found["top"], unit, text.special, queries, call, text.longest)
    if (
        unit.single
        and call.by in (None, "weight")
        and "masked" in found["stages"]
        and len(keys) == text.n
    ):
        _exact_ranking(where + "top", found, unit, text.special, queries, call)
    for name in STATISTICS:
        close(where + name, found["rows"][name], unit.statistic(name)[queries])
    same(where + "has a sink", found["rows"]["sink"] is not None, unit.has_sink)
    if unit.has_sink:
        close(where + "sink", found["rows"]["sink"], unit.statistic("sink")[queries])
    _whole(where, found, unit, text, call.pool)


def _whole(where: str, found: Json, unit: Unit, text: Text, pool: int | None) -> None:
    """Map, columns and means of a text as a whole."""
    if pool is None:
        same(
            where + "whole", (found["pooled"], found["columns"], found["means"]), (None, None, None)
        )
        return
    starts, weights = unit.pooled(pool)
    same(
        where + "pooled runs",
        (found["pooled"]["queries"], found["pooled"]["keys"]),
        (starts, starts),
    )
    close(where + "pooled", found["pooled"]["weights"], weights)
    columns = unit.columns(range(text.n))
    close(where + "columns", found["columns"], columns)
    words = [not special for special in text.special]
    counted = np.array([word or not any(words) for word in words])
    for name in (*STATISTICS, "sink"):
        if name == "sink" and not unit.has_sink:
            same(where + "means.sink", found["means"]["sink"], None)
            continue
        if (
            name in ("entropy", "max_score")
            and len(unit.layers) > 1
            and len(found["rows"][name]) < text.n
        ):
            # the mean's other rows are not kept
            same(where + f"means.{name}", found["means"][name], None)
            continue
        rows = unit.statistic(name)[counted]
        live = rows[~np.isnan(rows.value)]
        expected = (
            Number(live.value.mean(), live.slack.max() + 4 * U)
            if live.value.size
            else Number(*[np.array(np.nan)] * 2)
        )
        close(where + f"means.{name}", found["means"][name], expected)


def takes_part(unit: Unit, special: Sequence[bool], no_special: bool) -> Allowed:
    """The keys that may be contributors, (Q, K)."""
    eligible = np.array([not (no_special and (flag or j == 0)) for j, flag in enumerate(special)])
    return unit.used & eligible & ~unit.dead[:, None]


def ranking(
    where: str,
    found: Json,
    unit: Unit,
    special: Sequence[bool],
    queries: Sequence[int],
    call: Call,
    longest: int,
    kept: Sequence[str] | None = None,
) -> None:
    """The strongest sources of each shown query: which, how many, in what order, and their measures.

    Args:
        where: What this is, for the message.
        found: The ranking, as JSON.
        unit: What the reference has.
        special: Special tokens.
        queries: The shown queries.
        call: What was asked for.
        longest: Tokens of the longest text that is ranked together with this one.
        kept: The measures that are there; None for those of a Report.
    """
    by = call.by or "weight"
    same(where + ".by", found["by"], by)
    same(where + ".left_out", bool(found["left_out"]), call.no_special)
    count, may = (
        min(3 if call.top is None else call.top, longest),
        takes_part(unit, special, call.no_special),
    )
    measures = {"weight": unit.number("weights"), "value": unit.number("value")}
    if by == "projected":
        measures["projected"] = unit.number("projected")
    else:
        same(where + ".projected", found["projected"], None)
    order = unit.number("masked") if by == "weight" and unit.single else measures[by]
    measures = {name: measures[name] for name in kept or measures}
    same(where + " rows", len(found["keys"]), len(queries))
    for row, query in enumerate(queries):
        keys = found["keys"][row]
        ranked = sorted(np.flatnonzero(may[query]), key=lambda j: -order.value[query, j])[:count]
        blank = [-1] * (count - len(ranked))
        taken = [key for key in keys if key != -1]
        same(f"{where} count of query {query}", keys, taken + blank)
        if len(set(taken)) != len(taken) or not set(taken) <= set(np.flatnonzero(may[query])):
            raise Mismatch(
                f"{where} of query {query}: {taken} repeats a key or holds one that takes no part"
            )
        same(f"{where} count of query {query}", len(taken), len(ranked))
        for key, best in zip(taken, ranked, strict=True):
            slack = order.slack[query, key] + order.slack[query, best]
            if abs(order.value[query, key] - order.value[query, best]) > slack + 1e-7 * abs(
                order.value[query, best]
            ):
                raise Mismatch(
                    f"{where} of query {query}: {taken}, expected {list(map(int, ranked))}"
                )
        for name, measure in measures.items():
            pad = np.full(len(blank), np.nan)
            expected = measure[query, taken] if taken else Number(np.zeros(0), np.zeros(0))
            expected = Number(np.append(expected.value, pad), np.append(expected.slack, pad * 0))
            close(f"{where}.{name} of query {query}", found[name][row], expected)
        # what ranks stands in the Report: among equals the first keys win
        if by != "weight" or not unit.single:
            values = found[by][row]
            for i in range(len(taken) - 1):
                if values[i] < values[i + 1] or (
                    values[i] == values[i + 1] and taken[i] > taken[i + 1]
                ):
                    raise Mismatch(
                        f"{where} of query {query}: {taken} with {values} are out of order"
                    )


def _exact_ranking(
    where: str, found: Json, unit: Unit, special: Sequence[bool], queries: Sequence[int], call: Call
) -> None:
    """By weight, keys are ranked by the very scores that the Report shows: no slack at all."""
    may = takes_part(unit, special, call.no_special)
    masked = numbers(found["stages"]["masked"])
    for row, query in enumerate(queries):
        ranked = sorted(np.flatnonzero(may[query]), key=lambda j: -masked[row, j])
        expected = [int(key) for key in ranked][: len(found["top"]["keys"][row])]
        same(
            f"{where} of query {query}",
            [key for key in found["top"]["keys"][row] if key != -1],
            expected,
        )
