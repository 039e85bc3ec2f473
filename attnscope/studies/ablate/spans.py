"""Cut an answer off from each span of its text.

Imports torch only if the model generates the answer.
"""

from collections.abc import Sequence
from dataclasses import replace as changed

from msgspec.structs import replace

from attnscope.base.errors import UsageError, arg
from attnscope.checkpoints.source import ModelSource, count_closing
from attnscope.findings.hints import Hint
from attnscope.findings.spans import TextSpans
from attnscope.findings.tokens import Token
from attnscope.request.run_config import RunConfig
from attnscope.run.plan import plan_texts
from attnscope.run.prediction_plan import prediction_kind
from attnscope.run.session import Session, continue_texts, reading_span
from attnscope.run.text_plan import TextPlan
from attnscope.studies.ablate.plan import AblationOptions, AblationRun, compared_positions

_GENERATED = 8  # tokens of an answer that the user leaves to the model


def answer_text(
    run: RunConfig, options: AblationOptions, source: ModelSource, session: Session
) -> AblationRun:
    """Return a text with its answer: the one given, the last turn of a chat, or what the model generates.

    The text of its run ends with the answer, if one was given.
    """
    run = replace(run, window=None, pool=None)
    (prompt,) = plan_texts(replace(run, query=None, key=None), source)
    assert prompt.spans is not None
    has_answer = bool(_answer_positions(prompt.spans)) and source.predicts == "next"
    if has_answer and (options.answer is not None or options.generate is not None):
        name = "answer" if options.answer is not None else "generate"
        if run.texts[0].turns:
            what = "chat"
            last = "last message"
        else:
            what = "text"
            last = "span 'answer'"
        hint = f"remove {arg(name)}, or the {what}'s {last}"
        raise UsageError(f"the {what} ends with an answer", where=arg(name), hint=hint)
    warnings = list[str]()
    tokens = None
    predicts = prediction_kind(run, source, run.mask) == "next"
    if options.generate is not None:
        count = options.generate
    else:
        count = _GENERATED * (predicts and run.query is None)
    if options.answer is not None:
        run, tokens = _with_answer(run, options.answer, prompt.tokens, source)
    elif not has_answer and count:
        given = f"add {arg('answer', placeholder='TEXT')}"
        continued = replace(run, query=None, key=None, generate=count)
        try:
            tokens = continue_texts(continued, source, session)[0].tokens
        except UsageError as error:
            if options.generate is not None or error.parts.where != arg("generate"):
                raise
            message = f"no answer can be generated: {error.parts.message}"
            raise UsageError(message, where=arg("each", "span"), hint=given) from error
        generated_text = "".join(
            source.tokenizer.spelled(token.id)[1]
            for token in tokens
            if token.made and not token.special
        )
        if not generated_text:
            message = "the model ends the text at once, so there is no answer"
            raise UsageError(message, where=arg("each", "span"), hint=given)
        statement = f"the answer is what the model generates: {generated_text!r}"
        if options.generate is None:
            statement = Hint.ANSWER.after(statement)
        warnings.append(statement)
    (text,) = plan_texts(run, source, None if tokens is None else {0: tokens})
    if options.answer is not None:  # it was marked as generated to be a span
        text = changed(text, tokens=[replace(token, made=False) for token in text.tokens])
    text.warnings.extend(warnings)
    return read_answer(run, options, source, session, text)


def read_answer(
    run: RunConfig,
    options: AblationOptions,
    source: ModelSource,
    session: Session,
    text: TextPlan,
) -> AblationRun:
    """Return a planned text with the tokens to cut off: its answer's, those of `query`, or the last span's."""
    assert text.spans is not None
    # only a causal model predicts the answer token by token
    answer = _answer_positions(text.spans) if source.predicts == "next" else []
    predicting = [position - 1 for position in answer if position]
    positions = predicting
    if options.at is not None or not positions:
        positions, warnings = compared_positions(options, run, source, text)
        text.warnings.extend(warnings)
    rows = text.queries if run.query is not None else predicting or positions
    if not rows:  # as where nothing is predicted: the span that `run` shows
        rows = text.spans.tokens(reading_span(text.spans, ()))
    return AblationRun(
        run, options, source, session, text, positions, list(text.notes), answer=answer, rows=rows
    )


def _answer_positions(spans: TextSpans) -> list[int]:
    return [n for n, span in enumerate(spans.of_token) if spans.kinds[span] == "answer"]


def _with_answer(
    run: RunConfig, answer: str, prompt: Sequence[Token], source: ModelSource
) -> tuple[RunConfig, list[Token]]:
    """Return a run whose text ends with the answer, and its tokens, the answer's marked as generated."""
    where = arg("answer")
    if prediction_kind(run, source, run.mask) != "next":
        hint = "use a causal language model"
        raise UsageError(f"{source.name} does not predict the next token", where=where, hint=hint)
    (text_input,) = run.texts
    full_text = text_input.text + answer
    prompt_length = len(prompt) - count_closing(prompt)
    # the tokens of its pictures are not those of their placeholders
    if text_input.read is not None:
        added = source.tokenizer.encode(answer, None, where=where, special=False)
        shift = len(text_input.text)
        moved = []
        for token in added:
            if token.start is None or token.end is None:
                moved.append(token)
            else:
                moved.append(replace(token, start=token.start + shift, end=token.end + shift))
        tokens = [*prompt[:prompt_length], *moved]
    else:
        tokens = source.tokenizer.encode(
            full_text, text_input.pair, where=where, special=text_input.adds_special
        )
        tokens = tokens[: len(tokens) - count_closing(tokens)]
    if [token.id for token in tokens[:prompt_length]] != [
        token.id for token in prompt[:prompt_length]
    ] or len(tokens) == prompt_length:
        message = "its first token is part of the text's last"
        if not answer.strip():
            message = "has no tokens of its own"
        raise UsageError(message, where=where, hint="begin the answer with a space or a line break")
    limit = source.config.max_positions
    if limit is not None and len(tokens) > limit:
        message = f"{len(tokens)} tokens with the text, but the model takes at most {limit}"
        raise UsageError(message, where=where, hint="use a shorter text")
    marked = [
        replace(token, made=position >= prompt_length) for position, token in enumerate(tokens)
    ]
    return replace(run, texts=(replace(text_input, text=full_text),)), marked
