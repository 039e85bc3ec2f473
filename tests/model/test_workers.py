"""Parts that are computed on several threads: order, errors, interruption."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
import torch

from attnscope.model import attention, workers
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.workers import Deferred, run_parts
from attnscope.request.masks.terms import Bidirectional

THREADS = [1, 2, 3]


@pytest.mark.parametrize("n_threads", THREADS)
def test_what_is_deferred_runs_in_the_order_of_parts(n_threads: int) -> None:
    order: list[int] = []

    def compute(part: int, thread: int) -> list[Deferred]:
        time.sleep(0.002 * (part % 3))  # later parts are often ready first
        return [lambda: order.append(part)]

    run_parts(iter(range(40)), compute, n_threads)
    assert order == list(range(40))


def test_parts_are_computed_side_by_side_with_one_openmp_thread_each() -> None:
    together, seen = threading.Barrier(2, timeout=20), set[tuple[int, int]]()

    def compute(part: int, thread: int) -> list[Deferred]:
        together.wait()  # raises unless another thread arrives
        seen.add((thread, torch.get_num_threads()))
        return []

    before = torch.get_num_threads()
    run_parts(iter(range(2)), compute, 2)
    assert seen == {(0, 1), (1, 1)}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("n_threads", THREADS)
def test_threads_compute_in_the_inference_mode_of_the_caller(n_threads: int) -> None:
    modes: list[bool] = []

    def compute(part: int, thread: int) -> list[Deferred]:
        modes.append(torch.is_inference_mode_enabled())
        return []

    with torch.inference_mode():
        run_parts(iter(range(4)), compute, n_threads)
    run_parts(iter(range(4)), compute, n_threads)
    assert modes == [True] * 4 + [False] * 4


@pytest.mark.parametrize("n_threads", THREADS)
def test_the_first_part_that_fails_is_reported_whichever_is_the_quickest(n_threads: int) -> None:
    done: list[int] = []

    def compute(part: int, thread: int) -> list[Deferred]:
        if part == 3:
            time.sleep(0.05)
        if part >= 3:
            raise ValueError(f"part {part}")
        return [lambda: done.append(part)]

    with pytest.raises(ValueError, match="part 3"):
        run_parts(iter(range(100)), compute, n_threads)
    assert done == [0, 1, 2]


@pytest.mark.parametrize("n_threads", THREADS)
def test_an_error_while_parts_are_made_is_raised(n_threads: int) -> None:
    def parts() -> Iterator[int]:
        yield 0
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        run_parts(parts(), lambda part, thread: [], n_threads)


@pytest.mark.parametrize("n_threads", THREADS)
def test_an_error_in_what_was_deferred_is_raised(n_threads: int) -> None:
    def fail() -> None:
        raise ValueError("cannot be added")

    with pytest.raises(ValueError, match="cannot be added"):
        run_parts(iter(range(100)), lambda part, thread: [fail], n_threads)


def test_no_thread_is_far_in_front_of_the_slowest() -> None:
    going, behind = threading.Event(), list[int]()
    computed: list[int] = []

    def compute(part: int, thread: int) -> list[Deferred]:
        if part == 0:
            going.wait(0.3)  # meanwhile the other thread would compute everything
            behind.append(len(computed))
        computed.append(part)
        return []

    run_parts(iter(range(1000)), compute, 2)
    assert len(computed) == 1000
    assert behind[0] < 10


def test_after_an_interruption_no_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    started, computed = threading.Event(), list[int]()

    def compute(part: int, thread: int) -> list[Deferred]:
        started.set()
        time.sleep(0.01)
        computed.append(part)
        return []

    def interrupt(self: object) -> None:
        started.wait(20)
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.Future.result", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_parts(iter(range(1000)), compute, 2)
    count = len(computed)
    assert count < 1000
    time.sleep(0.05)
    assert len(computed) == count


@pytest.mark.parametrize(
    ("queries", "heads", "rows", "threads"),
    [(256, 4, None, 3), (255, 4, None, 1), (2048, 4, range(32), 3), (2048, 4, range(31), 1)],
)
def test_a_layer_is_worth_all_threads_from_262144_cells_on(
    monkeypatch: pytest.MonkeyPatch, queries: int, heads: int, rows: range | None, threads: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    n_keys = 256 if rows is None else 2048
    for device, expected in (("cpu", threads), ("meta", 1)):
        q, k = (
            torch.empty(1, 8, queries, 2, device=device),
            torch.empty(1, 8, n_keys, 2, device=device),
        )
        inputs = AttentionInputs(0, q, k, k, AttentionSpec(1.0, Bidirectional()))
        cells = attention._cells(inputs, range(heads), rows)
        assert attention._threads(cells, inputs.q.device) == expected


def test_no_thread_computes_after_an_interruption_while_they_were_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool, began, ended = workers._pool(2), threading.Event(), list[int]()

    class Interrupted:
        def submit(self, work: Callable[[int], None], number: int) -> Future[None]:
            if number:
                assert began.wait(10)
                raise KeyboardInterrupt
            return pool.submit(work, number)

    def compute(part: int, thread: int) -> list[Deferred]:
        began.set()
        time.sleep(0.2)
        ended.append(part)
        return []

    monkeypatch.setattr(workers, "_pool", lambda count: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        workers.run_parts(iter(range(5)), compute, 2)
    assert ended == [0]
