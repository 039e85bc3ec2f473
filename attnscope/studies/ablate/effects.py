"""Compare hidden states and predictions with and without cuts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.engines.protocol import Engine
from attnscope.model.precision import to_float64
from attnscope.studies.ablate.plan import LOGITS


@dataclass(frozen=True)
class Baseline:
    """What a text gives without cuts.

    Attributes:
        engine: The model under its mask.
        hidden: Final hidden states, after the model's final norm, (T, D), float64.
        positions: Where predictions are compared.
        log_probabilities: Of the vocabulary at each position, (P, V), float64, natural; None where nothing predicts.
    """

    engine: Engine
    hidden: Tensor
    positions: Sequence[int]
    log_probabilities: Tensor | None

    @classmethod
    def of(cls, engine: Engine, hidden: Tensor, positions: Sequence[int], *, predicts: bool) -> "Baseline":
        """Compute what the text predicts without cuts.

        Args:
            engine: The model under its mask.
            hidden: Final hidden states, (1, T, D).
            positions: Where predictions are compared.
            predicts: The model has an output head.
        """
        found = log_softmax(engine, hidden[0, list(positions)]) if predicts and positions else None
        return cls(engine, to_float64(engine.final_states(hidden[0])), positions, found)

    def compare_hidden(self, hidden: Tensor, rows: Sequence[int] | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Compare final hidden states of variants, (V, rows, D).

        Args:
            hidden: The engine's final hidden states.
            rows: The tokens that these are of, ascending; None for all.

        Returns:
            Cosine, norm of the change, and that norm over the norm without cuts, (V, rows) each, float64. The cosine
            with a state of 0 is NaN, and so is a change relative to one.
        """
        chosen = slice(None) if rows is None else list(rows)
        before, after = self.hidden[chosen], to_float64(self.engine.final_states(hidden))
        norms = before.norm(dim=-1)
        change = (after - before).norm(dim=-1)
        cosine = (after * before).sum(-1) / (after.norm(dim=-1) * norms)
        return cosine, change, torch.where(norms > 0, change / norms, torch.nan)

    def divergence(self, hidden: Tensor) -> Tensor:
        """Return KL(before ‖ after) in bits of variants whose final states at the positions are (V, P, D); (V, P).

        Computed as Σ p log p − Σ p·z + log Σ exp z, with probabilities p before and logits z after, so that no
        logarithm of every probability is needed.
        """
        assert self.log_probabilities is not None
        share = self.log_probabilities.exp()  # (P, V)
        entropy = (share * self.log_probabilities).sum(-1)  # (P,), negative
        rows, found = hidden.flatten(0, 1), []
        step = max(1, LOGITS // share.shape[1])
        for n in range(0, len(rows), step):
            after = to_float64(self.engine.logits(rows[n : n + step]))
            at = torch.arange(n, n + len(after), device=after.device) % len(share)
            expected = after @ share[0] if len(share) == 1 else (after * share[at]).sum(-1)
            found.append(entropy[at] - expected + after.logsumexp(-1))
        return (torch.cat(found) / torch.log(torch.tensor(2.0))).clamp_min(0.0).view(hidden.shape[:2])

    def log_probability(self, hidden: Tensor, targets: Sequence[int]) -> Tensor:
        """Return the log-probability, in bits, (V,), of one token after each position, together.

        Args:
            hidden: Final states of variants at the positions, (V, P, D).
            targets: Id of the token at each position.
        """
        rows, found = hidden.flatten(0, 1), []
        ids = torch.tensor(targets, device=hidden.device).repeat(len(hidden))
        step = max(1, LOGITS // self.log_probabilities.shape[1]) if self.log_probabilities is not None else 1
        for n in range(0, len(rows), step):
            logits = log_softmax(self.engine, rows[n : n + step])
            found.append(logits.gather(1, ids[n : n + step, None])[:, 0])
        return torch.cat(found).view(hidden.shape[:2]).sum(1) / torch.log(torch.tensor(2.0))


def target_logits(engine: Engine, hidden: Tensor, targets: Sequence[int]) -> Tensor:
    """Return the logit of every target, (V, targets), float64, averaged over positions.

    Args:
        engine: The model.
        hidden: Final states of variants at the positions, (V, P, D).
        targets: Ids.
    """
    rows, found = hidden.flatten(0, 1), []
    step = max(1, LOGITS // engine.logits(rows[:1]).shape[1])
    for n in range(0, len(rows), step):
        found.append(to_float64(engine.logits(rows[n : n + step]))[:, list(targets)])
    return torch.cat(found).view(*hidden.shape[:2], -1).mean(1)


def log_softmax(engine: Engine, rows: Tensor) -> Tensor:
    """Return the log-probabilities, (N, V), float64, natural, that final hidden states, (N, D), predict."""
    return to_float64(engine.logits(rows)).log_softmax(-1)
