"""Write dumps of many texts, as `attnscope batch` does, and read them."""

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attnscope.api.options import file_path, read_values
from attnscope.base.errors import UsageError
from attnscope.base.files.atomic import check_name
from attnscope.request.options import COMPLETE_MODEL, THE_MACHINE
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.studies.registry import options_of

if TYPE_CHECKING:
    import pandas as pd

    from attnscope.batch.header import Header
    from attnscope.batch.records import Record
    from attnscope.batch.request import DumpRequest

_IN_MEMORY = "texts in memory"  # what messages and the header call them
_OF_RUN = [option for option in (*COMPLETE_MODEL, *THE_MACHINE) if option.name != "truncate"]


def read_request(arguments: Mapping[str, Any], run: RunConfig, *, live: bool) -> "DumpRequest":
    """Read the arguments of `write_dump`, or refuse them.

    Args:
        arguments: What is given, by the name of the argument and of its option.
        run: Model, mask and machine.
        live: Whether the model is in memory already.
    """
    from attnscope.batch.items import to_jsonl
    from attnscope.batch.request import dump_request, is_table_folder

    texts = arguments.get("texts")
    is_path = texts is None or isinstance(texts, str | bytes | os.PathLike)
    if not is_path:
        arguments = {**arguments, "texts": _IN_MEMORY}
    table = [option for option in options_of("batch") if option not in _OF_RUN]
    values = {option.name: option.default_value for option in table}
    values |= read_values(arguments, table, *values)
    # a process that is forked off the caller's would lack its threads and GPU
    values["workers"] = 0
    if live and values["ray"] is not None:
        hint = "pass the path of a checkpoint"
        raise UsageError("actors cannot share a model in memory", where="ray", hint=hint)
    output = arguments["output"]
    lines = None
    if not is_path:
        lines = to_jsonl(texts, values["column"])
    return dump_request(
        values,
        run,
        typed=arguments.keys(),
        tables=is_table_folder(values["output"], [os.fsdecode(output)]),
        configured={},
        lines=lines,
    )


def texts_of(request: "DumpRequest") -> Iterator[TextInput]:
    """Yield the texts of a dump."""
    with request.config.open_input() as reader:
        yield from (item.text for item in reader.items() if item.text is not None)


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
