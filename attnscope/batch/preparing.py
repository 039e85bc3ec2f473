"""Tokenize texts of an input and plan what is shown of them, before a model looks into them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.base.files.reading import parse_json
from attnscope.batch.header import Settings
from attnscope.batch.items import PICTURE, SOUND, Item, media_of
from attnscope.batch.records import Record
from attnscope.batch.windows import TextSize, count_values, record_of
from attnscope.checkpoints.source import ModelSource
from attnscope.findings.record_parts import PARTS, Quantities
from attnscope.request.masks.terms import Own
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import parse_indices, parse_positions
from attnscope.request.spans import SpanRange, parse_spans, ranges_of
from attnscope.run.plan import present_layers
from attnscope.run.rendering import read_media
from attnscope.run.session import Session
from attnscope.run.text_plan import TextPlan, plan_text
from attnscope.studies.ablate.other_texts import plan_others
from attnscope.studies.ablate.plan import AblationOptions, AblationRun, bytes_per_token
from attnscope.studies.ablate.spans import read_answer

# bytes per number: in a recorder, as a separate array, in a line, and in gaps between them
NUMBER_BYTES = 40


@dataclass(frozen=True)
class PreparedText:
    """A text that is ready to be looked into."""

    item: Item
    text_plan: TextPlan  # its tokens, and what is shown of them
    size: TextSize
    answered: AblationRun | None = None  # the reading of its spans if these are cut; None otherwise
    cut: AblationRun | None = None  # how its heads are cut; None if they are not
    other_texts: tuple[TextPlan, ...] = ()  # texts that what is cut is replaced by


def run_config(settings: Settings, base_run: RunConfig) -> RunConfig:
    """Return the RunConfig of a dump's settings, without texts."""
    effects = settings.runs_again
    layer = parse_indices(settings.layer, "layer")
    head = parse_indices(settings.head, "head")
    if (layer, head) == (base_run.layer, base_run.head):
        # Errors name the option that was typed.
        layer = base_run.layer
        head = base_run.head
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
    if effects and base_run.what_if == "same-scores" and base_run.mask != (Own(),):
        hint = (
            f"remove {arg('what_if', 'same-scores')}, or {' and '.join(effects)} from {arg('keep')}"
        )
        what = "heads" if "effects" in effects else "spans"
        raise UsageError(
            f"cutting {what} runs the whole model under the mask", where=arg("what_if"), hint=hint
        )
    query = None
    if settings.query is not None:
        query = parse_positions(settings.query)
    key = None
    if settings.key is not None:
        key = parse_positions(settings.key)
    stages: tuple[str, ...] = ()
    if "stages" in settings.keep:
        stages = settings.stages
    spans = None
    if settings.spans is not None:
        spans = parse_spans(settings.spans)
    return msgspec.structs.replace(
        base_run,
        texts=(),
        layer=layer,
        head=head,
        query=query,
        key=key,
        stages=stages,
        top=settings.top,
        by=settings.by,
        special=settings.special,
        truncate=settings.truncate,
        spans=spans,
        window=None,
    )


def count_units(run: RunConfig, source: ModelSource) -> int:
    """Return layers times heads of a dump; a mean counts once."""
    layers = present_layers(run.layer, source).numbers(source.config.n_layers, "layer")
    heads = run.head.numbers(source.config.n_heads, "head")
    return (1 if run.layer.word == "mean" else len(layers)) * (
        1 if run.head.word == "mean" else len(heads)
    )


class TextPreparer:
    """Tokenizes texts and plans what is shown of them; needs no weights.

    Attributes:
        units: Layers times heads.
        d_value: Width of a head's values.
    """

    def __init__(self, run: RunConfig, settings: Settings, session: Session) -> None:
        self._run = run
        self._settings = settings
        self._session = session
        self._source = session.source(run)
        self.units = count_units(run, self._source)
        self.d_value = self._source.config.d_value

    def read_ahead(self, items: Sequence[Item]) -> None:
        """Encode texts at once, for the calls of `prepare` that follow."""
        encode_ahead = getattr(self._source.tokenizer, "encode_ahead", None)
        if encode_ahead is not None and len(items) > 1:
            texts = [
                item.text for item in items if item.text is not None and item.text.chat is None
            ]
            encode_ahead([(text.text, text.pair) for text in texts if text.given is None])

    def prepare(self, item: Item) -> PreparedText | Record:
        """Tokenize a text and plan what is shown of it, or return the record of a text that is skipped."""
        assert item.text is not None
        text = item.text
        if self._source.read_media is not None:
            text = msgspec.structs.replace(text, media=media_of(item.fields))
            if (kind := self._source.only_media) is not None and not text.media:
                raise AttnscopeError(
                    f"{self._source.name} takes no text", hint=f"name a file as the member '{kind}'"
                )
        item = msgspec.structs.replace(item, text=read_media(text, self._source))
        assert item.text is not None
        if not item.text.text.strip():
            why = "the text is blank" if item.text.text else "the text is empty"
            named = item.fields.get(PICTURE) or item.fields.get(SOUND)
            if self._source.read_media is None and named is not None:
                why += (
                    ", and a dump opens the half of this model that reads texts, or it has no other"
                )
            return record_of(item, "skipped", error=why)
        text = item.text
        if self._settings.of_spans and self._run.spans is None and not text.turns:
            text = msgspec.structs.replace(text, spans=own_spans(item))
        text_plan = plan_text(self._run, self._source, text, several=True)
        # A special token that covers a part of the text was typed, and is a word as any other.
        if all(token.special and token.start is None for token in text_plan.tokens):
            return record_of(item, "skipped", error="the text has only special tokens")
        sources = text_plan.context or text_plan.tokens
        shown_sizes = len(text_plan.queries), len(text_plan.keys), len(sources)
        spans = 0 if text_plan.spans is None else len(text_plan.spans.names)
        values = count_values(self._settings, self.units, shown_sizes, self.d_value, spans)
        tokens = len(text_plan.tokens)
        cuts = bool(self._settings.runs_again)
        scratch = 0
        if cuts:
            scratch = tokens * sum(bytes_per_token(self._source)) // NUMBER_BYTES
        if "spans" in self._settings.keep:
            scratch += PARTS["spans"].beside(
                Quantities(texts=1, units=self.units, sources=tokens, spans=spans)
            )
        size = TextSize(tokens, len(text_plan.encoder_tokens or sources), values, scratch)
        prepared = PreparedText(item, text_plan, size)
        if "effects" in self._settings.keep:
            run = msgspec.structs.replace(self._run, texts=(text,))
            cut = AblationRun.of(
                run, cut_options(self._settings, item), self._source, self._session, text_plan
            )
            other_texts = plan_others(cut)
            text_plan.warnings.extend(
                warning for other in other_texts for warning in other.warnings
            )
            prepared = replace(prepared, cut=cut, other_texts=tuple(other_texts))
        if "span_effects" in self._settings.keep:
            answered = read_answer(
                self._run, AblationOptions(each="span"), self._source, self._session, text_plan
            )
            answered.span_cuts()  # refuses a text of one span
            prepared = replace(prepared, answered=answered)
        return prepared


def cut_options(settings: Settings, item: Item) -> AblationOptions:
    """Return how the heads of one text are cut, and which logits are compared."""
    target = tuple(_of_record(word, item, "target") for word in settings.target)
    patch_from = None
    if settings.patch_from is not None:
        patch_from = _of_record(settings.patch_from, item, "patch_from")
    return AblationOptions(each="head", target=target, patch_from=patch_from)


def _of_record(text: str, item: Item, option: str) -> str:
    """Return a text; `{NAME}` is the member NAME of the record."""
    named = re.fullmatch(r"\{(\w+)\}", text)
    if named is None:
        return text
    value = item.fields.get(named[1])
    if isinstance(value, msgspec.Raw):
        value = parse_json(bytes(value), named[1])
    if not isinstance(value, str):
        message = f"the record has no text '{named[1]}'"
        raise AttnscopeError(
            message, where=arg(option), hint=f"give it one, or a text in place of {text}"
        )
    return value


def own_spans(item: Item) -> tuple[SpanRange, ...]:
    """Return the ranges that a record of the input gives its text, as its member `spans`."""
    span_value = item.fields.get("spans")
    if span_value is None:
        hint = f'give it one, such as {{"doc": [0, 120]}}, or use {arg("spans", "sentences")}'
        raise AttnscopeError("the record has no member 'spans'", hint=hint)
    if isinstance(span_value, msgspec.Raw | str):
        span_value = parse_json(
            bytes(span_value) if isinstance(span_value, msgspec.Raw) else span_value.encode(),
            "spans",
        )
    return ranges_of(span_value, "spans")
