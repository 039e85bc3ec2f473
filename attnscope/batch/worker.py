"""Run texts through a loaded model and build their dump records."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.base.files.reading import parse_json
from attnscope.base.system.gpu import WORTH_A_GPU
from attnscope.batch.groups import TextSize, count_values
from attnscope.batch.header import MEASURES, Settings
from attnscope.batch.items import Item
from attnscope.batch.records import Record, axes_of, gather_parts
from attnscope.batch.windows import record_of
from attnscope.checkpoints.source import ModelSource
from attnscope.engines.torch_setup import device_failures, limited_threads
from attnscope.findings.record_parts import PARTS, Quantities
from attnscope.findings.row_statistics import STATISTICS
from attnscope.findings.tokens import describe_unknown
from attnscope.request.masks.terms import Own
from attnscope.request.memory import MemoryLimit, layer_parameters
from attnscope.request.record_spec import RecordSpec
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import parse_indices, parse_positions
from attnscope.request.spans import SpanRange, parse_spans, ranges_of
from attnscope.run.cut_plan import Cut
from attnscope.run.plan import RunPlan, plan_for_texts, present_layers
from attnscope.run.rendering import render_text
from attnscope.run.session import Session, attend, prepare
from attnscope.run.text_plan import TextPlan, plan_text
from attnscope.studies.ablate.per_text import cut_effects, span_effects
from attnscope.studies.ablate.plan import AblationOptions, AblationRun, bytes_per_token
from attnscope.studies.ablate.spans import read_answer

NUMBER_BYTES = 40  # bytes per number: in a recorder, as a separate array, in a line, and in gaps between them


@dataclass(frozen=True)
class PreparedText:
    """A text that is ready to be looked into."""

    item: Item
    text_plan: TextPlan  # its tokens, and what is shown of them
    size: TextSize
    answered: AblationRun | None = None  # the reading of its spans if these are cut; None otherwise


def run_config(settings: Settings, given: RunConfig) -> RunConfig:
    """Return the RunConfig of a dump's settings, without texts."""
    effects = settings.runs_again
    layer, head = parse_indices(settings.layer, "layer"), parse_indices(settings.head, "head")
    if (layer, head) == (given.layer, given.head):
        # Errors name the option that was typed.
        layer, head = given.layer, given.head
    for option, word in ((arg("layer"), layer.word), (arg("head"), head.word)):
        if word == "auto":
            raise UsageError(
                "auto cannot be used, since it would choose differently for every text",
                where=option,
                hint="use all, mean or numbers",
            )
        if word == "mean" and effects:
            hint = f"use all or numbers, or remove {' and '.join(effects)} from {arg('keep')}"
            raise UsageError("a mean cannot be cut", where=option, hint=hint)
        averaged = [part for part in settings.keep if PARTS[part].averaged]
        if word == "mean" and averaged:
            hint = f"use all or numbers, or remove {' and '.join(averaged)} from {arg('keep')}"
            raise UsageError("a mean has no averages of its own", where=option, hint=hint)
    if effects and given.what_if == "same-scores" and given.mask != (Own(),):
        hint = f"remove {arg('what_if', 'same-scores')}, or {' and '.join(effects)} from {arg('keep')}"
        what = "heads" if "effects" in effects else "spans"
        raise UsageError(f"cutting {what} runs the whole model under the mask", where=arg("what_if"), hint=hint)
    return msgspec.structs.replace(
        given,
        texts=(),
        layer=layer,
        head=head,
        query=None if settings.query is None else parse_positions(settings.query),
        key=None if settings.key is None else parse_positions(settings.key),
        stages=settings.stages if "stages" in settings.keep else (),
        top=settings.top,
        by=settings.by,
        special=settings.special,
        truncate=settings.truncate,
        spans=None if settings.spans is None else parse_spans(settings.spans),
        window=None,
    )


def count_units(run: RunConfig, source: ModelSource) -> int:
    """Return layers times heads of a dump; a mean counts once."""
    layers = present_layers(run.layer, source).numbers(source.config.n_layers, "layer")
    heads = run.head.numbers(source.config.n_heads, "head")
    return (1 if run.layer.word == "mean" else len(layers)) * (1 if run.head.word == "mean" else len(heads))


class ModelWorker:
    """A model that looks into texts; see runner.TextWorker.

    Args:
        group: Tokens of a group, which decide how many threads are worth it.
        memory: Bytes that the run may take; see run.plan.RunPlan.
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
        self._memory, self._session, self._group = memory, session, group
        self._run, self._settings, self._source = run, settings, session.source(run)
        self._cuts = bool(settings.runs_again)
        plan = plan_for_texts(self._run, self._source, [])
        n_layers = self._source.config.n_layers if self._cuts else plan.n_layers_run
        work = n_layers * layer_parameters(self._source.config) * group
        plan = replace(plan, n_layers_run=n_layers, multiplications=work, stream_reason=stream_reason)
        self._model, self.device = session.load(plan, WORTH_A_GPU)
        self._units = count_units(run, self._source)

    def warm_up(self) -> None:
        """Compute a short text; the weights are read, unless they are read again for every group."""
        text = TextInput("a", None, "a" if self._run.part == "cross" else None)
        with suppress(AttnscopeError), limited_threads():
            # A tokenizer may not know the word; then each reads its own.
            ready = self.prepare(Item(0, 1, 1, "0" * 16, text))
            if isinstance(ready, PreparedText):
                self.process([ready])

    def prepare(self, item: Item) -> PreparedText | Record:
        """Tokenize a text and plan what is shown of it, or return the record of a text that is skipped."""
        assert item.text is not None
        item = replace(item, text=render_text(item.text, self._source))
        assert item.text is not None
        if not item.text.text.strip():
            why = "the text is blank" if item.text.text else "the text is empty"
            return record_of(item, "skipped", error=why)
        text = item.text
        if self._settings.of_spans and self._run.spans is None and not text.turns:
            text = msgspec.structs.replace(text, spans=own_spans(item))
        text_plan = plan_text(self._run, self._source, text, several=True)
        # A special token that covers a part of the text was typed, and is a word as any other.
        if all(token.special and token.start is None for token in text_plan.tokens):
            return record_of(item, "skipped", error="the text has only special tokens")
        sources = text_plan.context or text_plan.tokens
        shown = len(text_plan.queries), len(text_plan.keys), len(sources)
        spans = 0 if text_plan.spans is None else len(text_plan.spans.names)
        values = count_values(self._settings, self._units, shown, self._source.config.d_value, spans)
        tokens = len(text_plan.tokens)
        beside = tokens * sum(bytes_per_token(self._source)) // NUMBER_BYTES if self._cuts else 0
        if "spans" in self._settings.keep:
            beside += PARTS["spans"].beside(Quantities(texts=1, units=self._units, sources=tokens, spans=spans))
        size = TextSize(tokens, len(text_plan.encoder_tokens or sources), values, beside)
        if "span_effects" not in self._settings.keep:
            return PreparedText(item, text_plan, size)
        answered = read_answer(self._run, AblationOptions(each="span"), self._source, self._session, text_plan)
        answered.span_cuts()  # refuses a text of one span
        return PreparedText(item, text_plan, size, answered)

    def size(self, ready: PreparedText) -> TextSize:
        return ready.size

    def process(self, ready: Sequence[PreparedText]) -> list[Record]:
        with device_failures():
            return self._process(ready)

    def _process(self, ready: Sequence[PreparedText]) -> list[Record]:
        effects = [self._effects(text) if self._cuts else {} for text in ready]
        if set(self._settings.keep) <= {"effects", "span_effects"}:
            units: list[Any] = list(self._places())
            return [_record(text, mine, units, self._settings) for text, mine in zip(ready, effects, strict=True)]
        from attnscope.run.analysis.arrays import unit_arrays, unit_names

        plan = self._plan([text.text_plan for text in ready])
        batch, engine = prepare(plan, self._model, self.device)
        trace = attend(plan, batch, engine, None, self._record_spec(plan))
        arrays = unit_arrays(trace)
        units = unit_names(trace)
        rows, columns = np.array(trace.record_spec.rows), np.array(trace.record_spec.columns)
        all_records = []
        for place, text in enumerate(ready):
            mine = _text_arrays(arrays, place, text.text_plan, rows, columns)
            all_records.append(_record(text, mine | effects[place], units, self._settings))
        return all_records

    def _plan(self, text_plans: list[TextPlan]) -> RunPlan:
        return replace(plan_for_texts(self._run, self._source, text_plans), memory=self._memory)

    def _places(self) -> list[tuple[int, int]]:
        """Return layer and head of every unit; requires that none is a mean."""
        c = self._source.config
        layers = present_layers(self._run.layer, self._source).numbers(c.n_layers, "layer")
        heads = self._run.head.numbers(c.n_heads, "head")
        return [(layer, head) for layer in layers for head in heads]

    def _effects(self, text: PreparedText) -> dict[str, Any]:
        """Return the effect of every cut on one text, which runs alone: its variants are a batch by themselves."""
        plan, loaded = self._plan([text.text_plan]), (self._model, self.device)
        arrays: dict[str, Any] = {}
        if "effects" in self._settings.keep:
            options, cuts = AblationOptions(each="head"), [Cut("", (place,)) for place in self._places()]
            ablation = AblationRun.of(self._run, options, self._source, self._session, text.text_plan)
            arrays["positions"] = ablation.positions
            effects = cut_effects(ablation, cuts, plan, loaded, self._group)
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
            pool=self._settings.pool,
            packed=_packed_sizes(plan.text_plans),
        )


def own_spans(item: Item) -> tuple[SpanRange, ...]:
    """Return the ranges that a record of the input gives its text, as its member `spans`."""
    given = item.fields.get("spans")
    if given is None:
        hint = f'give it one, such as {{"doc": [0, 120]}}, or use {arg("spans", "sentences")}'
        raise AttnscopeError("the record has no member 'spans'", hint=hint)
    if isinstance(given, msgspec.Raw | str):
        given = parse_json(bytes(given) if isinstance(given, msgspec.Raw) else given.encode(), "spans")
    return ranges_of(given, "spans")


def _packed_sizes(text_plans: Sequence[TextPlan]) -> tuple[tuple[int, int], ...] | None:
    """Return rows and columns of every text's matrices; None if a text lacks the first row or column that any shows."""
    for shown in ([text_plan.queries for text_plan in text_plans], [text_plan.keys for text_plan in text_plans]):
        every = sorted({place for places in shown for place in places})
        if any(places != every[: len(places)] for places in shown):
            return None
    return tuple((len(text_plan.queries), len(text_plan.keys)) for text_plan in text_plans)


def _text_arrays(arrays: dict[str, Any], place: int, text_plan: TextPlan, rows: Any, columns: Any) -> dict[str, Any]:
    """Return one text's share of a group's arrays: its unit axis first, its own rows, columns and sources only."""
    sources = slice(len(text_plan.context or text_plan.tokens))
    cuts: dict[str, Any] = {
        "query": _index_of(text_plan.queries, rows),
        "key": _index_of(text_plan.keys, columns),
        # A text with fewer sources has fewer ranks, as it would alone.
        "rank": sources,
        "source": sources,
        "query run": slice(len(text_plan.tokens)),
        "key run": sources,
        "width": slice(None),
    }
    if text_plan.spans is not None:
        cuts |= dict.fromkeys(("span", "key span"), slice(len(text_plan.spans.names)))
    own_arrays = {}
    for name, array in arrays.items():
        mine = array[place]
        if not isinstance(array, list):  # otherwise it is the text's own array already
            for at, axis in enumerate(axes_of(name)[1:], 1):
                mine = mine[(*[slice(None)] * at, cuts[axis])]
        own_arrays[name] = mine
    return own_arrays


def _index_of(wanted: list[int], there: Any) -> Any:
    """Find positions within a sorted list: a slice, which copies nothing, if they are the first ones."""
    if wanted == there[: len(wanted)].tolist():
        return slice(0, len(wanted))
    return np.searchsorted(there, wanted)


def _record(text: PreparedText, arrays: dict[str, Any], units: list[Any], settings: Settings) -> Record:
    item, text_plan = text.item, text.text_plan
    assert item.text is not None
    if settings.digits is not None:
        exact = ("top.keys", "stages.")
        arrays = {
            # adding 0 turns −0 into 0
            n: a if a is None or n.startswith(exact) else np.round(a, settings.digits) + np.float32(0)
            for n, a in arrays.items()
        }
    unknown, _ = describe_unknown([(item.text.text, item.text.pair, text_plan.tokens)])  # empty if it knows all
    left_out = {f"rows.{name}" for name in STATISTICS if name not in settings.kept_statistics}
    parts = gather_parts({name: array for name, array in arrays.items() if name not in left_out})
    return record_of(
        item,
        "ok",
        notes=[*text_plan.notes, *filter(None, [unknown])],
        tokens=text_plan.tokens,
        sources=text_plan.context,
        queries=text_plan.queries,
        keys=text_plan.keys if "stages" in settings.keep else [],
        units=units,
        **({"divided": text_plan.spans} if settings.of_spans else {}),
        **parts,
    )
