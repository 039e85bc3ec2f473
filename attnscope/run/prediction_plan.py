"""The places where a model predicts, if requested, and whether a logit can be taken apart. Never imports torch."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from attnscope.base.errors import UsageError, arg, listed
from attnscope.checkpoints.source import ModelSource, count_closing
from attnscope.findings.predictions import PredictionKind
from attnscope.findings.tokens import MASKS, Token
from attnscope.request.masks.expression import spell_mask
from attnscope.request.masks.terms import OF_ONE_TEXT, Hidden, MaskTerm, Own, ScoreFunction, leaves
from attnscope.request.run_config import RunConfig

AT_ONCE = 16  # number of positions whose logits are in memory at a time
# Largest total number of tokens, and of texts, for which a run predicts by default.
_CHEAP = 2048
_FEW = 8


@dataclass(frozen=True)
class PredictedPlaces:
    """Places of one text where a model predicts tokens."""

    kind: PredictionKind
    positions: list[int]  # positions of the tokens whose final states the head reads

    def follows_word(self, tokens: Sequence[Token], source: ModelSource) -> bool:
        """Tell whether a word that is predicted at the first position begins with a space."""
        return bool(self.positions) and follows_word(self.kind, tokens, self.positions[0], source)


def plan_predictions(
    run: RunConfig,
    source: ModelSource,
    terms: tuple[MaskTerm, ...],
    texts: Sequence[Sequence[Token]],
    *,
    is_whole_run: bool,
) -> list[PredictedPlaces]:
    """Return the places of every text where the model predicts; empty if it does not."""
    if run.target is not None:
        check_attribution(run, source, texts)
    elif run.predict is False:
        return []
    kind = prediction_kind(run, source, terms)
    if kind is None:
        if run.predict:
            raise _no_head(source, arg("predict"))
        return []
    if run.target is not None:
        return [PredictedPlaces(kind, attributed_positions(kind, tokens)) for tokens in texts]
    cheap = (
        is_whole_run
        and sum(map(len, texts)) <= _CHEAP
        and len(texts) <= _FEW
        and source.weights != "random"
    )
    if not (run.predict or cheap):
        return []
    places = [PredictedPlaces(kind, predicted_positions(kind, tokens)) for tokens in texts]
    if any(predicted_places.positions for predicted_places in places):
        return places
    if run.predict:
        hint = f"write {MASKS[0]} (or {MASKS[1]}) in its place, as the model's tokenizer spells it"
        raise UsageError("the text has no mask token to predict", where=arg("predict"), hint=hint)
    return []


def _no_head(source: ModelSource, where: str) -> UsageError:
    source.require_model(where)
    if source.part is not None:
        message = "predictions of a model with an encoder and a decoder are not shown"
        return UsageError(message, where=where, hint="remove it")
    message = f"{source.name} has no output head"
    return UsageError(
        message, where=where, hint="use a checkpoint of a language model, with its head"
    )


def check_generation(
    run: RunConfig,
    source: ModelSource,
    terms: tuple[MaskTerm, ...],
    texts: Sequence[Sequence[Token]],
) -> None:
    """Refuse to continue texts that the model cannot continue, or that would become too long."""
    where = arg("generate")
    if source.predicts is None:
        raise _no_head(source, where)
    if prediction_kind(run, source, terms) != "next":
        mask = arg("mask", "causal")
        hint = f"use a causal model, or a mask that the model was trained under, such as {mask} for riverbank"
        raise UsageError(f"{source.name} does not predict the next token", where=where, hint=hint)
    own = not source.mask_known and not all(isinstance(term, Own) for term in terms)
    if own or any(isinstance(term, OF_ONE_TEXT) for term in leaves(terms)):
        if own:
            hint = f"remove {arg('mask')}"
        else:
            hint = f"use a mask expression, without documents and {arg('hide')}"
        raise UsageError(
            "the mask is not defined for a text that gets longer", where=where, hint=hint
        )
    limit = source.config.max_positions
    for tokens in texts:
        prompt_length = len(tokens) - count_closing(tokens)
        if limit is not None and prompt_length + run.generate > limit:
            message = f"{prompt_length} tokens and {run.generate} more, but the model takes at most {limit}"
            hint = "use a shorter text"
            if limit > prompt_length:
                hint = f"use at most {limit - prompt_length}"
            raise UsageError(message, where=where, hint=hint)


def without_closing(tokens: list[Token]) -> list[Token]:
    """Return the tokens that a text is continued after."""
    return tokens[: max(1, len(tokens) - count_closing(tokens))]


def prediction_kind(
    run: RunConfig, source: ModelSource, terms: tuple[MaskTerm, ...]
) -> PredictionKind | None:
    """Return the kind of prediction under the run's mask; None if the model has no head.

    A masked language model predicts the next token under a causal mask that it was trained with.
    """
    used = spell_mask([term for term in terms if not isinstance(term, Hidden | ScoreFunction)])
    trained = (
        run.what_if == "stack"
        and used in source.trained_masks
        and any(term.left_to_right for term in terms)
    )
    if source.predicts == "masked" and trained:
        return "next"
    return source.predicts


def predicted_positions(kind: PredictionKind, tokens: Sequence[Token]) -> list[int]:
    """Return the positions whose final states predict: the last token of the text, or every mask token.

    Special tokens that the tokenizer adds at the end of a text are not predicted from, since nothing follows them.
    """
    if kind == "masked":
        return [position for position, token in enumerate(tokens) if token.piece in MASKS]
    return [max(0, len(tokens) - 1 - count_closing(tokens))]


def attributed_positions(kind: PredictionKind, tokens: Sequence[Token]) -> list[int]:
    """Return the positions whose logits are taken apart: before the first generated token, else those that predict."""
    made = [position for position, token in enumerate(tokens) if token.made]
    if made:
        return [made[0] - 1]
    return predicted_positions(kind, tokens)


_MOST = 1 << 24  # largest number of sources × heads × layers for which a logit is broken down
_ID = re.compile(r"<([0-9]{1,12})>")
# bytes of such a number: recorded, side by side, and freed in between but not reused; its size, with a place, ranked
_RECORDED = 24
_RANKED = 24


def logit_option(run: RunConfig) -> str:
    """Name the option that asked for a logit, as errors do."""
    return arg("target") if run.target else arg("by", "logit")


def check_attribution(
    run: RunConfig, source: ModelSource, texts: Sequence[Sequence[Token]]
) -> None:
    """Refuse runs for which direct logit attribution is undefined or too large."""
    config = source.config
    where = logit_option(run)
    source.require_model("direct logit attribution")
    if source.predicts is None:
        hint = "use a checkpoint of a language model, with its head"
        raise UsageError(f"{source.name} has no output head", where=where, hint=hint)
    reason = ""  # known of our own stack; transformers' models are examined while they run
    if config.head is not None and config.head.transform is not None:
        reason = "its output head has a non-linear layer in front of the vocabulary"
    elif config.norm_order == "post":
        reason = "it normalises after every residual sum (post-norm)"
    elif not config.residual:
        reason = "it has no residual stream"
    if reason:
        message = f"the logits of {source.name} are not a sum over its parts: {reason}"
        hint = "remove it, or use a pre-norm model, such as GPT-2 or Llama"
        raise UsageError(message, where=where, hint=hint)
    if count_cells(source, texts) > _MOST:
        raise UsageError(
            "the text is too long to break a logit down", where=where, hint="use a shorter text"
        )
    kind = prediction_kind(run, source, run.mask) or "next"
    for tokens in texts:
        positions = predicted_positions(kind, tokens)
        if not positions:
            hint = "put the mask token where it is to predict"
            raise UsageError(f"{source.name} predicts nothing in this text", where=where, hint=hint)
        for position in positions[:1]:
            target_ids(run.target, source, after_word=follows_word(kind, tokens, position, source))


def attribution_bytes(source: ModelSource, texts: Sequence[Sequence[Token]]) -> int:
    """Return the bytes of every token's contribution through every head: recorded, concatenated, and one layer while
    ranked."""
    cells = count_cells(source, texts)
    return _RECORDED * cells + _RANKED * cells // source.config.n_layers


def count_cells(source: ModelSource, texts: Sequence[Sequence[Token]]) -> int:
    """Count the kept numbers: every token's contribution through every head."""
    return max(map(len, texts)) * len(texts) * source.config.n_heads * source.config.n_layers


def target_ids(
    targets: Sequence[str] | None, source: ModelSource, *, after_word: bool = False
) -> tuple[int | None, int | None]:
    """Return the ids of the target and of the token whose logit is subtracted; None if none was named.

    Args:
        after_word: The target follows a token that does not end in a space, so that a word begins with one.
    """
    ids = [
        _token_id(target, targets or (), source, after_word=after_word) for target in targets or ()
    ]
    rows = source.config.vocab_size
    for target, token_id in zip(targets or (), ids, strict=True):
        if token_id >= rows:
            # The tokenizer was given more tokens than the model.
            message = f"'{target}' has id {token_id}, but the vocabulary of {source.name} has {rows} tokens"
            raise UsageError(
                message, where=arg("target"), hint=f"use a token with an id below {rows}"
            )
    return (ids[0] if ids else None), (ids[1] if len(ids) > 1 else None)


def target_warnings(
    targets: Sequence[str] | None, source: ModelSource, *, after_word: bool
) -> list[str]:
    """Say which targets are taken with a space before them, although they were typed without it."""
    warnings = []
    for target in targets or ():
        plain = _plain_id(target, source)
        token_id = _token_id(target, targets or (), source, after_word=after_word)
        if token_id == plain or token_id != _spaced_id(target, source):
            continue
        without = "" if plain is None else f"; <{plain}> is '{target}' without one"
        warnings.append(
            f"--target '{target}' is taken as ' {target}', since the text does not end in a space{without}"
        )
    return warnings


def follows_word(
    kind: PredictionKind, tokens: Sequence[Token], position: int, source: ModelSource
) -> bool:
    """Tell whether a word that is predicted at a position begins with a space.

    It does after a token that is no special one and does not end in a space; in place of a mask token, it does unless
    that is the text's first.
    """
    if kind == "masked":
        return position > 0 and not tokens[position - 1].special
    token = tokens[position]
    return not token.special and not source.tokenizer.spelled(token.id)[1][-1:].isspace()


def _token_id(target: str, targets: Sequence[str], source: ModelSource, *, after_word: bool) -> int:
    """Return the id of a target: of a word after another, the one with a space, unless both are targets."""
    spaced = _spaced_id(target, source)
    if spaced is not None and after_word and f" {target}" not in targets:
        return spaced
    plain = _plain_id(target, source)
    if plain is not None:
        return plain
    tokens = _typed_tokens(target, source)
    pieces = listed([f"'{token.piece}'" for token in tokens], 8)
    hint = "use one token, such as ' store' with the space before the word"
    if spaced is not None:
        hint = f"with the space before it, it is one token: {arg('target', f' {target}')}"
    raise UsageError(
        f"'{target}' is {len(tokens)} tokens: {pieces}", where=arg("target"), hint=hint
    )


def _plain_id(target: str, source: ModelSource) -> int | None:
    """Return the id of a token as it was typed, by its piece, its text or its id as `<26>`; None for several tokens."""
    token_id = source.tokenizer.id_of(target)
    if token_id is not None:
        return token_id
    if by_id := _ID.fullmatch(target):
        return int(by_id[1])
    tokens = _typed_tokens(target, source)
    return tokens[0].id if len(tokens) == 1 else None


def _spaced_id(target: str, source: ModelSource) -> int | None:
    """Return the id of a word with the space before it; None if that is not one token, or it is no word."""
    if not target[:1].isalnum():
        return None
    # Some tokenizers add the space themselves.
    for typed in (f" {target}", target):
        tokens = _typed_tokens(typed, source)
        if len(tokens) == 1 and source.tokenizer.spelled(tokens[0].id)[1] == f" {target}":
            return tokens[0].id
    return None


def _typed_tokens(typed: str, source: ModelSource) -> list[Token]:
    return [
        token for token in source.tokenizer.encode(typed, where=arg("target")) if not token.special
    ]
