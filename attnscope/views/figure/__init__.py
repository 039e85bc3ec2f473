"""Draw findings as a vector figure: the parts of their presentation on a light background, in standard fonts.

Matrices are pictures with labels and a scale. Text stays text, so that it can be searched, copied and edited. No
external resource is loaded.
"""

from typing import TYPE_CHECKING

from attnscope.errors import FIGURES, AttnscopeError
from attnscope.views.figure.canvas import MARGIN, Canvas
from attnscope.views.figure.lowering import put_part
from attnscope.views.presentation import Findings, present
from attnscope.views.presentation.spans import ours

if TYPE_CHECKING:
    from attnscope.views.presentation.heads import Listing

_ZOOM = 3  # pixels of a .png per unit of the figure: 288 dpi if a unit is a CSS pixel


def as_svg(findings: Findings, *, precision: int, listing: "Listing | None" = None) -> str:
    """Draw findings as an SVG.

    Args:
        findings: What to show.
        precision: Digits after the point.
        listing: Of a survey of heads: which of them are listed.
    """
    canvas = Canvas()
    for part in present(findings, format="heat", precision=precision, options=False, listing=listing):
        put_part(canvas, part)
    return canvas.svg()


def as_png(findings: Findings, *, precision: int, listing: "Listing | None" = None) -> bytes:
    """Draw findings as a PNG; see as_svg.

    Raises:
        AttnscopeError: The library that renders it is not installed, or the system has no font.
    """
    FIGURES.require(".png")
    from resvg_py import svg_to_bytes

    blank, letter = Canvas(), Canvas()
    letter.text(MARGIN, 2 * MARGIN, ours("M"))
    if svg_to_bytes(svg_string=letter.svg()) == svg_to_bytes(svg_string=blank.svg()):
        hint = "install a font such as DejaVu Sans, or write .svg"
        raise AttnscopeError(".png needs a font, and this system has none", hint=hint)
    return bytes(svg_to_bytes(svg_string=as_svg(findings, precision=precision, listing=listing), zoom=_ZOOM))
