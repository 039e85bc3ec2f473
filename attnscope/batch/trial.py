"""Whether worker processes are faster than this process, measured on the first texts of an input."""

import math
import os
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.system.forking import fork
from attnscope.base.system.threads import count_cpus
from attnscope.batch.blocks import SelectedItems
from attnscope.batch.header import Grouping, Header
from attnscope.batch.items import Item
from attnscope.batch.windows import TextWorker, WindowComputer
from attnscope.engines.torch_setup import limit_threads

_SECONDS = 0.6  # of a trial, of which there are two
_WORTH = 15.0  # seconds of one process below which nothing is tried
_GAIN = 1.05  # how much faster workers have to be
_FEW, _TEXTS = 64, 1024  # texts of a first look, and of a trial at most


def check_workers(device: str, old: Header | None) -> None:
    """Refuse workers that could not share a model or an input.

    Raises:
        AttnscopeError: The model is on a GPU, or an older version began the dump.
    """
    if device != "cpu":
        hint = f"run one process for each GPU: {arg('shard')} 1/2 with {arg('device', 'cuda:0')}, and so on; then merge"
        raise AttnscopeError("processes cannot share a model on a GPU", where=arg("workers"), hint=hint)
    if old is not None and not old.grouping.block_characters:
        message = "the dump was begun by an older version, which has no blocks to share out"
        raise AttnscopeError(message, where=arg("workers"), hint="remove it to resume with one process")


def choose_workers(
    work: TextWorker[Any], bounds: Grouping, threads: int | None, items: SelectedItems, holds: int
) -> tuple[int, Grouping]:
    """Return the number of workers, 0 for this process alone, and the bounds with the number of threads.

    A dump that is resumed keeps its number of threads: with one, workers go on; with several, this process.

    Args:
        work: Looks into texts; its model is loaded.
        bounds: Bounds of groups and blocks; threads are 0 in a new dump.
        threads: Number of threads that the user asked for.
        items: The input.
        holds: See runner.Runner.
    """
    cpus = count_cpus()
    if bounds.threads:
        return (cpus if bounds.threads == 1 and cpus > 1 else 0), bounds
    alone, shared = replace(bounds, threads=limit_threads(0)), replace(bounds, threads=threads or 1)
    sample = list(islice(items.select(bounds), _TEXTS))
    workers = min(cpus, sample[-1].block + 1) if sample else 0
    if workers < 2:
        return 0, alone

    def compute(texts: list[Item], threads: int) -> None:
        limit_threads(threads)
        computer = WindowComputer(work, bounds, holds=holds, needs_all_records=False)
        for window in computer.windows(texts):
            computer.compute(window, 0, lambda new: None)

    few = sample[:_FEW]
    probe = len(few) / _seconds(lambda: compute(few, shared.threads), 1)
    if items.count(bounds) / probe < _WORTH:
        return 0, alone
    texts = sample[: max(_FEW, int(probe * _SECONDS))]
    single = 1 / _seconds(lambda: compute(texts, alone.threads), 1)
    several = workers / _seconds(lambda: compute(texts, shared.threads), workers)
    return (workers, shared) if several > _GAIN * single else (0, alone)


def _seconds(compute: Callable[[], None], processes: int) -> float:
    """Return how long forked processes take for the same, at the same time; infinity if one fails."""
    begun = time.perf_counter()
    started = [fork(lambda pipe: (compute(), pipe.send(True))) for _ in range(processes)]  # type: ignore[func-returns-value]
    whole = True
    for pid, pipe in started:
        try:
            whole = pipe.recv() and whole
        except EOFError:
            whole = False
        pipe.close()
        os.waitpid(pid, 0)
    return time.perf_counter() - begun if whole else math.inf
