"""Walks through saved findings: reports and comparisons. Nothing is computed, and torch is not needed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from attnscope.base.errors import AttnscopeError
from attnscope.findings.compare import Comparison
from attnscope.findings.run import Report, TextReport
from attnscope.studies.explore.scenes import ordered, text_scene, walk_head
from attnscope.views.walk.scene import Progress, Scene, Variant, WalkHead


@dataclass(frozen=True)
class SavedText:
    """One text of saved findings, under one mask.

    Attributes:
        scene: Makes its scene.
        heads: By indices of layer and head, makes what is known of a head.
    """

    scene: Callable[[], Scene]
    heads: Mapping[tuple[int, int], Callable[[], WalkHead]]


@dataclass
class SavedSource:
    """A source that holds all that it has; scenes and heads are made when they are first looked at.

    Attributes:
        texts: What the texts are called.
        masks: The mask, or the sides of a comparison.
        saved: By number of the text and of the mask.
    """

    texts: Sequence[str]
    masks: Sequence[str]
    saved: Mapping[tuple[int, int], SavedText]
    computes: bool = False
    _scenes: dict[tuple[int, int], Scene] = field(default_factory=dict)
    _heads: dict[tuple[int, ...], WalkHead] = field(default_factory=dict)

    def scene(self, variant: Variant) -> Scene | None:
        """Return a scene; None if these findings do not have the text under this mask."""
        place = self._place(variant)
        if place not in self._scenes and place in self.saved:
            self._scenes[place] = self.saved[place].scene()
        return self._scenes.get(place)

    def head(self, variant: Variant, layer: int, head: int) -> WalkHead | None:
        """Return a head; None if it was not saved."""
        place = self._place(variant)
        known = self.saved[place].heads if place in self.saved else {}
        if (layer, head) not in known:
            return None
        key = (*place, layer, head)
        if key not in self._heads:
            self._heads[key] = known[layer, head]()
        return self._heads[key]

    def missing(self, variant: Variant, layer: int, head: int, stage: str, rows: tuple[int, int]) -> bool:
        """Return False: nothing can be computed."""
        return False

    def compute(
        self, variant: Variant, layer: int, head: int, stage: str, rows: tuple[int, int], progress: Progress
    ) -> None:
        """Refuse to compute anything.

        Raises:
            AttnscopeError: Always.
        """
        raise AttnscopeError("saved findings cannot be computed again", hint="explore the text itself")

    def _place(self, variant: Variant) -> tuple[int, int]:
        return variant.text, self.masks.index(variant.mask) if variant.mask in self.masks else 0


def report_source(report: Report) -> SavedSource:
    """Return a walk through a report.

    Raises:
        AttnscopeError: It has no attention of heads.
    """
    _require_heads(report)
    saved = {(n, 0): saved_text(report, text) for n, text in enumerate(report.texts)}
    return SavedSource([text.text for text in report.texts], [report.mask.used], saved)


def comparison_source(comparison: Comparison) -> SavedSource:
    """Return a walk through the sides of a comparison; each is a mask of the walk.

    Raises:
        AttnscopeError: A side has no attention of heads.
    """
    saved = {}
    for number, side in enumerate(comparison.sides):
        _require_heads(side.report)
        for n, text in enumerate(side.report.texts):
            saved[n, number] = saved_text(side.report, text)
    labels = distinct(side.label for side in comparison.sides)
    return SavedSource([text.text for text in comparison.sides[0].report.texts], labels, saved)


def distinct(labels: Iterable[str]) -> list[str]:
    """Return labels of which no two are equal: the second of a name is `name (2)`."""
    known: list[str] = []
    for label in labels:
        count = sum(each == label or each.startswith(f"{label} (") for each in known)
        known.append(label if not count else f"{label} ({count + 1})")
    return known


def saved_text(report: Report, text: TextReport) -> SavedText:
    """Return one text of a report."""
    layers, heads = ordered(head.layer for head in text.heads), ordered(head.head for head in text.heads)
    made = {(layers.index(head.layer), heads.index(head.head)): partial(walk_head, text, head) for head in text.heads}
    return SavedText(lambda: text_scene(report, text), made)


def _require_heads(report: Report) -> None:
    for text in report.texts:
        if not text.heads:
            found = "has no attention of heads" + (", only a measure over layers" if text.flows else "")
            raise AttnscopeError(found, where="the report", hint="explore a report of attnscope run without --measure")
