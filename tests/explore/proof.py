"""Random walks over what a screen shows: after every key, every number on it is compared with the Report.

`python -m tests.explore.proof --walks 20 --keys 500 --seed 1` walks through the sample (live and saved), a comparison,
MiniLM, SmolLM2, dumps and an encoder-decoder. The test suite takes fewer keys.
"""

import argparse
import asyncio
import re
import time
from dataclasses import dataclass, field, replace

import numpy as np
from rich.cells import cell_len
from textual import events

from attnscope.findings.tokens import group_words
from attnscope.views.explore.app import ExploreApp
from attnscope.views.explore.head_panel import ROW_LENS
from attnscope.views.explore.ink import steps
from attnscope.views.walk.keys import ACTIONS
from tests.helpers.row_statistics import entropy

SIZES = ((80, 24), (120, 40), (200, 60), (60, 15), (101, 29))
WITHOUT = {
    "quit",
    "palette",
    "display",
    "help",
    "explain",
    "edit",
    "write",
    "find",
    "copy",
    "roles",
    "effects",
    "pick",
}
KEYS = [key for action in ACTIONS if action.name not in WITHOUT for key in action.keys]
NUMBER = r"[−-]?\d+(?:\.\d+)?(?:e[+−-]?\d+)?"


@dataclass
class Truth:
    """What a screen has to show."""

    weights: dict  # by text, side, layer and head: every weight, (queries, keys), float64
    stages: dict  # other stages in the same way, where they are known
    values: dict  # α·‖v‖ in the same way
    texts: dict  # by text and side: the TextReport
    # decimals that numbers were rounded to when they were saved; None for exact ones
    rounded: int | None = None
    kept: int | None = None  # only this many sources of every row are known; None for all
    # returns the Report of a side of a text under cuts; None if nothing can be cut
    without: object = None
    known: dict = field(default_factory=dict)
    words: dict = field(default_factory=dict)

    def under(self, cuts, side):
        """Return the truth of one side with cuts, of which `run --cut` makes the Report."""
        if not cuts:
            return self
        if (cuts, side) not in self.known:
            made = truth_of(self.without(cuts, side))
            for table in (made.weights, made.stages, made.values):
                for text, _, layer, head in list(table):
                    table[text, side, layer, head] = table[text, 0, layer, head]
            made.texts |= {(text, side): report for (text, _), report in list(made.texts.items())}
            self.known[cuts, side] = made
        return self.known[cuts, side]

    def between(self, place, unit):
        """Return weights between tokens; between words, merged one by one; or those between spans of the Report."""
        text = self.texts[place[:2]]
        if unit == "spans":
            return text.spans.weights[place[2], place[3]].astype(np.float64)
        weights = self.weights[place]
        if unit == "tokens":
            return weights
        if place not in self.words:  # once: a screen has thousands of cells
            self.words[place] = self._merged(text, weights)
        return self.words[place]

    def _merged(self, text, weights):
        words = group_words(text.tokens, text.queries), group_words(text.sources, text.keys)
        merged = np.zeros([len(each) for each in words])
        for i, row in enumerate(words[0]):
            for j, column in enumerate(words[1]):
                cells = [
                    weights[text.queries.index(q), text.keys.index(k)] for q in row for k in column
                ]
                merged[i, j] = np.sum(cells) / len(row)
        return merged


def value(text):
    return float(text.replace("−", "-"))


def close(text, expected, slack=0.0):
    """Tell whether a printed number is what the expected one rounds to."""
    mantissa, _, exponent = text.partition("e")
    decimals = len(mantissa.partition(".")[2])
    unit = 10.0 ** (-decimals + (int(exponent.replace("−", "-")) if exponent else 0))
    return abs(value(text) - expected) <= 0.5 * unit + 1e-5 * max(1.0, abs(expected)) + slack


def unframed(lines):
    """The lines of a panel within its frame, and the title in the upper edge; all lines of a panel without one."""
    if not lines or lines[0][:1] not in ("╭", "+"):
        return lines
    return [line[1:-1] for line in lines[:-1]]


def region_text(app, name):
    """Return the lines of a pane as they are painted, without its frame."""
    pane = app.panes[name]
    if not pane.display or not pane.region.width:
        return []
    strips = app.screen._compositor.render_strips()
    region = pane.region
    rows = range(region.y, min(region.bottom, len(strips)))
    return unframed([strips[y].crop(region.x, region.right).text for y in rows])


PAINTING = 5.0  # seconds that a terminal may take to be painted


def lines_of(app, name, painted):
    if painted:
        return region_text(app, name)
    pane = app.panes[name]
    return (
        unframed(["".join(segment.text for segment in line) for line in pane.lines])
        if pane.display
        else []
    )


def cells_at(line, start, width):
    """Return the text at some columns of a line, of which characters may take two."""
    taken, at = "", 0
    for character in line:
        if start <= at < start + width:
            taken += character
        at += cell_len(character)
    return taken


class Checker:
    """Compares what an application shows with the truth, and counts the numbers.

    Args:
        app: The application.
        truth: What it has to show.
    """

    def __init__(self, app, truth):
        self.app, self.truth, self.numbers = app, truth, 0

    def key(self, spot=None):
        spot = spot or self.app.state.place.spot
        return spot.text, spot.mask, spot.layer, spot.head

    def true(self, pinned=False):
        """Return what is true of the place, or of the pinned one."""
        place = self.app.state.place
        spot, cuts = (place.pinned, place.pinned_cuts) if pinned else (place.spot, place.cuts)
        return self.truth.under(tuple(cut.written for cut in cuts), spot.mask)

    def table(self, stage="weights", pinned=False):
        """Return the whole matrix of a stage of the place, or of the pinned one."""
        place, true = self.app.state.place, self.true(pinned)
        key = self.key(place.pinned if pinned else place.spot)
        return true.between(key, place.unit) if stage == "weights" else true.stages[key][stage]

    def check(self, painted=False):
        if self.app.state.scene is None:
            return
        assert not self.app.failure, self.app.failure
        if self.key() not in self.truth.weights:  # a head that was not saved
            assert self.app.state.head is None
            return
        self._title(lines_of(self.app, "title", painted))
        self._row(lines_of(self.app, "row", painted))
        self._matrix(lines_of(self.app, "matrix", painted))
        self._heads(lines_of(self.app, "heads", painted))

    def equal(self, text, expected, what, slack=0.0):
        self.numbers += 1
        if self.truth.rounded is not None:
            slack = max(slack, 0.51 * 10.0**-self.truth.rounded)
        assert close(text, expected, slack), (what, text, expected, self.app.state.place)

    def _title(self, lines):
        scene, spot = self.app.state.scene, self.app.state.place.spot
        if self.app.size.width >= 60:
            assert f"L{scene.layers[spot.layer]}H{scene.heads[spot.head]}" in lines[0], lines[0]

    def _row(self, lines):
        state = self.app.state
        scene, spot = state.scene, state.place.spot
        weights = self.table()[spot.query]
        values = self.true().values.get(self.key()) if scene.unit == "tokens" else None
        compared = state.pinned is not None and state.pinned is not state.head
        both = [weights, self.table(pinned=True)[spot.query]] if compared else [weights]
        # a source that lost its weight is listed where it had it
        ranked = np.max([np.nan_to_num(row, nan=-1) for row in both], axis=0)
        order = np.sort(ranked[ranked >= 0])[::-1]
        shown = []
        keys = []
        for line in self._one_column(lines):
            if found := re.match(rf"← (\d+) .*? (\d\.\d{{3}}|\?) +({NUMBER}|\?)? *$", line):
                key = scene.sources.positions.index(int(found[1]))
                shown.append(ranked[key])
                keys.append(key)
                for text, row in zip(found.groups()[1:], both, strict=False):
                    assert text != "?" or self.truth.kept is not None
                    if text != "?":
                        self.equal(text, np.nan_to_num(row[key]), "contributor")
                if compared:
                    continue
                if found[3] not in (None, "?") and values is not None:
                    self.equal(
                        found[3],
                        values[spot.query, key],
                        "α·‖v‖",
                        2e-4 * abs(values[spot.query, key]),
                    )
            elif found := re.match(
                rf" +(\d+) more(?:, (\d+) larger)? +({NUMBER})(?: +({NUMBER}))? *$", line
            ):
                assert int(found[1]) == (order > 0).sum() - len(shown)
                # one that is under the cursor is last, although others may be larger
                larger = (order > shown[-1]).sum() - (np.array(shown) > shown[-1]).sum()
                assert int(found[2] or 0) == larger, (line, shown)
                for text, row in zip(found.groups()[2:], both, strict=False):
                    self.equal(text, np.nansum(np.delete(row, keys)), "more", 1e-6)
            elif found := re.match(rf" +not listed(?:, \d+ larger)? +({NUMBER}) *$", line):
                self.equal(
                    found[1],
                    max(0.0, 1 - np.sum(shown)),
                    "not listed",
                    2e-3 if self.truth.rounded else 0,
                )
            for name, text in re.findall(rf"(entropy|itself|first) ({NUMBER})", line):
                expected = {
                    "entropy": entropy(weights),
                    "itself": weights[scene.queries.positions[spot.query]]
                    if scene.aligned
                    else 0.0,
                    "first": weights[0],
                }[name]
                if not line.lstrip().startswith("←"):
                    self.equal(text, expected, name, 2e-4)
        # the key under the cursor is listed even if others are stronger
        cursor = scene.keys.positions[state.key]
        listed = [scene.sources.positions[key] for key in keys]
        if shown and self.truth.kept is None and state.head.row("weights", spot.query) is not None:
            at = scene.sources.positions.index(cursor)
            assert cursor in listed or not weights[at] > 0, (cursor, listed)
        if listed[-1:] == [cursor]:
            shown.pop()
        assert np.allclose(shown, order[: len(shown)], atol=2e-3 if self.truth.rounded else 1e-6), (
            shown,
            order[:8],
        )
        joined = re.sub(r"\s+", " ", " ".join(line.rstrip() for line in self._one_column(lines)))
        self._arithmetic(joined)

    def _one_column(self, lines):
        """The lines of the row's sources, and below them what stands beside them where the panel is wide."""
        pane = self.app.panes["row"]
        width = pane.size.width - 2 * self.app._is_framed(*pane.size)
        if width < 76 or not lines:
            return lines
        right = width - width // 2
        return [
            lines[0],
            *(line[:right] for line in lines[1:]),
            *(line[right:] for line in lines[1:]),
        ]

    def _arithmetic(self, text):
        state = self.app.state
        query, key = state.place.spot.query, state.key
        if state.scene.unit != "tokens":
            for found in re.finditer(rf"weight ({NUMBER})", text):
                self.equal(found[1], self.table()[query, key], "weight")
            return
        stages = self.true().stages.get(self.key(), {})
        known = {name: stage[query, key] for name, stage in stages.items() if name != "output"}
        for found in re.finditer(
            rf"q·k ({NUMBER}) (?:× {NUMBER}|÷ √\d+) = ({NUMBER}) → e\^({NUMBER}) / Σ = ({NUMBER})",
            text,
        ):
            q_k, scaled, exponent, weight = found.groups()
            self.equal(q_k, known["scores"], "q·k", 1e-4 * abs(known["scores"]))
            self.equal(scaled, known["scaled"], "scaled", 1e-4)
            self.equal(exponent, known["scaled"], "exponent", 1e-4)
            self.equal(weight, self.table()[query, key], "weight")
        for found in re.finditer(
            rf"Σ ({NUMBER}) = e\^({NUMBER}) \(row's largest\) × ({NUMBER})", text
        ):
            total, largest, rest = found.groups()
            masked = stages["masked"][query]
            self.equal(largest, masked.max(), "largest of the row", 1e-4)
            powers = np.exp(masked - masked.max()).sum()
            self.equal(rest, powers, "sum less the largest", 1e-4 * powers)
            self.equal(total, powers * np.exp(masked.max()), "sum", 1e-3 * float(total))
        for found in re.finditer(rf"output dim (\d+) = Σ weight × v = ({NUMBER})", text):
            self.equal(found[2], stages["output"][query, int(found[1])], "output", 1e-4)
        if "not allowed by the mask" in text:
            assert np.isneginf(known["masked"])

    def _matrix(self, lines):
        state, panel = self.app.state, self.app._panels["matrix"]
        layout = panel._last
        if not lines or layout is None or state.drawn is None:
            return
        scene, zoom = state.scene, layout.zoom
        for y in range(len(layout.rows)):
            at = layout.above + y // layout.rows_per_line * layout.tall
            if at >= len(lines) - 1:
                break
            row = layout.rows[y] * zoom
            line = lines[at + ((layout.tall - 1) // 2 if layout.form else 0)]
            if layout.rows_per_line == 1 and zoom == 1:
                assert line[1:].lstrip().startswith(str(scene.queries.positions[row])), (line, row)
            if layout.form:
                self._digits(line, row, layout)
        if layout.mode == "blocks" and zoom == 1 and state.drawn_stage == "weights":
            self._colours(layout)
        if state.drawn_stage == "output":
            self._dims(" ".join(" ".join(lines).split()))

    def _dims(self, text):
        row = self.table("output")[self.app.state.place.spot.query]
        named = re.findall(rf"dim (\d+) ({NUMBER})(?:,|$)", text)
        for n, (dim, number) in enumerate(named):
            self.equal(number, row[int(dim)], "largest dimensions", 2e-4)
            assert abs(row[int(dim)]) >= np.sort(np.abs(row))[-1 - n] * (1 - 1e-4)

    def _expected(self, row, key):
        state = self.app.state
        stage = state.place.stage
        if state.place.pinned is None:
            return self.table(stage)[row, key]
        sides = self.table(stage)[row, key], self.table(stage, pinned=True)[row, key]
        return -np.inf if sides == (-np.inf, -np.inf) else sides[0] - sides[1]

    def _digits(self, line, row, layout):
        for n, column in enumerate(layout.columns):
            text = cells_at(line, layout.label + n * layout.cell, layout.cell).strip(" ‹›░▒▓█")
            if text in ("", "masked"):
                assert (
                    self.truth.kept is not None
                    or text == "masked"
                    or self.app.state.place.pinned is not None
                )
                continue
            expected = self._expected(row, column)
            if text == "·":
                assert expected == (0 if self.app.state.place.stage == "weights" else -np.inf)
            else:
                self.equal(
                    text,
                    expected,
                    f"{self.app.state.place.stage} {row} {column}",
                    2e-4 * abs(expected),
                )

    def _colours(self, layout):
        state = self.app.state
        for y in (0, len(layout.rows) - 1):
            pane = self.app.panes["matrix"]
            line = pane.lines[layout.above + y * layout.tall]
            at = -int(self.app._is_framed(*pane.size))  # the frame is left of the panel
            styles = []
            for segment in line:
                for character in segment.text:
                    if at >= layout.label:
                        styles += [segment.style] * cell_len(character)
                    at += cell_len(character)
            expected = np.array([[self._expected(layout.rows[y], key) for key in layout.columns]])
            for n, step in enumerate(steps(expected, state.scale("exact"), state.ink)[0].tolist()):
                if layout.columns[n] != state.column or layout.rows[y] != state.place.spot.query:
                    near = {
                        state.ink.cell(each, signed=False).bgcolor
                        for each in (step - 1, step, step + 1)
                    }
                    if self.truth.kept is None:
                        self.numbers += 1
                        assert styles[layout.cell * n].bgcolor in near, (
                            step,
                            styles[layout.cell * n],
                        )

    def _heads(self, lines):
        state, panel = self.app.state, self.app._panels["heads"]
        if not lines or panel._last is None:
            return
        if (
            panel._display(state, panel.width, panel.height) == ROW_LENS
            and state.place.unit == "tokens"
        ):
            self._strongest(lines)
        if state.place.display not in ("entropy", "self", "first"):
            return
        layers, heads, label, wide, tall = panel._last
        scene = state.scene
        tokens = self.app.state.source.scene(replace(state.variant(), unit="tokens"))
        counted = ~np.array(tokens.queries.special)
        counted = counted if counted.any() else ~counted
        for n, layer in enumerate(layers):
            line = lines[2 + n * tall]
            for m, head in enumerate(heads):
                place = (state.place.spot.text, state.place.spot.mask, layer, head)
                text = cells_at(line, label + m * wide, wide - 1).strip()
                if (
                    not text
                    or place not in self.truth.weights
                    or "cut" in state.marks.get((layer, head), ())
                ):
                    continue
                weights = self.true().weights[place]
                rows = {
                    "entropy": entropy(weights),
                    "self": np.array(
                        [row[p] for row, p in zip(weights, tokens.queries.positions, strict=True)]
                    )
                    if scene.aligned
                    else None,
                    "first": weights[:, 0],
                }[state.place.display]
                # of a row without keys: none
                known = weights.sum(1) > 0 if state.place.display == "entropy" else True
                self.equal(text, rows[counted & known].mean(), state.place.display, 2e-4)

    def _strongest(self, lines):
        """Compare the largest weight of the row past sinks and the token itself, of every head."""
        state, panel = self.app.state, self.app._panels["heads"]
        layers, heads, label, wide, tall = panel._last
        keys, query = state.scene.keys, state.place.spot.query
        others = [
            n
            for n, position in enumerate(keys.positions)
            if position not in (0, state.scene.queries.positions[query]) and not keys.special[n]
        ]
        rows = [
            weights[query]
            for (number, mask, layer, head), weights in self.true().weights.items()
            if (number, mask) == (state.place.spot.text, state.place.spot.mask)
            and "cut" not in state.marks.get((layer, head), ())
        ]
        if not max(row[others].max(initial=0.0) for row in rows) > 0:
            # a row that reads nothing but sinks and itself shows these
            others = [*range(len(keys.positions))]
        for n, layer in enumerate(layers):
            for m, head in enumerate(heads):
                place = (state.place.spot.text, state.place.spot.mask, layer, head)
                text = cells_at(lines[2 + n * tall], label + m * wide, wide - 1).strip()
                if (
                    "cut" in state.marks.get((layer, head), ())
                    or place not in self.truth.weights
                    or text == "?"
                ):
                    continue
                largest = self.true().weights[place][query, others].max(initial=0.0)
                unit = 100 if ", %" in lines[0] or wide <= 3 else 1
                shown = min(largest, 0.99 if unit == 100 else 1)
                self.numbers += 1
                # the sign of what is not allowed stands where no key is
                no_key = not self.true().weights[place][query].max() > 0
                assert (text == "·") == no_key
                assert abs((0.0 if no_key else float(text)) / unit - shown) < 0.0051, (
                    place,
                    query,
                    text,
                    largest,
                )


def truth_of(*reports, rounded=None, kept=None, without=None):
    """Return the truth of the sides of a walk, each a Report with whole matrices of all heads."""
    truth = Truth({}, {}, {}, {}, rounded, kept, without)
    for side, report in enumerate(reports):
        for number, text in enumerate(report.texts):
            truth.texts[number, side] = text
            layers = sorted({head.layer for head in text.heads})
            heads = sorted({head.head for head in text.heads})
            for head in text.heads:
                place = number, side, layers.index(head.layer), heads.index(head.head)
                truth.weights[place] = head.stages["weights"].astype(np.float64)
                truth.stages[place] = {
                    name: stage.astype(np.float64) for name, stage in head.stages.items()
                }
                values = np.full(head.stages["weights"].shape, np.nan)
                # a key that is cut, or not allowed, is no source
                rows, ranks = np.nonzero(head.top.keys >= 0)
                values[rows, head.top.keys[rows, ranks]] = head.top.value[rows, ranks]
                truth.values[place] = values
    return truth


async def settled(app, pilot, patience=60.0):
    """Wait until nothing is computed any more."""
    until = time.monotonic() + patience
    await pilot.pause()
    while app.worker.busy or app.state.scene is None:
        assert time.monotonic() < until and not app.failure, app.failure
        await asyncio.sleep(0.01)
    await pilot.pause()


async def resize(app, pilot, size, patience=60.0):
    """Give the terminal another size, and wait until the panels are arranged for it, which a pause does not wait for."""
    width, height = size
    await pilot.resize_terminal(width, height)
    until = time.monotonic() + patience
    while app.screen.size != size or app._boxes(width, height - 2) != app._arranged:
        assert time.monotonic() < until, (size, app._arranged)
        await asyncio.sleep(0.01)
    await pilot.pause()


def press(app, key):
    """Send a key to the application at once, as its screen gets it."""
    named = {"space": " "}
    character = key if len(key) == 1 else named.get(key)
    app.key(events.Key(key, character))


async def walk(source, truth, keys, seed, size=(120, 40), painted_every=50):
    """Walk by random keys; return how many numbers were compared."""
    rng = np.random.default_rng(seed)
    app = ExploreApp(source)
    async with app.run_test(size=size) as pilot:
        await settled(app, pilot)
        checker = Checker(app, truth)
        checker.check(painted=True)
        for n in range(keys):
            if rng.random() < 0.01:
                await resize(app, pilot, SIZES[int(rng.integers(len(SIZES)))])
            key = (
                str(rng.choice(KEYS))
                if rng.random() < 0.8
                else str(rng.choice(["d", "v", "]", "down", "right"]))
            )
            if key in ("x", "X") and not source.computes:
                continue
            if key == "v":  # a choice of the menu
                app.do("display", str(rng.choice(app.state.bounds.displays)))
            else:
                press(app, key)
            # or a result waits for its turn
            if app.worker.busy or app.state._shown[0] != app.state.variant():
                await settled(app, pilot)
            painted = n % painted_every == 0
            until = time.monotonic() + (PAINTING if painted else 0.0)
            if painted:
                await pilot.pause()
            while True:
                try:
                    checker.check(painted)
                    break
                except AssertionError as e:
                    # a terminal is painted some time after its panels have their lines
                    if time.monotonic() >= until:
                        message = f"seed {seed}, size {size}, key {n} ({key}): {e}"
                        raise AssertionError(message) from e
                await asyncio.sleep(0.02)
        assert not app.failure, app.failure
    return checker.numbers


def main():
    from tests.explore.subjects import SUBJECTS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=20)
    parser.add_argument("--keys", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--of", choices=[*SUBJECTS], action="append")
    given = parser.parse_args()
    names = given.of or [*SUBJECTS]
    for n in range(given.walks):
        name = names[n % len(names)]
        source, truth = SUBJECTS[name]()
        start, size = time.perf_counter(), SIZES[n % len(SIZES)]
        numbers = asyncio.run(walk(source, truth, given.keys, given.seed + n, size))
        took = time.perf_counter() - start
        print(
            f"{name:12} seed {given.seed + n}  {given.keys} keys  {numbers:,} numbers equal  {took:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
