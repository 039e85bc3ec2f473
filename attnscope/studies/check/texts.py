"""Which texts a model is checked with if the user names none."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.source import ModelSource, tokenize
from attnscope.findings.tokens import Token
from attnscope.request.run_config import TextInput
from attnscope.run.text_plan import TextPlan


def fitting_texts(texts: Sequence[TextInput], source: ModelSource) -> tuple[TextInput, ...]:
    """Return the first text, and the other texts of which the tokenizer knows at least half the tokens."""
    fitting = []
    for text in texts[1:]:
        try:
            tokens, _ = tokenize(source, text.text, text.pair, text.where, truncate=True)
        except AttnscopeError:
            continue
        if 2 * sum(token.unknown for token in tokens) <= sum(not token.special for token in tokens):
            fitting.append(text)
    return (texts[0], *fitting)


def drawn_text(source: ModelSource, plans: Sequence[TextPlan]) -> tuple[str, TextPlan] | None:
    """Return a description and tokens drawn from the vocabulary, as many as the longest text has.

    None if the vocabulary is not known.
    """
    ids = [
        token_id
        for token_id in source.tokenizer.ordinary_ids()
        if token_id < source.config.vocab_size
    ]
    if not ids:
        return None
    longest = max(plans, key=lambda plan: len(plan.tokens))
    random = Random(0)
    tokens = []
    for token in longest.tokens:
        if token.special:
            tokens.append(token)
        else:
            tokens.append(
                Token(random.choice(ids), "", "", type_id=token.type_id, segment=token.segment)
            )
    return "tokens drawn from the vocabulary", replace(longest, tokens=tokens)
