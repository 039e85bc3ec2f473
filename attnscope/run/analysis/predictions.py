"""What a model predicts: the most probable tokens, a greedy continuation, and what adds to a logit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from attnscope.base.errors import AttnscopeError, arg
from attnscope.checkpoints.generation_rules import GenerationRules
from attnscope.findings.attribution import Attribution, LogitEdge, TargetToken
from attnscope.findings.predictions import PREDICTED, PredictedToken, Prediction
from attnscope.findings.tokens import Token
from attnscope.model.batch import TokenTensors, pad_texts
from attnscope.model.logit_parts import LogitParts
from attnscope.model.matmul import to_float64
from attnscope.run.prediction_plan import AT_ONCE, PredictedPlaces

Spell = Callable[[int], tuple[str, str]]


def predict(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, places: PredictedPlaces, spell: Spell
) -> list[Prediction]:
    """Return the model's predictions at some places of one text.

    Args:
        logits: The output head: final hidden states, (N, D), to logits, (N, V).
    """
    predictions: list[Prediction] = []
    for start in range(0, len(places.positions), AT_ONCE):
        positions = places.positions[start : start + AT_ONCE]
        # All rows are read at once, since each read of a GPU waits for it.
        rows = logits(hidden[positions]).cpu()
        for position, row in zip(positions, rows, strict=True):
            predictions.append(Prediction(places.kind, position, most_probable(row, spell)))
    return predictions


def most_probable(logits: Tensor, spell: Spell) -> list[PredictedToken]:
    """Return the most probable tokens of one place by the logits of the whole vocabulary, (V,)."""
    share = torch.softmax(to_float64(logits), dim=-1)
    ids: Sequence[int] = torch.topk(logits, min(PREDICTED, len(logits))).indices.tolist()
    return [PredictedToken(i, *spell(i), float(logits[i]), float(share[i])) for i in ids]


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
    heads = edges.sum(-1)
    sources = edges.sum((0, 1))
    total = (
        parts.embedding
        + parts.constant
        + sum(parts.mlps)
        + sum(parts.attention_biases)
        + float(heads.sum())
    )
    logit_edges = [
        LogitEdge(*edge, float(edges[edge])) for edge in _strongest(edges) if edges[edge]
    ]
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
        edges=logit_edges,
        softcap=softcap,
    )


def _strongest(edges: torch.Tensor) -> list[tuple[int, int, int]]:
    """Return layer, head and source of the largest edges, (L, H, K), ranked layer by layer to save memory."""
    sources = edges.shape[-1]
    sizes, places = zip(
        *(
            torch.topk(layer_edges.abs().flatten(), min(_EDGES, layer_edges.numel()))
            for layer_edges in edges
        ),
        strict=True,
    )
    best = torch.topk(torch.stack(sizes).flatten(), min(_EDGES, edges.numel())).indices.tolist()
    ranked = places[0].numel()
    places_of_best = [(at // ranked, int(places[at // ranked][at % ranked])) for at in best]
    return [(layer, index // sources, index % sources) for layer, index in places_of_best]


@dataclass(frozen=True)
class Continued:
    """A text with the tokens that a model continued it by."""

    tokens: list[Token]
    generated: list[Prediction] = field(default_factory=list)


def continue_text(
    logits: Callable[[TokenTensors], Tensor],
    tokens: Sequence[Token],
    count: int,
    rules: GenerationRules,
    spelling: tuple[Spell, Callable[[int], Token]],
    device: torch.device,
    on_token: Callable[[Prediction], None] | None = None,
) -> Continued:
    """Return a text continued by the most probable token, again and again.

    Args:
        logits: Returns the logits of the next token, (V,), for a text that extends the previous one.
        spelling: Function that turns an id into a piece and a token.
    """
    spell, make = spelling
    text = Continued(list(tokens))
    while len(text.generated) < count:
        ids = [token.id for token in text.tokens]
        allowed = apply_rules(logits(pad_texts([text.tokens], device)), ids, len(tokens), rules)
        if (allowed == -torch.inf).all():
            raise AttnscopeError(
                "the model's generation config forbids every next token", where=arg("generate")
            )
        next_tokens = [
            token for token in most_probable(allowed, spell) if token.logit != -torch.inf
        ]
        text.generated.append(Prediction("next", len(text.tokens) - 1, next_tokens))
        text.tokens.append(make(next_tokens[0].id))
        if on_token is not None:
            on_token(text.generated[-1])
        if next_tokens[0].id in rules.eos_token_id:
            break
    return text


def apply_rules(logits: Tensor, ids: Sequence[int], prompt: int, rules: GenerationRules) -> Tensor:
    """Return logits, (V,), as transformers' logits processors change them; forbidden ids have −inf.

    Args:
        prompt: How many of its tokens were not generated.
    """
    vocabulary = len(logits)
    if rules.repetition_penalty != 1:
        seen = torch.tensor(
            sorted({token_id for token_id in ids if token_id < vocabulary}), device=logits.device
        )
        penalty = rules.repetition_penalty
        logits = logits.index_copy(
            0, seen, torch.where(logits[seen] < 0, logits[seen] * penalty, logits[seen] / penalty)
        )
    banned = {*rules.suppress_tokens, *_completed(ids, rules)}
    if len(ids) == prompt:
        banned.update(rules.begin_suppress_tokens)
    if len(ids) < rules.min_length or len(ids) - prompt < rules.min_new_tokens:
        banned.update(rules.eos_token_id)
    banned_ids = sorted(token_id for token_id in banned if 0 <= token_id < vocabulary)
    return logits.index_fill(
        0, torch.tensor(banned_ids, dtype=torch.int64, device=logits.device), -torch.inf
    )


def _completed(ids: Sequence[int], rules: GenerationRules) -> set[int]:
    """Return the ids that would complete a forbidden sequence, or repeat one."""
    text = tuple(ids)
    n = rules.no_repeat_ngram_size
    banned = {
        words[-1]
        for words in rules.bad_words_ids
        if text[len(text) - len(words) + 1 :] == words[:-1]
        and not (len(words) == 1 and words[0] in rules.eos_token_id)
    }
    if 0 < n <= len(text):
        last = text[len(text) - n + 1 :]
        banned.update(
            text[i + n - 1] for i in range(len(text) - n + 1) if text[i : i + n - 1] == last
        )
    return banned
