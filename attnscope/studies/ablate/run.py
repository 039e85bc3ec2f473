"""Run `attnscope ablate`, in order: from a RunConfig to an Ablation, or to the effect of every unit."""

from collections.abc import Sequence

import numpy as np

from attnscope.base.errors import UsageError, arg
from attnscope.findings.ablation import Ablation, CutPart, EffectSurvey
from attnscope.findings.merge_pieces import TextWords, words_of
from attnscope.request.run_config import RunConfig
from attnscope.run.cut_plan import resolve_cuts
from attnscope.run.session import ProgressCallback, Session
from attnscope.studies.ablate.ablation_run import AblationRun
from attnscope.studies.ablate.baseline import run_uncut
from attnscope.studies.ablate.plan import AblationOptions, check_options, units
from attnscope.studies.ablate.spans import answer_text

OF_WORDS = (
    "Weight from the query's word to the key's word: summed over the key's tokens, averaged over the query's tokens."
)
OFF_SINK = (
    "Weight that words give to tokens other than the first and special ones (the usual sinks), averaged over words."
)


def ablate(
    run: RunConfig, options: AblationOptions, progress: ProgressCallback | None = None, session: Session | None = None
) -> Ablation:
    """Do what `attnscope ablate --cut` does, without printing.

    Args:
        progress: See pipeline.inspect.
        session: Models that are open already.
    """
    check_options(run, options)
    ablation = AblationRun.of(run, options, progress, session)
    cuts = resolve_cuts(options.cuts, run, ablation.source, ablation.text)
    cuts_heads = any(cut.queries is None for cut in cuts)
    ways = options.ways(edges=any(cut.queries is not None for cut in cuts))
    baseline = run_uncut(ablation, cuts, len(ways))
    effects = baseline.compare(cuts, ways)
    notes = list(ablation.notes)
    if cuts_heads and len(ways) == 2:
        notes.append(f"heads that are cut entirely output {'0' if options.replacement == 'zero' else 'their mean'}")
    parts = [
        CutPart(
            cut.written,
            list(cut.heads),
            None if cut.queries is None else list(cut.queries),
            None if cut.keys is None else list(cut.keys),
            baseline.weight(cut),
        )
        for cut in cuts
    ]
    for part in parts:
        if part.queries is not None and part.weight == 0.0:
            notes.append(
                f"--cut '{part.written}': no query gives any weight to these keys, so this cut changes nothing"
            )
    norms = baseline.uncut_states.hidden.norm(dim=-1).float().cpu().numpy()
    return Ablation(**baseline.header(), cuts=parts, norms=norms, effects=effects, notes=notes)


def survey_effects(
    run: RunConfig, options: AblationOptions, progress: ProgressCallback | None = None, session: Session | None = None
) -> EffectSurvey:
    """Do what `attnscope ablate --each` does, without printing."""
    check_options(run, options)
    assert options.each is not None
    if options.each == "span":
        return _survey_spans(run, options, progress, session)
    ablation = AblationRun.of(run, options, progress, session)
    cuts = units(options, run, ablation.source, ablation.text)
    edges = options.each == "edge"
    baseline = run_uncut(ablation, cuts, len(cuts))
    weights = np.array([baseline.weight(cut) for cut in cuts], dtype=np.float32)  # as reported: ranks are of these
    notes = list(ablation.notes)
    if edges:  # an edge that the mask forbids has no weight, so cutting it changes nothing
        kept = np.flatnonzero(weights > 0).tolist()
        if not kept:
            message, hint = f"none of the {len(cuts):,} edges has any weight", "select other heads, queries or keys"
            raise UsageError(message, where=arg("each", "edge"), hint=hint)
        if len(kept) < len(cuts):
            notes.append(f"{len(cuts) - len(kept):,} of {len(cuts):,} edges have no weight and are left out")
        cuts, weights = [cuts[n] for n in kept], weights[kept]
    ways = options.ways(edges=edges)
    effects = [baseline.effects(way, cuts, _step(options.each, way, ways), weights) for way in ways]
    return EffectSurvey(
        **baseline.header(),
        unit=options.each,
        positions=list(ablation.positions),
        layers=[cut.heads[0][0] for cut in cuts],
        heads=[-1 if options.each == "layer" else cut.heads[0][1] for cut in cuts],
        queries=[cut.queries[0] for cut in cuts if cut.queries is not None],
        keys=[cut.keys[0] for cut in cuts if cut.keys is not None],
        weights=weights,
        meaning={
            "head": OFF_SINK,
            "layer": f"{OFF_SINK[:-1]} and heads.",
            "edge": OF_WORDS if run.words else "Weight α that the query gives to the key.",
        }[options.each],
        effects=effects,
        notes=notes,
        words=_words(run, ablation) if edges else None,
    )


def _words(run: RunConfig, ablation: AblationRun) -> TextWords | None:
    """Return the words that edges connect; None for tokens."""
    text = ablation.text
    return words_of(text.tokens, text.context or text.tokens, text.queries, text.keys) if run.words else None


def _survey_spans(
    run: RunConfig, options: AblationOptions, progress: ProgressCallback | None, session: Session | None
) -> EffectSurvey:
    """Cut the answer off from each span alone."""
    session = session or Session(run.texts, progress)
    source, run = session.open(run)
    answered = answer_text(run, options, source, session)
    numbers, cuts = answered.cuts(source)
    ablation = AblationRun(
        answered.run,
        options,
        source,
        session,
        answered.text,
        answered.positions,
        list(answered.notes),
        answered.targets,
    )
    baseline = run_uncut(ablation, cuts, len(cuts))
    weights = np.array([baseline.weight(cut) for cut in cuts], dtype=np.float32)
    ways = options.ways(edges=True)
    effects = [baseline.effects(way, cuts, _step("span", way, ways), weights) for way in ways]
    return EffectSurvey(
        **baseline.header(),
        unit="span",
        positions=list(ablation.positions),
        layers=[-1] * len(cuts),
        heads=[-1] * len(cuts),
        queries=[],
        keys=[],
        weights=weights,
        meaning="Weight that the tokens whose reading is cut give to the span, averaged over layers, heads and tokens.",
        effects=effects,
        spans=answered.spans,
        span_numbers=numbers,
        rows=list(answered.rows),
        answer=list(answered.answer),
        log_probability=baseline.log_probability,
        notes=ablation.notes,
    )


def _step(unit: str, way: tuple[str, bool], ways: Sequence[tuple[str, bool]]) -> str:
    """Name a step of the work, for progress."""
    doing = {"patch": "patching", "resample": "resampling"}.get(way[0], "cutting")
    return f"{doing} {unit}s" + (f", {way[0]}" if len(ways) > 1 else "")
