"""Overlays of the panels: help, long text, and the palette of commands."""

import textwrap
from abc import ABC, abstractmethod
from functools import partial
from typing import Any

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from attnscope.views.explore.ink import Ink
from attnscope.views.walk.glossary import phrase_of
from attnscope.views.walk.keys import MOVE, KeyAction, groups, spell_keys

# Cells of a box that are no text: its border, its margins and its scrollbar.
_FRAME = 6
# Cells of the meaning of a key, at least.
_SHORTEST = 16
PALETTE = """
CommandPalette Vertical, CommandPalette #--input, CommandList { background: ansi_default; color: ansi_default; }
CommandPalette #--input { border: none; border-top: hkey ansi_white; }
CommandPalette #--input.--list-visible { border-top: hkey ansi_white; }
CommandPalette > Vertical { max-width: 100; }
CommandList, CommandList:focus { border: none; border-bottom: hkey ansi_white; }
CommandList > .option-list--option-highlighted, CommandList:ansi > .option-list--option-highlighted {
    background: ansi_white; color: ansi_black; text-style: bold underline;
}
CommandList > .option-list--option { color: ansi_default; }
CommandList, VerticalScroll {
    scrollbar-size-vertical: 1; scrollbar-color: ansi_white; scrollbar-color-hover: ansi_white;
    scrollbar-color-active: ansi_white; scrollbar-background: ansi_default;
    scrollbar-background-hover: ansi_default; scrollbar-background-active: ansi_default;
}
SearchIcon { display: none; }
"""


# The walk that most people come for.
_FIRST_QUESTION = (
    "Which head reads one word from another, and does it matter?",
    "/ and a word finds its row; ←, → and Home choose the word that it reads; a shows this cell in every head, and 1 goes to "
    "the strongest; x cuts this head and shows what the model says without it, and E how that ranks among all heads.",
)


class Overlay(ModalScreen[None], inherit_bindings=False):
    """Text over the panels that a key closes, unless it scrolls."""

    AUTO_FOCUS = ""
    CSS = """
    Overlay { align: center middle; background: ansi_default 0%; }
    Overlay VerticalScroll {
        background: ansi_default; color: ansi_default; border: round ansi_white; width: auto; min-width: 20;
        max-width: 100%; height: auto; max-height: 100%; padding: 0 1;
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

    def on_key(self, event: events.Key) -> None:
        """Scroll, or close."""
        event.stop()
        event.prevent_default()
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
        if event.key == "ctrl+c":
            self.app.exit(130)
        elif event.key in steps:
            box.scroll_relative(y=steps[event.key], animate=False)
        else:
            self.dismiss()

    def on_click(self, event: events.Click) -> None:
        """Close at a click beside the box."""
        if event.widget is self:
            self.dismiss()


def help_text(actions: tuple[KeyAction, ...], ink: Ink, width: int) -> Text:
    """Return all keys with their meanings."""
    wide = max(len(spell_keys(action)) for action in actions)
    indent = " " * (wide + 4)
    text = Text()
    for words, style in zip(_FIRST_QUESTION, ("bold", ""), strict=True):
        for line in textwrap.wrap(words, max(_SHORTEST, width - _FRAME - 2)):
            text.append(f"{ink.plain(line)}\n", style)
    for heading, group in groups(actions):
        text.append(f"{heading}\n", "bold")
        for action in group:
            lines = textwrap.wrap(action.help, max(_SHORTEST, width - len(indent) - _FRAME))
            meaning = f"\n{indent}".join(lines)
            text.append(f"  {ink.plain(spell_keys(action)):<{wide}}  {meaning}\n")
    text.rstrip()
    return text


class NamedCommands(Provider, ABC):
    """Commands of a palette that are known at once: each with its line, its name, and what it calls."""

    @abstractmethod
    def _commands(self) -> list[tuple[str, str, Any]]:
        """Return the commands."""

    async def discover(self) -> Hits:
        """Yield all commands."""
        for label, _, call in self._commands():
            yield DiscoveryHit(label, call)

    async def search(self, query: str) -> Hits:
        """Yield the commands that match."""
        matcher = self.matcher(query)
        for label, name, call in self._commands():
            score = max(matcher.match(name), 0.5 * (query.casefold() in label.casefold()))
            if score > 0:
                yield Hit(score, matcher.highlight(label), call)


def displays_of(app: Any) -> list[tuple[str, str, Any]]:
    """Return what the panel of heads can show: a line, the name, and what shows it; numbers only if they vary."""
    meanings = {
        "thumbnails": "The weights of every head, small.",
        "lens": "The weight of the cell under the cursor in every head.",
        "roles": "What every head does: previous token, induction, sink …",
    }
    if app.state.scene is not None:
        for number in app.state.scene.numbers:
            if number.varies:
                meanings[number.name] = number.meaning
    phrases = {name: phrase_of(name) for name in meanings}
    wide = max(map(len, phrases.values()))
    return [
        (f"{phrase:<{wide}}  {meanings[name]}", phrase, partial(app.do, "display", name))
        for name, phrase in phrases.items()
    ]


class HeadDisplays(NamedCommands):
    """What the panel of heads can show, as a menu."""

    def _commands(self) -> list[tuple[str, str, Any]]:
        return displays_of(self.app)


class WalkCommands(NamedCommands):
    """All actions, displays of the panel of heads, and masks, as commands of the palette."""

    def _commands(self) -> list[tuple[str, str, Any]]:
        app: Any = self.app
        wide = max(len(spell_keys(action)) for action in app.actions)
        blank = " " * wide
        # Arrows come last, because everybody knows them.
        actions = sorted(app.actions, key=lambda action: action.group == MOVE)
        lines = {action.name: f"{spell_keys(action):<{wide}}  {action.help}" for action in actions}
        del lines["palette"]
        commands = [
            (line, name.replace("_", " "), partial(app.do, name)) for name, line in lines.items()
        ]
        commands += [
            (f"{blank}  heads: {line}", f"heads: {name}", call)
            for line, name, call in displays_of(app)
        ]
        commands += [
            (f"{blank}  mask: {mask}", f"mask: {mask}", partial(app.choose_mask, mask_index))
            for mask_index, mask in enumerate(app.state.source.masks)
        ]
        return commands
