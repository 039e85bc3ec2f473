"""A walk through a model that is in memory, or can be: what is looked at is computed on demand."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from msgspec import structs

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.source import ModelSource
from attnscope.findings.ablation import Ablation
from attnscope.findings.head_findings import HeadRoles
from attnscope.findings.predictions import PredictionKind
from attnscope.findings.run import Report
from attnscope.findings.tokens import Token
from attnscope.request.masks.expression import parse_mask, spell_mask
from attnscope.request.memory import memory_bound
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import (
    ALL,
    AUTO,
    EVERY_POSITION,
    IndexSelection,
    PositionSelection,
    parse_cut,
)
from attnscope.request.spans import SpanRequest
from attnscope.run.plan import mask_terms
from attnscope.run.prediction_plan import predicted_positions, prediction_kind
from attnscope.run.rendering import read_media, render_text
from attnscope.run.session import Session, inspect
from attnscope.studies.ablate.plan import AblationOptions
from attnscope.studies.explore.scenes import (
    counted_rows,
    forecast,
    head_numbers,
    head_roles,
    prediction_title,
    run_command,
    text_scene,
    units_known,
    walk_head,
)
from attnscope.studies.explore.units import TextUnits, UnitSource, of_tokens, text_units
from attnscope.views.spans import Span, Spans, token_span
from attnscope.views.walk.cell import effect_meaning, place_of_effect
from attnscope.views.walk.scene import (
    EFFECT,
    STAGES,
    WALKED,
    Draw,
    Forecast,
    HeadNumber,
    Number,
    Progress,
    Scene,
    SceneEffects,
    Variant,
    WalkHead,
)

MASKS = ("own", "causal", "bidirectional", "window:4")
_WHOLE = 512  # tokens up to which all heads are computed with all stages, if that fits into memory
# Sources that are listed of every row: of a text that is computed as a whole, as many as the panel of a row has.
_RANKS = 5
_WHOLE_RANKS = 40
_RUNS = 128  # rows and columns of the map of a long text
_CELLS = 1 << 20  # cells of a head up to which it is computed as a whole
_MEASURED = "Measured on built-in texts and on random tokens."  # roles
# What cuts do where their kind in findings.ablation says too little.
_HOW = {"zero": "cut to 0"}
# Tokens up to which a cut is measured at every row, not only where the model predicts by itself.
_ROWS_MEASURED = 128
_UNDER_CURSOR = "under the cursor"  # why a cell is explained
_SHARE = 4  # what is kept may take this part of the free memory

Opener = Callable[[Sequence[TextInput], Progress], AbstractContextManager[Session]]
Key = tuple[Variant, int, int]


class CutChanges(NamedTuple):
    """What cuts change."""

    ends: Sequence[Forecast]  # where the model predicts by itself
    # by position, at every row; empty if only the ends are measured
    of_rows: Mapping[int, Forecast]


@dataclass
class _Known:
    """What is known of one text under one mask, with cuts."""

    scene: Scene
    units: TextUnits  # the words and spans of its tokens
    complete: bool = False  # whether all heads are computed, as far as memory allows
    failed: str = ""  # why other heads cannot be computed; empty if they can


@dataclass
class LiveSource(UnitSource):
    """A source that runs a model."""

    run: RunConfig  # texts, model, mask and machine; the walk begins at its layer and head
    opener: Opener  # opens a session with the model for some texts; reports progress
    masks: Sequence[str] = MASKS  # masks to choose from
    # name of the text in commands: `--file texts.txt` or `-`; None for the text itself
    command: str | None = None
    computes: ClassVar[bool] = True
    _known: dict[Variant, _Known] = field(default_factory=dict)
    _heads: OrderedDict[Key, WalkHead] = field(default_factory=OrderedDict)
    # with cuts, beside those without
    _changes: dict[Variant, CutChanges] = field(default_factory=dict)
    _survey: HeadRoles | None = None
    # what each head is worth where the model predicts, and at every token, by the variant of tokens without cuts
    _effects: dict[Variant, tuple[HeadNumber, SceneEffects]] = field(default_factory=dict)
    _layers: Sequence[int] = ()  # layers whose attention can be shown

    def __post_init__(self) -> None:
        self.masks = tuple(dict.fromkeys((spell_mask(self.run.mask), *self.masks)))
        self._budget = memory_bound(self.run.max_memory).size // _SHARE

    @property
    def texts(self) -> Sequence[str]:  # type: ignore[override]
        """The texts."""
        return [text.text for text in self.run.texts]

    def token_scene(self, variant: Variant) -> Scene | None:
        """Return a scene of tokens; None before it is computed."""
        live_text = self._known.get(variant)
        return None if live_text is None else live_text.scene

    def token_head(self, variant: Variant, layer: int, head: int) -> WalkHead | None:
        """Return a head between tokens; None before it is computed."""
        return self._heads.get((variant, layer, head))

    def units_of(self, variant: Variant) -> TextUnits | None:
        """Return the words and spans of the tokens."""
        live_text = self._known.get(variant)
        return None if live_text is None else live_text.units

    def missing(
        self, variant: Variant, layer: int, head: int, stage: str, rows: tuple[int, int]
    ) -> bool:
        """Tell whether anything remains to compute."""
        plain = of_tokens(variant)
        live_text = self._known.get(plain)
        if live_text is None or (plain.cuts and plain not in self._changes):
            return True
        return not (live_text.complete or live_text.failed) or not self._has(
            variant, layer, head, stage, rows
        )

    def _has(
        self, variant: Variant, layer: int, head: int, stage: str, rows: tuple[int, int]
    ) -> bool:
        """Tell whether the token rows that a variant needs are computed."""
        plain = of_tokens(variant)
        scene = self.scene(variant)
        if scene is not None and scene.unit == "spans":
            return True
        if scene is not None and scene.unit == "words":
            stage = "weights"
            rows = (0, len(self._known[plain].scene.queries.positions) - 1)
        there = self.token_head(plain, layer, head)
        return there is not None and there.holds(stage, *rows)

    def compute(
        self,
        variant: Variant,
        layer: int,
        head: int,
        stage: str,
        rows: tuple[int, int],
        progress: Progress,
    ) -> None:
        """Compute the most urgent: a scene, then rows of a head, then predictions with cuts, then all heads."""
        plain = of_tokens(variant)
        with self.opener((self.run.texts[variant.text],), progress) as session:
            self._render(session, variant.text)
            live_text = self._known.get(plain)
            if live_text is None:
                self._first(session, plain, (layer, head))
            elif not self._has(variant, layer, head, stage, rows):
                self._rows(session, plain, (layer, head), rows)
            elif plain.cuts and plain not in self._changes:
                self._cut(session, plain)
            else:
                self._all(session, plain, live_text)

    def _render(self, session: Session, text_index: int) -> None:
        """Render a chat, and read the pictures of a text, once."""
        text = self.run.texts[text_index]
        if (text.chat is not None and text.rendered is None) or (text.media and text.read is None):
            source = session.source(self.run)
            rendered = read_media(text, source) if text.media else render_text(text, source)
            texts = (*self.run.texts[:text_index], rendered, *self.run.texts[text_index + 1 :])
            self.run = structs.replace(self.run, texts=texts)

    def _config(
        self, variant: Variant, layer_head: tuple[int, int] | None = None, **changes: Any
    ) -> RunConfig:
        """Return the run of a variant; of one layer and head if `layer_head` has their indices in the scene."""
        fixed: dict[str, Any] = {
            # it has been rendered
            "texts": (structs.replace(self.run.texts[variant.text], chat=None),),
            "mask": parse_mask(variant.mask),
            "cuts": tuple(parse_cut(cut.written) for cut in variant.cuts),
        }
        fixed |= {"spans": None, "window": None, "picture": False, "target": None, "generate": 0}
        fixed |= {"auto_query": None, "auto_key": None}
        if layer_head is not None:
            fixed |= {
                "layer": IndexSelection.of([self._layers[layer_head[0]]]),
                "head": IndexSelection.of([layer_head[1]]),
            }
        return structs.replace(self.run, **fixed | changes)

    def _first(self, session: Session, variant: Variant, head: tuple[int, int]) -> None:
        """Compute the head with which a walk begins, or its present one."""
        source = session.source(self.run)
        self._layers = source.shown_layers
        sizes = list[Number](self._layers), list[Number](range(source.config.n_heads))
        run = self._config(variant, head if self._known else None)
        # Where a walk begins is named in its first text; later, the head stays.
        if not self._known:
            run = structs.replace(run, auto_query=self.run.auto_query, auto_key=self.run.auto_key)
        chat = self.run.texts[variant.text].rendered is not None
        kept_settings = self._kept(session, run)
        if kept_settings["pool"]:
            # choosing a head takes a pass through all layers: the first head is there long before
            kept_settings |= {
                "layer": _named(run.layer, self._layers[0]),
                "head": _named(run.head, 0),
            }
        spans = self.run.spans or (SpanRequest("turns") if chat else None)
        run = structs.replace(run, predict=None, key=None, spans=spans, **kept_settings)
        report = inspect(run, session)
        text = report.texts[0]
        first_text = run.texts[0]
        given = first_text.text if text.prompt is None else text.prompt
        files = [file.name for file in first_text.media if file.kind == "image"]
        command = run_command(
            report.provenance,
            report.mask,
            given,
            first_text.pair,
            first_text.context,
            self.command,
            files,
        )
        scene = text_scene(report, text, command, sizes)
        words = len(scene.queries.positions) * len(scene.keys.positions) <= _CELLS
        units = units_known(words=words, spans=text.spans is not None)
        # of a long text, it is computed later
        scene = replace(scene, width=source.config.d_value, units=units)
        if variant.cuts:
            pending = "what the cut changes is measured next"
            scene = replace(scene, predictions=(), no_predictions=pending)
        elif not scene.predictions:
            scene = replace(
                scene, no_predictions=_why_none(run, source, text.tokens, computed=False)
            )
        unit_source = text_units(text, scene)
        if self.run.spans is not None and self.run.spans.written:
            unit_source = replace(unit_source, division=str(self.run.spans))
        self._known[variant] = _Known(self._with_measures(scene, variant), unit_source)
        self._keep(variant, report)

    def _kept(self, session: Session, run: RunConfig) -> dict[str, Any]:
        """Return what is computed of every head: all stages, or of a long text a map and fewer sources of every row."""
        from attnscope.run.plan import plan_texts

        plan = plan_texts(structs.replace(run, query=None, key=None, pool=1), session.source(run))[
            0
        ]
        n_keys = len(plan.context or plan.tokens)
        config = session.source(run).config
        row = 4 * (n_keys * len(STAGES) + config.d_value)
        cells = len(plan.tokens) * row * config.n_layers * config.n_heads
        if max(len(plan.tokens), n_keys) > _WHOLE or cells > self._budget // 2:
            return {"stages": (), "pool": _RUNS, "query": EVERY_POSITION, "top": _RANKS}
        return {"stages": WALKED, "pool": None, "query": None, "top": _WHOLE_RANKS}

    def _rows(
        self, session: Session, variant: Variant, head: tuple[int, int], rows: tuple[int, int]
    ) -> None:
        """Compute exact rows of a head: all of them unless they are too many."""
        scene = self._known[variant].scene
        n_queries = len(scene.queries.positions)
        n_keys = len(scene.keys.positions)
        first_row, last_row = (0, n_queries - 1) if n_queries * n_keys <= _CELLS else rows
        query = PositionSelection.of([slice(first_row, last_row + 1)])
        run = self._config(
            variant,
            head,
            query=query,
            key=None,
            stages=WALKED,
            top=_RANKS,
            predict=False,
            pool=None,
        )
        report = inspect(run, session)
        text = report.texts[0]
        rows_of = walk_head(text, text.heads[0])
        is_whole = len(text.queries) == n_queries
        key = variant, *head
        before = self._heads.get(key)
        if before is None:
            walk = rows_of
            if not is_whole:
                walk = replace(
                    walk, sources=None, rows={}, masked_rows=frozenset(), start=first_row
                )
        elif is_whole:
            walk = replace(rows_of, map=before.map, chosen=before.chosen)
        else:
            walk = replace(before, stages=rows_of.stages, start=first_row)
        self._heads[key] = walk
        self._heads.move_to_end(key)
        self._forget(key)

    def _all(self, session: Session, variant: Variant, live_text: _Known) -> None:
        """Compute all heads: with their matrices, or a map and the sources of every row of a long text."""
        run = self._config(variant, layer=ALL, head=ALL, key=None, predict=None)
        run = structs.replace(run, **self._kept(session, run))
        try:
            report = inspect(run, session)
        # such as memory: what is looked at is still computed head by head
        except AttnscopeError as e:
            live_text.failed = str(e)
            raise
        self._keep(variant, report)
        text = report.texts[0]
        shape = len(live_text.scene.layers), len(live_text.scene.heads)
        rows = {
            indices: self._heads[variant, *indices].rows
            for indices in np.ndindex(*shape)
            if (variant, *indices) in self._heads
        }
        numbers = head_numbers(rows, shape, counted_rows(text.tokens, text.queries))
        predictions = live_text.scene.predictions
        if variant not in self._changes:
            predictions = [forecast(text, prediction) for prediction in text.predictions]
        why_none = _why_none(run, session.source(self.run), text.tokens, computed=True)
        scene = replace(
            live_text.scene, numbers=numbers, predictions=predictions, no_predictions=why_none
        )
        live_text.scene = self._with_measures(scene, variant)
        live_text.complete = True

    def _keep(self, variant: Variant, report: Report) -> None:
        text = report.texts[0]
        for head in text.heads:
            assert isinstance(head.layer, int) and isinstance(head.head, int)
            key = variant, self._layers.index(head.layer), head.head
            walk = walk_head(text, head)
            before = self._heads.get(key)
            if before is not None:
                walk = replace(walk, chosen=walk.chosen or before.chosen)
                if not walk.stages:
                    walk = replace(walk, stages=before.stages, start=before.start)
            self._heads[key] = walk
            self._heads.move_to_end(key)
        self._forget(key)

    def _forget(self, key: Key) -> None:
        """Drop the matrices viewed longest ago if there are too many, but never within one head."""
        held = sum(_bytes(head) for head in self._heads.values())
        for old in list(self._heads):
            if held <= self._budget or old == key:
                break
            held -= _bytes(self._heads[old])
            self._heads[old] = replace(self._heads[old], stages={}, start=0)

    def _cut(self, session: Session, variant: Variant) -> None:
        """Measure what the cuts of a variant change: where the model predicts, and at every row of a short text."""
        from attnscope.studies.ablate.run import ablate

        run = self._ablated(variant)
        live_text = self._known[variant]
        tokens = live_text.units.tokens
        kind = prediction_kind(run, session.source(run), mask_terms(run))
        ends = [] if kind is None else predicted_positions(kind, tokens)
        at = EVERY_POSITION if ends and len(tokens) <= _ROWS_MEASURED else None
        options = AblationOptions(tuple(parse_cut(cut.written) for cut in variant.cuts), at=at)
        ablation = ablate(run, options, session)
        why_none = _why_none(run, session.source(self.run), tokens, computed=True)
        changes = self._changes[variant] = cut_changes(ablation, ends, kind, why_none)
        live_text.scene = replace(
            live_text.scene, predictions=changes.ends, changes=changes.of_rows
        )

    def _ablated(self, variant: Variant) -> RunConfig:
        """Return the run of a variant as ablate takes it."""
        return self._config(
            variant, layer=AUTO, head=AUTO, query=None, key=None, stages=(), cuts=()
        )

    def measure_effects(self, variant: Variant, progress: Progress) -> None:
        """Cut every head alone, and keep how much each changes: of a short text at every token."""
        from attnscope.studies.ablate.head_effects import effects_of_text
        from attnscope.studies.ablate.run import survey_effects

        plain = replace(of_tokens(variant), cuts=())
        live_text = self._known[of_tokens(variant)]
        is_short = len(live_text.units.tokens) <= _ROWS_MEASURED
        with self.opener((self.run.texts[plain.text],), progress) as session:
            self._render(session, plain.text)
            run = self._ablated(plain)
            kind = prediction_kind(run, session.source(run), mask_terms(run))
            if is_short:
                effects = effects_of_text(run, session)
                heads = effects.heads
                positions = effects.positions
                measure = "hidden" if effects.at.kl is None else "kl"
                changes = effects.at.hidden if effects.at.kl is None else effects.at.kl
            else:
                survey = survey_effects(run, AblationOptions(each="head"), session)
                heads = [*zip(survey.layers, survey.heads, strict=True)]
                positions = survey.positions
                measure = survey.effects[0].ranked_by
                changes = survey.effects[0].effect[:, None]
        # of a long text, the mean over where the model predicts stands in place of every token
        ranking = list(positions) if is_short and positions else slice(None)
        shape = len(self._layers), max(head for _, head in heads) + 1, changes.shape[1]
        values = np.full(shape, np.nan, dtype=np.float32)
        means = np.full(shape[:2], np.nan, dtype=np.float32)
        for (layer, head), row in zip(heads, changes, strict=True):
            values[self._layers.index(layer), head] = row
            means[self._layers.index(layer), head] = np.nanmean(row[ranking])
        preposition = "after" if kind == "next" else "at"
        of_text = SceneEffects(values if is_short else None, positions, preposition=preposition)
        place = place_of_effect(replace(live_text.scene, effects=of_text), None)
        number = HeadNumber(EFFECT, effect_meaning(measure, place), means, measure)
        self._effects[plain] = number, of_text
        for variant_known, text_known in self._known.items():
            text_known.scene = self._with_measures(text_known.scene, variant_known)

    def measure_roles(self, progress: Progress) -> None:
        """Measure the roles of all heads, on built-in texts and random tokens."""
        from attnscope.studies.heads.run import SurveyOptions, survey_heads

        with self.opener((), progress) as session:
            run = structs.replace(self.run, texts=(), query=None, key=None, hide=None)
            self._survey = survey_heads(run, SurveyOptions(), session)
        for variant, live_text in self._known.items():
            live_text.scene = self._with_measures(live_text.scene, variant)

    def _with_measures(self, scene: Scene, variant: Variant) -> Scene:
        """Return a scene with the roles and the effects of heads, as far as they have been measured."""
        survey = self._survey
        if survey is not None:
            sizes = scene.layers, scene.heads
            roles = head_roles(survey.roles, survey.main, _MEASURED, sizes)
            scene = replace(scene, roles=roles)
        measured = self._effects.get(replace(variant, cuts=()))
        if measured is None:
            return scene
        number, effects = measured
        others = [other for other in scene.numbers if other.name != EFFECT]
        return replace(scene, numbers=[number, *others], effects=effects)

    def explain(
        self,
        variant: Variant,
        layer: int,
        head: int,
        cell: tuple[int, int | None],
        draw: Draw,
        progress: Progress,
    ) -> str:
        """Explain the row of a cell (its query and key) step by step; for no key, with the largest score in depth."""
        from attnscope.studies.explain.run import explain
        from attnscope.studies.registry import present

        scene = self.scene(variant)
        assert scene is not None
        query, key = cell
        tokens = scene.tokens_of(query)
        if len(tokens) > 1:
            raise AttnscopeError(f"explain takes one token, not {len(tokens)}", hint="show tokens")
        if variant.cuts:
            raise AttnscopeError(
                "explain takes the model without cuts", hint="X puts back what is cut"
            )
        row = PositionSelection.of([tokens[0]])
        in_depth = None if key is None else PositionSelection.of(scene.tokens_of_key(key))
        run = self._config(variant, (layer, head), query=row, key=in_depth, window=16, top=3)
        with self.opener(run.texts, progress) as session:
            explanation = explain(run, session)
        if key is not None:
            # the findings name the option, which nobody typed
            cells = [structs.replace(cell, chosen=_UNDER_CURSOR) for cell in explanation.cells]
            explanation = structs.replace(explanation, cells=cells)
        return draw(present(explanation, precision=4, options=False))

    def report(self, variant: Variant, layer: int, head: int, progress: Progress) -> Report:
        """Return the report of a head, with all stages."""
        run = self._config(
            variant, (layer, head), stages=WALKED, query=None, key=None, top=_RANKS, predict=None
        )
        with self.opener(run.texts, progress) as session:
            return inspect(run, session)

    def with_text(self, text: str) -> "LiveSource":
        """Return a walk through another text with the same model."""
        first_text = self.run.texts[0]
        if first_text.chat is not None:
            raise AttnscopeError("a chat is not edited", hint="pass a text to edit it")
        # words of the text before
        places = dict.fromkeys(("query", "key", "auto_query", "auto_key"))
        run = structs.replace(self.run, texts=(structs.replace(first_text, text=text),), **places)
        other = LiveSource(run, self.opener, self.masks, None)
        other._survey = self._survey
        return other


def _why_none(
    run: RunConfig, source: ModelSource, tokens: Sequence[Token], *, computed: bool
) -> str:
    """Say why a walk shows no predictions.

    Args:
        computed: All layers have run, which predicts unless the text is long.
    """
    kind = prediction_kind(run, source, mask_terms(run))
    if kind is None:
        return "no predictions: the model has no output head"
    if not predicted_positions(kind, tokens):
        return "no predictions: the model predicts at [MASK], which the text does not have"
    if source.weights == "random":
        return "no predictions: the weights are random; attnscope run --predict shows them"
    long = "the text is long; attnscope run --predict shows them"
    if computed:
        return f"no predictions: {long}"
    return "predictions are computed with the other heads"


def _named(numbers: IndexSelection, first_index: int) -> IndexSelection:
    """Return the named layers or heads; the first if they were left to `auto`."""
    if numbers == AUTO:
        return IndexSelection.of([first_index])
    return numbers


def _bytes(head: WalkHead) -> int:
    return sum(matrix.nbytes for matrix in head.stages.values())


def cut_changes(
    ablation: Ablation, ends: Sequence[int], kind: PredictionKind | None, why_none: str
) -> CutChanges:
    """Return predictions with and without cuts, sorted by their probability with cuts.

    For a model without predictions, how far the final hidden states move.

    Args:
        ends: Positions at which the model predicts by itself.
        kind: What it predicts there; None for nothing.
        why_none: Why there are no predictions, if there are none.
    """
    effect = ablation.effects[0]
    how = _HOW.get(effect.how, effect.how)
    of_rows: dict[int, Forecast] = {}
    for change in effect.predictions:
        tokens = sorted(change.tokens, key=lambda token: -token.after)
        first = max(tokens, key=lambda token: token.before)
        names = [Span(token.text, "", "token") for token in (tokens[0], first)]
        verdict: Spans = (names[0], Span(" stays first"))
        if first is not tokens[0]:
            verdict = (names[0], Span(" is first, not "), names[1])
        of_rows[change.position] = Forecast(
            prediction_title(kind or "next", ablation.tokens, change.position),
            [Span(token.text, "", "token") for token in tokens],
            [token.after for token in tokens],
            before=[token.before for token in tokens],
            verdict=verdict,
            how=how,
            effect=change.kl,
            position=change.position,
        )
    if of_rows:
        of_ends = [of_rows[position] for position in ends if position in of_rows]
        return CutChanges(of_ends or [*of_rows.values()], of_rows)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = effect.change.astype(np.float64) / ablation.norms
    order = np.argsort(-np.nan_to_num(share)).tolist()

    def moved(positions: Sequence[int], of: str, note: str = "", more: int = 0) -> Forecast:
        names = [token_span(ablation.tokens, position) for position in positions]
        return Forecast(
            (Span(of),),
            names,
            [float(share[position]) for position in positions],
            note=note,
            is_change=True,
            how=how,
            effect=mean_share,
            positions=positions,
            more=more,
        )

    mean_share = float(np.nanmean(share)) if np.isfinite(share).any() else None
    strongest = order[:_RANKS]
    of_rows = {
        position: moved([position], "of this row")
        for position in order
        if position not in strongest
    }
    more = len(order) - len(strongest)
    return CutChanges([moved(strongest, "of final states", why_none, more)], of_rows)


def live_source(run: RunConfig, opener: Opener, command: str | None = None) -> LiveSource:
    """Return a walk through the texts of a run; its rows, columns, words and cuts only say where it begins."""
    plain = structs.replace(
        run,
        query=None,
        key=None,
        auto_query=run.query,
        auto_key=run.key,
        stages=(),
        top=3,
        words=False,
        cuts=(),
    )
    return LiveSource(plain, opener, command=command)
