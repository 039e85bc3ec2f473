"""The process that renders chat templates, which strangers wrote: in jinja2's sandbox, with limits on time and memory.

`python -m attnscope.checkpoints.chat.sandbox MEMORY` reads requests from standard input and answers each on standard
output, one line of JSON each.
A request has `template`, `variables`, `variants` (other values for some of the variables) and `seconds`.
The answer has `texts`, one for the variables and one for each variant (None if that one fails), `generated`, the
characters of the first text within `{% generation %}` blocks, `names`, the variables that the template reads, and
`dated`, if it writes the date.
On failure it has `error` and `kind`, for the first text.

The environment is that of transformers, since templates are written for it.
"""

import json
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from math import ceil
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, UndefinedError, ext, meta, nodes
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from attnscope.base.system.machine import limit_process

MOST_CHARACTERS = 16 << 20  # of a rendered text
_LONG = 1 << 30  # seconds of computing of all requests together
# private characters around the output of a generation block
_OPEN = "\uf8f0"
_CLOSE = "\uf8f1"


class Refused(TemplateError):
    """The template called raise_exception."""


class _TooLong(Exception):
    """The rendered text has too many characters."""


class GenerationBlocks(ext.Extension):
    """`{% generation %} … {% endgeneration %}`, around the assistant's texts."""

    tags = {"generation"}  # noqa: RUF012 — declared so by jinja2
    used = marking = False

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the node of a block."""
        self.used = True
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        if self.marking:
            return f"{_OPEN}{caller()}{_CLOSE}"
        return caller()


class _SafeNamespace(Namespace):
    """jinja2's namespace without private attributes."""

    def __init__(*args: Any, **values: Any) -> None:
        self, *arguments = args
        attributes = dict(*arguments, **values)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"access to attribute {name!r} of a namespace is unsafe.")


class _Dict:
    """`dict` as templates may use it: a function, and `fromkeys`."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class Environment(ImmutableSandboxedEnvironment):
    """The environment of chat templates; `dated` says whether one has asked for the date, and callers reset it."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, ext.loopcontrols]
        )
        self.dated = False
        self.filters["tojson"] = _to_json
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": self._now,
            "dict": _Dict(),
            "namespace": _SafeNamespace,
        }

    @property
    def blocks(self) -> GenerationBlocks:
        """The extension that marks generation blocks."""
        return self.extensions[GenerationBlocks.identifier]  # type: ignore[return-value]

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Stop a template that reads a forbidden attribute; jinja2 would go on until the value is used."""
        raise SecurityError(
            f"access to attribute {attribute!r} of {type(obj).__name__!r} is unsafe."
        )

    def _now(self, format: str) -> str:
        self.dated = True
        return datetime.now().strftime(format)


def _raise_exception(message: str) -> NoReturn:
    raise Refused(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@lru_cache(maxsize=4)
def _compiled(template: str) -> tuple[Environment, Template, frozenset[str]]:
    """Return a template with its environment, and the names that it takes from outside."""
    environment = Environment()
    names = meta.find_undeclared_variables(environment.parse(template))
    return (
        environment,
        environment.from_string(template),
        frozenset(names) - environment.globals.keys(),
    )


def _text(template: Template, variables: dict[str, Any]) -> str:
    pieces = []
    count = 0
    for piece in template.generate(**variables):
        count += len(piece)
        if count > MOST_CHARACTERS:
            raise _TooLong
        pieces.append(piece)
    return "".join(pieces)


def _unmarked(marked: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a text without the marks of generation blocks, and the ranges of these blocks."""
    ranges = list[tuple[int, int]]()
    opened = list[int]()
    pieces = list[str]()
    length = 0
    for piece in re.split(f"([{_OPEN}{_CLOSE}])", marked):
        if piece == _OPEN:
            opened.append(length)
        elif piece == _CLOSE:
            ranges.append((opened.pop() if opened else length, length))
        else:
            pieces.append(piece)
            length += len(piece)
    return "".join(pieces), ranges


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request; see the top of this file."""
    try:
        environment, template, names = _compiled(request["template"])
        environment.dated = False
        variables = request["variables"]
        text = _text(template, variables)
    except Exception as e:
        # A template can provoke any exception.
        return _described(e)
    facts: dict[str, Any] = {"dated": environment.dated, "names": sorted(names)}
    texts: list[str | None] = [text]
    for variant in request["variants"]:
        try:
            texts.append(_text(template, variables | variant))
        except Exception:
            # A template may refuse marked texts.
            texts.append(None)
    return facts | {"texts": texts, "generated": _generated(environment, template, variables, text)}


def _generated(
    environment: Environment, template: Template, variables: dict[str, Any], text: str
) -> list[tuple[int, int]] | None:
    """Return the characters within generation blocks; None if the template has none."""
    if not environment.blocks.used:
        return None
    environment.blocks.marking = True
    try:
        plain, ranges = _unmarked(_text(template, variables))
    except Exception:
        return None
    finally:
        environment.blocks.marking = False
    return ranges if plain == text else None


def _described(error: Exception) -> dict[str, Any]:
    message = " ".join(str(error).split())
    if isinstance(error, TemplateSyntaxError):
        return {"kind": "syntax", "error": f"line {error.lineno}: {message}"}
    if isinstance(error, RecursionError):
        return {"kind": "failed", "error": "it calls itself too often"}
    for cause, error_kind in (
        (Refused, "refused"),
        (SecurityError, "unsafe"),
        (MemoryError, "memory"),
        (_TooLong, "long"),
    ):
        if isinstance(error, cause):
            return {"kind": error_kind, "error": message}
    from_template = isinstance(error, UndefinedError | TemplateRuntimeError | TemplateError)
    return {
        "kind": "failed",
        "error": message if from_template else f"{type(error).__name__}: {message}",
    }


def main(memory: int) -> None:
    """Answer requests until standard input ends."""
    limit_process(memory, _LONG)
    with suppress(ValueError):
        # The program that asked ends this process when it ends itself.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        with suppress(ImportError, OSError, ValueError):
            import resource

            hard_limit = resource.getrlimit(resource.RLIMIT_CPU)[1]
            resource.setrlimit(
                resource.RLIMIT_CPU, (ceil(time.process_time()) + request["seconds"], hard_limit)
            )
        sys.stdout.buffer.write(json.dumps(answer(request)).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
