"""Whether worker processes are faster than this process, measured on the first texts of an input."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from msgspec.structs import replace

from attnscope.base.system.forking import fork
from attnscope.base.system.processor import count_cpus
from attnscope.batch.blocks import SelectedItems
from attnscope.batch.header import CHARACTERS_OF_A_TOKEN, Grouping
from attnscope.batch.items import Item, cost
from attnscope.batch.records import Record, encode
from attnscope.batch.windows import OutOfTime, TextWorker, WindowComputer
from attnscope.engines.torch_setup import limit_threads

_SHARE = 0.01  # of the time that the run may take, for each of two trials
# seconds of a trial
_LEAST = 0.15
_MOST = 1.0
_WORTH = 10.0  # seconds of one process below which nothing is tried
_GAIN = 1.05  # how much faster workers have to be
_TEXTS = 1024  # of a trial at most
_TOKEN = 1e-4  # seconds that a token takes beside its multiplications: a guess
_RATE = 5e10  # multiplications in a second: a guess


def choose_workers(
    work: TextWorker[Any], bounds: Grouping, threads: int | None, items: SelectedItems, holds: int, a_token: float
) -> tuple[int, Grouping]:
    """Return the number of workers, 0 for this process alone, and the bounds with the number of threads.

    A dump that is resumed keeps its number of threads: with one, workers go on; with several, this process. What is
    tried takes two hundredths of the time of the run, since its records cannot be kept: the number of threads decides
    their last bits, and is chosen only then.
    """
    cpus = count_cpus()
    if bounds.threads:
        return (cpus if bounds.threads == 1 and cpus > 1 else 0), bounds
    alone = replace(bounds, threads=limit_threads(0))
    shared = replace(bounds, threads=threads or 1)
    characters = items.characters()
    guess = characters / CHARACTERS_OF_A_TOKEN * (_TOKEN + a_token / _RATE)
    if cpus < 2 or guess < _WORTH:
        return 0, alone
    sample = list(islice(items.select(bounds), _TEXTS))
    workers = min(cpus, sample[-1].block + 1) if sample else 0
    if workers < 2:
        return 0, alone
    seconds = min(_MOST, max(_LEAST, _SHARE * guess))

    def speed(threads: int, processes: int) -> float:
        trial = partial(_trial, work, bounds, holds, sample, threads, seconds, processes > 1)
        return _speed(trial, processes)

    single = speed(alone.threads, 1)
    if characters < _WORTH * single:
        return 0, alone
    return (workers, shared) if speed(shared.threads, workers) > _GAIN * single else (0, alone)


def _trial(
    work: TextWorker[Any], bounds: Grouping, holds: int, texts: list[Item], threads: int, seconds: float, encodes: bool
) -> float:
    """Return the characters per second of computing groups until the time is over.

    With `encodes` it makes lines of records, as a worker does; a process alone leaves that to a thread.
    """
    limit_threads(threads)
    costs, done, begun = {item.index: cost(item) for item in texts}, 0, time.perf_counter()

    def run_group(indices: tuple[int, ...], compute: Callable[[], list[Record]]) -> list[Record]:
        nonlocal done
        records = compute()
        if encodes:
            for record in records:
                encode(record)
        done += sum(costs[index] for index in indices)
        if time.perf_counter() - begun > seconds:
            raise OutOfTime
        return records

    computer = WindowComputer(work, bounds, holds=holds, needs_all_records=False)
    computer.run_group = run_group
    with suppress(OutOfTime):
        for window in computer.windows(texts):
            computer.compute(window, 0)
    return done / (time.perf_counter() - begun)


def _speed(trial: Callable[[], float], processes: int) -> float:
    """Return the speed of forked processes together, which try at the same time; 0 if one fails."""
    started = [fork(lambda pipe: pipe.send(trial())) for _ in range(processes)]
    speeds = list[float]()
    for pid, pipe in started:
        with suppress(EOFError):
            speeds.append(pipe.recv())
        pipe.close()
        os.waitpid(pid, 0)
    return sum(speeds) if len(speeds) == processes else 0.0
