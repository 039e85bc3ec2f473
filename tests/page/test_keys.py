"""Every key that a page lists does what it says; the keys are those of the table of actions."""

import pytest

from attnscope.cli import main
from attnscope.views.walk.keys import ACTIONS, ON_PAGES, spell_key
from tests.page.reading import read_page
from tests.page.test_page import TEXT
from tests.page.walking import shows

PLACE = "#head=L1H1&query=3&key=3&stage=scaled"
SHOWS = "document.querySelector('.heads-panel select').value"
DIALOG = "(document.querySelector('dialog')?.ariaLabel ?? '')"
SAID = "document.querySelector('.said').textContent"
FOCUS = "document.activeElement.id"
WHERE = "decodeURIComponent(location.hash)"
ZOOM_OUT = "document.querySelector('.matrix-panel [aria-label=\"Zoom out\"]')"
PICTURE = "document.getElementById('panel-matrix').toDataURL()"
# Action to keys that are pressed at PLACE before its own, an expression, and its value afterwards.
EFFECTS = {
    "left": ("", WHERE, "#head=L1H1&query=3&key=2&stage=scaled"),
    "right": ("", WHERE, "#head=L1H1&query=3&key=4&stage=scaled"),
    "up": ("", WHERE, "#head=L1H1&query=2&key=3&stage=scaled"),
    "down": ("", WHERE, "#head=L1H1&query=4&key=3&stage=scaled"),
    "page_up": ("", WHERE, "#head=L1H1&query=0&key=3&stage=scaled"),
    "page_down": ("", WHERE, "#head=L1H1&query=LAST&key=3&stage=scaled"),
    "first_key": ("", WHERE, "#head=L1H1&query=3&key=0&stage=scaled"),
    "last_key": ("", WHERE, "#head=L1H1&query=3&key=LAST&stage=scaled"),
    "first_query": ("", WHERE, "#head=L1H1&query=0&key=3&stage=scaled"),
    "last_query": ("", WHERE, "#head=L1H1&query=LAST&key=3&stage=scaled"),
    "strongest": ("", WHERE, "#head=L1H1&query=3&stage=scaled"),
    "follow": ("", f"/^#head=L0H.&query=.&key=.&stage=scaled$/.test({WHERE})", True),
    "back": ("Enter", WHERE, PLACE),
    "find": ("", "document.activeElement.type", "search"),
    "next_match": ("/the Enter", f"/query=[036]/.test({WHERE})", True),
    "previous_match": ("/the Enter", f"/query=[036]/.test({WHERE})", True),
    "previous_head": ("", WHERE, "#head=L1H0&query=3&key=3&stage=scaled"),
    "next_head": ("", WHERE, "#head=L1H2&query=3&key=3&stage=scaled"),
    "previous_layer": ("", WHERE, "#head=L0H1&query=3&key=3&stage=scaled"),
    "next_layer": ("", WHERE, "#head=L2H1&query=3&key=3&stage=scaled"),
    "previous_text": ("", f"{WHERE}.startsWith('#text=1&')", True),
    "next_text": ("", f"{WHERE}.startsWith('#text=1&')", True),
    "heads_panel": ("", FOCUS, "panel-heads"),
    "matrix_panel": ("", FOCUS, "panel-matrix"),
    "row_panel": ("", FOCUS, "panel-row"),
    "text_panel": ("", FOCUS, "panel-text"),
    "stage": ("", WHERE, "#head=L1H1&query=3&key=3&stage=masked"),
    "previous_stage": ("", WHERE, "#head=L1H1&query=3&key=3&stage=scores"),
    "digits": ("", f"{PICTURE} === window.picture", False),
    "display": ("", SHOWS, "thumbnails"),
    "direction": (
        "",
        "document.querySelector('.sources th').textContent.endsWith('is read by')",
        True,
    ),
    "lens": ("", FOCUS, "lens-first"),
    "scale": ("", SAID, "colours follow weights"),
    "sinks": ("", SAID, "sinks are out of the scale"),
    "zoom_in": ("", f"{ZOOM_OUT}?.disabled", False),
    "zoom_out": ("+", f"{ZOOM_OUT} === null", True),
    "pin": ("", WHERE, f"{PLACE}&pin=L1H1,0"),
    "swap": ("c ]", WHERE, f"{PLACE}&pin=L1H2,0"),
    "predictions": ("", "document.querySelector('.predictions') === null", True),
    "roles": ("", SHOWS, "roles"),
    "mask": ("", f"{WHERE}.startsWith('#mask=1&')", True),
    "previous_mask": ("", f"/^#mask=[1-9]/.test({WHERE})", True),
    "explain": ("", f"{DIALOG}.endsWith('step by step')", True),
    "copy": ("", DIALOG, "copy"),
    "write": ("", DIALOG, "save"),
    "palette": ("", DIALOG, "commands"),
    "help": ("", DIALOG, "keys"),
}
UNDONE = {
    "direction": "i",
    "scale": "L L",
    "sinks": "z",
    "display": "r r",
    "digits": "d",
    "predictions": "p",
    "zoom_in": "-",
}  # what a link does not take back
SPELLED = {"pageup": "PageUp", "pagedown": "PageDown", "space": " "}
ARROWS = {name: f"Arrow{name.title()}" for name in ("left", "right", "up", "down")}


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """Pages on which every key has something to do: two texts with predictions, and a comparison."""
    folder = tmp_path_factory.mktemp("walked")
    texts = folder / "texts.txt"
    texts.write_text(
        "The bank by the [MASK] was the end\nThe bank by the river\n", encoding="utf-8"
    )
    commands = {"texts": ["run", "--file", str(texts)], "sides": ["compare", TEXT]}
    for name, command in commands.items():
        assert main([*command, "-o", str(folder / f"{name}.html"), "--quiet"]) == 0
    return {name: folder / f"{name}.html" for name in commands}


def type_words(page, words):
    """Press keys one after the other; a word that begins with a slash is typed into the search."""
    for word in words.split():
        if word.startswith("/"):
            page.keyboard.press("/")
            page.keyboard.type(word[1:])
        else:
            page.keyboard.press(word)


def try_key(page, action, key, last):
    """Press a key at PLACE and wait for its effect; return what is shown instead, None for the effect."""
    # The page writes the place of the key before into its address after it has drawn.
    page.evaluate(
        "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(drawn))))"
    )
    page.evaluate(f"document.activeElement.blur(); location.hash = '{PLACE}'")
    assert shows(page, WHERE, PLACE)
    before, expression, value = EFFECTS[action]
    value = value.replace("LAST", str(last)) if isinstance(value, str) else value
    type_words(page, before)
    page.evaluate(f"window.picture = {PICTURE}")
    page.keyboard.press(ARROWS.get(key) or SPELLED.get(key) or (key.title() if key[1:] else key))
    if not shows(page, expression, value):
        return f"{action} ({key}): {page.evaluate(expression)!r}, not {value!r}"
    type_words(page, UNDONE.get(action, ""))
    if action in ("explain", "copy", "write", "palette", "help"):
        page.keyboard.press("Escape")
        assert shows(page, "document.querySelector('dialog') === null", True)
    return None


def test_every_listed_key_does_what_it_says(open_page, walked):
    tried = set()
    for path in walked.values():
        watched, (node,) = open_page(path), read_page(path).of_kind("walk")
        last = len(node["scenes"][0]["queries"]["names"]) - 1
        new = [action for action in node["keys"] if action["name"] not in tried]
        problems = [
            try_key(watched.page, action["name"], key, last)
            for action in new
            for key in action["keys"]
        ]
        assert not any(problems), "\n".join(filter(None, problems))
        assert watched.messages == []
        tried |= {action["name"] for action in node["keys"]}
    assert tried == {action.name for action in (*ACTIONS, *ON_PAGES) if action.page} == set(EFFECTS)


def test_a_page_lists_no_key_that_does_nothing_there(walked):
    names = {
        name: {key["name"] for key in read_page(path).of_kind("walk")[0]["keys"]}
        for name, path in walked.items()
    }
    assert names["texts"] ^ names["sides"] == {
        *("next_text", "previous_text", "mask", "previous_mask", "predictions")
    }


def test_the_help_has_a_line_for_each_thing_that_one_wants_to_do(open_page, walked):
    """Every key is in one line of the help, those of one direction and of the other in the same."""
    for path in walked.values():
        page, (node,) = open_page(path).page, read_page(path).of_kind("walk")
        page.keyboard.press("?")
        own = "dialog section:not([aria-label=Copy], [aria-label=Save])"
        spelled = page.locator(f"{own} kbd").all_text_contents()
        assert {"[ ]", "← ↓ ↑ → or h j k l"} <= set(spelled)
        keys = {spell_key(key) for action in node["keys"] for key in action["keys"]}
        assert keys == set(" ".join(spelled).split()) - {"or"}
        assert page.locator(f"{own} h3").all_text_contents()[0] == "Find a head"


def test_the_help_says_which_keys_copy(open_page, walked):
    """A key of the dialogs copy and save has another meaning outside of them."""
    page = open_page(walked["texts"], PLACE).page
    page.keyboard.press("?")
    copies, saves = (
        page.locator(f"dialog section[aria-label={group}] kbd").all_text_contents()
        for group in ("Copy", "Save")
    )
    page.keyboard.press("Escape")
    assert len(copies) == 6
    assert saves == ["w then f", "w then m", "w then n", "w then p"]
    for count, spelled in enumerate(copies, 1):
        first, then, second = spelled.split()
        assert then == "then"
        page.keyboard.press(first)
        assert shows(page, DIALOG, "copy")
        assert second in page.locator("dialog kbd").all_text_contents()
        page.keyboard.press(second)
        assert shows(page, "window.copied.length", count)
    assert page.evaluate("new Set(window.copied).size") == 6


def test_tab_alone_reaches_every_panel(open_page, walked):
    page = open_page(walked["texts"]).page
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.id || document.activeElement.textContent")
        )
    assert {
        "panel-heads",
        "panel-matrix",
        "panel-text",
        "copy",
        "save",
        "keys",
        "weights",
        "lines",
    } <= reached


def test_commands_are_found_by_typing(open_page, walked):
    page = open_page(walked["texts"], PLACE).page
    page.keyboard.press(":")
    page.keyboard.type("show the roles")
    page.keyboard.press("Enter")
    assert shows(page, SHOWS, "roles")
    page.keyboard.press("y")
    assert shows(page, DIALOG, "copy")
    page.keyboard.press("t")
    assert shows(
        page, "document.querySelector('.said').textContent", "copied: the command of this matrix"
    )
    assert page.evaluate("window.copied.at(-1)").startswith("attnscope run")


def test_the_help_explains_roles_and_the_numbers_that_the_page_has_and_no_others(tmp_path):
    path = tmp_path / "page.html"
    assert main(["run", "The bank by the river", "-o", str(path), "--quiet"]) == 0
    (walk,) = read_page(path).of_kind("walk")
    assert {"entropy, bits", "query", "sinks"} <= walk["terms"].keys()
    shown = {number["name"] for scene in walk["scenes"] for number in scene["numbers"]}
    assert "max_score" in shown or "largest score" not in walk["terms"]
    # of five tokens, all are near
    assert not [term for term in walk["terms"] if "within" in term or "_" in term]
    assert main(["heads", "--draws", "2", "-o", str(path), "--quiet", "--force"]) == 0
    (walk,) = read_page(path).of_kind("walk")
    roles = walk["scenes"][0]["roles"]
    assert roles["names"]
    meanings = dict(zip(roles["names"], roles["meanings"], strict=True))
    assert meanings.items() <= walk["terms"].items()
