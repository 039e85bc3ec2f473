"""Measure where each head's attention goes on held-out documents, and name what it does.

The weight of a content word's row is divided among six places that don't overlap; the rows' means are the head's
shares. Nearly half of all tokens are content words, so that uniform attention already gives them a large share: a
head is named after the place that exceeds uniform attention most, if it does so by 0.15.
"""

import torch
from tokenizers import Encoding

from training.riverbank.attention import MASKS, Model, allowed, batch_attention
from training.riverbank.disambiguation import head_name

PLACES = ("previous token", "next token", "same word", "first token", "content", "function words")
SPREAD = "spread"
EXCESS = 0.15
FUNCTION_WORDS = frozenset(
    """a an the this that these those my your his her its our their he she it we they i you him me us them who whom
    whose which what one two three four each every all most many some any no other another such same both few of
    in on at by for from to with into onto out up down over under around about above behind beside between among
    before after during through along past near towards inside outside except because away off against within
    without upon and but or nor so then when while where as than if whether though is was are were be been being
    am had has have having did do does will would can could may might must shall should not never only just very
    too again still soon more less much also even there here how why etc s t""".split()
)


def head_shares(model: Model, texts: list[str], mask: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean share of each place in content words' rows: of each head, `(L, H, 6)`, and of uniform attention, `(6,)`."""
    shares, uniform, rows = [], [], 0
    by_length: dict[int, list[Encoding]] = {}
    for encoding in model.tokenizer.encode_batch(texts):
        by_length.setdefault(len(encoding.ids), []).append(encoding)
    for length, group in by_length.items():  # in one pass without padding
        even = allowed(length, mask)[0, 0].softmax(-1)  # (T, T)
        every = batch_attention(model.student, [encoding.ids for encoding in group], mask)
        for weights, encoding in zip(every, group, strict=True):  # (L, H, T, T)
            claimed = places(encoding)  # (6, T, T)
            query = content_pieces(encoding)  # (T,)
            shares.append(torch.einsum("lhqk,pqk,q->lhp", weights, claimed, query))
            uniform.append(torch.einsum("qk,pqk,q->p", even, claimed, query))
            rows += int(query.sum())
    return torch.stack(shares).sum(0) / rows, torch.stack(uniform).sum(0) / rows


def places(encoding: Encoding) -> torch.Tensor:
    """For each of the six places, which keys of each query belong to it: `(6, T, T)`."""
    words, ids = torch.tensor(encoding.word_ids), torch.tensor(encoding.ids)
    spot = torch.arange(len(ids))
    apart = spot[None] - spot[:, None]  # key less query
    content = content_pieces(encoding) > 0
    same = (words[:, None] == words) | (ids[:, None] == ids)
    anywhere = torch.ones_like(same)
    claims = [apart == -1, apart == 1, same, (spot == 0) & anywhere, content & anywhere, anywhere]
    taken = torch.zeros_like(same)
    for number, claim in enumerate(claims):
        claims[number] = claim & ~taken
        taken |= claim
    return torch.stack(claims).float()


def content_pieces(encoding: Encoding) -> torch.Tensor:
    """1 for each piece of a content word: `(T,)`."""
    return torch.tensor([float(is_content(piece)) for piece in encoding.tokens])


def is_content(piece: str) -> bool:
    """Whether a piece belongs to a content word: letters, and not a function word."""
    letters = piece.removeprefix("##")
    return letters.isalpha() and letters not in FUNCTION_WORDS


def roles(model: Model, texts: list[str]) -> dict[str, dict[str, dict[str, float | str]]]:
    """For each mask, the six shares of uniform attention and of each head, and each head's name."""
    report: dict[str, dict[str, dict[str, float | str]]] = {}
    for mask in MASKS:
        shares, uniform = head_shares(model, texts, mask)
        report[mask] = {"uniform": {"role": SPREAD, **rounded(uniform)}}
        for layer, heads in enumerate(shares):
            for head, share in enumerate(heads):
                excess, place = (share - uniform).max(0)
                role = PLACES[int(place)] if excess >= EXCESS else SPREAD
                report[mask][head_name(layer, head)] = {"role": role, **rounded(share)}
    return report


def rounded(share: torch.Tensor) -> dict[str, float]:
    """The six shares by their names."""
    return {place: round(float(share[number]), 4) for number, place in enumerate(PLACES)}
