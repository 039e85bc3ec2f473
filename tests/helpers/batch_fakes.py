"""Dumps without a model: numbers depend on the text and on its group, as they do with a real one."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError
from attnscope.base.system.file_system import FileSystem
from attnscope.batch import summed_writer
from attnscope.batch.blocks import SelectedItems
from attnscope.batch.header import SCHEMA, Grouping, Header, InputFacts, Settings
from attnscope.batch.items import from_txt
from attnscope.batch.pool import PoolRunner
from attnscope.batch.records import Record, encode
from attnscope.batch.runner import Runner, RunOptions
from attnscope.batch.sinks import open_dump
from attnscope.batch.windows import TextSize, record_of
from attnscope.findings.heads import Top
from attnscope.findings.provenance import MaskUse, Provenance
from attnscope.findings.tokens import Token

BOUNDS = Grouping(tokens=12, values=60, window=120, threads=1)
BLOCKS = replace(BOUNDS, block_characters=90)
HOLDS = 200  # numbers of one text
HEADER = Header(
    SCHEMA,
    Provenance("0", "2", "m", "bert", "f", "native", "float32", "cpu", "trained", 1, 1),
    MaskUse("bidirectional", "bidirectional"),
    Settings(),
    InputFacts("x", "txt", "0", 0),
    BOUNDS,
)
TEXTS = [f"{'word ' * (i * 7 % 5 + 1)}{i}" for i in range(23)]
TEXTS[4], TEXTS[9], TEXTS[11], TEXTS[17] = "", "bad 9", "spoils 11", "long " * 60


class Work:
    """Words are tokens; a text that says `bad` fails, one that says `spoils` fails with its whole group."""

    def __init__(self, pause=0.0):
        self.pause, self.looked, self.number = pause, [], 0

    def at(self, number):
        """The same in a worker process, which is forked."""
        self.number = number
        return self

    def read_ahead(self, items):
        pass

    def prepare(self, item):
        if not item.text.text.strip():
            return record_of(item, "skipped", error="the text is blank")
        if item.text.text.startswith("bad"):
            raise AttnscopeError("is bad", hint="give a good one")
        return item

    def size(self, item):
        words = len(item.text.text.split())
        return TextSize(words, words, 4 * words)

    def warm_up(self):
        pass

    def process(self, ready, following=(), meanwhile=None):
        self.looked.append([item.index for item in ready])
        if self.pause:
            time.sleep(self.pause)
        if any("spoils" in item.text.text for item in ready):
            raise AttnscopeError("scores are not finite", where="L0H0")
        longest = max(self.size(item).tokens for item in ready)
        return [self._record(item, longest, len(ready)) for item in ready]

    def _record(self, item, longest, together):
        words = item.text.text.split()
        keys = np.arange(len(words))[None, :, None].repeat(2, 2).astype(np.int32)
        weight = np.full(keys.shape, 1 / longest + 1e-7 * together, dtype=np.float32)
        return Record(
            item.index,
            item.id,
            item.line,
            item.hash,
            "ok",
            text=item.text.text,
            tokens=[Token(i, word, word) for i, word in enumerate(words)],
            queries=[*range(len(words))],
            units=[(0, 0)],
            top=Top(keys, weight),
            # so that a shard is longer than what is written at once
            stages={"weights": weight.repeat(64, 2)},
        )


def dump(
    source: Path,
    target: Path,
    *,
    files=None,
    pause=0.0,
    strict=False,
    force=False,
    holds=HOLDS,
    work=None,
    bounds=BOUNDS,
    workers=0,
    on_progress=lambda summary: None,
    settings=None,
):
    """Write or go on with a dump, as attnscope.batch.dump does, without a model."""
    small = patch.object(summed_writer, "BUFFER_BYTES", 8192)
    with (
        small,
        open_dump(target, force=force, files=files or FileSystem(), settings=settings) as (
            journal,
            sink,
        ),
    ):
        if journal.written.header is None:
            journal.start(encode(HEADER))
        before = journal.written
        if again := before.fitting(holds) or None:
            journal.rewrite(before.header)
        if before.ended and not again:
            return None
        work = work or Work(pause)
        options = RunOptions(bounds, holds, before, on_progress, strict, again)
        with open(source, "rb") as file:
            if workers:
                runner = PoolRunner(
                    work.at, sink, options, workers=workers, in_child=journal.release
                )
            else:
                runner = Runner(work, sink, options)
            given = SimpleNamespace(items=lambda: from_txt(file, "x.txt"))
            summary = runner.run(SelectedItems(given, Settings()).select(bounds))
        journal.finish(summary.counts)
        sink.finish()
        return summary, work


if __name__ == "__main__":  # a process that can be killed
    dump(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        pause=float(sys.argv[3]),
        force="force" in sys.argv[4:],
    )
