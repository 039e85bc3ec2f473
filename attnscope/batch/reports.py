"""A Report that `attnscope run --format json` wrote in; the same texts as records, for tables, out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from attnscope.batch.header import Settings
from attnscope.batch.records import STATISTICS, Record, RowArrays, TopArrays
from attnscope.errors import AttnscopeError
from attnscope.report import Report, TextReport, from_json


class _Kind(msgspec.Struct):
    schema: str = ""


def read_report(path: Path) -> Report | None:
    """The Report in a file; None where the file holds something else.

    Raises:
        AttnscopeError: It cannot be read, or is a Report of another version.
    """
    try:
        data = path.read_bytes()
        if not msgspec.json.decode(data, type=_Kind).schema.startswith("attnscope.report/"):
            return None
        return from_json(data)
    except msgspec.DecodeError:
        return None
    except OSError as e:
        raise AttnscopeError(f"cannot be read ({e.strerror})", where=path) from e
    except AttnscopeError as e:
        raise AttnscopeError(e.found, where=path, hint=e.hint) from e


def settings_of(report: Report) -> Settings:
    """What a dump with the same columns would have been asked for."""
    tops = [head.top for text in report.texts for head in text.heads]
    return Settings(by="projected" if tops and tops[0].projected is not None else "value")


def records_of(report: Report) -> Iterator[Record]:
    """Every text as a record that holds what a table shows."""
    return (_record(text) for text in report.texts if text.heads)


def _record(text: TextReport) -> Record:
    def stacked(part: str, names: tuple[str, ...]) -> dict[str, Any]:
        values = {name: [getattr(getattr(head, part), name) for head in text.heads] for name in names}
        return {name: np.stack(found) for name, found in values.items() if found[0] is not None}

    return Record(
        text.index,
        text.index,
        text.index + 1,
        "",
        "ok",
        text=text.text,
        tokens=text.tokens,
        sources=text.context,
        queries=text.queries,
        units=[(head.layer, head.head) for head in text.heads],
        top=TopArrays(**stacked("top", TopArrays.__struct_fields__)),
        rows=RowArrays(**stacked("rows", STATISTICS)),
    )
