"""Run texts through a loaded model and build their dump records."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from attnscope.batch.groups import TextSize, count_values
from attnscope.batch.header import MEASURES, Settings
from attnscope.batch.items import Item
from attnscope.batch.records import Record, gather_parts
from attnscope.batch.runner import without_findings
from attnscope.checkpoints.source import ModelSource
from attnscope.config import RunConfig
from attnscope.errors import UsageError
from attnscope.pipeline import Session, attend, new_window, prepare
from attnscope.planning.memory import MemoryLimit, layer_parameters
from attnscope.planning.record_parts import PARTS, Axis
from attnscope.planning.record_spec import RecordSpec, make_record_spec
from attnscope.planning.run_plan import RunPlan, plan_for_texts
from attnscope.planning.text_plan import TextPlan, plan_text
from attnscope.report.row_statistics import STATISTICS
from attnscope.report.tokens import describe_unknown
from attnscope.selection import parse_indices


@dataclass(frozen=True)
class PreparedText:
    """A text that is ready to be looked into."""

    item: Item
    text_plan: TextPlan
    size: TextSize


def run_config(settings: Settings, given: RunConfig) -> RunConfig:
    """Return what a dump asks of the pipeline, without texts.

    Args:
        settings: What to keep.
        given: Model, mask and machine.

    Raises:
        UsageError: A layer or head is left to be chosen, which no dump can do the same way for every text.
    """
    for option, typed in (("--layer", settings.layer), ("--head", settings.head)):
        if parse_indices(typed, option).word == "auto":
            raise UsageError(
                "auto cannot be used: it would choose a different one for every text",
                where=option,
                hint="use all, mean or numbers",
            )
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


def count_units(settings: Settings, source: ModelSource) -> int:
    """Return layers times heads of a dump; a mean counts once.

    Raises:
        UsageError: One of them is not there.
    """
    layers, heads = parse_indices(settings.layer, "--layer"), parse_indices(settings.head, "--head")
    counts = [len(layers.numbers(source.config.n_layers, "layer")), len(heads.numbers(source.config.n_heads, "head"))]
    return (1 if layers.word == "mean" else counts[0]) * (1 if heads.word == "mean" else counts[1])


class ModelWorker:
    """A model that looks into texts; see runner.TextWorker.

    Args:
        run: From `run_config`.
        settings: What to keep.
        session: Has the model open.
        group: Tokens of a group, which decide how many threads are worth it.
        stream_reason: See run_plan.RunPlan.
        memory: Likewise.

    Attributes:
        device: The model's device.
    """

    def __init__(
        self,
        run: RunConfig,
        settings: Settings,
        session: Session,
        group: int,
        stream_reason: str = "",
        memory: MemoryLimit | None = None,
    ) -> None:
        self._memory = memory
        self._run, self._settings, self._source = run, settings, session.source(run)
        plan = plan_for_texts(self._run, self._source, [])  # of no text: a window's texts are not known yet
        work = plan.n_layers_run * layer_parameters(self._source.config) * group
        self._model, self.device = session.load(replace(plan, multiplications=work, stream_reason=stream_reason))
        self._units = count_units(settings, self._source)

    def prepare(self, item: Item) -> PreparedText | Record:
        """Tokenize a text and plan what is shown of it, or return the record of a text that is skipped."""
        assert item.text is not None
        if not item.text.text.strip():
            return without_findings(item, "skipped", "the text is blank" if item.text.text else "the text is empty")
        text_plan = plan_text(self._run, self._source, item.text, clip=True)
        if all(token.special for token in text_plan.tokens):
            return without_findings(item, "skipped", "the text has only special tokens")
        sources = text_plan.context or text_plan.tokens
        shown = len(text_plan.queries), len(text_plan.keys), len(sources)
        values = count_values(self._settings, self._units, shown, self._source.config.d_value)
        return PreparedText(
            item, text_plan, TextSize(len(text_plan.tokens), len(text_plan.encoder_tokens or sources), values)
        )

    def size(self, ready: PreparedText) -> TextSize:
        """Return how large a text is."""
        return ready.size

    def start_window(self) -> None:
        """Start a new window of texts."""
        new_window()

    def process(self, ready: Sequence[PreparedText]) -> list[Record]:
        """Run texts through the model together."""
        from attnscope.analysis import unit_arrays, unit_names

        plan = replace(plan_for_texts(self._run, self._source, [one.text_plan for one in ready]), memory=self._memory)
        batch, engine = prepare(plan, self._model, self.device)
        trace = attend(plan, batch, engine, None, self._record_spec(plan))
        arrays = unit_arrays(trace)
        units = unit_names(trace)
        rows, columns = np.array(trace.record_spec.rows), np.array(trace.record_spec.columns)
        found = []
        for place, one in enumerate(ready):
            mine = _text_arrays(arrays, place, one.text_plan, rows, columns)
            found.append(_record(one, mine, units, self._settings))
        return found

    def _record_spec(self, plan: RunPlan) -> RecordSpec:
        return replace(
            make_record_spec(plan),
            parts=self._settings.keep,
            measures=MEASURES[self._settings.by],
            pool=self._settings.pool,
            packed=_packed_sizes(plan.text_plans),
        )


def _packed_sizes(text_plans: Sequence[TextPlan]) -> tuple[tuple[int, int], ...] | None:
    """Return rows and columns of every text's matrices.

    None where a text does not show the first of those that any shows.
    """
    for shown in ([text_plan.queries for text_plan in text_plans], [text_plan.keys for text_plan in text_plans]):
        every = sorted({place for places in shown for place in places})
        if any(places != every[: len(places)] for places in shown):
            return None
    return tuple((len(text_plan.queries), len(text_plan.keys)) for text_plan in text_plans)


def _text_arrays(arrays: dict[str, Any], place: int, text_plan: TextPlan, rows: Any, columns: Any) -> dict[str, Any]:
    """Return one text's share of a group's arrays: its unit axis first, its own rows, columns and sources only."""
    sources = slice(len(text_plan.context or text_plan.tokens))
    cuts: dict[Axis, Any] = {
        "query": _index_of(text_plan.queries, rows),
        "key": _index_of(text_plan.keys, columns),
        "rank": sources,  # fewer ranks where there are fewer sources, as in the text alone
        "source": sources,
        "query run": slice(len(text_plan.tokens)),
        "key run": sources,
        "width": slice(None),
    }
    found = {}
    for name, array in arrays.items():
        mine = array[place]
        if not isinstance(array, list):  # else it is the text's own already
            part, _, inner = name.partition(".")
            for at, axis in enumerate(PARTS[part].axes_of(inner), 1):
                mine = mine[(*[slice(None)] * at, cuts[axis])]
        found[name] = mine
    return found


def _index_of(wanted: list[int], there: Any) -> Any:
    """Find positions within a sorted list: a slice, which copies nothing, if they are the first ones."""
    if wanted == there[: len(wanted)].tolist():
        return slice(0, len(wanted))
    return np.searchsorted(there, wanted)


def _rounded(array: Any, digits: int) -> Any:
    """Round numbers, without negative zeros."""
    return None if array is None else np.round(array, digits) + np.float32(0)


def _record(one: PreparedText, arrays: dict[str, Any], units: list[Any], settings: Settings) -> Record:
    item, text_plan = one.item, one.text_plan
    assert item.text is not None
    if settings.digits is not None:
        exact = ("top.keys", "stages.")
        arrays = {n: a if n.startswith(exact) else _rounded(a, settings.digits) for n, a in arrays.items()}
    unknown, _ = describe_unknown([(item.text.text, item.text.pair, text_plan.tokens)])  # empty where it knows all
    left_out = {f"rows.{name}" for name in STATISTICS if name not in settings.kept_statistics}
    parts = gather_parts({name: array for name, array in arrays.items() if name not in left_out})
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
        notes=[*text_plan.notes, *filter(None, [unknown])],
        tokens=text_plan.tokens,
        sources=text_plan.context,
        queries=text_plan.queries,
        keys=text_plan.keys if "stages" in settings.keep else [],
        units=units,
        **parts,
    )
