"""Run a text without cuts, and again with each of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from attnscope.findings.ablation import (
    CutEffect,
    Effects,
    LogitTarget,
    PredictionChange,
    TokenChange,
    rank_correlation,
)
from attnscope.findings.predictions import PREDICTED
from attnscope.run.cut_plan import Cut, Replacement, make_variant
from attnscope.run.plan import RunPlan
from attnscope.run.session import describe_mask_use, memory_check, prepare, provenance
from attnscope.studies.ablate.bench import Bench
from attnscope.studies.ablate.others import plan_others, replacing
from attnscope.studies.ablate.plan import kept_bytes, plan_variants

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnscope.engines.protocol import Engine, LoadedModel, UncutRun
    from attnscope.model.cuts import Variant
    from attnscope.studies.ablate.effects import Baseline
    from attnscope.studies.ablate.seen import Seen

Array = np.ndarray[Any, np.dtype[Any]]
Way = tuple[str, bool]  # how it is cut (see CutEffect), and whether edges are renormalised


def run_uncut(bench: Bench, cuts: Sequence[Cut], count: int) -> "Uncut":
    """Run the text without cuts, and see what cuts take away.

    Args:
        bench: The text and the model.
        cuts: What will be cut.
        count: Variants in all.
    """
    c, text, asked = bench.source.config, bench.text, bench.asked
    others = plan_others(asked, bench.run, bench.source, text)
    bench.notes.extend(note for other in others for note in other.notes)
    sides = len(text.tokens), len(text.context or text.tokens)
    kept = kept_bytes(cuts, sides, (c.n_heads, c.d_value), others=asked.from_others)
    plans = plan_variants(bench.run, bench.source, (text, others), count, kept, len(bench.positions))
    loaded = bench.session.load(plans[0], len(cuts) * max(1, len(others)))
    return run_planned(bench, cuts, plans, loaded)


def run_planned(
    bench: Bench,
    cuts: Sequence[Cut],
    plans: tuple[RunPlan, Sequence[RunPlan], int],
    loaded: "tuple[LoadedModel, torch.device]",
) -> "Uncut":
    """Run passes that are already planned; see `run_uncut`.

    Args:
        bench: The text and the model.
        cuts: What will be cut.
        plans: The pass over the text, those over texts that replacements come from, and how many variants run side by
            side.
        loaded: The model, and its device.
    """
    (plan, of_others, at_once), (model, device), c = plans, loaded, bench.source.config
    from attnscope.studies.ablate.effects import Baseline
    from attnscope.studies.ablate.seen import Seen

    batch, engine = prepare(plan, model, device)
    check = memory_check(plan, batch)
    means = bench.asked.how == "mean" and any(cut.queries is None for cut in cuts)
    seen = Seen(batch, cuts, (c.n_heads, c.d_value), means=means and not of_others)

    def done(n: int, total: int) -> None:
        check()
        bench.session.on_progress("running without cuts", n, total)

    ran = engine.run_uncut(batch, seen.recorders, done)
    outputs = seen.mean_outputs()
    if means and of_others:
        theirs, other = prepare(of_others[0], model, device)
        whole = [cut for cut in cuts if cut.queries is None]  # edges refer to the text, not to the reference
        averaged = Seen(theirs, whole, (c.n_heads, c.d_value), means=True)
        other.forward(theirs, averaged.recorders, lambda n, total: check())
        outputs = averaged.mean_outputs()
    baseline = Baseline.of(engine, ran.hidden, bench.positions, predicts=bench.source.predicts is not None)
    uncut = Uncut(bench, cuts, engine, ran, baseline, seen, outputs, at_once, (model, device), check)
    return replace(uncut, others=of_others) if bench.asked.from_others else uncut


@dataclass(frozen=True)
class Uncut:
    """What a text gives without cuts, and how it runs with them.

    Attributes:
        bench: The text and the model.
        cuts: What will be cut.
        engine: The model under its mask.
        ran: The run without cuts.
        baseline: Predictions and final hidden states without cuts.
        seen: Weights without cuts.
        outputs: Mean outputs that replace those of cut heads; see replacing.FixedOutputs.
        at_once: Variants that run side by side.
        loaded: The model, and its device.
        check: Stops a run that takes more memory than it may.
        others: Passes over the texts that replacements come from; empty for 0 and means.
    """

    bench: Bench
    cuts: Sequence[Cut]
    engine: "Engine"
    ran: "UncutRun"
    baseline: "Baseline"
    seen: "Seen"
    outputs: "Mapping[int, Tensor]"
    at_once: int
    loaded: "tuple[LoadedModel, torch.device]"
    check: Callable[[], None]
    others: Sequence[RunPlan] = ()

    def header(self) -> dict[str, Any]:
        """Return what every report of a text begins with."""
        run, source, text = self.bench.run, self.bench.source, self.bench.text
        mask = describe_mask_use(source, run, self.engine.describe_mask())
        written = run.texts[0]
        return {
            "provenance": provenance(source, run, self.loaded[1]),
            "mask": mask,
            "text": written.text,
            "pair": written.pair,
            "tokens": text.tokens,
            "context": text.context,
            "targets": self._targets(),
            "replacing": replacing(self.bench.asked, [plan.text_plans[0] for plan in self.others]),
        }

    def _targets(self) -> list[LogitTarget]:
        """Return the tokens whose logits are compared, with what they are without cuts."""
        ids, found = self.bench.targets, []
        if not ids:
            return []
        for hidden in (self.ran.hidden, self._other_hidden()):
            found.append([None] * len(ids) if hidden is None else self._logits(hidden[:, self.bench.positions])[0])
        spelled = self.bench.source.tokenizer.spelled
        return [
            LogitTarget(number, *spelled(number), float(logit), None if other is None else float(other))
            for number, logit, other in zip(ids, *found, strict=True)
        ]

    def _other_hidden(self) -> "Tensor | None":
        """Return the final states of the text that is patched from, (1, T, D); None for other replacements."""
        if self.bench.asked.how != "patch":
            return None
        batch, engine = prepare(self.others[0], *self.loaded)
        return engine.forward(batch, {}, lambda n, total: self.check(), final=True)

    def _logits(self, hidden: "Tensor") -> Array:
        """Return the mean logit of every target over positions, (V, targets), of final states (V, P, D)."""
        from attnscope.studies.ablate.effects import target_logits

        logits: Array = target_logits(self.engine, hidden, self.bench.targets).cpu().numpy()
        return logits

    def _change_of_target(self, hidden: "Tensor") -> Array:
        """Return the change of the target's logit, or of the difference of two, (V,), of final states (V, P, D)."""
        both = [self._logits(rows) for rows in (hidden, self.ran.hidden[:, self.bench.positions])]
        after, before = (logits[:, 0] - (logits[:, 1] if logits.shape[1] > 1 else 0.0) for logits in both)
        change: Array = after - before
        return change

    def replacements(self) -> "Iterator[Replacement]":
        """Yield what takes the place of what is cut: of draws, what each of them gives."""
        from attnscope.studies.ablate.replacing import FixedOutputs, OtherText

        if not self.others:
            yield FixedOutputs(self.outputs)
        for plan in self.others:
            batch, engine = prepare(plan, *self.loaded)
            other = OtherText(batch, self.cuts)
            engine.forward(batch, other.recorders, lambda n, total: self.check())
            yield other

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

    def compare(self, cuts: Sequence[Cut], ways: Sequence[Way]) -> list[CutEffect]:
        """Return what all cuts together change in each way; predictions under all of them list the same tokens."""
        after: list[list[Tensor]] = [[] for _ in ways]  # (T, D) of each replacement
        for replacement in self.replacements():
            variants = [make_variant(cuts, renormalised=way, replacement=replacement) for _, way in ways]
            for places, hidden in self.chunks(variants, "cutting"):
                for place, states in zip(places, hidden, strict=True):
                    after[place].append(states)
        found, predictions = [], self._predictions(after)
        for n, ((how, _), given) in enumerate(zip(ways, after, strict=True)):
            compared = [self.baseline.compare_hidden(states[None]) for states in given]
            cosine, change = (
                np.mean([one[part][0].float().cpu().numpy() for one in compared], axis=0) for part in (0, 1)
            )
            rows = list(self.bench.positions)
            moved = [self._change_of_target(states[None, rows])[0] for states in given if self.bench.targets]
            target = float(np.mean(moved)) if moved else None
            found.append(CutEffect(how, cosine, change, [changes[n] for changes in predictions], target))
        return found

    def _predictions(self, after: "Sequence[Sequence[Tensor]]") -> list[list[PredictionChange]]:
        """Return what changes at each position under each variant, averaged over replacements."""
        if self.baseline.log_probabilities is None:
            return []
        from attnscope.studies.ablate.effects import log_softmax

        positions, found = list(self.bench.positions), []
        divergence = [
            np.mean([self.baseline.divergence(states[None, positions])[0].tolist() for states in some], axis=0).tolist()
            for some in after
        ]
        logs = [
            _log_mean([log_softmax(self.engine, states[positions]).cpu().numpy() for states in some]) for some in after
        ]
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

    def effects(self, way: Way, cuts: Sequence[Cut], said: str, weights: Array) -> Effects:
        """Return what every cut alone changes, averaged over replacements.

        Args:
            way: How it is cut.
            cuts: The cuts.
            said: Name of the step, for progress.
            weights: Weight of each cut.
        """
        parts = []
        for replacement in self.replacements():
            variants = [make_variant([cut], renormalised=way[1], replacement=replacement) for cut in cuts]
            parts.append(self._measure(variants, said))
        means = {name: np.mean([one[name] for one in parts], axis=0).astype(np.float32) for name in parts[0]}
        effects = Effects(way[0], means.get("kl"), means["hidden"], None, means.get("loss"), means.get("target"))
        return msgspec.structs.replace(effects, correlation=rank_correlation(weights, effects.strength))

    def _measure(self, variants: "Sequence[Variant]", said: str) -> dict[str, Array]:
        """Return what every variant changes, by the name of the measure."""
        before, names = self.log_probability, ["hidden"]
        names += ["kl"] if self.baseline.log_probabilities is not None else []
        names += ["loss"] if before is not None else []
        names += ["target"] if self.bench.targets else []
        found = {name: np.empty(len(variants)) for name in names}
        rows = self.bench.positions or None
        for places, hidden in self.chunks(variants, said, rows):
            found["hidden"][places] = self.baseline.compare_hidden(hidden, rows)[2].nanmean(1).cpu().numpy()
            if "kl" in found:
                found["kl"][places] = self.baseline.divergence(hidden).mean(1).cpu().numpy()
            if before is not None:
                after = self.baseline.log_probability(hidden, self.bench.answer)
                found["loss"][places] = (before - after).cpu().numpy()
            if "target" in found:
                found["target"][places] = self._change_of_target(hidden)
            self.check()
        return found

    @property
    def log_probability(self) -> float | None:
        """Log-probability of the answer without cuts, in bits; None for none."""
        known, targets = self.baseline.log_probabilities, self.bench.answer
        if known is None or not targets:
            return None
        return float(sum(known[n, target] for n, target in enumerate(targets)) / np.log(2.0))


def _most_probable(log_probabilities: Array) -> list[int]:
    """Return the ids of the most probable tokens; of equal ones, the first."""
    found: list[int] = np.argsort(-log_probabilities, kind="stable")[:PREDICTED].tolist()
    return found


def _log_mean(logs: Sequence[Array]) -> Array:
    """Return the logarithm of the mean of probabilities whose logarithms are given."""
    if len(logs) == 1:
        return logs[0]
    mean: Array = np.logaddexp.reduce(logs, axis=0) - np.log(len(logs))
    return mean
