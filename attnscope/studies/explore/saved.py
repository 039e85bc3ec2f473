"""Walks through saved findings: reports and comparisons. Nothing is computed, and torch is not needed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from functools import cache, partial

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError
from attnscope.base.system.escape import escape_control
from attnscope.findings.compare import Comparison
from attnscope.findings.heads import HeadRef
from attnscope.findings.run import Report, TextReport
from attnscope.studies.explore.scenes import head_axes, text_scene, walk_head
from attnscope.studies.explore.units import TextUnits, UnitSource, text_units
from attnscope.views.walk.scene import MOVED, HeadNumber, Progress, Scene, Variant, WalkHead


@dataclass
class SavedText:
    """One text of saved findings, under one mask; its scene and heads are made when first viewed."""

    scene: Callable[[], Scene]
    # by indices of layer and head, a function that makes the head
    heads: Callable[[], Mapping[tuple[int, int], Callable[[], WalkHead]]]
    # returns the words and spans of tokens; None if they are not wanted
    units: Callable[[Scene], TextUnits | None] = lambda _scene: None

    def __post_init__(self) -> None:
        self.scene = cache(self.scene)
        self.heads = cache(self.heads)
        self._made: dict[tuple[int, int], WalkHead] = {}

    def head(self, head: tuple[int, int]) -> WalkHead | None:
        """Return a head by its indices; None if it was not saved."""
        if head not in self._made and head in self.heads():
            self._made[head] = self.heads()[head]()
        return self._made.get(head)


@dataclass
class SavedSource(UnitSource):
    """A source over findings."""

    texts: Sequence[str]  # names of the texts
    masks: Sequence[str]  # the mask, or the sides of a comparison
    saved: Mapping[tuple[int, int], SavedText]  # texts by number of the text and of the mask
    # makes a report of one text, side, layer and head, by index; None if there is none
    report_of: Callable[[int, int, int, int], Report] | None = None
    compared: bool = False

    def token_scene(self, variant: Variant) -> Scene | None:
        """Return a scene of tokens; None if these findings do not have the text under this mask."""
        saved = self.saved.get(self._place(variant))
        return None if saved is None else saved.scene()

    def token_head(self, variant: Variant, layer: int, head: int) -> WalkHead | None:
        """Return a head between tokens; None if it was not saved."""
        saved = self.saved.get(self._place(variant))
        if saved is None:
            return None
        return saved.head((layer, head))

    def units_of(self, variant: Variant) -> TextUnits | None:
        """Return the words and spans of the tokens."""
        scene = self.token_scene(variant)
        index = self._place(variant)
        if scene is None:
            return None
        return scene.made("units", lambda: self.saved[index].units(scene))

    def report(self, variant: Variant, layer: int, head: int, progress: Progress) -> Report:
        """Return one head of a report."""
        if self.report_of is None:
            raise AttnscopeError(
                "a dump is not written again", hint="attnscope convert makes tables and files of it"
            )
        return self.report_of(variant.text, self._place(variant)[1], layer, head)

    def _place(self, variant: Variant) -> tuple[int, int]:
        return variant.text, self.masks.index(variant.mask) if variant.mask in self.masks else 0


def report_source(report: Report) -> SavedSource:
    """Return a walk through a report."""
    return _source([report], [report.mask.used])


def comparison_source(comparison: Comparison) -> SavedSource:
    """Return a walk through the sides of a comparison; each is a mask of the walk.

    It begins at the head, row and key whose weight moves most, and its heads have the share of weight that moved.
    """
    labels = distinct(side.label for side in comparison.sides)
    source = _source([side.report for side in comparison.sides], labels)
    best = [
        comparison.changes[0].most_moved(1)[0],
        *(change.most_moved(1)[0] for change in comparison.changes),
    ]
    saved = {}
    for (n, side), text in source.saved.items():
        head = best[side].second if side else best[side].first
        cell = cell_moved(comparison, side, n, best[side].first)
        moved = partial(_share_moved, comparison, side, n)
        scene = partial(_begun_at, text, head, cell, moved)
        saved[n, side] = SavedText(scene, text.heads, text.units)
    return dataclass_replace(source, saved=saved, compared=len(labels) > 1)


def cell_moved(
    comparison: Comparison, side: int, text: int, head: HeadRef
) -> tuple[int, int] | None:
    """Return the row in which most weight moved, of the first side to the second one, and the key, by index in a side.

    `head`: That of the first side. None if no weight is known to have moved.
    """
    changes = comparison.changes[max(0, side - 1)].heads
    change = next((one for one in changes if one.text == text and one.first == head), None)
    if change is None or change.cell_moved is None:
        return None
    row, key = change.cell_moved
    report = comparison.sides[side].report.texts[text]
    query = report.queries.index(change.queries[row][min(side, 1)])
    return query, report.keys.index(change.keys[key][min(side, 1)])


def _share_moved(comparison: Comparison, side: int, text_index: int) -> HeadNumber:
    """Return how much weight moved in every head of a text, from the first side to this one, or to the second one."""
    change = comparison.changes[max(0, side - 1)]
    text = comparison.sides[side].report.texts[text_index]
    layers, heads = head_axes(text.heads.units)
    values = np.full((len(layers), len(heads)), np.nan, dtype=np.float32)
    for head in change.heads:
        if head.text == text_index:
            ref = head.second if side else head.first
            values[layers.index(ref.layer), heads.index(ref.head)] = head.share_moved
    labels = [f"“{escape_control(comparison.sides[n].label)}”" for n in (0, change.side)]
    meaning = f"Largest share of a row that moved, from {' to '.join(labels)}."
    return HeadNumber(MOVED, meaning, values, is_share=True)


def _begun_at(
    text: SavedText,
    head: HeadRef,
    cell: tuple[int, int] | None,
    share_moved: Callable[[], HeadNumber],
) -> Scene:
    scene = text.scene()
    moved = share_moved()
    place = scene.layers.index(head.layer), scene.heads.index(head.head)
    scene = dataclass_replace(scene, first=place)
    if cell is not None:
        scene = dataclass_replace(scene, start=cell[0], start_key=cell[1])
    return dataclass_replace(scene, numbers=[moved, *scene.numbers], display=moved.name)


def _source(reports: Sequence[Report], masks: Sequence[str]) -> SavedSource:
    for text in (text for report in reports for text in report.texts):
        if not text.heads:
            message = "has no attention of heads" + (
                ", only a measure over layers" if text.rollouts else ""
            )
            hint = "explore a report of attnscope run without --measure"
            raise AttnscopeError(message, where="the report", hint=hint)

    def report_of(text_index: int, side: int, layer: int, head: int) -> Report:
        text = reports[side].texts[text_index]
        layers, heads = head_axes(text.heads.units)
        indices = [
            n for n, unit in enumerate(text.heads.units) if unit == (layers[layer], heads[head])
        ]
        return replace(reports[side], texts=[replace(text, heads=text.heads.only(indices))])

    saved = {
        (n, side): saved_text(report, text)
        for side, report in enumerate(reports)
        for n, text in enumerate(report.texts)
    }
    return SavedSource([text.text for text in reports[0].texts], masks, saved, report_of)


def distinct(labels: Iterable[str]) -> list[str]:
    """Return labels made unique: the second of a name is `name (2)`."""
    unique_labels: list[str] = []
    for label in labels:
        count = sum(name == label or name.startswith(f"{label} (") for name in unique_labels)
        unique_labels.append(label if not count else f"{label} ({count + 1})")
    return unique_labels


def saved_text(report: Report, text: TextReport) -> SavedText:
    """Return one text of a report."""
    layers, heads = head_axes(text.heads.units)
    walks = {
        (layers.index(head.layer), heads.index(head.head)): partial(walk_head, text, head)
        for head in text.heads
    }
    return SavedText(
        lambda: text_scene(report, text), lambda: walks, lambda scene: text_units(text, scene)
    )
