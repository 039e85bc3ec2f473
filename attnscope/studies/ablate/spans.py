"""Cut an answer off from each span of its text.

Imports torch only if the model generates the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as changed

from msgspec.structs import replace

from attnscope.base.errors import UsageError, arg
from attnscope.checkpoints.source import ModelSource, count_closing
from attnscope.findings.spans import TextSpans
from attnscope.findings.tokens import Token
from attnscope.request.run_config import RunConfig
from attnscope.run.cut_plan import Cut
from attnscope.run.plan import plan_texts
from attnscope.run.prediction_plan import prediction_kind
from attnscope.run.session import Session, continue_texts, reading_span
from attnscope.run.text_plan import TextPlan
from attnscope.studies.ablate.plan import AblationOptions, compared_positions

_GENERATED = 8  # tokens of an answer that the user leaves to the model


@dataclass(frozen=True)
class AnsweredText:
    """A text with its answer.

    Attributes:
        run: The run; its text ends with the answer, if one was given.
        answer: Positions of the answer's tokens; empty without one.
        rows: Positions that are cut off: those that predict the answer, or those that the user named.
        positions: Positions whose predictions and hidden states are compared.
        notes: Remarks for the reader.
    """

    run: RunConfig
    text: TextPlan
    spans: TextSpans
    answer: list[int]
    rows: list[int]
    positions: list[int]
    notes: list[str]

    @property
    def targets(self) -> list[int]:
        """Ids of the answer's tokens if `positions` predict them; else none."""
        predicting = [position - 1 for position in self.answer]
        return [self.text.tokens[position].id for position in self.answer] if predicting == self.positions else []

    def cuts(self, source: ModelSource) -> tuple[list[int], list[Cut]]:
        """Return the number of each span that can be cut off, and its cut in every chosen layer and head."""
        c, run = source.config, self.run
        layers, heads = run.layer.numbers(c.n_layers, "layer"), run.head.numbers(c.n_heads, "head")
        places = tuple((layer, head) for layer in layers for head in heads)
        own = {self.spans.of_token[position] for position in self.answer}
        last = max(self.rows)
        numbers = [n for n in range(len(self.spans.names)) if n not in own]
        keys = {n: tuple(key for key in self.spans.tokens(n) if key <= last or not _causal(source)) for n in numbers}
        numbers = [n for n in numbers if keys[n]]
        if not numbers:
            raise UsageError("the text has one span", where=arg("each", "span"), hint=f"divide it with {arg('spans')}")
        return numbers, [Cut("", places, tuple(self.rows), keys[n]) for n in numbers]


def _causal(source: ModelSource) -> bool:
    return source.predicts == "next"


def answer_text(run: RunConfig, options: AblationOptions, source: ModelSource, session: Session) -> AnsweredText:
    """Return a text with its answer: the one given, the last turn of a chat, or what the model generates.

    Args:
        run: The run, its chat rendered.
        options: What is asked for.
        source: The model.
        session: Has the model open.
    """
    source.require_model("ablation")
    run = replace(run, window=None, pool=None)
    (prompt,) = plan_texts(replace(run, query=None, key=None), source)
    if prompt.spans is None:
        hint = f"add {arg('spans', 'sentences')}, or marks such as {arg('spans', 'Doc 1:,Question:')}"
        raise UsageError("the text is not divided", where=arg("each", "span"), hint=hint)
    given = bool(_positions(prompt.spans)) and _causal(source)
    if given and (options.answer is not None or options.generate is not None):
        name = "answer" if options.answer is not None else "generate"
        what, last = ("chat", "last message") if run.texts[0].turns else ("text", "span 'answer'")
        hint = f"remove {arg(name)}, or the {what}'s {last}"
        raise UsageError(f"the {what} ends with an answer", where=arg(name), hint=hint)
    notes, tokens = list[str](), None
    predicts = prediction_kind(run, source, run.mask) == "next"
    count = options.generate if options.generate is not None else _GENERATED * (predicts and run.query is None)
    if options.answer is not None:
        run, tokens = _with_answer(run, options.answer, prompt.tokens, source)
    elif not given and count:
        tokens = continue_texts(replace(run, query=None, key=None, generate=count), source, session)[0].tokens
        written = "".join(source.tokenizer.spelled(token.id)[1] for token in tokens if token.made)
        more = "; --answer TEXT gives another one" if options.generate is None else ""
        notes.append(f"the answer is what the model generates: {written!r}{more}")
    (text,) = plan_texts(run, source, None if tokens is None else {0: tokens})
    if options.answer is not None:  # it was marked as generated to be a span
        text = changed(text, tokens=[replace(token, made=False) for token in text.tokens])
    return read_answer(run, options, source, text, notes)


def read_answer(
    run: RunConfig, options: AblationOptions, source: ModelSource, text: TextPlan, notes: Sequence[str] = ()
) -> AnsweredText:
    """Return a planned text with the tokens to cut off: its answer's, those of `query`, or the last span's.

    Args:
        options: What is asked for.
        source: The model.
    """
    assert text.spans is not None
    answer = _positions(text.spans) if _causal(source) else []  # only such a model predicts it token by token
    more_notes = list[str]()
    positions = [position - 1 for position in answer if position]
    if options.at is not None or not positions:
        positions, more_notes = compared_positions(options, run, source, text)
    rows = text.queries if run.query is not None else [position - 1 for position in answer if position] or positions
    if not rows:  # as where nothing is predicted: the span that `run` shows
        rows = text.spans.tokens(reading_span(text.spans, ()))
    return AnsweredText(run, text, text.spans, answer, rows, positions, [*text.notes, *notes, *more_notes])


def _positions(spans: TextSpans | None) -> list[int]:
    """Return the positions of the answer's tokens."""
    if spans is None:
        return []
    return [n for n, span in enumerate(spans.of_token) if spans.kinds[span] == "answer"]


def _with_answer(
    run: RunConfig, answer: str, prompt: Sequence[Token], source: ModelSource
) -> tuple[RunConfig, list[Token]]:
    """Return a run whose text ends with the answer, and its tokens, the answer's marked as generated."""
    where = arg("answer")
    if prediction_kind(run, source, run.mask) != "next":
        hint = "use a causal language model"
        raise UsageError(f"{source.name} does not predict the next token", where=where, hint=hint)
    (written,) = run.texts
    full_text = written.text + answer
    tokens = source.tokenizer.encode(full_text, written.pair, where=where, special=written.adds_special)
    tokens = tokens[: len(tokens) - count_closing(tokens)]
    kept = len(prompt) - count_closing(prompt)
    if [token.id for token in tokens[:kept]] != [token.id for token in prompt[:kept]] or len(tokens) == kept:
        message = "has no tokens of its own" if not answer.strip() else "its first token is part of the text's last"
        raise UsageError(message, where=where, hint="begin the answer with a space or a line break")
    most = source.config.max_positions
    if most is not None and len(tokens) > most:
        message = f"{len(tokens)} tokens with the text, but the model takes at most {most}"
        raise UsageError(message, where=where, hint="use a shorter text")
    marked = [replace(token, made=position >= kept) for position, token in enumerate(tokens)]
    return replace(run, texts=(replace(written, text=full_text),)), marked
