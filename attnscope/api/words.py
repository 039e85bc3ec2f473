"""Say in Python's words what errors say in the command line's: `layer` for `--layer`, and so on."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from attnscope.base.errors import AttnscopeError

# An option with what follows it, where that is a value: a number, a slice, a word, or what stands for one.
_OPTION = re.compile(
    r"'[^']*'|--format json|--([a-z]+(?:-[a-z]+)*)"
    r"(?:[ =](?:(-?\d+(?:\.\d+)?)\b|([A-Z]+|\"[^\"]+\")(?!\w)|"
    r"((?:auto|all|cpu|cuda|native|transformers|encoder|decoder|cross|float32|bfloat16|float16|projected"
    r"|scores|masked|weights|mean|head|layer|edge|own|causal|bidirectional|L\d+H\d+)(?:,\w+)*)(?![\w+]|:\w)))?"
)
_FLAGS = {"no-special": "special=False"} | {
    n: f"{n.replace('-', '_')}=True" for n in ("truncate", "force", "hash-weights", "trust-config")
}
_NAMES = {"stage": "stages", "file": "text", "with": "replacement"}


def in_python(said: str) -> str:
    """Rewrite a message of the command line for Python: arguments in place of options.

    Text in quotation marks is not changed.
    """
    said = re.sub(r"\bTEXT\b", "text", _OPTION.sub(_option, said))
    return re.sub(r"\b(with|of|use) run\b", r"\1 inspect", said)


def _option(match: re.Match[str]) -> str:
    name, number, stands_for, word = match.groups()
    if match[0] == "--format json":
        return ".save('report.json')"
    if name is None:  # quoted
        return match[0]
    if name in _FLAGS:
        return _FLAGS[name]
    keyword = _NAMES.get(name, name.replace("-", "_"))
    value = number or stands_for or (None if word is None else repr(tuple(word.split(",")) if "," in word else word))
    return keyword if value is None else f"{keyword}={value}"


@contextmanager
def python_words() -> Iterator[None]:
    """Rewrite the errors that are raised inside for Python; see in_python."""
    try:
        yield
    except AttnscopeError as error:
        error.found = in_python(error.found)
        error.hint = None if error.hint is None else in_python(error.hint)
        if error.where is not None and (error.where == "TEXT" or error.where.startswith("--")):
            error.where = in_python(error.where)
        error.args = (error.found,)
        raise
