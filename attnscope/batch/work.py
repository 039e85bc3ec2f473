"""Items in, records out: a loaded model that looks into texts for a dump."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from attnscope.batch.groups import Size, values_of
from attnscope.batch.header import MEASURES, Settings
from attnscope.batch.items import Item
from attnscope.batch.records import Record, RowArrays, TopArrays
from attnscope.batch.runner import without_findings
from attnscope.config import RunConfig
from attnscope.errors import UsageError
from attnscope.memory import MemoryLimit, layer_parameters
from attnscope.pipeline import Session, attend, new_window, prepare_engine
from attnscope.request import Page, Request, make_page, request_for
from attnscope.selection import Keep, parse_pick
from attnscope.source import Source


@dataclass(frozen=True)
class Ready:
    """A text that is ready to be looked into."""

    item: Item
    page: Page
    size: Size


def run_config(settings: Settings, given: RunConfig) -> RunConfig:
    """What a dump asks of the pipeline, without texts.

    Args:
        settings: What to keep.
        given: Model, mask and machine.

    Raises:
        UsageError: A layer or head is left to be chosen, which no dump can do the same way for every text.
    """
    for option, typed in (("--layer", settings.layer), ("--head", settings.head)):
        if parse_pick(typed, option).word == "auto":
            raise UsageError("auto chooses anew for every text", where=option, hint="use all, mean or numbers")
    return msgspec.structs.replace(
        given,
        texts=(),
        layer=settings.layer,
        head=settings.head,
        query=settings.query,
        key=settings.key,
        stages=settings.stages if "stages" in settings.keep else (),
        top=settings.top,
        by=settings.by,
        special=settings.special,
        truncate=settings.truncate,
        window=None,
    )


def how_many_units(settings: Settings, source: Source) -> int:
    """Layers times heads of a dump; a mean counts once.

    Raises:
        UsageError: One of them is not there.
    """
    layers, heads = parse_pick(settings.layer, "--layer"), parse_pick(settings.head, "--head")
    counts = [len(layers.numbers(source.config.n_layers, "layer")), len(heads.numbers(source.config.n_heads, "head"))]
    return (1 if layers.word == "mean" else counts[0]) * (1 if heads.word == "mean" else counts[1])


def _request(run: RunConfig, source: Source, group: int, reread: str) -> Request:
    """What a whole group will ask for."""
    request = request_for(run, source, [])
    work = request.deepest * layer_parameters(source.config) * group
    return replace(request, multiplications=work, reread=reread)


class Model:
    """A model that looks into texts; see runner.Work.

    Args:
        run: From `run_config`.
        settings: What to keep.
        session: Has the model open.
        group: Tokens of a group, which decide how many threads are worth it.
        reread: See request.Request.
        memory: Likewise.

    Attributes:
        device: Where the model lies.
    """

    def __init__(
        self,
        run: RunConfig,
        settings: Settings,
        session: Session,
        group: int,
        reread: str = "",
        memory: MemoryLimit | None = None,
    ) -> None:
        self._memory = memory
        self._run, self._settings, self._source = run, settings, session.source(run)
        self._stack, self.device = session.load(run, self._source, _request(run, self._source, group, reread))
        self._units = how_many_units(settings, self._source)
        kept = settings.keep
        self._keep = Keep(
            top="top" in kept,
            measures=MEASURES[settings.by],
            rows="rows" in kept,
            columns="columns" in kept,
            pool=settings.pool if "pooled" in kept else None,
        )

    def prepare(self, item: Item) -> Ready | Record:
        """See runner.Work."""
        assert item.text is not None
        if not item.text.text.strip():
            return without_findings(item, "skipped", "the text is blank" if item.text.text else "the text is empty")
        page = make_page(self._run, self._source, item.text, clip=True)
        if all(token.special for token in page.tokens):
            return without_findings(item, "skipped", "the text has special tokens only")
        sources = page.context or page.tokens
        shown = len(page.queries), len(page.keys), len(sources)
        values = values_of(self._settings, self._units, shown, self._source.config.d_value)
        return Ready(item, page, Size(len(page.tokens), len(page.given or sources), values))

    def size(self, ready: Ready) -> Size:
        """See runner.Work."""
        return ready.size

    def begin(self) -> None:
        """See runner.Work."""
        new_window()

    def look(self, ready: Sequence[Ready]) -> list[Record]:
        """See runner.Work."""
        from attnscope.analysis import unit_arrays, unit_names

        request = replace(request_for(self._run, self._source, [one.page for one in ready]), memory=self._memory)
        batch, engine = prepare_engine(self._run, request, self._stack, self.device)
        trace = attend(self._run, request, batch, engine, None, replace(self._keep, sheets=_sheets(request.pages)))
        arrays = unit_arrays(trace)
        units = unit_names(trace)
        rows, columns = np.array(trace.wanted.rows), np.array(trace.wanted.columns)
        found = []
        for place, one in enumerate(ready):
            mine = _of_text(arrays, place, one.page, rows, columns)
            found.append(_record(one, mine, units, self._settings))
        return found


def _sheets(pages: Sequence[Page]) -> tuple[tuple[int, int], ...] | None:
    """Rows and columns of every text's matrices; None where a text does not show the first of those that any shows."""
    for shown in ([page.queries for page in pages], [page.keys for page in pages]):
        every = sorted({place for places in shown for place in places})
        if any(places != every[: len(places)] for places in shown):
            return None
    return tuple((len(page.queries), len(page.keys)) for page in pages)


def _of_text(arrays: dict[str, Any], place: int, page: Page, rows: Any, columns: Any) -> dict[str, Any]:
    """One text's share of a group's arrays: its unit axis first, its own rows, columns and sources only."""
    at, across = _place(page.queries, rows), _place(page.keys, columns)
    sources = len(page.context or page.tokens)
    found = {}
    for name, array in arrays.items():
        mine = array[place]
        if isinstance(array, list):
            pass  # the text's own already
        elif name == "columns":
            mine = mine[:, :sources]
        elif name == "pooled":
            mine = mine[:, : len(page.tokens), :sources]
        else:
            mine = mine[:, at]
            if name.startswith("top."):
                mine = mine[..., :sources]  # fewer ranks where there are fewer sources, as in the text alone
            elif name.startswith("stages.") and name != "stages.output":
                mine = mine[:, :, across]
        found[name] = mine
    return found


def _place(wanted: list[int], there: Any) -> Any:
    """Where positions lie among sorted ones: a slice where they are the first of them, which copies nothing."""
    if wanted == there[: len(wanted)].tolist():
        return slice(0, len(wanted))
    return np.searchsorted(there, wanted)


def _record(one: Ready, arrays: dict[str, Any], units: list[Any], settings: Settings) -> Record:
    item, page = one.item, one.page
    assert item.text is not None

    def under(part: str) -> dict[str, Any]:
        return {name.removeprefix(part): array for name, array in arrays.items() if name.startswith(part)}

    return Record(
        item.index,
        item.id,
        item.line,
        item.hash,
        "ok",
        text=item.text.text,
        pair=item.text.pair,
        context=item.text.context,
        fields=item.fields,
        notes=page.notes,
        tokens=page.tokens,
        sources=page.context,
        queries=page.queries,
        keys=page.keys if "stages" in settings.keep else [],
        units=units,
        top=TopArrays(**under("top.")) if "top" in settings.keep else None,
        rows=RowArrays(**under("rows.")) if "rows" in settings.keep else None,
        columns=arrays.get("columns"),
        pooled=arrays.get("pooled"),
        stages=under("stages."),
    )
