"""Draw random calls of `attnscope ablate`, and verify every number of what cuts change.

The reference cuts inside its own attention: heads give 0 or a mean, edges lose their score or their weight.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np

from attnscope.studies.heads.texts import TEXTS
from tests.helpers.effect_arithmetic import change_of, divergence, log_softmax, rank_correlation
from tests.referee import draw, masks, runner, spanning, verify
from tests.referee.call import Call, places
from tests.referee.expected import ROUNDINGS, Number, U, mean
from tests.referee.models import MINILM, Model, Models
from tests.referee.predicting import (
    SHOWN,
    logit_slack,
    predicted_places,
    predicts,
    spelling,
    through,
)
from tests.referee.reference import (
    Allowed,
    Array,
    Layer,
    Pass,
    raw_and_scaled,
    run_through,
    softmax,
)
from tests.referee.verify import Json, Mismatch, Text, close, same, tokenizer_of

_SHOWN = ("--format", "json", "--quiet", "--max-memory", "4G")


@dataclass(frozen=True)
class Cut:
    """What is cut."""

    written: str  # as typed
    heads: tuple[tuple[range, range], ...]  # layers and heads of each of its terms
    # queries of edges, as typed, empty for all; None where whole heads are cut
    query: str | None = None
    key: str | None = None  # their keys, likewise

    @property
    def places(self) -> list[tuple[int, int]]:
        """Layer and head of each, once."""
        every = [(n, h) for layers, heads in self.heads for n in layers for h in heads]
        return list(dict.fromkeys(every))


@dataclass(frozen=True)
class Resolved:
    """A cut of one text: heads, and positions of edges; None for whole heads."""

    heads: list[tuple[int, int]]
    queries: list[int] | None = None
    keys: list[int] | None = None


@dataclass(frozen=True)
class Cutting:
    """One call of `attnscope ablate`."""

    call: Call  # the model, the text and its mask
    cuts: list[Cut]  # what is cut together; none where `each` is given
    each: str | None = None  # `head`, `layer` or `edge`
    mean: bool = False  # heads give their mean, not 0
    reference: str | None = None  # the text over which it is taken
    at: str | None = None  # where predictions are compared, as typed
    other: str | None = None  # the text that is patched from
    draws: tuple[int, int] | None = None  # draws from other texts, and their seed; None for none
    pool: Path | None = None  # the file of these texts; None for built-in ones
    targets: tuple[str, ...] = ()  # tokens whose logits are compared

    def argv(self) -> list[str]:
        """The arguments after `attnscope`."""
        words = ["ablate", *self.call.argv()[1:]]
        words += [word for cut in self.cuts for word in ("--cut", cut.written)]
        words += [] if self.each is None else ["--each", self.each]
        words += ["--with", "mean"] if self.mean else []
        words += [] if self.reference is None else ["--reference", self.reference]
        words += [] if self.other is None else ["--from", self.other]
        if self.draws is not None:
            words += [
                "--with",
                "resample",
                "--draws",
                str(self.draws[0]),
                "--seed",
                str(self.draws[1]),
            ]
        words += [] if self.pool is None else ["--from-file", str(self.pool)]
        words += [word for target in self.targets for word in ("--target", target)]
        return words + ([] if self.at is None else ["--at", self.at])

    def command(self) -> str:
        """The same, to be copied into a shell."""
        return "attnscope " + shlex.join(self.argv())


def call(models: Models, seed: int, number: int) -> Cutting:
    """Draw one call."""
    made = _plain_call(models, seed, number)
    random, model = Random(f"patch {seed}:{number}"), models[made.call.model]
    if predicts(model.name) == "next" or (predicts(model.name) and made.at is not None):
        targets = random.sample(model.words, random.choice((0, 1, 1, 2)))
        made = replace(made, targets=tuple(targets))
    form = random.choice((None, None, "patch", "resample"))
    if form is None or made.mean:
        return made
    text, pair = made.call.texts[0], made.call.pair
    if form == "resample":
        if all(word in model.odd for word in text.split()):
            return made  # nothing is drawn for special tokens
        pool = None
        if random.random() < 0.7:
            lines = [
                " ".join(random.choices(model.words, k=random.choice((9, 15)))) for _ in range(2)
            ]
            pool = models.place / f"pool-{seed}-{number}.txt"
            pool.write_text("".join(line + "\n" for line in lines))
        return replace(made, draws=(random.choice((1, 2, 3)), random.randrange(9)), pool=pool)
    other = " ".join(
        word if random.random() < 0.4 else random.choice(model.words) for word in text.split()
    )
    fits = draw.count_tokens(model, other, pair) == draw.count_tokens(model, text, pair)
    return replace(made, other=other) if fits else made


def _plain_call(models: Models, seed: int, number: int) -> Cutting:
    """Draw a call that takes nothing from other texts."""
    random = Random(f"ablate {seed}:{number}")
    base = draw.call(models, seed, 1_100_000 + number, divided=False)
    text, few = (
        " ".join(base.texts[0].split()[:9]),
        {"stage": None, "top": None, "by": None, "pool": None},
    )
    base = replace(
        base, texts=(text,), file=None, what_if=None, no_special=False, more=_SHOWN, **few
    )
    if base.pair is not None:
        base = replace(base, pair=" ".join(base.pair.split()[:3]))
    model = models[base.model]
    counts = [draw.count_tokens(model, text, base.pair)]
    if masks.of_one_length(base.mask):
        base = replace(base, mask="causal")  # the file was of the longer text
    hide = draw.hidden(seed, number, base.texts, counts) if random.random() < 0.3 else None
    base = replace(base, hide=hide, layer=None, head=None, query=None, key=None)
    at = draw.places(random, base.texts, counts) if random.random() < 0.4 else None
    layers, heads = (6, 12) if base.model == MINILM else (3, 4)
    if number % 3 == 2:
        each = random.choice(("head", "layer", "edge"))
        if each == "edge":
            base = replace(
                base, layer=str(random.randrange(layers)), head=str(random.randrange(heads))
            )
            base = replace(base, query=str(random.randrange(counts[0])))
        elif base.model == MINILM or random.random() < 0.4:
            base = replace(base, layer=f"0-{random.randrange(2)}")
        return Cutting(base, [], each, each != "edge" and random.random() < 0.3, None, at)
    cuts = [_cut(random, base, counts, (layers, heads)) for _ in range(random.choice((1, 1, 2, 3)))]
    mean = any(cut.query is None for cut in cuts) and random.random() < 0.4
    other = " ".join(random.choice(model.words) for _ in range(random.choice((2, 5))))
    given = other if mean and random.random() < 0.5 else None
    return Cutting(base, cuts, None, mean, given, at)


def _cut(random: Random, base: Call, counts: list[int], sizes: tuple[int, int]) -> Cut:
    written, found = [], []
    for _ in range(random.choice((1, 1, 2))):
        (said_layers, layers), (said_heads, heads) = (_some(random, size) for size in sizes)
        form = random.choice(("both", "both", "layer", "all"))
        written.append(
            {"both": f"L{said_layers}H{said_heads}", "layer": f"L{said_layers}", "all": "*"}[form]
        )
        found.append(
            (
                range(sizes[0]) if form == "all" else layers,
                heads if form == "both" else range(sizes[1]),
            )
        )
    said = ",".join(written)
    if random.random() < 0.4:
        return Cut(said, tuple(found))
    query, key = (
        "" if random.random() < 0.3 else draw.places(random, base.texts, counts).replace(":", ":")
        for _ in range(2)
    )
    if ":" in query + key or not query + key:
        query, key = str(random.randrange(counts[0])), str(random.randrange(counts[0]))
    return Cut(
        f"{said}: {query}{random.choice(('←', '<-', '→', '->'))}{key}", tuple(found), query, key
    )


def _some(random: Random, size: int) -> tuple[str, range]:
    low = random.randrange(size)
    high = random.randrange(low, size)
    return (
        (str(low), range(low, low + 1))
        if random.random() < 0.6
        else (f"{low}-{high}", range(low, high + 1))
    )


class _Blend:
    """What heads give under cuts; see reference.Blend.

    Args:
        cuts: The cuts.
        renormalised: Edges lose their score, and else their weight.
        means: What heads give instead of 0, (layers, H, Ev); None for 0.
        other: A text that heads and edges are taken from; None for none.
    """

    def __init__(
        self,
        cuts: Sequence[Resolved],
        renormalised: bool,
        means: list[Array] | None,
        other: Pass | None = None,
    ) -> None:
        self.cuts, self.renormalised, self.means, self.other = cuts, renormalised, means, other

    def __call__(self, number: int, layer: Layer, used: Allowed, weights: Array) -> Array:
        gone = np.zeros(weights.shape, dtype=bool)
        for cut in self.cuts:
            if cut.queries is not None and cut.keys is not None:
                heads = [h for n, h in cut.heads if n == number]
                gone[np.ix_(heads, cut.queries, cut.keys)] = True
        if self.renormalised:
            weights, _ = softmax(
                np.where(used & ~gone, raw_and_scaled(layer)[1], -np.inf), layer.sinks
            )
        given = np.where(gone, 0.0, weights) @ layer.v
        if self.other is not None:
            values = self.other.layers[number].v
            given = given + np.where(gone, self.other.weights[number], 0.0) @ values
            whole = self.other.weights[number] @ values
        for cut in self.cuts:
            for n, h in cut.heads if cut.queries is None else ():
                if n == number:
                    given[h] = 0.0 if self.means is None else self.means[n][h]
                    if self.other is not None:
                        given[h] = whole[h]
        return given


@dataclass(frozen=True)
class _Compared:
    """What is compared: final hidden states, (T, D), and log-probabilities and logits of some positions, (P, V)."""

    hidden: Array
    logs: Array | None
    logits: Array | None


def _compared(one: Pass, positions: list[int] | None) -> _Compared:
    """What is compared of a pass; positions are None where nothing predicts."""
    logits = one.logits[positions] if one.logits is not None and positions else None
    return _Compared(one.final, None if logits is None else log_softmax(logits), logits)


def check_heads(
    found: Json,
    positions: list[int],
    units: list[tuple[int, int]],
    call: Call,
    of: tuple[Model, Text],
) -> None:
    """Verify the effects of heads, each cut alone, that a dump keeps of one text."""
    model, text = of
    kind = predicts(model.name)
    same("positions", positions, [] if kind is None else predicted_places(model, text)[1])
    at = None if kind is None else positions
    uncut = through(model, text, text.mask)
    before, cuts = _compared(uncut, at), [Resolved([unit]) for unit in units]
    after = [
        _compared(through(model, text, text.mask, _Blend([cut], True, None)), at) for cut in cuts
    ]
    kl, hidden = _effects_of(before, after, positions or list(range(text.n)))
    weights = [_weight(text, uncut, cut) for cut in cuts]
    value, slack = (
        np.array([getattr(one, name) for one in weights]) for name in ("value", "slack")
    )
    for name, number in (("hidden", hidden), ("weight", Number(value, slack)), ("kl", kl)):
        same(f"has {name}", found.get(name) is not None, number is not None)
        if number is not None:
            close(name, found[name], number)


def check_spans(
    found: Json, record: Json, units: list[tuple[int, int]], call: Call, of: tuple[Model, Text]
) -> None:
    """Verify what a dump keeps of one text whose last span, or whose query, is cut off from each span."""
    (model, text), division = of, of[1].division
    assert division is not None
    kind = predicts(model.name)
    positions = [] if kind is None else predicted_places(model, text)[1]
    same("span_positions", record.get("span_positions", []), positions)
    rows = positions or division.tokens(spanning.reading(division, ()))
    rows = rows if call.query is None else record["queries"]
    same("span_rows", record["span_rows"], rows)
    at = None if kind is None else positions
    uncut = through(model, text, text.mask)
    before, count = _compared(uncut, at), len(division.names)
    keys = [
        [k for k in division.tokens(n) if kind != "next" or k <= max(rows)] for n in range(count)
    ]
    numbers = [n for n in range(count) if keys[n]]
    cuts = [Resolved(units, rows, keys[n]) for n in numbers]
    after = [
        _compared(through(model, text, text.mask, _Blend([cut], True, None)), at) for cut in cuts
    ]
    kl, hidden = _effects_of(before, after, positions or list(range(text.n)))
    weights = [_weight(text, uncut, cut) for cut in cuts]
    weight = Number(*(np.array([getattr(one, name) for one in weights]) for name in _FIELDS))
    same("has loss", found.get("loss") is not None, False)
    for name, number in (("hidden", hidden), ("weight", weight), ("kl", kl)):
        there = found.get(name) is not None and not np.isnan(verify.numbers(found[name])).all()
        same(f"has {name}", there, number is not None)
        if number is not None:
            every = Number(np.full(count, np.nan), np.zeros(count))
            every.value[numbers], every.slack[numbers] = number.value, number.slack
            close(f"span {name}", found[name], every)


def check(made: Cutting, models: Models) -> None:
    """Run one call and verify every number of what it says."""
    code, out, errors = runner.run(made.argv())
    model = models[made.call.model]
    text = Text(model, made.call, 0)
    if (
        code == 2
        and made.each == "edge"
        and "edges has any weight" in errors
        and _sees_nothing(made.call, text)
    ):
        return
    if code or errors:
        raise Mismatch(f"exit code {code}: {errors.strip()}")
    found = runner.parsed(out)
    same("text", (found["text"], found["pair"]), (made.call.texts[0], made.call.pair))
    same("mask.hidden", found["mask"]["hidden"], made.call.hide)
    same("token ids", [token["id"] for token in found["tokens"]], list(text.encoding.ids))
    kind = predicts(model.name)
    positions = [] if kind is None else predicted_places(model, text)[1]
    positions = positions if made.at is None else places(made.at, text.words)
    uncut = through(model, text, text.mask)
    means = (
        [_means(layer, w) for layer, w in zip(uncut.layers, uncut.weights, strict=True)]
        if made.mean
        else None
    )
    if made.reference is not None:
        given = replace(made.call, texts=(made.reference,), pair=None, hide=None)
        other = Text(model, given, 0)
        if made.call.hide is not None:  # as far as the reference has it
            hide = [part for part in made.call.hide.split(",") if _is_there(part, other.words)]
            other = Text(model, replace(given, hide=",".join(hide) or None), 0)
        whole = through(model, other, other.mask)
        means = [_means(layer, w) for layer, w in zip(whole.layers, whole.weights, strict=True)]
    at = None if kind is None else positions

    others = _others(found, made, model, text)

    def cut(cuts: Sequence[Resolved], renormalised: bool) -> list[_Compared]:
        blends = [_Blend(cuts, renormalised, means, other) for other in others]
        return [_compared(through(model, text, text.mask, blend), at) for blend in blends]

    before = _compared(uncut, at)
    ids = [tokenizer_of(model.path).token_to_id(target) for target in made.targets]
    same("targets", [target["id"] for target in found["targets"]], ids)
    for target in found["targets"] if before.logits is not None else ():
        close("logit", target["logit"], _logit(before, [target["id"]]))
        if made.other is not None:
            close(
                "other logit",
                target["other"],
                _logit(_compared(_given(others[0]), at), [target["id"]]),
            )
    if made.each is None:
        _cuts(found, made, text, uncut)
        cuts = [_resolved(one, text) for one in made.cuts]
        edges = any(one.query is not None for one in made.cuts)
        ways = (
            {"renormalised": True, "unnormalised": False}
            if edges
            else {"mean" if made.mean else "zero": True}
        )
        ways = {_other_way(made): False} if others[0] is not None else ways
        same("effects", [effect["how"] for effect in found["effects"]], list(ways))
        close("norms", found["norms"], _norms(before.hidden))
        after = [cut(cuts, way) for way in ways.values()]
        shown = {
            number
            for effect in found["effects"]
            for p in effect["predictions"]
            for number in _ids(p)
        }
        for effect, one in zip(found["effects"], after, strict=True):
            _effect(effect, before, one, positions)
            same("has target", effect["target"] is not None, bool(ids))
            if ids:
                close("target", effect["target"], mean([_moved(before, each, ids) for each in one]))
            for prediction in effect["predictions"]:
                spelling("tokens", prediction["tokens"], model)
        _listed(found["effects"], before, after)
        assert shown or not positions or before.logs is None
        return
    same("positions", found["positions"], positions)
    units = _units(found, made, text, uncut)
    rows = positions or list(range(text.n))
    if others[0] is not None:
        same("effects", [effect["how"] for effect in found["effects"]], [_other_way(made)])
    for effect in found["effects"]:
        every = [cut([unit], effect["how"] in ("renormalised", "zero", "mean")) for unit in units]
        kls, moved = zip(
            *(_effects_of(before, list(after), rows) for after in zip(*every, strict=True)),
            strict=True,
        )
        kl, hidden = None if before.logs is None else mean(kls), mean(moved)
        same("has target", effect["target"] is not None, bool(ids))
        target = (
            [mean([_moved(before, one, ids) for one in after]) for after in every] if ids else []
        )
        if target:
            close(
                "target",
                effect["target"],
                Number(*(np.array([getattr(t, n) for t in target]) for n in _FIELDS)),
            )
        same("has kl", effect["kl"] is not None, kl is not None)
        close("hidden", effect["hidden"], hidden)
        if kl is not None:
            close("kl", effect["kl"], kl)
        ranked = verify.numbers(effect["hidden"] if kl is None else effect["kl"])
        ranked = np.abs(verify.numbers(effect["target"])) if ids else ranked
        expected = (
            rank_correlation(verify.numbers(found["weights"]), ranked) if len(units) else np.nan
        )
        ours = np.nan if effect["correlation"] is None else effect["correlation"]
        close("correlation", ours, Number(np.array(expected), np.array(1e-6)))


def _other_way(made: Cutting) -> str:
    return "resample" if made.other is None else "patch"


def _given(other: Pass | None) -> Pass:
    assert other is not None
    return other


def _others(found: Json, made: Cutting, model: Model, text: Text) -> list[Pass | None]:
    """The passes over texts that replacements come from; one that is None for 0 and means."""
    replacing, tokenizer = found["replacing"], tokenizer_of(model.path)
    same("replacing", replacing is not None, made.other is not None or made.draws is not None)
    if replacing is None:
        return [None]
    every = [[token["id"] for token in tokens] for tokens in replacing["tokens"]]
    if made.other is not None:
        pair = [] if made.call.pair is None else [made.call.pair]
        same("other ids", every, [list(tokenizer.encode(made.other, *pair).ids)])
    else:
        assert made.draws is not None
        texts = TEXTS if made.pool is None else made.pool.read_text().splitlines()
        pool = [n for one in texts for n in tokenizer.encode(one, add_special_tokens=False).ids]
        words = [n for n, special in enumerate(text.special) if not special]
        runs = [pool[n : n + len(words)] for n in range(len(pool) - len(words) + 1)]
        same("draws", len(every), min(made.draws[0], len(runs)))
        same("seed", replacing["seed"], made.draws[1])
        for ids in every:
            kept = [number for number, special in zip(ids, text.special, strict=True) if special]
            same(
                "special",
                kept,
                [i for i, special in zip(text.encoding.ids, text.special, strict=True) if special],
            )
            if [ids[n] for n in words] not in runs:
                raise Mismatch(f"{ids} is not drawn from {pool}")
    allowed = partial(masks.allowed, text.mask)
    return [run_through(model.path, ids, text.types, allowed) for ids in every]


def _logit(side: _Compared, ids: list[int]) -> Number:
    """The logit of a token, or a difference of two, averaged over positions."""
    assert side.logits is not None
    each = side.logits[:, ids[0]] - (side.logits[:, ids[1]] if len(ids) > 1 else 0.0)
    slack = np.mean([len(ids) * logit_slack(row) for row in side.logits])
    return Number(np.array(each.mean()), np.array(2 * slack))


def _moved(before: _Compared, after: _Compared, ids: list[int]) -> Number:
    old, new = _logit(before, ids), _logit(after, ids)
    return Number(new.value - old.value, new.slack + old.slack)


_FIELDS = ("value", "slack")


def _is_there(part: str, words: Sequence[str]) -> bool:
    return part in [str(n) for n in range(-len(words), len(words))] or (
        not part.lstrip("-").isdigit() and bool(places(part, words))
    )


def _sees_nothing(call: Call, text: Text) -> bool:
    """No edge that was selected has a weight that float32 can hold."""
    (layer,), (head,) = (call.numbers(typed, 99) or () for typed in (call.layer, call.head))
    return bool(
        (text.layers[layer].weights[head, places(call.query or "0:", text.words)] < 1e-30).all()
    )


def _resolved(cut: Cut, text: Text) -> Resolved:
    if cut.query is None or cut.key is None:
        return Resolved(cut.places)
    every = list(range(text.n))
    queries, keys = (
        places(typed, text.words) if typed else every for typed in (cut.query, cut.key)
    )
    return Resolved(cut.places, queries, keys)


def _means(layer: Layer, weights: Array) -> Array:
    """What every head gives, averaged over the text, (H, Ev)."""
    mean: Array = (weights @ layer.v).mean(1)
    return mean


def _norms(hidden: Array) -> Number:
    norms = np.linalg.norm(hidden, axis=-1)
    return Number(norms, 4 * ROUNDINGS * U * np.full(norms.shape, norms.max()))


def _weight(text: Text, uncut: Pass, cut: Resolved) -> Number:
    """The weight of what is cut: of edges, or off the first and special tokens."""
    words = [i for i in range(1, text.n) if not text.special[i]]
    rows, columns = cut.queries, cut.keys
    if rows is None or columns is None:
        rows, columns = words or list(range(text.n)), words
    of = [text.layers[n].number("weights")[h] for n, h in cut.heads]
    some = [Number(np.nan_to_num(one.value), one.slack)[np.ix_(rows, columns)] for one in of]
    slack = np.mean([one.slack.sum(-1).mean() for one in some])
    return Number(np.mean([one.value.sum(-1).mean() for one in some]), slack + 4 * U)


def _cuts(found: Json, made: Cutting, text: Text, uncut: Pass) -> None:
    same("cuts", [part["written"] for part in found["cuts"]], [cut.written for cut in made.cuts])
    for part, cut in zip(found["cuts"], made.cuts, strict=True):
        one = _resolved(cut, text)
        same("heads", [tuple(place) for place in part["heads"]], one.heads)
        same("edges", (part["queries"], part["keys"]), (one.queries, one.keys))
        close("weight", part["weight"], _weight(text, uncut, one))


def _units(found: Json, made: Cutting, text: Text, uncut: Pass) -> list[Resolved]:
    """What was cut one by one, with the weight of each."""
    n_layers, n_heads = len(uncut.layers), len(uncut.weights[0])
    layers = made.call.numbers(made.call.layer or "all", n_layers) or list(range(n_layers))
    heads = made.call.numbers(made.call.head or "all", n_heads) or list(range(n_heads))
    if made.each == "layer":
        units = [Resolved([(n, h) for h in range(n_heads)]) for n in layers]
    elif made.each == "head":
        units = [Resolved([(n, h)]) for n in layers for h in heads]
    else:
        queries = places(made.call.query or "0:", text.words)
        every = [
            (n, h, q, k) for n in layers for h in heads for q in queries for k in range(text.n)
        ]
        # A weight that float32 cannot hold is none; which are left out is told by what is there.
        there = list(
            zip(found["layers"], found["heads"], found["queries"], found["keys"], strict=True)
        )
        weighs = [one for one in every if uncut.weights[one[0]][one[1], one[2], one[3]] > 1e-30]
        if not set(weighs) <= set(there) <= set(every) or there != sorted(
            set(there), key=every.index
        ):
            raise Mismatch(f"edges: {there}, expected {weighs}")
        units = [Resolved([(n, h)], [q], [k]) for n, h, q, k in there]
    same("layers", found["layers"], [unit.heads[0][0] for unit in units])
    same(
        "heads",
        found["heads"],
        [-1 if made.each == "layer" else unit.heads[0][1] for unit in units],
    )
    weights = [_weight(text, uncut, unit) for unit in units]
    value, slack = ([getattr(one, name) for one in weights] for name in ("value", "slack"))
    close("weights", found["weights"], Number(np.array(value), np.array(slack)))
    return units


def _ids(prediction: Json) -> list[int]:
    return [token["id"] for token in prediction["tokens"]]


def _change(before: Array, after: Array) -> tuple[Number, Number, Array]:
    """Cosine and size of the change of hidden states, and by how much a hidden state may be off."""
    cosine, change = change_of(before, after)
    sizes = np.maximum(np.linalg.norm(before, axis=-1), np.linalg.norm(after, axis=-1))
    off = 4 * ROUNDINGS * U * sizes.max() * np.ones_like(sizes)
    least = np.minimum(np.linalg.norm(before, axis=-1), np.linalg.norm(after, axis=-1))
    return Number(cosine, 4 * off / least), Number(change, 2 * off), off


def _divergence(before: _Compared, after: _Compared, n: int) -> Number:
    """KL in bits at one position."""
    assert before.logs is not None and after.logs is not None
    assert before.logits is not None and after.logits is not None
    off = 2 * (logit_slack(before.logits[n]) + logit_slack(after.logits[n]))
    p, apart = np.exp(before.logs[n]), np.abs(before.logs[n] - after.logs[n])
    # Σ p = 1 on both sides: what all log-probabilities have in common makes no difference of first order.
    slack = (p * (off + np.expm1(off) * apart)).sum() / np.log(2)
    return Number(np.array(divergence(before.logs[n], after.logs[n])), np.array(slack))


def _effect(found: Json, before: _Compared, after: list[_Compared], positions: list[int]) -> None:
    """What changes under all cuts together, averaged over replacements."""
    cosines, changes, _ = zip(*(_change(before.hidden, one.hidden) for one in after), strict=True)
    close("cosine", found["cosine"], mean(cosines))
    close("change", found["change"], mean(changes))
    there = [] if before.logs is None else positions
    same("positions", [one["position"] for one in found["predictions"]], there)
    for n, one in enumerate(found["predictions"]):
        assert before.logs is not None and before.logits is not None
        close("kl", one["kl"], mean([_divergence(before, each, n) for each in after]))
        worst = max(logit_slack(_logits(each)[n]) for each in after)
        ids, offs = _ids(one), (2 * logit_slack(before.logits[n]), 2 * worst)
        logs = _log_mean(after)[n]
        for name, side, off in (("before", before.logs[n], offs[0]), ("after", logs, offs[1])):
            share = np.exp(side[ids])
            close(
                name, [token[name] for token in one["tokens"]], Number(share, share * np.expm1(off))
            )
        moved = (logs - before.logs[n])[ids] / np.log(2)
        slack = np.full(len(ids), sum(offs) / np.log(2))
        close(
            "change in log-probability",
            [token["change"] for token in one["tokens"]],
            Number(moved, slack),
        )


def _logits(side: _Compared) -> Array:
    assert side.logits is not None
    return side.logits


def _log_mean(after: list[_Compared]) -> Array:
    """Logarithms of the mean probabilities, (P, V)."""
    mean: Array = np.log(
        np.mean([np.exp(one.logs) for one in after if one.logs is not None], axis=0)
    )
    return mean


def _listed(found: list[Json], before: _Compared, after: list[list[_Compared]]) -> None:
    """The five most probable tokens without the cuts come first, then those under each effect that are not there."""
    for n in range(len(found[0]["predictions"])):
        ids = _ids(found[0]["predictions"][n])
        same("tokens", [_ids(effect["predictions"][n]) for effect in found], [ids] * len(found))
        same("a token is listed once", len(set(ids)), len(ids))
        sides = [
            _logits(before),
            *(_logits(each[0]) if len(each) == 1 else _log_mean(each) for each in after),
        ]
        for which, side in enumerate(sides):
            logits, off = side[n], 2 * logit_slack(side[n])
            listed = ids[:SHOWN] if which == 0 else sorted(ids, key=lambda i: -logits[i])[:SHOWN]
            best = np.sort(logits)[::-1][:SHOWN]
            close("most probable", logits[listed], Number(best, np.full(SHOWN, off)))
        needed = {int(i) for side in sides for i in _may_be_listed(side, n)}
        if extra := set(ids) - needed:
            raise Mismatch(f"tokens: {sorted(extra)} are not among the most probable of any side")


def _may_be_listed(side: Array, n: int) -> Array:
    logits = side[n]
    return np.flatnonzero(logits >= np.sort(logits)[-SHOWN] - 2 * logit_slack(logits))


def _effects_of(
    before: _Compared, after: list[_Compared], rows: list[int]
) -> tuple[Number | None, Number]:
    """KL and change of hidden states of every unit, averaged over positions."""
    norms = np.linalg.norm(before.hidden, axis=-1)
    hidden, kls = [], []
    for one in after:
        _, change, off = _change(before.hidden, one.hidden)
        hidden.append(Number((change.value / norms)[rows].mean(), (3 * off / norms)[rows].mean()))
        if before.logs is not None:
            each = [_divergence(before, one, n) for n in range(len(rows))]
            kls.append(
                Number(np.mean([kl.value for kl in each]), np.mean([kl.slack for kl in each]))
            )
    both = [
        Number(np.array([one.value for one in some]), np.array([one.slack for one in some]))
        for some in (kls, hidden)
    ]
    return None if before.logs is None else both[0], both[1]
