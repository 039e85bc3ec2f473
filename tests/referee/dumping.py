"""Draw random calls of `attnscope batch` and `attnscope convert`, and verify every number of records and of tables.

A record's arrays are verified where they lie (a line, a shard, a document), and once more as they come back from the
tables that `convert` makes of the dump.
"""

import csv
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
from safetensors.numpy import load_file

from tests.referee import cutting, draw, masks, runner, spanning, verify
from tests.referee.call import Call, places
from tests.referee.expected import STAGES, STATISTICS, Number, U, Unit
from tests.referee.models import MINILM, Model, Models
from tests.referee.verify import Json, Mismatch, Text, close, same

_PARTS = ("top", "rows", "columns", "pooled")
_MEASURES = {
    "weight": ("weight",),
    "value": ("weight", "value"),
    "projected": ("weight", "value", "projected"),
}
_AVERAGES = (
    "entropy",
    "first",
    "special",
    "self",
    "distance",
    "largest",
    "max_score",
    "previous",
    "induction",
)
_TABLES = {
    "heads": "heads",
    "spans": "spans",
    "span_effects": "span_effects",
    "contributors": "top",
    "rows": "rows",
    "columns": "columns",
    "matrices": "stages",
    "effects": "effects",
}


@dataclass(frozen=True)
class Dumping:
    """One call of `attnscope batch`."""

    # what every record must hold, as a call of `attnscope run`; its `stage` is None where none is kept
    call: Call
    # text and second text of every line; an empty text for a blank line
    items: list[tuple[str, str | None]]
    # ranges of every line, where texts have spans of their own
    own_spans: list[list[dict[str, Any]] | None]
    source: Path  # the file of texts
    output: Path  # the dump
    keep: list[str]  # what is kept besides stages
    pool: int  # size of maps

    @property
    def argv(self) -> list[str]:
        """The arguments after `attnscope`."""
        words = [
            "batch",
            str(self.source),
            "-o",
            str(self.output),
            "--model",
            str(self.call.folder),
            "--force",
        ]
        names = ["layer", "head", "query", "stage", "mask", "what_if", "hide", "spans", "engine"]
        names += [
            *(["key"] if self.call.stage else []),
            *(["top", "by"] if "top" in self.keep else []),
        ]
        for name in names:
            if (value := getattr(self.call, name)) is not None:
                words += ["--" + name.replace("_", "-"), str(value)]
        words += ["--keep", ",".join(self.keep), "--max-memory", "4G", "--quiet"]
        words += ["--pool", str(self.pool)] if "pooled" in self.keep else []
        return [*words, *(["--no-special"] if self.call.no_special and "top" in self.keep else [])]

    def command(self) -> str:
        """The same, to be copied into a shell."""
        return f"printf %s {shlex.quote(self.source.read_text())} > {self.source}; attnscope {shlex.join(self.argv)}"


def call(models: Models, seed: int, number: int) -> Dumping:
    """Draw one call."""
    random = Random(f"dump {seed}:{number}")
    base = draw.call(models, seed, 700_000 + number, divided=False)
    base = replace(base, file=None, pool=None, query=None, key=None, hide=None)
    model = models[base.model]
    items = [_item(random, model) for _ in range(random.choice((1, 2, 5, 8)))]
    if random.random() < 0.3:
        items.insert(random.randint(0, len(items)), ("", None))
    lines = any(pair is not None for _, pair in items) or random.random() < 0.3
    there = [item for item in items if item[0]]
    counts = [draw.count_tokens(model, *item) for item in there]
    if masks.of_one_length(base.mask):
        base = replace(base, mask="causal+block:3")  # a file fits texts of one length alone
    texts = tuple(" ".join((text, pair or "")) for text, pair in there)
    if random.random() < 0.4:
        base = replace(base, query=draw.places(random, texts, counts))
    if random.random() < 0.4:
        base = replace(base, key=draw.places(random, texts, counts))
    if number % 4 == 0:
        base = replace(base, hide=draw.hidden(seed, number, texts, counts))
    for name in ("layer", "head"):
        if getattr(base, name) in (None, "auto"):
            base = replace(base, **{name: random.choice(("all", "mean", "1"))})
    stage = random.choice((None, "weights", ",".join(random.sample(STAGES, random.randint(1, 5)))))
    base = replace(base, stage=stage, texts=tuple(text for text, _ in there), pair=None)
    source = models.place / f"items-{seed}-{number}.{'jsonl' if lines else 'txt'}"
    apart = Random(f"dump spans {seed}:{number}")
    base, own = (
        _spans(apart, base, items, model, lines=lines)
        if apart.random() < 0.3
        else (base, [None] * len(items))
    )
    members = [
        {"text": a} | ({"pair": b} if b else {}) | ({"spans": c} if c else {})
        for (a, b), c in zip(items, own, strict=True)
    ]
    written = [json.dumps(some) if lines else some["text"] for some in members]
    source.write_text("".join(line + "\n" for line in written))
    keep = [part for part in _PARTS if random.random() < 0.6] or ["rows"]
    cuts = (
        Random(f"effects {seed}:{number}").random() < 0.2
        and base.model != MINILM
        and base.what_if is None
    )
    keep += ["spans"] if base.spans or any(own) else []
    of_spans = (
        "spans" in keep and apart.random() < 0.5 and base.model != MINILM and base.what_if is None
    )
    keep += ["span_effects"] if of_spans and "mean" not in (base.layer, base.head) else []
    keep += ["effects"] if cuts and "mean" not in (base.layer, base.head) else []
    of_heads = Random(f"dump heads {seed}:{number}").random() < 0.4
    keep += ["heads"] if of_heads and "mean" not in (base.layer, base.head) else []
    output = models.place / f"dump-{seed}-{number}{random.choice(('.jsonl', '', '', '.json'))}"
    return Dumping(base, items, own, source, output, keep, random.choice((1, 2, 5, 16)))


def _spans(
    random: Random, base: Call, items: list[tuple[str, str | None]], model: Model, *, lines: bool
) -> tuple[Call, list[list[dict[str, Any]] | None]]:
    """How texts are divided: all in the same way, or each by ranges of its own."""
    texts = [text for text, _ in items if text]
    if lines and random.random() < 0.5:
        return base, [
            spanning.ranges(random, a, draw.count_tokens(model, a, None)) if a else None
            for a, _ in items
        ]
    shared = sorted(set.intersection(*(set(text.split()) for text in texts)))
    marks = (
        [",".join(random.sample(shared, random.randint(1, min(3, len(shared)))))] if shared else []
    )
    return replace(base, spans=random.choice(["words", "sentences", *marks])), [None] * len(items)


def _item(random: Random, model: Model) -> tuple[str, str | None]:
    """A text, and sometimes a second; some are long enough to be padded in a group."""
    length = random.choice((None, None, 17, 18, 19, 40))
    text = " ".join(
        random.choice(model.words) for _ in range(length or random.choice((1, 2, 3, 5, 9)))
    )
    pair = " ".join(random.choice(model.words) for _ in range(random.choice((1, 3, 20))))
    return text, pair if random.random() < 0.15 else None


def check(made: Dumping, models: Models) -> None:
    """Write one dump, convert it to tables, and verify every number of both."""
    runner.output(made.argv)
    records = list(_records(made.output))
    same("records", [record["index"] for record in records], list(range(len(made.items))))
    model = models[made.call.model]
    for record, (text, _) in zip(records, made.items, strict=True):
        same("status", record["status"], "ok" if text else "skipped")
    done = [record for record in records if record["status"] == "ok"]
    tables = _tables(made, done)
    for record in done:
        text, pair = made.items[record["index"]]
        spans: Any = made.call.spans or made.own_spans[record["index"]]
        item = replace(made.call, texts=(text,), pair=pair, spans=spans)
        for source, arrays in (("", record), ("table ", tables[record["index"]])):
            _record(f"{source}record {record['index']} ", record, arrays, item, made, model)


def _records(path: Path) -> Iterator[Json]:
    """The records of a dump of any kind, with their arrays."""
    if path.suffix == ".json":
        yield from runner.parsed(path.read_bytes())["records"]
        return
    lines = (path / "index.jsonl" if path.is_dir() else path).read_bytes().splitlines()
    for line in lines[1:-1]:
        record = runner.parsed(line)
        if "shard" in record:
            shard = path / record["shard"]
            same("shard_check", f"{crc32(shard.read_bytes()):08x}", record["shard_check"])
            shard_arrays = load_file(shard)
            if not record.get("units"):
                pairs = shard_arrays["units"].tolist()
                record["units"] = [["mean" if n == -1 else n for n in pair] for pair in pairs]
            for name, array in _of_shard(shard_arrays, record):
                part, _, key = name.partition(".")
                if key == "masked" and np.isnan(array).any():
                    raise Mismatch(
                        "stages.masked: NaN in a shard, where a cell is -inf if it is not allowed"
                    )
                values = (
                    np.where(np.isfinite(array), array, np.nan).tolist()
                    if array.dtype.kind == "f"
                    else array.tolist()
                )
                if key:
                    record.setdefault(part, {})[key] = values
                else:
                    record[part] = values
        yield record


_AXES_FIRST = {
    "top": 1, "rows": 1, "columns": 1, "spans.sink": 1, "stages.output": 1, "span_effects": 0, "pooled.queries": 0,
    "pooled.keys": 0,
}  # fmt: skip


def _of_shard(arrays: dict[str, Any], record: Json) -> Iterator[tuple[str, Any]]:
    """The arrays of one record in a shard, by name; see docs/dumps.md."""
    for name, array in arrays.items():
        if "/" in name or name in ("texts", "units"):
            continue
        mine = np.flatnonzero(arrays.get(f"{name}/texts", arrays["texts"]) == record["index"])
        if not len(mine):
            continue
        (number,), offsets = mine, arrays.get(f"{name}/offsets")
        if offsets is None:
            yield name, array[number]
            continue
        part = array[offsets[number] : offsets[number + 1]]
        if f"{name}/shape" in arrays:
            yield name, part.reshape(arrays[f"{name}/shape"][number])
            continue
        part = np.moveaxis(
            part, 0, _AXES_FIRST[name if name in _AXES_FIRST else name.partition(".")[0]]
        )
        if name.startswith("top."):
            part = part[..., : len(record["tokens"])]
        yield (
            name,
            np.where(part == 65535, -1, part.astype(int)) if part.dtype == np.uint16 else part,
        )


def _record(
    where: str, record: Json, arrays: Json, item: Call, made: Dumping, model: Model
) -> None:
    """Everything that a record, or the tables, say of one text."""
    text = Text(model, item, 0)
    text.longest = text.n
    verify._tokens(record["tokens"], text)
    words = spanning.named_spans([token["text"] for token in record["tokens"]], text.division)
    queries = list(range(text.n)) if item.query is None else places(item.query, words)
    keys = list(range(text.n)) if item.key is None else places(item.key, words)
    same(where + "queries", record["queries"], queries)
    kept = made.keep + (["stages"] if item.stage else [])
    same(
        where + "parts",
        {
            part
            for part in (*_PARTS, "heads", "spans", "span_effects", "effects", "stages")
            if record.get(part)
        },
        set(kept),
    )
    if text.division is not None:
        verify.divided(where, record["divided"], text)
    if item.stage:
        same(where + "keys", record["keys"], keys)
        same(where + "stages", set(record["stages"]), set(item.stages))
    units = verify.named_units(item, [text], [])
    same(where + "units", [tuple(unit) for unit in record["units"]], [name for name, _ in units])
    if "effects" in made.keep:
        there = [(int(layer), int(head)) for layer, head in record["units"]]
        cutting.check_heads(
            arrays["effects"], record.get("positions", []), there, item, (model, text)
        )
    if "span_effects" in made.keep:
        there = [(int(layer), int(head)) for layer, head in record["units"]]
        cutting.check_spans(arrays["span_effects"], record, there, item, (model, text))
    kept_arrays = {part: arrays[part] for part in kept if part in arrays}
    of_units = [
        Unit([text.layers[i] for i in layers], heads, "mean" not in name)
        for name, (layers, heads) in units
    ]
    if "rows" in kept_arrays:
        # A table tells nothing of a sink apart from no sink: fully masked rows have no weight on it.
        told = not where.startswith("table") or any(
            not unit.dead[query] for unit in of_units for query in queries
        )
        same(where + "has a sink", "sink" in arrays["rows"], of_units[0].has_sink and told)
    for n, ((name, _), unit) in enumerate(zip(units, of_units, strict=True)):
        _unit(
            f"{where}L{name[0]}H{name[1]} ", kept_arrays, n, unit, text, queries, keys, item, made
        )


def _unit(
    where: str, arrays: Json, n: int, unit: Unit, text: Text, queries: list[int], keys: list[int], item: Call,
    made: Dumping,
) -> None:  # fmt: skip
    for stage, matrices in arrays.get("stages", {}).items():
        expected = unit.number(stage)[queries]
        close(where + stage, matrices[n], expected if stage == "output" else expected[:, keys])
    if "rows" in arrays:
        for name in STATISTICS:
            close(where + name, arrays["rows"][name][n], unit.statistic(name)[queries])
        if "sink" in arrays["rows"]:
            close(where + "sink", arrays["rows"]["sink"][n], unit.statistic("sink")[queries])
    if "spans" in arrays and text.division is not None:
        expected = spanning.of_unit(unit.layers, unit.heads, text.division)
        same(where + "spans", set(arrays["spans"]), set(expected))
        for name, number in expected.items():
            close(f"{where}spans.{name}", arrays["spans"][name][n], number)
    if "heads" in arrays:
        same(where + "averages", set(arrays["heads"]), set(_AVERAGES))
        for name, number in _averages(unit, text, queries).items():
            close(where + name, arrays["heads"][name][n], number)
    if "columns" in arrays:
        close(where + "columns", arrays["columns"][n], unit.columns(queries))
    if "pooled" in arrays:
        close(where + "pooled", arrays["pooled"]["weights"][n], unit.pooled(made.pool, queries)[1])
    if "top" in arrays:
        top = {name: values[n] for name, values in arrays["top"].items()}
        by = item.by or "weight"
        found = top | {
            "by": by,
            "left_out": ["some"] if item.no_special else [],
            "projected": top.get("projected"),
        }
        same(where + "measures", set(top) - {"keys"}, set(_MEASURES[by]))
        verify.ranking(
            where + "top", found, unit, text.special, queries, item, text.longest, _MEASURES[by]
        )


def _averages(unit: Unit, text: Text, queries: list[int]) -> dict[str, Number]:
    """The numbers of a head over the queries that are words, or over all of them without a word; the largest of all."""
    words = [query for query in queries if not text.special[query]] or queries
    live = [query for query in words if not unit.dead[query]]
    shown = [query for query in queries if not unit.dead[query]]
    weights, ids = unit.number("weights"), text.encoding.ids
    none = Number(np.array(np.nan), np.array(0.0))
    numbers = dict.fromkeys(_AVERAGES, none)
    scores = unit.statistic("max_score")
    if shown:
        numbers["max_score"] = Number(scores.value[shown].max(), scores.slack[shown].max())
    if not live:
        return numbers

    def on_keys(keys: dict[int, int]) -> Number:
        if not keys:
            return none
        cells = tuple(zip(*keys.items(), strict=True))
        return Number(weights.value[cells].mean(), weights.slack[cells].mean() + 4 * U)

    for name in ("entropy", "first", "special", "self", "distance"):
        statistic = unit.statistic(name)
        numbers[name] = Number(statistic.value[live].mean(), statistic.slack[live].mean() + 4 * U)
    numbers["largest"] = Number(
        weights.value[live].max(-1).mean(), weights.slack[live].max(-1).mean() + 4 * U
    )
    numbers["previous"] = on_keys({query: query - 1 for query in live if query})
    last = {query: [at for at in range(query - 1) if ids[at] == ids[query]][-1:] for query in live}
    numbers["induction"] = on_keys({query: at[0] + 1 for query, at in last.items() if at})
    return numbers


def _tables(made: Dumping, records: Sequence[Json]) -> dict[int, Json]:
    """What the tables of a dump hold, by record, in the shape in which the record holds it."""
    found: dict[int, Json] = {record["index"]: {} for record in records}
    for table, part in _TABLES.items():
        if part in made.keep or (part == "stages" and made.call.stage):
            path = made.output.parent / f"{made.output.stem}-{table}.csv"
            runner.output(
                ["convert", str(made.output), str(path), "--table", table, "--force", "--quiet"]
            )
            with open(path, newline="") as file:
                rows = list(csv.DictReader(file))
            for record in records:
                mine = [row for row in rows if int(row["index"]) == record["index"]]
                found[record["index"]][part] = _shaped(table, record, mine, made)
            same(f"rows of {table}", {int(row["index"]) for row in rows} <= set(found), True)
    return found


def _shaped(table: str, record: Json, rows: list[dict[str, str]], made: Dumping) -> Any:
    """One text's rows of a table as arrays; every row fills one place, and none is filled twice."""
    units = {
        tuple("" if name == "mean" else str(name) for name in unit): n
        for n, unit in enumerate(record["units"])
    }
    query = {position: n for n, position in enumerate(record["queries"])}
    words = [token["text"] for token in record["tokens"]]
    for row in rows:
        for kind in ("query", "key"):
            if row.get(kind):
                same(f"{table} {kind}_token", row[f"{kind}_token"], words[int(row[kind])])
    n_units, n_queries, n = len(units), len(query), len(words)

    def filled(
        shape: tuple[int, ...],
        name: str,
        at: Any,
        rows: list[dict[str, str]],
        blank: float = np.nan,
    ) -> Any:
        array, seen = np.full(shape, blank), np.zeros(shape, dtype=int)
        for row in rows:
            place = (units[row["layer"], row["head"]], *at(row))
            array[place] = float(row[name]) if row[name] else np.nan
            seen[place] += 1
        if (seen > 1).any():
            raise Mismatch(f"{table}: {name} stands twice for {np.argwhere(seen > 1)[0]}")
        if not seen.all() and table != "contributors":
            raise Mismatch(f"{table}: {name} is missing for {np.argwhere(seen == 0)[0]}")
        return array

    if table == "contributors":
        ranks = min(3 if made.call.top is None else made.call.top, n)

        def at(row: dict[str, str]) -> tuple[int, int]:
            return query[int(row["query"])], int(row["rank"])

        shape = n_units, n_queries, ranks
        measures = {
            name: filled(shape, name, at, rows) for name in _MEASURES[made.call.by or "weight"]
        }
        return {"keys": filled(shape, "key", at, rows, -1).astype(int).tolist(), **measures}
    if table == "rows":
        names = [*STATISTICS, *(["sink"] if any(row["sink"] for row in rows) else [])]
        return {
            n: filled((n_units, n_queries), n, lambda row: (query[int(row["query"])],), rows)
            for n in names
        }
    if table == "heads":
        return {name: filled((n_units,), name, lambda row: (), rows) for name in _AVERAGES}
    if table == "columns":
        return filled((n_units, n), "mass", lambda row: (int(row["key"]),), rows)
    if table == "span_effects":
        names, seen = record["divided"]["names"], [row["key_span"] for row in rows]
        same("spans of the table", len(set(seen)), len(seen))
        effects = {name: np.full(len(names), np.nan) for name in ("loss", "kl", "hidden", "weight")}
        for row in rows:
            same("layer and head of a span", (row["layer"], row["head"]), ("", ""))
            for name, values in effects.items():
                values[names.index(row["key_span"])] = float(row[name]) if row[name] else np.nan
        return {name: values for name, values in effects.items() if not np.isnan(values).all()}
    if table == "spans":
        names = [*record["divided"]["names"], "(sink)"]
        pairs = names if any(row["key_span"] == "(sink)" for row in rows) else names[:-1]

        def pair(row: dict[str, str]) -> tuple[int, int]:
            return names.index(row["query_span"]), names.index(row["key_span"])

        every = filled((n_units, len(names) - 1, len(pairs)), "weight", pair, rows)
        sinks = {"sink": every[..., -1]} if pairs is names else {}
        return {"weights": every[..., : len(names) - 1]} | sinks
    if table == "effects":
        made_of = {
            name: filled((n_units,), name, lambda row: (), rows).tolist()
            for name in ("kl", "hidden", "weight")
        }
        return {
            name: None if np.isnan(values).all() else values for name, values in made_of.items()
        }
    key = {position: n for n, position in enumerate(record["keys"])}
    stages = {}
    for stage in dict.fromkeys(row["stage"] for row in rows):
        mine = [row for row in rows if row["stage"] == stage]

        def at(row: dict[str, str], stage: str = stage) -> tuple[int, int]:
            column = int(row["dimension"]) if stage == "output" else key[int(row["key"])]
            return query[int(row["query"])], column

        width = 1 + max(int(row["dimension"]) for row in mine) if stage == "output" else len(key)
        stages[stage] = filled((n_units, n_queries, width), "value", at, mine)
    same("stages of the table", set(stages), set(record["stages"]))
    return stages
