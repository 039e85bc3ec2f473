"""What a text has besides its characters: pictures and sounds, as a user names them and as a model takes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from attnscope.findings.images import ImageGrid
from attnscope.findings.tokens import Token

MediaKind = Literal["image", "audio"]  # also the name of the option that gives it


class MediaFile(msgspec.Struct, frozen=True):
    """A picture or sound that belongs to a text."""

    kind: MediaKind
    name: str  # its file, or `image 0` and so on for a value in memory
    value: Any  # the path, or the value in memory


@dataclass(frozen=True)
class MediaText:
    """A text with its media, as a checkpoint's own processor makes model inputs of it."""

    text: str  # the text that spans of tokens refer to
    tokens: tuple[Token, ...]  # every token that attention sees; those of media are places
    # what the model takes besides, or in place of, token ids: arrays by the name of the argument. The first axis is of
    # texts, or of what a text has several of; an array (1, tokens) has a value for each token
    inputs: Mapping[str, Any]
    images: tuple[ImageGrid, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
