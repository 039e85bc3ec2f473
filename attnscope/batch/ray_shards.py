"""Write a dump with actors of Ray: each takes a shard at a time, and the driver merges the parts.

The shard with its journal is the unit of work: an actor that is lost, with its node or without, leaves a journal in the
shared folder from which another one goes on. The number of shards is kept in that folder, so that a run that is started
again may have another number of actors.
"""

import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from attnscope.base.errors import RAY, AttnscopeError, arg
from attnscope.base.system.signals import ended_by_sigterm
from attnscope.batch.convert import merge
from attnscope.batch.dump import write_dump
from attnscope.batch.file_errors import OutputInUse
from attnscope.batch.formats import ending_of
from attnscope.batch.header import Header, find_change
from attnscope.batch.loading import DumpConfig
from attnscope.batch.parts import gather_parts_of, lines_path, read_part
from attnscope.batch.reader import InputReader
from attnscope.batch.summary import Summary
from attnscope.run.session import Session

_SHARDS_EACH = 4  # shards of an actor: a slow one leaves some to the others
_MOST = 1000
_PATIENCE = 60.0  # seconds that a journal may be locked by an actor that is just ending
_TICK = 0.5
_PIECE = 1 << 20


@dataclass(frozen=True)
class RayConfig:
    """How a dump is spread over a cluster."""

    address: str = "local"  # address of the cluster; `local` for one that is started here
    # number of actors; None for as many as the cluster's CPUs (or GPUs) allow
    actors: int | None = None
    cpus: float = 1
    gpus: float = 0
    resources: dict[str, float] | None = None


RayProgress = Callable[[Summary, int], None]


class ShardWriter:
    """An actor: writes shards, one after the other, with a model that is loaded once.

    Args:
        folder: The working folder of the driver, to which the names of its files are relative.
    """

    def __init__(self, folder: str) -> None:
        os.chdir(folder)
        self._session: Session | None = None
        self._input: InputReader | None = None

    def write(self, order: DumpConfig) -> None:
        """Write one shard, or go on with it; all shards are of one input."""
        reader = self._input = self._input or order.open_input()
        if self._session is None:
            self._session = Session(item.text for item in reader.items() if item.text is not None)
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                write_dump(order, lambda summary, total: None, session=self._session, reader=reader)
                return
            except OutputInUse:
                if time.monotonic() > until:
                    raise
                time.sleep(1)


class RecordCounter:
    """Counts the records of parts that grow; of a compressed part only once it is finished.

    Attributes:
        finished: Records of the parts that are finished.
    """

    def __init__(self, parts: Sequence[Path]) -> None:
        self._places = dict.fromkeys(parts, 0)
        self._lines = dict.fromkeys(parts, 0)
        ends = {part: read_part(part).end for part in parts if part.exists()}
        self.finished = {part: end.records for part, end in ends.items() if end is not None}

    def records(self) -> int:
        """Return the number of records."""
        for part in self._lines.keys() - self.finished.keys():
            path = lines_path(part)
            if not path.exists():
                continue
            with open(path, "rb") as file:
                file.seek(self._places[part])
                while piece := file.read(_PIECE):
                    self._lines[part] += piece.count(b"\n")
                    self._places[part] += len(piece)
        # The first line is the header.
        return sum(
            self.finished.get(part, max(0, lines - 1)) for part, lines in self._lines.items()
        )


def write_with_ray(order: DumpConfig, config: RayConfig, on_progress: RayProgress) -> Summary:
    """Write a dump with actors of Ray, or resume one.

    Args:
        order: The request; its output is a file of lines or a folder on a disk that all nodes share.
        on_progress: Called with the finished and the expected number of records (0 if unknown).
    """
    RAY.require("--ray")
    import ray

    folder = order.output.with_name(f"{order.output.name}.parts")
    if order.output.exists() and not order.force and not folder.exists():
        part = read_part(order.output)
        if part.end is not None and part.header is not None:
            _check_settings(part.header, order)
            summary = Summary(resumed=part.end.records)
            summary.counts.update(ok=part.end.ok, skipped=part.end.skipped, failed=part.end.failed)
            return summary
    if order.force and folder.exists():
        shutil.rmtree(folder)
    started = not ray.is_initialized()
    if started:
        # A Ray that is started here reports nothing home.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            # Ray waits five seconds, when it stops, for its processes to end at SIGTERM.
            with ended_by_sigterm():
                ray.init(address=config.address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as e:
            message = f"no cluster of Ray at '{config.address}' ({' '.join(str(e).split())[:200]})"
            raise AttnscopeError(
                message, hint="start one with ray start --head, or leave the address out"
            ) from e
    try:
        summary = _write_shards(ray, order, config, folder, on_progress)
    finally:
        if started:
            ray.shutdown()
    return summary


def _check_settings(old: Header, order: DumpConfig) -> None:
    change = find_change(old, msgspec.structs.replace(old, settings=order.settings))
    if change is not None:
        hint = f"choose another output, or pass {arg('force', True)} to start over"
        if old.settings.limit != order.settings.limit:
            hint = f"run it without {arg('ray')} to go on from there, or pass {arg('force', True)} to start over"
        raise AttnscopeError(change, where=order.output, hint=hint)


def _write_shards(
    ray: Any, order: DumpConfig, config: RayConfig, folder: Path, on_progress: RayProgress
) -> Summary:
    free = ray.cluster_resources()
    if config.gpus:
        fitting = free.get("GPU", 0) / config.gpus
    else:
        fitting = free.get("CPU", 1) / max(config.cpus, 1e-3)
    actors = config.actors or max(1, int(fitting))
    count = _shard_count(folder, actors)
    ending = ending_of(order.output)
    parts = [
        folder.absolute() / f"part-{shard_number:04d}-of-{count:04d}{ending}"
        for shard_number in range(1, count + 1)
    ]
    options = {
        "num_cpus": config.cpus,
        "num_gpus": config.gpus,
        "resources": config.resources or {},
    }
    remote = ray.remote(max_restarts=-1, max_task_retries=-1, **options)(ShardWriter)
    counter = RecordCounter(parts)
    summary = Summary()
    waiting = [
        shard_number for shard_number, part in enumerate(parts, 1) if part not in counter.finished
    ]
    free_actors = [remote.remote(os.getcwd()) for _ in range(min(actors, len(waiting)))]
    summary.workers = actors
    summary.resumed = counter.records()
    running: dict[Any, tuple[Any, int]] = {}

    def hand_out() -> None:
        while waiting and free_actors:
            actor = free_actors.pop()
            shard_number = waiting.pop(0)
            running[
                actor.write.remote(_shard(order, parts[shard_number - 1], shard_number, count))
            ] = (
                actor,
                shard_number,
            )

    hand_out()
    while running:
        done, _ = ray.wait(list(running), timeout=_TICK)
        for task in done:
            actor, shard_number = running.pop(task)
            try:
                ray.get(task)
                free_actors.append(actor)
                if (end := read_part(parts[shard_number - 1]).end) is not None:
                    counter.finished[parts[shard_number - 1]] = end.records
                    summary.counts["failed"] += end.failed
            except ray.exceptions.RayActorError:
                # It is gone for good: another one goes on from its journal.
                waiting.insert(0, shard_number)
                free_actors.append(remote.remote(os.getcwd()))
            except ray.exceptions.RayTaskError as e:
                if isinstance(e.cause, AttnscopeError):
                    raise e.cause from e
                raise
        hand_out()  # before anything is counted: no actor waits for that
        summary.computed = counter.records() - summary.resumed
        summary.nodes = sum(node["Alive"] for node in ray.nodes())
        on_progress(summary, _total(parts))
    merged = merge(parts, order.output, force=order.force or order.output.exists())
    summary.computed = merged.records - summary.resumed
    summary.counts = Counter(ok=merged.ok, skipped=merged.skipped, failed=merged.failed)
    shutil.rmtree(folder)
    return summary


def _shard(order: DumpConfig, output: Path, shard_number: int, count: int) -> DumpConfig:
    settings = msgspec.structs.replace(order.settings, shard=(shard_number, count))
    run = msgspec.structs.replace(order.run, threads=order.run.threads or 1)
    return replace(order, output=output, settings=settings, force=False, workers=0, run=run)


def _shard_count(folder: Path, actors: int) -> int:
    """Return the number of shards: that of the run that began, if there is one."""
    note = folder / "shards"
    if note.is_file():
        return int(note.read_text())
    count = min(_MOST, _SHARDS_EACH * actors)
    folder.mkdir(exist_ok=True)
    temporary = folder / ".shards"
    temporary.write_text(str(count))
    temporary.replace(note)
    return count


def _total(parts: Sequence[Path]) -> int:
    begun = [path for path in parts if path.exists()]
    with suppress(AttnscopeError):
        return gather_parts_of(begun[:1]).total if begun else 0
    return 0
