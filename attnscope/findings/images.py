"""Pictures as grids of tokens, as plain data, and the shares of a row of weights that fall on them.

A token of a picture is a place. Its name, which is both its piece and its text, says where it is: `image:3,4` is in row
3 and column 4 of the grid, `image[1]:3,4` in that of the second of several pictures, and `thumbnail:3,4` in that of a
small copy of the whole picture, which some models see beside its tiles. `cls`, `register:0` and `distillation` are
tokens that a vision model adds to its patches.
"""

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from attnscope.base.png import decode_png
from attnscope.base.png import encode_png as encode_png
from attnscope.findings.arrays import Array, Places, along
from attnscope.findings.tokens import Token

CLS = "cls"
IN_MEMORY = re.compile(r"image [0-9]+")  # names of pictures that are no files
_REGISTER = re.compile(r"register:[0-9]+")


class ImageGrid(msgspec.Struct, frozen=True):
    """A picture, or a thumbnail of it, as the grid of its tokens.

    Tiles of a picture are one grid: their patches are in the rows and columns that they have in the whole picture.

    Attributes:
        name: File of the picture; `image 0` and so on for one that was in memory.
        image: Number of the picture in its text, from 0.
        of: How many pictures the text has.
        tokens: Position of the token of every patch; −1 for a patch without a token.
        png: The picture as the model saw it, after resizing and cropping, as a PNG: 8-bit RGB, every row with the
            filter `up`. All patches of the grid have the same size in it.
        thumbnail: Whether it is a small copy of the whole picture, beside the grid of its tiles.
        frame: Number of the frame of a video, from 0; null for a picture.
    """

    name: str
    image: int
    of: int
    tokens: Annotated[Places, along("patch row", "patch column", positions="token", or_none=True)]
    png: bytes
    thumbnail: bool = False
    frame: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        rows, columns = self.tokens.shape
        return rows, columns

    @property
    def pixels(self) -> Array:
        """The picture, (height, width, 3), uint8."""
        return decode_png(self.png)

    @property
    def prefix(self) -> str:
        """What the names of its tokens start with, such as `image` or `image[1]`."""
        if self.thumbnail:
            name = "thumbnail"
        elif self.frame is None:
            name = "image"
        else:
            name = f"frame[{self.frame}]"
        if self.of > 1:
            return f"{name}[{self.image}]"
        return name

    def patch_name(self, row: int, column: int) -> str:
        """Return the name of the token of a patch."""
        return f"{self.prefix}:{row},{column}"


def row_shares(
    weights: Array, grids: Sequence[ImageGrid], tokens: Sequence[Token]
) -> dict[str, Array]:
    """Return the shares of rows of weights on each kind of token; kinds without a token are left out.

    The kinds, in order: each grid by its prefix, such as `image`; `cls`; `registers`; `special` for all other special
    tokens; `text` for the rest. Every token is of one kind, so that the shares of a row sum to what its weights do,
    which is 1 unless the model has a sink that is no token. Nothing is rescaled: the map on a picture is
    `weights[..., grid.tokens]` (0 where that is −1), whose sum is the share of its grid.

    Args:
        weights: Weights on all of the tokens, (…, tokens).
        grids: The pictures of the text.
        tokens: Its tokens.
    """
    return {
        kind: weights[..., positions].sum(-1) for kind, positions in kinds_of(grids, tokens).items()
    }


def kinds_of(grids: Sequence[ImageGrid], tokens: Sequence[Token]) -> dict[str, list[int]]:
    """Return the positions of the tokens of each kind, in the order of `row_shares`; kinds without any are left out."""
    kinds: dict[str, list[int]] = {
        grid.prefix: grid.tokens[grid.tokens >= 0].tolist() for grid in grids
    }
    on_grid = {position for positions in kinds.values() for position in positions}
    kinds |= {CLS: [], "registers": [], "special": [], "text": []}
    for position, token in enumerate(tokens):
        if position not in on_grid:
            kinds[_kind(token)].append(position)
    return {kind: positions for kind, positions in kinds.items() if positions}


def _kind(token: Token) -> str:
    if token.piece == CLS:
        return CLS
    if _REGISTER.fullmatch(token.piece):
        return "registers"
    return "special" if token.special else "text"


_PATCH = re.compile(r"((?:image|thumbnail|frame\[[0-9]+\])(?:\[[0-9]+\])?):([0-9]+),([0-9]+)")
_BOX = re.compile(rf"{_PATCH.pattern}(?:-([0-9]+),([0-9]+))?")


def find_places(name: str, tokens: Sequence[Token]) -> list[int]:
    """Return the positions of tokens that a name means as places; none if it means none.

    `image:3,4` is a patch and `image:3,4-6,8` a box, whose rows and columns are included; `image` is every patch of
    every picture, `image[1]` of the second one, whose thumbnail is `thumbnail[1]`; `cls`, `register` (all of them) and
    `register:0` are tokens of a vision model. The first of several pictures is `image[0]`, which may also be said of
    the only one.
    """
    if name == CLS or _REGISTER.fullmatch(name):
        return [n for n, token in enumerate(tokens) if token.piece == name and token.start is None]
    if name == "register":
        return [
            n
            for n, token in enumerate(tokens)
            if _REGISTER.fullmatch(token.piece) and token.start is None
        ]
    box = _BOX.fullmatch(name)
    prefix = name if box is None else box[1]
    corners = None
    if box is not None:
        top = int(box[2])
        left = int(box[3])
        corners = top, left, int(box[4] or top), int(box[5] or left)
    positions = []
    for position, token in enumerate(tokens):
        patch = _patch(token)
        if patch is None or not _names(prefix, patch[1]):
            continue
        row = int(patch[2])
        column = int(patch[3])
        if corners is None or (
            corners[0] <= row <= corners[2] and corners[1] <= column <= corners[3]
        ):
            positions.append(position)
    return positions


def picture_of(token: Token) -> str | None:
    """Return the prefix of the picture that a token is a patch of, such as `image`; None for any other token."""
    patch = _patch(token)
    return None if patch is None else patch[1]


def join_patches(tokens: Sequence[Token], groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Join neighbouring groups of positions that are patches of one picture."""
    joined: list[list[int]] = []
    last = None
    for group in groups:
        prefix = picture_of(tokens[group[0]])
        if prefix is not None and prefix == last:
            joined[-1].extend(group)
        else:
            joined.append([*group])
        last = prefix
    return joined


def name_patches(tokens: Sequence[Token], positions: Sequence[int]) -> str | None:
    """Name several patches of a picture as one thing, `image 4×6` if they are all of it; None for anything else."""
    prefix = picture_of(tokens[positions[0]])
    if prefix is None or len(positions) < 2:
        return None
    places = [
        (int(patch[2]), int(patch[3]))
        for token in tokens
        if (patch := _patch(token)) is not None and patch[1] == prefix
    ]
    if len(positions) < len(places):
        return f"{prefix}, {len(positions)} patches"
    rows, columns = (max(numbers) + 1 for numbers in zip(*places, strict=True))
    return f"{prefix} {rows}×{columns}"


def spell_prompt(text: str, tokens: Sequence[Token]) -> str | None:
    """Spell the words of a text with pictures, each of these as one thing; None for a text without pictures.

    Special tokens, of which templates consist, are left out: `⟨image 4×6⟩ what is on the left ?`.
    """
    parts: list[str] = []
    is_pictured = False
    words: tuple[int, int] | None = None
    for group in join_patches(tokens, [[position] for position in range(len(tokens))]):
        token = tokens[group[0]]
        start = token.start
        end = token.end
        if start is not None and end is not None and not token.special:
            words = (start, end) if words is None else (words[0], end)
            continue
        parts += [] if words is None else [text[slice(*words)]]
        words = None
        if (prefix := picture_of(token)) is not None:
            is_pictured = True
            parts.append(f"⟨{name_patches(tokens, group) or prefix}⟩")
    parts += [] if words is None else [text[slice(*words)]]
    if is_pictured:
        return " ".join(filter(None, map(str.strip, parts)))
    return None


def is_register(token: Token) -> bool:
    """Tell whether a token is a register of a vision model."""
    return token.start is None and _REGISTER.fullmatch(token.piece) is not None


def _patch(token: Token) -> "re.Match[str] | None":
    # Only names of patches have a colon and no characters of the text.
    if token.start is None and ":" in token.piece:
        return _PATCH.fullmatch(token.piece)
    return None


def _names(prefix: str, of_token: str) -> bool:
    """Tell whether a prefix that a user wrote means the prefix of a token's name."""
    return prefix == of_token or of_token.startswith(f"{prefix}[") or prefix == f"{of_token}[0]"


def map_of(weights: Array, grid: ImageGrid) -> Array:
    """Return rows of weights, (…, tokens), as maps on a picture, (…, rows, columns); 0 for a patch without a token."""
    of_patches: Array = np.where(grid.tokens < 0, 0, weights[..., grid.tokens])
    return of_patches
