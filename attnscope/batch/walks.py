"""Walks through dumps: each record with findings is a text, read when it is looked at."""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from attnscope.base.errors import AttnscopeError
from attnscope.batch.dump_reader import Dump
from attnscope.batch.header import Header
from attnscope.batch.records import Record
from attnscope.findings.run import Report, TextReport
from attnscope.studies.explore.saved import SavedSource, SavedText
from attnscope.studies.explore.scenes import effect_numbers, ordered, run_starts, scene_of, stages_of
from attnscope.views.walk.scene import RankedSources, Scene, WalkHead, WalkMap

_MOST_TEXTS, _MOST_BYTES = 1000, 256 << 20  # records that a walk has, and their JSON


class _Brief(msgspec.Struct):
    """What says whether a record has findings."""

    index: int
    status: str
    id: int | str


def dump_source(path: Path) -> SavedSource:
    """Return a walk through a dump.

    Raises:
        AttnscopeError: It is damaged or not finished, or no record has findings.
    """
    dump = Dump(path)
    bodies, size = list[tuple[_Brief, bytes]](), 0
    for body in dump.record_bodies():
        brief = msgspec.json.decode(body, type=_Brief)
        if brief.status == "ok":
            bodies.append((brief, body))
            size += len(body)
        if len(bodies) >= _MOST_TEXTS or size > _MOST_BYTES:
            break
    if not bodies:
        raise AttnscopeError("has no records with findings", where=path, hint="see the errors of its records")
    saved = {(n, 0): _saved(dump, body) for n, (_, body) in enumerate(bodies)}
    return SavedSource([f"record {brief.id}" for brief, _ in bodies], [dump.header.mask.used], saved)


def _saved(dump: Dump, body: bytes) -> SavedText:
    @cache
    def record() -> Record:
        return dump.record(body)

    def heads() -> dict[tuple[int, int], Any]:
        layers, numbers = _sizes(record())
        places = ((layers.index(layer), numbers.index(head)) for layer, head in record().units)
        return {place: partial(_head, dump.header, record(), unit) for unit, place in enumerate(places)}

    return SavedText(lambda: _scene(dump.header, record()), heads)


def _sizes(record: Record) -> tuple[list[int | str], list[int | str]]:
    return ordered(layer for layer, _ in record.units), ordered(head for _, head in record.units)


def _scene(header: Header, record: Record) -> Scene:
    text = TextReport(
        record.index,
        record.text or "",
        record.pair,
        record.tokens,
        record.sources,
        record.queries,
        record.keys,
        [],
        record.notes,
    )
    layers, heads = _sizes(record)
    places = [(layers.index(layer), heads.index(head)) for layer, head in record.units]
    rows = {place: _rows(record, unit) for unit, place in enumerate(places)}
    report = Report(header.provenance, header.mask, [text])
    scene = scene_of(report, text, (layers, heads), rows, record.stages)
    effects = {} if record.effects is None else msgspec.structs.asdict(record.effects)
    numbers = [*scene.numbers, *effect_numbers(effects, places, (len(layers), len(heads)))]
    return replace(scene, numbers=numbers, rounded=header.settings.digits, first=places[0])


def _rows(record: Record, unit: int) -> dict[str, Any]:
    known = {} if record.rows is None else msgspec.structs.asdict(record.rows)
    return {
        name: values[unit] for name, values in known.items() if values is not None and not np.isnan(values[unit]).all()
    }


def _head(header: Header, record: Record, unit: int) -> WalkHead:
    layer, head = record.units[unit]
    top, pooled = record.top, record.pooled
    sources = None
    masked: set[int] = set()
    if top is not None and top.keys.shape[2]:
        measures = {"weight": top.weight, "value": top.value, "projected": top.projected}
        known = {name: numbers[unit] for name, numbers in measures.items() if numbers is not None}
        left_out = [] if header.settings.special else ["special tokens", "first token"]
        sources = RankedSources(header.settings.by, top.keys[unit], known, left_out)
        if not left_out:
            masked = set(np.flatnonzero(top.keys[unit, :, 0] < 0).tolist())
    lengths = len(record.tokens), len(record.key_tokens)
    picture = None
    if pooled is not None:
        queries, keys = (run_starts(length, size) for length, size in zip(lengths, pooled.shape[1:], strict=True))
        picture = WalkMap(queries, keys, pooled[unit][: len(queries) - 1, : len(keys) - 1])
    stages = stages_of({name: matrices[unit] for name, matrices in record.stages.items()})
    return WalkHead(
        layer,
        head,
        stages=stages,
        masked_rows=frozenset(masked),
        sources=sources,
        rows=_rows(record, unit),
        map=picture,
    )
