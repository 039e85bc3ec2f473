"""What a command line asks for, as data, and what it means for a text: nothing of attnscope parses it here."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Words(list[str]):
    """Words of a text, whose spans are tokens by name.

    Args:
        words: The words.
        spans: Positions of each span's tokens, by its name.
    """

    def __init__(self, words: Iterable[str], spans: Mapping[str, list[int]]) -> None:
        super().__init__(words)
        self.spans = spans

    def of_span(self, typed: str) -> list[int]:
        """The tokens of the span of this name, in any case if only one has it; none without such a span."""
        alike = [name for name in self.spans if name.casefold() == typed.casefold()]
        name = typed if typed in self.spans else alike[0] if len(alike) == 1 else None
        return [] if name is None else self.spans[name]


@dataclass(frozen=True)
class Call:
    """One call of `attnscope run`."""

    model: str  # name of the model among `models.NAMES`
    folder: Path
    texts: tuple[str, ...]
    pair: str | None = None  # the second text of a pair; only for a single text
    file: Path | None = None  # the texts come from a file, written here; None for TEXT
    # as typed, as are head, query, key, stage and mask; None where nothing is typed
    layer: str | None = None
    head: str | None = None
    query: str | None = None
    key: str | None = None
    stage: str | None = None
    mask: str | None = None
    what_if: str | None = None
    hide: str | None = None  # tokens that no query may see, as typed
    spans: Any = None  # how the text is divided, as typed; or the ranges of a text in a dump
    top: int | None = None
    by: str | None = None
    no_special: bool = False
    pool: int | None = None
    engine: str | None = None  # `native` or `transformers`
    grown: tuple[int, ...] = ()  # tokens that a model adds to the text, by id
    auto_key: str | None = None  # typed for another purpose than to select columns
    # whatever is free at the moment
    more: tuple[str, ...] = ("--format", "json", "--quiet", "--max-memory", "4G")

    def argv(self) -> list[str]:
        """The arguments after `attnscope`."""
        source = ["--file", str(self.file)] if self.file else [self.texts[0]]
        words = ["run", *source, "--model", str(self.folder)]
        names = "pair layer head query key stage mask what_if hide spans top by pool engine"
        for name in names.split():
            if (value := getattr(self, name)) is not None:
                words += ["--" + name.replace("_", "-"), str(value)]
        return [*words, *(["--no-special"] if self.no_special else []), *self.more]

    def command(self) -> str:
        """The same, to be copied into a shell."""
        made = f"printf '%s\\n' {shlex.join(self.texts)} > {self.file} && " if self.file else ""
        return made + "attnscope " + shlex.join(self.argv())

    @property
    def stages(self) -> list[str]:
        """The stages that are shown."""
        call = (self.stage or "scores,masked,weights").split(",")
        return [
            stage for stage in ("scores", "scaled", "masked", "weights", "output") if stage in call
        ]

    def numbers(self, typed: str | None, count: int) -> list[int] | None:
        """The layers or heads that were named, in order; None for a word."""
        if typed in (None, "auto", "all", "mean"):
            return None
        found: list[int] = []
        for part in str(typed).split(","):
            low, dash, high = part[1:].partition("-")
            first = int(part[0] + low) % count
            found += range(first, int(high) + 1) if dash else [first]
        return list(dict.fromkeys(found))


def places(typed: str, words: Sequence[str]) -> list[int]:
    """The positions that `3`, `-1`, `2:5`, `word` or several of these, joined by commas, stand for, sorted."""
    found: set[int] = set()
    for part in typed.split(","):
        first, colon, end = part.partition(":")
        if colon:
            every = range(len(words))
            found |= set(every[int(first) if first else None : int(end) if end else None])
        elif part.lstrip("-").isdigit():
            found.add(int(part) % len(words))
        elif isinstance(words, Words) and words.of_span(part):
            found |= set(words.of_span(part))
        else:
            exact = {i for i, word in enumerate(words) if word == part}
            found |= exact or {
                i for i, word in enumerate(words) if word.casefold() == part.casefold()
            }
    return sorted(found)
