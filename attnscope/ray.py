"""Records of texts in another program's data pipeline (`ray.data`, `datasets`): one batch of rows at a time."""

import os
from collections.abc import Mapping
from typing import Any

from attnscope.base.errors import UsageError, did_you_mean
from attnscope.batch.header import Settings
from attnscope.batch.items import text_item
from attnscope.batch.loading import open_worker
from attnscope.batch.records import Record, encode
from attnscope.batch.windows import WindowComputer
from attnscope.request.run_config import RunConfig
from attnscope.run.session import Session

__all__ = ["RecordMapper"]


class RecordMapper:
    """A function of a batch of rows that adds the records of a dump; the model is loaded at the first batch.

    Pass it to `ray.data.Dataset.map_batches` with an `ActorPoolStrategy` (each actor loads the model once), or an
    instance to `datasets.Dataset.map(…, batched=True)`.

    Args:
        model: A checkpoint folder, or the name of a bundled sample; None for the default sample.
        settings: Options of `attnscope batch` that select what is kept, such as `keep=("top",)` or `top=5`.
    """

    def __init__(
        self, model: str | os.PathLike[str] | None = None, column: str = "text", **settings: Any
    ) -> None:
        of_input = ("column", "skip", "limit", "shard", "tables")
        setting_names = [name for name in Settings.__struct_fields__ if name not in of_input]
        for name in settings:
            if name not in setting_names:
                raise UsageError(
                    f"unknown setting '{name}'", hint=did_you_mean(name, setting_names)
                )
        self._model = model
        self._column = column
        self._settings = Settings(column=column, **settings)
        self._computer: WindowComputer[Any] | None = None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch of columns (lists, or Ray's arrays) with `status`, `error` and `record`, a dump's JSON."""
        if self._column not in batch:
            raise UsageError(
                f"the batch has no column '{self._column}'",
                hint=did_you_mean(self._column, [*batch]),
            )
        for name in ("status", "error", "record"):
            if name in batch:
                raise UsageError(f"the batch has a column '{name}' already", hint="rename it")
        records = self._records([str(text) for text in batch[self._column]])
        return {
            **batch,
            "status": [record.status for record in records],
            "error": [record.error or "" for record in records],
            "record": [encode(record).decode() for record in records],
        }

    def _records(self, texts: list[str]) -> list[Record]:
        if self._computer is None:
            model = None if self._model is None else os.fspath(self._model)
            work, bounds, holds = open_worker(
                self._settings, RunConfig(texts=(), model=model, threads=1), Session(())
            )
            self._computer = WindowComputer(work, bounds, holds=holds, needs_all_records=False)
        records = list[Record]()
        for window in self._computer.windows(
            text_item(index, text) for index, text in enumerate(texts)
        ):
            records += self._computer.compute(window, 0).records
        return records

    def __getstate__(self) -> dict[str, Any]:
        """Leave the model out: each process loads its own."""
        return {**self.__dict__, "_computer": None}
