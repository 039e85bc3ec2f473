"""Spell text for a screen or a page: control characters escaped, ASCII if the encoding asks for it."""

from unicodedata import category

from attnscope.base.system.escape import escape_control
from attnscope.views.spans import TOKEN_MARKS, Span

# Replacements for terminals with ASCII alone, each as wide as what it replaces.
ASCII = str.maketrans("·×÷…←→↓▾▴▸–−‖│α░▒▓█▏▎▍▌▋▊▉▕▐", ".x/~<>vv^>--||a,:*#-=====#-=")
_LONGER = str.maketrans({"√": "sqrt ", "ε": "eps", "²": "^2", "±": "+-"})


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
    return text.encode("ascii", "backslashreplace").decode() if ascii else text


def spell(span: Span, *, ascii: bool) -> str:
    """Spell a span by its origin: untrusted text is escaped, and blanks of tokens are visible."""
    if span.origin in TOKEN_MARKS:
        return TOKEN_MARKS[span.origin] + spell_token(span.text, ascii=ascii)
    if span.origin == "untrusted":
        return safe_text(span.text, ascii=ascii)
    if span.origin == "note":
        return safe_text(span.text.translate(ASCII).translate(_LONGER) if ascii else span.text, ascii=ascii)
    return span.text.translate(_LONGER) if ascii else span.text
