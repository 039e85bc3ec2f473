"""Escape control characters in untrusted text."""

import shlex
import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SHORT = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape_control(text: str) -> str:
    """Escape every character that a terminal would obey or hide, and the backslash.

    The mapping is injective: two different texts never look the same. Escaped are the Unicode categories
    Cc, Cf, Cs, Co, Cn, Zl and Zp (control, format, surrogate, private, unassigned, line and paragraph separators).

    Returns:
        The text with `\\n`, `\\x1b`, `\\u202e` … in place of those characters.
    """
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return "".join(
        _escape(c) if c == "\\" or unicodedata.category(c) in _HIDDEN else c for c in text
    )


def quote_for_shell(text: str) -> str:
    """Quote a text as one word of a shell, without characters that a terminal would obey or hide.

    A text that has any becomes `$'…\\x1b…'`, which bash, zsh and ksh read; others are quoted as for every shell.
    """
    if not any(unicodedata.category(c) in _HIDDEN for c in text):
        return shlex.quote(text)
    return f"$'{''.join(map(_in_shell, text))}'"


def as_unicode(name: str) -> str:
    """Spell a file name as text that JSON can hold: bytes that are not UTF-8 become `\\xff`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _in_shell(c: str) -> str:
    if c in "\\'":
        return f"\\{c}"
    if unicodedata.category(c) not in _HIDDEN:
        return c
    # to shells, \x80 is a byte, not a character
    if 0x80 <= ord(c) < 0x100:
        return f"\\u{ord(c):04x}"
    return _escape(c)


def _escape(c: str) -> str:
    if c in _SHORT:
        return _SHORT[c]
    code = ord(c)
    if code < 0x100:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"
