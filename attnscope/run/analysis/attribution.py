"""Contributions of a stack's parts to a logit, as findings."""

from collections.abc import Callable

import numpy as np
import torch

from attnscope.findings.attribution import Attribution, LogitEdge, TargetToken
from attnscope.model.logit_parts import LogitParts
from attnscope.run.analysis.predictions import Spell

_EDGES = 20  # number of edges (one token through one head) that are kept


def attribution(
    parts: LogitParts,
    position: int,
    targets: tuple[int, int | None],
    logit: Callable[[int], float],
    text: tuple[int, Spell, float | None],
) -> Attribution:
    """Return the contribution of every part to a logit.

    Args:
        position: Position of the token whose final state gives the logit.
        targets: Id of the target, and of the token whose logit is subtracted.
        logit: Maps an id to its logit, before a soft-cap.
        text: Tokens of the text, a function from id to piece, and the soft-cap.
    """
    n_tokens, spell, softcap = text
    edges = parts.edges[..., :n_tokens].cpu()  # (L, H, K)
    heads, sources = edges.sum(-1), edges.sum((0, 1))
    total = parts.embedding + parts.constant + sum(parts.mlps) + sum(parts.attention_biases) + float(heads.sum())
    named = [LogitEdge(*place, float(edges[place])) for place in _strongest(edges) if edges[place]]
    target, against = targets
    return Attribution(
        position=position,
        target=TargetToken(target, *spell(target), logit(target)),
        against=None if against is None else TargetToken(against, *spell(against), logit(against)),
        total=total,
        embedding=parts.embedding,
        heads=heads.float().numpy(),
        attention_biases=np.array(parts.attention_biases, dtype=np.float32),
        mlps=np.array(parts.mlps, dtype=np.float32),
        constant=parts.constant,
        sources=sources.float().numpy(),
        edges=named,
        softcap=softcap,
    )


def _strongest(edges: torch.Tensor) -> list[tuple[int, int, int]]:
    """Return layer, head and source of the largest edges, (L, H, K), ranked layer by layer to save memory."""
    sources = edges.shape[-1]
    sizes, places = zip(
        *(torch.topk(layer_edges.abs().flatten(), min(_EDGES, layer_edges.numel())) for layer_edges in edges),
        strict=True,
    )
    best = torch.topk(torch.stack(sizes).flatten(), min(_EDGES, edges.numel())).indices.tolist()
    ranked = places[0].numel()
    places_of_best = [(at // ranked, int(places[at // ranked][at % ranked])) for at in best]
    return [(layer, place // sources, place % sources) for layer, place in places_of_best]
