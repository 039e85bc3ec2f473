"""Texts of parts. They keep their origin, so that each view can escape what is untrusted in its own way."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from attnscope.findings.tokens import Token, spell_piece

Look = Literal["", "dim", "bold", "title", "remark", "warning", "alarm", "good", "bad"]
Origin = Literal["ours", "note", "untrusted", "token", "unknown token", "new token"]
# Mark of a token that the tokenizer does not know.
UNKNOWN = "?"
# Mark of a token that the model generated.
NEW = "+"
TOKEN_MARKS: dict[str, str] = {"token": "", "unknown token": UNKNOWN, "new token": NEW}


@dataclass(frozen=True, slots=True)
class Span:
    """Some text that looks the same."""

    text: str
    look: Look = ""  # its meaning; a view chooses the style
    # `ours` (trusted); a `note` that may quote untrusted text; `untrusted`; or the text of a `token`, which is
    # untrusted and whose blanks have to be visible; UNKNOWN marks one that the tokenizer does not know, NEW one that
    # the model generated
    origin: Origin = "ours"
    colour: str = ""  # background colour of a role, as `#rrggbb`
    # how strongly its background is shaded, from 0 to 1, by a view with colours; None for not at all
    shade: float | None = None


Spans = tuple[Span, ...]


def ours(text: str, look: Look = "") -> Spans:
    """Return a trusted text."""
    return (Span(text, look),)


def untrusted(text: str, look: Look = "") -> Spans:
    """Return text of a user, a file or a model."""
    return (Span(text, look, "untrusted"),)


def note(text: str, look: Look = "") -> Spans:
    """Return a note that may quote untrusted text."""
    return (Span(text, look, "note"),)


def token_span(tokens: Sequence[Token], position: int, look: Look = "") -> Span:
    """Return the name of a token; see spell_piece."""
    token = tokens[position]
    origin: Origin = "new token" if token.made else "unknown token" if token.unknown else "token"
    return Span(spell_piece(tokens, position), look, origin)
