"""The walk between the spans of a text on its page, before that between its tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from attnscope.findings.arrays import Array, Floats, Matrix
from attnscope.findings.heads import HeadRef
from attnscope.findings.run import Report, TextReport
from attnscope.findings.spans import SpanReport
from attnscope.run.summary_plan import MOST_CELLS
from attnscope.studies.explore.saved import SavedSource, SavedText
from attnscope.studies.explore.units import UNNAMED, TextUnits, unit_scene
from attnscope.studies.screens.spans import averaged_heads, mean_weights
from attnscope.views.page.elements import text_of
from attnscope.views.settings import TypedCommand
from attnscope.views.spans import Span
from attnscope.views.walk.effects import tied_names
from attnscope.views.walk.scene import Number, RankedSources, RunCommand, Scene, WalkHead

_LISTED = 12  # spans that a row lists
_NAMED = 3  # spans or words that an answer names
# Options that say what runs, in every command.
_OF_CHATS = (
    "chat",
    "model",
    "config",
    "adapter",
    "tokenizer",
    "engine",
    "dtype",
    "mask",
    "spans",
    "generate",
)
WORTH_NAMING = 0.05  # share of a span or word outside of the text that an answer names
Sizes = tuple[
    list[Number], list[Number]
]  # the layers and heads of a walk, with `mean` for that of all


@dataclass
class SpanSource(SavedSource):
    """A walk through a report whose texts are shown twice: between spans, and between tokens."""

    named: ClassVar[bool] = True


def with_spans(
    source: SavedSource,
    report: Report,
    made_by: TypedCommand | None = None,
    between_words: Callable[[TextReport, SavedText], SavedText] | None = None,
) -> SpanSource:
    """Put a walk between the spans of each text, and one between its words, before the one between its tokens.

    Args:
        between_words: Makes the walk between the words of a text that has them.
        made_by: The command of the report, which names the file of a chat; its text has the template in it.
    """
    names: list[str] = []
    saved = {}
    for n, text in enumerate(report.texts):
        which = f" of {n} {text.text}" if len(report.texts) > 1 else ""
        tokens = source.saved[n, 0]
        if text.chat is not None and made_by is not None:
            tokens = SavedText(partial(_of_chat, tokens, made_by), tokens.heads)
        if text.spans is not None:
            saved[len(names), 0] = _between_spans(text, text.spans, tokens)
            names.append(f"as spans{which}")
        if text.words is not None and between_words is not None:
            saved[len(names), 0] = between_words(text, tokens)
            names.append(f"as words{which}")
        saved[len(names), 0] = tokens
        names.append(f"as tokens{which}")
    return SpanSource(names, source.masks, saved)


def _of_chat(tokens: SavedText, made_by: TypedCommand) -> Scene:
    """Return the scene of a chat, whose command names its file."""
    words = " ".join(word for option, word in made_by.words if option in _OF_CHATS)
    typed = RunCommand("" if made_by.elsewhere else words, shared_words=words)
    return replace(tokens.scene(), command=typed)


def _between_spans(text: TextReport, spans: SpanReport, tokens: SavedText) -> SavedText:
    """Return the walk between spans: all heads, the means of layers and of heads, and the mean of all."""
    sizes: Sizes = [*attending(spans), "mean"], [*range(spans.weights.shape[1]), "mean"]
    scene = partial(_scene, text, spans, tokens, sizes)
    return SavedText(scene, partial(span_heads, spans, sizes))


def attending(spans: SpanReport) -> list[int]:
    """Return the layers whose heads have weights."""
    is_attending = ~np.isnan(spans.weights).all(axis=(1, 2, 3))
    layers: list[int] = np.flatnonzero(is_attending).tolist()
    return layers


def span_heads(spans: SpanReport, sizes: Sizes) -> dict[tuple[int, int], Callable[[], WalkHead]]:
    """Return what makes the weights between spans of these layers and heads, and of means over them."""
    layers, heads = sizes
    cells = len(layers) * len(heads) * len(spans.text.names) ** 2
    return {
        (row, column): partial(_head, spans, HeadRef(layer, head), exact=cells <= MOST_CELLS)
        for row, layer in enumerate(layers)
        for column, head in enumerate(heads)
    }


def _head(spans: SpanReport, ref: HeadRef, *, exact: bool) -> WalkHead:
    """Return a head, or a mean; that of all is of the selected heads if the user selected some."""
    every = np.ndindex(spans.weights.shape[:2])
    averaged = [at for at in every if ref.layer in (at[0], "mean") and ref.head in (at[1], "mean")]
    if ref == ("mean", "mean"):
        exact = True
        if averaged_head(spans) is None:
            averaged = spans.selected or averaged
    weights, sink = mean_weights(spans, averaged)
    matrix = weights.astype(np.float32)
    rows: dict[str, Floats] = {}
    if sink is not None:
        rows["sink"] = sink.ravel()
    chosen = ""
    if ref == (averaged_head(spans) or ("mean", "mean")):
        chosen = averaged_heads(spans)[1]
    return WalkHead(
        ref.layer,
        ref.head,
        stages={"weights": matrix},
        masked_rows=frozenset(np.flatnonzero(np.isnan(matrix).all(1)).tolist()),
        sources=ranked(matrix),
        rows=rows,
        chosen=chosen,
        exact=exact,
    )


def averaged_head(spans: SpanReport) -> HeadRef | None:
    """Return the head, or the mean, that answers are about; None for the mean of other heads that the user selected."""
    selected, _ = averaged_heads(spans)
    if selected is None:
        return HeadRef("mean", "mean")
    layers, heads = ({head[axis] for head in selected} for axis in (0, 1))
    layer: Number = "mean"
    head: Number = "mean"
    if len(layers) == 1:
        layer = min(layers)
    if len(heads) == 1:
        head = min(heads)
    wanted = (1 if layer != "mean" else len(attending(spans))) * (
        1 if head != "mean" else spans.weights.shape[1]
    )
    if len(selected) != wanted:
        return None
    return HeadRef(layer, head)


def ranked(matrix: Matrix) -> RankedSources:
    """Return the spans that each span reads, the strongest first."""
    weights = np.nan_to_num(matrix)
    places = np.argsort(-weights, axis=1, kind="stable")[:, :_LISTED]
    values = np.take_along_axis(weights, places, 1)
    return RankedSources("weight", np.where(values > 0, places, -1), {"weight": values})


def _scene(text: TextReport, spans: SpanReport, tokens: SavedText, sizes: Sizes) -> Scene:
    token_scene = tokens.scene()
    scene = span_scene(text, spans, token_scene, sizes)
    command = scene.command
    first = averaged_head(spans)
    if first is None:
        first = HeadRef("mean", "mean")
        command = None  # no command shows the mean of some heads of several layers by that name
    if token_scene.start_key is None:
        others, _ = _read_spans(spans)
        key = next(iter(others), None)
        answer = _answer(spans)
    else:  # a question about a cell, which the page answers of every head
        key = spans.text.of_token[token_scene.keys.positions[token_scene.start_key]]
        answer = ""
    layers, heads = sizes
    return replace(
        scene,
        first=(layers.index(first.layer), heads.index(first.head)),
        command=command,
        start_key=key,
        display="lens",
        answer=answer,
    )


def span_scene(text: TextReport, spans: SpanReport, tokens: Scene, sizes: Sizes) -> Scene:
    """Return the scene between spans, of the scene between tokens; it begins at the reading span."""
    division = "" if spans.division in UNNAMED else spans.division
    units = TextUnits(text.tokens, text.sources, spans.text, division=division)
    layers, heads = sizes
    counts = (max(1, sum(isinstance(n, int) for n in numbers)) for numbers in sizes)
    return replace(
        unit_scene(tokens, units, "spans"),
        layers=layers,
        heads=heads,
        start=spans.query,
        start_key=None,
        predictions=[],  # of tokens
        numbers=[],
        roles=None,
        effects=None,
        no_effects="",
        alignment=None,
        size="×".join(map(str, counts)),
    )


def _read_spans(spans: SpanReport) -> tuple[list[int], list[int]]:
    """Return the other parts of the text that the reading span reads, and those outside of it, the strongest first."""
    heads, _ = averaged_heads(spans)
    weights, _ = mean_weights(spans, heads)
    shares = weights[spans.query]
    order = np.argsort(-shares, kind="stable").tolist()
    # the first token, special ones, and what a template writes
    outside = [span for span in order if spans.text.outside[span] or span == spans.text.of_token[0]]
    others = [span for span in order if span not in (*outside, spans.query) and shares[span] > 0]
    return others, outside


def _answer(spans: SpanReport) -> str:
    """Say which spans the reading span reads most, and which head reads the first of these most."""
    heads, whose = averaged_heads(spans)
    weights, _ = mean_weights(spans, heads)
    shares = weights[spans.query]
    reader = quoted(spans.text.names[spans.query])
    if np.isnan(shares).all():
        return f"The tokens of {reader} may attend to nothing."
    names = [quoted(name) for name in spans.text.names]
    read, outside = _read_spans(spans)
    if not read:
        return f"{reader} reads nothing but itself ({shares[spans.query]:.2f}) and special tokens."
    said = f"{in_heads(whose)}, {reader} reads {read_most(names, shares, read, 'parts')} (sums over tokens)."
    said += f" It reads itself {shares[spans.query]:.2f}"
    said += "".join(
        f", {names[span]} {shares[span]:.2f}"
        for span in outside
        if shares[span] >= WORTH_NAMING and span != spans.query
    )
    cells: Array = np.nan_to_num(spans.weights[:, :, spans.query, read[0]])
    by_head = {str(HeadRef(*at)): float(cells[at]) for at in np.ndindex(cells.shape)}
    return f"{said}. {reading_heads(by_head, names[read[0]])}"


def in_heads(whose: str) -> str:
    """Begin an answer with the heads that it is about, which need not be those that a reader has opened since."""
    return f"In the {whose}" if whose.startswith("mean") else f"In {whose}"


def read_most(names: Sequence[str], shares: Array, read: Sequence[int], of: str) -> str:
    """Say what of the others is read most, and how much of the next ones.

    What has the same digits as the first is named with it: on a screen, none of these is ahead.

    Args:
        read: What the answer may name, the strongest first.
        of: What they are, such as `parts`.
    """
    texts = [f"{shares[n]:.2f}" for n in read]
    tied = texts.count(texts[0])
    most = tied_names([names[n] for n in read[:tied]])
    said = f"{most} most of the other {of}: {texts[0]} of its weight{' each' * (tied > 1)}"
    then = [f"{names[n]} {text}" for n, text in zip(read, texts, strict=True)][tied:_NAMED]
    return f"{said}{', then ' * bool(then)}{' and '.join(then)}"


def reading_heads(by_head: Mapping[str, float], name: str) -> str:
    """Say which head reads something most, or all that do by the digits shown."""
    order = sorted(by_head, key=lambda head: -by_head[head])
    most = f"{by_head[order[0]]:.2f}"
    tied = [head for head in order if f"{by_head[head]:.2f}" == most]
    verb = "reads" if len(tied) == 1 else "read"
    return f"Of all heads, {tied_names(tied)} {verb} {name} most: {most}."


def quoted(name: str) -> str:
    """Return the name of a span within a sentence."""
    return f"“\u2068{text_of(Span(name, origin='untrusted'))}\u2069”"
