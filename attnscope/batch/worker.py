"""Run texts through a loaded model and build their dump records."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from attnscope.base.errors import AttnscopeError
from attnscope.base.system.gpu import WORTH_A_GPU
from attnscope.batch.header import MEASURES, Settings
from attnscope.batch.items import Item
from attnscope.batch.preparing import PreparedText, TextPreparer
from attnscope.batch.records import Record
from attnscope.batch.windows import TextSize, record_of
from attnscope.engines.torch_setup import device_failures, limited_threads
from attnscope.findings.axes import gathered
from attnscope.findings.heads import HeadRef
from attnscope.findings.tokens import describe_unknown
from attnscope.request.memory import MemoryLimit, layer_parameters
from attnscope.request.record_spec import RecordSpec
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.run.cut_plan import Cut
from attnscope.run.plan import RunPlan, plan_for_texts, present_layers
from attnscope.run.session import RunningFrame, Session, prepare, start_frame
from attnscope.run.text_plan import TextPlan
from attnscope.studies.ablate.per_text import cut_effects, span_effects


class ModelWorker:
    """A model that looks into texts; see runner.TextWorker.

    Args:
        group: Tokens of a group, which decide how many threads are worth it.
        memory: Bytes that the run may take; see run.plan.RunPlan.
        rows_first: Whether records are written to shards; see RecordSpec.
    """

    def __init__(
        self,
        run: RunConfig,
        settings: Settings,
        session: Session,
        group: int,
        stream_reason: str = "",
        memory: MemoryLimit | None = None,
        *,
        rows_first: bool = False,
    ) -> None:
        self._memory = memory
        self._rows_first = rows_first
        self._session = session
        self._group = group
        self._run = run
        self._settings = settings
        self._source = session.source(run)
        self._cuts = bool(settings.runs_again)
        plan = plan_for_texts(self._run, self._source, [])
        n_layers = self._source.config.n_layers if self._cuts else plan.n_layers_run
        work = n_layers * layer_parameters(self._source.config) * group
        plan = replace(
            plan, n_layers_run=n_layers, multiplications=work, stream_reason=stream_reason
        )
        self._model, self.device = session.load(plan, WORTH_A_GPU)
        self._texts = TextPreparer(run, settings, session)
        # at most one group, which was launched before its turn
        self._launched: dict[tuple[int, ...], RunningFrame] = {}

    def warm_up(self) -> None:
        """Compute a short text; the weights are read, unless they are read again for every group."""
        text = TextInput("a", None, "a" if self._run.part == "cross" else None)
        with suppress(AttnscopeError), limited_threads():
            # A tokenizer may not know the word; then each reads its own.
            ready = self.prepare(Item(0, 1, 1, "0" * 16, text))
            if isinstance(ready, PreparedText):
                self.process([ready])

    def read_ahead(self, items: Sequence[Item]) -> None:
        self._texts.read_ahead(items)

    def prepare(self, item: Item) -> PreparedText | Record:
        return self._texts.prepare(item)

    def size(self, ready: PreparedText) -> TextSize:
        return ready.size

    @device_failures()
    def process(
        self,
        ready: Sequence[PreparedText],
        following: Sequence[PreparedText] = (),
        meanwhile: Callable[[], bool] = lambda: False,
    ) -> list[Record]:
        effects = [self._effects(text) if self._cuts else {} for text in ready]
        if set(self._settings.keep) <= {"effects", "span_effects"}:
            units = [HeadRef(*head) for head in self._heads]
            return [
                _record(text, arrays, units, self._settings)
                for text, arrays in zip(ready, effects, strict=True)
            ]
        from attnscope.run.analysis.heads import FULLY_MASKED, text_arrays, text_part, unit_refs

        running = self._launched.pop(_group_key(ready), None) or self._launch(ready)
        self._launch_ahead(following)
        trace = running.finished_trace(meanwhile)
        units = unit_refs(trace)
        records = []
        for index, text in enumerate(ready):
            arrays = text_arrays(trace, text_part(index, text.text_plan), own_ranks=True)
            arrays.pop(FULLY_MASKED, None)
            records.append(_record(text, arrays | effects[index], units, self._settings))
        return records

    def _launch(self, ready: Sequence[PreparedText]) -> RunningFrame:
        plan = self._plan([text.text_plan for text in ready])
        batch, engine = prepare(plan, self._model, self.device)
        return start_frame(plan, batch, engine, self._record_spec(plan))

    def _launch_ahead(self, ready: Sequence[PreparedText]) -> None:
        """Give a GPU the next group before the host waits for this one and builds its records."""
        self._launched.clear()
        if not ready or self.device.type != "cuda":
            return
        # it fails again when its turn comes, alone on the device
        with suppress(AttnscopeError), device_failures():
            self._launched[_group_key(ready)] = self._launch(ready)

    def _plan(self, text_plans: list[TextPlan]) -> RunPlan:
        return replace(plan_for_texts(self._run, self._source, text_plans), memory=self._memory)

    @property
    def _heads(self) -> list[tuple[int, int]]:
        """Layer and head of every unit; requires that none is a mean."""
        c = self._source.config
        layers = present_layers(self._run.layer, self._source).numbers(c.n_layers, "layer")
        heads = self._run.head.numbers(c.n_heads, "head")
        return [(layer, head) for layer in layers for head in heads]

    def _effects(self, text: PreparedText) -> dict[str, Any]:
        """Return the effect of every cut on one text, which runs alone: its variants are a batch by themselves."""
        plan = self._plan([text.text_plan])
        loaded = (self._model, self.device)
        arrays: dict[str, Any] = {}
        if text.cut is not None:
            cuts = [Cut("", (head,)) for head in self._heads]
            arrays["positions"] = text.cut.positions
            other_plans = [self._plan([other]) for other in text.other_texts]
            effects = cut_effects(text.cut, cuts, plan, loaded, self._group, other_plans)
            arrays |= {f"effects.{name}": array for name, array in vars(effects).items()}
        if text.answered is not None:
            of_spans = span_effects(text.answered, plan, loaded, self._group)
            arrays |= {"span_rows": text.answered.rows, "span_positions": text.answered.positions}
            arrays |= {f"span_effects.{name}": array for name, array in vars(of_spans).items()}
        return {name: array for name, array in arrays.items() if array is not None}

    def _record_spec(self, plan: RunPlan) -> RecordSpec:
        return replace(
            plan.record_spec(),
            parts=self._settings.keep,
            measures=MEASURES[self._settings.by],
            statistics=self._settings.kept_statistics,
            pool=self._settings.pool,
            packed=_packed_sizes(plan.text_plans),
            rows_first=self._rows_first,
            digits=self._settings.digits,
        )


def _group_key(ready: Sequence[PreparedText]) -> tuple[int, ...]:
    return tuple(text.item.index for text in ready)


def _packed_sizes(text_plans: Sequence[TextPlan]) -> tuple[tuple[int, int], ...] | None:
    """Return rows and columns of every text's matrices; None if a text lacks the first row or column that any shows."""
    for shown_positions in (
        [text_plan.queries for text_plan in text_plans],
        [text_plan.keys for text_plan in text_plans],
    ):
        every = sorted({position for places in shown_positions for position in places})
        if any(places != every[: len(places)] for places in shown_positions):
            return None
    return tuple((len(text_plan.queries), len(text_plan.keys)) for text_plan in text_plans)


def _record(
    text: PreparedText, arrays: dict[str, Any], units: list[HeadRef], settings: Settings
) -> Record:
    item = text.item
    text_plan = text.text_plan
    assert item.text is not None
    # empty if it knows all
    unknown, _ = describe_unknown([(item.text.text, item.text.pair, text_plan.tokens)])
    keys: list[int] = []
    if "stages" in settings.keep:
        keys = text_plan.keys
    return record_of(
        item,
        "ok",
        notes=[*text_plan.warnings, *text_plan.notes, *filter(None, [unknown])],
        tokens=text_plan.tokens,
        sources=text_plan.context,
        queries=text_plan.queries,
        keys=keys,
        units=units,
        **({"divided": text_plan.spans} if settings.of_spans else {}),
        **gathered(Record, arrays),
    )
