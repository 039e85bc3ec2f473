"""Compute the student's three losses on a batch: masked pieces, next pieces, and the teacher's relations.

Each document goes through the one set of weights twice: with some pieces masked and every piece visible
(bidirectional), and unmasked with only the past visible (causal), as in UniLM (Dong et al., 2019).
"""

from dataclasses import dataclass

import torch
from transformers import BertForMaskedLM

from training.riverbank.batches import Batch
from training.riverbank.fused import weighted_cross_entropy

MASK_ID = 2
MASKED_SHARE = 0.2
TEMPERATURE = 0.1
FREQUENT = 1e-3
RELATION_WEIGHT = 3.0
LEAST_ROW = 0.2


@dataclass(frozen=True)
class Losses:
    """Mean losses of one batch, in nats.

    Attributes:
        prediction: the sum of the next two, which can be differentiated.
        masked: per masked piece.
        causal: per next piece.
        relation_both: per attention row, bidirectional.
        relation_past: per attention row, causal.
    """

    prediction: torch.Tensor
    masked: torch.Tensor
    causal: torch.Tensor
    relation_both: torch.Tensor
    relation_past: torch.Tensor

    def total(self) -> torch.Tensor:
        """What is minimised."""
        return self.prediction + RELATION_WEIGHT * (self.relation_both + self.relation_past)


def key_weights(counts: torch.Tensor) -> torch.Tensor:
    """log(a / (a + p)) per piece: how much a key counts by its frequency p (Arora et al., 2017, a = 0.001)."""
    return (FREQUENT / (FREQUENT + counts / counts.sum())).log()


def mask_pieces(
    ids: torch.Tensor, real: torch.Tensor, draw: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose a fifth of the pieces and show 9 of 10 of them as [MASK]. Returns the ids shown and what was chosen."""
    chosen = (torch.rand(ids.shape, generator=draw) < MASKED_SHARE) & real
    hidden = chosen & (torch.rand(ids.shape, generator=draw) < 0.9)
    return ids.masked_fill(hidden, MASK_ID), chosen


def losses(
    student: BertForMaskedLM,
    batch: Batch,
    weights: torch.Tensor,
    heads: list[tuple[int, int]],
    draw: torch.Generator,
) -> Losses:
    """Run both directions in one forward pass and compare predictions and attention rows with their targets."""
    real = batch.words >= 0  # (B, T)
    shown, chosen = mask_pieces(batch.ids, real, draw)
    both = real[:, None, :].expand(-1, real.shape[1], -1)  # (B, Q, K)
    past = both & torch.ones_like(both[0]).tril()
    allowed = torch.cat([both, past])[:, None]  # (2B, 1, Q, K)
    bias = torch.zeros(allowed.shape).masked_fill_(~allowed, torch.finfo(torch.float32).min)
    with torch.autocast("cpu", torch.bfloat16):
        out = student.bert(
            torch.cat([shown, batch.ids]), attention_mask=bias, output_attentions=True
        )
        left, right = out.last_hidden_state.chunk(2)
        follows = real[:, 1:]
        states = student.cls.predictions.transform(
            torch.cat([left[chosen], right[:, :-1][follows]])
        )
    wanted = torch.cat([batch.ids[chosen], batch.ids[:, 1:][follows]])
    hidden, next_ones = int(chosen.sum()), int(follows.sum())
    scale = torch.cat([torch.full((hidden,), 1 / hidden), torch.full((next_ones,), 1 / next_ones)])
    decoder = student.cls.predictions.decoder
    prediction, nats = weighted_cross_entropy(states, decoder.weight, decoder.bias, wanted, scale)
    attention = torch.stack(
        [out.attentions[layer][:, head] for layer, head in heads]
    ).float()  # (H, 2B, Q, K)
    seen = real & (shown != MASK_ID)
    target = (
        batch.cosine / TEMPERATURE
        + (weights[batch.ids] - pieces_per_word(batch.words).log())[:, None]
    )
    other = (batch.words[:, :, None] != batch.words[:, None]) & (
        batch.ids[:, :, None] != batch.ids[:, None]
    )
    rows = weights[batch.ids].exp().clamp_min(LEAST_ROW) * real
    return Losses(
        prediction,
        nats[:hidden].mean(),
        nats[hidden:].mean(),
        relation_loss(
            attention[:, : len(real)], target, both & other & seen[:, None] & seen[:, :, None], rows
        ),
        relation_loss(attention[:, len(real) :], target, past & other, rows),
    )


def pieces_per_word(words: torch.Tensor) -> torch.Tensor:
    """For each piece, of how many pieces its word consists: `(B, T)`."""
    return (words[:, :, None] == words[:, None]).sum(-1).float()


def relation_loss(
    attention: torch.Tensor, target: torch.Tensor, others: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Kullback-Leibler divergence from the teacher's distribution over other words to each head's rows.

    Args:
        attention: `(H, B, Q, K)`.
        target: logits, `(B, Q, K)`.
        others: the keys that count: visible, real, and another word than the query, `(B, Q, K)`.
        rows: weight of each query; those that see no other word don't count, `(B, Q)`.
    """
    share = target.masked_fill(~others, -1e4).softmax(-1) * others
    given = attention.clamp_min(1e-7).log()
    divergence = (share * (share.clamp_min(1e-7).log() - given)).sum(-1)  # (H, B, Q)
    counted = rows * others.any(-1)
    return (divergence * counted).sum() / (counted.sum() * len(attention))
