"""Read the dumps that `attnscope batch` writes."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnscope.api.options import file_path
from attnscope.base.files.atomic import check_name

if TYPE_CHECKING:
    import pandas as pd

    from attnscope.batch.header import Header
    from attnscope.batch.records import Record


class DumpFile:
    """A dump; iterating over it reads and checks one record after the other.

    Attributes:
        path: The .jsonl (.jsonl.gz, .jsonl.zst) or .json file, or the folder with shards.
        header: The header line: provenance, mask, settings.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from attnscope.batch.dump_reader import Dump

        self.path = file_path(path)
        check_name(self.path)
        self.header: Header = Dump(self.path).header

    def __iter__(self) -> "Iterator[Record]":
        """Yield every record, with its arrays.

        Raises:
            AttnscopeError: A line or shard is damaged, or the end is missing.
        """
        from attnscope.batch.dump_reader import Dump

        yield from Dump(self.path).records()

    def to_pandas(self, table: str | None = None) -> "pd.DataFrame":
        """Return one of the tables that `attnscope convert` writes, with the rows of every text.

        Args:
            table: `contributors`, `rows`, `columns`, `spans`, `matrices`, `effects` or `mean_effects`; None for the
                first that the dump has.

        Raises:
            AttnscopeError: A line or shard is damaged, pandas is not installed, or the dump holds no such table.
        """
        from attnscope.api.results import data_frame

        return data_frame(self.header.settings, self, table, "dump")

    def __repr__(self) -> str:
        provenance = self.header.provenance
        return f"DumpFile({str(self.path)!r}, model={provenance.model!r}, keep={self.header.settings.keep!r})"
