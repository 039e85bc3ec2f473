"""What `attnscope ablate` does, in order: from a RunConfig to an Ablation, or to the effect of every unit."""

from collections.abc import Sequence

import numpy as np

from attnscope.base.errors import UsageError, arg
from attnscope.findings.ablation import Ablation, CutPart, EffectSurvey
from attnscope.findings.words import TextWords, words_of
from attnscope.request.run_config import RunConfig
from attnscope.run.cut_plan import resolve_cuts
from attnscope.run.session import ProgressCallback, Session
from attnscope.studies.ablate.bench import Bench
from attnscope.studies.ablate.plan import AblationOptions, check_options, units
from attnscope.studies.ablate.spans import answer_text
from attnscope.studies.ablate.uncut import run_uncut

OF_WORDS = "Weight that the query's word gives to the key's word: summed over its tokens, averaged over the query's."
OFF_SINK = (
    "Weight that words give to tokens other than the first and special ones (the usual sinks), averaged over words."
)


def ablate(
    run: RunConfig, asked: AblationOptions, progress: ProgressCallback | None = None, session: Session | None = None
) -> Ablation:
    """Do what `attnscope ablate --cut` does, without printing.

    Args:
        run: The model, how it runs, and one text.
        asked: What is cut, and what is compared.
        progress: See pipeline.inspect.
        session: Models that are open already.

    Raises:
        UsageError: What was asked for contradicts itself, or is not there.
        AttnscopeError: The model, the text or the memory do not allow it.
    """
    check_options(run, asked)
    bench = Bench.of(run, asked, progress, session)
    cuts = resolve_cuts(asked.cuts, run, bench.source, bench.text)
    whole = any(cut.queries is None for cut in cuts)
    ways = asked.ways(edges=any(cut.queries is not None for cut in cuts))
    uncut = run_uncut(bench, cuts, len(ways))
    effects = uncut.compare(cuts, ways)
    notes = list(bench.notes)
    if whole and len(ways) == 2:
        notes.append(f"heads that are cut entirely output {'0' if asked.replacement == 'zero' else 'their mean'}")
    parts = [
        CutPart(
            cut.written,
            list(cut.heads),
            None if cut.queries is None else list(cut.queries),
            None if cut.keys is None else list(cut.keys),
            uncut.weight(cut),
        )
        for cut in cuts
    ]
    for part in parts:
        if part.queries is not None and part.weight == 0.0:
            notes.append(
                f"--cut '{part.written}': no query gives any weight to these keys, so this cut changes nothing"
            )
    norms = uncut.baseline.hidden.norm(dim=-1).float().cpu().numpy()
    return Ablation(**uncut.header(), cuts=parts, norms=norms, effects=effects, notes=notes)


def survey_effects(
    run: RunConfig, asked: AblationOptions, progress: ProgressCallback | None = None, session: Session | None = None
) -> EffectSurvey:
    """Do what `attnscope ablate --each` does, without printing; see ablate."""
    check_options(run, asked)
    assert asked.each is not None
    if asked.each == "span":
        return _survey_spans(run, asked, progress, session)
    bench = Bench.of(run, asked, progress, session)
    cuts = units(asked, run, bench.source, bench.text)
    edges = asked.each == "edge"
    uncut = run_uncut(bench, cuts, len(cuts))
    weights = np.array([uncut.weight(cut) for cut in cuts], dtype=np.float32)  # as reported: ranks are of these
    notes = list(bench.notes)
    if edges:  # an edge that the mask forbids has no weight, so cutting it changes nothing
        kept = np.flatnonzero(weights > 0).tolist()
        if not kept:
            found, hint = f"none of the {len(cuts):,} edges has any weight", "select other heads, queries or keys"
            raise UsageError(found, where=arg("each", "edge"), hint=hint)
        if len(kept) < len(cuts):
            notes.append(f"{len(cuts) - len(kept):,} of {len(cuts):,} edges have no weight and are left out")
        cuts, weights = [cuts[n] for n in kept], weights[kept]
    ways = asked.ways(edges=edges)
    effects = [uncut.effects(way, cuts, _step(asked.each, way, ways), weights) for way in ways]
    return EffectSurvey(
        **uncut.header(),
        unit=asked.each,
        positions=list(bench.positions),
        layers=[cut.heads[0][0] for cut in cuts],
        heads=[-1 if asked.each == "layer" else cut.heads[0][1] for cut in cuts],
        queries=[cut.queries[0] for cut in cuts if cut.queries is not None],
        keys=[cut.keys[0] for cut in cuts if cut.keys is not None],
        weights=weights,
        meaning={
            "head": OFF_SINK,
            "layer": f"{OFF_SINK[:-1]} and heads.",
            "edge": OF_WORDS if run.words else "Weight α that the query gives to the key.",
        }[asked.each],
        effects=effects,
        notes=notes,
        words=_words(run, bench) if edges else None,
    )


def _words(run: RunConfig, bench: Bench) -> TextWords | None:
    """Return the words that edges are between; None for tokens."""
    text = bench.text
    return words_of(text.tokens, text.context or text.tokens, text.queries, text.keys) if run.words else None


def _survey_spans(
    run: RunConfig, asked: AblationOptions, progress: ProgressCallback | None, session: Session | None
) -> EffectSurvey:
    """Cut the answer off from each span alone."""
    session = session or Session(run.texts, progress)
    source, run = session.open(run)
    answered = answer_text(run, asked, source, session)
    numbers, cuts = answered.cuts(source)
    bench = Bench(
        answered.run,
        asked,
        source,
        session,
        answered.text,
        answered.positions,
        list(answered.notes),
        answered.targets,
    )
    uncut = run_uncut(bench, cuts, len(cuts))
    weights = np.array([uncut.weight(cut) for cut in cuts], dtype=np.float32)
    ways = asked.ways(edges=True)
    effects = [uncut.effects(way, cuts, _step("span", way, ways), weights) for way in ways]
    return EffectSurvey(
        **uncut.header(),
        unit="span",
        positions=list(bench.positions),
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
        log_probability=uncut.log_probability,
        notes=bench.notes,
    )


def _step(unit: str, way: tuple[str, bool], ways: Sequence[tuple[str, bool]]) -> str:
    """Name a step of the work, for progress."""
    doing = {"patch": "patching", "resample": "resampling"}.get(way[0], "cutting")
    return f"{doing} {unit}s" + (f", {way[0]}" if len(ways) > 1 else "")
