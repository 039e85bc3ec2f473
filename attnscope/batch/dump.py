"""Write or resume a dump: what `attnscope batch` does, without printing."""

import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.atomic import check_not_read
from attnscope.base.files.mask_files import read_mask
from attnscope.base.system.file_system import FileSystem
from attnscope.batch.blocks import SelectedItems, cut_block
from attnscope.batch.dump_reader import decoded
from attnscope.batch.encoders import encoder_count
from attnscope.batch.header import Header
from attnscope.batch.items import media_of
from attnscope.batch.journal import Journal
from attnscope.batch.loading import DumpConfig, Loader
from attnscope.batch.pool import PoolRunner
from attnscope.batch.preparing import PreparedText, TextPreparer, run_config
from attnscope.batch.reader import InputReader
from attnscope.batch.records import encode
from attnscope.batch.runner import Runner, RunOptions
from attnscope.batch.sinks import INDEX, open_dump
from attnscope.batch.size import SizeCallback, estimate_size
from attnscope.batch.summary import Summary
from attnscope.request.masks.expression import mask_files
from attnscope.request.run_config import TextInput
from attnscope.run.session import Session

DumpProgress = Callable[[Summary, int], None]
StartCallback = Callable[[Callable[[], int], int], None]


def write_dump(
    order: DumpConfig,
    on_progress: DumpProgress,
    files: FileSystem | None = None,
    session: Session | None = None,
    on_start: StartCallback | None = None,
    reader: InputReader | None = None,
    on_size: SizeCallback | None = None,
) -> Summary:
    """Write a dump, or resume one.

    Args:
        on_start: Called before the first text with a function that counts the records that the next run would find,
            and with the total.
        on_size: Called before a new dump with about how much it will take.
    """
    run = run_config(order.settings, order.run)
    mask_matrices = {
        name: read_mask(Path(name)) for name in mask_files(run.mask) if name not in run.matrices
    }
    run = replace(run, matrices=run.matrices | mask_matrices)
    until = None
    if order.max_minutes is not None:
        until = time.monotonic() + 60 * order.max_minutes
    check_output(order)
    with (
        nullcontext(reader) if reader else order.open_input() as reader,
        open_dump(
            order.output, force=order.force, files=files or FileSystem(), settings=order.settings
        ) as (
            journal,
            sink,
        ),
    ):
        texts = (item.text for item in reader.items() if item.text is not None)
        session = session or Session(texts)
        run = replace(run, texts=_first_medium(reader))
        source = session.source(run)
        if order.settings.runs_again:
            source.require_model(
                "cutting heads" if "effects" in order.settings.keep else "cutting spans"
            )
        items = SelectedItems(reader, order.settings)
        loaded = Loader(order, run, session, reader.facts(), items, journal).load()
        header = loaded.header
        holds = loaded.holds
        total = items.count(header.grouping)
        before = journal.written
        if before.header is None:
            if on_size is not None:
                preparer = TextPreparer(run, order.settings, session)
                size = estimate_size(preparer, order.settings, items, header.grouping, order.output)
                if size is not None:
                    on_size(size)
            journal.start(encode(header))
        again = _rewritten(journal, header, items, holds)
        if before.ended and again is None:
            sink.finish()
            done = Summary(Counter(before.counts), resumed=len(before.indices))
            on_progress(done, total)
            return done
        options = RunOptions(
            header.grouping,
            holds,
            before,
            lambda summary: on_progress(summary, total),
            order.strict,
            again,
            until,
        )
        runner: Runner[PreparedText] | PoolRunner[PreparedText]
        helpers = 0
        if loaded.workers:
            runner = PoolRunner(
                loaded.work, sink, options, workers=loaded.workers, in_child=journal.release
            )
        else:
            worker = loaded.work(0)
            runner = Runner(worker, sink, options)
            helpers = encoder_count(worker.device.type)
        if on_start is not None:
            on_start(lambda: len(before.indices) if journal.beside else journal.saved, total)
        with sink.helped(helpers) if helpers else nullcontext():
            summary = runner.run(items.select(header.grouping))
        if not summary.stopped:
            summary.recomputed = len(before.indices) - summary.resumed
            journal.finish(summary.counts)
            sink.finish()
        return summary


def _first_medium(reader: InputReader) -> tuple[TextInput, ...]:
    """Return the first record of an input if it is a picture or sound alone, which opens the half that takes it."""
    first = next(iter(reader.items()), None)
    if (
        first is None
        or first.text is None
        or first.text.chat is not None
        or first.text.text.strip()
    ):
        return ()
    try:
        media = media_of(first.fields)
    except AttnscopeError:  # its record says what is wrong
        return ()
    return (TextInput("", media=media),) if media else ()


def _rewritten(
    journal: Journal, header: Header, items: SelectedItems, holds: int
) -> set[int] | None:
    """Rewrite a dump whose limit has grown, or some of whose records now fit into memory.

    Returns the numbers of the records that are computed again; None if the dump goes on as it is.
    """
    before = journal.written
    if before.header is None:
        return None
    old = decoded(before.header, Header, journal.path)
    again = before.fitting(holds)
    grown = old.settings.limit != header.settings.limit
    if grown:
        # Texts that go through the model together decide the last bits of its numbers.
        again.update(cut_block(items.costs, old.settings, old.grouping))
    if not again and not grown:
        return None
    journal.rewrite(encode(header) if grown else before.header)
    return again


def check_output(order: DumpConfig) -> None:
    """Refuse an output that is also read, directly or through a link."""
    run = order.run
    for path in (order.output, order.output / INDEX):
        check_not_read(
            path,
            (
                order.input,
                run.model,
                run.qkv,
                run.adapter,
                run.config,
                run.tokenizer,
                *mask_files(run.mask),
            ),
        )
        with suppress(OSError, ValueError):  # it is not there, or no file can have its name
            if order.input == "-" and os.path.samestat(os.fstat(0), os.stat(path)):
                raise AttnscopeError(
                    "is an input of this command", where=path, hint="choose another output"
                )
