"""Declare the statistics of a row of attention weights, each once.

Everything else is derived from these declarations: what recorders compute, the fields of Reports and dump records and
their JSON Schema, the columns of tables, averages, headers, memory and cost estimates, and the list in `attnscope batch
--help`. To add a statistic, add its declaration, with `added=True`.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import TYPE_CHECKING, Annotated, Any, Generic, Protocol, TypeVar

import msgspec

from attnscope.findings.arrays import Array, OfRows, along
from attnscope.findings.tokens import Token

_Value = TypeVar("_Value")


class RowWeights(Protocol):
    """The weights of some rows on a device: B texts, h heads, r rows, k keys."""

    @property
    def weights(self) -> Any:
        """Weight of each row on the keys of a tile, (B, h, r, k); on all other keys it is 0."""

    def entropy(self) -> Any:
        """Return −Σ α log₂ α, (B, h, r)."""

    def max_score(self) -> Any:
        """Return the largest masked score, (B, h, r)."""

    def on_first(self) -> Any:
        """Return the weight on the first key, (B, h, r)."""

    def on_keys(self, name: str) -> Any:
        """Return the weight on the keys that the declaration of this name selects, (B, h, r)."""

    def on_self(self) -> Any:
        """Return the weight on the row's own position, (B, h, r)."""

    def on_others(self) -> Any:
        """Return the weight on keys that are not the row itself, not special and not the first, (B, h, r)."""

    def within(self, n: int) -> Any:
        """Return the weight on keys at most `n` positions away, (B, h, r)."""

    def distance(self) -> Any:
        """Return Σ α · |query − key|, (B, h, r)."""


@dataclass(frozen=True)
class RowStatistic:
    """A statistic of a row of weights."""

    name: str  # name in JSON, tables and Python
    meaning: str  # definition and unit
    compute: Callable[[RowWeights], Any]  # computes it on the device, from RowWeights
    # for a weight on keys of a kind: selects their tokens by id, text, and whether they are special
    key_token: Callable[[Token], bool] | None = None
    # whether it requires queries and keys to be the same tokens; it is null under cross-attention
    aligned: bool = False
    # largest distance of the keys whose weight it sums, in tokens; None for another statistic
    within: int | None = None
    # for a weight that headers show: the keys that it is on, such as `the first token`
    on: str | None = None
    # format in a header of another statistic; None if headers do not show it
    phrase: str | None = None
    place: int = 0  # order in a header
    # whether it was added after version 1 of the formats: older reports and dumps do not have it
    added: bool = False
    # whether it is a sum of weights, so that the statistic of a mean row is the mean of the heads'
    linear: bool = True
    missing: str = ""  # when it is null, or means something else; empty if never
    largest: bool = False  # whether the number of a head is the largest of its rows, not their mean

    @property
    def of_head(self) -> str:
        """How a head's rows become one number: mean or largest."""
        return f"{self.meaning[:-1]}; {'the largest' if self.largest else 'the mean'} of the rows."


def _weight_on(
    name: str,
    meaning: str,
    key_token: Callable[[Token], bool],
    on: str,
    place: int,
    *,
    added: bool = False,
) -> RowStatistic:
    """Declare the weight on keys of a kind."""
    return RowStatistic(
        name,
        meaning,
        lambda row: row.on_keys(name),
        key_token=key_token,
        on=on,
        place=place,
        added=added,
    )


def _is_punctuation(token: Token) -> bool:
    marks = token.text.strip()
    return (
        bool(marks)
        and not token.special
        and all(unicodedata.category(mark).startswith("P") for mark in marks)
    )


ROW_STATISTICS = (
    RowStatistic(
        "entropy",
        "−Σ α log₂ α, in bits.",
        lambda row: row.entropy(),
        phrase="entropy {:.2f} bits",
        place=7,
        linear=False,
        missing="null for a mean over layers of a text that is shown as a map",
    ),
    RowStatistic(
        "first",
        "Weight on the first token.",
        lambda row: row.on_first(),
        on="the first token",
        place=2,
    ),
    _weight_on(
        "special",
        "Weight on special tokens.",
        lambda token: token.special,
        "special tokens",
        place=3,
    ),
    RowStatistic(
        "self",
        "Weight on the query's own position.",
        lambda row: row.on_self(),
        aligned=True,
        on="itself",
        place=1,
        missing="null under cross-attention",
    ),
    RowStatistic(
        "other",
        "Weight on the rest; not on the query itself, special tokens or the first, but on punctuation, too.",
        lambda row: row.on_others(),
        on="the rest",
        place=5,
    ),
    RowStatistic(
        "distance",
        "Mean |query − key| in tokens, weighted by α.",
        lambda row: row.distance(),
        aligned=True,
        phrase="mean distance {:.1f} tokens",
        place=8,
        missing="null under cross-attention",
    ),
    *(
        RowStatistic(
            f"within_{n}",
            f"Weight on keys at most {n:,} tokens away.",
            methodcaller("within", n),
            aligned=True,
            within=n,
            phrase=f"{{:.2f}} within {n:,}",
            place=9,
            missing="null under cross-attention",
        )
        for n in (16, 64, 256, 1024)
    ),
    _weight_on(
        "punctuation",
        "Weight on tokens of punctuation marks alone (Unicode's categories P), special tokens not among them.",
        _is_punctuation,
        "punctuation",
        place=6,
        added=True,
    ),
    RowStatistic(
        "max_score",
        "Largest scaled score of the row on a key that the mask allows, which QK-Clip limits.",
        lambda row: row.max_score(),
        added=True,
        linear=False,
        missing="of a mean, of the mean scores; null as entropy is",
        largest=True,
    ),
)
STATISTICS = tuple(statistic.name for statistic in ROW_STATISTICS)
LINEAR = {statistic.name: statistic.linear for statistic in ROW_STATISTICS}
KEY_TOKENS = {
    statistic.name: statistic.key_token
    for statistic in ROW_STATISTICS
    if statistic.key_token is not None
}
_SELECTED: dict[Callable[[Token], bool], dict[tuple[int, str, bool], bool]] = {}
# spellings that are remembered: as many as a vocabulary has ids, or a few more
_MOST_SELECTED = 1 << 17


def select_tokens(texts: Sequence[Sequence[Token]], selects: Callable[[Token], bool]) -> list[bool]:
    """Tell for every token, text after text, whether it is of a kind; `selects` is asked once for each spelling."""
    results = _SELECTED.setdefault(selects, {})
    if len(results) > _MOST_SELECTED:
        results.clear()
    selected = []
    for tokens in texts:
        for token in tokens:
            spelling = token.id, token.text, token.special
            if spelling not in results:
                results[spelling] = selects(token)
            selected.append(results[spelling])
    return selected


WITHIN = tuple(statistic.within for statistic in ROW_STATISTICS if statistic.within is not None)


@dataclass(frozen=True)
class LayerStatistic:
    """A number of a row that only some layers have; it is absent where no layer has it."""

    name: str  # name in JSON, tables and Python
    meaning: str  # definition and unit
    absent: float  # number of a layer that lacks it, beside layers that have it
    place: int  # order in a header; see RowStatistic
    on: str | None = None
    phrase: str | None = None
    small: float = 0.0  # below which a header says `small_phrase`, too
    small_phrase: str = ""

    @property
    def of_head(self) -> str:
        """How a head's rows become one number."""
        return f"{self.meaning[:-1]}; the mean of the rows."

    def phrase_of(self, value: float) -> str:
        """Return its format in a header."""
        return (self.phrase or "") + (self.small_phrase if value < self.small else "")


LAYER_STATISTICS = {
    statistic.name: statistic
    for statistic in (
        LayerStatistic(
            "sink",
            "Weight on the head's sink, a logit that takes part in the softmax and belongs to no token: a row of "
            "weights sums to 1 minus this; null without sinks.",
            absent=0.0,
            place=4,
            on="the sink",
        ),
        LayerStatistic(
            "unselected",
            "Weight that keys which an indexer did not select would have had, 1 minus its recall; null without one.",
            absent=0.0,
            place=8,
            phrase="{:.2f} missed by the indexer",
        ),
        LayerStatistic(
            "gate",
            "Mean of the gate on the head's output, over the head's width: near 0, what the head reads is not passed "
            "on; null without gates.",
            absent=1.0,
            place=8,
            phrase="gate {:.2f}",
            small=0.1,
            small_phrase=" (almost closed)",
        ),
    )
}


def _struct(name: str, doc: str, field_type: Any, *, defined: bool = True) -> Any:
    """Return a struct with a field for each statistic, also those of some layers; what is not kept is absent.

    `defined`: the description has the meaning of every field.
    """
    fields = [(field, field_type | None, None) for field in (*STATISTICS, *LAYER_STATISTICS)]
    meanings = []
    for s in ROW_STATISTICS:
        meaning = f"{s.meaning[:-1]}; {s.missing}." if s.missing else s.meaning
        meanings.append(f"        {s.name}: {meaning}")
    meanings += [f"        {s.name}: {s.meaning}" for s in LAYER_STATISTICS.values()]
    text = doc
    if defined:
        text = "\n".join((doc, "", "    Attributes:", *meanings, "    "))
    return msgspec.defstruct(
        name, fields, namespace={"__doc__": text}, module=__name__, frozen=True, omit_defaults=True
    )


# A type checker does not see the fields, which are those of ROW_STATISTICS.
if TYPE_CHECKING:

    class _Statistics(msgspec.Struct, Generic[_Value], frozen=True):
        sink: _Value | None
        unselected: _Value | None
        gate: _Value | None

        def __init__(self, *values: _Value, **by_name: _Value | None) -> None: ...
        def __getattr__(self, name: str) -> _Value: ...

    Rows = _Statistics[Array]
    Means = _Statistics[float | None]
else:
    Rows = _struct(
        "Rows",
        "Statistics of every query's whole row of weights, keys that are not shown included, (unit, query) each.",
        OfRows,
    )
    Means = _struct(
        "Means",
        "Statistics of a row (see Rows), averaged over the text's queries; special tokens count only where all are.",
        Annotated[list[float | None], along("unit")],
        defined=False,
    )
