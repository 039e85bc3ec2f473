"""Texts of parts. They keep their origin, by which a screen or a page escapes what is untrusted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal
from unicodedata import category

from attnscope.base.system.escape import escape_control
from attnscope.findings.hints import hint_of
from attnscope.findings.tokens import Token, spell_piece
from attnscope.views.scales import WEIGHTS, LogScale, Scale

Look = Literal["", "caption", "dim", "bold", "title", "remark", "warning", "alarm", "good", "bad"]
Origin = Literal["ours", "note", "untrusted", "token", "unknown token", "new token"]
# Mark of a token that the tokenizer does not know.
UNKNOWN = "?"
# Mark of a token that the model generated.
NEW = "+"
# Replacements for terminals with ASCII alone, each as wide as what it replaces.
ASCII = str.maketrans("·×÷…←→↓▾▴▸–−‖│α░▒▓█▏▎▍▌▋▊▉▕▐", ".x/~<>vv^>--||a,:*#-=====#-=")
_LONGER = str.maketrans(
    {"√": "sqrt ", "²": "^2", "¹": "1", "⁻": "^-", "ⁱ": "^i", "ᵀ": "^T", "₂": "2", "½": "1/2", "±": "+-",
     "∞": "inf", "⊙": "(*)", "′": "'", "ε": "eps", "λ": "lambda", "Σ": "sum", "β": "beta", "Δ": "delta",
     "Γ": "gamma"}
)  # fmt: skip
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
    # place from 0 to 1 on a scale, whose colour a view with colours gives it; None for no colour
    shade: float | None = None
    scale: Scale | LogScale = WEIGHTS  # that of `shade`
    hint: str = ""  # the end of its text, if that tells what to type: a figure leaves it out


# Ties words that a view does not part at a line's end if it can avoid that; it is shown as a blank.
TIE = "\u00a0"
# The blank before a head and its number in a list of them, as in `(0.70); then L3H8 0.47, L4H1 0.45`: a line breaks
# there, not between the two.
BEFORE_A_HEAD = r"(?<=[;,]) (?=(?:then )?L\d+H\d+ )"
Spans = tuple[Span, ...]


def ours(text: str, look: Look = "") -> Spans:
    """Return a trusted text."""
    return (Span(text, look),)


def untrusted(text: str, look: Look = "") -> Spans:
    """Return text of a user, a file or a model."""
    return (Span(text, look, "untrusted"),)


def note(text: str, look: Look = "") -> Spans:
    """Return a note that may quote untrusted text."""
    return (Span(text, look, "note", hint=hint_of(text)),)


def headed(title: str, caption: str, look: Look = "bold") -> Spans:
    """Return a title with a caption behind it."""
    return Span(title, look), Span(caption, "caption")


def without_hints(spans: Spans) -> Spans:
    """Leave out what a reader of a screen can type: that of a figure or page has no command line."""
    told = (replace(span, text=span.text.removesuffix(span.hint)) for span in spans)
    return tuple(span for span in told if span.text or not span.hint)


def token_span(tokens: Sequence[Token], position: int, look: Look = "") -> Span:
    """Return the name of a token; see spell_piece."""
    token = tokens[position]
    origin: Origin
    if token.made:
        origin = "new token"
    elif token.unknown:
        origin = "unknown token"
    else:
        origin = "token"
    return Span(spell_piece(tokens, position), look, origin)


def spell_token(text: str, *, ascii: bool) -> str:
    """Spell a token for a screen: no control characters, no invisible edges, never empty."""
    blank = "_" if ascii else "␣"
    inner = text.strip(" ")
    if not inner:
        return blank * len(text) or '""'
    left = len(text) - len(text.lstrip(" "))
    right = len(text) - len(text.rstrip(" "))
    # An accent without a letter would land on its neighbour.
    bare = category(inner[0]) in ("Mn", "Me", "Mc")
    carried = "◌" if bare and not ascii else ""
    # Other blanks look just like U+0020, and are spelled by their number.
    other = {c: f"\\u{ord(c):04x}" for c in inner if c != " " and category(c) == "Zs"}
    spelled = "".join(other.get(c) or safe_text(c, ascii=ascii) for c in inner)
    return blank * left + carried + spelled + blank * right


def safe_text(text: str, *, ascii: bool) -> str:
    """Escape control characters of untrusted text, in characters that the page or console has."""
    text = escape_control(text)
    if ascii:
        return text.encode("ascii", "backslashreplace").decode()
    return text


def spell(span: Span, *, ascii: bool) -> str:
    """Spell a span by its origin: untrusted text is escaped, and blanks of tokens are visible."""
    if span.origin in TOKEN_MARKS:
        return TOKEN_MARKS[span.origin] + spell_token(span.text, ascii=ascii)
    if span.origin == "untrusted":
        return safe_text(span.text, ascii=ascii)
    if span.origin == "note":
        return safe_text(
            span.text.translate(ASCII).translate(_LONGER) if ascii else span.text, ascii=ascii
        )
    if ascii:
        return span.text.translate(_LONGER)
    return span.text
