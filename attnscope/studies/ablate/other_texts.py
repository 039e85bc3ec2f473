"""Texts whose activations replace those of the text. Never imports torch."""

from dataclasses import replace as changed

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import UsageError, arg
from attnscope.checkpoints.source import tokenize
from attnscope.findings.tokens import MASKS
from attnscope.run.text_plan import TextPlan, documents_of_mask
from attnscope.studies.ablate.plan import AblationRun
from attnscope.studies.heads.texts import TEXTS

DRAWS = 4  # default number of draws from other texts


def plan_others(ablation: AblationRun) -> list[TextPlan]:
    """Return the texts that replacements come from; none for zeros, or for a mean over the text itself."""
    if ablation.options.how == "patch":
        return [_plan_patch(ablation)]
    if ablation.options.how == "resample":
        return _plan_draws(ablation)
    if ablation.options.reference is None:
        return []
    return [_plan_reference(ablation, ablation.options.reference)]


def _plan_reference(ablation: AblationRun, reference: str) -> TextPlan:
    """Return the text over which `mean` averages.

    Tokens that `--hide` names are hidden in this text as well, as far as it has them; otherwise its mean would be
    computed under another mask.
    """
    run = ablation.run
    source = ablation.source
    where = arg("reference")
    if source.needs_context:
        hint = "remove it: the mean is then over the text itself"
        raise UsageError(
            "cannot be used with a model that attends to a second text", where=where, hint=hint
        )
    tokens, warnings = tokenize(source, reference, None, where, truncate=run.truncate)
    hidden = list[int]()
    missing = list[str]()
    if run.hide is not None:
        hidden = sorted(run.hide.find(tokens, (reference,), arg("hide"), missing=missing))
    if missing:
        warnings.append(f"has no {', '.join(missing)} to hide")
    notes = [f"--reference: the mean is over the {len(tokens)} tokens of: {reference}"]
    warnings = [f"--reference: {warning}" for warning in warnings]
    documents = documents_of_mask(run, source, tokens, f"the text of {where}")
    return TextPlan(
        *(tokens, None, None, [], [], None, notes, warnings),
        hidden=tuple(hidden),
        documents=documents,
    )


def _plan_patch(ablation: AblationRun) -> TextPlan:
    """Return the text to patch from, under the same mask and with the same positions hidden."""
    run = ablation.run
    text = ablation.text
    where = arg("patch_from")
    (text_input,) = ablation.run.texts
    arguments = str(ablation.options.patch_from), text_input.pair, where
    tokens, warnings = tokenize(
        ablation.source, *arguments, truncate=run.truncate, special=text_input.adds_special
    )
    if len(tokens) != len(text.tokens):
        message = f"has {_count(len(tokens))}, but the text has {len(text.tokens)}: patches go from token to token"
        hint = "use texts of equally many tokens, which attnscope run TEXT --ids lists"
        raise UsageError(message, where=where, hint=hint)
    if [token.id for token in tokens] == [token.id for token in text.tokens]:
        warnings.append("has the tokens of the text, so a patch changes nothing")
    return changed(
        text, tokens=tokens, notes=[], warnings=[f"--patch-from: {warning}" for warning in warnings]
    )


def _plan_draws(ablation: AblationRun) -> list[TextPlan]:
    """Return texts whose words are drawn from other texts, as runs of equal length; special and mask tokens stay."""
    options = ablation.options
    text = ablation.text
    where = arg("others") if options.others else arg("replacement", "resample")
    pool = [
        token
        for other in options.others or TEXTS
        for token in ablation.source.tokenizer.encode(other, where=where, special=False)
        if not token.special
    ]
    words = [
        position
        for position, token in enumerate(text.tokens)
        if not token.special and token.piece not in MASKS
    ]
    if not words:
        message = "the text has special and mask tokens alone, which stay"
        raise UsageError(
            message, where=arg("replacement", "resample"), hint="use a text with other tokens"
        )
    starts = len(pool) - len(words) + 1
    if starts < 1:
        message = (
            f"the other texts have {_count(len(pool))}, fewer than the {len(words)} of the text"
        )
        hint = f"use longer texts with {arg('others', placeholder='FILE')}, or a shorter text"
        raise UsageError(message, where=where, hint=hint)
    wanted = options.draws or DRAWS
    seed = options.seed or 0
    chosen_starts = (
        np.random.default_rng(seed).choice(starts, min(wanted, starts), replace=False).tolist()
    )
    whose = "the given text"
    if len(options.others) > 1:
        whose = f"{len(options.others)} given texts"
    notes = [
        f"resample: mean over {len(chosen_starts)} draws (seed {seed}); each draw is {_count(len(words))} in a row of "
        f"{whose if options.others else 'the built-in texts'}; special tokens stay"
    ]
    if len(chosen_starts) < wanted:
        notes.append(f"resample: there are only {len(chosen_starts)} different draws")
    draws = list[TextPlan]()
    for start in chosen_starts:
        tokens = list(text.tokens)  # segments and types stay
        for position, other in zip(words, pool[start:], strict=False):
            tokens[position] = replace(
                tokens[position], id=other.id, piece=other.piece, text=other.text
            )
        draws.append(changed(text, tokens=tokens, notes=notes if not draws else [], warnings=[]))
    return draws


def _count(count: int) -> str:
    if count == 1:
        return "1 token"
    return f"{count:,} tokens"
