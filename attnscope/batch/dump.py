"""Write or resume a dump: what `attnscope batch` does, without printing."""

import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.files.atomic import check_not_read
from attnscope.base.system.file_system import FileSystem
from attnscope.base.system.gpu import WORTH_A_GPU
from attnscope.base.system.threads import count_threads
from attnscope.batch.blocks import SelectedItems, with_blocks
from attnscope.batch.changes import find_change
from attnscope.batch.dump_reader import decoded
from attnscope.batch.header import SCHEMA, Grouping, Header, InputFacts, Settings
from attnscope.batch.journal import Journal
from attnscope.batch.parquet_sink import ParquetSink
from attnscope.batch.pool import PoolRunner
from attnscope.batch.reader import InputReader
from attnscope.batch.records import encode
from attnscope.batch.runner import Runner
from attnscope.batch.sinks import INDEX, open_dump
from attnscope.batch.summary import Summary
from attnscope.batch.trial import check_workers, choose_workers
from attnscope.batch.worker import NUMBER_BYTES, ModelWorker, PreparedText, count_units, run_config
from attnscope.checkpoints.source import ModelSource
from attnscope.engines.torch_setup import limit_threads
from attnscope.request.estimate import MemoryDemand, estimate_memory
from attnscope.request.masks.expression import mask_files
from attnscope.request.memory import MemoryLimit, format_bytes, layer_parameters
from attnscope.request.run_config import RunConfig
from attnscope.run.plan import spare_memory
from attnscope.run.session import Session, describe_mask_use, provenance
from attnscope.studies.ablate.plan import bytes_per_token, logit_bytes

_TOKENS, _VALUES, _WINDOW = 1024, 1 << 22, 1 << 24  # larger windows: little faster, and two are held at once

_WINDOW_WORK = 2e11  # multiplications of a window: a few seconds of a CPU, after which what it found is saved
_LARGE = 5e8  # parameters of layers from which weights may take longer than a few tokens
_FEWEST = 256  # tokens of a window: fewer at a time take longer each
_FIRST = 64  # tokens of the first window at most: something is saved as soon as the model is there
DumpProgress = Callable[[Summary, int], None]
StartCallback = Callable[[Callable[[], int], int], None]


@dataclass(frozen=True)
class DumpConfig:
    """What the user asked of `attnscope batch`.

    Attributes:
        input: A file, or `-` for standard input.
        format: Format of the input; None for the one of its extension.
        output: A .jsonl file, a folder, or `-` for lines to standard output.
        settings: What to keep.
        run: Model, mask and machine; its texts and selection are not looked at.
        force: Start over; an existing dump is kept until records of the new one are safe.
        strict: Stop at the first failure.
        max_minutes: Stop after this time, with everything saved; None for no limit.
        workers: Processes that compute; 0 for this one, None for those that are faster.
    """

    input: str
    format: str | None
    output: Path
    settings: Settings
    run: RunConfig
    force: bool = False
    strict: bool = False
    max_minutes: float | None = None
    workers: int | None = 0


def write_dump(
    order: DumpConfig,
    on_progress: DumpProgress,
    files: FileSystem | None = None,
    session: Session | None = None,
    on_start: StartCallback | None = None,
) -> Summary:
    """Write a dump, or resume one.

    Args:
        order: The request.
        on_progress: Called with how far it is and how many records there will be, when records are computed or safe.
        files: The system.
        session: Has the model open already.
        on_start: Called before the first text, with what tells at any time how many records the next run would find,
            and how many there will be.

    Raises:
        AttnscopeError: The input, the model, the memory or the output do not allow it, or with `strict` a text failed.
        UsageError: A selection does not fit the model.
    """
    run = run_config(order.settings, order.run)
    until = None if order.max_minutes is None else time.monotonic() + 60 * order.max_minutes
    check_output(order)
    with (
        InputReader(order.input, order.format, order.settings.column) as given,
        open_dump(order.output, force=order.force, files=files or FileSystem(), settings=order.settings) as (
            journal,
            sink,
        ),
    ):
        texts = (item.text for item in given.items() if item.text is not None)
        session = session or Session(texts)
        source = session.source(run)
        if "effects" in order.settings.keep:
            source.require_model("cutting heads")
        facts = given.facts()
        items = SelectedItems(given, order.settings)
        model, header, holds, workers = _load(order, run, session, facts, items, journal)
        total = items.count(header.grouping)
        before = journal.written
        if before.header is None:
            journal.start(encode(header))
        again = journal.try_again(holds)
        if before.ended and not again:
            if isinstance(sink, ParquetSink):
                sink.finish()
            done = Summary(Counter(before.counts), resumed=len(before.indices))
            on_progress(done, total)
            return done
        options: dict[str, Any] = {
            "strict": order.strict,
            "on_progress": lambda summary: on_progress(summary, total),
            "holds": holds,
            "before": before,
            "again": again,
            "until": until,
        }
        runner: Runner[PreparedText] | PoolRunner[PreparedText]
        if workers:
            runner = PoolRunner(model, sink, header.grouping, workers=workers, in_child=journal.release, **options)
        else:
            runner = Runner(model, sink, header.grouping, **options)
        if on_start is not None:
            on_start(lambda: len(before.indices) if journal.beside else journal.saved, total)
        summary = runner.run(items.select(header.grouping))
        if not summary.stopped:
            journal.finish(summary.counts)
            if isinstance(sink, ParquetSink):
                sink.finish()
        return summary


def check_output(order: DumpConfig) -> None:
    """Refuse an output that is also read, directly or through a link.

    Raises:
        AttnscopeError: The output is the input, the model or the mask.
    """
    run = order.run
    for path in (order.output, order.output / INDEX):
        check_not_read(
            path, (order.input, run.model, run.qkv, run.adapter, run.config, run.tokenizer, *mask_files(run.mask))
        )
        with suppress(OSError, ValueError):  # it is not there, or no file can have its name
            if order.input == "-" and os.path.samestat(os.fstat(0), os.stat(path)):
                raise AttnscopeError("is an input of this command", where=path, hint="choose another output")


def open_worker(settings: Settings, run: RunConfig, session: Session) -> tuple[ModelWorker, Grouping, int]:
    """Open a model for texts that come from no file and go to no dump.

    Args:
        settings: What to keep.
        run: Model, mask and machine.
        session: Has the model open, or opens it.

    Returns:
        What looks into texts, bounds of its groups and windows, and how many numbers of a text fit into memory.

    Raises:
        AttnscopeError: The model cannot be read, or does not fit.
    """
    run = run_config(settings, run)
    source = session.source(run)
    bounds, holds, stream_reason, memory = _group_limits(settings, run, source)
    model = ModelWorker(run, settings, session, bounds.tokens, stream_reason, memory)
    cuts = count_units(run, source) if "effects" in settings.keep else 0
    bounds = replace(bounds, window_tokens=_window_tokens(source, model.device.type, cuts)[1])
    return model, replace(bounds, threads=limit_threads(run.threads or 0)), holds


def _load(
    order: DumpConfig, run: RunConfig, session: Session, facts: InputFacts, items: SelectedItems, journal: Journal
) -> tuple[ModelWorker, Header, int, int]:
    """Return the model, the header, what memory holds (see `_group_limits`) and the number of workers.

    Raises:
        AttnscopeError: An existing dump has other settings, or workers cannot share the model.
    """
    settings = order.settings
    old = None if journal.written.header is None else decoded(journal.written.header, Header, journal.path)
    source = session.source(run)
    bounds, holds, stream_reason, memory = _group_limits(settings, run, source)
    bounds = bounds if old is None else old.grouping
    model = ModelWorker(run, settings, session, bounds.tokens, stream_reason, memory)
    if order.workers != 0:
        check_workers(model.device.type, old)
    if old is None:
        cuts = count_units(run, source) if "effects" in settings.keep else 0
        first, most = _window_tokens(source, model.device.type, cuts)
        bounds = replace(
            bounds,
            window_tokens=most,
            first_window_tokens=first,
        )
        bounds = with_blocks(bounds, settings, items.costs)
    if order.workers == 0:
        workers = 0
    elif order.workers is not None:
        workers, bounds = order.workers, replace(bounds, threads=bounds.threads or run.threads or 1)
    else:
        workers, bounds = choose_workers(model, bounds, run.threads, items, holds)
    bounds = replace(bounds, threads=limit_threads(bounds.threads))
    if workers:
        model.warm_up()
    seen = None if source.mask_known else "own"  # what that is, only running a text shows
    mask = describe_mask_use(source, run, seen)
    values = "pooled" if "pooled" in settings.keep and "stages" not in settings.keep else "exact"
    new = Header(SCHEMA, provenance(source, run, model.device, values), mask, settings, facts, bounds)
    if old is not None:
        _check_same(old, new, journal.path)
    return model, new, holds, workers


def _group_limits(settings: Settings, run: RunConfig, source: ModelSource) -> tuple[Grouping, int, str, MemoryLimit]:
    """Return the limits of groups, and how many numbers memory holds of a text.

    Groups decide the last bits of the numbers. So they depend only on the request: they are as large as is useful,
    or as `--max-memory` allows, however much memory is free.

    Raises:
        AttnscopeError: Not even a small group fits, or none of that size.
    """
    units = count_units(run, source)
    layers, heads, tokens = source.config.n_layers, source.config.n_heads, 256
    cells, copied_elements, cut = units * tokens, source.copied_elements, "effects" in settings.keep
    asked = MemoryDemand(
        layers,
        1,
        tokens,
        1000,
        cells,
        0,
        0,
        False,
        heads=heads,
        copied_elements=copied_elements,
        tiled_queries=tokens,
        threads=run.threads or count_threads(),
        predicted=int(cut and source.predicts is not None),
    )
    more = {"kept": logit_bytes(source)} if cut else {}
    spare, stream_reason, memory = spare_memory(run, source, asked, more, multiplications=WORTH_A_GPU)
    numbers = max(1, spare // NUMBER_BYTES)
    a_token = estimate_memory(source.config, run.dtype, asked)["activations"] // tokens
    a_token += sum(bytes_per_token(source)) if cut else 0
    if run.max_memory is None:
        needed = _TOKENS * a_token + 4 * _VALUES * NUMBER_BYTES
        if needed > spare:
            found = (
                f"a group of texts needs {format_bytes(needed)}, but half of the free memory is {format_bytes(spare)}"
            )
            raise AttnscopeError(found, hint=f"free some memory, or use smaller groups with {arg('max_memory')}")
        return Grouping(_TOKENS, _VALUES, _WINDOW, 0, 0), numbers // 4, stream_reason, memory
    window = min(_WINDOW, _power_of_two(numbers // 4))
    tokens = min(_TOKENS, _power_of_two(max(1, spare // 4 // a_token)))
    bounds = Grouping(tokens, min(_VALUES, window), window, 0, 0)
    return bounds, numbers // 4, stream_reason, memory


def _window_tokens(source: ModelSource, device: str, cuts: int) -> tuple[int, int]:
    """Return the number of tokens of the first window and of later ones: a kill loses at most the last two windows.

    Args:
        source: The model.
        device: Where it runs. On a GPU, and of a large model whose weights may be read again for every group, a window
            has at least a whole group; all windows of a large model may be equally long (0 for the first one).
        cuts: Heads that are cut in each text, which runs again for each; then a window may be a single text.
    """
    # The second of the windows, 16 times as large as the first, is to take an eighth of the time of the last.
    a_pass = source.config.n_layers * layer_parameters(source.config)
    least = _FEWEST if device == "cpu" and a_pass <= _LARGE else _TOKENS
    most = max(1 if cuts else least, int(_WINDOW_WORK / max(1, (1 + cuts) * a_pass)))
    return (0 if a_pass > _LARGE else min(_FIRST, max(1, most // 128))), most


def _power_of_two(number: int) -> int:
    """Return the largest power of two that is not above a number."""
    return 1 << max(0, int(number).bit_length() - 1)


def _check_same(old: Header, new: Header, path: Path) -> None:
    """Refuse to resume a dump that was made with other settings; other file names do not matter.

    Raises:
        AttnscopeError: A setting, the model or the input differ.
    """
    found = find_change(old, new)
    if found is not None:
        raise AttnscopeError(
            found, where=path, hint=f"choose another output, or pass {arg('force', True)} to start over"
        )
