"""The header of a dump: what produced it, what was asked for, what was read, how it was grouped.

A dump is resumed only if all of this is unchanged, since it decides every number.
"""

from typing import TYPE_CHECKING, Literal

import msgspec

from attnscope.planning.record_parts import RECORD_PARTS
from attnscope.report import MaskUse, Provenance
from attnscope.report.row_statistics import STATISTICS

SCHEMA = "attnscope.dump/1"
MAGIC = b'{"schema":"attnscope.dump/'  # first bytes of a header line
END = b'{"end":'  # first bytes of an end line
if TYPE_CHECKING:
    KeptPart = str  # the names of RECORD_PARTS, which a type checker does not see
else:
    KeptPart = Literal[tuple(part.name for part in RECORD_PARTS)]
MEASURES = {"weight": ("weight",), "value": ("weight", "value"), "projected": ("weight", "value", "projected")}


class Settings(msgspec.Struct, frozen=True):
    """Every option that changes what a dump holds.

    Attributes:
        layer: Layers, as typed.
        head: Heads, as typed.
        query: Rows, as typed; None for all.
        key: Columns of stages, as typed; None for all.
        keep: What is kept of every unit.
        stages: Stages whose matrices are kept.
        top: Contributors a query.
        by: What ranks them.
        special: Special tokens and the first token take part in the ranking.
        pool: Rows and columns of a pooled map.
        truncate: Texts that are too long for the model are cut.
        column: Column of a table that holds the texts.
        skip: Records left out at the start.
        limit: Records taken after these; None for all.
        shard: Number and count: of these, every count-th from the number-th on (from 1).
        statistics: Statistics of rows that are kept; None for all.
        digits: Digits after the point that numbers other than stages are rounded to; None for exact ones.
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

    @property
    def kept_statistics(self) -> tuple[str, ...]:
        """Statistics of rows that are kept."""
        return STATISTICS if self.statistics is None else self.statistics


class InputFacts(msgspec.Struct, frozen=True):
    """What was read.

    Attributes:
        name: The file, as the user named it.
        format: `txt`, `jsonl`, `csv`, `tsv` or `parquet`.
        sha256: Of its bytes on disk.
        records: Records in it, before any are left out.
    """

    name: str
    format: str
    sha256: str
    records: int


class Grouping(msgspec.Struct, frozen=True):
    """How texts went through the model together: it decides the last bits of the numbers, so a resumed run keeps to it.

    Attributes:
        tokens: Tokens of a group, padding included, at most (at least one text).
        values: Numbers kept of a group, at most (at least one text).
        window: Numbers kept of the texts that are sorted by length at once, at most.
        cells: 0; in older dumps, numbers that one text may need. Memory decides that, and another run may have more.
        threads: Of torch.
        window_tokens: Tokens of the texts of a window, at most (at least one text); 0, as in older dumps, for no limit.
    """

    tokens: int
    values: int
    window: int
    cells: int
    threads: int
    window_tokens: int = 0


class Header(msgspec.Struct, frozen=True):
    """The first line of a dump.

    Attributes:
        schema: Name and version of this format.
        provenance: What produced the numbers.
        mask: Which keys a query could see.
        settings: What was asked for.
        input: What was read.
        grouping: How texts went through the model together.
    """

    schema: str
    provenance: Provenance
    mask: MaskUse
    settings: Settings
    input: InputFacts
    grouping: Grouping
