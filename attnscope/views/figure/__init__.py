"""Draw parts as a vector figure, on a light background and in standard fonts.

Matrices are pictures with labels and a scale. Text stays text, so that it can be searched, copied and edited. No
external resource is loaded.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from attnscope.base.errors import FIGURES, PDF, AttnscopeError, UsageError, arg
from attnscope.views import parts
from attnscope.views.figure.canvas import MARGIN, Canvas
from attnscope.views.figure.matrices import draw_map, draw_matrices, draw_strips
from attnscope.views.figure.pictures import draw_pictures
from attnscope.views.figure.scatter import draw_scatter
from attnscope.views.figure.sound import draw_sound
from attnscope.views.figure.tables import draw_bars, draw_facts, draw_table, draw_text
from attnscope.views.settings import FigureParts, FigureSettings
from attnscope.views.spans import ours

# Pixels of a .png per unit of the figure: 288 dpi if a unit is a CSS pixel.
_ZOOM = 3
# What Helvetica, Arial and Liberation Sans hold: Latin, Greek, Cyrillic, and common punctuation, arrows and symbols
_STANDARD = (
    "\\x00-\u017f\u0386-\u03ce\u0400-\u045f\u2010-\u2015\u2017-\u201e\u2020-\u2022\u2026\u2039\u203a\u20ac\u2122"
    "\u2190-\u2193\u2212\u221a\u221e\u2248\u2260\u2264\u2265\u2500\u2502\u25b2\u25bc"
)
# It holds many other characters that tokens have, and those that mark a token's blanks, also in bold.
_LARGE_FONTS = {"sans": "DejaVu Sans", "serif": "DejaVu Serif"}
# Replacements of characters that no font holds.
_INSTEAD = {"␣": "_", "◌": ""}
_IN_NO_FONT = "\U0010fffe"
# Largest number of pixels of a .png, which takes 4 bytes for each while it is drawn.
_MOST_PIXELS = 1 << 28


def as_svg(parts: Iterable[parts.ViewPart], settings: FigureSettings | None = None) -> str:
    """Draw parts as an SVG."""
    return _svg(_page(parts, settings))


def _page(view_parts: Iterable[parts.ViewPart], settings: FigureSettings | None) -> Canvas:
    canvas = Canvas(settings or FigureSettings())
    only = canvas.settings.only
    return _draw(canvas, view_parts if only is None else _kept(view_parts, only))


def _kept(view_parts: Iterable[parts.ViewPart], only: FigureParts) -> Iterator[parts.ViewPart]:
    """Keep matrices and maps, also those on pictures, or the tables with bars; of a row step by step, its first strips."""
    count = 0
    strips: list[parts.Strips] = []
    for part in view_parts:
        forms = [part] if not isinstance(part, parts.FirstFitting) else part.forms[0]
        for form in forms:
            is_kept = isinstance(form, parts.WeightMap | parts.Pictures) or (
                isinstance(form, parts.Matrices) and not form.example
            )
            if only == "bars":
                is_kept = isinstance(form, parts.Table) and form.bars is not None
            elif isinstance(form, parts.Strips):
                strips.append(form)
            if is_kept:
                count += 1
                yield form
    if strips and not count:
        yield strips[0]
        return
    if not count:
        lack = "is no matrix or map" if only == "map" else "are no bars"
        raise UsageError(f"there {lack}", where=arg("only", only), hint="leave it out")


def _draw(canvas: Canvas, view_parts: Iterable[parts.ViewPart]) -> Canvas:
    for part in view_parts:
        DRAWN[type(part)](canvas, part)
    return canvas


DRAWN: dict[type, Callable[[Canvas, Any], object]] = {
    parts.Text: draw_text,
    parts.Facts: draw_facts,
    parts.Table: draw_table,
    parts.Matrices: draw_matrices,
    parts.WeightMap: draw_map,
    parts.SoundMap: draw_sound,
    parts.Bars: draw_bars,
    parts.Strips: draw_strips,
    parts.Pictures: draw_pictures,
    parts.Scatter: draw_scatter,
    # A figure has no end of the screen, so the first form fits.
    parts.FirstFitting: lambda canvas, findings: _draw(canvas, findings.forms[0]),
}


def _unusual(canvas: Canvas) -> set[str]:
    """Return the letters of a page that the standard fonts lack; only tokens have such letters."""
    return set(re.findall(f"[^{_STANDARD}]", canvas.svg()))


def _svg(canvas: Canvas) -> str:
    """Return a page with all letters in one font, the same in an .svg and a .png."""
    return canvas.svg(_LARGE_FONTS[canvas.settings.font] if _unusual(canvas) else "")


def as_png(parts: Iterable[parts.ViewPart], settings: FigureSettings | None = None) -> bytes:
    """Draw parts as a PNG."""
    FIGURES.require(".png")
    from resvg_py import svg_to_bytes

    if _letter("M", svg_to_bytes) == _letter("", svg_to_bytes):
        hint = "install a font such as DejaVu Sans, or write .svg"
        raise AttnscopeError(".png needs a font, and this system has none", hint=hint)
    canvas = _page(parts, settings)
    width, height = (int(_ZOOM * edge) for edge in canvas.size())
    if width * height > _MOST_PIXELS:
        message = f"the .png would have {width:,} × {height:,} pixels, of which at most {_MOST_PIXELS:,} can be drawn"
        raise AttnscopeError(message, hint="write .svg, or show fewer texts, heads or rows")
    return bytes(svg_to_bytes(svg_string=_drawable(canvas, svg_to_bytes), zoom=_ZOOM))


def as_pdf(parts: Iterable[parts.ViewPart], settings: FigureSettings | None = None) -> bytes:
    """Draw parts as a PDF of one page, as large as they are; text stays text."""
    PDF.require(".pdf")
    import typst

    page = '#set page(width: auto, height: auto, margin: 0pt)\n#image(bytes(sys.inputs.svg), format: "svg")'
    return bytes(
        typst.compile(
            page.encode(), format="pdf", sys_inputs={"svg": as_svg(parts, settings)}, timestamp=0
        )
    )


def _drawable(canvas: Canvas, render: Callable[..., bytes]) -> str:
    """Return a page as an SVG whose letters resvg finds in one font.

    A browser takes a letter that a font lacks from another font. resvg takes the whole line from the first font that
    holds that letter, whatever it looks like: with serifs, and not bold. One font for the page avoids this.
    """
    unusual = _unusual(canvas)
    svg = _svg(canvas)
    nothing = _letter(_IN_NO_FONT, render) if unusual else b""
    for letter, instead in _INSTEAD.items():
        if letter in unusual and _letter(letter, render) == nothing:
            svg = svg.replace(letter, instead)
    return svg


def _letter(letter: str, render: Callable[..., bytes]) -> bytes:
    """Return a picture of one letter, or of its placeholder if no font has it."""
    canvas = Canvas()
    canvas.text(MARGIN, 2 * MARGIN, ours(letter))
    return bytes(render(svg_string=canvas.svg(_LARGE_FONTS["sans"])))
