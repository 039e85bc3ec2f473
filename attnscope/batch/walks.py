"""Walks through dumps: each record with findings is a text, read when it is looked at."""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.base.system.escape import quote_for_shell
from attnscope.batch.dump_reader import Dump
from attnscope.batch.header import Header
from attnscope.batch.record_store import RecordStore
from attnscope.batch.records import Record
from attnscope.findings.arrays import Floats, Matrix
from attnscope.findings.compare import Comparison
from attnscope.findings.heads import HeadReport, Heads
from attnscope.findings.run import Report, TextReport
from attnscope.findings.tokens import LEFT_OUT
from attnscope.request.run_config import RunConfig
from attnscope.studies.explore.opening import begin_of, findings_source
from attnscope.studies.explore.saved import (
    SavedSource,
    SavedText,
    comparison_source,
    report_source,
)
from attnscope.studies.explore.scenes import (
    head_axes,
    rows_of,
    scene_of,
    stages_of,
    unit_numbers,
    units_known,
)
from attnscope.studies.explore.units import UNNAMED, TextUnits
from attnscope.views.walk.scene import Progress, RankedSources, Scene, Source, Variant, WalkHead

if TYPE_CHECKING:
    from attnscope.views.explore.terminal import WalkEnd

# options of explore that say how to compute
_COMPUTED = ("model", "config", "mask", "hide", "pair", "context", "spans", "chat", "cuts")
_VISITED = 8  # records that stay in memory after one has left them


class _Names(Sequence[str]):
    """Names of the records that have been read."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store
        self._known: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[n] for n in range(len(self))[index]]
        if index not in self._known:
            self._known[index] = f"record {self._store.brief(index).id}"
        return self._known[index]


class _Texts(Mapping[tuple[int, int], SavedText]):
    """Cache of records that have been read; the latest are kept."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store
        self._made: OrderedDict[tuple[int, int], SavedText] = OrderedDict()

    def __getitem__(self, key: tuple[int, int]) -> SavedText:
        if key[1] or not 0 <= key[0] < len(self._store):
            raise KeyError(key)
        if key not in self._made:
            self._made[key] = _saved(self._store.dump, self._store.body(key[0]))
        return self._made[key]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((index, 0) for index in range(len(self._store)))

    def __len__(self) -> int:
        return len(self._store)


@dataclass
class DumpSource(SavedSource):
    """A walk through a dump, of which records are read as far as one walks."""

    named: ClassVar[bool] = True  # by the ids of records
    store: RecordStore = field(kw_only=True)
    _visited: list[int] = field(default_factory=list)

    @property
    def total(self) -> int:
        """How many records have findings; while that is not known, one more than have been read."""
        if self.store.total is None:
            return len(self.store) + 1
        return self.store.total

    @property
    def total_text(self) -> str:
        """How many records have findings; of a compressed dump that is not known before all have been read."""
        if self.store.total is None:
            return f"{len(self.store):,}+"
        return f"{self.store.total:,}"

    def token_scene(self, variant: Variant) -> Scene | None:
        """Return a scene; None if the record has not been read."""
        if variant.text not in self._visited:
            self._visited.append(variant.text)
            for old in self._visited[:-_VISITED]:
                self.saved._made.pop((old, 0), None)  # type: ignore[attr-defined]
            self._visited = self._visited[-_VISITED:]
        return super().token_scene(variant)

    def missing(
        self, variant: Variant, layer: int, head: int, stage: str, rows: tuple[int, int]
    ) -> bool:
        return len(self.store) <= variant.text < self.total

    def compute(
        self,
        variant: Variant,
        layer: int,
        head: int,
        stage: str,
        rows: tuple[int, int],
        progress: Progress,
    ) -> None:
        self.store.reach(variant.text, lambda done, total: progress("reading records", done, total))

    def pick(self, needle: str, start: int, progress: Progress) -> int | None:
        return self.store.find(
            needle, start, lambda done, total: progress("searching", done, total)
        )


def dump_source(path: Path) -> DumpSource:
    """Return a walk through a dump."""
    store = RecordStore(path)
    if not store.reach(0):
        raise AttnscopeError(
            "has no records with findings", where=path, hint="see the errors of its records"
        )
    return DumpSource(_Names(store), [store.dump.header.mask.used], _Texts(store), store=store)


def saved_source(saved: Path | Report | Comparison, typed: Collection[str]) -> Source:
    """Return a walk through a report, a comparison or a dump, in a file or in memory.

    Args:
        typed: Options of the call, of which those that say how to compute are refused.
    """
    for name in _COMPUTED:
        if name in typed:
            what = saved if isinstance(saved, Path) else "what is explored"
            hint = "remove the option, or pass a text"
            raise UsageError(f"{what} was computed already", where=arg(name), hint=hint)
    if isinstance(saved, Report):
        return report_source(saved)
    if isinstance(saved, Comparison):
        return comparison_source(saved)
    return findings_source(saved) or dump_source(saved)


def _saved(dump: Dump, body: bytes) -> SavedText:
    @cache
    def record() -> Record:
        return dump.record(body)

    def heads() -> dict[tuple[int, int], Any]:
        layers, numbers = head_axes(record().units)
        places = ((layers.index(layer), numbers.index(head)) for layer, head in record().units)
        return {
            layer_head: partial(_head, dump.header, record(), unit)
            for unit, layer_head in enumerate(places)
        }

    return SavedText(
        lambda: _scene(dump.header, record()),
        heads,
        lambda scene: _units(dump.header, record(), scene),
    )


def _units(header: Header, record: Record, scene: Scene) -> TextUnits:
    """Return the sentences, words or spans of a record's tokens."""
    if record.divided is None or record.spans is None:
        return TextUnits(record.tokens, record.key_tokens)
    places = {
        (scene.layers.index(layer), scene.heads.index(head)): n
        for n, (layer, head) in enumerate(record.units)
    }
    arrays = record.spans

    def of_head(layer: int, head: int) -> tuple[Matrix, Floats | None] | None:
        unit = places.get((layer, head))
        if unit is None:
            return None
        return (arrays.weights[unit], None if arrays.sink is None else arrays.sink[unit])

    if header.settings.spans in (None, *UNNAMED):
        division = ""
    else:
        division = f"--spans {quote_for_shell(header.settings.spans)}"
    return TextUnits(record.tokens, record.key_tokens, record.divided, of_head, division)


def _scene(header: Header, record: Record) -> Scene:
    text = TextReport(
        record.text or "",
        record.pair,
        record.tokens,
        record.sources,
        record.index,
        record.queries,
        record.keys,
        Heads(),
        record.notes,
    )
    layers, heads = head_axes(record.units)
    places = [(layers.index(layer), heads.index(head)) for layer, head in record.units]
    rows = {layer_head: rows_of(HeadReport(record, unit)) for unit, layer_head in enumerate(places)}
    report = Report(header.provenance, header.mask, [text])
    scene = scene_of(report, text, (layers, heads), rows, record.stages)
    of_rows = {head_number.name for head_number in scene.numbers}
    of_units = unit_numbers(record, places, (len(layers), len(heads)))
    numbers = [
        *scene.numbers,
        *(head_number for head_number in of_units if head_number.name not in of_rows),
    ]
    units = units_known(words="weights" in record.stages, spans=record.spans is not None)
    width = record.stages["output"].shape[2] if "output" in record.stages else 0
    rounded_scene = replace(scene, numbers=numbers, rounded=header.settings.digits, first=places[0])
    return replace(rounded_scene, units=units, width=width)


def _head(header: Header, record: Record, unit: int) -> WalkHead:
    head = HeadReport(record, unit)
    sources = None
    masked: set[int] = set()
    if record.top is not None and record.top.keys.shape[2]:
        left_out = [] if header.settings.special else [*LEFT_OUT]
        sources = RankedSources(header.settings.by, head.top.keys, head.top.measures, left_out)
        if not left_out:
            masked = set(np.flatnonzero(head.top.keys[:, 0] < 0).tolist())
    return WalkHead(
        head.layer,
        head.head,
        stages=stages_of(head.stages),
        masked_rows=frozenset(masked),
        sources=sources,
        rows=rows_of(head),
        map=head.pooled,
    )


def explore(source: Source, run: RunConfig, keys: Path | None, **options: Any) -> "WalkEnd":
    """Walk through a source in the terminal, from the place that a run names.

    Args:
        keys: TOML file that binds other keys to actions.
        options: See `views.explore.terminal.walk`, as what it returns.
    """
    from attnscope.batch.reports import write_report
    from attnscope.views.explore.terminal import walk
    from attnscope.views.walk.keys import ACTIONS, read_keys

    actions = ACTIONS if keys is None else read_keys(keys)
    return walk(source, write_report, actions, begin_of(run), **options)
