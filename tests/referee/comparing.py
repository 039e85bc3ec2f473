"""Draw random calls of `attnscope compare`, of models and of saved reports, and verify every number of what they say.

Each side's Report is verified as one of `attnscope run`; what differs between two sides is computed again from the
reference's weights, and what only counts or selects (contributors, worst cells, verdicts) from the sides' own numbers.
"""

import copy
import itertools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.referee import draw, runner, verify
from tests.referee.call import Call, places
from tests.referee.expected import STAGES, Number, U, Unit
from tests.referee.models import Models
from tests.referee.verify import Json, Mismatch, Text, close, numbers, same

_KEPT = ("--format", "json", "--quiet", "--max-memory", "4G")


@dataclass(frozen=True)
class Comparing:
    """One call of `attnscope compare`."""

    axis: str  # what differs
    sides: list[Call]  # what every side's Report must be, as a call of `attnscope run`
    labels: list[str]  # what the sides are called
    argv: list[str]  # the arguments after `attnscope`
    # files of saved reports, each with the call that makes it; none where models run
    saved: list[tuple[Path, Call]]
    key: str | None  # columns of the difference, as typed
    stages: list[str]  # stages whose worst cells are told
    tolerance: tuple[float, float] | None  # absolute and relative; None for none

    def command(self) -> str:
        """The same, to be copied into a shell."""
        makes = [f"{call.command()} > {path}" for path, call in self.saved]
        source, made = self.sides[0], ""
        if source.file and not self.saved:
            made = f"printf '%s\\n' {shlex.join(source.texts)} > {source.file} && "
        return "\n  ".join([*makes, made + "attnscope " + shlex.join(self.argv)])


def call(models: Models, seed: int, number: int) -> Comparing:
    """Draw one call."""
    random = Random(f"compare {seed}:{number}")
    base = replace(draw.call(models, seed, 500_000 + number, divided=False), more=_KEPT)
    if base.stage == "none":
        # what `compare` keeps then: without them it could compare nothing
        base = replace(base, stage="weights")
    tolerance = (
        (random.choice((0.0, 1e-6, 0.05, 1e9)), random.choice((0.0, 1e-3)))
        if random.random() < 0.3
        else None
    )
    axis = random.choice(
        ("mask", "mask", "layer", "head", "text", "engine", "report", "report", "report")
    )
    if axis == "report":
        return _reports(random, models, base, seed, number, tolerance)
    single = replace(base, texts=base.texts[:1], file=None)
    few = ("0", "1", "0-1", "all", "mean", "1,0", "-1")
    given: list[str]
    match axis:
        case "mask":
            masks = random.choice(
                (
                    None,
                    ["own", "causal"],
                    ["causal", "own+window:2", "prefix:2"],
                    ["block:2", "own"],
                )
            )
            given = masks or ["causal", "bidirectional"]
            # alone, it would be what is compared
            base = base if masks else replace(base, hide=None)
            if random.random() < 0.3:
                base = replace(
                    base,
                    layer=random.choice(("all", "0,2", None)),
                    head=random.choice((None, "auto")),
                )
            sides = [replace(base, mask=mask) for mask in given]
            typed = [] if masks is None else given
            base = replace(base, mask=None)
        case "layer" | "head":
            typed = given = random.choice(
                (["0", "1"], ["1", "-1", "0"], ["0-1", "1-2"], ["mean", "1"])
            )
            other = {"head" if axis == "layer" else "layer": random.choice((*few, None, "auto"))}
            base = replace(base, **other, **{axis: None})
            sides = [replace(base, **{axis: value}) for value in given]
        case "engine":
            typed = given = random.choice((["native", "transformers"], ["transformers", "native"]))
            base = replace(base, engine=None)
            sides = [replace(base, engine=engine) for engine in given]
        case _:
            more = tuple(
                _varied(random, base.texts[0], models[base.model].words)
                for _ in range(random.choice((1, 2)))
            )
            base = replace(
                single, pair=None, query=None, key=None, mask=None, what_if=None, hide=None
            )
            typed, given = [], [base.texts[0], *more]
            sides = [replace(base, texts=(text,)) for text in given]
    # then all heads are compared, unless others are typed
    if tolerance is not None or axis not in ("layer", "head"):
        every = {name: "all" for name in ("layer", "head") if getattr(sides[0], name) is None}
        sides = [replace(side, **every) for side in sides]
    maps = axis != "text" and base.query is None and base.key is None and base.pool is not None
    asked = base.stages or ["weights"]
    whole = [
        replace(
            side,
            key=None if maps else "0:",
            auto_key=side.key,
            stage=",".join(_with_weights(asked)),
        )
        for side in sides
    ]
    words = ["compare", *base.argv()[1:]]
    if axis == "text":
        words[1:2] = given
    else:
        words += [word for value in typed for word in (f"--{axis}", value)]
    labels = _numbered(given)
    if axis == "text" and (labels != given or max(map(len, given)) > 30):
        labels = [f"text {n}" for n in range(len(given))]
    return Comparing(
        axis, whole, labels, words + _tolerant(tolerance), [], base.key, asked, tolerance
    )


def _reports(
    random: Random,
    models: Models,
    base: Call,
    seed: int,
    number: int,
    tolerance: tuple[float, float] | None,
) -> Comparing:
    """Two saved reports that differ in a mask, an engine, or in what they hold."""
    layer, head = (
        random.choice(("all", "0,1", "1", "mean")),
        random.choice(("all", "1,2", "0", "mean")),
    )
    base = replace(base, layer=layer, head=head)
    base = replace(base, stage=",".join(_with_weights(base.stages)), pool=None)
    masks = random.choice((["own", "own"], ["causal", "own"], ["own", "own+window:2"]))
    calls = [
        replace(base, mask=mask, engine=random.choice((None, None, "transformers")))
        for mask in masks
    ]
    tokens = min(draw.count_tokens(models[base.model], text, base.pair) for text in base.texts)
    if random.random() < 0.3:
        calls[1] = replace(calls[1], top=random.choice((1, 2, 7)))
    if random.random() < 0.4:
        calls[1] = replace(calls[1], key=random.choice((None, "0", f"0:{tokens}", f"{tokens - 1}")))
    if random.random() < 0.2:
        calls[1] = replace(calls[1], query=random.choice((None, "0", f"{tokens // 2}:")))
    paths = [models.place / f"report-{seed}-{number}-{n}.json" for n in range(2)]
    words = ["compare", *map(str, paths), "--format", "json", "--quiet"]
    wanted: dict[str, str] = {}
    if random.random() < 0.4:
        fitting = {
            "all": ("0", "1-2", "-1", "all"),
            "0,1": ("0", "1,0"),
            "1": ("1",),
            "mean": ("mean", "all"),
        }
        wanted["layer"] = random.choice(fitting[layer])
    if random.random() < 0.4:
        fitting = {"all": ("0", "2,0-1", "3"), "1,2": ("2", "1"), "0": ("0",), "mean": ("mean",)}
        wanted["head"] = random.choice(fitting[head])
    if random.random() < 0.3:
        wanted["stage"] = ",".join(random.sample(base.stages, random.randint(1, len(base.stages))))
    shared = [call.query for call in calls]
    if random.random() < 0.3 and shared == [None, None]:
        wanted["query"] = random.choice(("0", f"{tokens - 1},0", f"{tokens // 2}:{tokens}"))
    named = calls[0].key is not None and (len(base.texts) > 1 or not _numeric(calls[0].key))
    keys = [] if named else places(calls[0].key or "0:", ["x"] * tokens)
    key = str(random.choice(keys)) if keys and random.random() < 0.3 else None
    if key is not None:
        words += ["--key", key]
    for name, value in wanted.items():
        words += [f"--{name}", value]
    asked = replace(base, **wanted).stages
    # of a saved mean, it is the mean
    narrower = {name: value for name, value in wanted.items() if value != "all"}
    sides = [replace(c, **{**narrower, "stage": ",".join(_with_weights(asked))}) for c in calls]
    saved = list(zip(paths, calls, strict=True))
    labels = _numbered([str(path) for path in paths])
    return Comparing(
        "report", sides, labels, words + _tolerant(tolerance), saved, key, asked, tolerance
    )


def _numeric(typed: str) -> bool:
    return all(character in "0123456789:,-" for character in typed)


def _with_weights(stages: Sequence[str]) -> list[str]:
    return [stage for stage in STAGES if stage in (*stages, "weights")]


def _tolerant(tolerance: tuple[float, float] | None) -> list[str]:
    return (
        []
        if tolerance is None
        else ["--tolerance", str(tolerance[0]), "--relative", str(tolerance[1])]
    )


def _varied(random: Random, text: str, words: list[str]) -> str:
    """The text with words dropped, put in, exchanged."""
    found = [word for word in text.split() if random.random() < 0.8] or ["the"]
    for _ in range(random.randint(0, 3)):
        found.insert(random.randint(0, len(found)), random.choice(words))
    return " ".join(found)


def check(made: Comparing, models: Models) -> None:
    """Run one call and verify every number of it."""
    for path, saved in made.saved:
        path.write_bytes(runner.output(saved.argv()))
    code, out, errors = runner.run(made.argv)
    if code not in ((0, 1) if made.tolerance else (0,)) or bool(errors) != bool(code) or not out:
        raise Mismatch(f"exit code {code}: {errors.strip()}")
    found = runner.parsed(out)
    same("axis", found["axis"], made.axis)
    same("labels", [side["label"] for side in found["sides"]], made.labels)
    same(
        "changes", [change["side"] for change in found["changes"]], list(range(1, len(made.sides)))
    )
    of_sides = _sides(found, made, models)
    for change in found["changes"]:
        entries = iter(change["heads"])
        for number in range(len(of_sides[0])):
            a, b = of_sides[0][number], of_sides[change["side"]][number]
            for x, y in _paired(made.axis, a, b):
                _head(f"side {change['side']} text {number} ", next(entries), a, b, x, y, made)
        same("left over", list(entries), [])
    _verdict(found, made, code)


@dataclass(frozen=True)
class _Side:
    """One text of one side: what the reference has, and the Report's own entry."""

    text: Text
    units: dict[tuple[Any, Any], Unit]
    found: Json

    def head(self, name: tuple[Any, Any]) -> Json:
        (one,) = (head for head in self.found["heads"] if (head["layer"], head["head"]) == name)
        return one


def _sides(found: Json, made: Comparing, models: Models) -> list[list[_Side]]:
    """Verify every side's Report, and compute its units."""
    model = models[made.sides[0].model]
    chosen = [(h["layer"], h["head"]) for h in found["sides"][0]["report"]["texts"][0]["heads"]]
    all_sides = []
    for n, (call, side) in enumerate(zip(made.sides, found["sides"], strict=True)):
        report = side["report"]
        left = "auto" in (call.layer or "auto", call.head or "auto")
        texts = [Text(model, call, i) for i in range(len(call.texts))]
        named: list[tuple[Call, Json]] = [(call, report)]
        if left and n:
            expected = _like(
                made.axis, chosen, call, len(texts[0].layers), len(texts[0].layers[0].raw)
            )
            same("chosen", [(h["layer"], h["head"]) for h in report["texts"][0]["heads"]], expected)
            named = [_only(call, report, unit) for unit in expected]
        units: list[dict[tuple[Any, Any], Unit]] = [{} for _ in texts]
        for one_call, one in named:
            verify.report(one, one_call, model)
            for name, (layers, heads) in verify.named_units(
                one_call, texts, one["texts"][0]["heads"]
            ):
                for text, known in zip(texts, units, strict=True):
                    known[name] = Unit([text.layers[i] for i in layers], heads, "mean" not in name)
        all_sides.append([_Side(*each) for each in zip(texts, units, report["texts"], strict=True)])
    return all_sides


def _like(
    axis: str, chosen: list[tuple[Any, Any]], call: Call, n_layers: int, n_heads: int
) -> list[tuple[Any, Any]]:
    """The units of another side: those that the first one chose, with its own layers or its own heads."""
    if axis == "layer":
        layers = ["mean"] if call.layer == "mean" else call.numbers(call.layer, n_layers) or []
        return [(layer, head) for layer, (_, head) in zip(layers, chosen, strict=True)]
    if axis == "head":
        heads = ["mean"] if call.head == "mean" else call.numbers(call.head, n_heads) or []
        return [
            (layer, head) for layer in dict.fromkeys(layer for layer, _ in chosen) for head in heads
        ]
    return chosen


def _only(call: Call, report: Json, unit: tuple[Any, Any]) -> tuple[Call, Json]:
    """One unit's share of a Report, and the call that names it."""
    part = copy.deepcopy(report)
    for text in part["texts"]:
        text["heads"] = [head for head in text["heads"] if (head["layer"], head["head"]) == unit]
    return replace(call, layer=str(unit[0]), head=str(unit[1])), part


def _paired(axis: str, a: _Side, b: _Side) -> list[tuple[Any, Any]]:
    """Names of the heads that are compared."""
    if axis in ("layer", "head") and len(a.units) == len(b.units):
        return list(zip(a.units, b.units, strict=True))
    return [(name, name) for name in a.units]


def _head(where: str, found: Json, a: _Side, b: _Side, x: Any, y: Any, made: Comparing) -> None:
    """Everything that is said of one head of two sides."""
    same(where + "names", (found["first"], found["second"]), (list(x), list(y)))
    first, second = a.head(x), b.head(y)
    one, other = a.units[x], b.units[y]
    if not a.found["queries"]:
        everything = range(a.text.n)
        masses = [one.columns(everything), other.columns(everything)]
        close(where + "mass", found["mass"], _stacked(masses))
        pooled = [_exact(head["pooled"]["weights"]) for head in (first, second)]
        rows, columns = first["pooled"]["queries"], first["pooled"]["keys"]
        same(where + "stages", [cell["stage"] for cell in found["worst"]], ["pooled"])
        _worst(where, found["worst"][0], *pooled, rows, columns)
        return
    same(where + "mass", found["mass"], None)
    aligned = _aligned(where, found, a, b, made.axis)
    queries = [(i, j) for i, j in aligned if i in a.found["queries"] and j in b.found["queries"]]
    keys = [(i, j) for i, j in aligned if i in a.found["keys"] and j in b.found["keys"]]
    same(where + "queries", found["queries"], [list(pair) for pair in queries])
    shown = keys
    if made.key is not None:
        wanted = places(made.key, [token["text"] for token in a.found["tokens"]])
        shown = [pair for pair in keys if pair[0] in wanted]
    same(where + "keys", found["keys"], [list(pair) for pair in shown])
    at = [[pair[n] for pair in queries] for n in (0, 1)]
    p, q = (_rows(unit, rows) for unit, rows in zip((one, other), at, strict=True))
    difference = Number(
        q.value[:, [j for _, j in shown]] - p.value[:, [i for i, _ in shown]],
        q.slack[:, [j for _, j in shown]] + p.slack[:, [i for i, _ in shown]],
    )
    close(where + "difference", found["difference"], difference)
    entropies = [
        unit.statistic("entropy")[rows] for unit, rows in zip((one, other), at, strict=True)
    ]
    close(where + "entropy", found["entropy"], _stacked(entropies))
    futures = [
        _future(side, weights, rows) for side, weights, rows in zip((a, b), (p, q), at, strict=True)
    ]
    close(where + "future", found["future"], _stacked(futures))
    whole = all(len(side.found["keys"]) == side.text.n for side in (a, b))
    if whole:
        same(where + "partial", found["partial"], None)
        _moved(where, found, p, q, aligned, [unit.statistic("sink")[r] if unit.has_sink else None
                                             for unit, r in zip((one, other), at, strict=True)])  # fmt: skip
    else:
        _partial(where, found, a, b, p, q)
    _newcomers(where, found, first, second, a, b, at, aligned)
    same(where + "stages", [cell["stage"] for cell in found["worst"]], made.stages)
    queries, keys = (
        [pair for pair in pairs if _piece(a, pair[0]) == _piece(b, pair[1])]
        for pairs in (queries, keys)
    )
    at[0] = [i for i, _ in queries]
    for cell in found["worst"]:
        _worst(where, cell, *_matrices(cell["stage"], a, b, first, second, queries, keys), at[0],
               [i for i, _ in keys])  # fmt: skip


def _name(unit: tuple[Any, Any]) -> str:
    layer, head = unit
    if layer == "mean":
        return "mean" if head == "mean" else f"mean H{head}"
    return f"L{layer} mean" if head == "mean" else f"L{layer}H{head}"


def _stacked(parts: Sequence[Number]) -> Number:
    return Number(
        np.array([part.value for part in parts]), np.array([part.slack for part in parts])
    )


def _rows(unit: Unit, rows: Sequence[int]) -> Number:
    weights = unit.number("weights")
    return Number(weights.value[rows], weights.slack[rows])


def _piece(side: _Side, position: int) -> str:
    return str(side.found["tokens"][position]["piece"])


def _aligned(where: str, found: Json, a: _Side, b: _Side, axis: str) -> list[tuple[int, int]]:
    """The alignment that `only_first` and `only_second` stand for, after a look whether no longer one is possible.

    Of texts that may differ, every run between two shared tokens is looked at: who takes whose place.
    """
    pieces = [[token["piece"] for token in side.found["tokens"]] for side in (a, b)]
    kept = [
        [i for i in range(len(own)) if i not in found[name]]
        for own, name in zip(pieces, ("only_first", "only_second"), strict=True)
    ]
    same(where + "length of both alignments", len(kept[0]), len(kept[1]))
    pairs = list(zip(*kept, strict=True))
    shared = [(i, j) for i, j in pairs if pieces[0][i] == pieces[1][j]]
    longest = [[0] * (len(pieces[1]) + 1) for _ in range(len(pieces[0]) + 1)]
    for i, j in itertools.product(range(len(pieces[0])), range(len(pieces[1]))):
        equal = pieces[0][i] == pieces[1][j]
        longest[i + 1][j + 1] = (
            longest[i][j] + 1 if equal else max(longest[i][j + 1], longest[i + 1][j])
        )
    same(where + "length of the alignment", len(shared), longest[-1][-1])
    expected = shared
    if axis in ("text", "report"):
        expected = sorted(shared + _replaced(shared, [side.found["tokens"] for side in (a, b)]))
    same(where + "alignment", pairs, expected)
    return pairs


def _replaced(shared: list[tuple[int, int]], tokens: list[list[Json]]) -> list[tuple[int, int]]:
    """Pairs of different tokens: runs of one length, or of the pieces of one word each."""
    found = []
    fixed = [(-1, -1), *shared, (len(tokens[0]), len(tokens[1]))]
    for before, after in itertools.pairwise(fixed):
        runs = [tokens[n][before[n] + 1 : after[n]] for n in (0, 1)]
        words = all(
            x["end"] is not None and x["end"] == y["start"] and x["segment"] == y["segment"]
            for run in runs
            for x, y in itertools.pairwise(run)
        )
        if words or len(runs[0]) == len(runs[1]):
            for step, (x, y) in enumerate(zip(*runs, strict=False), 1):
                if x["special"] == y["special"] and x["segment"] == y["segment"]:
                    found.append((before[0] + step, before[1] + step))
    return found


def _future(side: _Side, weights: Number, rows: Sequence[int]) -> Number:
    """Weight on keys after each query; none where one of these keys is not saved."""
    value, slack = np.full(len(rows), np.nan), np.zeros(len(rows))
    for n, query in enumerate(rows):
        later = list(range(query + 1, side.text.n))
        if set(later) <= set(side.found["keys"]):
            value[n], slack[n] = (
                weights.value[n, later].sum(),
                weights.slack[n, later].sum() + 4 * U,
            )
            value[n] = np.nan if np.isnan(weights.value[n]).any() else value[n]
    return Number(value, slack)


def _moved(
    where: str,
    found: Json,
    p: Number,
    q: Number,
    aligned: list[tuple[int, int]],
    sinks: Sequence[Number | None],
) -> None:
    """What needs whole rows: total variation, Jensen–Shannon, gains and losses."""
    n_first, n_second = p.value.shape[1], q.value.shape[1]
    partner = dict(aligned)
    own = [j for j in range(n_second) if j not in partner.values()]
    rows = len(p.value)
    # outcomes: every key of the first, the second's own, the sink
    there = [partner.get(i) for i in range(n_first)]

    def outcomes(kind: str) -> tuple[Any, Any]:
        mine, theirs = getattr(p, kind), getattr(q, kind)
        nothing = np.zeros((rows, 1))
        left = np.hstack([mine, np.zeros((rows, len(own))), _column(sinks[0], kind, rows)])
        matched = [nothing if j is None else theirs[:, [j]] for j in there]
        right = np.hstack([*matched, theirs[:, own], _column(sinks[1], kind, rows)])
        return left, right

    (x, y), (sx, sy) = outcomes("value"), outcomes("slack")
    close(where + "total_variation", found["total_variation"],
          Number(np.abs(x - y).sum(1) / 2, (sx + sy).sum(1) / 2 + 4 * U))  # fmt: skip
    close(where + "jensen_shannon", found["jensen_shannon"], _jensen_shannon(x, y, sx, sy))
    keys = n_first + len(own)
    gains, slacks = (y - x)[:, :keys], (sx + sy)[:, :keys] + 2 * U
    position = {"gained": [*there, *own], "lost": [*range(n_first), *([None] * len(own))]}
    for name, amount, sign in (("gained", "gain", 1), ("lost", "loss", -1)):
        of = [n for n, place in enumerate(position[name]) if place is not None]
        for row in range(rows):
            change = sign * np.nan_to_num(gains[row, of])
            most, slack = max(change.max(initial=0.0), 0.0), slacks[row].max()
            place, size = found[name][row], found[amount][row]
            if place == -1:
                fits = most <= slack and size == 0
            else:
                mine = change[of.index(position[name].index(place))]
                fits = mine >= most - 2 * slack and abs(size - mine) <= slack + 1e-7
            if not fits:
                raise Mismatch(
                    f"{where}{name} of row {row}: {place} by {size}, expected {most} of {change}"
                )


def _column(sink: Number | None, kind: str, rows: int) -> Any:
    return np.zeros((rows, 1)) if sink is None else getattr(sink, kind)[:, None]


def _jensen_shannon(x: Any, y: Any, sx: Any, sy: Any) -> Number:
    """½ KL(x‖m) + ½ KL(y‖m) in bits; by its derivatives ½ log₂(x/m) and ½ log₂(y/m), its slack."""
    m = (x + y) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = [np.where(z > 0, np.log2(z / m), 0.0) for z in (x, y)]
        value = sum((z * log).sum(1) for z, log in zip((x, y), logs, strict=True)) / 2
        steep = [np.abs(np.log2(np.maximum(z, U) / np.maximum(m, U))) + 2 for z in (x, y)]
    slack = sum((s * slope).sum(1) for s, slope in zip((sx, sy), steep, strict=True)) / 2 + 4 * U
    return Number(np.where(np.isnan(x).any(1) | np.isnan(y).any(1), np.nan, value), slack)


def _partial(where: str, found: Json, a: _Side, b: _Side, p: Number, q: Number) -> None:
    """What is said where rows are not whole."""
    nothing = [None] * len(p.value)
    for name in ("total_variation", "jensen_shannon", "gain", "loss"):
        same(where + name, found[name], nothing)
    same(
        where + "gained",
        (found["gained"], found["lost"]),
        ([-1] * len(nothing), [-1] * len(nothing)),
    )
    partial = found["partial"]
    same(where + "partial.keys", partial["keys"], [len(a.found["keys"]), len(b.found["keys"])])
    same(where + "partial.of", partial["of"], [a.text.n, b.text.n])
    outside = []
    for side, rows in ((a, p), (b, q)):
        out = [key for key in range(side.text.n) if key not in side.found["keys"]]
        outside.append(Number(rows.value[:, out].sum(1), rows.slack.sum(1) + 16 * U))
        if not out:
            outside[-1] = Number(
                np.where(np.isnan(rows.value).any(1), np.nan, 0.0), rows.slack[:, 0] * 0
            )
    close(where + "partial.outside", partial["outside"], _stacked(outside))


def _newcomers(
    where: str, found: Json, first: Json, second: Json, a: _Side, b: _Side, at: list[list[int]],
    aligned: list[tuple[int, int]],
) -> None:  # fmt: skip
    """Who entered and who left, of the sides' own contributors."""
    lists = [
        [[key for key in head["top"]["keys"][side.found["queries"].index(query)]] for query in rows]
        for side, head, rows in ((a, first, at[0]), (b, second, at[1]))
    ]
    ranks = min(len(keys) for rows in lists for keys in rows) if at[0] else 0
    forth, back = dict(aligned), {j: i for i, j in aligned}
    for row in range(len(at[0])):
        before, after = ({k for k in rows[row][:ranks] if k >= 0} for rows in lists)
        entered = [k for k in lists[1][row][:ranks] if k >= 0 and back.get(k) not in before]
        left = [k for k in lists[0][row][:ranks] if k >= 0 and forth.get(k) not in after]
        same(f"{where}entered of row {row}", found["entered"][row], entered)
        same(f"{where}left of row {row}", found["left"][row], left)


def _matrices(
    stage: str, a: _Side, b: _Side, first: Json, second: Json, queries: list[tuple[int, int]],
    keys: list[tuple[int, int]],
) -> list[Any]:  # fmt: skip
    """A stage of both sides as their Reports have it, over the rows and columns of both; null is NaN."""
    made = []
    for n, (side, head) in enumerate(((a, first), (b, second))):
        rows = [side.found["queries"].index(pair[n]) for pair in queries]
        matrix = _exact(head["stages"][stage]).reshape(len(side.found["queries"]), -1)[rows]
        columns = [side.found["keys"].index(pair[n]) for pair in keys]
        made.append(matrix if stage == "output" else matrix[:, columns])
    return made


def _exact(found: Any) -> Any:
    """The very float32 that stand behind shortest digits, as float64."""
    return numbers(found).astype(np.float32).astype(np.float64)


def _worst(
    where: str, cell: Json, x: Any, y: Any, rows: Sequence[int], columns: Sequence[int]
) -> None:
    """The cell that is called the worst is one."""
    if not x.size:
        same(where + "worst", (cell["query"], cell["key"], cell["difference"]), (-1, -1, 0.0))
        return
    apart = np.isnan(x) != np.isnan(y)
    size = np.where(apart, np.inf, np.nan_to_num(np.abs(y - x)))
    column = cell["key"] if cell["stage"] == "output" else list(columns).index(cell["key"])
    at = list(rows).index(cell["query"]), column
    values = [None if np.isnan(z[at]) else float(z[at]) for z in (x, y)]
    same(f"{where}worst {cell['stage']} values", [cell["first"], cell["second"]], values)
    same(
        f"{where}worst {cell['stage']}", cell["difference"], None if apart[at] else float(size[at])
    )
    if size[at] < size.max():
        raise Mismatch(f"{where}worst {cell['stage']}: {size[at]} at {at}, there is {size.max()}")


def _verdict(found: Json, made: Comparing, code: int) -> None:
    """The verdict counts the cells that `numpy.isclose` counts."""
    verdict = found["verdict"]
    if made.tolerance is None:
        same("verdict", verdict, None)
        return
    absolute, relative = made.tolerance
    counts: dict[str, list[int]] = {}
    lacking, differing, scales = False, set(), {}
    for change in found["changes"]:
        first, second = (found["sides"][n]["report"]["texts"] for n in (0, change["side"]))
        for head in change["heads"]:
            a, b = first[head["text"]], second[head["text"]]
            x, y = (
                next(h for h in text["heads"] if [h["layer"], h["head"]] == head[which])
                for text, which in ((a, "first"), (b, "second"))
            )
            if not a["queries"]:
                pairs = {"pooled": [_exact(one["pooled"]["weights"]) for one in (x, y)]}
            else:
                kept = [
                    [i for i in range(len(text["tokens"])) if i not in head[only]]
                    for text, only in ((a, "only_first"), (b, "only_second"))
                ]
                pieces = [[token["piece"] for token in text["tokens"]] for text in (a, b)]
                # a tolerance judges tokens that both have, not those that take each other's place
                aligned = [
                    (i, j) for i, j in zip(*kept, strict=True) if pieces[0][i] == pieces[1][j]
                ]
                queries = [(i, j) for i, j in aligned if i in a["queries"] and j in b["queries"]]
                keys = [(i, j) for i, j in aligned if i in a["keys"] and j in b["keys"]]
                lacking |= not queries or not keys
                lacking |= made.axis != "text" and bool(head["only_first"] or head["only_second"])
                sides = [_Side(None, {}, text) for text in (a, b)]  # type: ignore[arg-type]
                pairs = {
                    stage: _matrices(stage, *sides, x, y, queries, keys) for stage in made.stages
                }
            for stage, (one, other) in pairs.items():
                scale = _scale(stage, a, x["layer"])
                scales[stage, head["text"], *head["first"]] = scale
                far = ~np.isclose(other, one, rtol=relative, atol=absolute * scale, equal_nan=True)
                if far.any() and x["layer"] != "mean":
                    differing.add(x["layer"])
                seen = counts.setdefault(stage, [0, 0])
                seen[0] += far.size
                seen[1] += int(far.sum())
    expected = {stage: seen for stage, seen in counts.items() if seen[0]}
    same("verdict", {s["stage"]: [s["compared"], s["beyond"]] for s in verdict["stages"]}, expected)
    for stage in verdict["stages"]:
        same("scale", stage["scale"], scales[stage["stage"], stage["text"], *stage["first"]])
    made_of = found["sides"][0]["report"]["provenance"]
    names = {tuple(head["first"]) for change in found["changes"] for head in change["heads"]}
    same(
        "heads",
        (verdict["heads"], verdict["of_heads"]),
        (len(names), made_of["n_layers"] * made_of["n_heads"]),
    )
    same("first_layer", verdict["first_layer"], min(differing, default=None))
    passed = bool(expected) and not lacking and not any(beyond for _, beyond in expected.values())
    same("verdict.passed", (verdict["passed"], code), (passed, 0 if passed else 1))


def _scale(stage: str, text: Json, layer: Any) -> float:
    """What an absolute tolerance is multiplied by: the largest number of the stage in the layer, if above 1."""
    if stage in ("weights", "pooled"):
        return 1.0
    matrices = [_exact(head["stages"][stage]) for head in text["heads"] if head["layer"] == layer]
    return max(1.0, *(float(np.abs(np.nan_to_num(matrix)).max(initial=0)) for matrix in matrices))


def _numbered(names: list[str]) -> list[str]:
    """The names; one that several sides have is followed by which of them it is."""
    return [
        name if names.count(name) == 1 else f"{name} ({names[:n].count(name) + 1})"
        for n, name in enumerate(names)
    ]
