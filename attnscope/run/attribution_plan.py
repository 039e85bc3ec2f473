"""Whether a logit is a sum over parts of the model, and whose logit is meant. Never imports torch."""

from collections.abc import Sequence

from attnscope.base.errors import UsageError, arg, listed
from attnscope.checkpoints.source import ModelSource
from attnscope.findings.tokens import Token
from attnscope.request.run_config import RunConfig

_MOST = 1 << 24  # largest number of sources × heads × layers for which a logit is broken down
_WHERE = arg("by", "logit")
# bytes of such a number: recorded, side by side, and freed in between but not reused; its size, with a place, ranked
_RECORDED, _RANKED = 24, 24


def check_attribution(run: RunConfig, source: ModelSource, texts: Sequence[Sequence[Token]]) -> None:
    """Refuse runs for which direct logit attribution is undefined or too large."""
    config = source.config
    source.require_model("direct logit attribution")
    if source.predicts is None:
        hint = "use a checkpoint of a language model, with its head"
        raise UsageError(f"{source.name} has no output head", where=_WHERE, hint=hint)
    if not source.layerwise:
        raise UsageError(
            "direct logit attribution needs the native engine", where=_WHERE, hint=f"remove {arg('engine')}"
        )
    if run.what_if == "same-scores" and not run.own_mask:
        hint = f"use {arg('what_if', 'stack')}, so that the model runs under the mask that is shown"
        raise UsageError("the logit does not come from the weights that are shown", where=_WHERE, hint=hint)
    assert config.head is not None
    reason = ""
    if config.head.transform is not None:
        reason = "its output head has a non-linear layer in front of the vocabulary"
    elif config.norm_order == "post":
        reason = "it normalises after every residual sum (post-norm)"
    elif not config.residual:
        reason = "it has no residual stream"
    if reason:
        message = f"the logits of {source.name} are not a sum over its parts: {reason}"
        hint = "remove it, or use a pre-norm model, such as GPT-2 or Llama"
        raise UsageError(message, where=arg("target") if run.target else _WHERE, hint=hint)
    if count_cells(source, texts) > _MOST:
        raise UsageError("the text is too long to break a logit down", where=_WHERE, hint="use a shorter text")
    target_ids(run.target, source)


def attribution_bytes(source: ModelSource, texts: Sequence[Sequence[Token]]) -> int:
    """Return the bytes of every token's contribution through every head: recorded, concatenated, and one layer while
    ranked."""
    cells = count_cells(source, texts)
    return _RECORDED * cells + _RANKED * cells // source.config.n_layers


def count_cells(source: ModelSource, texts: Sequence[Sequence[Token]]) -> int:
    """Count the kept numbers: every token's contribution through every head."""
    return max(map(len, texts)) * len(texts) * source.config.n_heads * source.config.n_layers


def target_ids(targets: Sequence[str] | None, source: ModelSource) -> tuple[int | None, int | None]:
    """Return the ids of the target and of the token whose logit is subtracted; None if none was named."""
    ids = [_token_id(target, source) for target in targets or ()]
    rows = source.config.vocab_size
    for target, number in zip(targets or (), ids, strict=True):
        if number >= rows:
            # The tokenizer was given more tokens than the model.
            message = f"'{target}' has id {number}, but the vocabulary of {source.name} has {rows} tokens"
            raise UsageError(message, where=arg("target"), hint=f"use a token with an id below {rows}")
    return (ids[0] if ids else None), (ids[1] if len(ids) > 1 else None)


def target_notes(targets: Sequence[str] | None, source: ModelSource) -> list[str]:
    """Name the token of a target after a space, if it differs."""
    notes = []
    for target, number in zip(targets or (), target_ids(targets, source), strict=False):
        after = _after_space(target, source)
        if after is not None and after != number:
            notes.append(f"--target '{target}' is the token without a space before it; as a word, it is ' {target}'")
    return notes


def _after_space(target: str, source: ModelSource) -> int | None:
    """Return the id of a target after a space; None for several tokens."""
    tokens = [token for token in source.tokenizer.encode(f" {target}", where=arg("target")) if not token.special]
    return tokens[0].id if len(tokens) == 1 and not target.startswith(" ") else None


def _token_id(target: str, source: ModelSource) -> int:
    tokenizer = source.tokenizer
    named = tokenizer.id_of(target)
    if named is not None:
        return named
    tokens = [token for token in tokenizer.encode(target, where=arg("target")) if not token.special]
    if len(tokens) == 1:
        return tokens[0].id
    pieces = listed([f"'{token.piece}'" for token in tokens], 8)
    hint = "use one token, such as ' store' with the space before the word"
    if _after_space(target, source) is not None:
        hint = f"with the space before it, it is one token: {arg('target', f' {target}')}"
    raise UsageError(f"'{target}' is {len(tokens)} tokens: {pieces}", where=arg("target"), hint=hint)
