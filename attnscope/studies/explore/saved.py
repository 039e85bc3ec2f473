"""Walks through saved findings: reports and comparisons. Nothing is computed, and torch is not needed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.atomic import check_target, write_atomic
from attnscope.findings.compare import Comparison
from attnscope.findings.run import Report, TextReport
from attnscope.studies.explore.scenes import head_axes, text_scene, walk_head
from attnscope.studies.explore.units import TextUnits, UnitSource, text_units
from attnscope.studies.formats import export
from attnscope.studies.study import DRAWN, TABLES
from attnscope.views.walk.scene import Progress, Scene, Variant, WalkHead, pick_text

_LIVE = "explore the text itself: attnscope explore TEXT"


@dataclass(frozen=True)
class SavedText:
    """One text of saved findings, under one mask."""

    scene: Callable[[], Scene]
    # by indices of layer and head, a function that makes the head
    heads: Callable[[], Mapping[tuple[int, int], Callable[[], WalkHead]]]
    # returns the words and spans of tokens; None if they are not wanted
    units: Callable[[Scene], TextUnits | None] = lambda _scene: None


@dataclass
class SavedSource(UnitSource):
    """A source over findings; scenes and heads are made when first viewed."""

    texts: Sequence[str]  # names of the texts
    masks: Sequence[str]  # the mask, or the sides of a comparison
    saved: Mapping[tuple[int, int], SavedText]  # texts by number of the text and of the mask
    # makes a report of one text, side, layer and head, by index; None if there is none
    report_of: Callable[[int, int, int, int], Report] | None = None
    computes: bool = False
    _scenes: dict[tuple[int, int], Scene] = field(default_factory=dict)
    _heads: dict[tuple[int, ...], WalkHead | None] = field(default_factory=dict)
    _makers: dict[tuple[int, int], Mapping[tuple[int, int], Callable[[], WalkHead]]] = field(default_factory=dict)

    def token_scene(self, variant: Variant) -> Scene | None:
        """Return a scene of tokens; None if these findings do not have the text under this mask."""
        place = self._place(variant)
        if place not in self._scenes and place in self.saved:
            self._scenes[place] = self.saved[place].scene()
        return self._scenes.get(place)

    def token_head(self, variant: Variant, layer: int, head: int) -> WalkHead | None:
        """Return a head between tokens; None if it was not saved."""
        place = self._place(variant)
        key = (*place, layer, head)
        if key not in self._heads and place in self.saved:
            if place not in self._makers:
                self._makers[place] = self.saved[place].heads()
            make = self._makers[place].get((layer, head))
            self._heads[key] = None if make is None else make()
        return self._heads.get(key)

    def units_of(self, variant: Variant) -> TextUnits | None:
        """Return the words and spans of the tokens."""
        scene, place = self.token_scene(variant), self._place(variant)
        if scene is None:
            return None
        return self._merged.get(scene, "units", lambda: self.saved[place].units(scene))

    @property
    def total(self) -> int:
        """Number of texts."""
        return len(self.texts)

    def pick(self, needle: str, start: int, progress: Progress) -> int | None:
        """Return the text with a number, or with some words."""
        return pick_text(self.texts, needle, start)

    def missing(self, variant: Variant, layer: int, head: int, stage: str, rows: tuple[int, int]) -> bool:
        """Return False: nothing can be computed."""
        return False

    def compute(
        self, variant: Variant, layer: int, head: int, stage: str, rows: tuple[int, int], progress: Progress
    ) -> None:
        """Refuse to compute anything."""
        raise AttnscopeError("this was not saved", hint=_LIVE)

    def measure_roles(self, progress: Progress) -> None:
        """Refuse to measure roles, which takes the model."""
        raise AttnscopeError("roles take the model", hint=_LIVE)

    def explain(self, variant: Variant, layer: int, head: int, query: int, width: int, progress: Progress) -> str:
        """Refuse to explain, which takes the model."""
        raise AttnscopeError("explaining a row takes the model", hint=_LIVE)

    def with_text(self, text: str) -> "SavedSource":
        """Refuse another text, which takes the model."""
        raise AttnscopeError("another text takes the model", hint=_LIVE)

    def write(self, path: str, variant: Variant, layer: int, head: int, progress: Progress) -> str:
        """Write one head of a report."""
        if self.report_of is None:
            raise AttnscopeError("a dump is not written again", hint="attnscope convert makes tables and files of it")
        return write_report(self.report_of(variant.text, self._place(variant)[1], layer, head), path)

    def _place(self, variant: Variant) -> tuple[int, int]:
        return variant.text, self.masks.index(variant.mask) if variant.mask in self.masks else 0


def report_source(report: Report) -> SavedSource:
    """Return a walk through a report."""
    _require_heads(report)
    saved = {(n, 0): saved_text(report, text) for n, text in enumerate(report.texts)}

    def report_of(text: int, _side: int, layer: int, head: int) -> Report:
        return one_head(report, text, layer, head)

    return SavedSource([text.text for text in report.texts], [report.mask.used], saved, report_of)


def comparison_source(comparison: Comparison) -> SavedSource:
    """Return a walk through the sides of a comparison; each is a mask of the walk."""
    saved = {}
    for number, side in enumerate(comparison.sides):
        _require_heads(side.report)
        for n, text in enumerate(side.report.texts):
            saved[n, number] = saved_text(side.report, text)
    labels = distinct(side.label for side in comparison.sides)
    sides = comparison.sides

    def report_of(text: int, side: int, layer: int, head: int) -> Report:
        return one_head(sides[side].report, text, layer, head)

    return SavedSource([text.text for text in sides[0].report.texts], labels, saved, report_of)


def one_head(report: Report, text: int, layer: int, head: int) -> Report:
    """Return a report of one text with one of its heads, by indices."""
    text_report = report.texts[text]
    layers, heads = head_axes(text_report.heads)
    kept = [item for item in text_report.heads if (item.layer, item.head) == (layers[layer], heads[head])]
    return replace(report, texts=[replace(text_report, heads=kept)])


def write_report(report: Report, path: str) -> str:
    """Write a report to a new file; return a description of the file."""
    target = Path(path).expanduser()
    if target.suffix.lower() in TABLES:  # these are made by `batch`, which explore does not know
        hint = f"use {' '.join(DRAWN)}, or attnscope run -o table{target.suffix}"
        raise AttnscopeError(f"explore writes no {target.suffix}", where=target, hint=hint)
    if target.exists():
        raise AttnscopeError("exists", where=target, hint="name another file")
    parts = export(report, target)
    check_target(target, force=False)
    return f"{target} ({write_atomic(target, parts, force=False):,} bytes)"


def distinct(labels: Iterable[str]) -> list[str]:
    """Return labels made unique: the second of a name is `name (2)`."""
    known: list[str] = []
    for label in labels:
        count = sum(name == label or name.startswith(f"{label} (") for name in known)
        known.append(label if not count else f"{label} ({count + 1})")
    return known


def saved_text(report: Report, text: TextReport) -> SavedText:
    """Return one text of a report."""
    layers, heads = head_axes(text.heads)
    walks = {(layers.index(head.layer), heads.index(head.head)): partial(walk_head, text, head) for head in text.heads}
    return SavedText(lambda: text_scene(report, text), lambda: walks, lambda scene: text_units(text, scene))


def _require_heads(report: Report) -> None:
    for text in report.texts:
        if not text.heads:
            message = "has no attention of heads" + (", only a measure over layers" if text.rollouts else "")
            raise AttnscopeError(
                message, where="the report", hint="explore a report of attnscope run without --measure"
            )
