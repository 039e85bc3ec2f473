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
from attnscope.studies.ablate.ablation_run import AblationRun
from attnscope.studies.ablate.other_texts import plan_others, replacing
from attnscope.studies.ablate.plan import kept_bytes, plan_variants

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnscope.engines.protocol import Engine, LoadedModel, UncutRun
    from attnscope.model.cuts import Variant
    from attnscope.studies.ablate.uncut_states import UncutStates
    from attnscope.studies.ablate.uncut_weights import UncutWeights

Array = np.ndarray[Any, np.dtype[Any]]
Way = tuple[str, bool]  # how it is cut (see CutEffect), and whether edges are renormalised


def run_uncut(ablation: AblationRun, cuts: Sequence[Cut], count: int) -> "Baseline":
    """Run the text without cuts, and record what the cuts will replace.

    Args:
        ablation: The text and the model.
        cuts: What will be cut.
        count: Number of variants that will run; sizes the pass.
    """
    c, text, options = ablation.source.config, ablation.text, ablation.options
    other_texts = plan_others(options, ablation.run, ablation.source, text)
    ablation.notes.extend(note for other in other_texts for note in other.notes)
    sides = len(text.tokens), len(text.context or text.tokens)
    kept = kept_bytes(cuts, sides, (c.n_heads, c.d_value), from_others=options.from_others)
    plans = plan_variants(ablation.run, ablation.source, (text, other_texts), count, kept, len(ablation.positions))
    loaded = ablation.session.load(plans[0], len(cuts) * max(1, len(other_texts)))
    return run_planned(ablation, cuts, plans, loaded)


def run_planned(
    ablation: AblationRun,
    cuts: Sequence[Cut],
    plans: tuple[RunPlan, Sequence[RunPlan], int],
    loaded: "tuple[LoadedModel, torch.device]",
) -> "Baseline":
    """Run passes that are planned already; see `run_uncut`.

    Args:
        ablation: The text and the model.
        cuts: What will be cut.
        plans: The pass over the text, passes over other texts, and the number of variants that run side by side.
        loaded: The model, and its device.
    """
    (plan, other_plans, at_once), (model, device), c = plans, loaded, ablation.source.config
    from attnscope.studies.ablate.uncut_states import UncutStates
    from attnscope.studies.ablate.uncut_weights import UncutWeights

    batch, engine = prepare(plan, model, device)
    check = memory_check(plan, batch)
    means = ablation.options.how == "mean" and any(cut.queries is None for cut in cuts)
    uncut_weights = UncutWeights(batch, cuts, (c.n_heads, c.d_value), means=means and not other_plans)

    def done(n: int, total: int) -> None:
        check()
        ablation.session.on_progress("running without cuts", n, total)

    ran = engine.run_uncut(batch, uncut_weights.recorders, done)
    outputs = uncut_weights.mean_outputs()
    if means and other_plans:
        reference_batch, reference_engine = prepare(other_plans[0], model, device)
        head_cuts = [cut for cut in cuts if cut.queries is None]  # edges refer to the text, not to the reference
        averaged = UncutWeights(reference_batch, head_cuts, (c.n_heads, c.d_value), means=True)
        reference_engine.forward(reference_batch, averaged.recorders, lambda n, total: check())
        outputs = averaged.mean_outputs()
    uncut_states = UncutStates.of(engine, ran.hidden, ablation.positions, predicts=ablation.source.predicts is not None)
    baseline = Baseline(
        ablation, cuts, engine, ran, uncut_states, uncut_weights, outputs, at_once, (model, device), check
    )
    return replace(baseline, replacement_plans=other_plans) if ablation.options.from_others else baseline


@dataclass(frozen=True)
class Baseline:
    """A text's states, weights and predictions without cuts, and the means to run it with cuts.

    Attributes:
        ablation: The text and the model.
        cuts: What will be cut.
        engine: The model under its mask.
        outputs: Mean outputs that replace those of cut heads, by layer.
        at_once: Number of variants that run side by side.
        loaded: The model, and its device.
        check: Raises once the run holds more memory than allowed.
        replacement_plans: Passes over the texts that replacements come from; empty for zeros and means.
    """

    ablation: AblationRun
    cuts: Sequence[Cut]
    engine: "Engine"
    ran: "UncutRun"
    uncut_states: "UncutStates"
    uncut_weights: "UncutWeights"
    outputs: "Mapping[int, Tensor]"
    at_once: int
    loaded: "tuple[LoadedModel, torch.device]"
    check: Callable[[], None]
    replacement_plans: Sequence[RunPlan] = ()

    def header(self) -> dict[str, Any]:
        """Return the fields that every report of a text begins with."""
        run, source, text = self.ablation.run, self.ablation.source, self.ablation.text
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
            "replacing": replacing(self.ablation.options, [plan.text_plans[0] for plan in self.replacement_plans]),
        }

    def _targets(self) -> list[LogitTarget]:
        """Return the tokens whose logits are compared, with their logits without cuts."""
        ids, logits = self.ablation.targets, []
        if not ids:
            return []
        for hidden in (self.ran.hidden, self._other_hidden()):
            logits.append([None] * len(ids) if hidden is None else self._logits(hidden[:, self.ablation.positions])[0])
        spelled = self.ablation.source.tokenizer.spelled
        return [
            LogitTarget(number, *spelled(number), float(logit), None if other is None else float(other))
            for number, logit, other in zip(ids, *logits, strict=True)
        ]

    def _other_hidden(self) -> "Tensor | None":
        """Return the final states of the text that is patched from, (1, T, D); None for other replacements."""
        if self.ablation.options.how != "patch":
            return None
        batch, engine = prepare(self.replacement_plans[0], *self.loaded)
        return engine.forward(batch, {}, lambda n, total: self.check(), final=True)

    def _logits(self, hidden: "Tensor") -> Array:
        """Return the logit of every target, averaged over positions, (V, targets), from final states (V, P, D)."""
        from attnscope.studies.ablate.uncut_states import target_logits

        logits: Array = target_logits(self.engine, hidden, self.ablation.targets).cpu().numpy()
        return logits

    def _change_of_target(self, hidden: "Tensor") -> Array:
        """Return the change of the target's logit, or of the difference of two, (V,), from final states (V, P, D)."""
        both = [self._logits(rows) for rows in (hidden, self.ran.hidden[:, self.ablation.positions])]
        after, before = (logits[:, 0] - (logits[:, 1] if logits.shape[1] > 1 else 0.0) for logits in both)
        change: Array = after - before
        return change

    def replacements(self) -> "Iterator[Replacement]":
        """Yield one replacement for the cut outputs, or one for each draw."""
        from attnscope.studies.ablate.replacing import FixedOutputs, OtherText

        if not self.replacement_plans:
            yield FixedOutputs(self.outputs)
        for plan in self.replacement_plans:
            batch, engine = prepare(plan, *self.loaded)
            other = OtherText(batch, self.cuts)
            engine.forward(batch, other.recorders, lambda n, total: self.check())
            yield other

    def weight(self, cut: Cut) -> float:
        """Return the weight that the cut removes; see `CutPart`."""
        return self.uncut_weights.weight(cut)

    def chunks(
        self, variants: "Sequence[Variant]", step: str, rows: Sequence[int] | None = None
    ) -> "Iterator[tuple[list[int], Tensor]]":
        """Run variants, as many side by side as memory allows.

        Args:
            step: Name of the step, for progress.
            rows: Positions whose final states are returned, ascending; None for all.

        Yields:
            Places of some variants, and their final hidden states, (V, rows, D).
        """
        order = sorted(range(len(variants)), key=lambda n: min(variants[n]))
        for first in range(0, len(order), self.at_once):
            places = order[first : first + self.at_once]

            def progress(done: int, total: int, first: int = first, count: int = len(places)) -> None:
                self.check()
                self.ablation.session.on_progress(step, 100 * first + 100 * count * done // total, 100 * len(order))

            yield places, self.ran.run([variants[n] for n in places], progress, rows)

    def compare(self, cuts: Sequence[Cut], ways: Sequence[Way]) -> list[CutEffect]:
        """Return the effect of all cuts together, for each way to cut.

        Predictions list the same tokens for all ways.
        """
        after: list[list[Tensor]] = [[] for _ in ways]  # (T, D) of each replacement
        for replacement in self.replacements():
            variants = [make_variant(cuts, renormalised=way, replacement=replacement) for _, way in ways]
            for places, hidden in self.chunks(variants, "cutting"):
                for place, states in zip(places, hidden, strict=True):
                    after[place].append(states)
        effects, predictions = [], self._predictions(after)
        for n, ((how, _), given) in enumerate(zip(ways, after, strict=True)):
            compared = [self.uncut_states.compare_hidden(states[None]) for states in given]
            cosine, change = (
                np.mean([measures[part][0].float().cpu().numpy() for measures in compared], axis=0) for part in (0, 1)
            )
            rows = list(self.ablation.positions)
            moved = [self._change_of_target(states[None, rows])[0] for states in given if self.ablation.targets]
            target = float(np.mean(moved)) if moved else None
            effects.append(CutEffect(how, cosine, change, [changes[n] for changes in predictions], target))
        return effects

    def _predictions(self, after: "Sequence[Sequence[Tensor]]") -> list[list[PredictionChange]]:
        """Return the change at each position under each variant, averaged over replacements."""
        if self.uncut_states.log_probabilities is None:
            return []
        from attnscope.studies.ablate.uncut_states import log_softmax

        positions, changes = list(self.ablation.positions), []
        divergence = [
            np.mean(
                [self.uncut_states.divergence(states[None, positions])[0].tolist() for states in states_list], axis=0
            ).tolist()
            for states_list in after
        ]
        logs = [
            _log_mean([log_softmax(self.engine, states[positions]).cpu().numpy() for states in states_list])
            for states_list in after
        ]
        for n, (position, old) in enumerate(
            zip(positions, self.uncut_states.log_probabilities.cpu().numpy(), strict=True)
        ):
            ids = dict.fromkeys(
                number
                for log_probabilities in (old, *(logs_after[n] for logs_after in logs))
                for number in np.argsort(-log_probabilities, kind="stable")[:PREDICTED].tolist()
            )
            changes.append(
                [
                    PredictionChange(position, kl[n], [self._change(number, old, logs_after[n]) for number in ids])
                    for kl, logs_after in zip(divergence, logs, strict=True)
                ]
            )
        return changes

    def _change(self, number: int, old: Array, new: Array) -> TokenChange:
        """Return the change of one token's probability."""
        change = float((new[number] - old[number]) / np.log(2.0))
        before, after = (float(np.exp(logs[number])) for logs in (old, new))
        return TokenChange(number, *self.ablation.source.tokenizer.spelled(number), before, after, change)

    def effects(self, way: Way, cuts: Sequence[Cut], step: str, weights: Array) -> Effects:
        """Return the effect of each cut made alone, averaged over replacements."""
        parts = []
        for replacement in self.replacements():
            variants = [make_variant([cut], renormalised=way[1], replacement=replacement) for cut in cuts]
            parts.append(self._measure(variants, step))
        means = {name: np.mean([part[name] for part in parts], axis=0).astype(np.float32) for name in parts[0]}
        effects = Effects(way[0], means.get("kl"), means["hidden"], None, means.get("loss"), means.get("target"))
        return msgspec.structs.replace(effects, correlation=rank_correlation(weights, effects.strength))

    def _measure(self, variants: "Sequence[Variant]", step: str) -> dict[str, Array]:
        """Return the effect of each variant, by measure."""
        before, names = self.log_probability, ["hidden"]
        names += ["kl"] if self.uncut_states.log_probabilities is not None else []
        names += ["loss"] if before is not None else []
        names += ["target"] if self.ablation.targets else []
        measures = {name: np.empty(len(variants)) for name in names}
        rows = self.ablation.positions or None
        for places, hidden in self.chunks(variants, step, rows):
            measures["hidden"][places] = self.uncut_states.compare_hidden(hidden, rows)[2].nanmean(1).cpu().numpy()
            if "kl" in measures:
                measures["kl"][places] = self.uncut_states.divergence(hidden).mean(1).cpu().numpy()
            if before is not None:
                after = self.uncut_states.log_probability(hidden, self.ablation.answer)
                measures["loss"][places] = (before - after).cpu().numpy()
            if "target" in measures:
                measures["target"][places] = self._change_of_target(hidden)
            self.check()
        return measures

    @property
    def log_probability(self) -> float | None:
        """Log-probability of the answer without cuts, in bits; None without an answer."""
        known, targets = self.uncut_states.log_probabilities, self.ablation.answer
        if known is None or not targets:
            return None
        return float(sum(known[n, target] for n, target in enumerate(targets)) / np.log(2.0))


def _log_mean(logs: Sequence[Array]) -> Array:
    """Return the logarithm of the mean probability, from logarithms."""
    if len(logs) == 1:
        return logs[0]
    mean: Array = np.logaddexp.reduce(logs, axis=0) - np.log(len(logs))
    return mean
