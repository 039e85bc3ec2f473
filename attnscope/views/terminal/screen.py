"""Print renderables on a console, never wider than it and with nothing cut."""

import textwrap
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from attnscope.views.numbers import Digits
from attnscope.views.palette import Surface, surface_on
from attnscope.views.scales import WEIGHTS, LogScale, Scale, needs_black
from attnscope.views.spans import ASCII, TIE, Look, Span, spell
from attnscope.views.terminal.background import chosen_background
from attnscope.views.terminal.colours import (
    bar_style,
    count_colours,
    ground_of,
    limits_of,
    ramp_pieces,
    ramp_style,
    role_style,
)

# No table is readable below this width: lines are laid out for it, then folded as a terminal would.
NARROWEST = 20
# Cells of the steps from the left edge.
INDENTS = 0, 3, 14
# From this width on, optional parts fit: names of the axes, values in a column of their own.
ROOMY = 40
# In place of TIE until lines are laid out: rich breaks them at every blank. Untrusted text has no such character.
GLUE = "\ue000"
# Style of the headings of tables.
HEADING = "underline"
# Cells of a full bar on a screen of 80 columns or fewer, and the most on wider ones.
BAR = 10
_LONGEST_BAR = 40
# Longest line of prose, which is hard to read if it is longer; on a wide screen, two thirds of it.
_PROSE = 120
STYLES: dict[Look, str] = {
    "": "",
    "caption": "",  # terminals show dim letters in too little contrast for what is to be read
    "dim": "dim",
    "bold": "bold",
    "title": "bold reverse",
    "remark": "yellow",
    "warning": "bold yellow",
    "alarm": "bold white on red",
    "good": "green",
    "bad": "bold bright_red",
}
# In place of these on a light background, on which these are hard to read: with few colours, and with more.
_ON_LIGHT: dict[bool, dict[Look, str]] = {
    True: {"remark": "magenta", "warning": "bold magenta", "good": "", "bad": "bold red"},
    False: {
        "remark": "color(94)",
        "warning": "bold color(94)",
        "good": "color(22)",
        "bad": "bold red",
    },
}
# The same if the background is not known: what stands out on black and on white.
_ON_EITHER: dict[bool, dict[Look, str]] = {
    True: {"remark": "magenta", "warning": "bold magenta", "good": "", "bad": "bold bright_red"},
    False: {
        "remark": "color(130)",
        "warning": "bold color(130)",
        "good": "color(28)",
        "bad": "bold color(196)",
    },
}


def style_of(look: Look, colours: int, surface: Callable[[], Surface]) -> str:
    """Return the style of a look on the background of a surface, which is asked for only if that matters."""
    instead = _ON_LIGHT[colours <= 16]
    if not colours or look not in instead:
        return STYLES[look]
    ground = surface()
    if ground.is_assumed:
        return _ON_EITHER[colours <= 16][look]
    return instead[look] if needs_black(bytes.fromhex(ground.background)) else STYLES[look]


class Screen:
    """A console, which is where lines go, and how to draw on it."""

    def __init__(self, console: Console, ground: Surface | None = None) -> None:
        self.console = console
        # the colours of numbers on what is behind the lines; None for the background of the console
        self.ground = ground
        self.width = max(NARROWEST, console.width)  # columns that a layout may use
        self.line = min(self.width, max(_PROSE, 2 * self.width // 3))  # columns of a line of prose
        # cells of a full bar if there is room: on a wide screen, more by a third of what is wider
        self.longest_bar = min(_LONGEST_BAR, BAR + max(0, self.width - 80) // 3)
        self.ascii = console.options.ascii_only  # whether its encoding knows ASCII only
        # how many colours there are: 0, 16, 256 or 16,777,216
        self.colours = 0 if console.no_color else count_colours(console.color_system)

    @cached_property
    def surface(self) -> Surface:
        """The colours of numbers on the console's background."""
        if self.ground is not None:
            return self.ground
        return surface_on(chosen_background(on_terminal=self.console.file.isatty()))

    def ramp(self, fraction: float, scale: Scale | LogScale = WEIGHTS) -> Style:
        """Return the style at a place from 0 to 1 of the ramp of a scale; plain without colours."""
        if self.colours:
            limits = limits_of(scale)
            return ramp_style(fraction, scale.signed, self.colours, self.surface, limits)
        return Style()

    def number(self, scale: Scale | LogScale, value: float) -> Style:
        """Return the style of a number; plain without colours, and of one that has no place on the scale."""
        fraction = scale.place(value)
        if self.colours and fraction is not None:
            return self.ramp(fraction, scale)
        return Style()

    def say_colours(self, scales: Iterable[tuple[str, Scale | LogScale, Digits]]) -> None:
        """Print the key of colours behind numbers, for each name the ramp of its scale; nothing without colours."""
        if not self.colours:
            return
        items = []
        for name, scale, digits in scales:
            ramp = ramp_pieces(
                scale,
                digits.text(scale.low),
                digits.text(scale.high),
                self.colours,
                self.surface,
                percent=digits.percent,
            )
            items.append(Text.assemble(f"{name}  ", *ramp))
        self.put(flow(items, self.width, "   "), width=self.width)

    @cached_property
    def bar(self) -> Style:
        """The style of bars, and of the numbers of what they show."""
        if self.colours:
            return bar_style(self.colours, self.surface)
        return Style()

    @cached_property
    def negative_bar(self) -> Style:
        """The style of bars below 0."""
        if self.colours:
            return bar_style(self.colours, self.surface, more=False)
        return Style()

    def plain(self, spans: Iterable[Span]) -> str:
        """Join spans in characters that the console has, with what is untrusted escaped."""
        # Characters that stay as wide are replaced by `put`.
        text = ""
        for span in spans:
            spelled = spell(span, ascii=self.ascii)
            text += spelled.replace(TIE, GLUE) if span.origin == "ours" else spelled
        return text

    def text(self, spans: Iterable[Span]) -> Text:
        """Join spans in their styles; see plain."""
        styled = [
            (self.plain(alike), self._style(*kind))
            for kind, alike in groupby(
                spans, lambda span: (span.look, span.colour, span.shade, span.scale)
            )
        ]
        if len(styled) == 1:
            # Padding in a column then has the same style.
            return Text(*styled[0], overflow="fold")
        return Text.assemble(*styled, overflow="fold")

    def style(self, look: Look) -> str:
        """Return the style of a look."""
        return style_of(look, self.colours, lambda: self.surface)

    def _style(
        self, look: Look, colour: str, shade: float | None, scale: Scale | LogScale
    ) -> str | Style:
        if colour and self.colours > 16:
            return role_style(colour, 1.0, self.colours, self.surface)
        if shade is not None and self.colours:
            return self.number(scale, scale.value(shade))
        return self.style(look)

    def put(self, renderable: RenderableType, width: int = 0) -> None:
        """Print; a line that is wider than the console is wrapped, and trailing blanks are left out.

        Args:
            renderable: What to print. Untrusted strings must come from `plain` or `text` and be inside a `Text`.
            width: Columns that it needs; 0 for prose and for what fits `self.width`.
        """
        self.draw_lines(self.lines(renderable, width))

    def lines(self, renderable: RenderableType, width: int = 0) -> list[list[Segment]]:
        """Lay out what `put` would print, as lines that fit the console."""
        if isinstance(renderable, Text) and not width:
            own = self.line
        else:
            own = self.width
        options = self.console.options.update(width=max(width, own))
        lines = self.console.render_lines(renderable, options, pad=False)
        return [
            part
            for line in lines
            for part in _fold(line, self.console.width, coloured=bool(self.colours))
        ]

    def draw_lines(self, lines: Iterable[list[Segment]]) -> None:
        """Print lines that fit the console."""
        segments: list[Segment] = []
        for line in lines:
            segments += [
                part._replace(text=part.text.translate(ASCII)) if self.ascii else part
                for part in line
            ]
            segments.append(Segment.line())
        self.console.print(Segments(segments), end="", crop=False, soft_wrap=True)

    def say(self, *parts: str | tuple[str, str] | Text) -> None:
        """Print one paragraph of styled parts, wrapped at words."""
        self.put(Text.assemble(*parts, overflow="fold"))

    def draw_indented(self, text: Text, indent: int) -> None:
        """Print a paragraph that keeps its distance from the left edge: so many steps."""
        cells = INDENTS[indent]
        for line in text.wrap(self.console, self.line - cells):
            self.put(Text.assemble(" " * cells, line))


def flow(
    items: Iterable[Text], width: int, between: str, indent: int = 0, ending: str | None = None
) -> Text:
    """Lay out items one after the other, with line breaks between items, never inside one that fits the width.

    Args:
        indent: Blanks in front of every line but the first.
        ending: The end of a broken line; None for the separator, unless that is itself a line, which a line break
            replaces.
    """
    flowed = Text(overflow="fold")
    used = 0
    if ending is None:
        ending = between.rstrip().removesuffix("│").rstrip()
    width -= len(ending) + indent
    for item in items:
        cells = cell_len(item.plain)
        if used and used + len(between) + cells > width:
            flowed.append(ending + "\n" + " " * indent)
            used = 0
        elif used:
            flowed.append(between)
            used += len(between)
        flowed.append_text(item)
        if cells <= width:
            used += cells
        else:
            used += cell_len(textwrap.wrap(item.plain, width)[-1]) - used
    return flowed


def _fold(line: Iterable[Segment], width: int, *, coloured: bool) -> list[list[Segment]]:
    """Cut a line into pieces of at most `width` cells; a character wider than that has its own line.

    Trailing blanks that are not visible are stripped; those on a background are visible, if there are colours.
    """
    segments = [part._replace(text=part.text.replace(GLUE, " ")) for part in line]
    while segments and not (coloured and segments[-1].style and ground_of(segments[-1].style)):
        text = segments[-1].text.rstrip(" ")
        if text:
            segments[-1] = segments[-1]._replace(text=text)
            break
        segments.pop()
    if sum(cell_len(segment.text) for segment in segments) <= width:
        return [segments]
    pieces: list[list[Segment]] = [[]]
    used = 0
    for character, style in (
        (letter, segment.style) for segment in segments for letter in segment.text
    ):
        cells = cell_len(character)
        if used and used + cells > width:
            pieces.append([])
            used = 0
        pieces[-1].append(Segment(character, style))
        used += cells
    return pieces
