"""Weights and held-out documents → where each head's attention goes, and a name for what it does.

The weight of every row is divided among six places that don't overlap; the rows' means are the head's shares.
"""

import torch
from tokenizers import Encoding

from training.riverbank.attention import MASKS, Model, piece_attention
from training.riverbank.disambiguation import head_name

PLACES = ("previous token", "next token", "same word", "first token", "content", "other")
FUNCTION_WORDS = frozenset(
    """a an the this that these those my your his her its our their he she it we they i you him me us them who whom
    whose which what one two three four each every all most many some any no other another such same both few of
    in on at by for from to with into onto out up down over under around about above behind beside between among
    before after during through along past near towards inside outside except because away off against within
    without upon and but or nor so then when while where as than if whether though is was are were be been being
    am had has have having did do does will would can could may might must shall should not never only just very
    too again still soon more less much also even there here how why etc s t""".split()
)


def head_shares(model: Model, texts: list[str], mask: str) -> torch.Tensor:
    """Mean share of each place in the rows of each head: `(L, H, 6)`, summing to 1 over the places."""
    total, rows = torch.zeros(0), 0
    for text in texts:
        encoding = model.tokenizer.encode(text)
        weights = piece_attention(model.student, encoding.ids, mask)  # (L, H, T, T)
        shares = torch.einsum("lhqk,pqk->lhp", weights, places(encoding))
        total = shares if not rows else total + shares
        rows += len(encoding.ids)
    return total / rows


def places(encoding: Encoding) -> torch.Tensor:
    """For each of the six places, which keys of each query belong to it: `(6, T, T)`."""
    words, ids = torch.tensor(encoding.word_ids), torch.tensor(encoding.ids)
    spot = torch.arange(len(ids))
    apart = spot[None] - spot[:, None]  # key less query
    content = torch.tensor([is_content(piece) for piece in encoding.tokens])
    same = (words[:, None] == words) | (ids[:, None] == ids)
    anywhere = torch.ones_like(same)
    claims = [apart == -1, apart == 1, same, (spot == 0) & anywhere, content & anywhere, anywhere]
    taken = torch.zeros_like(same)
    for number, claim in enumerate(claims):
        claims[number] = claim & ~taken
        taken |= claim
    return torch.stack(claims).float()


def is_content(piece: str) -> bool:
    """Whether a piece belongs to a content word: letters, and not a function word."""
    letters = piece.removeprefix("##")
    return letters.isalpha() and letters not in FUNCTION_WORDS


def roles(model: Model, texts: list[str]) -> dict[str, dict[str, dict[str, float | str]]]:
    """For each mask and head, the six shares and the place that has the largest."""
    report: dict[str, dict[str, dict[str, float | str]]] = {}
    for mask in MASKS:
        shares = head_shares(model, texts, mask)
        report[mask] = {
            head_name(layer, head): {
                "role": PLACES[int(shares[layer, head].argmax())],
                **{place: round(float(shares[layer, head, number]), 4) for number, place in enumerate(PLACES)},
            }
            for layer in range(shares.shape[0])
            for head in range(shares.shape[1])
        }
    return report
