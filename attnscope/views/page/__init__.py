"""Draw parts as one HTML page that works offline: script, style and data are in the file, and nothing is loaded.

The script is `page.js`, the style `page.css`; both are built from `web/` and committed. The page holds them and all data
as compressed base64 in elements that no browser executes, and `loader.js` unpacks them. Its policy names the hashes of
both scripts and of the style, and forbids everything else.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any
from zlib import compress

from attnscope.base.system.escape import as_unicode
from attnscope.views.page.command import PageCommand, lowered_command
from attnscope.views.page.container import Container
from attnscope.views.page.elements import element
from attnscope.views.page.fold import Fold, lowered_fold
from attnscope.views.page.rendering import DRAWN, render
from attnscope.views.page.scatter import lowered_scatter
from attnscope.views.page.walk import Walk, lowered_walk
from attnscope.views.palette import DARK, LIGHT
from attnscope.views.parts import Scatter
from attnscope.views.pictures import MIXING
from attnscope.views.scales import LARGEST_RATIO, SHAPES, TICKS

# Version of the data, of which a script reads only its own.
VERSION = 1
_NO_SCRIPT = "This page draws its data with a script, which this browser does not run."
_FOOTER = "made by attnscope; this page loads nothing and sends nothing"
DRAWN[Walk] = lowered_walk
DRAWN[Scatter] = lowered_scatter
DRAWN[PageCommand] = lowered_command
DRAWN[Fold] = lowered_fold
# Characters of base64 on a line, which editors and mail can hold.
_LINE = 16_384


def as_html(parts: Iterable[Any], title: str) -> Iterator[bytes]:
    """Yield a page, piece by piece."""
    container = Container()
    nodes = render(parts, container)
    palette = {
        "surfaces": {"light": asdict(LIGHT), "dark": asdict(DARK)},
        "shapes": list(SHAPES),
        "ticks": TICKS,
        "marks": "a tick has the colour of its number",
        "original": "the picture, as the model saw it",
        "patch": "of the row on one patch",
        "ratio": LARGEST_RATIO,
        "mixing": MIXING,
    }
    text, between, command = as_unicode(title).rpartition(" · ")
    # a text may be written from right to left, the name of the command behind it is not
    heading = element(
        "h1", element("bdi", text or command), *([between, command] if text else []), dir="ltr"
    )
    header = {
        "version": VERSION,
        "heading": heading,
        "footer": _FOOTER,
        "palette": palette,
        "nodes": nodes,
    }
    loader = asset("loader.js")
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(loader)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="generator" content="attnscope">\n'
        f"<title>{escape(as_unicode(title))}</title>\n</head>\n<body>\n"
        f'<div id="app"><noscript>{_NO_SCRIPT}</noscript></div>\n'
    )
    yield head.encode()
    yield from _block("style", _packed_asset("page.css"))
    yield from _block("script", _packed_asset("page.js"))
    yield from _block("data", container.packed(header))
    yield f"<script>{loader}</script>\n</body>\n</html>\n".encode()


def _block(name: str, content: bytes) -> Iterator[bytes]:
    """Yield an element that no browser executes, with compressed bytes."""
    text = b64encode(content)
    yield f'<script type="application/octet-stream" id="{name}">\n'.encode()
    for start in range(0, len(text), _LINE):
        yield text[start : start + _LINE] + b"\n"
    yield b"</script>\n"


@cache
def asset(name: str) -> str:
    """Return a built file of `web/`."""
    return files("attnscope.views.page").joinpath(name).read_text(encoding="utf-8")


@cache
def _packed_asset(name: str) -> bytes:
    return compress(asset(name).encode(), 9)


def policy(loader: str) -> str:
    """Return the Content-Security-Policy: both scripts and the style, pictures that they draw, and nothing else."""
    texts = (loader, asset("page.js"), asset("page.css"))
    hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in texts]
    return (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}' 'sha256-{hashes[1]}'; style-src 'sha256-{hashes[2]}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
