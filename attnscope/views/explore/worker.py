"""A thread that runs one job after the other, and drops jobs that are no longer wanted."""

import atexit
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnscope.views.walk.scene import Progress, WalkCancelled

# Kind of the jobs that compute what the screen lacks.
_NEEDED = "compute"


@dataclass(frozen=True)
class Job:
    """Something to compute."""

    kind: str  # only the last of several jobs of a kind is wanted
    run: Callable[[Progress], Any]
    done: Callable[[Any], None]
    # identity of the job: a job with the key of the running one does not replace it
    key: Any = None


class Worker:
    """Runs jobs in a thread; `report` is called with the running step (empty for none), and an error."""

    def __init__(
        self,
        deliver: Callable[[Callable[[], None]], object],
        report: Callable[[str, BaseException | None], None],
    ) -> None:
        self._deliver = deliver
        self._report = report
        self._waiting: dict[str, Job] = {}
        self._wakes = threading.Condition()
        self._running: Job | None = None
        self._stopped = False
        self._cancelled = threading.Event()
        self._last = ""
        self.share = 0.0  # how much of the current step is done, from 0 to 1
        self._thread = threading.Thread(target=self._work, name="attnscope-walk", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        # Python ends a daemon thread where it takes the lock again, and C++ of torch aborts the process then.
        atexit.register(self._end_thread)
        self._thread.start()

    def _end_thread(self) -> None:
        """Wait until the thread ends, which it does where it reports progress."""
        self.stop(threading.TIMEOUT_MAX)

    def post(self, job: Job) -> bool:
        """Queue a job, and tell whether it has to wait for another; a running job of the same kind is cancelled."""
        with self._wakes:
            running = self._running
            if running is not None and running.kind == job.kind:
                if self._is_running(job):
                    return False
                self._cancelled.set()
            has_to_wait = running is not None or bool(self._waiting)
            self._waiting[job.kind] = job
            self._wakes.notify()
        return has_to_wait

    def runs(self, job: Job) -> bool:
        """Tell whether a job with the key of this one runs, and was not dropped."""
        with self._wakes:
            return self._is_running(job)

    def _is_running(self, job: Job) -> bool:
        running = self._running
        if running is None or job.key is None or self._cancelled.is_set():
            return False
        return (running.kind, running.key) == (job.kind, job.key)

    def drop(self) -> list[str]:
        """Forget the jobs that wait, and stop the one that runs, but for what the screen lacks; return their kinds."""
        with self._wakes:
            dropped = [kind for kind in self._waiting if kind != _NEEDED]
            for kind in dropped:
                del self._waiting[kind]
            if self._running is not None and self._running.kind != _NEEDED:
                self._cancelled.set()
                dropped.insert(0, self._running.kind)
        return [*dict.fromkeys(dropped)]

    @property
    def busy(self) -> bool:
        """Whether anything is computed or waits."""
        with self._wakes:
            return self._running is not None or bool(self._waiting)

    @property
    def kind(self) -> str:
        """Kind of the job that runs; empty if none does."""
        with self._wakes:
            if self._running is None:
                return ""
            return self._running.kind

    def stop(self, patience: float = 2.0) -> bool:
        """Cancel everything; return whether the thread has ended within `patience` seconds."""
        with self._wakes:
            self._stopped = True
            self._cancelled.set()
            self._wakes.notify()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(patience)
        if self._thread.is_alive():
            return False
        atexit.unregister(self._end_thread)
        return True

    def _work(self) -> None:
        while True:
            with self._wakes:
                self._running = None
                while not self._waiting and not self._stopped:
                    self._wakes.wait()
                if self._stopped:
                    return
                # A user waits for these jobs, which go first.
                next_kind = min(self._waiting, key=lambda job_kind: job_kind == _NEEDED)
                job = self._running = self._waiting.pop(next_kind)
                self._cancelled.clear()
            self._run(job)

    def _run(self, job: Job) -> None:
        try:
            result = job.run(self._progress)
            # it ended between two looks whether it is still wanted
            if self._cancelled.is_set() and job.kind != _NEEDED:
                raise WalkCancelled
        except WalkCancelled:
            self._say("")
        except BaseException as e:
            error = e
            self._end(job, lambda: self._report("", error))
        else:

            def done() -> None:
                job.done(result)
                self._report("", None)

            self._end(job, done)

    def _end(self, job: Job, call: Callable[[], None]) -> None:
        """Deliver a result, before which the thread counts as idle."""
        self._last = ""
        with self._wakes:
            self._running = None
        self._deliver(call)

    def _say(self, status: str) -> None:
        if status != self._last:
            self._last = status
            self._deliver(lambda: self._report(status, None))

    def _progress(self, what: str, done: int, total: int) -> None:
        """Show the progress of a job; raise if it is no longer wanted."""
        if self._cancelled.is_set():
            raise WalkCancelled
        self.share = done / max(1, total)
        # what a step has counted is done before what comes of it
        share = f" · {100 * done // total} %" if done < total > 1 else ""
        self._say(f"{what}{share} …")
