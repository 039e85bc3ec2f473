"""A GPU that is full, or fails, is an error that names it; batch goes on with fewer texts at a time."""

import gc
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import attnscope
from attnscope.base.errors import AttnscopeError, DeviceMemoryExceeded, Exit
from attnscope.base.system.gpu import GpuMemory
from attnscope.cli import main
from attnscope.engines.torch_setup import device_failure
from tests.devices.simulation import memory

TEXT = " ".join(["the bank by the river and"] * 18)
SHORT = TEXT[:40]


def peak(work: Callable[[], object]) -> int:
    """Bytes of the device that are held at most meanwhile, besides those that were before."""
    gc.collect()
    memory.peak = before = memory.held
    work()
    return memory.peak - before


def limit(size: int) -> None:
    gc.collect()
    memory.capacity = memory.held + size


@pytest.fixture(autouse=True)
def _taken_after_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans find room: another process takes it before the run does."""
    monkeypatch.setattr("attnscope.run.plan.gpu_memory", lambda device: GpuMemory(1 << 40, 1 << 40))


def test_python_gets_an_error_that_names_the_gpu(simulated: str) -> None:
    def inspect() -> None:
        attnscope.inspect(TEXT, layer="all", head="all", device=simulated)

    limit(peak(inspect) // 2)
    with pytest.raises(
        DeviceMemoryExceeded,
        match=r"the GPU is full: CUDA out of memory\. Tried to allocate [\d.]+ MiB\. GPU 1 ",
    ):
        inspect()


def test_the_command_line_names_the_gpu(
    simulated: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "run",
        TEXT,
        "--layer",
        "all",
        "--head",
        "all",
        "--device",
        simulated,
        "-o",
        str(tmp_path / "out.json"),
    ]
    limit(peak(lambda: main(words)) // 2)
    assert main([*words, "--force"]) == Exit.FAILED
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(
        "attnscope: error: the GPU is full: CUDA out of memory. Tried to allocate"
    )
    assert line.endswith("a smaller --dtype, or use --device cpu")


def test_batch_goes_on_with_fewer_texts_at_a_time(simulated: str, tmp_path: Path) -> None:
    def dump(texts: list[str]) -> tuple[int, list[str]]:
        """The exit code of a dump, and the status of every record."""
        (tmp_path / "texts.txt").write_text("\n".join(texts))
        out = tmp_path / "dump.jsonl"
        words = ["batch", str(tmp_path / "texts.txt"), "--keep", "top,rows", "-o", str(out)]
        code = main([*words, "--device", simulated, "--quiet", "--force"])
        records = map(json.loads, out.read_text().splitlines()[1:])
        return code, [record["status"] for record in records if "status" in record]

    short, long, together = (
        peak(lambda texts=texts: dump(texts)) for texts in ([SHORT], [TEXT], [TEXT] * 12)
    )
    limit((long + together) // 2)
    assert dump([TEXT] * 12) == (Exit.DONE, ["ok"] * 12)
    limit((short + long) // 2)
    assert dump([SHORT, TEXT, SHORT]) == (Exit.SOME_RECORDS_FAILED, ["ok", "failed", "ok"])


@pytest.mark.parametrize(
    "message", ["CUDA error: device-side assert triggered", "No CUDA GPUs are available"]
)
def test_batch_ends_if_the_gpu_fails_and_goes_on_when_it_works_again(
    simulated: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    message: str,
) -> None:
    """Every later text would fail as well."""

    def fail(*given: object, **named: object) -> None:
        raise RuntimeError(f"{message}\nCUDA kernel errors might be …")

    (tmp_path / "texts.txt").write_text(f"{SHORT}\n{SHORT}")
    words = [
        "batch",
        str(tmp_path / "texts.txt"),
        "-o",
        str(tmp_path / "dump.jsonl"),
        "--device",
        simulated,
        "--quiet",
    ]
    with monkeypatch.context() as broken:
        broken.setattr("torch.softmax", fail)
        assert main(words) == Exit.FAILED
    assert f"error: the GPU failed: {message}" in capsys.readouterr().err
    assert main(words) == Exit.DONE
    records = map(json.loads, (tmp_path / "dump.jsonl").read_text().splitlines()[1:])
    assert [record["status"] for record in records if "status" in record] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        (
            "CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors …",
            "a build of torch",
        ),
        ("CUDA error: device-side assert triggered", "device='cpu'"),
        (
            "The NVIDIA driver on your system is too old (found version 11040). Please update",
            "device='cpu'",
        ),
        (
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "the GPU is full",
        ),
        (
            "MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB). Tried to …",
            "device='cpu'",
        ),
    ],
)
def test_what_a_gpu_cannot_do_is_not_a_bug_of_ours(message: str, hint: str) -> None:
    failure = device_failure(RuntimeError(message))
    assert isinstance(failure, AttnscopeError)
    assert hint in str(failure)
    assert "\n" not in str(failure)


def test_other_errors_stay_what_they_are() -> None:
    assert (
        device_failure(RuntimeError("The size of tensor a must match the size of tensor b")) is None
    )
    assert device_failure(ValueError("CUDA error")) is None
