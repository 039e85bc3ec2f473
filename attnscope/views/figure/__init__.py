"""Draw findings as a vector figure: the parts of their presentation on a light background, in standard fonts.

Matrices are pictures with labels and a scale. Text stays text, so that it can be searched, copied and edited. No
external resource is loaded.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from attnscope.base.errors import FIGURES, AttnscopeError
from attnscope.studies.present import Findings, present
from attnscope.views.figure.canvas import MARGIN, Canvas
from attnscope.views.figure.lowering import put_part
from attnscope.views.spans import ours

if TYPE_CHECKING:
    from attnscope.studies.heads.screen import Listing

_ZOOM = 3  # pixels of a .png per unit of the figure: 288 dpi if a unit is a CSS pixel
# What Helvetica, Arial and Liberation Sans hold: Latin, Greek, Cyrillic, and common punctuation, arrows and symbols
_STANDARD = (
    "\\x00-\u017f\u0386-\u03ce\u0400-\u045f\u2010-\u2015\u2017-\u201e\u2020-\u2022\u2026\u2039\u203a\u20ac\u2122"
    "\u2190-\u2193\u2212\u221a\u221e\u2248\u2260\u2264\u2265\u2500\u2502\u25b2\u25bc"
)
_LARGE_FONT = "DejaVu Sans"  # holds many others that tokens have, and what marks their blanks, also in bold
_INSTEAD = {"␣": "_", "◌": ""}  # where no font holds them
_IN_NO_FONT = "\U0010fffe"
_MOST_PIXELS = 1 << 28  # of a .png, which takes 4 bytes for each while it is drawn


def as_svg(findings: Findings, *, precision: int, listing: "Listing | None" = None, data_only: bool = False) -> str:
    """Draw findings as an SVG.

    Args:
        findings: What to show.
        precision: Digits after the point.
        listing: Of a survey of heads: which of them are listed.
        data_only: See present.
    """
    canvas = _drawn(findings, precision, listing, data_only)
    return canvas.svg(_font(canvas))


def _drawn(findings: Findings, precision: int, listing: "Listing | None", data_only: bool) -> Canvas:
    canvas = Canvas()
    parts = present(findings, format="heat", precision=precision, options=False, listing=listing, data_only=data_only)
    for part in parts:
        put_part(canvas, part)
    return canvas


def _unusual(canvas: Canvas) -> set[str]:
    """Return the letters of a page that the standard fonts lack: those of tokens, since ours are in all fonts."""
    return set(re.findall(f"[^{_STANDARD}]", canvas.svg()))


def _font(canvas: Canvas) -> str:
    """Return the font of all letters of a page, the same in an .svg and a .png; empty for the standard ones."""
    return _LARGE_FONT if _unusual(canvas) else ""


def as_png(findings: Findings, *, precision: int, listing: "Listing | None" = None, data_only: bool = False) -> bytes:
    """Draw findings as a PNG; see as_svg.

    Raises:
        AttnscopeError: The library that renders it is not installed, the system has no font, or the picture is too
            large.
    """
    FIGURES.require(".png")
    from resvg_py import svg_to_bytes

    if _letter("M", svg_to_bytes) == _letter("", svg_to_bytes):
        hint = "install a font such as DejaVu Sans, or write .svg"
        raise AttnscopeError(".png needs a font, and this system has none", hint=hint)
    canvas = _drawn(findings, precision, listing, data_only)
    width, height = (int(_ZOOM * (edge + MARGIN)) for edge in (canvas.right, canvas.y))
    if width * height > _MOST_PIXELS:
        found = f"the .png would have {width:,} × {height:,} pixels, of which at most {_MOST_PIXELS:,} can be drawn"
        raise AttnscopeError(found, hint="write .svg, or show fewer texts, heads or rows")
    return bytes(svg_to_bytes(svg_string=_drawable(canvas, svg_to_bytes), zoom=_ZOOM))


def _drawable(canvas: Canvas, render: Callable[..., bytes]) -> str:
    """Return a page as an SVG whose letters resvg finds in one font.

    A browser takes a letter that a font lacks from another font. resvg takes the whole line from the first font that
    holds that letter, whatever it looks like: with serifs, and not bold. One font for the page avoids this.

    Args:
        canvas: The page.
        render: Returns an SVG as PNG.
    """
    unusual = _unusual(canvas)
    svg, nothing = canvas.svg(_font(canvas)), _letter(_IN_NO_FONT, render) if unusual else b""
    for letter, instead in _INSTEAD.items():
        if letter in unusual and _letter(letter, render) == nothing:
            svg = svg.replace(letter, instead)
    return svg


def _letter(letter: str, render: Callable[..., bytes]) -> bytes:
    """Return a picture of one letter, or of what stands for it where no font holds it."""
    canvas = Canvas()
    canvas.text(MARGIN, 2 * MARGIN, ours(letter))
    return bytes(render(svg_string=canvas.svg(_LARGE_FONT)))
