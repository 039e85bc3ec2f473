"""The row of the cursor: its sources as bars, its statistics, the arithmetic of the cell, and predictions."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product, takewhile
from math import isnan, nan

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

from attnscope.findings.row_statistics import ROW_STATISTICS
from attnscope.views.axes import Axis
from attnscope.views.explore.ink import (
    BOLD,
    CURSOR,
    DIM,
    LABEL,
    PLAIN,
    Ink,
    Line,
    bar,
    cells_wide,
    cut,
    fit,
    fitting,
    styled,
    wrapped,
)
from attnscope.views.explore.state import WalkState
from attnscope.views.numbers import MASKED, formatted, number_text
from attnscope.views.pictures import percent
from attnscope.views.spans import Spans
from attnscope.views.walk.cell import (
    arithmetic,
    cell_numbers,
    listed_weights,
    members_text,
    place_of_effect,
    sum_text,
    unlisted,
    weight_text,
)
from attnscope.views.walk.effects import effect_text, matters_text, verdict_text
from attnscope.views.walk.place import OUTPUT, Action
from attnscope.views.walk.scene import EFFECT, Forecast, Scene, WalkCut, WalkHead

# Statistics in the order in which they are shown; `within` follows.
_STATISTICS = {
    "entropy": "entropy {} bits",
    "gate": "gate {}",
    "unselected": "missed by the indexer {}",
    "self": "itself {}",
    "first": "first {}",
    "special": "special {}",
    "sink": "sink {}",
    "other": "rest with punctuation {}",
    "punctuation": "punctuation {}",
    "distance": "{} tokens away",
}
# Weight below which a source is not listed by itself.
_LITTLE = 5e-4
# Sources that are listed at most.
_MOST = 40
# Columns from which the numbers of sources have titles.
_TITLED = 34
# Columns from which the sources have a column of their own.
TWO_COLUMNS = 76
# Lines of a title and two sources, and between what is below them.
_FEW = 6
_BAR = 5  # columns of a bar beside long names
_BEFORE = "│"  # where a bar ended before a cut
# Lines from which statistics of the row have room.
_ROOMY = 13
# Lines from which the sum of the softmax is also written as `explain` does.
_LONG = 16
# Lines of sources that stay above predictions.
_LISTED = 2
# Lines of each prediction from which what was taken out is named above its tokens.
_ROOMY_FORECAST = 8
# Factor by which an effect is larger than another one, and not only computed otherwise.
_SAME = 1.001
# The key that brings back the arithmetic of the cell, in the first form that has room.
_HIDDEN = ("p: arithmetic of the cell", "p: arithmetic", "p: cell")
# Columns of the name of the row in the title, at most.
_NAMED = 24


@dataclass(frozen=True)
class SourceLine:
    """A source of the row."""

    key: int | None  # index of the key; None if it is no column
    label: str
    weight: float  # NaN if it is not known
    value: float | None  # α·‖v‖; None if it is not known
    pinned: float | None = (
        None  # weight in the pinned head, NaN if it is not known; None without one
    )


@dataclass
class RowPanel:
    """Draws the row; remembers which line is which source."""

    _keys: dict[int, int] = field(default_factory=dict)

    def draw(self, state: WalkState, width: int, height: int) -> list[Line]:
        """Return the lines of the panel."""
        self._keys = {}
        scene = state.scene
        head = state.head
        if scene is None or width < 10 or height < 3:
            return []
        ink = state.ink
        query = state.query
        # the edge of a frame has its number and corners; the columns of numbers are those of the sources
        is_wide = width >= TWO_COLUMNS
        listed = width - width // 2 if is_wide else width
        lines = [_heading(state, scene, query, head, listed - 3)]
        if head is None:
            notice = state.status or "this head is not there"
            return [*lines, [Segment(fit(ink.plain(notice), width), DIM)]]
        is_long = height >= _LONG or is_wide
        column = width // 2 if is_wide else width
        below = _cell_lines(state, scene, head, column, is_long=is_long)
        if height < _ROOMY and len(lines) + len(scene.keys.positions) + len(below) > height:
            # a source says more than what it says of the cell again
            below = _cell_lines(state, scene, head, column, is_long=False, is_brief=True)
        if state.place.predictions:
            # What changes says more than the arithmetic, where there is no room for both.
            count = len(_forecasts(state, scene, column))
            others = len(lines) + 1 if is_wide else _FEW
            below = below if height >= count + len(below) + others else []
        if is_wide:
            return [*lines, *self._two_columns(state, scene, head, below, width, height - 1)]
        blanks = 2 * (height >= _ROOMY)
        room = height - 1 - len(below) - blanks
        most_forecasts = 4 * (height >= _ROOMY)
        if state.place.predictions:
            # the weight of the others stays above predictions, and two sources if each of them has a token then
            most_forecasts = room - _LISTED - 1
            most_forecasts += len(_forecasts(state, scene, width, 0)) > most_forecasts
        middle = _middle(state, scene, head, width, most_forecasts)
        if not below:
            _say_what_is_hidden(middle, width)
        lines += self._list(state, scene, head, width, max(2, room - len(middle)))
        for part in filter(None, (middle, below)):
            if len(lines) + len(part) <= height:
                lines += [[]] * (len(lines) + len(part) < height)
            lines += part
        return lines[:height]

    def _list(
        self, state: WalkState, scene: Scene, head: WalkHead, width: int, room: int
    ) -> list[Line]:
        """Return the strongest sources and the weight of the others, in at most so many lines."""
        ink = state.ink
        query = state.query
        sources, others = _sources(
            scene, (head, _other_head(state)), query, state.key, ink, min(_MOST, room)
        )
        # below the title
        self._keys = {
            n: source.key for n, source in enumerate(sources, 1) if source.key is not None
        }
        longest = max((cell_len(source.label) for source in sources), default=0)
        lines = [_source(source, state, width, longest) for source in sources]
        if query in head.masked_rows:
            lines.append([Segment(fit(MASKED + ": no key is allowed", width), DIM)])
        elif others is not None:
            label, *weights = others
            numbers = "".join(f" {_weight_text(weight):>6}" for weight in weights)
            lines.append(
                [Segment(fit(f"  {label}", width - 14), DIM), Segment(ink.plain(numbers), DIM)]
            )
        return lines

    def _two_columns(
        self,
        state: WalkState,
        scene: Scene,
        head: WalkHead,
        below: list[Line],
        width: int,
        height: int,
    ) -> list[Line]:
        """Return the sources on the left, and what is said of the row and the cell on the right."""
        left = width - width // 2 - 2
        sources = self._list(state, scene, head, left, height)
        middle = _middle(state, scene, head, width // 2, height - len(below) - 1)
        if not below:
            _say_what_is_hidden(middle, width // 2)
        right = [*middle, [], *below] if middle else below
        lines: list[Line] = []
        for n in range(min(height, max(len(sources), len(right)))):
            line = cut(sources[n] if n < len(sources) else [], left)
            gap = Segment(" " * (width - width // 2 - cells_wide(line)))
            lines.append([*line, gap, *(right[n] if n < len(right) else [])])
        return lines

    def hit(self, state: WalkState, x: int, y: int) -> Action | None:
        """Return the action of a click in the panel."""
        if y in self._keys:
            return Action("goto", replace(state.spot, key=self._keys[y]))
        return None


def _heading(state: WalkState, scene: Scene, query: int, head: WalkHead | None, width: int) -> Line:
    """Return the title, and the names of the two columns of numbers."""
    axis = scene.queries
    ink = state.ink
    name = ink.name(axis.names[query]) if axis.names else ""
    names = ""
    if width >= _TITLED:
        second = "α·‖v‖" if _has_values(head) else ""
        names = f"{'weight':>7}{second if _other_head(state) is None else 'pinned':>7}"
    room = width - len(" row ") - len(names)
    title = f" {axis.number(query)} {name}"
    # The title of the matrix names the head, too.
    of_head = ""
    if head is not None:
        forms = (f"  {head.name}, cut", f"  {head.name}") if state.head_cut else (f"  {head.name}",)
        of_head = fitting([*forms, ""], room - min(cell_len(title), _NAMED))
    title = fit(title, min(max(4, room - len(of_head)), _NAMED)).rstrip()
    line = [Segment(" row ", state.title("row")), Segment(title, BOLD), Segment(of_head, DIM)]
    gap = width - cells_wide(line) - len(names)
    return cut([*line, Segment(" " * max(0, gap)), Segment(ink.plain(names), DIM)], width)


def _other_head(state: WalkState) -> WalkHead | None:
    """Return the pinned head, whose weights stand beside those of the row, unless it is the same."""
    return None if state.pinned is state.head else state.pinned


def _has_values(head: WalkHead | None) -> bool:
    """Tell whether α·‖v‖ is known of some sources."""
    return head is not None and head.sources is not None and "value" in head.sources.measures


def _sources(
    scene: Scene,
    heads: tuple[WalkHead, WalkHead | None],
    query: int,
    chosen_key: int,
    ink: Ink,
    room: int,
) -> tuple[list[SourceLine], tuple[str, *tuple[float, ...]] | None]:
    """Return the strongest sources of a row, and a name and the weight of the others; None for none.

    They are the largest of an exact row, else the listed ones, in at most so many lines with that of the others. If the
    chosen key has a weight, it is one of them, and the name of the others says how many are between it and the line above.
    Of the head and the pinned one, both weights count, so that a source that lost its weight is listed, too.
    """
    head, pinned = heads
    if pinned is not None:
        return _compared_sources(scene, (head, pinned), query, chosen_key, ink, room)
    row = head.row("weights", query)
    ranked = head.sources
    if query in head.masked_rows:
        return [], None
    if row is not None and (ranked is None or not ranked.left_out):
        order = np.argsort(-np.where(np.isnan(row), -1, row), kind="stable")
        n_positive = int((row > 0).sum())
        # a line for the others says less than the only one of them
        count = max(1, min(room - 1, int((row >= _LITTLE).sum())))
        count = count if n_positive > count + 1 else max(1, n_positive)
        if row[chosen_key] > 0 and chosen_key not in order[:count]:
            order = np.concatenate(
                [order[: count - 1], [chosen_key], order[order != chosen_key][count - 1 :]]
            )
        listed_values = listed_weights(scene, head, query, "value")
        rest = row[order[count:]]
        sources = [
            SourceLine(key, _named(scene.keys, key, ink), float(row[key]), listed_values.get(key))
            for key in order[:count].tolist()
        ]
        more = int((rest > 0).sum())
        rest = rest[np.isfinite(rest)].astype(np.float64)
        label = _of_others(f"{more} more", rest.tolist(), sources)
        return sources, (label, float(rest.sum())) if more else None
    if ranked is None:
        return [], None
    values = ranked.measures.get("value")
    sources = []
    for rank, source_index in enumerate(ranked.places[query].tolist()):
        if source_index >= 0:
            value = None if values is None else float(values[query, rank])
            weight = float(ranked.measures["weight"][query, rank])
            sources.append(
                SourceLine(
                    scene.key_of_source(source_index),
                    _named(scene.sources, source_index, ink),
                    weight,
                    value,
                )
            )
    missing = unlisted(head, query)
    listed = sources[: max(1, room - 1)]
    hidden = sources[len(listed) :]
    if found := [source for source in hidden if source.key == chosen_key]:
        hidden = [listed.pop(), *(source for source in hidden if source.key != chosen_key)]
        listed += found
    hidden_weights = [source.weight for source in hidden]
    label = _of_others("not listed", hidden_weights, listed)
    if missing is None:
        return listed, None
    missing += sum(hidden_weights)
    # a larger one is not left out in silence, however small
    return listed, None if missing < _LITTLE and not found else (label, missing)


def _compared_sources(
    scene: Scene,
    heads: tuple[WalkHead, WalkHead],
    query: int,
    chosen_key: int,
    ink: Ink,
    room: int,
) -> tuple[list[SourceLine], tuple[str, *tuple[float, ...]] | None]:
    """Return the sources with the largest weights in either of two heads, as _sources."""
    known_weights = [_known_weights(scene, head, query) for head in heads]
    larger = {
        key: max(weights.get(key, 0.0) for weights in known_weights)
        for key in sorted({*known_weights[0], *known_weights[1]})
    }
    order = sorted((key for key in larger if larger[key] > 0), key=lambda key: -larger[key])
    count = max(1, min(room - 1, sum(weight >= _LITTLE for weight in larger.values())))
    count = count if len(order) > count + 1 else max(1, len(order))
    if chosen_key in order[count:]:
        order.remove(chosen_key)
        order.insert(count - 1, chosen_key)
    are_whole = [head.row("weights", query) is not None for head in heads]
    sources = []
    for key in order[:count]:
        weight, pinned_weight = (
            weights.get(key, 0.0 if is_whole else nan)
            for weights, is_whole in zip(known_weights, are_whole, strict=True)
        )
        label = _named(scene.keys, key, ink)
        sources.append(SourceLine(key, label, weight, None, pinned_weight))
    rests = []
    for head, weights, is_whole in zip(heads, known_weights, are_whole, strict=True):
        missing = 0.0 if is_whole else unlisted(head, query)
        rest = nan if missing is None else missing
        rests.append(rest + sum(weights.get(key, 0.0) for key in order[count:]))
    label = f"{len(order) - count} more" if all(are_whole) else "not listed"
    is_all = len(order) <= count and all(are_whole)
    label = _of_others(label, [larger[key] for key in order[count:]], sources)
    return sources, None if is_all else (label, *rests)


def _known_weights(scene: Scene, head: WalkHead, query: int) -> dict[int, float]:
    """Return the known weights of a row by key: all of an exact row, else those that are listed."""
    row = head.row("weights", query)
    if row is None:
        return listed_weights(scene, head, query)
    return dict(enumerate(np.nan_to_num(row.astype(np.float64)).tolist()))


def _of_others(label: str, hidden: Sequence[float], listed: Sequence[SourceLine]) -> str:
    """Return the name of the sources without a line of their own, and how many of them are larger than the last that has.

    The last may be the one under the cursor, which is listed wherever it ranks.
    """
    larger = sum(weight > _larger_weight(listed[-1]) for weight in hidden) if listed else 0
    return f"{label}, {larger} larger" if larger else label


def _larger_weight(source: SourceLine) -> float:
    """Return the weight of a source, or that in the pinned head if it is larger."""
    return float(np.fmax(source.weight, nan if source.pinned is None else source.pinned))


def _weight_text(weight: float) -> str:
    """Write a weight of a list; `?` for one that is not known."""
    return "?" if isnan(weight) else formatted(weight, ".3f")


def _named(axis: Axis, index: int, ink: Ink) -> str:
    return f"{axis.number(index)} {ink.name(axis.names[index])}"


def _source(source: SourceLine, state: WalkState, width: int, longest: int) -> Line:
    """Return a source: its label in as many cells as the longest needs, a bar, and numbers."""
    ink = state.ink
    if source.pinned is not None:
        second = _weight_text(source.pinned)
    elif source.value is not None:
        second = formatted(source.value, ".2f")
    else:
        second = "?" if _has_values(state.head) else ""
    numbers = f" {_weight_text(source.weight):>6}{second:>7}"
    name = max(8, min(18, longest + 1, width - 2 - len(numbers) - _BAR))
    wide = width - 2 - name - len(numbers)
    style = CURSOR if source.key == state.key else PLAIN
    share = 0.0 if isnan(source.weight) else source.weight
    return [
        Segment(ink.plain("← "), DIM),
        Segment(fit(source.label, name - 1), style),
        Segment(" "),
        Segment(fit(bar(share, max(0, wide), ascii=ink.ascii), wide), ink.bar),
        Segment(ink.plain(numbers)),
    ]


def _middle(state: WalkState, scene: Scene, head: WalkHead, width: int, room: int) -> list[Line]:
    """Return the predictions, or the statistics of the row, in at most so many lines."""
    if state.place.predictions:
        return _forecasts(state, scene, width, room)[: max(0, room)]
    lines = _statistics(head, state.query, len(scene.sources.positions), width, state.ink)
    return lines[: max(0, room)]


def _say_what_is_hidden(lines: list[Line], width: int) -> None:
    """Say which key brings the cell that predictions cover, in the first line above their tokens with room for it."""
    above = list(takewhile(lambda line: not line[0].text.startswith("  "), lines))
    for form, line in product(_HIDDEN, above):
        gap = width - cells_wide(line) - len(form)
        if gap > 1:
            line.append(Segment(" " * gap + form, DIM))
            return


def _statistics(head: WalkHead, query: int, n_keys: int, width: int, ink: Ink) -> list[Line]:
    # of a short text, all weight is within a long distance
    near = {
        s.name: s.name.replace("_", " ") + " {}"
        for s in ROW_STATISTICS
        if s.within and s.within < n_keys
    }
    phrases = []
    for name, form in (_STATISTICS | near).items():
        if name in head.rows and np.isfinite(value := float(head.rows[name][query])):
            phrases.append(form.format(formatted(value, ".2f")))
    return styled(map(ink.plain, flowed(phrases, width, " · ")[:4]), DIM)


def _cell_lines(
    state: WalkState,
    scene: Scene,
    head: WalkHead,
    width: int,
    *,
    is_long: bool,
    is_brief: bool = False,
) -> list[Line]:
    """Return the cell's arithmetic, and what else is known of it.

    Args:
        state: The walk.
        scene: Its scene.
        head: The head.
        width: Columns.
        is_long: Whether the sum of its softmax is also written as `explain` does.
        is_brief: Whether only the pinned head follows the arithmetic.
    """
    ink = state.ink
    query = state.query
    key = state.key
    cell = cell_numbers(scene, head, query, key)
    names = [_named(axis, n, ink) for axis, n in ((scene.queries, query), (scene.keys, key))]
    room = max(4, (width - 10) // 2)
    title = f" {fit(names[0], room).rstrip()} ← {fit(names[1], room).rstrip()}"
    lines: list[Line] = [cut([Segment(" cell ", LABEL), Segment(ink.plain(title), BOLD)], width)]
    lines += styled(map(ink.plain, flowed(arithmetic(head, cell, state.forbidden), width)))
    more: list[str] = []
    pinned = state.pinned
    # before what a small panel has no room for
    if pinned is not None and cell.weight is not None:
        other = cell_numbers(scene, pinned, query, key).weight
        if other is not None:
            more.append(
                f"pinned {weight_text(other)}, difference {number_text(cell.weight - other, 2)}"
            )
    n_kept = len(more) if is_brief else None
    members = members_text(scene, query, key)
    more += [members] if members else []
    total = sum_text(cell, is_long=is_long)
    more += [f"Σ {total}"] if total else []
    more += [f"α·‖v‖ {formatted(cell.value, '.2f')}"] if cell.value is not None else []
    if cell.value is None and head.sources is not None and _has_values(head):
        more.append(f"α·‖v‖ is known of the {head.sources.places.shape[1]} strongest alone")
    more += [f"α·‖vW‖ {formatted(cell.projected, '.2f')}"] if cell.projected is not None else []
    output = head.row("output", query) if state.place.stage == OUTPUT else None
    if output is not None:
        dim = state.spot.dim
        more.append(f"output dim {dim} = Σ weight × v = {number_text(float(output[dim]), 2)}")
    if cell.exact:
        more.append("exact" if scene.rounded is None else f"rounded to {scene.rounded} decimals")
    return lines + styled(map(ink.plain, flowed(more[:n_kept], width, " · ")), DIM)


def flowed(phrases: list[str], width: int, between: str = " ") -> list[str]:
    """Put phrases on lines, as many as fit on each; one that is longer than a line is wrapped."""
    lines = list[str]()
    for phrase in phrases:
        if lines and cell_len(lines[-1] + between + phrase) <= width:
            lines[-1] += between + phrase
        else:
            lines += wrapped(phrase, width)
    return lines


def _forecasts(state: WalkState, scene: Scene, width: int, room: int = 1 << 16) -> list[Line]:
    """Return the predictions; with cuts, beside those without, also at the row of the cursor.

    `room`: lines that they may take; each has fewer tokens then, but one at least.
    """
    ink = state.ink
    lines: list[Line] = []
    if state.place.cuts:
        phrases = _of_cuts(state, scene)
        tick = ink.plain(f"{_BEFORE} before")
        if any(forecast.before is not None for forecast in scene.predictions):
            phrases.append(tick)
        said = flowed(phrases, width, " · ")
        # it takes no line from predictions, whose numbers say the same
        said = said[: len(said) - (said[-1] == tick)]
        lines = styled(said, ink.style("warning"))
    subject = _subject(state.place.cuts)
    changes = [f.effect for f in scene.predictions[:1] if f.is_change and f.effect is not None]
    for effect in changes:
        matters = matters_text(subject, effect, "hidden")
        answer = f"{matters}: {effect_text(effect, 'hidden')} on average"
        lines += styled(wrapped(ink.plain(answer), width), BOLD)
    forecasts = [*scene.predictions]
    row = scene.changes.get(scene.tokens_of(state.query)[-1])
    if row is not None and row not in forecasts:
        forecasts.append(row)
    if not forecasts:
        return lines + styled(map(ink.plain, wrapped(scene.no_predictions, width)), DIM)
    is_roomy = room >= _ROOMY_FORECAST * len(forecasts)
    blocks = [_forecast(forecast, ink, width, subject, is_roomy) for forecast in forecasts]
    # What is said of a prediction stands before its tokens.
    headings = [len(block) - len(f.tokens) for block, f in zip(blocks, forecasts, strict=True)]
    tokens = max(1, (room - len(lines) - sum(headings)) // len(blocks))
    for block, heading, forecast in zip(blocks, headings, forecasts, strict=True):
        count = len(forecast.tokens)
        if forecast.is_change and count + forecast.more > min(tokens, count):
            # the last line says how many more there are
            count = max(1, min(tokens - 1, count))
            more = len(forecast.tokens) - count + forecast.more
            least = percent(forecast.probabilities[count - 1])
            rest = ink.plain(f"  {more} more, each at most {least}")
            lines += [*block[: heading + count], [Segment(fit(rest, width), DIM)]]
        else:
            lines += block[: heading + tokens]
    return lines


def _of_cuts(state: WalkState, scene: Scene) -> list[str]:
    """Say what is cut, and how many heads change more alone, if that has been measured."""
    ink = state.ink
    how = next((forecast.how for forecast in scene.predictions if forecast.how), "")
    cuts = "cut " + ", ".join(cut.written for cut in state.place.cuts)
    phrases = [f"{cuts} to 0" if how == "cut to 0" else f"{cuts}, {how}" if how else cuts]
    effects = [forecast.effect for forecast in scene.predictions if forecast.effect is not None]
    effect_number = scene.number(EFFECT)
    if effect_number is not None and effects:
        (first_cut, *others) = state.place.cuts
        alone = not others and not first_cut.edge
        # A head's own pass beside others may differ in its last digits.
        least = float(np.mean(effects)) * _SAME
        if alone:  # as the panel of heads ranks it
            least = next(
                float(effect_number.values[at]) for at, said in state.marks.items() if "cut" in said
            )
        more = int((effect_number.values > least).sum())
        n_heads = int(np.isfinite(effect_number.values).sum())
        ranked = f"rank {more + 1} of {n_heads} by effect"
        counted = f"{more} of {n_heads} heads alone change more"
        phrases.append(f"{ranked if alone else counted} {place_of_effect(scene, None)}")
    elif effects:
        phrases.append("E: its rank" if state.source.computes else "")
    return [ink.plain(phrase) for phrase in phrases]


def _subject(cuts: Sequence[WalkCut]) -> str:
    """Say what is taken out, as a sentence about it begins."""
    if len(cuts) != 1:
        return "these"
    (single,) = cuts
    return "this edge" if single.edge else single.written


def _spelled(spans: Spans, ink: Ink) -> str:
    return "".join(
        ink.name(span) if span.origin != "ours" else ink.plain(span.text) for span in spans
    )


def _forecast(forecast: Forecast, ink: Ink, width: int, subject: str, is_roomy: bool) -> list[Line]:
    heading = " change " if forecast.is_change else " prediction "
    where = _spelled(forecast.title, ink)
    title = [Segment(heading, LABEL), Segment(f" {where}", BOLD)]
    notes = [forecast.note]
    verdict = _spelled(forecast.verdict, ink)
    if forecast.effect is not None and not forecast.is_change:
        size = effect_text(forecast.effect, "kl")
        matters = matters_text(subject, forecast.effect, "kl")
        notes = [f"{size} (KL)", size]
        # a token that a prediction replaces is where it is
        answer = ink.plain(f"{matters} {where.replace('in place of', 'at')}")
        if cell_len(answer) <= width:
            # whether it matters is what a cut asks
            title = [Segment(answer, BOLD)]
        else:
            notes = [f"{matters}, {note}" for note in notes] + [verdict_text(forecast.effect, "kl")]
    # the verdict has a line of its own if there is room
    note = fitting(notes, width if is_roomy else width - cell_len(f": {verdict}"))
    said = [text for text in (ink.plain(note), verdict) if text]
    if said and cells_wide(title) + 2 + cell_len(said[0]) <= width:
        title.append(Segment(f"  {said.pop(0)}"))
    lines = [cut(title, width)]
    lines += styled(flowed(said, width, ": "))
    for n, (token, share) in enumerate(zip(forecast.tokens, forecast.probabilities, strict=True)):
        if forecast.is_change:
            numbers = f" {percent(share):>8}"
        else:
            numbers = f" {100 * share:>6.1f} %"
        if forecast.before is not None:
            numbers = f" {100 * forecast.before[n]:>5.1f} →{numbers[1:]}"
        room = width - len(numbers) - 2
        name = max(4, min(16, room // 2))
        wide = max(0, room - name)
        bar_text = fit(bar(share, wide, ascii=ink.ascii), wide)
        if forecast.before is not None and wide:
            tick = min(wide - 1, round(forecast.before[n] * wide))
            bar_text = bar_text[:tick] + ink.plain(_BEFORE) + bar_text[tick + 1 :]
        label = ink.name(token)
        if forecast.is_change:
            label = f"{forecast.positions[n]} {label}"
        lines.append([
            Segment("  " + fit(label, name)),
            Segment(bar_text, ink.bar),
            Segment(ink.plain(numbers)),
        ])  # fmt: skip
    return lines
