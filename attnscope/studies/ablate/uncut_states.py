"""Compare hidden states and predictions with and without cuts."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attnscope.engines.protocol import Engine
from attnscope.model.matmul import to_float64
from attnscope.studies.ablate.plan import LOGITS


class UncutStates:
    """Final hidden states and predictions of a text without cuts.

    `hidden` are the states before the final norm, (T, D); `positions` are empty if nothing is predicted.
    """

    def __init__(self, engine: Engine, hidden: Tensor, positions: Sequence[int]) -> None:
        self._engine = engine
        self.log_probabilities = self.log_softmax(hidden[list(positions)]) if positions else None
        self.hidden = to_float64(engine.final_states(hidden))  # (T, D)

    def compare_hidden(
        self, hidden: Tensor, rows: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compare final hidden states of variants at ascending rows, (V, rows, D).

        Return the cosine, the norm of the change, and that norm over the norm without cuts, (V, rows) each, float64.
        The cosine with a state of 0 is NaN, and so is a change relative to one.
        """
        selected_rows = slice(None) if rows is None else list(rows)
        before = self.hidden[selected_rows]
        after = to_float64(self._engine.final_states(hidden))
        norms = before.norm(dim=-1)
        change = (after - before).norm(dim=-1)
        cosine = (after * before).sum(-1) / (after.norm(dim=-1) * norms)
        return cosine, change, torch.where(norms > 0, change / norms, torch.nan)

    def compare_predictions(
        self, hidden: Tensor, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> tuple[Tensor, Tensor]:
        """Compare the predictions of variants with these final states at the positions, (V, P, D).

        Return KL(before ‖ after) in bits, and the probability of the token that is the most probable one without cuts,
        (V, P) each, float64. The former is Σ p log p − Σ p·z + log Σ exp z, with probabilities p before and logits z
        after, so that no logarithm of every probability is needed. `progress` is called with the states compared, and all.
        """
        assert self.log_probabilities is not None
        share = self.log_probabilities.exp()  # (P, V)
        entropy = (share * self.log_probabilities).sum(-1)  # (P,), negative
        top = share.argmax(-1)  # (P,)
        rows = hidden.flatten(0, 1)
        divergences = []
        likeliest = []
        step = max(1, LOGITS // share.shape[1])
        for n in range(0, len(rows), step):
            after = to_float64(self._engine.logits(rows[n : n + step]))
            at = torch.arange(n, n + len(after), device=after.device) % len(share)
            if len(share) == 1:
                expected = after @ share[0]
            else:
                expected = (after * share[at]).sum(-1)
            total = after.logsumexp(-1)
            divergences.append(entropy[at] - expected + total)
            likeliest.append((after.gather(1, top[at, None])[:, 0] - total).exp())
            progress(min(n + step, len(rows)), len(rows))
        bits = torch.cat(divergences) / torch.log(torch.tensor(2.0))
        shape = hidden.shape[:2]
        return bits.clamp_min(0.0).view(shape), torch.cat(likeliest).view(shape)

    def log_probability(self, hidden: Tensor, targets: Sequence[int]) -> Tensor:
        """Return the log-probability in bits, (V,), of what follows the positions, from final states (V, P, D)."""
        rows = hidden.flatten(0, 1)
        log_probabilities = []
        ids = torch.tensor(targets).repeat(len(hidden))
        step = 1
        if self.log_probabilities is not None:
            step = max(1, LOGITS // self.log_probabilities.shape[1])
        for n in range(0, len(rows), step):
            logits = self.log_softmax(rows[n : n + step])
            log_probabilities.append(
                logits.gather(1, ids[n : n + step, None].to(logits.device))[:, 0]
            )
        return torch.cat(log_probabilities).view(hidden.shape[:2]).sum(1) / torch.log(
            torch.tensor(2.0)
        )

    def target_logits(self, hidden: Tensor, targets: Sequence[int]) -> Tensor:
        """Return the mean logit of every target, (V, targets), float64, from final states (V, P, D)."""
        rows = hidden.flatten(0, 1)
        logits = []
        step = max(1, LOGITS // self._engine.logits(rows[:1]).shape[1])
        for n in range(0, len(rows), step):
            logits.append(to_float64(self._engine.logits(rows[n : n + step]))[:, list(targets)])
        return torch.cat(logits).view(*hidden.shape[:2], -1).mean(1)

    def log_softmax(self, rows: Tensor) -> Tensor:
        """Return log-probabilities, (N, V), natural, float64, that final hidden states, (N, D), predict."""
        return to_float64(self._engine.logits(rows)).log_softmax(-1)
