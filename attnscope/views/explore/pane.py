"""A widget that shows lines, and redraws only changed ones."""

from collections.abc import Sequence
from typing import Any

from textual import events, on
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from attnscope.views.explore.ink import Line


class Pane(Widget, inherit_bindings=False):
    """Lines of text that the application draws, and is told clicks and the wheel of."""

    # the ExploreApp, whose module imports this one
    app: Any
    can_focus = False
    lines: Sequence[Line] = ()

    def redraw(self) -> None:
        """Draw lines that have changed."""
        if not self.display:
            return
        width, height = self.size
        before = self.lines
        self.lines = self.app.draw(str(self.id), width, height) if width and height else []
        if before is self.lines:
            return
        for y in range(max(len(before), len(self.lines))):
            old, new = (lines[y] if y < len(lines) else None for lines in (before, self.lines))
            if old != new and y < height:
                self.refresh(Region(0, y, width, 1))

    def on_resize(self) -> None:
        """Draw all lines for a new size."""
        self.redraw()

    def render_line(self, y: int) -> Strip:
        """Return one line."""
        line = self.lines[y] if y < len(self.lines) else []
        return Strip(line).adjust_cell_length(self.size.width)

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
