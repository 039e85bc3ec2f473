"""Compare given queries and keys with a model, and find by trying which of its settings they were computed without."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np

from attnscope.base.errors import AttnscopeError, arg
from attnscope.checkpoints.source import ModelSource, tokenize
from attnscope.engines.arrays.given import GivenArrays
from attnscope.engines.arrays.masks import split_windows
from attnscope.engines.arrays.opening import ArraysInMemory
from attnscope.engines.arrays.settings import GivenRope, LayerSettings
from attnscope.findings.compare import SCALED_ALREADY, Comparison, Diagnosis, TriedSetting
from attnscope.findings.run import Report
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import ALL, AUTO, IndexSelection, PositionSelection, numbered
from attnscope.run.plan import make_plan
from attnscope.run.session import ProgressCallback, Session, inspect, prepare
from attnscope.studies.compare.runs import compare_runs
from attnscope.studies.compare.tolerance import Tolerance

# largest differences of weights that rounding explains: of float32, and of 16 bits
_EXACT = 1e-4
_NARROW = 2e-2
_ROWS = 256  # rows of a text that settings are tried on
_SAME = 1e-6  # relative difference of numbers that are the same setting
_MODEL_FIELDS = ("model", "config", "adapter", "tokenizer", "ignore_key", "trust_config", "part", "dtype", "engine")


def compare_with_arrays(
    run: RunConfig,
    arrays: GivenArrays,
    labels: tuple[str, str],
    key: PositionSelection | None = None,
    *,
    progress: ProgressCallback | None = None,
    tolerance: Tolerance | None = None,
    session: Session | None = None,
    selected: Collection[str] = (),
) -> Comparison:
    """Run a model on the text of given arrays, and compare the weights.

    Args:
        run: The model, and its texts; none: the arrays' own.
        arrays: Queries and keys, or weights.
        tolerance: Also the difference up to which settings agree.
    """
    if not run.texts:
        texts = tuple(TextInput(text.text, where=text.where) for text in arrays.inputs)
        run = msgspec.structs.replace(run, texts=texts)
    session = session or Session(run.texts, progress)
    source = session.source(run)
    arrays = _relabelled(source, run, arrays)
    _check_sizes(source, arrays)
    if run.query is None and any(arrays.first_queries):
        run = msgspec.structs.replace(run, query=PositionSelection.of(_given_rows(arrays)))
    if run.layer == AUTO and "layer" not in selected:
        run = msgspec.structs.replace(run, layer=IndexSelection.of(arrays.layers))
    if run.head == AUTO and "head" not in selected:
        run = msgspec.structs.replace(run, head=ALL)
    sides = [(labels[0], run), (labels[1], _of_arrays(run, session, arrays))]
    comparison = compare_runs("qkv", sides, key, session.progress, tolerance, session, selected)
    if arrays.weights or not run.own_mask:
        return comparison
    limit = _EXACT if (run.dtype, arrays.dtype) == ("float32", "float32") else _NARROW
    diagnosis = _Trial(run, session, arrays, limit if tolerance is None else tolerance.absolute).diagnose()
    return msgspec.structs.replace(comparison, diagnosis=diagnosis)


def _of_arrays(run: RunConfig, session: Session, arrays: GivenArrays) -> RunConfig:
    """Return the run over these arrays, which the session holds from now on."""
    session.live = {**session.live, arrays.name: ArraysInMemory(arrays)}
    default = RunConfig(())
    plain = {name: getattr(default, name) for name in _MODEL_FIELDS}
    return msgspec.structs.replace(run, **plain, texts=arrays.inputs, qkv=arrays.name, predict=False)


def _relabelled(source: ModelSource, run: RunConfig, arrays: GivenArrays) -> GivenArrays:
    """Return the arrays with the model's tokens; refuse another number of tokens."""
    if len(run.texts) != len(arrays.texts):
        message = f"{len(run.texts)} texts for arrays of {len(arrays.texts)}"
        raise AttnscopeError(message, where=arg("text"), hint=f"pass the text that {arrays.name} is from")
    texts = []
    for text, (_, array_tokens) in zip(run.texts, arrays.texts, strict=True):
        tokens = tokenize(source, text.text, text.pair, text.where, truncate=run.truncate)[0]
        if len(tokens) != len(array_tokens):
            message = f"the model makes {len(tokens)} tokens of it, the arrays have {len(array_tokens)}"
            beginning = " ".join(token.text for token in array_tokens[:6])
            hint = f"pass the text that the arrays are from; theirs begins {beginning}"
            raise AttnscopeError(message, where=text.where, hint=hint)
        texts.append((text.text, tokens))
    return replace(arrays, texts=texts)


def _given_rows(arrays: GivenArrays) -> list[int]:
    """Return the positions whose queries every text gives; refuse arrays without any."""
    rows = range(max(arrays.first_queries), min(len(tokens) for _, tokens in arrays.texts))
    if not rows:
        hint = "give the queries of every token, or compare one text"
        raise AttnscopeError("no position has a query in every text", where=arrays.name, hint=hint)
    return list(rows)


def _check_sizes(source: ModelSource, arrays: GivenArrays) -> None:
    c = source.config
    if arrays.layers[-1] >= c.n_layers or arrays.sizes.heads != c.n_heads:
        message = f"the arrays have layer {arrays.layers[-1]} and {arrays.sizes.heads} heads"
        hint = f"{source.name} has {numbered('layer', c.n_layers)} and {c.n_heads} heads"
        raise AttnscopeError(message, where=arrays.name, hint=hint)


@dataclass(frozen=True)
class _Gap:
    """The largest difference of weights, and where it is."""

    size: float
    place: tuple[int, int, int, int]  # layer, head, text and query
    first_layer: int | None  # the first with a difference beyond the limit; None if there is none


class _Trial:
    """Try settings of a model on given queries and keys; weights agree up to `limit`."""

    def __init__(self, run: RunConfig, session: Session, arrays: GivenArrays, limit: float) -> None:
        longest = max(len(tokens) for _, tokens in arrays.texts)
        rows = None
        known_rows = _given_rows(arrays) if any(arrays.first_queries) else list(range(longest))
        if len(known_rows) > _ROWS or len(known_rows) < longest:
            places = np.linspace(0, len(known_rows) - 1, min(_ROWS, len(known_rows)), dtype=int)
            rows = PositionSelection.of([known_rows[index] for index in places])
        settings: dict[str, Any] = {"stages": ("scores", "weights"), "top": 0, "window": None, "pool": None}
        layers = IndexSelection.of(arrays.layers)
        self._run = msgspec.structs.replace(
            run, **settings, query=rows, key=None, auto_key=None, layer=layers, head=ALL, predict=False
        )
        self._session = session
        self._arrays = arrays
        self._limit = limit
        self._reference = inspect(self._run, session=session)
        self._model, masks = self._model_settings()
        self._own_masks = _split({layer: arrays.config().mask_of(layer) for layer in arrays.layers})
        self._model_masks = _split(masks)

    def diagnose(self) -> Diagnosis:
        """Try every differing setting alone, and find the smallest set of settings that makes the weights agree."""
        scores = self._gap(set(), stage="scores")
        differing = self._differing()
        initial_gap = self._gap(set())
        tried = [TriedSetting(name, *differing[name], self._gap({name}).size) for name in differing]
        needed_settings, remaining = self._needed(list(differing), initial_gap)
        layer, head, text, query = initial_gap.place
        return Diagnosis(
            limit=self._limit,
            difference=initial_gap.size,
            layer=layer,
            head=head,
            text=text,
            query=query,
            first_layer=initial_gap.first_layer,
            tried=tried,
            needed=needed_settings,
            remaining=remaining.size,
            agrees=remaining.size <= self._limit,
            first_scores=scores.first_layer,
        )

    def _needed(self, names: list[str], initial_gap: _Gap) -> tuple[list[str], _Gap]:
        """Return the smallest set of settings that makes the weights agree, and the remaining difference."""
        if initial_gap.size <= self._limit:
            return [], initial_gap
        best = list(names)
        left = self._gap(set(names))
        attempts = [[*names, "rope"], [*names, SCALED_ALREADY], [*names, "rope", SCALED_ALREADY]]
        for attempt in attempts if left.size > self._limit else ():
            if "rope" in attempt and not any(settings.rope for settings in self._model.values()):
                continue
            gap = self._gap(set(attempt))
            if gap.size <= self._limit:
                best = [name for name in attempt if name != "scale" or SCALED_ALREADY not in attempt]
                left = gap
                break
        if left.size > self._limit:
            return [], left
        for name in list(best):
            fewer_settings = [setting for setting in best if setting != name]
            gap = self._gap(set(fewer_settings))
            if gap.size <= self._limit:
                best = fewer_settings
                left = gap
        return best, left

    def _differing(self) -> dict[str, tuple[str, str]]:
        """Return the settings in which arrays and model differ, spelled for both."""
        differing = {}
        for name in ("scale", "softcap", "sinks"):
            mine = {layer: getattr(settings, name) for layer, settings in self._arrays.settings.items()}
            if name == "scale":
                root = float(self._arrays.sizes.width) ** -0.5
                mine = {layer: root if value is None else value for layer, value in mine.items()}
            of_model = {layer: getattr(settings, name) for layer, settings in self._model.items()}
            if any(not _same(mine[layer], of_model[layer]) for layer in mine):
                differing[name] = _spell(name, mine), _spell(name, of_model)
        for name in ("window", "mask"):
            if self._own_masks[name] != self._model_masks[name]:
                differing[name] = _spell(name, self._own_masks[name]), _spell(name, self._model_masks[name])
        return differing

    def _gap(self, names: set[str], stage: str = "weights") -> _Gap:
        """Compare the arrays' weights under some of the model's settings with the model's weights."""
        changes: dict[str, dict[int, Any]] = {
            name: {layer: getattr(settings, name) for layer, settings in self._model.items()}
            for name in names & {"scale", "softcap", "sinks", "rope"}
        }
        if SCALED_ALREADY in names:
            changes["scale"] = dict.fromkeys(self._model, 1.0)
        if names & {"mask", "window"}:
            changes |= self._own_masks | {name: self._model_masks[name] for name in names & {"mask", "window"}}
        arrays = replace(self._arrays.with_settings(**changes), name=f"{self._arrays.name} {sorted(names)}")
        report = inspect(_of_arrays(self._run, self._session, arrays), session=self._session)
        self._session.sources.clear()  # they hold on to variants of the arrays
        return _compared(self._reference, report, stage, self._limit)

    def _model_settings(self) -> tuple[dict[int, LayerSettings], dict[int, str]]:
        """Run the model; return each layer's settings, and the description of its mask."""
        plan = make_plan(self._run, self._session.source(self._run))
        model, device = self._session.load(plan)
        batch, engine = prepare(plan, model, device)
        from attnscope.model.head_capture import RowCapture

        longest = max(batch.tokens.lengths)
        captures = {layer: RowCapture(layer, 0, 0, longest) for layer in self._arrays.layers}
        engine.forward(batch, {layer: [capture] for layer, capture in captures.items()})
        settings = {}
        for layer, capture in captures.items():
            assert capture.spec is not None
            rope = plan.config.rope_of(layer)
            spec = capture.spec
            sinks = None if spec.sinks is None else tuple(spec.sinks.float().tolist())
            given_rope = None if rope is None else GivenRope(rope)
            settings[layer] = LayerSettings(spec.scale, spec.softcap, None, sinks, given_rope)
        return settings, {layer: engine.describe_layer_mask(layer) for layer in self._arrays.layers}


def _split(masks: Mapping[int, str]) -> dict[str, dict[int, Any]]:
    """Return the masks of layers as settings `mask` and `window`."""
    return dict(zip(("mask", "window"), split_windows(masks, always=True), strict=True))


def _same(mine: Any, other: Any) -> bool:
    if mine is None or other is None:
        return mine is other
    return bool(np.allclose(mine, other, rtol=_SAME, atol=0))


def _spell(name: str, values: Mapping[int, Any]) -> str:
    """Spell a setting of all layers, or of the layers that have it."""
    spelled = {layer: _spell_value(name, value) for layer, value in values.items()}
    if len(set(spelled.values())) == 1:
        return next(iter(spelled.values()))
    having = {layer: text for layer, text in spelled.items() if text != "none"}
    if len(set(having.values())) == 1:
        return f"{next(iter(having.values()))} in layers {', '.join(map(str, having))}"
    return ", ".join(f"L{layer} {text}" for layer, text in list(spelled.items())[:4])


def _spell_value(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if name == "mask":
        return str(value)
    return "a logit for each head" if name == "sinks" else f"{value:.6g}"


def _compared(reference: Report, other: Report, stage: str, limit: float) -> _Gap:
    """Return the largest difference of a stage between two reports of the same tokens; of scores, a share."""
    limit = max(limit, 1e-3) if stage == "scores" else limit
    scale = 1.0
    if stage == "scores":
        every = (np.abs(head.stages[stage]).max(initial=1.0) for text in reference.texts for head in text.heads)
        scale = float(max(every, default=1.0))
    gaps = [(0.0, (0, 0, 0, 0))]
    for a, b in zip(reference.texts, other.texts, strict=True):
        for first_head, second_head in zip(a.heads, b.heads, strict=True):
            gap = np.abs(first_head.stages[stage].astype(np.float64) - second_head.stages[stage]) / scale
            apart = np.isnan(first_head.stages[stage]) != np.isnan(second_head.stages[stage])
            gap = np.where(apart, 1.0, np.nan_to_num(gap, nan=0.0))
            if gap.size:
                row = int(np.unravel_index(int(gap.argmax()), gap.shape)[0])
                gaps.append((float(gap.max()), (int(first_head.layer), int(first_head.head), a.index, a.queries[row])))
    first_layer = min((cell[0] for size, cell in gaps if size > limit), default=None)
    return _Gap(*max(gaps, key=itemgetter(0)), first_layer)
