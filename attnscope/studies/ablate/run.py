"""Run `attnscope ablate`, in order: from a RunConfig to an Ablation, or to the effect of every unit."""

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import UsageError, arg
from attnscope.findings.ablation import Ablation, CutPart, EffectSurvey
from attnscope.request.run_config import RunConfig
from attnscope.run.cut_plan import resolve_cuts
from attnscope.run.plan import plan_texts
from attnscope.run.session import Session
from attnscope.studies.ablate.baseline import run_uncut
from attnscope.studies.ablate.plan import AblationOptions, AblationRun, check_options
from attnscope.studies.ablate.spans import answer_text

OF_WORDS = "Weight from the query's word or picture to the key's: summed over the key's tokens, averaged over the query's."
# A first token that is a word reads itself alone in a causal model, which says nothing of a head.
OFF_SINK = (
    "Weight that words give to tokens other than the first and special ones (the usual sinks), averaged over words "
    "behind the first token."
)
# Most positions at which the predictions without the unit with the largest effect are kept.
_PREDICTIONS = 3
_MEANINGS = {
    "head": OFF_SINK,
    "layer": OFF_SINK.replace("words behind", "heads and words behind"),
    "edge": "Weight α that the query gives to the key.",
    "span": "Weight that the tokens whose reading is cut give to the span, averaged over layers, heads and tokens.",
}


def ablate(
    run: RunConfig,
    options: AblationOptions,
    session: Session | None = None,
) -> Ablation:
    """Do what `attnscope ablate --cut` does, without printing."""
    ablation = _opened(run, options, session)
    cuts = resolve_cuts(options.cuts, ablation.run, ablation.source, ablation.text)
    ways = options.ways(edges=any(cut.queries is not None for cut in cuts))
    baseline = run_uncut(ablation, cuts, len(ways))
    effects = baseline.compare(cuts, ways)
    notes = list(ablation.notes)
    if any(cut.queries is None for cut in cuts) and len(ways) == 2:
        notes.append(
            f"heads that are cut entirely output {'0' if options.replacement == 'zero' else 'their mean'}"
        )
    parts = []
    for cut in cuts:
        weight = baseline.uncut_weights.weight(cut)
        queries, keys = (None if side is None else list(side) for side in (cut.queries, cut.keys))
        parts.append(CutPart(cut.written, list(cut.heads), queries, keys, weight))
        if cut.queries is not None and weight == 0.0:
            ablation.text.warnings.append(
                f"--cut '{cut.written}': no query gives any weight to these keys, so this cut changes nothing"
            )
    norms = baseline.uncut_states.hidden.norm(dim=-1).float().cpu().numpy()
    return Ablation(**baseline.header(), cuts=parts, norms=norms, effects=effects, notes=notes)


def survey_effects(
    run: RunConfig,
    options: AblationOptions,
    session: Session | None = None,
) -> EffectSurvey:
    """Do what `attnscope ablate --each` does, without printing."""
    ablation = _opened(run, options, session)
    unit = options.each
    assert unit is not None
    edges = unit == "edge"
    spans = unit == "span"
    numbers, cuts = ablation.span_cuts() if spans else ([], ablation.units())
    baseline = run_uncut(ablation, cuts, len(cuts))
    weights = baseline.weights(cuts)  # as reported: ranks are of these
    notes = list(ablation.notes)
    if edges:  # an edge that the mask forbids has no weight, so cutting it changes nothing
        kept_edges = np.flatnonzero(weights > 0).tolist()
        if not kept_edges:
            message = f"none of the {len(cuts):,} edges has any weight"
            hint = "select other heads, queries or keys"
            raise UsageError(message, where=arg("each", "edge"), hint=hint)
        if len(kept_edges) < len(cuts):
            notes.append(
                f"{len(cuts) - len(kept_edges):,} of {len(cuts):,} edges have no weight and are left out"
            )
        cuts = [cuts[n] for n in kept_edges]
        weights = weights[kept_edges]
    ways = options.ways(edges=edges or spans)
    effects = []
    for way in ways:
        doing = {"patch": "patching", "resample": "resampling"}.get(way[0], "cutting")
        step = f"{doing} {unit}s" + (f", {way[0]}" if len(ways) > 1 else "")
        effects.append(baseline.effects(way, cuts, step, weights))
    words = ablation.words() if edges else None
    meaning = OF_WORDS
    if words is None:
        meaning = _MEANINGS[unit]
    survey = EffectSurvey(
        **baseline.header(),
        unit=unit,
        positions=list(ablation.positions),
        layers=[-1 if spans else cut.heads[0][0] for cut in cuts],
        heads=[-1 if spans or unit == "layer" else cut.heads[0][1] for cut in cuts],
        queries=[cut.queries[0] for cut in cuts if edges and cut.queries is not None],
        keys=[cut.keys[0] for cut in cuts if edges and cut.keys is not None],
        weights=weights,
        meaning=meaning,
        effects=effects,
        notes=notes,
        spans=ablation.text.spans if spans else None,
        span_numbers=numbers,
        rows=list(ablation.rows),
        answer=list(ablation.answer),
        log_probability=baseline.log_probability,
        words=words,
    )
    if spans or len(survey.positions) > _PREDICTIONS:
        return survey
    (largest,) = baseline.compare([cuts[survey.order()[0]]], ways[:1])
    return replace(survey, predictions=largest.predictions)


def _opened(
    run: RunConfig,
    options: AblationOptions,
    session: Session | None,
) -> AblationRun:
    """Check the options, open the model, and make tokens of the text."""
    check_options(run, options)
    session = session or Session(run.texts)
    source, run = session.open(run)
    source.require_model("ablation")
    if options.each == "span":
        return answer_text(run, options, source, session)
    (text,) = plan_texts(replace(run, window=None, pool=None), source)
    return AblationRun.of(run, options, source, session, text)
