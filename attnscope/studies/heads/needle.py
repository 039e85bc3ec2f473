"""Hide a needle in texts of several lengths and at several depths, and measure what heads read of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.base.files.reading import read_file
from attnscope.checkpoints.source import ModelSource, tokenize
from attnscope.checkpoints.tokenization.hugging_face import FileTokenizer
from attnscope.findings.head_findings import NeedleSurvey
from attnscope.findings.tokens import Token
from attnscope.request.run_config import RunConfig
from attnscope.run.pass_plan import plan_passes
from attnscope.run.prediction_plan import prediction_kind
from attnscope.run.session import (
    Session,
    describe_mask_use,
    forward,
    prepare,
    provenance,
)
from attnscope.run.text_plan import TextPlan, documents_of_mask
from attnscope.studies.heads.probes import special_frame
from attnscope.studies.heads.run import SurveyOptions, survey_heads
from attnscope.studies.heads.texts import TEXTS

LENGTHS = (512, 1024)
DEPTHS = tuple(n / 10 for n in range(11))
_LARGEST = 64 << 20  # bytes of a file of filler
_HEADS = 10  # retrieval heads that are averaged
# numbers of groups of tokens; all others are 0
_READING = 2
_NEEDLE = 1
_JOINT = "\n"  # before the cue
_END = re.compile(r"[.!?\n][\"'”’)]*$")  # of a sentence


@dataclass(frozen=True)
class NeedleOptions:
    """The hidden needle, its filler, and the lengths and depths to try."""

    needle: str
    # the part of the needle whose probability is measured; None for its last word
    answer: str | None
    filler: str | None  # the text around the needle; None for built-in texts
    lengths: tuple[int, ...]  # lengths of the texts, in tokens
    depths: tuple[float, ...]  # shares of the filler before the needle
    draws: int = 8  # number of random sequences on which the role `retrieval` is measured
    seed: int = 0


@dataclass(frozen=True)
class _Prompt:
    tokens: list[Token]
    needle: range
    reading: range  # positions that predict the answer
    answer: list[int]  # ids of the answer's tokens


def read_filler(filler: str | Path | None) -> str | None:
    """Return the text of a filler, which may be a file; refuse invalid UTF-8 and blank files."""
    if not isinstance(filler, Path):
        return filler
    try:
        text = read_file(filler, cap=_LARGEST).decode()
    except UnicodeDecodeError as e:
        message = f"byte 0x{e.object[e.start]:02x} is not UTF-8"
        raise AttnscopeError(message, where=filler, hint="save it as UTF-8") from e
    if not text.strip():
        raise AttnscopeError("has no text", where=filler, hint="pass a file with some text")
    return text


def split_needle(needle: str, answer: str | None) -> tuple[str, str]:
    """Return the needle before its answer, and the answer with the blank before it."""
    wanted = answer.strip() if answer is not None else ""
    if answer is None:
        words = needle.split()
        wanted = words[-1].rstrip(".!?") or words[-1] if words else ""
    at = needle.rfind(wanted) if wanted else -1
    if at < 0:
        raise UsageError(
            f"is not in the needle '{needle}'",
            where=arg("answer"),
            hint="name a part of the needle",
        )
    cue = needle[:at].rstrip()
    if not cue:
        hint = "use a sentence such as 'The key of the vault is 71432.'"
        raise UsageError(
            "has nothing before its answer that could ask for it", where=arg("needle"), hint=hint
        )
    return cue, needle[len(cue) : at + len(wanted)]


def find_needle(
    run: RunConfig,
    options: NeedleOptions,
    session: Session | None = None,
) -> NeedleSurvey:
    """Measure how much heads read of a needle, by length and depth."""
    session = session or Session(())
    source = session.source(run)
    if prediction_kind(run, source, run.mask) != "next" or not isinstance(
        source.tokenizer, FileTokenizer
    ):
        hint = "use a causal language model with its head"
        raise UsageError(
            f"{source.name} does not predict the next token", where=arg("needle"), hint=hint
        )
    cue, answer = split_needle(options.needle, options.answer)
    prompts = _prompts(options, source, cue, answer)
    probed = SurveyOptions(("retrieval",), options.draws, options.seed)
    survey = survey_heads(replace(run, texts=()), probed, session=session)
    values = survey.roles[0].values
    order = np.argsort(-np.nan_to_num(values, nan=-1.0), axis=None, kind="stable")[:_HEADS]
    heads = [divmod(int(n), values.shape[1]) for n in order]
    shape = len(options.lengths), len(options.depths)
    weight, every, bits = (np.empty(shape, np.float32) for _ in range(3))
    mask = None
    for step, (cell, prompt) in enumerate(prompts.items(), 1):
        read, bits[cell], mask = _measure(
            run, source, session, prompt, f"needle {step} of {len(prompts)}"
        )
        weight[cell] = np.mean([read[head] for head in heads])
        every[cell] = read.mean()
    device = session.load(plan_passes(run, source, [[_plan(run, source, prompt)]], 0)[0])[1]
    return NeedleSurvey(
        provenance(source, run, device),
        describe_mask_use(source, run, mask),
        options.needle,
        cue,
        answer.strip(),
        "the built-in texts, repeated" if options.filler is None else "the file",
        heads,
        [float(values[head]) for head in heads],
        list(options.lengths),
        list(options.depths),
        weight,
        every,
        bits,
        list(survey.notes),
    )


def _plan(run: RunConfig, source: ModelSource, prompt: _Prompt) -> TextPlan:
    documents = documents_of_mask(run, source, prompt.tokens, "texts around the needle")
    return TextPlan(prompt.tokens, None, None, [], [], None, [], documents=documents)


def _prompts(
    options: NeedleOptions, source: ModelSource, cue: str, answer: str
) -> dict[tuple[int, int], _Prompt]:
    """Return the texts by the places of their length and depth."""
    filler = options.filler if options.filler is not None else " ".join(TEXTS)
    framed, _ = tokenize(source, options.needle, None, arg("needle"), truncate=False)
    before = special_frame(source, framed)[0]
    needle = _encode(source, f" {options.needle.strip()} ", arg("needle"))
    asking = _encode(source, _JOINT + cue, arg("needle"))
    both = _encode(source, _JOINT + cue + answer, arg("answer"))
    if [token.id for token in both[: len(asking)]] != [token.id for token in asking] or len(
        both
    ) == len(asking):
        hint = "let the answer begin with a word of its own"
        raise UsageError(
            "its first token is part of what comes before it", where=arg("answer"), hint=hint
        )
    fixed = len(before) + len(needle) + len(both)
    longest = max(options.lengths)
    limit = source.config.max_positions
    if min(options.lengths) <= fixed:
        message = (
            f"{min(options.lengths)} tokens, of which the needle and its question take {fixed}"
        )
        raise UsageError(message, where=arg("lengths"), hint=f"use {fixed + 32} or more")
    if limit is not None and longest > limit:
        message = f"{longest:,} tokens, but the model takes at most {limit:,}"
        raise UsageError(
            message, where=arg("lengths"), hint=f"use {arg('lengths', str(limit))} or less"
        )
    once = _encode(source, f" {filler.strip()} ", arg("filler"))
    text = [once[n % len(once)] for n in range(longest)]
    ids = [token.id for token in both[len(asking) :]]
    prompts = {}
    for i, length in enumerate(options.lengths):
        count = length - fixed
        for j, depth in enumerate(options.depths):
            at = _sentence_start(text, round(depth * count), count)
            start = len(before) + at
            reading = range(length - len(ids) - 1, length - 1)
            tokens = [*before, *text[:at], *needle, *text[at:count], *both]
            prompts[i, j] = _Prompt(tokens, range(start, start + len(needle)), reading, ids)
    return prompts


def _encode(source: ModelSource, text: str, where: str) -> list[Token]:
    """Return a text's tokens without special ones around it, and without character offsets."""
    assert isinstance(source.tokenizer, FileTokenizer)
    tokens = source.tokenizer.encode(text, where=where, special=False)
    worst = max(tokens, key=lambda token: token.id)
    if worst.id >= source.config.vocab_size:
        message = f"token '{worst.piece}' has id {worst.id}, but the embedding has {source.config.vocab_size} rows"
        raise AttnscopeError(message, where=where, hint="the tokenizer belongs to another model")
    return [replace(token, start=None, end=None) for token in tokens]


def _sentence_start(tokens: Sequence[Token], at: int, count: int) -> int:
    """Return the start of the sentence around a position; the position itself at both ends or without sentences."""
    if at in (0, count):
        return at
    return next((n for n in range(at, 0, -1) if _END.search(tokens[n - 1].text)), at)


def _measure(
    run: RunConfig, source: ModelSource, session: Session, prompt: _Prompt, step: str
) -> "tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], float, str | None]":
    """Return every head's weight on the needle, (layers, heads), the log-probability of the answer, and the mask."""
    c = source.config
    (plan,) = plan_passes(
        run, source, [[_plan(run, source, prompt)]], 9 * 16 * c.n_layers * c.n_heads
    )
    model, device = session.load(plan)
    import torch

    from attnscope.model.matmul import to_float64
    from attnscope.model.recorders import SpanRecorder, SpanTokens

    batch, engine = prepare(plan, model, device)
    groups = torch.zeros(1, len(prompt.tokens), dtype=torch.int64, device=device)
    groups[0, list(prompt.needle)] = _NEEDLE
    groups[0, list(prompt.reading)] = _READING
    spans = SpanTokens(groups, 3)
    recorders = {layer: SpanRecorder(range(c.n_heads), spans) for layer in engine.layers}
    layers = {layer: [recorder] for layer, recorder in recorders.items()}
    hidden = forward(plan, batch, engine, layers, (step, session.progress), final=True)
    assert hidden is not None
    logs = to_float64(engine.logits(hidden[0, list(prompt.reading)])).log_softmax(-1).cpu()
    total = sum(float(logs[n, target]) for n, target in enumerate(prompt.answer))
    read = np.full(engine.sizes, np.nan)
    for layer, recorder in recorders.items():
        read[layer] = recorder.compute()[0, :, _READING, _NEEDLE].cpu().double().numpy()
    return read, total / float(np.log(2.0)), engine.describe_mask()
