"""Texts whose activations replace those of the text, and the tokens whose logits are compared.

Never imports torch.

Never imports torch.
"""

from collections.abc import Sequence
from dataclasses import replace as changed

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import UsageError, arg
from attnscope.checkpoints.source import ModelSource, tokenize
from attnscope.findings.ablation import Replacing
from attnscope.findings.tokens import Token
from attnscope.request.run_config import RunConfig
from attnscope.run.attribution_plan import target_ids, target_notes
from attnscope.run.text_plan import TextPlan
from attnscope.studies.ablate.plan import AblationOptions
from attnscope.studies.heads.texts import TEXTS

DRAWS = 4  # default number of draws from other texts


def plan_others(options: AblationOptions, run: RunConfig, source: ModelSource, text: TextPlan) -> list[TextPlan]:
    """Return the texts that replacements come from; none for zeros, or for a mean over the text itself."""
    if options.how == "patch":
        return [_plan_patch(options, run, source, text)]
    if options.how == "resample":
        return _plan_draws(options, source, text)
    reference = _plan_reference(options, run, source)
    return [] if reference is None else [reference]


def replacing(options: AblationOptions, texts: Sequence[TextPlan]) -> Replacing | None:
    """Return the report's description of the texts that replacements come from."""
    if not options.from_others:
        return None
    return Replacing(
        options.patch_from, [other.tokens for other in texts], None if options.how == "patch" else options.seed or 0
    )


def _plan_reference(options: AblationOptions, run: RunConfig, source: ModelSource) -> TextPlan | None:
    """Return the text over which `mean` averages; None for the text itself.

    Tokens that `--hide` names are hidden in this text as well, as far as it has them; otherwise its mean would be
    computed under another mask.
    """
    if options.reference is None:
        return None
    if source.needs_context:
        hint = "remove it: the mean is then over the text itself"
        raise UsageError("cannot be used with a model that attends to a second text", where=arg("reference"), hint=hint)
    tokens, notes = tokenize(source, options.reference, None, arg("reference"), truncate=run.truncate)
    notes.insert(0, f"the mean is over the {len(tokens)} tokens of: {options.reference}")
    hidden, missing = list[int](), list[str]()
    if run.hide is not None:
        given = (options.reference,)
        hidden = sorted(run.hide.find(tokens, given, arg("hide"), missing=missing))
    if missing:
        notes.append(f"has no {', '.join(missing)} to hide")
    return TextPlan(tokens, None, None, [], [], None, [f"--reference: {n}" for n in notes], hidden=tuple(hidden))


def _plan_patch(options: AblationOptions, run: RunConfig, source: ModelSource, text: TextPlan) -> TextPlan:
    """Return the text to patch from, under the same mask and with the same positions hidden."""
    assert options.patch_from is not None
    where, (written,) = arg("patch_from"), run.texts
    tokens, notes = tokenize(
        source, options.patch_from, written.pair, where, truncate=run.truncate, special=written.adds_special
    )
    if len(tokens) != len(text.tokens):
        message = f"has {_count(len(tokens))}, but the text has {len(text.tokens)}: patches go from token to token"
        hint = "use texts of equally many tokens, which attnscope run TEXT --ids lists"
        raise UsageError(message, where=where, hint=hint)
    if [token.id for token in tokens] == [token.id for token in text.tokens]:
        notes.append("has the tokens of the text, so a patch changes nothing")
    return changed(text, tokens=tokens, notes=[f"--from: {note}" for note in notes])


def _plan_draws(options: AblationOptions, source: ModelSource, text: TextPlan) -> list[TextPlan]:
    """Return texts whose words are drawn from other texts, as runs of equal length; special tokens stay."""
    where = arg("others") if options.others else arg("replacement", "resample")
    pool = [
        token
        for other in options.others or TEXTS
        for token in source.tokenizer.encode(other, where=where, special=False)
        if not token.special
    ]
    words = [place for place, token in enumerate(text.tokens) if not token.special]
    if not words:
        hint = "use a text with other tokens"
        raise UsageError(
            "the text has special tokens alone, which stay", where=arg("replacement", "resample"), hint=hint
        )
    starts = len(pool) - len(words) + 1
    if starts < 1:
        message = f"the other texts have {_count(len(pool))}, fewer than the {len(words)} of the text"
        hint = f"use longer texts with {arg('others', placeholder='FILE')}, or a shorter text"
        raise UsageError(message, where=where, hint=hint)
    wanted, seed = options.draws or DRAWS, options.seed or 0
    chosen = np.random.default_rng(seed).choice(starts, min(wanted, starts), replace=False).tolist()
    whose = f"{len(options.others)} given texts" if len(options.others) > 1 else "the given text"
    notes = [
        f"resample: mean over {len(chosen)} draws (seed {seed}); each draw is {_count(len(words))} in a row of "
        f"{whose if options.others else 'the built-in texts'}; special tokens stay"
    ]
    if len(chosen) < wanted:
        notes.append(f"resample: there are only {len(chosen)} different draws")
    drawn = [changed(text, tokens=_drawn(text.tokens, words, pool[start:]), notes=[]) for start in chosen]
    return [changed(drawn[0], notes=notes), *drawn[1:]]


def _drawn(tokens: Sequence[Token], places: Sequence[int], pool: Sequence[Token]) -> list[Token]:
    """Return tokens with those at `places` replaced from the pool; segments and types stay."""
    drawn = list(tokens)
    for place, other in zip(places, pool, strict=False):
        drawn[place] = replace(tokens[place], id=other.id, piece=other.piece, text=other.text)
    return drawn


def _count(number: int) -> str:
    return "1 token" if number == 1 else f"{number:,} tokens"


def compared_targets(
    options: AblationOptions, source: ModelSource, positions: Sequence[int]
) -> tuple[list[int], list[str]]:
    """Return the ids of the tokens whose logits are compared, and notes on their spelling."""
    if not options.target:
        return [], []
    if source.predicts is None:
        hint = "use a checkpoint of a language model, with its head"
        raise UsageError(f"{source.name} has no output head", where=arg("target"), hint=hint)
    if not positions:
        hint = f"write [MASK] into the text, or add {arg('at', placeholder='TOKENS')}"
        raise UsageError("the text has no mask token to predict", where=arg("target"), hint=hint)
    ids = [number for number in target_ids(options.target, source) if number is not None]
    return ids, target_notes(options.target, source)
