"""The data of a walk: made from findings by an adaptor, or computed on demand by a live model.

A view never computes or reads findings. It asks a Source for the heads that it draws, and has it compute those that
are not there yet.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from attnscope.base.errors import AttnscopeError
from attnscope.findings.arrays import Array, Floats, Matrix
from attnscope.findings.heads import HeadRef, Pooled
from attnscope.findings.run import Report
from attnscope.findings.tokens import LeftOut
from attnscope.views.axes import Axis
from attnscope.views.parts import ViewPart
from attnscope.views.scales import Scale, pool_largest
from attnscope.views.spans import Span, Spans

# Stages with a number for every cell, in the order of computation.
STAGES = ("scores", "scaled", "masked", "weights")
# The last of these stages has a number for every query and dimension of the value.
WALKED = (*STAGES, "output")
UNITS = ("tokens", "words", "spans")
# Name of the number of every head that tells how much the head matters.
EFFECT_OF_HEAD = "effect of head"
# Name of the same of a layer, which all of its heads have.
EFFECT_OF_LAYER = "effect of layer"
# Name of what is shown instead of a stage while a place is pinned.
DIFFERENCE = "difference"
# Name of the number of a head that says how much weight moved between two sides.
MOVED = "moved"
# Name of the number of a head that says how much its own cut changes.
EFFECT = "effect"
# Name of the same at the row of the cursor.
ROW_EFFECT = "effect at this row"
Progress = Callable[[str, int, int], None]
# Makes a text of the parts of a screen.
Draw = Callable[[Iterable[ViewPart]], str]
# Numbers of heads that differ by less are the same, but for rounding.
_VARIES = 1e-4
_LIVE = "explore the text itself: attnscope explore TEXT"
# Number of a layer or head; `mean` for the mean of several.
Number = int | str
Made = TypeVar("Made")


class WalkCancelled(Exception):
    """The running computation is no longer wanted."""


class WalkCut(NamedTuple):
    """A head, or an edge of it, that is cut."""

    written: str  # the cut, as `--cut` takes it
    edge: bool  # whether it is an edge


@dataclass(frozen=True)
class RunCommand:
    """The `attnscope run` that shows a scene, without layer, head and row."""

    words: str  # text and model, such as `"The bank" --model bert`
    # options of the mask with their quoted values, such as `--mask` and `causal`; empty for the model's own
    mask: Mapping[str, str] = field(default_factory=dict)
    # the quoted text, if it is printed into the command because it looks like an option
    piped: str | None = None
    # `words` without the folders of this machine; None if they name none
    shared_words: str | None = None

    def spell(self, *options: str, command: str = "run", shared: bool = False) -> str:
        """Return it with more options, or as another command.

        Args:
            shared: Others will read it: files and models are named without the folders in which they are here.
        """
        mask = (f"{option} {value}" for option, value in self.mask.items())
        if shared and self.shared_words is not None:
            words = self.shared_words
        else:
            words = self.words
        spelled = " ".join(["attnscope", command, words, *mask, *options])
        if self.piped is None:
            return spelled
        return f"printf %s {self.piped} | {spelled}"


@dataclass(frozen=True)
class Variant:
    """One way in which the same tokens ran: every variant has its own numbers."""

    text: int = 0  # number of the text, from 0
    mask: str = "own"  # the mask as one types it, or the label of a side of a comparison
    cuts: tuple[WalkCut, ...] = ()
    unit: str = "tokens"  # kind of positions: `tokens`, `words` or `spans`


@dataclass(frozen=True)
class Passage:
    """A stretch of a text: a position, or the text between two."""

    span: Span  # the characters
    query: int = -1  # index of the query that it is, −1 for none
    key: int = -1  # index of the key that it is, −1 for none


@dataclass(frozen=True)
class Forecast:
    """A prediction, or how far cuts move the hidden states of a model without predictions."""

    title: Spans
    tokens: Sequence[Span]  # the most probable tokens; of changes, those whose states move most
    probabilities: Sequence[float]  # of changes, ‖change‖ / ‖state‖
    logits: Sequence[float] = ()  # logits of the tokens; empty if unknown
    before: Sequence[float] | None = None  # probabilities without the cuts; None without cuts
    note: str = ""
    verdict: Spans = ()  # with cuts: which token is the most probable
    how: str = ""  # how cuts are made: `cut to 0`
    # size of the change that cuts make: KL in bits, or the mean share of hidden states; None without cuts
    effect: float | None = None
    is_change: bool = False  # it is about hidden states
    positions: Sequence[int] = ()  # of changes, those of the tokens
    more: int = 0  # of changes, the number of tokens that are not listed
    position: int = -1  # of the token that the prediction follows or replaces


class Owner:
    """Remembers what was made of it, for as long as it is there; owners are told apart by identity."""

    def made(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what was made under a key; make it if it is missing."""
        cached: dict[Hashable, Any] = self.__dict__.setdefault("_made", {})
        if key not in cached:
            cached[key] = make()
        made: Made = cached[key]
        return made


@dataclass(frozen=True, eq=False)
class HeadNumber(Owner):
    """One number for every head."""

    name: str  # its name, such as `entropy`
    meaning: str
    values: Matrix  # (layers, heads); NaN where it is not known
    # what it measures, if it is the effect of cutting every head or layer: `kl`, `hidden` or `target`; else empty
    measure: str = ""
    is_share: bool = False  # of a row's weight, so that percents say it where there is little room

    @property
    def varies(self) -> bool:
        """Whether it differs between heads by more than rounding."""
        finite = self.values[np.isfinite(self.values)]
        return finite.size > 0 and float(np.ptp(finite)) > _VARIES


@dataclass(frozen=True)
class SceneEffects:
    """What cutting each head changes at every token."""

    # (layers, heads, tokens), of the measure of the number EFFECT_OF_HEAD; None on pages, or if they are too many
    values: Array | None
    positions: Sequence[int]  # positions whose mean is this number
    # most probable token of every one of these positions without a cut; empty without predictions
    tokens: Sequence[str] = ()
    before: Array | None = None  # its probability, (positions,)
    after: Array | None = None  # the same without each head, (layers, heads, positions)
    preposition: str = "at"  # what is before the name of a position: `after` it is what the model predicts, or `at` it


@dataclass(frozen=True)
class SceneRoles:
    """Roles of every head."""

    names: Sequence[str]
    letters: Sequence[str]
    colours: Sequence[str]  # its colour at full strength, as `#rrggbb`
    meanings: Sequence[str]
    clear: Sequence[float]  # smallest value at which it can be the main role of a head
    main: np.ndarray  # index of every head's main role, (layers, heads); −1 for none
    strength: Matrix  # value of the main role, (layers, heads)
    measured: str = ""
    # number of the text that a page shows a head of each role on; empty for the current one
    texts: Sequence[int] = ()
    # index of the query of that text whose row shows the role of a head best, (layers, heads); −1 for none
    rows: np.ndarray | None = None
    # name and title of the role whose strongest head a page of heads begins at, and its value there
    chosen_by: tuple[str, str, float] | None = None


@dataclass(frozen=True)
class Alignment:
    """The tokens of two sides of a comparison that have different tokens, side by side."""

    # aligned queries: index in the first side, and in the second
    queries: Sequence[tuple[int, int]]
    # keys of both sides in the same form; −1 for a key that a side lacks
    keys: Sequence[tuple[int, int]]
    rows: Axis  # names of the aligned queries, such as `4/5 river`
    columns: Axis  # names of the keys


@dataclass(frozen=True)
class ScenePicture:
    """A picture among the tokens."""

    name: str  # such as `image`
    pixels: Array  # as the model saw it, (height, width, 3), uint8
    # index on the axis of sources of every patch, (rows, columns); −1 for a patch without a token
    sources: np.ndarray


@dataclass(frozen=True)
class RankedSources:
    """The strongest sources of every query, strongest first."""

    by: str
    places: np.ndarray  # index on the axis of sources, (queries, ranks); −1 for none
    # name to numbers, (queries, ranks): `weight`, `value`, `projected`
    measures: Mapping[str, Matrix]
    left_out: Sequence[LeftOut] = ()  # excluded sources


@dataclass(frozen=True, eq=False)
class WalkHead(Owner):
    """One layer and head."""

    layer: Number  # number of the layer, or `mean`
    head: Number  # number of the head, or `mean`
    scale: float | None = None  # factor from scores to scaled; None if it is not known
    softcap: float | None = None  # c of c·tanh(x / c); None for none
    bias: str | None = None  # name of the position bias; None for none
    # exact matrices by stage, (queries from `start` on, keys); −inf in `masked` stands for not allowed. `output` is
    # (queries, width of a value)
    stages: Mapping[str, Matrix] = field(default_factory=dict)
    start: int = 0  # index of the query whose row is the first in `stages`
    masked_rows: frozenset[int] = frozenset()
    sources: RankedSources | None = None  # strongest sources; None if they are not known
    # statistics of every query's whole row, by name; `sink` is its weight on the head's sink
    rows: Mapping[str, Floats] = field(default_factory=dict)
    map: Pooled | None = None  # the map of a long text; None for none
    chosen: str = ""  # why this head is shown first; empty if it is not
    # its exact numbers are requested; for other heads, a page keeps a few decimals
    exact: bool = True
    # name of the Python function that changed `scaled` last; None for none
    score_mod: str | None = None
    width: int | None = None  # numbers in a query and a key; None if that is not known
    covers: str = ""  # the layers that it is of, such as `L0–3`, if it is no head

    @property
    def name(self) -> str:
        """`L2H1`, `L2 mean`, `mean H1` or `mean`; or the layers that it is of."""
        return self.covers or str(HeadRef(self.layer, self.head))

    def row(self, stage: str, query: int) -> Floats | None:
        """Return the exact row of a stage; None if it is not there."""
        matrix = self.stages.get(stage)
        at = query - self.start
        return None if matrix is None or not 0 <= at < len(matrix) else matrix[at]

    def holds(self, stage: str, first_query: int, last_query: int) -> bool:
        """Tell whether the exact rows of some queries, the last included, are there."""
        matrix = self.stages.get(stage)
        return (
            matrix is not None
            and self.start <= first_query
            and last_query < self.start + len(matrix)
        )

    def picture(self) -> Matrix | None:
        """Return the weights that show the head as a whole: all of them, or its map; None for neither."""
        if "weights" in self.stages and self.start == 0 and self.map is None:
            return self.stages["weights"]
        return None if self.map is None else self.map.weights


@dataclass(frozen=True, eq=False)
class Scene(Owner):
    """Facts that all heads of one variant share."""

    model: str
    facts: Sequence[tuple[str, Spans]]  # lines on the origin of the numbers: name and value
    notes: Sequence[str]
    layers: Sequence[Number]
    heads: Sequence[Number]
    queries: Axis  # the rows: tokens, words or spans
    keys: Axis
    sources: Axis  # every position that can be a source; `keys` may be some of them
    passages: Sequence[Passage]
    stages: Sequence[str]
    aligned: bool = True  # queries and keys are positions of the same text
    predictions: Sequence[Forecast] = ()
    # with cuts, what they change in the prediction at a position; empty if only `predictions` are measured
    changes: Mapping[int, Forecast] = field(default_factory=dict)
    # why there are no predictions, if there are none
    no_predictions: str = "no predictions here; attnscope run --predict shows them"
    numbers: Sequence[HeadNumber] = ()
    roles: SceneRoles | None = None  # roles of every head; None if they are not known
    effects: SceneEffects | None = None  # None if they were not measured
    no_effects: str = ""  # why they were not measured; empty if nobody wanted them
    command: RunCommand | None = None  # the command that shows it; None if no command does
    mask: str = ""
    # decimal places that saved numbers were rounded to; None for exact ones
    rounded: int | None = None
    first: tuple[int, int] = (0, 0)
    start: int | None = None  # index of the row that is shown first; None for the last
    start_key: int | None = None  # index of the column, if a cell is asked about
    random: bool = False
    width: int = 0  # dimensions of a value; 0 if outputs are not known
    units: Sequence[str] = ("tokens",)  # kinds of positions
    unit: str = "tokens"
    # positions of the tokens of every query, and of every key, if these are words or spans
    members: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]] | None = None
    # how the text is divided into spans, as `--spans` takes it; empty for words, or if a command cannot name it
    division: str = ""
    # of a side of a comparison, with the first side; None if both have the same tokens
    alignment: Alignment | None = None
    # what a page shows of every head first: `roles`, `lens` for the only cell, or the name of a number
    display: str = "thumbnails"
    # what a page says above the heads; empty for where there is most of what they show
    answer: str = ""
    pictures: Sequence[ScenePicture] = ()
    # of a text with pictures, each kind of token with the indices of its sources: those of each picture first
    kinds: Sequence[tuple[str, Sequence[int]]] = ()
    picture_scale: Scale | None = None  # of weights on patches
    size: str = ""  # what a page calls all of these layers and heads; empty for their numbers
    measure: str = "weight"  # what a cell of the last stage is: a weight, or a share over layers
    levels: Sequence[float] = ()  # loudness of every key, 0 to 1, if keys are frames of a sound

    def number(self, name: str) -> HeadNumber | None:
        """Return the number of heads that has this name; None for none."""
        return next((number for number in self.numbers if number.name == name), None)

    def tokens_of(self, query: int) -> Sequence[int]:
        """Return the positions of the tokens of a row."""
        if self.members is None:
            return (self.queries.positions[query],)
        return self.members[0][query]

    def tokens_of_key(self, key: int) -> Sequence[int]:
        """Return the positions of the tokens of a column."""
        if self.members is None:
            return (self.keys.positions[key],)
        return self.members[1][key]

    def key_of_source(self, source: int) -> int | None:
        """Return the index of the key that a source is; None if it is no column."""
        return self.keys.places.get(self.sources.positions[source])

    def query_of_key(self, key: int) -> int | None:
        """Return the index of the query that a key is; None if it is no row, or of another text."""
        if self.aligned:
            return self.queries.places.get(self.keys.positions[key])
        return None


class Source:
    """Source of scenes and heads: a live model, a Report, a comparison or a dump; some compute nothing."""

    texts: Sequence[str]  # the texts, or their names; only those that have been read
    # masks, or sides of a comparison, that one can choose; the first is shown first
    masks: Sequence[str]
    named: ClassVar[bool] = False  # whether `texts` are names
    computes: ClassVar[bool] = False  # whether it can compute missing heads
    # whether the masks are sides of a comparison, whose difference is shown first
    compared: bool = False

    @property
    def total(self) -> int:
        """Number of all texts."""
        return len(self.texts)

    @property
    def total_text(self) -> str:
        """How many there are, as text: `1,000+` if that is not known."""
        return f"{self.total:,}"

    def scene(self, variant: Variant) -> Scene | None:
        """Return a scene; None if it has not been computed."""
        raise NotImplementedError

    def head(self, variant: Variant, layer: int, head: int) -> WalkHead | None:
        """Return the known numbers of a head by its indices in the scene; None if nothing is known."""
        raise NotImplementedError

    def missing(
        self, variant: Variant, layer: int, head: int, stage: str, rows: tuple[int, int]
    ) -> bool:
        """Tell whether there is anything to compute for these rows (first and last) of a stage of a head."""
        return False

    def compute(
        self,
        variant: Variant,
        layer: int,
        head: int,
        stage: str,
        rows: tuple[int, int],
        progress: Progress,
    ) -> None:
        """Compute a scene and some rows of a head; slow, and called in a thread, like the following methods.

        Raises:
            WalkCancelled: `progress` raised it.
        """
        raise AttnscopeError("this was not saved", hint=_LIVE)

    def pick(self, needle: str, start: int, progress: Progress) -> int | None:
        """Return the number of a text: by its number from 1, its id, or the next after `start` with some words."""
        texts = self.texts
        words = needle.casefold()
        if needle.isdigit() and 0 < int(needle) <= len(texts):
            return int(needle) - 1
        order = (text_index % len(texts) for text_index in range(start + 1, start + 1 + len(texts)))
        return next(
            (text_index for text_index in order if words in texts[text_index].casefold()), None
        )

    def measure_roles(self, progress: Progress) -> None:
        """Measure the roles of all heads, which scenes have from then on."""
        raise AttnscopeError("roles take the model", hint=_LIVE)

    def measure_effects(self, variant: Variant, progress: Progress) -> None:
        """Measure how much each head changes if it alone is cut, which scenes have as a number from then on."""
        raise AttnscopeError("cutting heads takes the model", hint=_LIVE)

    def explain(
        self,
        variant: Variant,
        layer: int,
        head: int,
        cell: tuple[int, int | None],
        draw: Draw,
        progress: Progress,
    ) -> str:
        """Explain the row of a cell (its query and key) step by step; for no key, with the largest score in depth."""
        raise AttnscopeError("explaining a row takes the model", hint=_LIVE)

    def report(self, variant: Variant, layer: int, head: int, progress: Progress) -> Report:
        """Return the report of a head, for a file."""
        raise NotImplementedError

    def with_text(self, text: str) -> "Source":
        """Return a source of another text, with the same model."""
        raise AttnscopeError("another text takes the model", hint=_LIVE)


def thumbnail(head: WalkHead, rows: int, columns: int) -> Matrix | None:
    """Return the largest weight in every cell of a grid of at most this size; None if the head has no picture."""
    picture = head.picture()
    if picture is None:
        return None
    return pool_largest(picture, rows, columns)
