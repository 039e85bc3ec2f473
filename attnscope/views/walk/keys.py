"""The table of actions: the footer, help, palette, documentation and the page's keys are all made of it."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attnscope.base.errors import AttnscopeError, did_you_mean
from attnscope.base.files.reading import read_file

_CAP = 1 << 20


@dataclass(frozen=True)
class KeyAction:
    """An action that a key calls."""

    name: str
    # keys that call it, as textual and browsers name them: a character, or `left`, `enter`, `ctrl+p`
    keys: tuple[str, ...]
    help: str
    group: str
    brief: str = ""  # its word in the footer; empty if it is not there
    page: bool = True


# What one wants to do.
MOVE = "Go from cell to cell"
_FIND = "Find a token or a text"
_HEADS = "Find a head"
_READ = "Understand a cell"
_COMPARE = "Compare with something else"
_LOOK = "Change the picture"
_PANELS = "Go to a panel"
_OTHER = "Keep it, or find a command"
ACTIONS: tuple[KeyAction, ...] = (
    KeyAction(
        "lens",
        ("a",),
        "This cell in all heads; 5 to 9 go to heads in its list.",
        _HEADS,
        "this cell in all heads",
    ),
    KeyAction(
        "display", ("v",), "Heads as the lens, thumbnails, roles, or one number.", _HEADS, "heads"
    ),
    KeyAction("roles", ("r",), "Show the roles of all heads.", _HEADS, "roles"),
    KeyAction(
        "effects",
        ("E",),
        "Cut every head alone, and show how much each changes; again: at the row of the cursor.",
        _HEADS,
        "every head's effect",
        page=False,
    ),
    KeyAction("previous_head", ("[",), "Previous head.", _HEADS),
    KeyAction("next_head", ("]",), "Next head.", _HEADS, "head"),
    KeyAction("previous_layer", ("{",), "Layer below.", _HEADS),
    KeyAction("next_layer", ("}",), "Layer above.", _HEADS, "layer"),
    KeyAction("find", ("/",), "Find a token among the queries.", _FIND, "find"),
    KeyAction("next_match", ("n",), "Next match.", _FIND),
    KeyAction("previous_match", ("N",), "Previous match.", _FIND),
    KeyAction("next_text", (")",), "Next text.", _FIND),
    KeyAction("previous_text", ("(",), "Previous text.", _FIND),
    KeyAction(
        "pick",
        ("#",),
        "Go to a text: its number, its id, or some of its words.",
        _FIND,
        page=False,
    ),
    KeyAction(
        "explain",
        ("e",),
        "Explain this row step by step, and this cell in depth.",
        _READ,
        "explain",
    ),
    KeyAction(
        "follow",
        ("enter",),
        "Follow this cell: its key's row, in the head below that writes most there.",
        _READ,
        "follow",
    ),
    KeyAction(
        "back", ("backspace",), "Back to the place before, also along a trail.", _READ, "back"
    ),
    KeyAction(
        "stage", ("s",), "Next stage: scores, scaled, masked, weights, output.", _READ, "stage"
    ),
    KeyAction("previous_stage", ("S",), "Previous stage.", _READ),
    KeyAction(
        "pin",
        ("c",),
        "Pin this head and compare others with it; again: unpin it.",
        _COMPARE,
        "compare",
    ),
    KeyAction("swap", ("C",), "Swap this head with the pinned one.", _COMPARE),
    KeyAction("mask", ("m",), "Next mask, or next side of a comparison.", _COMPARE, "mask"),
    KeyAction("previous_mask", ("M",), "Previous mask.", _COMPARE),
    KeyAction(
        "cut",
        ("x",),
        "Cut this head (in the panel of heads) or this edge, and see what changes; again: put it back.",
        _COMPARE,
        "cut",
        page=False,
    ),
    KeyAction("uncut", ("X",), "Put back everything that is cut.", _COMPARE, page=False),
    KeyAction(
        "edit",
        ("t",),
        "Edit the text; it is computed again after a pause.",
        _COMPARE,
        "edit",
        page=False,
    ),
    KeyAction("left", ("left", "h"), "Left by one key; in the panel of heads, by one head.", MOVE),
    KeyAction(
        "down", ("down", "j"), "Down by one query; in the panel of heads, by one layer.", MOVE
    ),
    KeyAction("up", ("up", "k"), "Up by one query; in the panel of heads, by one layer.", MOVE),
    KeyAction(
        "right", ("right", "l"), "Right by one key; in the panel of heads, by one head.", MOVE
    ),
    KeyAction("page_up", ("pageup",), "Up by one screen.", MOVE),
    KeyAction("page_down", ("pagedown",), "Down by one screen.", MOVE),
    KeyAction("first_key", ("home",), "First key of the row.", MOVE),
    KeyAction("last_key", ("end",), "Last key of the row.", MOVE),
    KeyAction("first_query", ("g",), "First query.", MOVE),
    KeyAction("last_query", ("G",), "Last query.", MOVE),
    KeyAction("strongest", ("space",), "Strongest source of the row.", MOVE),
    KeyAction(
        "digits",
        ("d",),
        "Write numbers into the cells of the matrix, which may scroll then, or leave them out.",
        _LOOK,
        "digits",
    ),
    KeyAction(
        "scale", ("L",), "Colours by the root of weights, by weights, or by their logarithm.", _LOOK
    ),
    KeyAction(
        "sinks",
        ("z",),
        "Take sinks (first and special tokens) out of the scale, or back in.",
        _LOOK,
    ),
    KeyAction("zoom_in", ("=",), "Fewer positions in a cell, down to one.", _LOOK),
    KeyAction("zoom_out", ("-",), "More positions in a cell, up to the whole text.", _LOOK),
    KeyAction(
        "unit",
        ("u",),
        "Positions as tokens, words, or spans of the text.",
        _LOOK,
        "words",
        page=False,
    ),
    KeyAction("predictions", ("p",), "Show or hide the predictions.", _LOOK, "predictions"),
    KeyAction("heads_panel", ("1",), "Panel of layers and heads.", _PANELS),
    KeyAction("matrix_panel", ("2",), "Panel of the matrix.", _PANELS),
    KeyAction(
        "row_panel", ("3",), "Panel of the row: its sources, statistics and arithmetic.", _PANELS
    ),
    KeyAction("text_panel", ("4",), "Panel of the text.", _PANELS),
    KeyAction("next_panel", ("tab",), "Next panel.", _PANELS, page=False),
    KeyAction("previous_panel", ("shift+tab",), "Previous panel.", _PANELS, page=False),
    KeyAction(
        "enlarge", ("+",), "Give this panel the whole screen.", _PANELS, "enlarge", page=False
    ),
    KeyAction("restore", ("_",), "Show all panels again.", _PANELS, "all panels", page=False),
    KeyAction("copy", ("y",), "Copy the cell, the row or the matrix.", _OTHER, "copy"),
    KeyAction("write", ("w",), "Write a report, a table, a figure or a page.", _OTHER, "write"),
    KeyAction("palette", (":", "ctrl+p"), "All commands.", _OTHER, "commands"),
    KeyAction("help", ("?",), "This help.", _OTHER, "help"),
    KeyAction(
        "quit",
        ("q",),
        "Quit, and print the command that shows the same place.",
        _OTHER,
        "quit",
        page=False,
    ),
)
# Actions that pages have, and explore does not have yet.
ON_PAGES: tuple[KeyAction, ...] = (
    KeyAction("direction", ("i",), "What the token reads, or who reads it.", _READ),
)
# The most useful first: the footer has as many as there is room for, of the panel that keys move in before others.
_FOOTERS = {
    "heads": "lens cut effects display roles next_head next_layer pin",
    "matrix": "find lens cut follow back stage pin digits next_head next_layer",
    "row": "lens cut follow back predictions effects explain copy",
    "text": "find edit unit",
}
_FOOTER = (
    "help quit palette enlarge follow lens next_head next_layer stage mask pin cut explain find edit predictions roles "
    "display digits unit write copy back"
)


def footer(panel: str) -> Sequence[str]:
    """Return the names of actions for the footer of a panel."""
    return tuple(dict.fromkeys(f"help quit {_FOOTERS[panel]} {_FOOTER}".split()))


NAMES = [action.name for action in ACTIONS]
SPELLED = {
    "left": "←",
    "right": "→",
    "up": "↑",
    "down": "↓",
    "enter": "Enter",
    "backspace": "Backspace",
    "space": "Space",
    "tab": "Tab",
    "shift+tab": "Shift+Tab",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "home": "Home",
    "end": "End",
}


def spell_key(key: str) -> str:
    """Return a key as people read it: `Ctrl+P`, `←`."""
    if key in SPELLED:
        return SPELLED[key]
    modifiers, _, last = key.rpartition("+") if len(key) > 1 else ("", "", key)
    # Names such as f1 and delete are capitalised.
    last = last.capitalize() if len(last) > 1 else last
    if modifiers:
        return "+".join([*(part.capitalize() for part in modifiers.split("+")), last.upper()])
    return last


def spell_keys(action: KeyAction, between: str = " ") -> str:
    """Return all keys of an action."""
    return between.join(map(spell_key, action.keys))


def groups(actions: tuple[KeyAction, ...] = ACTIONS) -> Iterator[tuple[str, list[KeyAction]]]:
    """Yield the headings of the help, each with its actions."""
    for group in dict.fromkeys(action.group for action in actions):
        yield group, [action for action in actions if action.group == group]


def rebound(changes: Mapping[str, tuple[str, ...]], where: str = "") -> tuple[KeyAction, ...]:
    """Return the table with other keys for some actions; a key that is taken leaves the action that had it."""
    taken: dict[str, str] = {}
    for name, keys in changes.items():
        if name not in NAMES:
            raise AttnscopeError(
                f"there is no action '{name}'", where=where, hint=did_you_mean(name, NAMES)
            )
        for key in keys:
            if taken.setdefault(key, name) != name:
                raise AttnscopeError(
                    f"'{key}' calls both {taken[key]} and {name}", where=where, hint="remove one"
                )
    table = []
    for action in ACTIONS:
        free = tuple(key for key in action.keys if key not in taken)
        table.append(replace(action, keys=changes.get(action.name, free)))
    without = [action.name for action in table if action.name == "quit" and not action.keys]
    if without:
        raise AttnscopeError("quit has no key", where=where, hint="add one: quit = 'q'")
    return tuple(table)


def read_keys(path: Path) -> tuple[KeyAction, ...]:
    """Read a TOML file of keys: a name of an action and its key, or keys, such as `next_head = ["]", "ctrl+n"]`."""
    try:
        table = tomllib.loads(read_file(path, cap=_CAP).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise AttnscopeError(f"is not TOML ({e})", where=path) from e
    changes = {}
    for name, value in table.items():
        keys = [value] if isinstance(value, str) else value
        if not isinstance(keys, list) or not all(isinstance(key, str) and key for key in keys):
            raise AttnscopeError(
                f"{name} is {value!r:.80}", where=path, hint="give a key, or a list of keys"
            )
        changes[name] = tuple(keys)
    return rebound(changes, str(path))
