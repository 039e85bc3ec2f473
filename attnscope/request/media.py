"""What a text has besides its characters: pictures and sounds, as a user names them and as a model takes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from attnscope.findings.images import ImageGrid
from attnscope.findings.sound import Sound
from attnscope.findings.tokens import Token

MediaKind = Literal["image", "audio"]  # also the name of the option that gives it


class MediaFile(msgspec.Struct, frozen=True):
    """A picture or sound that belongs to a text."""

    kind: MediaKind
    name: str  # its file, or `image 0` and so on for a value in memory
    value: Any  # the path, or the value in memory
    start: float = 0.0  # second of a sound at which the window to read starts


@dataclass(frozen=True)
class Speech:
    """What aligns a text with the sound that it was written down from."""

    prompt: int  # how many tokens the decoder starts with, before those that it wrote
    end: int  # id of the token that ends the text, which is not among the tokens
    # layer and head of those that align; empty if the checkpoint lists none
    heads: tuple[tuple[int, int], ...]
    median_width: int  # frames of the median that smooths their weights


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
    prompt: str | None = None  # of a text with pictures, the text as it was given; None for others
    sound: Sound | None = None  # the sound whose frames are tokens, or keys; None for none
    # the tokens of the keys in cross-attention; None in self-attention
    context: tuple[Token, ...] | None = None
    # further keys (in self-attention, further tokens) that the model has behind these, for the padding of its features
    padding: int = 0
    tokens_are_frames: bool = False  # of that sound
    # of a text that the model reads across to the sound; None for others
    speech: Speech | None = None
    # second at which the next window of the sound starts; None for the last window
    next_start: float | None = None
