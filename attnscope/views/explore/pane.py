"""A widget that shows lines, and redraws only changed ones."""

from collections.abc import Callable

from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from attnscope.views.explore.ink import Line

Draw = Callable[[int, int], list[Line]]


class Pane(Widget, inherit_bindings=False):
    """Lines of text.

    Args:
        clicked: Called with the name, column and line of a click.
        scrolled: Called with the name and the direction of the wheel.
    """

    can_focus = False

    def __init__(
        self,
        name: str,
        draw: Draw,
        clicked: Callable[[str, int, int], None],
        scrolled: Callable[[str, int, int], None],
    ) -> None:
        super().__init__(id=name)
        self._draw, self._clicked, self._scrolled = draw, clicked, scrolled
        self.lines: list[Line] = []

    def redraw(self) -> None:
        """Draw lines that have changed."""
        if not self.display:
            return
        width, height = self.size
        before, self.lines = self.lines, self._draw(width, height) if width and height else []
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
        self._clicked(str(self.id), event.x, event.y)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Tell that the wheel was turned."""
        event.stop()
        self._scrolled(str(self.id), 0 if event.shift else 1, 1 if event.shift else 0)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Tell that the wheel was turned."""
        event.stop()
        self._scrolled(str(self.id), 0 if event.shift else -1, -1 if event.shift else 0)
