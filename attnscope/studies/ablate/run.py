"""What `attnscope ablate` does, in order: from a RunConfig to an Ablation, or to the effect of every unit."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import UsageError, arg
from attnscope.checkpoints.source import ModelSource
from attnscope.findings.ablation import (
    Ablation,
    CutEffect,
    CutPart,
    Effects,
    EffectSurvey,
    PredictionChange,
    TokenChange,
    rank_correlation,
)
from attnscope.findings.predictions import PREDICTED
from attnscope.request.run_config import RunConfig
from attnscope.run.plan import RunPlan
from attnscope.run.session import ProgressCallback, Session, describe_mask_use, memory_check, prepare, provenance
from attnscope.run.text_plan import TextPlan
from attnscope.studies.ablate.plan import (
    AblationOptions,
    Cut,
    check_options,
    compared_positions,
    kept_bytes,
    plan_one,
    plan_reference,
    plan_variants,
    resolve_cuts,
    units,
)
from attnscope.studies.ablate.spans import answer_text

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnscope.engines.protocol import Engine, LoadedModel, UncutRun
    from attnscope.model.cuts import Variant
    from attnscope.studies.ablate.effects import Baseline
    from attnscope.studies.ablate.seen import Seen

Array = np.ndarray[Any, np.dtype[Any]]
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
    cuts = resolve_cuts(asked, run, bench.source, bench.text)
    whole = any(cut.queries is None for cut in cuts)
    ways = [True, False] if any(cut.queries is not None for cut in cuts) else [True]
    uncut = bench.run_uncut(cuts, len(ways))
    names = [asked.replacement] if len(ways) == 1 else ["renormalised", "unnormalised"]
    after: dict[int, Tensor] = {}
    for places, hidden in uncut.chunks([uncut.variant(cuts, renormalised=way) for way in ways], "cutting"):
        after |= dict(zip(places, hidden, strict=True))
    effects = uncut.compare(names, [after[place] for place in range(len(ways))])
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
    uncut = bench.run_uncut(cuts, len(cuts))
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
    effects = []
    for name, way in (("renormalised", True), ("unnormalised", False)) if edges else ((asked.replacement, True),):
        said = f"cutting {asked.each}s" + (f", {name}" if edges else "")
        variants = [uncut.variant([cut], renormalised=way) for cut in cuts]
        effects.append(uncut.effects(name, variants, said, weights))
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
            "edge": "Weight α that the query gives to the key.",
        }[asked.each],
        effects=effects,
        notes=notes,
    )


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
    uncut = bench.run_uncut(cuts, len(cuts))
    weights = np.array([uncut.weight(cut) for cut in cuts], dtype=np.float32)
    effects = []
    for name, way in (("renormalised", True), ("unnormalised", False)):
        variants = [uncut.variant([cut], renormalised=way) for cut in cuts]
        effects.append(uncut.effects(name, variants, f"cutting spans, {name}", weights))
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


@dataclass(frozen=True)
class Bench:
    """One text of one model, planned.

    Attributes:
        run: What the user asked.
        asked: What is cut.
        source: The model.
        session: Loads it.
        text: The text.
        positions: Where predictions and hidden states are compared.
        notes: On text and positions.
        targets: Ids of the tokens whose log-probability is compared, one for each position; empty for none.
    """

    run: RunConfig
    asked: AblationOptions
    source: ModelSource
    session: Session
    text: TextPlan
    positions: list[int]
    notes: list[str]
    targets: Sequence[int] = ()

    @classmethod
    def of(
        cls, run: RunConfig, asked: AblationOptions, progress: ProgressCallback | None, session: Session | None
    ) -> "Bench":
        """Open the model and make tokens of the text."""
        session = session or Session(run.texts, progress)
        source, run = session.open(run)
        source.require_model("ablation")
        text = plan_one(run, source)
        positions, notes = compared_positions(asked, run, source, text)
        return cls(run, asked, source, session, text, positions, [*text.notes, *notes])

    def run_uncut(self, cuts: Sequence[Cut], count: int) -> "Uncut":
        """Run the text without cuts, and see what cuts take away.

        Args:
            cuts: What will be cut.
            count: Variants in all.
        """
        c, text = self.source.config, self.text
        reference = plan_reference(self.asked, self.run, self.source)
        self.notes.extend([] if reference is None else reference.notes)
        sides = len(text.tokens), len(text.context or text.tokens)
        kept = kept_bytes(cuts, sides, (c.n_heads, c.d_value))
        plan, of_reference, at_once = plan_variants(
            self.run, self.source, (text, reference), count, kept, len(self.positions)
        )
        return self.run_planned(cuts, (plan, of_reference), self.session.load(plan, len(cuts)), at_once)

    def run_planned(
        self,
        cuts: Sequence[Cut],
        plans: tuple[RunPlan, RunPlan | None],
        loaded: "tuple[LoadedModel, torch.device]",
        at_once: int,
    ) -> "Uncut":
        """Run passes that are already planned; see `run_uncut`.

        Args:
            cuts: What will be cut.
            plans: The pass over the text, and that over the reference text, if there is one.
            loaded: The model, and its device.
            at_once: Variants that run side by side.
        """
        (plan, of_reference), (model, device), c = plans, loaded, self.source.config
        from attnscope.studies.ablate.effects import Baseline
        from attnscope.studies.ablate.seen import Seen

        batch, engine = prepare(plan, model, device)
        check = memory_check(plan, batch)
        means = self.asked.replacement == "mean" and any(cut.queries is None for cut in cuts)
        seen = Seen(batch, cuts, (c.n_heads, c.d_value), means=means and of_reference is None)

        def done(n: int, total: int) -> None:
            check()
            self.session.on_progress("running without cuts", n, total)

        uncut = engine.run_uncut(batch, seen.recorders, done)
        outputs = seen.mean_outputs()
        if means and of_reference is not None:
            theirs, other = prepare(of_reference, model, device)
            whole = [cut for cut in cuts if cut.queries is None]  # edges refer to the text, not to the reference
            averaged = Seen(theirs, whole, (c.n_heads, c.d_value), means=True)
            other.forward(theirs, averaged.recorders, lambda n, total: check())
            outputs = averaged.mean_outputs()
        baseline = Baseline.of(engine, uncut.hidden, self.positions, predicts=self.source.predicts is not None)
        return Uncut(self, engine, uncut, baseline, seen, outputs, at_once, device, check)


@dataclass(frozen=True)
class Uncut:
    """What a text gives without cuts, and how it runs with them.

    Attributes:
        bench: The text and the model.
        engine: The model under its mask.
        ran: The run without cuts.
        baseline: Predictions and final hidden states without cuts.
        seen: Weights without cuts.
        outputs: Replacement for the output of cut heads; see effects.make_variant.
        at_once: Variants that run side by side.
        device: Where the model runs.
        check: Stops a run that takes more memory than it may.
    """

    bench: Bench
    engine: "Engine"
    ran: "UncutRun"
    baseline: "Baseline"
    seen: "Seen"
    outputs: "Mapping[int, Tensor]"
    at_once: int
    device: "torch.device"
    check: Callable[[], None]

    def header(self) -> dict[str, Any]:
        """Return what every report of a text begins with."""
        run, source, text = self.bench.run, self.bench.source, self.bench.text
        mask = describe_mask_use(source, run, self.engine.describe_mask())
        written = run.texts[0]
        return {
            "provenance": provenance(source, run, self.device),
            "mask": mask,
            "text": written.text,
            "pair": written.pair,
            "tokens": text.tokens,
            "context": text.context,
        }

    def variant(self, cuts: Sequence[Cut], *, renormalised: bool) -> "Variant":
        """Return cuts as the engine takes them."""
        from attnscope.studies.ablate.effects import make_variant

        return make_variant(cuts, renormalised=renormalised, outputs=self.outputs)

    def weight(self, cut: Cut) -> float:
        """Return the weight of what is cut; see report.ablation.CutPart."""
        return self.seen.weight(cut)

    def chunks(
        self, variants: "Sequence[Variant]", said: str, rows: Sequence[int] | None = None
    ) -> "Iterator[tuple[list[int], Tensor]]":
        """Run variants side by side, as many as fit.

        Args:
            variants: The variants.
            said: Name of the step, for progress.
            rows: Positions whose final states are wanted, ascending; None for all.

        Yields:
            Places of some variants, and their final hidden states, (V, rows, D).
        """
        order = sorted(range(len(variants)), key=lambda n: min(variants[n]))
        for first in range(0, len(order), self.at_once):
            places = order[first : first + self.at_once]

            def progress(done: int, total: int, first: int = first, count: int = len(places)) -> None:
                self.check()
                self.bench.session.on_progress(said, 100 * first + 100 * count * done // total, 100 * len(order))

            yield places, self.ran.run([variants[n] for n in places], progress, rows)

    def compare(self, names: Sequence[str], after: "Sequence[Tensor]") -> list[CutEffect]:
        """Return what each of a few variants, (T, D), changes; predictions of all of them list the same tokens."""
        found = []
        predictions = self._predictions(after)
        for n, (how, hidden) in enumerate(zip(names, after, strict=True)):
            cosine, change, _ = (one[0].float().cpu().numpy() for one in self.baseline.compare_hidden(hidden[None]))
            found.append(CutEffect(how, cosine, change, [changes[n] for changes in predictions]))
        return found

    def _predictions(self, after: "Sequence[Tensor]") -> list[list[PredictionChange]]:
        """Return what changes at each position under each variant."""
        if self.baseline.log_probabilities is None:
            return []
        from attnscope.studies.ablate.effects import log_softmax

        positions, found = list(self.bench.positions), []
        divergence = [self.baseline.divergence(hidden[None, positions])[0].tolist() for hidden in after]
        logs = [log_softmax(self.engine, hidden[positions]).cpu().numpy() for hidden in after]
        for n, (position, old) in enumerate(zip(positions, self.baseline.log_probabilities.cpu().numpy(), strict=True)):
            ids = dict.fromkeys(number for one in (old, *(each[n] for each in logs)) for number in _most_probable(one))
            found.append(
                [
                    PredictionChange(position, kl[n], [self._change(number, old, each[n]) for number in ids])
                    for kl, each in zip(divergence, logs, strict=True)
                ]
            )
        return found

    def _change(self, number: int, old: Array, new: Array) -> TokenChange:
        """Return how one token's probability changes."""
        change = float((new[number] - old[number]) / np.log(2.0))
        before, after = (float(np.exp(each[number])) for each in (old, new))
        return TokenChange(number, *self.bench.source.tokenizer.spelled(number), before, after, change)

    def effects(self, how: str, variants: "Sequence[Variant]", said: str, weights: Array) -> Effects:
        """Return what every variant changes."""
        hidden_change = np.empty(len(variants), np.float32)
        kl = None if self.baseline.log_probabilities is None else np.empty(len(variants), np.float32)
        before = self.log_probability
        loss = None if before is None else np.empty(len(variants), np.float32)
        rows = self.bench.positions or None
        for places, hidden in self.chunks(variants, said, rows):
            hidden_change[places] = self.baseline.compare_hidden(hidden, rows)[2].nanmean(1).float().cpu().numpy()
            if kl is not None:
                kl[places] = self.baseline.divergence(hidden).mean(1).float().cpu().numpy()
            if loss is not None and before is not None:
                after = self.baseline.log_probability(hidden, self.bench.targets)
                loss[places] = (before - after).float().cpu().numpy()
            self.check()
        effects = Effects(how, kl, hidden_change, None, loss)
        return replace(effects, correlation=rank_correlation(weights, effects.effect))

    @property
    def log_probability(self) -> float | None:
        """Log-probability of the bench's targets without cuts, in bits; None for none."""
        known, targets = self.baseline.log_probabilities, self.bench.targets
        if known is None or not targets:
            return None
        return float(sum(known[n, target] for n, target in enumerate(targets)) / np.log(2.0))


def _most_probable(log_probabilities: Array) -> list[int]:
    """Return the ids of the most probable tokens; of equal ones, the first."""
    found: list[int] = np.argsort(-log_probabilities, kind="stable")[:PREDICTED].tolist()
    return found
