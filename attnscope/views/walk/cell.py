"""The numbers that belong to a cell and to a row, and the command that shows the same place."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, inf, isfinite, isnan, log

import numpy as np

from attnscope.base.system.escape import escape_control, quote_for_shell
from attnscope.findings.arrays import Floats
from attnscope.views.axes import Axis
from attnscope.views.numbers import formatted, number_text, scale_text
from attnscope.views.walk.place import Spot
from attnscope.views.walk.scene import (
    EFFECT,
    ROW_EFFECT,
    STAGES,
    HeadNumber,
    RankedSources,
    RunCommand,
    Scene,
    WalkCut,
    WalkHead,
)

# Characters of a token that names a query in a command.
_LONGEST = 32
# Powers of e that are written as a number without an exponent.
_SMALLEST_POWER = log(1e-4)
_LARGEST_POWER = log(1e7)
# Positions of an effect that are named.
_NAMED_POSITIONS = 2
# Stages that `run` shows only if they are named.
_UNUSUAL = ("scaled", "output")


@dataclass(frozen=True)
class CellNumbers:
    """What is known of one query and one key."""

    # number of every stage that is known; −inf in `masked` stands for not allowed
    stages: dict[str, float]
    allowed: bool | None  # whether the query may attend to the key; None if that is not known
    masked_row: bool
    # logarithm of the sum that the softmax divides by; None if it is not known
    log_sum: float | None
    # largest masked score of the row, or of its sink, which `explain` takes out of that sum; None if that is not known
    largest: float | None
    value: float | None  # α·‖v‖; None unless the key is among the strongest sources
    projected: float | None  # α·‖v W‖, in the same way
    exact: bool  # the weight is exact; otherwise it is not known, only that it is at most `at_most`
    at_most: float | None  # weight of the last listed source; None if the weight is exact
    # decimal places that saved weights were rounded to; None for exact ones
    rounded: int | None = None

    @property
    def weight(self) -> float | None:
        """The weight; None if it is not known."""
        return self.stages.get("weights")


def cell_numbers(scene: Scene, head: WalkHead, query: int, key: int) -> CellNumbers:
    """Return what is known of a cell."""
    stages = {}
    for stage in STAGES:
        row = head.row(stage, query)
        if row is not None and key < len(row):
            stages[stage] = float(row[key])
    measures = {} if head.sources is None else head.sources.measures
    known_measures = {name: listed_weights(scene, head, query, name).get(key) for name in measures}
    listed = {name: value for name, value in known_measures.items() if value is not None}
    exact = "weights" in stages or "weight" in listed
    at_most = None
    if "weight" in listed:
        stages.setdefault("weights", listed["weight"])
    if (
        not exact
        and head.sources is not None
        and head.sources.by == "weight"
        and not head.sources.left_out
    ):
        row_weights = head.sources.measures["weight"][query]
        at_most = 0.0
        if row_weights.size and isfinite(row_weights[-1]):
            at_most = float(row_weights[-1])
    masked = stages.get("masked")
    log_total = log_sum(head, query)
    return CellNumbers(
        stages,
        # of a mean, some may be allowed to read what others are not
        None if masked is None else masked != -inf or stages.get("weights", 0.0) > 0,
        query in head.masked_rows,
        log_total,
        largest_masked(head, query, log_total),
        listed.get("value"),
        listed.get("projected"),
        exact,
        at_most,
        scene.rounded,
    )


def listed_weights(
    scene: Scene, head: WalkHead, query: int, measure: str = "weight"
) -> dict[int, float]:
    """Return a measure of a row's listed sources by the index of the key, strongest first; empty if it is not known."""
    sources = head.sources
    if sources is None or measure not in sources.measures:
        return {}
    pairs = zip(
        sources.places[query].tolist(), sources.measures[measure][query].tolist(), strict=True
    )
    keys = (
        (scene.key_of_source(source_index), value)
        for source_index, value in pairs
        if source_index >= 0
    )
    return {key: value for key, value in keys if key is not None}


def strongest_key(scene: Scene, head: WalkHead | None, query: int) -> int | None:
    """Return the key with the largest weight in a row; None if it is not known."""
    if head is None:
        return None
    row = head.row("weights", query)
    if row is not None and row.size and not np.isnan(row).all():
        return int(np.nanargmax(row))
    return next(iter(listed_weights(scene, head, query)), None)


def strongest_writer(
    scene: Scene, heads: Sequence[WalkHead | None], query: int
) -> tuple[int, int] | None:
    """Return the index of the head that writes most into a row, and the key that it reads for that; None for none.

    Sinks (the first token and special ones) and the token itself are passed over: from there, a walk goes nowhere. What
    a head writes is α·‖v‖ of its strongest listed source, or if that is not known, as of words, the weight.
    """
    passed_over = 0, scene.queries.positions[query]
    strongest: list[tuple[float, int, int]] = []
    for measure in ("value", "weight"):
        for index, head in enumerate(heads):
            listed = {} if head is None else listed_weights(scene, head, query, measure)
            row = None if head is None or head.sources is not None else head.row("weights", query)
            if row is not None and measure == "weight":
                listed = dict(enumerate(row.tolist()))
            strongest += [
                (amount, index, key)
                for key, amount in listed.items()
                if amount > 0
                and scene.keys.positions[key] not in passed_over
                and not scene.keys.special[key]
            ]
        if strongest:
            _, head_index, key = max(strongest, key=lambda found: found[0])
            return head_index, key
    return None


def strongest_sources(
    scene: Scene, heads: Sequence[WalkHead | None], query: int
) -> tuple[Floats, np.ndarray, bool]:
    """Return the largest known weight of a row in every head, its key, both (heads,), and whether sinks are left out.

    Sinks and the token itself are passed over, unless the row reads nothing else in any head: then they are shown, as
    on pages. The weight is NaN if it is not known, as where all listed sources of a row are others, and 0 if there is
    none.
    """
    sinks, positions = scene.made(
        "elsewhere", lambda: (np.array(scene.keys.sinks), np.array(scene.keys.positions))
    )
    passed_over = sinks | (positions == scene.queries.positions[query])
    weights, keys = _strongest_past(scene, heads, query, passed_over)
    if (weights > 0).any():
        return weights, keys, True
    return *_strongest_past(scene, heads, query, np.zeros_like(passed_over)), False


def _strongest_past(
    scene: Scene, heads: Sequence[WalkHead | None], query: int, passed_over: np.ndarray
) -> tuple[Floats, np.ndarray]:
    """Return the largest known weight of a row in every head, but not of keys that are passed over, and its key."""
    weights = np.full(len(heads), np.nan, dtype=np.float32)
    keys = np.zeros(len(heads), dtype=np.int64)
    rows = [None if head is None else head.row("weights", query) for head in heads]
    exact = [n for n, row in enumerate(rows) if row is not None]
    if exact:
        # all at once: calls for every head take most of a redraw
        whole_rows = np.array([rows[n] for n in exact])
        whole_rows = np.where(passed_over | np.isnan(whole_rows), 0.0, whole_rows)
        keys[exact] = whole_rows.argmax(axis=1)
        weights[exact] = whole_rows.max(axis=1)
    by_ranks: dict[int, list[tuple[int, RankedSources]]] = {}
    for n, head in enumerate(heads):
        if rows[n] is None and head is not None and head.sources is not None:
            by_ranks.setdefault(head.sources.places.shape[1], []).append((n, head.sources))
    for ranks, listed in by_ranks.items():
        indices, ranked = map(list, zip(*listed, strict=True))
        if ranks:
            weights[indices], keys[indices] = _strongest_listed(scene, ranked, query, passed_over)
    return weights, keys


def _strongest_listed(
    scene: Scene, ranked: Sequence[RankedSources], query: int, passed_over: np.ndarray
) -> tuple[Floats, np.ndarray]:
    """Return the largest listed weight of a row in some heads, but not of keys that are passed over, and its key."""
    key_of = scene.made(
        "keys of sources",
        lambda: np.array([
            -1 if (key := scene.key_of_source(n)) is None else key
            for n in range(len(scene.sources.positions))
        ]),
    )  # fmt: skip
    places = np.array([sources.places[query] for sources in ranked])
    unknown = np.full(places.shape[1], np.nan, dtype=np.float32)
    listed = np.array([
        sources.measures["weight"][query] if "weight" in sources.measures else unknown
        for sources in ranked
    ])  # fmt: skip
    keys = np.where(places < 0, -1, key_of[places])
    listed = np.where((keys < 0) | passed_over[keys] | np.isnan(listed), -1.0, listed)
    largest = listed.max(axis=1)
    # of equal ones the last key
    keys = np.where(listed == largest[:, None], keys, 0).max(axis=1)
    are_all_listed = (places < 0).any(axis=1)
    weights = np.where(largest < 0, np.where(are_all_listed, 0.0, np.nan), largest)
    return weights.astype(np.float32), np.where(largest < 0, 0, keys)


def largest_elsewhere(scene: Scene, head: WalkHead) -> float:
    """Return the largest known weight that is on no sink; 1 if there is none."""
    weights = head.stages.get("weights")
    if weights is not None:
        elsewhere = ~np.array(scene.keys.sinks)
        return float(np.nanmax(weights[:, elsewhere], initial=0.0)) or 1.0
    listed = (listed_weights(scene, head, query) for query in range(len(scene.queries.positions)))
    sinks = scene.keys.sinks
    weights_elsewhere = [w for row in listed for key, w in row.items() if not sinks[key]]
    return max(weights_elsewhere, default=0.0) or 1.0


def weight_of_cell(scene: Scene, head: WalkHead | None, query: int, key: int) -> float:
    """Return the weight of a cell in a head; NaN if it is not known, as of a source that a row does not list."""
    if head is None:
        return float("nan")
    row = head.row("weights", query)
    if row is not None:
        return float(row[key])
    return listed_weights(scene, head, query).get(key, float("nan"))


def log_sum(head: WalkHead, query: int) -> float | None:
    """Return log Σ e^masked over the row and its sink, from the largest cell: log Σ = masked − log α.

    A mean of rows has none: it is no softmax.
    """
    if "mean" in (head.layer, head.head):
        return None
    masked = head.row("masked", query)
    weights = head.row("weights", query)
    if masked is None or weights is None or not weights.size or np.isnan(weights).all():
        return None
    at = int(np.nanargmax(weights))
    if weights[at] > 0:
        return float(masked[at]) - log(float(weights[at]))
    return None


def largest_masked(head: WalkHead, query: int, log_total: float | None) -> float | None:
    """Return the largest masked score of a row and its sink, by the logarithm of the sum; None without it."""
    masked = head.row("masked", query)
    if log_total is None or masked is None:
        return None
    sink = float(head.rows["sink"][query]) if "sink" in head.rows else 0.0
    return max(float(np.nanmax(masked)), log_total + log(sink) if sink > 0 else -inf)


def effect_of_row(scene: Scene, query: int) -> HeadNumber | None:
    """Return what cutting every head changes at a row; None if it is not known."""
    effects = scene.effects
    number = scene.number(EFFECT)
    if effects is None or effects.values is None or number is None:
        return None
    values = effects.values
    position = scene.tokens_of(query)[-1]

    def of_row() -> HeadNumber:
        meaning = effect_meaning(number.measure, place_of_effect(scene, query))
        return replace(number, name=ROW_EFFECT, meaning=meaning, values=values[..., position])

    return scene.made((ROW_EFFECT, position), of_row)


def effect_meaning(measure: str, place: str) -> str:
    """Say what the effect of a head is; `place` is that of place_of_effect."""
    if measure == "kl":
        return f"Change {place} in bits (KL), this head alone cut to 0."
    return f"Change of final states {place}, ‖change‖ / ‖state‖, this head alone cut to 0."


def place_of_effect(scene: Scene, query: int | None) -> str:
    """Name where an effect is: `after 10 too`; at the row of a query, or for None where heads are ranked by it."""
    effects = scene.effects
    if effects is None:
        return ""
    if query is not None:
        axis = scene.queries
        name = axis.names[query].text.strip() if axis.names else ""
        return f"{effects.preposition} {axis.number(query)} {escape_control(name)}".rstrip()
    positions = effects.positions
    names = []
    for position in positions[:_NAMED_POSITIONS]:
        index = scene.sources.places.get(position) if scene.aligned else None
        text = "" if index is None else f" {scene.sources.names[index].text.strip()}"
        names.append(f"{position}{escape_control(text)}")
    if len(positions) > len(names):
        names.append(f"{len(positions) - len(names)} more")
    if names:
        return f"{effects.preposition} {', '.join(names)}"
    return "on average"


def members_text(scene: Scene, query: int, key: int) -> str:
    """Say what the weight between two words or spans is made of; empty between single tokens."""
    if scene.members is None:
        return ""
    rows = len(scene.tokens_of(query))
    columns = len(scene.tokens_of_key(key))
    if rows == columns == 1:
        return ""
    mean = "" if rows == 1 else f"mean over {rows} tokens of "
    return f"{mean}the weight on {columns} token{'s' if columns > 1 else ''}"


def arithmetic(
    head: WalkHead, cell: CellNumbers, forbidden: str = "not allowed by the mask"
) -> list[str]:
    """Return the steps to the weight of a cell: `q·k 20.73 ÷ √48 = 2.99` and `→ e^2.99 / Σ = 0.92`.

    `forbidden` is why a cell of −inf is not allowed.
    """
    mean = "mean" in (head.layer, head.head)
    score = list[str]()
    scores = cell.stages.get("scores")
    logit = cell.stages.get("scaled", cell.stages.get("masked"))
    if scores is not None:
        score.append(f"{'mean ' if mean else ''}q·k {number_text(scores, 2)}")
        if head.scale is not None and logit is not None and logit != -inf:
            score.append(scale_text(head.scale, head.width, digits=3))
            score += later_steps(head)
            score.append(f"= {number_text(logit, 2)}")
    elif logit is not None and logit != -inf:
        score.append(f"scaled {number_text(logit, 2)}")
    steps = [" ".join(score)] if score else []
    if cell.masked_row:
        return [*steps, "→ masked: no key is allowed"]
    if cell.allowed is False:
        return [*steps, f"→ {forbidden}: weight 0"]
    if cell.weight is None:
        if cell.at_most is not None:
            limit_text = weight_text(cell.at_most, cell.rounded)
            return [
                " ".join([*score, f"weight at most {limit_text} (not among the listed sources)"])
            ]
        return steps or ["not known"]
    if isnan(cell.weight):
        return [*steps, "→ no weight"]
    weight = weight_text(cell.weight, cell.rounded)
    if logit is not None and cell.log_sum is not None:
        sink = " with the sink" if "sink" in head.rows else ""
        return [*steps, f"→ e^{number_text(logit, 2)} / Σ{sink} = {weight}"]
    return [*steps, f"{'→ ' if steps else ''}weight {weight}"]


def later_steps(head: WalkHead) -> list[str]:
    """List what is done to scaled scores: `soft-capped at 50`, `+ alibi bias`, `changed by score_mod:louder`."""
    steps = []
    if head.softcap is not None:
        steps.append(f"soft-capped at {head.softcap:g}")
    if head.bias is not None:
        steps.append(f"+ {head.bias} bias")
    if head.score_mod is not None:
        steps.append(f"changed by {head.score_mod}")
    return steps


def weight_text(weight: float, rounded: int | None = None) -> str:
    """Format a weight: two decimals, or two digits of a small one; `0` for exactly 0; all digits of a rounded one."""
    if rounded is not None:
        return formatted(weight, f".{rounded}f")
    if weight == 0:
        return "0"
    if abs(weight) >= 0.01:
        return formatted(weight, ".2f")
    return formatted(weight, ".2g")


def sum_text(cell: CellNumbers, *, is_long: bool) -> str:
    """Return the sum that the softmax divides by; `is_long` adds how `explain` writes it; empty if it is not known."""
    if cell.log_sum is None or cell.largest is None:
        return ""
    total = f"e^{number_text(cell.log_sum, 2)}"
    if _SMALLEST_POWER < cell.log_sum < _LARGEST_POWER:
        # four digits, but all of those before the point
        total = formatted(exp(cell.log_sum), ".4g" if cell.log_sum < log(9999) else ".0f")
    if not is_long:
        return total
    rest = formatted(exp(cell.log_sum - cell.largest), ".4g")
    return f"{total} = e^{number_text(cell.largest, 2)} (row's largest) × {rest}"


def unlisted(head: WalkHead, query: int) -> float | None:
    """Return how much of a row's weight is on sources that are not listed; None if that is not known."""
    if head.sources is None or "weight" not in head.sources.measures:
        return None
    listed = head.sources.measures["weight"][query].astype(np.float64)
    sink = float(head.rows["sink"][query]) if "sink" in head.rows else 0.0
    return max(0.0, 1.0 - float(np.nansum(listed)) - sink)


def difference(head: WalkHead, pinned: WalkHead, stage: str) -> np.ndarray | None:
    """Return a stage of a head minus that of the pinned one; None if their shapes differ or one is not known.

    Cells that both masks forbid are −inf, as in `masked`; those that one of them forbids are NaN.
    """
    mine = head.stages.get(stage)
    other = pinned.stages.get(stage)
    if mine is None or other is None or mine.shape != other.shape or head.start != pinned.start:
        return None
    with np.errstate(invalid="ignore"):
        differences = mine.astype(np.float64) - other
    differences[np.isneginf(mine) != np.isneginf(other)] = np.nan
    differences[np.isneginf(mine) & np.isneginf(other)] = -np.inf
    return differences.astype(np.float32)


def command(scene: Scene, spot: Spot, stage: str = "weights", cuts: Sequence[WalkCut] = ()) -> str:
    """Return the command that shows the same place: `attnscope run … --layer 3 --head 7 --query it`.

    It names the stage that is shown if `run` does not show it by itself.
    """
    if scene.command is None:
        return ""
    options = [f"--cut {quote_for_shell(cut.written)}" for cut in cuts]
    if scene.unit == "words":
        options.append("--words")
    elif scene.division:
        options.append(f"--spans {quote_for_shell(scene.division)}")
    options += [f"--layer {scene.layers[spot.layer]}", f"--head {scene.heads[spot.head]}"]
    options += _cell_options(scene, spot, stage)
    if stage in _UNUSUAL:
        options.append(f"--stage {stage}")
    return scene.command.spell(*options)


def _cell_options(scene: Scene, spot: Spot, stage: str) -> list[str]:
    """Spell the row, and the column of the cell; the columns of an output are no keys."""
    options = [f"--query {query_word(scene, spot.query)}"]
    if spot.key is not None and stage != "output":
        options.append(f"--key {key_word(scene, spot.key)}")
    return options


def comparing_command(
    here: Scene, there: Scene, spots: tuple[Spot, Spot], stage: str = "weights"
) -> str | None:
    """Return the `compare` of a place with a pinned one; None if they differ in more than the mask, or the head."""
    spot, pin = spots
    heads = [
        (scene.layers[at.layer], scene.heads[at.head]) for scene, at in ((there, pin), (here, spot))
    ]
    if not all(isinstance(index, int) for head in heads for index in head):
        return None
    cell = _cell_options(here, spot, stage)
    if heads[0] == heads[1]:
        both = compared_masks(there, here)
        options = [f"--layer {heads[0][0]}", f"--head {heads[0][1]}", *cell]
        if both is None:
            return None
        return both.spell(*options, command="compare")
    if here.command is None or here.command != there.command:
        return None
    options = [f"--head L{layer}H{head}" for layer, head in heads]
    return here.command.spell(*options, *cell, command="compare")


def compared_masks(before: Scene, after: Scene) -> RunCommand | None:
    """Return what `compare` takes to show two scenes, with both masks; None if more than their masks differs."""
    if before.command is None or after.command is None:
        return None
    masks = before.command.mask, after.command.mask
    if masks[0] == masks[1] or replace(before.command, mask=masks[1]) != after.command:
        return None
    if any(mask.keys() - {"--mask"} for mask in masks):
        return None
    sides = "".join(f" --mask {mask.get('--mask', 'own')}" for mask in masks)
    words = after.command.words
    shared = after.command.shared_words
    return replace(
        after.command,
        words=words + sides,
        shared_words=None if shared is None else shared + sides,
        mask={},
    )


def query_word(scene: Scene, query: int) -> str:
    """Spell a query as `--query` takes it: its token if it is a word that no other position has, or its position.

    A word is spelled by the positions of all of its pieces; a span by that of its first token.
    """
    return _position_word(scene.queries, query, scene.tokens_of(query), scene.unit)


def key_word(scene: Scene, key: int) -> str:
    """Spell a key as `--key` takes it, in the same way as a query."""
    return _position_word(scene.keys, key, scene.tokens_of_key(key), scene.unit)


def _position_word(axis: Axis, index: int, tokens: Sequence[int], unit: str) -> str:
    name = axis.names[index].text if axis.names else ""
    plain = name.isalpha() and name.isascii() and len(name) <= _LONGEST and unit != "spans"
    among = 0
    if plain:
        among = sum(name.casefold() in span.text.casefold() for span in axis.names)
    if plain and among == 1:
        return name
    if len(tokens) == 1 or unit == "spans":
        return str(tokens[0])
    return f"{tokens[0]}:{tokens[-1] + 1}"
