"""Continue a text greedily."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.base.errors import AttnscopeError, arg
from attnscope.checkpoints.generation_rules import GenerationRules
from attnscope.findings.predictions import Prediction
from attnscope.findings.tokens import Token
from attnscope.model.batch import TokenTensors, pad_texts
from attnscope.run.analysis.predictions import Spell, most_probable


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
            raise AttnscopeError("the model's generation config forbids every next token", where=arg("generate"))
        next_tokens = [token for token in most_probable(allowed, spell) if token.logit != -torch.inf]
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
        seen = torch.tensor(sorted({number for number in ids if number < vocabulary}), device=logits.device)
        penalty = rules.repetition_penalty
        logits = logits.index_copy(
            0, seen, torch.where(logits[seen] < 0, logits[seen] * penalty, logits[seen] / penalty)
        )
    banned = {*rules.suppress_tokens, *_completed(ids, rules)}
    if len(ids) == prompt:
        banned.update(rules.begin_suppress_tokens)
    if len(ids) < rules.min_length or len(ids) - prompt < rules.min_new_tokens:
        banned.update(rules.eos_token_id)
    known = sorted(number for number in banned if 0 <= number < vocabulary)
    return logits.index_fill(0, torch.tensor(known, dtype=torch.int64, device=logits.device), -torch.inf)


def _completed(ids: Sequence[int], rules: GenerationRules) -> set[int]:
    """Return the ids that would complete a forbidden sequence, or repeat one."""
    text, n = tuple(ids), rules.no_repeat_ngram_size
    banned = {
        words[-1]
        for words in rules.bad_words_ids
        if text[len(text) - len(words) + 1 :] == words[:-1] and not (len(words) == 1 and words[0] in rules.eos_token_id)
    }
    if 0 < n <= len(text):
        last = text[len(text) - n + 1 :]
        banned.update(text[i + n - 1] for i in range(len(text) - n + 1) if text[i : i + n - 1] == last)
    return banned
