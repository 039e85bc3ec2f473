"""Resolve the cuts against a model and a text. Never imports torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Literal

from attnscope.base.errors import TEXTS_FILE, AttnscopeError, UsageError, arg
from attnscope.checkpoints.source import ModelSource
from attnscope.findings.hints import Hint
from attnscope.findings.images import join_patches, name_patches
from attnscope.findings.merge_pieces import TextWords
from attnscope.findings.tokens import MASKS, Token, group_words, spell_word
from attnscope.request.arguments import check_targets
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import CutExpression, PositionSelection
from attnscope.run.cut_plan import Cut
from attnscope.run.pass_plan import plan_passes
from attnscope.run.plan import RunPlan, present_layers
from attnscope.run.prediction_plan import (
    follows_word,
    predicted_positions,
    prediction_kind,
    target_ids,
    target_warnings,
)
from attnscope.run.session import Session
from attnscope.run.text_plan import TextPlan

Unit = Literal["head", "layer", "edge", "span"]
Replacement = Literal["zero", "mean", "resample"]
MOST_EDGES = 20_000  # that are cut one by one
_TOKENS = 4096  # largest number of tokens in a pass; larger passes are no faster
LOGITS = 1 << 23  # number of logits that are compared at a time


@dataclass(frozen=True)
class AblationOptions:
    """The cuts, their replacement, and where their effect is compared."""

    # cut expressions, all made together; empty if `each` is given
    cuts: tuple[CutExpression, ...] = ()
    each: Unit | None = None  # unit to cut one at a time; None if `cuts` are given
    replacement: Replacement = "zero"
    # a text over whose tokens `mean` averages; None for the text itself
    reference: str | None = None
    # positions whose predictions and hidden states are compared; None for the last token of a causal model, and the
    # mask tokens of a masked one
    at: PositionSelection | None = None
    # text that answers the text, for `each` span; None for what the text has, or the model generates
    answer: str | None = None
    generate: int | None = None  # number of tokens to generate as the answer; None for a default
    # a token whose logit is compared, or two whose difference is; empty for none
    target: tuple[str, ...] = ()
    # a text of as many tokens whose activations replace those of the text; None for none
    patch_from: str | None = None
    others: tuple[str, ...] = ()  # texts that `resample` draws from; empty for built-in ones
    draws: int | None = None  # number of draws of `resample`; None for a default
    seed: int | None = None  # seed of these draws; None for 0

    @property
    def how(self) -> str:
        """Kind of replacement; see `CutEffect`."""
        if self.patch_from is None:
            return self.replacement
        return "patch"

    @property
    def from_others(self) -> bool:
        """Whether replacements come from the same positions of other texts."""
        return self.how in ("resample", "patch")

    def ways(self, *, edges: bool) -> list[tuple[str, bool]]:
        """Return each way to cut, and whether edges are renormalised; edges without a replacement have two."""
        if edges and not self.from_others:
            return [("renormalised", True), ("unnormalised", False)]
        return [(self.how, not self.from_others)]


def check_options(run: RunConfig, options: AblationOptions) -> None:
    """Refuse options that contradict each other or have no effect, before a model is opened."""
    if len(run.texts) != 1:
        raise UsageError(
            f"{len(run.texts)} texts; ablate takes one",
            where=TEXTS_FILE,
            hint=f"pass {arg('text')}",
        )
    if not options.cuts and options.each is None:
        edge = arg("cut", placeholder="'L0H0: QUERY←KEY'")
        hint = f"add {arg('cut', 'L0H0')}, {edge}, or {arg('each', 'head')}"
        raise UsageError(
            f"{arg('cut')} and {arg('each')} are both missing: nothing is cut", hint=hint
        )
    check_targets(options.target)
    edges_only = options.each == "edge" or (
        options.each is None and all(cut.edge is not None for cut in options.cuts)
    )
    if options.replacement == "mean" and edges_only:
        raise UsageError(
            "applies to heads and layers, not to edges", where=arg("replacement"), hint="remove it"
        )
    for name, picked in (("layer", run.layer), ("head", run.head)):
        if picked.word == "mean":
            raise UsageError("a mean cannot be cut", where=arg(name), hint="use all, or numbers")
    if run.words and not (
        options.each == "edge" or any(cut.edge is not None for cut in options.cuts)
    ):
        raise UsageError("applies only to edges", where=arg("words"), hint="remove it")


def compared_positions(
    options: AblationOptions, run: RunConfig, source: ModelSource, text: TextPlan
) -> tuple[list[int], list[str]]:
    """Return the positions at which predictions are compared, and warnings; none: compare all hidden states."""
    if options.at is not None:
        text_input = run.texts[0]
        return sorted(
            options.at.find(
                text.tokens, (text_input.text, text_input.pair), arg("at"), spans=text.spans
            )
        ), []
    kind = prediction_kind(run, source, run.mask)
    positions = [] if kind is None else predicted_positions(kind, text.tokens)
    if positions or kind is None:
        return positions, []
    statement = f"no {MASKS[0]} in the text: comparing hidden states of all tokens"
    return [], [Hint.PREDICTIONS.after(statement)]


def _compared_targets(
    options: AblationOptions,
    run: RunConfig,
    source: ModelSource,
    text: TextPlan,
    positions: Sequence[int],
) -> tuple[list[int], list[str]]:
    """Return the ids of the tokens whose logits are compared, and warnings about their spelling."""
    if not options.target:
        return [], []
    if source.predicts is None:
        hint = "use a checkpoint of a language model, with its head"
        raise UsageError(f"{source.name} has no output head", where=arg("target"), hint=hint)
    if not positions:
        hint = f"write [MASK] into the text, or add {arg('at', placeholder='TOKENS')}"
        raise UsageError("the text has no mask token to predict", where=arg("target"), hint=hint)
    kind = prediction_kind(run, source, run.mask) or "next"
    after_word = follows_word(kind, text.tokens, positions[0], source)
    ids = [
        token_id
        for token_id in target_ids(options.target, source, after_word=after_word)
        if token_id is not None
    ]
    return ids, target_warnings(options.target, source, after_word=after_word)


@dataclass(frozen=True)
class AblationRun:
    """One text of one model, planned for cuts."""

    run: RunConfig
    options: AblationOptions
    source: ModelSource
    session: Session
    text: TextPlan
    positions: list[int]  # where predictions and hidden states are compared
    notes: list[str]
    # ids of one token whose logit is compared, or of two whose difference is; empty for none
    targets: Sequence[int] = ()
    # positions of the answer's tokens that is cut off from spans; empty without one
    answer: Sequence[int] = ()
    # positions that are cut off: those that predict the answer, or those that the user named
    rows: Sequence[int] = ()

    @classmethod
    def of(
        cls,
        run: RunConfig,
        options: AblationOptions,
        source: ModelSource,
        session: Session,
        text: TextPlan,
    ) -> "AblationRun":
        """Resolve positions and targets in the text."""
        positions, of_positions = compared_positions(options, run, source, text)
        targets, of_targets = _compared_targets(options, run, source, text, positions)
        text.warnings.extend([*of_positions, *of_targets])
        return cls(run, options, source, session, text, positions, list(text.notes), targets)

    @property
    def answer_ids(self) -> list[int]:
        """Ids of the answer's tokens if `positions` predict them; else none."""
        predicting = [position - 1 for position in self.answer]
        if predicting == self.positions:
            return [self.text.tokens[position].id for position in self.answer]
        return []

    @property
    def places(self) -> list[tuple[int, int]]:
        """The layer and head of every selected head."""
        c = self.source.config
        run = self.run
        layers = present_layers(run.layer, self.source).numbers(c.n_layers, "layer")
        heads = run.head.numbers(c.n_heads, "head")
        return [(layer, head) for layer in layers for head in heads]

    def words(self) -> TextWords | None:
        """Return the words that edges are between, and pictures whose patches are not named; None for tokens."""
        text = self.text
        sources = text.context or text.tokens
        group = group_words if self.run.words else _alone
        queries = group(text.tokens, text.queries)
        keys = group(sources, text.keys)
        if self.run.query is None:
            queries = join_patches(text.tokens, queries)
        keys = join_patches(sources, keys) if self.run.key is None else keys
        if not self.run.words and all(len(word) == 1 for word in (*queries, *keys)):
            return None
        names = (
            [name_patches(tokens, word) or spell_word(tokens, word) for word in words]
            for tokens, words in ((text.tokens, queries), (sources, keys))
        )
        return TextWords(queries, keys, *names)

    def units(self) -> list[Cut]:
        """List the cut of every head, layer or edge, including edges that the mask does not allow."""
        places = self.places
        heads = range(self.source.config.n_heads)
        if self.options.each == "layer":
            layers = dict.fromkeys(layer for layer, _ in places)
            return [Cut("", tuple((layer, head) for head in heads)) for layer in layers]
        if self.options.each == "head":
            return [Cut("", (layer_head,)) for layer_head in places]
        sides: Sequence[Sequence[Sequence[int]]] = (
            [[n] for n in self.text.queries],
            [[n] for n in self.text.keys],
        )
        if (words := self.words()) is not None:
            sides = words.queries, words.keys
        pairs = [(tuple(query), tuple(key)) for query in sides[0] for key in sides[1]]
        if len(places) * len(pairs) > MOST_EDGES:
            message = f"{len(places) * len(pairs):,} edges: {len(places):,} heads × {len(pairs):,} pairs of tokens"
            fewer = f"{arg('layer')}, {arg('head')}, {arg('query')} or {arg('key')}"
            hint = f"at most {MOST_EDGES:,}; select fewer with {fewer}"
            raise UsageError(message, where=arg("each", "edge"), hint=hint)
        return [Cut("", (layer_head,), query, key) for layer_head in places for query, key in pairs]

    def span_cuts(self) -> tuple[list[int], list[Cut]]:
        """Return the number of each span that can be cut off, and its cut in every selected layer and head."""
        spans = self.text.spans
        causal = self.source.predicts == "next"
        assert spans is not None
        own = {spans.of_token[position] for position in self.answer}
        last = max(self.rows)
        keys = {
            n: tuple(key for key in spans.tokens(n) if key <= last or not causal)
            for n in range(len(spans.names))
        }
        numbers = [n for n in keys if n not in own and keys[n]]
        if not numbers:
            raise UsageError(
                "the text has one span",
                where=arg("each", "span"),
                hint=f"divide it with {arg('spans')}",
            )
        return numbers, [Cut("", tuple(self.places), tuple(self.rows), keys[n]) for n in numbers]


def _alone(_tokens: Sequence[Token], positions: Sequence[int]) -> list[list[int]]:
    return [[position] for position in positions]


def plan_variants(
    ablation: AblationRun, other_texts: Sequence[TextPlan], count: int, record_bytes: int
) -> tuple[RunPlan, Sequence[RunPlan], int]:
    """Plan the passes over the text and over other texts, and how many of `count` variants run side by side.

    `record_bytes` are the bytes that recorders keep.
    """
    text = ablation.text
    source = ablation.source
    longest = max(len(text.tokens), len(text.context or text.encoder_tokens or ()))
    at_once = max(1, min(count, _TOKENS // longest))
    entering, leaving = bytes_per_token(source)
    while True:
        logits = logit_bytes(source, at_once * len(ablation.positions))
        held = len(text.tokens) * (entering + at_once * leaving)
        groups = [[text] * at_once, *([other] for other in other_texts)]
        try:
            plans = plan_passes(ablation.run, source, groups, record_bytes + held + logits)
        except AttnscopeError:
            if at_once == 1:
                raise
            at_once //= 2
            continue
        return changed(plans[0], text_plans=[text]), plans[1:], at_once


def bytes_per_token(source: ModelSource) -> tuple[int, int]:
    """Return the bytes held for a token: inputs of all layers without cuts, and final states of one variant."""
    c = source.config
    return c.n_layers * c.d_model * 4, 3 * c.d_model * 8


def logit_bytes(source: ModelSource, rows: int | None = None) -> int:
    """Return the bytes of the logits that are compared at a time, for this many rows; None for the most."""
    vocabulary = source.config.vocab_size
    largest = max(LOGITS, vocabulary)
    if source.predicts:
        return 3 * 8 * (largest if rows is None else min(largest, rows * vocabulary))
    return 0


def kept_bytes(
    cuts: Sequence[Cut],
    sides: tuple[int, int],
    heads: tuple[int, int],
    *,
    from_others: bool = False,
) -> int:
    """Return the bytes that a run without cuts records, plus those of one other text.

    `sides` are the numbers of queries and of keys; `heads`, those of query heads in a layer, and the width of a value.
    """
    cells = len({layer for cut in cuts for layer in cut.layers}) * heads[0] * (sides[1] + heads[1])
    rows = {query for cut in cuts for query in cut.queries or ()}
    columns = {key for cut in cuts for key in cut.keys or ()}
    recorded = len({head for cut in cuts if cut.queries is not None for head in cut.heads})
    kept_values = cells + recorded * len(rows) * len(columns) * (1 + from_others)
    uncut_heads = {head for cut in cuts if cut.queries is None for head in cut.heads}
    return 4 * (
        kept_values + from_others * (len(uncut_heads) * sides[0] + recorded * sides[1]) * heads[1]
    )
