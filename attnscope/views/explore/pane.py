"""A widget that shows lines, and redraws only changed ones."""

from collections.abc import Sequence
from typing import Any

from textual import events, on
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from attnscope.views.explore.ink import Line, PanelFrame


class Pane(Widget, inherit_bindings=False):
    """Lines of text that the application draws, and is told clicks and the wheel of."""

    # the ExploreApp, whose module imports this one
    app: Any
    can_focus = False
    # what is painted
    lines: list[Strip]
    # what it was made of: the lines within the frame, and the frame with the size of the widget
    _inside: Sequence[Line] = ()
    _edges: tuple[PanelFrame | None, int, int] = (None, 0, 0)

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self.lines = []

    def redraw(self) -> None:
        """Draw lines that have changed."""
        if not self.display:
            return
        width, height = self.size
        lines, frame = (
            self.app.draw(str(self.id), width, height) if width and height else ([], None)
        )
        inside = [*lines[:height], *[[]] * (height - len(lines))]
        changed = set(range(height))
        if self._edges == (frame, width, height):
            changed = {y for y in changed if inside[y] != self._inside[y]}
        else:
            self.lines = [Strip.blank(width)] * height
        for y in changed:
            if frame is None:
                self.lines[y] = Strip(inside[y]).adjust_cell_length(width)
            else:
                self.lines[y] = Strip(frame.around(inside[y], y), width)
        self._inside = inside
        self._edges = frame, width, height
        starts = sorted(y for y in changed if y - 1 not in changed)
        ends = sorted(y + 1 for y in changed if y + 1 not in changed)
        regions = [Region(0, y, width, end - y) for y, end in zip(starts, ends, strict=True)]
        # without regions, it would be everything
        if regions:
            self.refresh(*regions)

    def on_resize(self) -> None:
        """Draw all lines for a new size."""
        self.redraw()

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return some lines as they are, without the styles that textual lays over those of other widgets."""
        width = self.size.width
        blank = Strip.blank(width)
        lines = [self.lines[y] if y < len(self.lines) else blank for y in crop.line_range]
        for line_filter in self.get_line_filters():
            lines = [line.apply_filter(line_filter, self.background_colors[1]) for line in lines]
        return [line.adjust_cell_length(width).crop(*crop.column_span) for line in lines]

    def on_click(self, event: events.Click) -> None:
        """Report the place of a click."""
        event.stop()
        self.app.clicked(str(self.id), event.x, event.y, event.style.meta.get("action", ""))

    @on(events.MouseScrollDown)
    @on(events.MouseScrollUp)
    def turned(self, event: events.MouseEvent) -> None:
        """Tell that the wheel was turned; with Shift, it moves columns."""
        event.stop()
        step = 1 if isinstance(event, events.MouseScrollDown) else -1
        self.app.scrolled(str(self.id), *((0, step) if event.shift else (step, 0)))
