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
_MOST_PIXELS = 1 << 28  # of a .png, which takes 4 bytes for each while it is drawn


def as_svg(findings: Findings, *, precision: int, listing: "Listing | None" = None) -> str:
    """Draw findings as an SVG.

    Args:
        findings: What to show.
        precision: Digits after the point.
        listing: Of a survey of heads: which of them are listed.
    """
    return _drawn(findings, precision, listing).svg()


def _drawn(findings: Findings, precision: int, listing: "Listing | None") -> Canvas:
    canvas = Canvas()
    for part in present(findings, format="heat", precision=precision, options=False, listing=listing):
        put_part(canvas, part)
    return canvas


def as_png(findings: Findings, *, precision: int, listing: "Listing | None" = None) -> bytes:
    """Draw findings as a PNG; see as_svg.

    Raises:
        AttnscopeError: The library that renders it is not installed, the system has no font, or the picture is too
            large.
    """
    FIGURES.require(".png")
    from resvg_py import svg_to_bytes

    blank, letter = Canvas(), Canvas()
    letter.text(MARGIN, 2 * MARGIN, ours("M"))
    if svg_to_bytes(svg_string=letter.svg()) == svg_to_bytes(svg_string=blank.svg()):
        hint = "install a font such as DejaVu Sans, or write .svg"
        raise AttnscopeError(".png needs a font, and this system has none", hint=hint)
    canvas = _drawn(findings, precision, listing)
    width, height = (int(_ZOOM * (edge + MARGIN)) for edge in (canvas.right, canvas.y))
    if width * height > _MOST_PIXELS:
        found = f"the .png would have {width:,} × {height:,} pixels, of which at most {_MOST_PIXELS:,} can be drawn"
        raise AttnscopeError(found, hint="write .svg, or show fewer texts, heads or rows")
    return bytes(svg_to_bytes(svg_string=canvas.svg(), zoom=_ZOOM))
