"""Overlays of the panels: help, long text, and menus of commands.

They have the terminal's own two colours, which can be read on any background, and where there are no colours.
"""

import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from rich.segment import Segment
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from attnscope.views.explore.ink import (
    BOLD,
    CURSOR,
    DIM,
    PLAIN,
    Ink,
    Line,
    PanelFrame,
    cells_wide,
    fit,
    wrapped,
)
from attnscope.views.explore.matrix import scroll
from attnscope.views.walk.effects import WORDS_OF_EFFECTS
from attnscope.views.walk.glossary import GLOSSARY, beside_phrase, phrase_of
from attnscope.views.walk.keys import MOVE, KeyAction, groups, spell_keys

# Cells of a box that are no text: its border, its margins and its scrollbar.
_FRAME = 6
# Cells of the meaning of a key, at least.
_SHORTEST = 16
# Cells of a menu at most, and its lines that are no commands: its frame, and what was typed.
_WIDEST = 140
_EDGES = 3


# The walk that most people come for.
_FIRST_QUESTION = (
    "Which head reads one word from another, and does it matter?",
    "/ and a word finds its row; ←, → and Home choose the word that it reads; a shows this cell in every head, and 5 goes to "
    "the strongest; x cuts this head and shows what the model says without it, and whether that is much, somewhat, little or "
    "hardly anything; E ranks it among all heads: where the model predicts and, pressed again, at the row of the cursor. "
    f"{WORDS_OF_EFFECTS}",
)

_CONTENT = GLOSSARY["content weight"]
# How panels write them, and what their names leave out.
_NUMBERS = (
    "A weight is written as wide as its column: 0.96, .96, or 96 in percent, at most 99. Each is rounded once, from the exact "
    "weight, so that 0.5449 is .54 where there are two decimals and 0.545 where there are three. · is not allowed by the mask, "
    "? is not known. Top non-sink is the strongest source past sinks (first and special tokens, learned sinks) and the token "
    "itself, or any if a row reads nothing else. Content weight, by which the first head is chosen, is "
    f"{_CONTENT[0].lower()}{_CONTENT[1:]}"
)
# How panels show weights without colours.
_WITHOUT_COLOURS = (
    "Without colours, shades stand for weights: the line below the matrix says from which weight each of them does. Words of "
    "the text are bold if the row reads them with a weight that has a shade. All else that is bold is a title, a key, or where "
    "the cursor is."
)


class OverPanels(ModalScreen[None], inherit_bindings=False):
    """What is over the panels. Keys that come while it is being removed are those of the panels."""

    is_left = False

    def leave(self) -> None:
        """Show the panels again."""
        self.is_left = True
        self.dismiss()

    def on_key(self, event: events.Key) -> None:
        """Handle a key, and no other part of the screen does."""
        event.stop()
        event.prevent_default()
        if self.is_left:
            self.app.post_message(events.Key(event.key, event.character))
        elif event.key == "ctrl+c":
            self.app.exit(130)
        else:
            self.handle(event)

    def handle(self, event: events.Key) -> None:
        """Do what a key says."""
        raise NotImplementedError


class Overlay(OverPanels, inherit_bindings=False):
    """Text over the panels that a key closes, unless it scrolls."""

    AUTO_FOCUS = ""
    CSS = """
    Overlay { align: center middle; background: ansi_default; }
    Overlay VerticalScroll {
        background: ansi_default; color: ansi_default; border: round ansi_default; width: auto; min-width: 20;
        max-width: 100%; height: auto; max-height: 100%; padding: 0 1;
        scrollbar-size-vertical: 1; scrollbar-color: ansi_default; scrollbar-color-hover: ansi_default;
        scrollbar-color-active: ansi_default; scrollbar-background: ansi_default;
        scrollbar-background-hover: ansi_default; scrollbar-background-active: ansi_default;
    }
    Overlay Static { width: auto; background: ansi_default; color: ansi_default; }
    """

    def __init__(self, heading: str, text: Text) -> None:
        super().__init__()
        self._heading = heading
        self._text = text

    def compose(self) -> ComposeResult:
        """Create the box."""
        box = VerticalScroll(Static(self._text, markup=False), can_focus=False)
        box.border_title = self._heading
        box.border_subtitle = "Esc closes"
        yield box

    def on_mount(self) -> None:
        """Say which keys show the rest, once it is known whether there is one."""
        self.call_after_refresh(self._say_how_to_scroll)

    def on_resize(self) -> None:
        """Say it for a new size."""
        self.call_after_refresh(self._say_how_to_scroll)

    def _say_how_to_scroll(self) -> None:
        box = self.query_one(VerticalScroll)
        box.border_subtitle = "Esc closes"
        if box.max_scroll_y:
            box.border_subtitle = "↓ and PgDn show the rest, Esc closes"

    def handle(self, event: events.Key) -> None:
        """Scroll, or close."""
        box = self.query_one(VerticalScroll)
        steps = {
            "down": 1,
            "j": 1,
            "up": -1,
            "k": -1,
            "pagedown": box.size.height,
            "space": box.size.height,
        }
        steps |= {"pageup": -box.size.height, "home": -(1 << 20), "end": 1 << 20}
        if event.key in steps:
            box.scroll_relative(y=steps[event.key], animate=False)
        else:
            self.leave()

    def on_click(self, event: events.Click) -> None:
        """Close at a click beside the box."""
        if event.widget is self:
            self.leave()


def help_text(actions: tuple[KeyAction, ...], ink: Ink, width: int) -> Text:
    """Return all keys with their meanings."""
    wide = max(len(spell_keys(action)) for action in actions)
    indent = " " * (wide + 4)
    text = Text()
    for words, style in zip(_FIRST_QUESTION, ("bold", ""), strict=True):
        for line in textwrap.wrap(words, max(_SHORTEST, width - _FRAME - 2)):
            text.append(f"{ink.plain(line)}\n", style)
    for words in (_NUMBERS, *[_WITHOUT_COLOURS] * (not ink.colours)):
        for line in textwrap.wrap(words, max(_SHORTEST, width - _FRAME - 2)):
            text.append(f"{ink.plain(line)}\n")
    for heading, group in groups(actions):
        text.append(f"{heading}\n", "bold")
        for action in group:
            lines = textwrap.wrap(action.help, max(_SHORTEST, width - len(indent) - _FRAME))
            meaning = f"\n{indent}".join(lines)
            text.append(f"  {ink.plain(spell_keys(action)):<{wide}}  {meaning}\n")
    text.rstrip()
    return text


class MenuLine(NamedTuple):
    """A line of a menu."""

    title: str  # its keys, or what it shows
    meaning: str
    name: str
    call: Callable[[], object]
    value: str = ""  # what it shows


class MenuBox(Widget, inherit_bindings=False):
    """The lines of a menu."""

    can_focus = False
    lines: Sequence[Line] = ()

    def render_line(self, y: int) -> Strip:
        """Return one line."""
        line = self.lines[y] if y < len(self.lines) else []
        return Strip(line).adjust_cell_length(self.size.width)


class Menu(OverPanels, inherit_bindings=False):
    """Commands over the panels: what is typed chooses among them, and Enter calls one.

    Args:
        heading: What the menu is of.
        commands: The commands.
        chosen: Index of the command that is chosen first.
    """

    AUTO_FOCUS = ""
    CSS = """
    Menu { align: center top; background: transparent; }
    MenuBox { background: ansi_default; color: ansi_default; margin-top: 1; }
    """

    def __init__(
        self, heading: str, commands: Sequence[MenuLine], ink: Ink, chosen: int = 0
    ) -> None:
        super().__init__()
        self._heading = heading
        self._commands = commands
        self._ink = ink
        self._needle = ""
        self._chosen = chosen
        self._top = 0
        self._rows: list[int] = []  # the command of every line

    def compose(self) -> ComposeResult:
        """Create the box."""
        yield MenuBox()

    def on_mount(self) -> None:
        """Draw the commands."""
        self._redraw()

    def on_resize(self) -> None:
        """Draw the commands for a new size."""
        self._redraw()

    @property
    def found(self) -> list[MenuLine]:
        """The commands that have all typed words, those first whose names have them as they were typed."""
        words = self._needle.casefold().split()
        typed = " ".join(words)
        found = [
            command
            for command in self._commands
            if all(word in f"{command.name} {command.meaning}".casefold() for word in words)
        ]
        return sorted(found, key=lambda command: typed not in command.name.casefold())

    def _redraw(self) -> None:
        ink = self._ink
        found = self.found
        self._chosen = max(0, min(self._chosen, len(found) - 1))
        width = min(_WIDEST, self.size.width)
        wide = max((len(command.title) for command in self._commands), default=0)
        room = max(_SHORTEST, width - wide - _EDGES - 3)
        lines: list[Line] = []
        rows: list[int] = []
        for n, command in enumerate(found):
            style = CURSOR if n == self._chosen else PLAIN
            for m, meaning in enumerate(wrapped(command.meaning, room)):
                title = "" if m else command.title
                text = f" {ink.plain(fit(title, wide))}  {ink.plain(fit(meaning, room))} "
                lines.append([Segment(text, style)])
                rows.append(n)
        most_lines = max(1, self.size.height - _EDGES - 2)
        if rows:
            first_row, last = (
                rows.index(self._chosen),
                len(rows) - 1 - rows[::-1].index(self._chosen),
            )
            self._top = scroll(
                scroll(self._top, last, most_lines, len(rows)), first_row, most_lines, len(rows)
            )
        visible_lines = _whole_commands(rows, self._top, most_lines)
        self._rows = rows[visible_lines]
        hint = f"{self._chosen + 1} of {len(found)} · Enter chooses, Esc closes"
        if not found:
            hint = "nothing has these words"
        typed = [Segment(f" {ink.plain(self._needle)}"), Segment(" ", CURSOR)]
        typed += [] if self._needle else [Segment("type a word", DIM)]
        hint = fit(ink.plain(hint), width - 3 - cells_wide(typed), right=True)
        heading: Line = [Segment(f" {self._heading} ", BOLD)]
        search: Line = [*typed, Segment(hint, DIM)]
        content = [heading, search, *lines[visible_lines]]
        height = len(content) + 1
        frame = PanelFrame(width, height, True, ink.ascii)
        box = self.query_one(MenuBox)
        box.lines = [frame.around(line, y) for y, line in enumerate([*content, []])]
        box.styles.width = width
        box.styles.height = height
        box.refresh()

    def handle(self, event: events.Key) -> None:
        """Choose a command, or change what is typed."""
        steps = {"down": 1, "up": -1, "pagedown": 10, "pageup": -10}
        steps |= {"home": -(1 << 20), "end": 1 << 20}
        if event.key == "escape":
            self.leave()
        elif event.key == "enter":
            self._call(self._chosen)
        elif event.key in steps:
            self._chosen += steps[event.key]
            self._redraw()
        elif event.key == "backspace" or (event.is_printable and event.character):
            typed = event.character if event.is_printable else ""
            self._needle = f"{self._needle}{typed}" if typed else self._needle[:-1]
            self._chosen = self._top = 0
            self._redraw()

    def on_click(self, event: events.Click) -> None:
        """Call the command of a line; close at a click beside the box."""
        if event.widget is self:
            self.leave()
        elif 0 <= event.y - 2 < len(self._rows):
            self._call(self._rows[event.y - 2])

    def _call(self, chosen_index: int) -> None:
        found = self.found
        if found:
            self.leave()
            self.app.call_later(found[chosen_index].call)


def _whole_commands(rows: Sequence[int], top: int, max_lines: int) -> slice:
    """Return the lines of a menu that are visible: no sentence ends between two, unless it has no room.

    `rows`: The command of every line.
    """
    start = top
    stop = min(top + max_lines, len(rows))
    while start < stop and start and rows[start] == rows[start - 1]:
        start += 1
    while stop > start and stop < len(rows) and rows[stop] == rows[stop - 1]:
        stop -= 1
    if start == stop:
        return slice(top, top + max_lines)
    return slice(start, stop)


def displays_of(app: Any) -> list[MenuLine]:
    """Return what the panel of heads can show; numbers only if they vary."""
    meanings = {
        "thumbnails": "The weights of every head, small.",
        "lens": "The weight of the cell under the cursor in every head.",
        "roles": "What every head does: previous token, induction, sink …",
    }
    if app.scene is not None:
        for head_number in app.scene.numbers:
            if head_number.varies:
                meanings[head_number.name] = beside_phrase(head_number.name, head_number.meaning)
        if not app.source.computes and app.scene.roles is None:
            del meanings["roles"]
    titles = {name: phrase_of(name) for name in meanings}
    if not app.thumbnails_fit:
        titles["thumbnails"] = "top non-sink"
        meanings["thumbnails"] = "The row's strongest source past sinks and itself."
    return [
        MenuLine(titles[name], meaning, titles[name], partial(app.do, "display", name), name)
        for name, meaning in meanings.items()
    ]


def display_menu(app: Any) -> Menu:
    """Return the menu of what the panel of heads can show, at what it shows."""
    displays = displays_of(app)
    names = [command.value for command in displays]
    display = app.place.display
    chosen_index = names.index(display) if display in names else 0
    return Menu("what heads show", displays, app.state.ink, chosen_index)


def commands_of(app: Any) -> list[MenuLine]:
    """Return all actions, displays of the panel of heads, and masks."""
    # Arrows come last, because everybody knows them.
    actions = sorted(app.actions, key=lambda action: action.group == MOVE)
    commands = [
        MenuLine(
            spell_keys(action),
            action.help,
            action.name.replace("_", " "),
            partial(app.do, action.name),
        )
        for action in actions
        if action.name != "palette"
    ]
    commands += [
        MenuLine("", f"heads: {title}. {meaning}", f"heads: {name}", call)
        for title, meaning, name, call, _ in displays_of(app)
    ]
    masks = app.source.masks
    return commands + [
        MenuLine("", f"mask: {mask}", f"mask: {mask}", partial(app.choose_mask, n))
        for n, mask in enumerate(masks)
    ]
