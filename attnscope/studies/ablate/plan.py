"""Resolve what is cut against a model and a text. Never imports torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Literal

from msgspec.structs import replace

from attnscope.base.errors import TEXTS_FILE, AttnscopeError, UsageError, arg
from attnscope.checkpoints.source import ModelSource
from attnscope.findings.words import words_of
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import CutExpression, PositionSelection
from attnscope.run.cut_plan import Cut
from attnscope.run.pass_plan import plan_passes
from attnscope.run.plan import RunPlan, plan_texts
from attnscope.run.prediction_plan import MASKS, predicted_positions, prediction_kind
from attnscope.run.text_plan import TextPlan

Unit = Literal["head", "layer", "edge", "span"]
Replacement = Literal["zero", "mean", "resample"]
_NARROWS = {
    None: (),
    "head": ("layer", "head"),
    "layer": ("layer",),
    "edge": ("layer", "head", "query", "key"),
    "span": ("layer", "head", "query"),
}
_EVERY = ("all", "auto")  # values of --layer and --head that mean all
MOST_EDGES = 20_000  # that are cut one by one
_TOKENS = 4096  # largest number of tokens in a pass; larger passes are no faster
LOGITS = 1 << 23  # number of logits that are compared at a time


@dataclass(frozen=True)
class AblationOptions:
    """What is cut, and what is compared.

    Attributes:
        cuts: Cut expressions, all made together; empty if `each` is given.
        each: Unit to cut one at a time; None if `cuts` are given.
        replacement: Replacement for the output of a cut head.
        reference: A text over whose tokens `mean` averages; None for the text itself.
        at: Positions whose predictions and hidden states are compared; None for the last token of a causal
            model, and the mask tokens of a masked one.
        answer: Text that answers the text, for `each` span; None for what the text has, or the model generates.
        generate: Number of tokens that the model generates as the answer; None for a default.
        target: A token whose logit is compared, or two whose difference is; empty for none.
        patch_from: A text of as many tokens whose activations replace those of the text; None for none.
        others: Texts that `resample` draws from; empty for built-in ones.
        draws: How often `resample` draws; None for a default.
        seed: Seed of these draws; None for 0.
    """

    cuts: tuple[CutExpression, ...] = ()
    each: Unit | None = None
    replacement: Replacement = "zero"
    reference: str | None = None
    at: PositionSelection | None = None
    answer: str | None = None
    generate: int | None = None
    target: tuple[str, ...] = ()
    patch_from: str | None = None
    others: tuple[str, ...] = ()
    draws: int | None = None
    seed: int | None = None

    @property
    def how(self) -> str:
        """What takes the place of a head's output; see CutEffect."""
        return self.replacement if self.patch_from is None else "patch"

    @property
    def from_others(self) -> bool:
        """Replacements are what other texts have at the same positions."""
        return self.how in ("resample", "patch")

    def ways(self, *, edges: bool) -> list[tuple[str, bool]]:
        """Return each way to cut, and whether edges are renormalised; edges without a replacement have two."""
        if edges and not self.from_others:
            return [("renormalised", True), ("unnormalised", False)]
        return [(self.how, not self.from_others)]


def check_options(run: RunConfig, asked: AblationOptions) -> None:
    """Refuse what contradicts itself, before a model is opened.

    Raises:
        UsageError: It is not one text, nothing is cut, or an option has nothing to do.
    """
    if len(run.texts) != 1:
        raise UsageError(f"{len(run.texts)} texts; ablate takes one", where=TEXTS_FILE, hint=f"pass {arg('text')}")
    if bool(asked.cuts) == (asked.each is not None):
        what = "cannot be used together" if asked.cuts else "are both missing: nothing is cut"
        hint = f"use {arg('cut', 'L5H1')}, {arg('cut', 'L5H1: it→animal')}, or {arg('each', 'head')}"
        raise UsageError(f"{arg('cut')} and {arg('each')} {what}", hint=hint)
    _check_replacement(asked)
    if asked.reference is not None and asked.replacement != "mean":
        raise UsageError(
            f"applies only to {arg('replacement', 'mean')}",
            where=arg("reference"),
            hint=f"add {arg('replacement', 'mean')}",
        )
    for name, value in (("answer", asked.answer), ("generate", asked.generate)):
        if value is not None and asked.each != "span":
            raise UsageError(f"applies only to {arg('each', 'span')}", where=arg(name), hint="remove it")
    if asked.answer is not None and asked.generate is not None:
        raise UsageError(f"{arg('answer')} and {arg('generate')} cannot be used together", hint="remove one of them")
    edges_only = asked.each in ("edge", "span") or (
        asked.each is None and all(cut.edge is not None for cut in asked.cuts)
    )
    if asked.replacement == "mean" and edges_only:
        raise UsageError("applies to heads and layers, not to edges", where=arg("replacement"), hint="remove it")
    narrowed = {"layer": run.layer.word not in _EVERY, "head": run.head.word not in _EVERY}
    narrowed |= {"query": run.query is not None, "key": run.key is not None}
    for name, given in narrowed.items():
        if given and name not in _NARROWS[asked.each]:
            known = ", ".join(map(arg, _NARROWS[asked.each]))
            unit = arg("cut") if asked.each is None else arg("each", asked.each)
            hint = f"{unit} takes {known}" if known else f"name layer, head and edge in {arg('cut')}"
            raise UsageError(f"does not apply to {unit}", where=arg(name), hint=hint)
    for name, picked in (("layer", run.layer), ("head", run.head)):
        if picked.word == "mean":
            raise UsageError("a mean cannot be cut", where=arg(name), hint="use all, or numbers")
    if run.words and not (asked.each == "edge" or any(cut.edge is not None for cut in asked.cuts)):
        raise UsageError("applies only to edges", where=arg("words"), hint=f"remove it, or use {arg('each', 'edge')}")
    if asked.each == "edge" and not any(narrowed[name] for name in ("layer", "head", "query")):
        hint = f"add {arg('layer')}, {arg('head')} or {arg('query')}"
        raise UsageError("cannot cut every edge of every head", where=arg("each", "edge"), hint=hint)


def _check_replacement(asked: AblationOptions) -> None:
    """Refuse options of other texts that have nothing to do, and what is undefined for spans."""
    for name in ("others", "draws", "seed"):
        if getattr(asked, name) not in (None, ()) and asked.how != "resample":
            where, hint = arg(name), f"add {arg('replacement', 'resample')}"
            raise UsageError(f"applies only to {arg('replacement', 'resample')}", where=where, hint=hint)
    if asked.patch_from is not None and asked.replacement != "zero":
        hint = "remove one of them"
        raise UsageError(f"{arg('patch_from')} and {arg('replacement')} cannot be used together", hint=hint)
    if len(asked.target) > 2:
        found, hint = f"given {len(asked.target)} times", "give one token, or two for a difference"
        raise UsageError(found, where=arg("target"), hint=hint)
    if asked.each == "span":
        for name, given in (("target", asked.target), ("patch_from", asked.patch_from is not None)):
            if given:
                found, hint = f"does not apply to {arg('each', 'span')}", f"use {arg('each', 'head')}"
                raise UsageError(found, where=arg(name), hint=hint)
        if asked.replacement == "resample":
            found, hint = "applies to heads, layers and edges, not to spans", "remove it"
            raise UsageError(found, where=arg("replacement"), hint=hint)


def plan_one(run: RunConfig, source: ModelSource) -> TextPlan:
    """Tokenize the text and resolve the named queries and keys; all of them where none were named."""
    (text_plan,) = plan_texts(replace(run, window=None, pool=None), source)
    return text_plan


def compared_positions(
    asked: AblationOptions, run: RunConfig, source: ModelSource, text: TextPlan
) -> tuple[list[int], list[str]]:
    """Return where predictions and hidden states are compared, and notes; nowhere for all hidden states.

    Raises:
        UsageError: A position that was named is not there.
    """
    if asked.at is not None:
        written = run.texts[0]
        return sorted(asked.at.find(text.tokens, (written.text, written.pair), arg("at"), spans=text.spans)), []
    kind = prediction_kind(run, source, run.mask)
    if kind is None:
        return [], []
    found = predicted_positions(kind, text.tokens)
    if found:
        return found, []
    said = f"no {MASKS[0]} in the text: comparing hidden states of all tokens; --at compares predictions at a token"
    return [], [said]


def units(asked: AblationOptions, run: RunConfig, source: ModelSource, text: TextPlan) -> list[Cut]:
    """List every head, layer or edge that is cut alone, including edges that the mask does not allow.

    Raises:
        UsageError: A layer or head is not there, or there are too many edges.
    """
    c = source.config
    layers, heads = run.layer.numbers(c.n_layers, "layer"), run.head.numbers(c.n_heads, "head")
    if asked.each == "layer":
        return [Cut("", tuple((layer, head) for head in range(c.n_heads))) for layer in layers]
    places = [(layer, head) for layer in layers for head in heads]
    if asked.each == "head":
        return [Cut("", (place,)) for place in places]
    pairs = [(query, key) for query in _sides(run, text)[0] for key in _sides(run, text)[1]]
    if len(places) * len(pairs) > MOST_EDGES:
        found = f"{len(places) * len(pairs):,} edges: {len(places):,} heads × {len(pairs):,} pairs of tokens"
        hint = (
            f"at most {MOST_EDGES:,}; select fewer with {arg('layer')}, {arg('head')}, {arg('query')} or {arg('key')}"
        )
        raise UsageError(found, where=arg("each", "edge"), hint=hint)
    return [Cut("", (place,), query, key) for place in places for query, key in pairs]


def _sides(run: RunConfig, text: TextPlan) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return the tokens of the queries and of the keys of edges: one for each, or those of a word."""
    if not run.words:
        return [(query,) for query in text.queries], [(key,) for key in text.keys]
    words = words_of(text.tokens, text.context or text.tokens, text.queries, text.keys)
    return list(map(tuple, words.queries)), list(map(tuple, words.keys))


def plan_variants(
    run: RunConfig,
    source: ModelSource,
    texts: tuple[TextPlan, Sequence[TextPlan]],
    count: int,
    kept: int,
    n_positions: int,
) -> tuple[RunPlan, Sequence[RunPlan], int]:
    """Plan the pass without cuts, those of other texts, and how many variants run side by side.

    Args:
        run: What the user asked.
        source: The model.
        texts: The text, and those that replacements come from.
        count: Variants in all.
        kept: Bytes that recorders keep.
        n_positions: Positions whose predictions are compared.

    Raises:
        AttnscopeError: Not even one variant fits into memory.
    """
    text, others = texts
    longest = max(len(text.tokens), len(text.context or text.encoder_tokens or ()))
    at_once = max(1, min(count, _TOKENS // longest))
    entering, leaving = bytes_per_token(source)
    inputs = len(text.tokens) * entering
    while True:
        logits = logit_bytes(source, at_once * n_positions)
        hidden = at_once * len(text.tokens) * leaving
        groups = [[text] * at_once, *([other] for other in others)]
        try:
            plans = plan_passes(run, source, groups, kept + inputs + hidden + logits)
        except AttnscopeError:
            if at_once == 1:
                raise
            at_once //= 2
            continue
        alone = changed(plans[0], text_plans=[text])
        return alone, plans[1:], at_once


def bytes_per_token(source: ModelSource) -> tuple[int, int]:
    """Return bytes held of a token: what enters every layer without cuts, and final states of one of the variants."""
    c = source.config
    return c.n_layers * c.d_model * 4, 3 * c.d_model * 8


def logit_bytes(source: ModelSource, rows: int | None = None) -> int:
    """Return bytes of the logits that are compared at a time: of so many rows, or where that is not known, at most."""
    vocabulary = source.config.vocab_size
    most = max(LOGITS, vocabulary)
    return 3 * 8 * (most if rows is None else min(most, rows * vocabulary)) if source.predicts else 0


def kept_bytes(cuts: Sequence[Cut], sides: tuple[int, int], heads: tuple[int, int], *, others: bool = False) -> int:
    """Return bytes of what is recorded without cuts, and of one other text that replacements come from.

    Args:
        cuts: What will be cut.
        sides: Queries and keys of the text.
        heads: Query heads of a layer, and the width of a value.
        others: Replacements come from other texts.
    """
    cells = len({layer for cut in cuts for layer in cut.layers}) * heads[0] * (sides[1] + heads[1])
    rows = {query for cut in cuts for query in cut.queries or ()}
    columns = {key for cut in cuts for key in cut.keys or ()}
    recorded = len({place for cut in cuts if cut.queries is not None for place in cut.heads})
    kept = cells + recorded * len(rows) * len(columns) * (1 + others)
    whole = {place for cut in cuts if cut.queries is None for place in cut.heads}
    return 4 * (kept + others * (len(whole) * sides[0] + recorded * sides[1]) * heads[1])
