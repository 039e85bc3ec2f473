"""Run a text without cuts, and again with each of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from attnscope.findings.ablation import (
    CutEffect,
    Effects,
    LogitTarget,
    PredictionChange,
    Replacing,
    TokenChange,
    rank_correlation,
)
from attnscope.findings.arrays import Array
from attnscope.findings.predictions import PREDICTED
from attnscope.run.cut_plan import Cut, Replacement, make_variant
from attnscope.run.plan import RunPlan
from attnscope.run.session import describe_mask_use, memory_check, prepare, provenance
from attnscope.studies.ablate.other_texts import plan_others
from attnscope.studies.ablate.plan import AblationRun, kept_bytes, plan_variants

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnscope.engines.protocol import LoadedModel
    from attnscope.model.cuts import Variant

Way = tuple[str, bool]  # how it is cut (see CutEffect), and whether edges are renormalised


def run_uncut(ablation: AblationRun, cuts: Sequence[Cut], count: int) -> "Baseline":
    """Run the text without cuts, and record what the cuts will replace; `count` variants will run, in passes."""
    c = ablation.source.config
    text = ablation.text
    other_texts = plan_others(ablation)
    for other in other_texts:
        ablation.notes.extend(other.notes)
        text.warnings.extend(other.warnings)
    sides = len(text.tokens), len(text.context or text.tokens)
    record_bytes = kept_bytes(
        cuts, sides, (c.n_heads, c.d_value), from_others=ablation.options.from_others
    )
    plans = plan_variants(ablation, other_texts, count, record_bytes)
    loaded = ablation.session.load(plans[0], len(cuts) * max(1, len(other_texts)))
    return Baseline(ablation, cuts, plans, loaded)


@dataclass(frozen=True)
class PositionEffects:
    """What each of some cuts changes at every compared position, float32."""

    hidden: Array  # relative change of the final hidden state, (cuts, positions)
    # KL(before ‖ after) of the prediction in bits, (cuts, positions); None without an output head
    kl: Array | None = None
    token_ids: Sequence[int] = ()  # most probable token without a cut, of every position
    before: Array | None = None  # its probability, (positions,)
    after: Array | None = None  # the same under every cut, (cuts, positions)


class Baseline:
    """A text's states, weights and predictions without cuts, and the means to run it with cuts.

    `plans` are those of the text, of other texts, and the number of variants that run side by side.
    """

    def __init__(
        self,
        ablation: AblationRun,
        cuts: Sequence[Cut],
        plans: tuple[RunPlan, Sequence[RunPlan], int],
        loaded: "tuple[LoadedModel, torch.device]",
    ) -> None:
        from attnscope.studies.ablate.replacing import UncutWeights
        from attnscope.studies.ablate.uncut_states import UncutStates

        plan, other_plans, self._at_once = plans
        c = ablation.source.config
        self._ablation = ablation
        self._cuts = cuts
        self._loaded = loaded
        # passes over the texts that replacements come from; none for zeros and means
        self._replacement_plans = other_plans if ablation.options.from_others else ()
        self._plan = plan
        batch, self._engine = prepare(plan, *loaded)
        self._check = memory_check(plan, batch)
        means = ablation.options.how == "mean" and any(cut.queries is None for cut in cuts)
        width = c.n_heads, c.d_value
        self.uncut_weights = UncutWeights(batch, cuts, width, means=means and not other_plans)
        self._ran = self._engine.run_uncut(
            batch,
            self.uncut_weights.recorders,
            lambda n, total: self._advance("running without cuts", n, total),
        )
        self._outputs = self.uncut_weights.mean_outputs()
        if means and other_plans:
            reference_batch, reference_engine = prepare(other_plans[0], *loaded)
            # edges refer to the text, not to the reference
            head_cuts = [cut for cut in cuts if cut.queries is None]
            averaged = UncutWeights(reference_batch, head_cuts, width, means=True)
            reference_engine.forward(
                reference_batch, averaged.recorders, lambda n, total: self._check()
            )
            self._outputs = averaged.mean_outputs()
        predicted = ablation.positions if ablation.source.predicts is not None else ()
        self.uncut_states = UncutStates(self._engine, self._ran.hidden[0], predicted)

    def _advance(self, step: str, done: int, total: int) -> None:
        """Check the memory, and report progress."""
        self._check()
        self._ablation.session.on_progress(step, done, total)

    def header(self) -> dict[str, Any]:
        """Return the fields that every report of a text begins with."""
        run = self._ablation.run
        source = self._ablation.source
        text = self._ablation.text
        options = self._ablation.options
        text_input = run.texts[0]
        replacing = None
        if options.from_others:
            tokens = [plan.text_plans[0].tokens for plan in self._replacement_plans]
            replacing = Replacing(
                options.patch_from, tokens, None if options.how == "patch" else options.seed or 0
            )
        return {
            "provenance": provenance(source, run, self._loaded[1], warnings=text.warnings),
            "mask": describe_mask_use(
                source, run, self._engine.describe_mask(), [text], self._plan.matrices
            ),
            "text": text_input.text,
            "pair": text_input.pair,
            "tokens": text.tokens,
            "context": text.context,
            "targets": self._targets(),
            "replacing": replacing,
        }

    def _targets(self) -> list[LogitTarget]:
        """Return the tokens whose logits are compared, with their logits without cuts and in the patched text."""
        ids = self._ablation.targets
        other = [None] * len(self._ablation.targets)
        if not ids:
            return []
        logits = self._logits(self._ran.hidden[:, self._ablation.positions])[0].tolist()
        if self._ablation.options.how == "patch":
            batch, engine = prepare(self._replacement_plans[0], *self._loaded)
            hidden = engine.forward(batch, {}, lambda n, total: self._check(), final=True)
            assert hidden is not None
            other = self._logits(hidden[:, self._ablation.positions])[0].tolist()
        spelled = self._ablation.source.tokenizer.spelled
        both = zip(ids, logits, other, strict=True)
        return [
            LogitTarget(token_id, *spelled(token_id), *of_token) for token_id, *of_token in both
        ]

    def _logits(self, hidden: "Tensor") -> Array:
        """Return the logit of every target, averaged over positions, (V, targets), from final states (V, P, D)."""
        logits: Array = (
            self.uncut_states.target_logits(hidden, self._ablation.targets).cpu().numpy()
        )
        return logits

    def _change_of_target(self, hidden: "Tensor") -> Array:
        """Return the change of the target's logit, or of the difference of two, (V,), from final states (V, P, D)."""
        both = [
            self._logits(rows) for rows in (hidden, self._ran.hidden[:, self._ablation.positions])
        ]
        after, before = (
            logits[:, 0] - (logits[:, 1] if logits.shape[1] > 1 else 0.0) for logits in both
        )
        change: Array = after - before
        return change

    def _replacements(self) -> "Iterator[Replacement]":
        """Yield one replacement for the cut outputs, or one for each draw."""
        from attnscope.studies.ablate.replacing import FixedOutputs, OtherText

        if not self._replacement_plans:
            yield FixedOutputs(self._outputs)
        for plan in self._replacement_plans:
            batch, engine = prepare(plan, *self._loaded)
            other = OtherText(batch, self._cuts)
            engine.forward(batch, other.recorders, lambda n, total: self._check())
            yield other

    def weights(self, cuts: Sequence[Cut]) -> Array:
        """Return the weight that each cut removes, float32; see `CutPart`."""
        return np.array([self.uncut_weights.weight(cut) for cut in cuts], dtype=np.float32)

    def _chunks(
        self,
        variants: "Sequence[Variant]",
        step: str,
        rows: Sequence[int] | None = None,
        share: int = 100,
    ) -> "Iterator[tuple[list[int], Tensor]]":
        """Run variants, as many side by side as memory allows.

        Yield the places of some variants, and their final hidden states at these ascending positions, (V, rows, D).

        Args:
            variants: What is cut.
            step: What the progress is of.
            rows: Positions whose states are wanted; None for all.
            share: Percent of the work on some variants that running them is.
        """
        order = sorted(range(len(variants)), key=lambda n: min(variants[n]))
        for start in range(0, len(order), self._at_once):
            places = order[start : start + self._at_once]

            def progress(
                done: int, total: int, chunk_start: int = start, count: int = len(places)
            ) -> None:
                self._advance(
                    step, 100 * chunk_start + share * count * done // total, 100 * len(order)
                )

            yield places, self._ran.run([variants[n] for n in places], progress, rows)

    def compare(self, cuts: Sequence[Cut], ways: Sequence[Way]) -> list[CutEffect]:
        """Return the effect of all cuts together, for each way to cut.

        Predictions list the same tokens for all ways.
        """
        after: list[list[Tensor]] = [[] for _ in ways]  # (T, D) of each replacement
        for replacement in self._replacements():
            variants = [
                make_variant(cuts, renormalised=way, replacement=replacement) for _, way in ways
            ]
            for places, hidden in self._chunks(variants, "cutting"):
                for index, states in zip(places, hidden, strict=True):
                    after[index].append(states)
        effects = []
        predictions = self._predictions(after)
        for n, ((how, _), hidden_states) in enumerate(zip(ways, after, strict=True)):
            compared = [
                self.uncut_states.compare_hidden(states[None])[:2] for states in hidden_states
            ]
            cosine, change = (
                np.mean([values[0].float().cpu().numpy() for values in of_part], axis=0)
                for of_part in zip(*compared, strict=True)
            )
            rows = list(self._ablation.positions)
            moved = [
                self._change_of_target(states[None, rows])[0]
                for states in hidden_states
                if self._ablation.targets
            ]
            target = float(np.mean(moved)) if moved else None
            effects.append(
                CutEffect(how, cosine, change, [changes[n] for changes in predictions], target)
            )
        return effects

    def _predictions(self, after: "Sequence[Sequence[Tensor]]") -> list[list[PredictionChange]]:
        """Return the change at each position under each variant, averaged over replacements."""
        before = self.uncut_states.log_probabilities
        if before is None:
            return []
        states = self.uncut_states
        positions = list(self._ablation.positions)
        changes = []
        divergence = []
        logs = []
        for hidden_list in after:
            rows = [hidden[positions] for hidden in hidden_list]
            divergence.append(
                np.mean(
                    [states.compare_predictions(hidden[None])[0][0].tolist() for hidden in rows],
                    axis=0,
                ).tolist()
            )
            logs.append(_log_mean([states.log_softmax(hidden).cpu().numpy() for hidden in rows]))
        for n, (position, old) in enumerate(zip(positions, before.cpu().numpy(), strict=True)):
            here = [logs_after[n] for logs_after in logs]
            best = [np.argsort(-logs, kind="stable")[:PREDICTED].tolist() for logs in (old, *here)]
            ids = dict.fromkeys(token_id for numbers in best for token_id in numbers)
            both = zip(divergence, here, strict=True)
            moved = [
                (kl[n], [self._change(token_id, old, new) for token_id in ids]) for kl, new in both
            ]
            changes.append([PredictionChange(position, *change) for change in moved])
        return changes

    def _change(self, token_id: int, old: Array, new: Array) -> TokenChange:
        change = float((new[token_id] - old[token_id]) / np.log(2.0))
        before, after = (float(np.exp(logs[token_id])) for logs in (old, new))
        return TokenChange(
            token_id, *self._ablation.source.tokenizer.spelled(token_id), before, after, change
        )

    def effects(self, way: Way, cuts: Sequence[Cut], step: str, weights: Array) -> Effects:
        """Return the effect of each cut made alone, averaged over replacements."""
        parts = []
        for replacement in self._replacements():
            variants = [
                make_variant([cut], renormalised=way[1], replacement=replacement) for cut in cuts
            ]
            means: dict[str, Array] = {}
            for places, measures in self._measures(variants, step):
                for name, values in measures.items():
                    of_variants = means.setdefault(name, np.empty(len(variants)))
                    of_variants[places] = (
                        (values.nanmean(1) if values.ndim > 1 else values).cpu().numpy()
                    )
            parts.append(means)
        averages = {
            name: np.mean([part[name] for part in parts], axis=0).astype(np.float32)
            for name in parts[0]
        }
        effects = Effects(
            way[0],
            averages.get("kl"),
            averages["hidden"],
            None,
            averages.get("loss"),
            averages.get("target"),
        )
        if effects.are_rounding(self._ablation.source.dtype or self._ablation.run.dtype):
            return effects
        return msgspec.structs.replace(
            effects, correlation=rank_correlation(weights, effects.strength)
        )

    def effects_by_position(self, cuts: Sequence[Cut], step: str) -> PositionEffects:
        """Return what each cut, whose heads output 0, changes at every compared position if it is made alone."""
        (zeros,) = self._replacements()
        variants = [make_variant([cut], renormalised=True, replacement=zeros) for cut in cuts]
        arrays: dict[str, Array] = {}
        for places, measures in self._measures(variants, step):
            for name, values in measures.items():
                array = arrays.setdefault(
                    name, np.empty((len(variants), values.shape[1]), dtype=np.float32)
                )
                array[places] = values.cpu().numpy()
        effects = PositionEffects(arrays["hidden"], arrays.get("kl"), after=arrays.get("after"))
        logs = self.uncut_states.log_probabilities
        if logs is None:
            return effects
        best = logs.max(-1)
        before = best.values.exp().float().cpu().numpy()
        return replace(effects, token_ids=best.indices.tolist(), before=before)

    def _measures(
        self, variants: "Sequence[Variant]", step: str
    ) -> "Iterator[tuple[list[int], dict[str, Tensor]]]":
        """Run variants, and compare them with the text without cuts, some at a time.

        Yield the places of some variants, and their measures by name: (V, positions), or (V,) of the answer and the
        target.
        """
        from torch import from_numpy

        before = self.log_probability
        rows = self._ablation.positions or None
        predicts = self.uncut_states.log_probabilities is not None
        share = self._share_of_running()
        compared = 0
        for places, hidden in self._chunks(variants, step, rows, share):
            measures = {"hidden": self.uncut_states.compare_hidden(hidden, rows)[2]}
            if predicts:

                def progress(
                    done: int, total: int, before: int = compared, count: int = len(places)
                ) -> None:
                    of_chunk = share * count + (100 - share) * count * done // total
                    self._advance(step, 100 * before + of_chunk, 100 * len(variants))

                divergence, likeliest = self.uncut_states.compare_predictions(hidden, progress)
                measures |= {"kl": divergence, "after": likeliest}
            compared += len(places)
            if before is not None:
                after = self.uncut_states.log_probability(hidden, self._ablation.answer_ids)
                measures["loss"] = before - after
            if self._ablation.targets:
                measures["target"] = from_numpy(self._change_of_target(hidden))
            yield places, measures
            self._check()

    def _share_of_running(self) -> int:
        """Return about how many percent of the work on variants running them is; the rest compares predictions."""
        before = self.uncut_states.log_probabilities
        if before is None:
            return 100
        # a variant runs through half of the layers on average; the logits are multiplied by probabilities, too
        parameters = sum(parameter.numel() for parameter in self._loaded[0].module.parameters())
        running = len(self._ablation.text.tokens) * parameters / 2
        comparing = 2 * before.numel() * self._ran.hidden.shape[-1]
        return round(100 * running / (running + comparing))

    @property
    def log_probability(self) -> float | None:
        """Log-probability of the answer without cuts, in bits; None without an answer."""
        log_probabilities = self.uncut_states.log_probabilities
        targets = self._ablation.answer_ids
        if log_probabilities is None or not targets:
            return None
        return float(
            sum(log_probabilities[n, target] for n, target in enumerate(targets)) / np.log(2.0)
        )


def _log_mean(logs: Sequence[Array]) -> Array:
    """Return the logarithm of the mean probability, from logarithms."""
    if len(logs) == 1:
        return logs[0]
    mean: Array = np.logaddexp.reduce(logs, axis=0) - np.log(len(logs))
    return mean
