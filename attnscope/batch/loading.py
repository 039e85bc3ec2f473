"""Open the model of a dump: how large groups may be, its header, and the processes that compute.

On GPUs, each worker has one, and loads the model itself. A process that has begun to use a GPU cannot be forked, so
another one, which ends at once, finds out what the header says.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError, ErrorParts, UsageError, arg
from attnscope.base.files.mask_files import cells_digest
from attnscope.base.system.forking import Connection, fork
from attnscope.base.system.gpu import (
    WORTH_A_GPU,
    count_gpus,
    cuda_device,
    gpu_memory,
    has_gpu_driver,
)
from attnscope.base.system.machine import count_cpus, count_threads, machine_memory
from attnscope.batch.blocks import SelectedItems, with_blocks
from attnscope.batch.dump_reader import decoded
from attnscope.batch.formats import format_of
from attnscope.batch.header import (
    CHARACTERS_OF_A_TOKEN,
    SCHEMA,
    Grouping,
    Header,
    InputFacts,
    Settings,
    find_change,
)
from attnscope.batch.journal import Journal
from attnscope.batch.preparing import NUMBER_BYTES, count_units, run_config
from attnscope.batch.reader import InputReader
from attnscope.batch.worker import ModelWorker
from attnscope.checkpoints.source import ModelSource
from attnscope.engines.torch_setup import limit_threads
from attnscope.request.estimate import MemoryDemand, estimate_memory
from attnscope.request.masks.expression import mask_files
from attnscope.request.memory import MemoryLimit, format_bytes, layer_parameters
from attnscope.request.run_config import RunConfig
from attnscope.run.plan import SELECT_LESS, spare_memory
from attnscope.run.session import Session, describe_mask_use, provenance
from attnscope.studies.ablate.plan import bytes_per_token, logit_bytes


class DeviceLimits(NamedTuple):
    """What suits a device: at most so much goes through the model, or is written, together."""

    tokens: int  # of a group, padding included
    values: int  # kept of a group
    window: int  # values kept of a window: larger ones are little faster, and two are held at once
    work: float  # multiplications of a window: a few seconds, after which what it found is saved

    def halved(self) -> "DeviceLimits":
        """Return half of what goes through the model together."""
        return self._replace(
            tokens=self.tokens // 2, values=self.values // 2, window=self.window // 2
        )


_ON_CPU = DeviceLimits(1 << 10, 1 << 22, 1 << 24, 2e11)
_ON_GPU = DeviceLimits(1 << 14, 1 << 26, 1 << 27, 2e14)
_SHARE_OF_GPU = 4  # a group and what is kept of it take at most this part of the device
_LARGE = 5e8  # parameters of layers from which weights may take longer than a few tokens
_FEWEST = 256  # tokens of a window: fewer at a time take longer each
_SPANS = 16  # spans that a text is taken to have, each of which is cut
_WORTH_WORKERS = 2.0  # seconds of one process below which workers are not started
_TEXTS_HELD = 4  # of the largest size that is computed, by as many workers at most
_TOKEN_SECONDS = 1e-4  # that a token takes beside its multiplications: a guess
_MULTIPLICATIONS = 5e10  # in a second: a guess
_FIRST = 64  # tokens of the first window at most: something is saved as soon as the model is there


@dataclass(frozen=True)
class DumpConfig:
    """Options of `attnscope batch`."""

    input: str  # a file, or `-` for standard input; a name for texts in memory
    format: str | None  # format of the input; None for the one of its extension
    output: Path  # a .jsonl file, a folder, or `-` for lines to standard output
    settings: Settings
    run: RunConfig  # model, mask and machine; its texts and selection are not looked at
    # start over; an existing dump is kept until records of the new one are safe
    force: bool = False
    strict: bool = False
    # stop after this time, with everything saved; None for no limit
    max_minutes: float | None = None
    # processes that compute; 0 for this one alone, None for what is faster on CPUs, and one process on a GPU
    workers: int | Literal["auto"] | None = None
    configured: Mapping[str, str] = field(
        default_factory=dict
    )  # options from settings files, and where these have them
    lines: bytes | None = None  # texts in memory, in place of a file; see InputReader

    def open_input(self) -> InputReader:
        """Open the input."""
        return InputReader(self.input, self.format, self.settings.column, self.lines)


@dataclass(frozen=True)
class Loaded:
    """Workers, header and limits of a dump."""

    # returns the ModelWorker of a process, by the worker's number from 0
    work: Callable[[int], ModelWorker]
    header: Header
    holds: int
    workers: int  # number of processes; 0 for this one


def open_worker(
    settings: Settings, run: RunConfig, session: Session
) -> tuple[ModelWorker, Grouping, int]:
    """Open a model for texts that come from no file and go to no dump.

    Returns it with bounds of groups and windows, and how many numbers of a text fit into memory.
    """
    run = run_config(settings, run)
    model, bounds, holds = _open(settings, run, session)
    source = session.source(run)
    cuts = _count_cuts(settings, run, source)
    _, max_tokens = _window_tokens(source, bounds, model.device.type, cuts)
    threads = limit_threads(run.threads or 0)
    return model, replace(bounds, window_tokens=max_tokens, threads=threads), holds


def _open(
    settings: Settings,
    run: RunConfig,
    session: Session,
    wanted_bounds: Grouping | None = None,
    *,
    rows_first: bool = False,
) -> tuple[ModelWorker, Grouping, int]:
    """Open a model, with bounds of groups, or the given ones; see open_worker."""
    bounds, holds, stream_reason, memory = _group_limits(settings, run, session.source(run))
    bounds = wanted_bounds or bounds
    model = ModelWorker(
        run, settings, session, bounds.tokens, stream_reason, memory, rows_first=rows_first
    )
    return model, bounds, holds


@dataclass(frozen=True)
class Loader:
    """Opens the model of a dump."""

    order: DumpConfig
    run: RunConfig
    session: Session
    facts: InputFacts
    items: SelectedItems
    journal: Journal

    def load(self) -> Loaded:
        """Open the model; with workers, each on a GPU of its own if it runs there."""
        run = self.run
        session = self.session
        settings = self.order.settings
        may_use_gpu = run.device.startswith("cuda") or (run.device == "auto" and has_gpu_driver())
        workers = self.order.workers
        if workers is None:
            # Libraries of other systems may not survive a fork, and a number of threads is a limit.
            limited = run.threads is not None or count_threads() != count_cpus()
            alone = limited or may_use_gpu or sys.platform != "linux"
            workers = 0 if alone else "auto"
        if workers == 0 or not may_use_gpu:
            return self._load_here(workers)
        session.source(run)  # opened here, once for all workers
        gpu_facts, gpus = self._ask_apart()
        if gpu_facts is None:
            return self._load_here(workers)
        header, holds, device = gpu_facts
        if workers == "auto":
            if gpus < 2:
                return self._load_here(0)
            workers = gpus
        if run.device.startswith("cuda:") and workers > 1:
            hint = "remove its number: each worker takes a GPU, from cuda:0 on"
            raise UsageError(
                f"{workers} workers cannot share it", where=arg("device", run.device), hint=hint
            )
        if workers > gpus:
            count = "there is one GPU" if gpus == 1 else f"there are {gpus} GPUs"
            raise UsageError(count, where=arg("workers", workers), hint=f"use {gpus}, or auto")

        def work(index: int) -> ModelWorker:
            limit_threads(header.grouping.threads)
            mine = replace(run, device=device if workers == 1 else f"cuda:{index}")
            return _open(settings, mine, session, header.grouping, rows_first=self._writes_shards)[
                0
            ]

        return Loaded(work, header, holds, workers)

    @property
    def _writes_shards(self) -> bool:
        output = format_of(self.order.output)
        return output is not None and output.layout == "shards"

    def _ask_apart(self) -> tuple[tuple[Header, int, str] | None, int]:
        """Return (header, numbers that memory holds, device), or None for the CPU, and the number of GPUs."""

        def ask(pipe: Connection) -> None:
            try:
                loaded = self._load_here(1)
                device = loaded.work(0).device
                gpu_facts = None
                if device.type == "cuda":
                    gpu_facts = loaded.header, loaded.holds, str(device)
                pipe.send((gpu_facts, count_gpus()))
            except AttnscopeError as e:
                pipe.send((type(e), tuple(ErrorParts(*e.parts))))

        pid, pipe = fork(ask)
        try:
            answer = pipe.recv()
        except EOFError as e:
            hint = f"use {arg('device', 'cpu')}"
            raise AttnscopeError(
                "the GPU cannot be used", where=arg("device", self.run.device), hint=hint
            ) from e
        finally:
            pipe.close()
            os.waitpid(pid, 0)
        if isinstance(answer[0], type):
            error, (message, where, hint) = answer
            raise error(message, where=where, hint=hint)
        loaded, gpus = answer
        return loaded, int(gpus)

    def _load_here(self, workers: int | Literal["auto"]) -> Loaded:
        """Open the model in this process, and choose how many processes compute unless `workers` says it."""
        run = self.run
        settings = self.order.settings
        journal = self.journal
        old = None
        if journal.written.header is not None:
            old = decoded(journal.written.header, Header, journal.path)
        source = self.session.source(run)
        model, bounds, holds = _open(
            settings,
            run,
            self.session,
            None if old is None else old.grouping,
            rows_first=self._writes_shards,
        )
        if old is None:
            first_tokens, window_tokens = _window_tokens(
                source, bounds, model.device.type, _count_cuts(settings, run, source)
            )
            bounds = replace(bounds, window_tokens=window_tokens, first_window_tokens=first_tokens)
            bounds = with_blocks(bounds, settings, self.items.costs)
        if workers == "auto" and "stages" in settings.keep:
            workers = 0  # matrices take longer from process to process than to compute
        if workers == "auto":
            a_token = source.config.n_layers * layer_parameters(source.config)
            workers, bounds = choose_workers(bounds, run.threads, self.items, a_token, holds)
        elif workers:
            bounds = replace(bounds, threads=bounds.threads or run.threads or 1)
        if workers:
            if model.device.type not in ("cpu", "cuda"):
                message = f"processes cannot share a model on {model.device.type}"
                hint = arg("device", "cpu")
                raise AttnscopeError(
                    message, where=arg("workers"), hint=f"use {arg('workers', 0)}, or {hint}"
                )
            if model.device.type == "cpu":  # on a GPU, each worker has a copy of its own
                model.warm_up()  # workers that are forked now share the weights
        bounds = replace(bounds, threads=limit_threads(bounds.threads))
        seen = None if source.mask_known else "own"  # what that is, only running a text shows
        mask = describe_mask_use(source, run, seen)
        values = "exact"
        if "pooled" in settings.keep and "stages" not in settings.keep:
            values = "pooled"
        cells = tuple(cells_digest(run.matrices[name])[:16] for name in mask_files(run.mask))
        origin = provenance(source, run, model.device, values)
        new = Header(
            SCHEMA, origin, mask, settings, self.facts, bounds, cells, dict(self.order.configured)
        )
        if old is not None:
            _check_same(old, new, journal.path)
        return Loaded(lambda index: model, new, holds, workers)


def choose_workers(
    bounds: Grouping, threads: int | None, items: SelectedItems, a_token: float, holds: int
) -> tuple[int, Grouping]:
    """Return the number of workers, 0 for this process alone, and the bounds with the number of threads.

    A worker has one thread: its products wait for no other thread, and what is beside them runs in parallel, too
    (benchmarks/workers.py). A short run would not make up for their start. A dump that is resumed keeps its number of
    threads, which decides the last bits of numbers.

    Args:
        threads: Threads of a worker, as the user asked for; None for one.
        a_token: Multiplications of a token.
        holds: Numbers that memory holds of a text, a fourth of those that it holds at all.
    """
    each = bounds.threads or threads or 1
    workers = count_cpus() // each
    if not bounds.threads:
        tokens = items.characters() / CHARACTERS_OF_A_TOKEN
        seconds = tokens * (_TOKEN_SECONDS + a_token / _MULTIPLICATIONS)
        if seconds >= _WORTH_WORKERS:
            workers = min(workers, items.count_blocks(bounds))
        else:
            workers = 0
    if workers < 2:
        return 0, replace(bounds, threads=bounds.threads or limit_threads(threads or 0))
    # Free memory does not decide the number of threads, which is the same for all shards.
    workers = max(1, min(workers, _fitting_workers(bounds, items, holds)))
    return workers, replace(bounds, threads=each)


def _fitting_workers(bounds: Grouping, items: SelectedItems, holds: int) -> int:
    """Return how many workers memory holds: each has a group and two windows, or one long text."""
    longest = max(items.selected_costs(), default=0) / CHARACTERS_OF_A_TOKEN
    if longest > bounds.tokens:
        return _TEXTS_HELD
    return _TEXTS_HELD * holds // (bounds.values + 2 * bounds.window)


def _group_limits(
    settings: Settings, run: RunConfig, source: ModelSource
) -> tuple[Grouping, int, str, MemoryLimit]:
    """Return the limits of groups, and how many numbers memory holds of a text.

    Groups decide the last bits of the numbers. So they depend only on the request: they are as large as is useful,
    or as `--max-memory` allows, however much memory is free.
    """
    units = count_units(run, source)
    layers = source.config.n_layers
    heads = source.config.n_heads
    tokens = 256
    cells = units * tokens
    copied_elements = source.copied_elements
    cut = bool(settings.runs_again)
    demand = MemoryDemand(
        *(layers, 1, tokens, 1000, cells, 0, 0),
        heads=heads,
        copied_elements=copied_elements,
        tiled_queries=tokens,
        threads=run.threads or count_threads(),
        predicted=int(cut and source.predicts is not None),
    )
    more = {"kept": logit_bytes(source)} if cut else {}
    spare, stream_reason, memory = spare_memory(
        run, source, demand, more, (SELECT_LESS,), multiplications=WORTH_A_GPU
    )
    holds = max(1, spare // NUMBER_BYTES) // _TEXTS_HELD
    a_token = estimate_memory(source.config, run.dtype, demand)["activations"] // tokens
    if cut:
        a_token += sum(bytes_per_token(source))
    limits = _device_limits(run, a_token)
    if run.max_memory is None:
        size = limits.tokens * a_token + 4 * limits.values * NUMBER_BYTES
        if size > spare:
            message = f"a group of texts needs {format_bytes(size)}, but half of the free memory is {format_bytes(spare)}"
            raise AttnscopeError(
                message, hint=f"free some memory, or use smaller groups with {arg('max_memory')}"
            )
        bounds = Grouping(limits.tokens, limits.values, limits.window, 0)
    else:
        window = min(limits.window, _power_of_two(holds))
        tokens = min(limits.tokens, _power_of_two(max(1, spare // 4 // a_token)))
        bounds = Grouping(tokens, min(limits.values, window), window, 0)
    return bounds, holds, stream_reason, memory


def _device_limits(run: RunConfig, a_token: int) -> DeviceLimits:
    """Return what suits the device of a run, whose activations take `a_token` bytes for each token.

    It follows from the device and its whole memory, not from what is free: parts of a dump that are made on machines of
    one kind have groups of one size.
    """
    device = cuda_device(run.device, WORTH_A_GPU)
    memory = None if device is None else gpu_memory(device)
    if memory is None:
        return _ON_CPU
    limits = _ON_GPU
    room = min(memory.total, machine_memory()) // _SHARE_OF_GPU
    while (
        limits.tokens > _ON_CPU.tokens
        and limits.tokens * a_token + 4 * limits.values * NUMBER_BYTES > room
    ):
        limits = limits.halved()
    return limits


def _count_cuts(settings: Settings, run: RunConfig, source: ModelSource) -> int:
    heads = count_units(run, source) if "effects" in settings.keep else 0
    return heads + (_SPANS if "span_effects" in settings.keep else 0)


def _window_tokens(
    source: ModelSource, bounds: Grouping, device: str, cuts: int
) -> tuple[int, int]:
    """Return the number of tokens of the first window and of later ones: a kill loses at most the last two windows.

    Args:
        device: Where it runs. On a GPU, and of a large model whose weights may be read again for every group, a window
            has at least a whole group; all windows of a large model may be equally long (0 for the first one).
        cuts: Heads and spans that are cut in each text, which runs again for each; then a window may be a single text.
    """
    a_pass = source.config.n_layers * layer_parameters(source.config)
    if device == "cpu" and a_pass <= _LARGE:
        least = _FEWEST
    else:
        least = max(bounds.tokens, _ON_CPU.tokens)
    work = (_ON_CPU if device == "cpu" else _ON_GPU).work
    limit = max(1 if cuts else least, int(work / max(1, (1 + cuts) * a_pass)))
    return (0 if a_pass > _LARGE else min(_FIRST, max(1, limit // 8))), limit


def _power_of_two(value: int) -> int:
    return 1 << max(0, int(value).bit_length() - 1)


def _check_same(old: Header, new: Header, path: Path) -> None:
    """Refuse to resume a dump that was made with other settings; file names do not matter, and a limit may grow."""
    old_limit = old.settings.limit
    new_limit = new.settings.limit
    if old_limit is not None and (new_limit is None or new_limit > old_limit):
        old = replace(old, settings=replace(old.settings, limit=new_limit))
    change = find_change(old, new)
    if change is not None:
        raise AttnscopeError(
            change,
            where=path,
            hint=f"choose another output, or pass {arg('force', True)} to start over",
        )
