"""Frames on a GPU: how long it waits for the host between launches, by tokens of a text and texts of a frame.

A part of gpu.py, with the model of gpu_dumps.py. Of each frame: the time of its kernels (torch.profiler, copies to the
host left out); the time from the end of one frame to the end of the next where the host only launches (CUDA events,
without the profiler), of which the GPU is idle for what no kernel takes; and the time where the host also builds the
records of each frame. A CUDA graph can save the idle share of the second at most: the host launches the frame at once.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

# Tokens of a text, and texts of a frame
FRAMES = ((64, 1), (64, 16), (64, 256), (512, 1), (512, 8), (512, 32), (2048, 1), (2048, 8))
SMALL_FRAMES = ((8, 1), (8, 3))
KEPT = ("heads", "top,rows", "top,rows,columns")
KERNELS = ("layer_kernel", "ranking_kernel", "column_kernel")
_TOGETHER = 4  # frames that are launched one after the other


def frames(bench: Any, say: Callable[..., None]) -> None:
    """Measure frames of every size."""
    from gpu_dumps import Contest, write_model

    from attnscope.batch.header import Settings
    from attnscope.batch.items import text_item
    from attnscope.batch.loading import open_worker
    from attnscope.request.run_config import RunConfig
    from attnscope.run.session import Session

    with tempfile.TemporaryDirectory() as name:
        folder = write_model(Path(name, "llama"), small=bench.small)
        run = RunConfig(texts=(), model=str(folder), device=bench.device, dtype="bfloat16")
        session = Session(())
        for keep in KEPT:
            settings = Settings(keep=tuple(keep.split(",")), top=5)  # type: ignore[arg-type]
            worker, _, _ = open_worker(settings, run, session)
            for tokens, texts in SMALL_FRAMES if bench.small else FRAMES:
                contest = Contest(folder, bench.device, tokens, texts * _TOGETHER, texts)
                lines = contest.write(Path(name, "texts.txt"), texts * _TOGETHER).read_text()
                ready = [
                    worker.prepare(text_item(n, line)) for n, line in enumerate(lines.splitlines())
                ]
                parts = [ready[start : start + texts] for start in range(0, len(ready), texts)]
                _measure(f"{keep}, {texts} of {tokens} tokens", bench, say, worker, parts)


def _measure(
    name: str, bench: Any, say: Callable[..., None], worker: Any, parts: Sequence[Any]
) -> None:
    """Measure frames of one size."""
    import torch

    real = bench.cuda and torch.version.cuda is not None

    def launch() -> float:
        """Launch all frames, and return the milliseconds from the end of the first to that of the last."""
        ends = []
        running = []
        for part in parts:
            running.append(worker._launch(part))
            ends.append(_now(real))
        if real:
            torch.cuda.synchronize()
        for frame in running:
            frame.finished_trace(lambda: False)
        return float(ends[0].elapsed_time(ends[-1])) if real else 1e3 * (ends[-1] - ends[0])

    def build() -> None:
        for index, part in enumerate(parts):
            worker.process(part, parts[index + 1] if index + 1 < len(parts) else ())

    launch()
    launched = median(launch() for _ in range(bench.runs)) / (len(parts) - 1)
    whole = bench.milliseconds(build) / len(parts)
    busy, launches, ours = kernels_of(launch, real)
    layers = worker._source.config.n_layers
    of_ours = {kernel: round(ms / len(parts) / layers, 4) for kernel, ms in ours.items()}
    say(
        name, launched, "ms a frame", kernels=round(busy / len(parts), 3),
        idle=round(max(0.0, 1 - busy / len(parts) / launched), 3), with_records=round(whole, 3),
        launches_a_layer=round(launches / len(parts) / layers, 1), **of_ours,
    )  # fmt: skip


def _now(real: bool) -> Any:
    """Return an event that the GPU has reached everything that was launched, or the time."""
    import torch

    if not real:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def kernels_of(work: Callable[[], object], real: bool) -> tuple[float, int, dict[str, float]]:
    """Return milliseconds and number of the kernels of something, and the milliseconds of ours by name."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if real else [])]
    with profile(activities=activities) as run:
        work()
    kind = DeviceType.CUDA if real else DeviceType.CPU
    time_of = "self_device_time_total" if real else "self_cpu_time_total"
    events = [
        (event.key, getattr(event, time_of) / 1e3, event.count)
        for event in run.key_averages()
        if event.device_type == kind and not event.key.startswith(("Memcpy", "Memset"))
    ]
    ours = {
        kernel: sum(took for key, took, _ in events if kernel in key)
        for kernel in KERNELS
        if any(kernel in key for key, _, _ in events)
    }
    return sum(took for _, took, _ in events), sum(count for _, _, count in events), ours
