"""How many threads a run uses, and that its findings do not depend on them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnscope.base.model_config import ModelConfig
from attnscope.engines.torch_setup import set_threads
from attnscope.findings.codec import to_json
from attnscope.request.estimate import MemoryDemand, estimate_memory
from attnscope.request.run_config import TextInput
from attnscope.run.session import inspect
from tests.helpers.requests import requested


@pytest.fixture(autouse=True)
def _as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_run_uses_as_many_as_it_was_told(threads):
    text = TextInput("the bank by the river " * 40)
    run = requested((text,), config="multi-head", layer="all", head="all", query="3:9")
    plain = inspect(run)
    told = inspect(
        requested(
            (text,), config="multi-head", layer="all", head="all", query="3:9", threads=threads
        )
    )
    assert torch.get_num_threads() == threads
    assert to_json(told) == to_json(plain)


def test_little_work_takes_one_thread_unless_more_are_named():
    set_threads(1, None)
    assert torch.get_num_threads() == 1
    set_threads(1, 2)
    assert torch.get_num_threads() == 2


def test_the_estimate_counts_the_tiles_of_every_thread():
    def tile(threads):
        demand = MemoryDemand(
            2, 1, 4096, 1000, 0, 4096, 3, tiled_queries=4096, heads=12, threads=threads
        )
        return estimate_memory(
            ModelConfig(
                vocab_size=100,
                d_model=768,
                n_layers=2,
                n_heads=12,
                n_kv_heads=12,
                d_head=64,
                d_value=64,
                d_mlp=3072,
                max_positions=None,
            ),
            "float32",
            demand,
        )["tile"]

    assert tile(1) < tile(2) < tile(3)


@pytest.mark.skipif(sys.platform != "linux", reason="torch uses GNU's OpenMP on Linux")
@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "passive"}, "0")],
)
def test_openmp_threads_soon_sleep_unless_the_user_says_how_they_wait(given, spins, tmp_path):
    """Where the user says nothing, torch loads OpenMP; else a module of its name, which takes a second less."""
    if given:
        (openmp,) = (Path(torch.__file__).parent / "lib").glob("libgomp*")
        (tmp_path / "torch.py").write_text(f"import ctypes\nctypes.CDLL({str(openmp)!r})\n")
    code = f"""
import os, sys
from attnscope.engines import torch_setup
if {bool(given)}:
    sys.path.insert(0, {str(tmp_path)!r})
    torch_setup.use_full_precision = list
before = dict(os.environ)
torch_setup.import_torch()
assert dict(os.environ) == before
"""
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= given | {"OMP_DISPLAY_ENV": "verbose"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert f"GOMP_SPINCOUNT = '{spins}'" in ran.stderr
