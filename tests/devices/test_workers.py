"""`batch --workers` on several GPUs: each worker has one of its own, and the bytes stay the same."""

import json
import os
from pathlib import Path

import pytest

from attnscope.base.errors import DeviceMemoryExceeded
from attnscope.batch import loading
from attnscope.cli import main
from tests.devices import simulation
from tests.scale.test_merge import SHORT_BLOCKS, lines

OPTIONS = ["--layer", "0", "--head", "0", "--keep", "rows", "--threads", "1", "--quiet"]


@pytest.fixture
def folder(simulated, tmp_path, monkeypatch):
    """Texts, and a list of the processes that compute, with the devices of all tensors that each group makes there."""
    (tmp_path / "texts.txt").write_text("".join(f"{line}\n" for line in lines(30)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "has_gpu_driver", lambda: True)
    original, new, devices = loading.ModelWorker.process, simulation.SimulatedTensor.__new__, set()

    def made(cls, numbers, device):
        devices.add(str(device))
        return new(cls, numbers, device)

    def process(self, ready, following=(), meanwhile=None):
        devices.clear()
        records = original(self, ready)
        with open("placed", "a") as file:
            file.write(f"{os.getpid()} {'+'.join(devices) or 'cpu'}\n")
        return records

    monkeypatch.setattr(simulation.SimulatedTensor, "__new__", staticmethod(made))
    monkeypatch.setattr(loading.ModelWorker, "process", process)
    return tmp_path


def placed():
    """Device of each process that has computed since the last time."""
    lines = {tuple(line.split()) for line in Path("placed").read_text().splitlines()}
    Path("placed").unlink()
    assert len(dict(lines)) == len(lines)  # never on another device
    return dict(lines)


def test_each_worker_has_a_gpu_of_its_own(folder, monkeypatch):
    monkeypatch.setattr(simulation, "DEVICES", 3)
    monkeypatch.setattr(*SHORT_BLOCKS)
    Path("texts.txt").write_text("".join(f"{line}\n" for line in lines(600)))
    assert main(["batch", "texts.txt", "-o", "one.jsonl", "--device", "cuda", *OPTIONS]) == 0
    assert placed() == {str(os.getpid()): "cuda:0"}
    call = [
        "batch",
        "texts.txt",
        "-o",
        "two.jsonl",
        "--device",
        "cuda",
        "--workers",
        "auto",
        *OPTIONS,
    ]
    assert main(call) == 0
    devices = placed()
    assert sorted(devices.values()) == ["cuda:0", "cuda:1", "cuda:2"]
    assert str(os.getpid()) not in devices
    assert Path("two.jsonl").read_bytes() == Path("one.jsonl").read_bytes()


def test_a_text_that_fills_a_gpu_fails_alone(folder, monkeypatch):
    original = loading.ModelWorker.process

    def process(self, ready, following=(), meanwhile=None):
        if any(text.item.index == 7 for text in ready):
            raise DeviceMemoryExceeded(f"{self.device} is full")
        return original(self, ready)

    monkeypatch.setattr(loading.ModelWorker, "process", process)
    assert (
        main(
            ["batch", "texts.txt", "-o", "d.jsonl", "--device", "cuda", "--workers", "2", *OPTIONS]
        )
        == 3
    )
    records = [json.loads(line) for line in Path("d.jsonl").read_text().splitlines()[1:-1]]
    failed = [
        (record["index"], record["error"]) for record in records if record["status"] == "failed"
    ]
    assert failed in [[(7, f"cuda:{number} is full")] for number in (0, 1)]
    assert {*placed().values()} == {"cuda:0", "cuda:1"}


def test_one_worker_may_have_a_named_gpu(folder):
    assert (
        main(
            [
                "batch",
                "texts.txt",
                "-o",
                "d.jsonl",
                "--device",
                "cuda:1",
                "--workers",
                "1",
                *OPTIONS,
            ]
        )
        == 0
    )
    assert [*placed().values()] == ["cuda:1"]


@pytest.mark.parametrize(("device", "places"), [("auto", {"cuda:0", "cuda:1"}), ("cpu", {"cpu"})])
def test_workers_are_where_one_process_would_be(folder, device, places):
    assert (
        main(
            ["batch", "texts.txt", "-o", "d.jsonl", "--workers", "2", "--device", device, *OPTIONS]
        )
        == 0
    )
    assert {*placed().values()} == places


def test_workers_are_on_the_cpu_if_torch_finds_no_gpu_beside_the_driver(folder, monkeypatch):
    # Undone before the simulation ends, which puts back what it found.
    with monkeypatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: False)
        assert (
            main(
                [
                    "batch",
                    "texts.txt",
                    "-o",
                    "d.jsonl",
                    "--workers",
                    "2",
                    "--device",
                    "auto",
                    *OPTIONS,
                ]
            )
            == 0
        )
    assert {*placed().values()} == {"cpu"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda", "--workers", "3"], "--workers 3: there are 2 GPUs; use 2, or auto"),
        (["--device", "cuda:1", "--workers", "2"], "--device cuda:1: 2 workers cannot share it"),
        (["--device", "mps", "--workers", "2"], "--workers: processes cannot share a model on mps"),
    ],
)
def test_workers_that_gpus_cannot_serve_are_refused(folder, capsys, arguments, message):
    assert main(["batch", "texts.txt", "-o", "d.jsonl", *arguments, *OPTIONS]) in (1, 2)
    assert message in capsys.readouterr().err
    assert not Path("d.jsonl").exists()
