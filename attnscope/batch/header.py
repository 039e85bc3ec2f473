"""The header of a dump: what produced it, what was asked for, what was read, how it was grouped.

A dump is resumed only if all of this is unchanged, since all of it affects the numbers: `find_change` compares.
"""

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from attnscope.base.errors import Value, arg
from attnscope.findings.provenance import MaskUse, Provenance
from attnscope.findings.record_parts import PARTS, RECORD_PARTS
from attnscope.findings.row_statistics import STATISTICS

# in English; a block of another language has a few windows, or a short one
CHARACTERS_OF_A_TOKEN = 4
SCHEMA = "attnscope.dump/1"
MAGIC = b'{"schema":"attnscope.dump/'  # first bytes of a header line
END = b'{"end":'  # first bytes of an end line
if TYPE_CHECKING:
    KeptPart = str  # the names of RECORD_PARTS, which a type checker does not see
else:
    KeptPart = Literal[tuple(part.name for part in RECORD_PARTS)]
MEASURES = {
    "weight": ("weight",),
    "value": ("weight", "value"),
    "projected": ("weight", "value", "projected"),
}


class Settings(msgspec.Struct, frozen=True):
    """Every option that changes what a dump holds.

    Attributes:
        layer: Layers, as typed.
        head: Heads, as typed.
        query: Rows, as typed; None for all.
        key: Columns of stages, as typed; None for all.
        keep: What is kept of every layer and head.
        stages: Stages whose matrices are kept.
        top: Number of contributors per query.
        by: Measure that ranks contributors.
        special: Whether special tokens and the first token take part in the ranking.
        pool: Rows and columns of a pooled map.
        truncate: Whether texts that exceed the model's limit are truncated.
        column: Column of a table, or member of a JSON object, that holds the text.
        skip: Number of records skipped at the start.
        limit: Number of records read after these; None for all.
        shard: Number and count: every count-th block of these records, starting with the number-th (from 1).
        statistics: Row statistics that are kept; None for all.
        digits: Decimal places to which numbers other than stages are rounded; None for exact numbers.
        spans: How texts are divided into spans, as typed; None for their own, or none.
        tables: Tables that a .parquet folder holds; empty for the first that there is, or for another kind of dump.
        target: Token whose logit `effects` compares, or two whose difference it does; `{NAME}` is the member NAME of
            each record; empty for none.
        patch_from: Text whose activations replace those of the text in `effects`, or `{NAME}`; None to cut heads.
    """

    layer: str = "all"
    head: str = "all"
    query: str | None = None
    key: str | None = None
    keep: tuple[KeptPart, ...] = ("top", "rows")
    stages: tuple[str, ...] = ()
    top: int = 3
    by: Literal["weight", "value", "projected"] = "weight"
    special: bool = True
    pool: int = 16
    truncate: bool = False
    column: str = "text"
    skip: int = 0
    limit: int | None = None
    shard: tuple[int, int] = (1, 1)
    statistics: tuple[str, ...] | None = None
    digits: int | None = None
    spans: str | None = None
    tables: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    patch_from: str | None = None

    @property
    def kept_statistics(self) -> tuple[str, ...]:
        """Statistics of rows that are kept."""
        if self.statistics is None:
            return STATISTICS
        return self.statistics

    @property
    def runs_again(self) -> tuple[str, ...]:
        """Kept parts for which the model runs again."""
        return tuple(part for part in self.keep if PARTS[part].runs_again)

    @property
    def of_spans(self) -> tuple[str, ...]:
        """Kept parts for which texts are divided into spans."""
        return tuple(part for part in self.keep if PARTS[part].of_spans)


class InputFacts(msgspec.Struct, frozen=True):
    """Facts about the input.

    Attributes:
        name: The file, as the user named it.
        format: `txt`, `jsonl`, `csv`, `tsv`, `parquet` or `arrow`.
        sha256: SHA-256 of its bytes on disk; of a folder, that of the SHA-256 of each file, one a line.
        records: Number of records in it, before any are skipped.
    """

    name: str
    format: str
    sha256: str
    records: int


class Grouping(msgspec.Struct, frozen=True):
    """How texts are grouped into forward passes. This decides the last bits of the numbers, so a resumed run keeps it.

    Attributes:
        tokens: Largest number of tokens in a group, padding included (at least one text).
        values: Largest number of values kept of a group (at least one text).
        window: Largest number of values kept of the texts that are sorted by length together.
        threads: Number of torch's threads.
        window_tokens: Largest number of tokens in a window (at least one text); 0 for no limit.
        first_window_tokens: Largest number of tokens in the first block, so that something is saved soon; 0 if it may
            be as large as others.
        block_characters: Largest number of characters in a block, the unit that shards and workers share out (at least
            one text); 0 for no limit.
    """

    tokens: int
    values: int
    window: int
    threads: int
    window_tokens: int = 0
    first_window_tokens: int = 0
    block_characters: int = 0

    def most_characters(self, block: int) -> int:
        """Return how many characters the texts of a block may have, counted from 0; 0 for no limit."""
        if block or not self.first_window_tokens:
            return self.block_characters
        return min(self.block_characters, CHARACTERS_OF_A_TOKEN * self.first_window_tokens)


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line of a dump.

    Attributes:
        schema: Name and version of this format.
        provenance: What produced the numbers.
        mask: Which keys a query could see.
        settings: The requested settings.
        input: Facts about the input.
        grouping: How texts are grouped into forward passes.
        mask_cells: First 16 hexadecimal digits of the SHA-256 of each matrix that the mask names; absent if it names
            none.
        configured: Options whose values came from a settings file, and where that file has them.
    """

    schema: str
    provenance: Provenance
    mask: MaskUse
    settings: Settings
    input: InputFacts
    grouping: Grouping
    mask_cells: tuple[str, ...] = ()
    configured: dict[str, str] = {}


_OPTIONS = (
    "settings.layer", "settings.head", "settings.query", "settings.key", "settings.top", "settings.by", "settings.pool",
    "settings.patch_from", "settings.column", "settings.skip", "settings.limit",
    "provenance.engine", "provenance.dtype", "provenance.device",
    "provenance.part", "provenance.tokenizer",
)  # fmt: skip
# names, and what follows others
_FREE = ("provenance.model", "provenance.adapter", "provenance.values", "input.name")
_CONFIGURED = "configured."  # where values came from, not what they are
_WORDS = {
    "provenance.fingerprint": "was started with another model, adapter, tokenizer or file of arrays",
    "provenance.weights_hash": "was started with other weights of the model",
    "mask_cells": f"was started with another matrix in the file of {arg('mask')}",
    "input.sha256": "was started with another input, or the input has changed since",
}


def find_change(old: Header, new: Header) -> str | None:
    """Return the first thing that differs and changes what the dump holds, as a phrase; None if nothing does.

    Options come first, since another `--tokenizer` also changes the fingerprint.
    """
    was, now = (_flat(msgspec.to_builtins(header)) for header in (old, new))
    before = _typed(old, was)
    after = _typed(new, now)
    for name in before:
        if before[name] != after[name]:
            old_value = before[name]
            new_value = after[name]
            if old_value is None:
                start = f"without {arg(name)}"
            else:
                start = f"with {arg(name, old_value)}"
            if new_value is None:
                end = f"without {arg(name)}"
            else:
                end = arg(name, new_value)
            return f"was started {start}, now it is {end}"
    for name in (*_WORDS, *(was | now)):
        if (
            name not in _FREE
            and not name.startswith(_CONFIGURED)
            and was.get(name) != now.get(name)
        ):
            label = name.rpartition(".")[2].replace("_", " ")
            return _WORDS.get(
                name,
                f"was started with {label} {_shown(was.get(name))}, now it is {_shown(now.get(name))}",
            )
    return None


def _typed(header: Header, flat: dict[str, Any]) -> dict[str, Value]:
    """Return the value of every option by its name; None if it is left out."""
    settings = header.settings
    mask = header.mask
    parts = tuple(part for part in settings.keep if part != "stages")
    changed_mask: str | None = mask.used
    if mask.used == mask.own and (mask.what_if is None or mask.hidden):
        changed_mask = None
    return {
        **{name.partition(".")[2]: flat.get(name) for name in _OPTIONS},
        "keep": "brief" if settings.digits is not None else parts or None,
        "stages": settings.stages or None,
        "target": settings.target or None,
        "shard": None if settings.shard == (1, 1) else "{}/{}".format(*settings.shard),
        "input_format": header.input.format,
        "hide": mask.hidden,
        "mask": changed_mask,
        "what_if": mask.what_if,
        "special": None if settings.special else False,
        "truncate": settings.truncate or None,
        "hash_weights": True if header.provenance.weights_hash is not None else None,
    }


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _flat(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flattened: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, dict):
            flattened |= _flat(value, f"{prefix}{name}.")
        else:
            flattened |= {prefix + name: value}
    return flattened
