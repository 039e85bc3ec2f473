"""What a recorded layer costs on a GPU: launches, waits for the device, and bytes that leave it."""

import json
import os
import pickle
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from attnscope.base.system.forking import Connection, fork
from attnscope.batch import parquet_sink
from attnscope.batch.dump_reader import Dump
from attnscope.batch.encoders import lines_here
from attnscope.batch.items import Item
from attnscope.batch.preparing import PreparedText
from attnscope.batch.records import Record, arrays_of
from attnscope.batch.summed_writer import SummedWriter
from attnscope.batch.worker import ModelWorker
from attnscope.cli import main
from attnscope.findings.head_averages import AVERAGES
from attnscope.findings.row_statistics import KEY_TOKENS, STATISTICS
from attnscope.model import fused_rows
from attnscope.model.attention import attend
from attnscope.model.frame import Frame, one_frame
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.masks import FunctionMask, MatrixMask, PaddingMask, intersect
from attnscope.model.recorders import (
    AveragedRows,
    ColumnRecorder,
    HeadRecorder,
    KeyTokens,
    MatrixRecorder,
    RowRecorder,
    TargetRecorder,
    TopRecorder,
)
from attnscope.model.row_summary import row_loops
from attnscope.model.tiling import TileShape
from attnscope.request.masks.terms import Bidirectional, Causal, Mask, SlidingWindow
from tests.devices.simulation import SimulatedTensor, counts, memory, streams
from tests.devices.simulation.streams import SimulatedEvent, SimulatedStream
from tests.devices.test_attend import moved
from tests.devices.test_commands import write_tokenizer
from tests.helpers.tiny_models import TABLE

HEADS, GROUPS, WIDTH = 4, 2, 16


def layer(tokens: int, device: str, *, pruned: bool = False) -> AttentionInputs:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, n, tokens, WIDTH, generator=generator) for n in (HEADS, GROUPS, GROUPS)
    )
    q[:, 0] *= not pruned
    return AttentionInputs(
        0, q.to(device), k.to(device), v.to(device), AttentionSpec(WIDTH**-0.5, Causal())
    )


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 3 layers and 4 heads."""
    folder = tmp_path_factory.mktemp("gpt2")
    next(row for row in TABLE if row.name == "gpt2").save(folder)
    write_tokenizer(folder, "the bank by river".split())
    return folder


@pytest.mark.cuda
@pytest.mark.parametrize(("tokens", "count"), [(40, 5), (1500, 3), (300, 12), (3300, 5)])
def test_ties_are_ranked_on_the_device_as_on_the_cpu(gpu: str, tokens: int, count: int) -> None:
    """Of a pruned head, whose queries are 0, all keys of a row tie."""
    ranked = []
    rows = range(0, tokens, 7)
    for device in ("cpu", gpu):
        inputs = layer(tokens, device, pruned=True)
        eligible = torch.ones(1, tokens, dtype=torch.bool, device=device)
        recorder = TopRecorder(count, "weight", range(HEADS), rows, eligible)
        counts.reset()
        with torch.inference_mode():
            attend(inputs, [recorder], need_output=False)
        assert counts.read_bytes < 4096  # no row, only what checks read
        ranked.append(recorder)
    cpu, other = ranked
    assert torch.equal(other.keys[:, 0].cpu(), cpu.keys[:, 0])
    assert (other.keys.cpu() == cpu.keys).float().mean() > 0.999  # rounding may exchange others


@pytest.mark.parametrize(
    ("mask", "dtype", "kernels"),
    [
        (Causal(), torch.bfloat16, {"flash": 1}),
        (Causal(), torch.float32, {"efficient": 1}),
        (intersect((Causal(), SlidingWindow(600))), torch.bfloat16, {"flash": 1}),
        (intersect((Bidirectional(), PaddingMask(torch.tensor([600, 600])))), torch.bfloat16, {"flash": 1}),
        (intersect((Causal(), PaddingMask(torch.tensor([600, 40]), padded_rows=False))), torch.bfloat16, {"flash": 1}),
    ],
)  # fmt: skip
def test_layers_that_nobody_records_take_one_kernel(
    simulated: str, mask: Mask, dtype: torch.dtype, kernels: dict[str, int]
) -> None:
    q, k, v = (
        torch.randn(2, n, 600, WIDTH, dtype=dtype, device=simulated)
        for n in (HEADS, GROUPS, GROUPS)
    )
    mask = moved(mask, torch.device(simulated))
    counts.reset()
    with torch.inference_mode():
        attend(AttentionInputs(0, q, k, v, AttentionSpec(0.25, mask)))
    assert counts.attention == kernels
    assert counts.waits.total() <= 2


@pytest.mark.parametrize(("gib", "tokens"), [(140, 16384), (24, 8192), (2, 1024)])
def test_groups_are_of_a_size_that_suits_the_gpu(
    simulated: str,
    gpt2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gib: int,
    tokens: int,
) -> None:
    monkeypatch.setattr(memory, "capacity", gib << 30)
    monkeypatch.setattr("attnscope.batch.loading.machine_memory", lambda: 256 << 30)
    texts = tmp_path / "texts.txt"
    texts.write_text("the bank by the river\n" * 600)
    sizes = []
    for device in (simulated, "cpu"):
        words = [
            "batch",
            str(texts),
            "--model",
            str(gpt2),
            "--layer",
            "0",
            "--head",
            "0",
            "--keep",
            "heads",
        ]
        assert (
            main(
                [
                    *words,
                    "--device",
                    device,
                    "--quiet",
                    "--force",
                    "-o",
                    str(tmp_path / "dump.jsonl"),
                ]
            )
            == 0
        )
        sizes.append(Dump(tmp_path / "dump.jsonl").header.grouping.tokens)
    assert sizes == [tokens, 1024]


def test_a_batch_of_texts_of_different_lengths_takes_one_kernel_a_layer(
    simulated: str, gpt2: Path, tmp_path: Path
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("the bank\nthe bank by the river\nthe river\n" * 3)
    words = [
        "batch",
        str(texts),
        "--model",
        str(gpt2),
        "--layer",
        "2",
        "-o",
        str(tmp_path / "dump.jsonl"),
    ]
    assert main([*words, "--device", simulated, "--quiet"]) == 0
    assert not [kernel for kernel in counts.attention if "masked" in kernel]
    assert counts.attention


@pytest.mark.parametrize("keep", ["heads", "top,rows", "brief", "columns"])
@pytest.mark.parametrize("lines", [8, 64])
def test_the_host_waits_once_for_a_frame_when_the_next_one_is_launched(
    simulated: str,
    gpt2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keep: str,
    lines: int,
) -> None:
    steps = []
    close = Frame.close
    holds = Frame.holds

    def launched(frame: Frame) -> None:
        close(frame)
        steps.append(("launched", frame))

    def waited(frame: Frame, meanwhile: Callable[[], bool]) -> bool:
        steps.append(("waited", frame))
        return holds(frame, meanwhile)

    monkeypatch.setattr(Frame, "close", launched)
    monkeypatch.setattr(Frame, "holds", waited)
    texts = tmp_path / "texts.txt"
    texts.write_text("the bank by the river\nthe river\n" * lines)
    words = [
        "batch",
        str(texts),
        "--model",
        str(gpt2),
        "--keep",
        keep,
        "-o",
        str(tmp_path / "dump"),
    ]
    counts.reset()
    assert main([*words, "--device", simulated, "--quiet"]) == 0
    frames = [frame for step, frame in steps if step == "launched"]
    assert len(frames) >= 2  # texts of two lengths
    assert counts.waits == {}
    assert streams.reused == 0
    assert [frame for step, frame in steps if step == "waited"] == frames
    in_flight = []
    n_flying = 0
    for step, _ in steps:
        if step == "waited":
            in_flight.append(n_flying)
        n_flying += 1 if step == "launched" else -1
    assert set(in_flight) == {1, 2}  # the last of a window is alone
    assert in_flight.count(2) >= len(frames) / 2


class CountedKernel:
    """A kernel of Triton that counts as one launch, and writes zeros into some of its operands."""

    def __init__(self, name: str, *outputs: int) -> None:
        self.name, self.outputs = name, outputs

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*operands: Any, **constants: object) -> None:
            before = counts.kernels.copy()
            for index in self.outputs:
                operands[index].zero_()
            counts.kernels = before
            counts.launch(self.name)

        return launch


@pytest.fixture
def kernels(simulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused kernel on the simulated GPU, for layers of any size."""
    fused = SimpleNamespace(
        SLOTS=8,
        layer_kernel=CountedKernel("layer kernel", 8, 9, 10),
        ranking_kernel=CountedKernel("ranking kernel", 6, 7),
        column_kernel=CountedKernel("column kernel", 5),
    )
    monkeypatch.setitem(sys.modules, "attnscope.model.fused_kernels", fused)
    monkeypatch.setattr("attnscope.model.fused_kernels", fused, raising=False)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(cdiv=lambda a, b: -(-a // b)))
    monkeypatch.setattr(fused_rows, "_is_worth_it", lambda inputs, recorders: True)


@pytest.mark.parametrize(
    ("parts", "fused", "others"),
    [
        ("top,rows", 2, 8),
        ("rows", 1, 6),
        ("heads", 1, 11),
        ("columns", 2, 4),
        ("top,rows,columns", 3, 9),
    ],
)
def test_the_kernel_leaves_a_layer_few_launches(
    simulated: str, kernels: None, parts: str, fused: int, others: int
) -> None:
    """Of texts of several lengths: two sums that tell whether all is finite, and what is put into the block."""
    tokens, lengths = 64, torch.tensor([64, 60, 50, 30], device=simulated)
    mask = intersect((Causal(), PaddingMask(lengths, False, (64, 60, 50, 30))))
    q, k, v = (torch.randn(4, n, tokens, WIDTH, device=simulated) for n in (HEADS, GROUPS, GROUPS))
    real = torch.arange(tokens, device=simulated) < lengths[:, None]
    keys = KeyTokens(dict.fromkeys(KEY_TOKENS, ~real), real)
    ids = torch.zeros(4, tokens, dtype=torch.int64, device=simulated)
    heads, rows = range(HEADS), range(tokens)
    made = {
        "top": lambda: TopRecorder(5, "weight", heads, rows, real, ("weight",), ranks_all=True),
        "rows": lambda: RowRecorder(heads, rows, keys),
        "heads": lambda: HeadRecorder(heads, rows, AveragedRows.of(ids, ~real, real), keys),
        "columns": lambda: ColumnRecorder(heads, rows, real, keys),
    }
    with torch.inference_mode():
        with one_frame() as frame:
            keys.members(tuple(KEY_TOKENS))  # once for all layers
            recorders = [made[part]() for part in parts.split(",")]
            counts.reset()
            attend(AttentionInputs(0, q, k, v, AttentionSpec(0.25, mask)), recorders)
            launches = counts.kernels.copy()
        assert frame.holds(lambda: False)
    assert sum(launches[f"{name} kernel"] for name in ("layer", "ranking", "column")) == fused
    assert launches.total() - fused <= others
    assert counts.waits == {}


@pytest.mark.parametrize(
    ("keep", "of_row", "of_text"),
    # bytes of a row or text in a head: three keys, their weights, four or all statistics, whether anything was seen
    [
        ("brief", 3 * 8 + 4 * 4 + 1, 0),
        ("top,rows", 3 * 8 + len(STATISTICS) * 4 + 1, 0),
        ("heads", 0, len(AVERAGES) * 4),
        ("columns", 4, 0),
    ],
)  # fmt: skip
def test_a_frame_of_texts_of_several_lengths_is_one_copy_that_nothing_waits_for(
    simulated: str,
    kernels: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keep: str,
    of_row: int,
    of_text: int,
) -> None:
    """Beside one byte, which says whether everything was finite; rotary positions know lengths without the device."""
    folder = tmp_path / "llama"
    next(row for row in TABLE if row.name == "llama").save(folder)
    write_tokenizer(folder, "the bank by river".split())
    words = "the bank by the river " * 10
    lengths = [20, 17, 19, 18]
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(" ".join(words.split()[:n]) + "\n" for n in lengths))
    copied: list[list[int]] = []
    copies = Frame.copies

    def counted(frame: Frame, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        copied.append([tensor.nbytes for tensor in tensors])
        return copies(frame, tensors)

    monkeypatch.setattr(Frame, "copies", counted)
    monkeypatch.setattr("attnscope.batch.loading._FIRST", 1000)  # all in one window
    counts.reset()
    command = ["batch", str(texts), "--model", str(folder), "--keep", keep, "--device", simulated]
    assert main([*command, "-o", str(tmp_path / "dump"), "--quiet"]) == 0
    origin = Dump(tmp_path / "dump").header.provenance
    assert counts.waits == {}
    assert counts.kernels["layer kernel"] == origin.n_layers
    cells = origin.n_layers * origin.n_heads * len(lengths)
    (block,), (finite,) = copied
    assert finite == 1
    assert block <= cells * (max(lengths) * of_row + of_text) + 32  # between arrays


def test_arrays_of_shards_leave_a_gpu_in_their_order(
    simulated: str, gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host, which would move number by number, copies them as they are; lines have the same numbers."""
    texts = tmp_path / "texts.txt"
    texts.write_text("the bank by the river the bank\nthe river by the bank\n" * 4)
    in_order: list[bool] = []
    put = SummedWriter.put

    def watched(writer: SummedWriter, array: Any, dtype: Any = None) -> None:
        in_order.append(array.flags.c_contiguous)
        put(writer, array, dtype)

    monkeypatch.setattr(SummedWriter, "put", watched)
    words = [
        "batch",
        str(texts),
        "--model",
        str(gpt2),
        "--keep",
        "top,rows,columns,heads",
        "--quiet",
    ]
    found = []
    for device, output in ((simulated, "dump"), ("cpu", "cpu-dump"), (simulated, "dump.jsonl")):
        path = tmp_path / output
        in_order.clear()
        assert main([*words, "--device", device, "-o", str(path)]) == 0
        if device == simulated:
            assert all(in_order)
        else:
            assert not all(in_order)  # a CPU writes heads as it computes them
        found.append([arrays_of(record) for record in Dump(path).records()])
    of_shards, _, of_lines = found
    assert len(of_shards) == 8
    for one, other in zip(of_shards, of_lines, strict=True):
        assert one.keys() == other.keys()
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name], err_msg=name)


@pytest.mark.parametrize(("keep", "launches"), [("columns", 42), ("top,rows", 47), ("heads", 54)])
def test_a_layer_takes_a_few_launches_with_the_models_own(
    simulated: str,
    kernels: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keep: str,
    launches: int,
) -> None:
    """As docs/decisions.md says of a Llama: the difference between frames of 6 and of 2 layers."""
    text = tmp_path / "texts.txt"
    words = "the bank by the river " * 4
    text.write_text("".join(" ".join(words.split()[:n]) + "\n" for n in (20, 17)))
    monkeypatch.setattr("attnscope.batch.loading._FIRST", 1000)  # both in one window
    frames = []
    launch = ModelWorker._launch

    def counted(worker: ModelWorker, ready: Sequence[PreparedText]) -> Any:
        counts.reset()
        running = launch(worker, ready)
        frames.append(counts.launches)
        return running

    monkeypatch.setattr(ModelWorker, "_launch", counted)
    row = next(row for row in TABLE if row.name == "llama")
    for layers in (2, 6):
        folder = tmp_path / str(layers)
        sizes = {"num_hidden_layers": layers, "head_dim": 64}
        replace(row, config=row.config | sizes).save(folder)
        write_tokenizer(folder, "the bank by river".split())
        command = ["batch", str(text), "--model", str(folder), "--keep", keep, "--quiet"]
        dump = str(tmp_path / f"{layers}.jsonl")
        assert main([*command, "--device", simulated, "-o", dump]) == 0
    small, large = frames
    assert (large - small) / 4 == launches
    assert small - 2 * launches <= 40


@pytest.mark.parametrize("missing", ["nothing", "wait_event", "record_stream", "synchronize"])
def test_the_simulation_sees_what_frames_may_not_leave_out(
    simulated: str, gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("the bank by the river\nthe river\n" * 8)
    command = ["batch", str(texts), "--model", str(gpt2), "--keep", "heads", "--quiet"]
    expected, path = tmp_path / "expected.jsonl", tmp_path / "dump.jsonl"
    assert main([*command, "--device", "cpu", "-o", str(expected)]) == 0
    if missing == "record_stream":
        monkeypatch.setattr(SimulatedTensor, missing, lambda tensor, stream: None)
    elif missing == "wait_event":
        monkeypatch.setattr(SimulatedStream, missing, lambda stream, event: None)
    elif missing == "synchronize":
        monkeypatch.setattr(SimulatedEvent, missing, lambda event: None)
    right = main([*command, "--device", simulated, "-o", str(path)]) == 0
    if right:
        entropies = [
            [record.heads.entropy for record in Dump(dump).records()] for dump in (expected, path)
        ]
        right = np.allclose(*entropies, atol=1e-5) and not streams.reused
    assert right is (missing == "nothing")


@pytest.mark.parametrize("size", [1e3, 1e25])
def test_what_is_not_finite_is_named_as_on_the_cpu(
    simulated: str, gpt2: Path, tmp_path: Path, size: float
) -> None:
    """A frame finds out at its end."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(gpt2, folder)
    weights = load_file(folder / "model.safetensors")
    (name,) = [name for name in weights if name.endswith("h.1.attn.c_attn.weight")]
    weights[name] = weights[name] * size
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    texts = tmp_path / "texts.txt"
    texts.write_text("the bank by the river\nthe river\n")
    records = []
    for device in ("cpu", simulated):
        dump = tmp_path / f"{device.partition(':')[0]}.jsonl"
        words = [
            "batch",
            str(texts),
            "--model",
            str(folder),
            "--layer",
            "1",
            "--keep",
            "heads",
            "-o",
            str(dump),
        ]
        main([*words, "--device", device, "--quiet"])
        records.append([json.loads(line) for line in dump.read_text().splitlines()[1:3]])
    on_cpu, on_gpu = records
    assert [record.get("status", "ok") for record in on_gpu] == [
        "ok" if size < 1e10 else "failed"
    ] * 2
    assert [record.get("error") for record in on_gpu] == [record.get("error") for record in on_cpu]


@pytest.mark.parametrize("need_output", [True, False])
def test_a_recorded_layer_waits_once_or_twice_however_many_tiles(
    simulated: str, need_output: bool
) -> None:
    inputs = layer(1024, simulated)
    real = torch.ones(1, 1024, dtype=torch.bool, device=simulated)
    heads, rows = range(HEADS), range(1024)
    recorders = [
        TopRecorder(5, "weight", heads, rows, real, ("weight",)),
        RowRecorder(heads, rows, KeyTokens(dict.fromkeys(KEY_TOKENS, ~real), real)),
    ]
    counts.reset()
    with torch.inference_mode():
        attend(inputs, recorders, need_output=need_output, tile_elements=1 << 18)
    tiles = counts.kernels["softmax"]
    assert tiles > 8
    assert counts.waits.total() <= 2  # whether scores may overflow, and whether outputs are finite
    assert counts.launches <= 76 * tiles + 8  # and what the checks add up
    assert counts.attention.total() == need_output  # tiles multiply no values that nobody reads


def test_a_tile_on_a_gpu_has_up_to_1024_rows(simulated: str) -> None:
    shapes = [
        TileShape.of(layer(16384, device), HEADS, Causal(), None) for device in ("cpu", simulated)
    ]
    assert [shape.rows for shape in shapes] == [128, 1024]


def test_blocks_of_masks_are_larger_on_a_gpu_and_compiled_loops_are_for_the_cpu(
    simulated: str,
) -> None:
    inputs = layer(2048, simulated)
    allowed = torch.rand(2048, 2048, device=simulated) < 0.9
    matrix = replace(inputs, spec=replace(inputs.spec, mask=MatrixMask(allowed)))
    counts.reset()
    with torch.inference_mode():
        attend(matrix, [])
    assert counts.attention.total() == 1
    assert row_loops(1 << 30, torch.device("cuda:1")) is None


def test_sums_over_tiles_are_float64_where_the_device_has_it(simulated: str) -> None:
    for device, dtype in ((simulated, torch.float64), ("mps", torch.float32)):
        targets = torch.zeros(1, 2, 1, dtype=torch.int64, device=device)
        assert TargetRecorder([0], [0, 1], targets).sums.dtype == dtype


def test_keys_and_values_are_not_copied_for_each_head_of_a_group(simulated: str) -> None:
    inputs = layer(512, simulated)
    stages = MatrixRecorder(["output"], range(HEADS), [0, 511], [])
    counts.reset()
    with torch.inference_mode():
        attend(inputs, [stages], tile_elements=1 << 17)
    assert counts.kernels["index"] == 0


@pytest.mark.parametrize(
    ("options", "layers", "budget"),
    [
        ("--layer all --head all", 3, 13),
        ("--layer all --head mean", 3, 13),
        ("--layer 1 --head 0", 2, 14),
    ],
)
def test_findings_of_all_heads_are_read_together(
    simulated: str, gpt2: Path, tmp_path: Path, options: str, layers: int, budget: int
) -> None:
    """Of one text, without the weights, which are uploaded once."""
    words = [
        "run",
        "the bank by the river",
        "--model",
        str(gpt2),
        *options.split(),
        "-o",
        str(tmp_path / "out.json"),
    ]
    assert main([*words, "--device", simulated, "--quiet"]) == 0
    assert counts.waits["read"] <= budget * layers


@pytest.mark.parametrize(
    ("tokens", "mask"), [(1024, intersect((Causal(), SlidingWindow(90)))), (1500, Causal())]
)
def test_no_tile_asks_the_device(simulated: str, tokens: int, mask: Mask) -> None:
    """Whether every row sees a key, whether keys are left out, and whether chunks of long rows repeat."""
    inputs = layer(tokens, simulated)
    inputs = replace(inputs, spec=replace(inputs.spec, mask=mask))
    eligible = torch.arange(tokens, device=simulated)[None] > 0
    recorders = [
        TopRecorder(5, "weight", range(HEADS), range(tokens), eligible, ("weight",)),
        RowRecorder(
            range(HEADS), range(tokens), KeyTokens(dict.fromkeys(KEY_TOKENS, ~eligible), eligible)
        ),
    ]
    counts.reset()
    with torch.inference_mode():
        attend(inputs, recorders, tile_elements=1 << 18)
    assert counts.kernels["softmax"] > 4
    assert counts.waits.total() <= 2


def test_a_mask_function_is_read_once_for_each_run_of_rows(simulated: str) -> None:
    mask = FunctionMask(
        lambda batch, head, query, key: key <= query, 1, HEADS, 1024, torch.device(simulated)
    )
    counts.reset()
    assert (mask.key_range(64, 192, 1024), mask.all_visible_range(64, 192, 1024)) == (
        (0, 192),
        (0, 65),
    )
    assert counts.waits.total() == 2


def test_roles_of_heads_are_read_layer_by_layer(simulated: str, gpt2: Path, tmp_path: Path) -> None:
    """Of 12 heads in 3 layers: what is recorded is uploaded once a batch, and read once a layer and recorder."""
    words = [
        "heads",
        "--draws",
        "3",
        "--model",
        str(gpt2),
        "-o",
        str(tmp_path / "out.json"),
        "--quiet",
    ]
    assert main([*words, "--device", simulated]) == 0
    assert counts.waits["upload"] <= 16
    assert counts.waits["read"] <= 18 * 3
    assert counts.waits["size"] <= 3


def test_edges_of_a_batch_are_cut_together(simulated: str, gpt2: Path, tmp_path: Path) -> None:
    """One upload for every way of cutting, not three for each of 15 edges."""
    words = [
        "ablate",
        "the bank by the river",
        "--each",
        "edge",
        "--layer",
        "1",
        "--head",
        "1",
        "--model",
        str(gpt2),
    ]
    assert main([*words, "--device", simulated, "-o", str(tmp_path / "out.json"), "--quiet"]) == 0
    assert counts.waits["upload"] <= 14
    assert counts.waits["read"] <= 25


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_of_narrow_numbers_are_exact_without_wide_copies(
    simulated: str, dtype: torch.dtype
) -> None:
    wide = layer(300, "cpu")
    narrow = {name: getattr(wide, name).to(dtype) for name in "qkv"}
    stages = {}
    for device in ("cpu", simulated):
        recorder = MatrixRecorder(["scores"], range(HEADS), range(300), range(300))
        inputs = replace(wide, **{name: x.to(device) for name, x in narrow.items()})
        counts.reset()
        with torch.inference_mode():
            attend(inputs, [recorder], need_output=False)
        stages[device] = recorder.compute()["scores"].cpu()
    torch.testing.assert_close(stages[simulated], stages["cpu"], atol=1e-5, rtol=1e-5)
    assert counts.kernels["_to_copy"] <= 2  # the values, which nobody reads, and a position


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("shared", [1 << 24, 1 << 12, 1])
def test_beside_a_gpu_other_processes_write_json(
    simulated: str,
    gpt2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    killed: bool,
    shared: int,
) -> None:
    """The same bytes as in one process, also if all of them are killed, and however little memory they share.

    Neither arrays nor lines go through pipes that have room in memory.
    """
    monkeypatch.setattr("attnscope.batch.encoders._SHARED", shared)
    texts = tmp_path / "texts.txt"
    texts.write_text("the bank by the river\nthe river\n" * 20)
    writers = set[int]()
    started = []
    sent = list[int]()
    send = connection.Connection.send

    def counted(pipe: Connection, data: Any) -> None:
        sent.append(len(pickle.dumps(data)))
        send(pipe, data)

    def forked(call: Callable[[Connection], object]) -> tuple[int, Connection]:
        pid, pipe = fork(call)
        started.append(pid)
        if killed:
            os.kill(pid, signal.SIGKILL)
        return pid, pipe

    def here(records: Sequence[Record]) -> list[bytes]:
        writers.add(os.getpid())
        return lines_here(records)

    dumps = []
    for cpus in (2, 5):
        monkeypatch.setattr("attnscope.batch.encoders.count_cpus", lambda cpus=cpus: cpus)
        if cpus == 5:
            monkeypatch.setattr("attnscope.batch.encoders.fork", forked)
            monkeypatch.setattr("attnscope.batch.encoders.lines_here", here)
            monkeypatch.setattr(connection.Connection, "send", counted)
        path = tmp_path / f"{cpus}.jsonl"
        words = ["batch", str(texts), "--model", str(gpt2), "--quiet", "--device", simulated]
        assert main([*words, "-o", str(path)]) == 0
        dumps.append(path.read_bytes())
    assert len(started) == 3
    assert writers == ({os.getpid()} if killed else set())
    in_arrays = sum(a.nbytes for record in Dump(path).records() for a in arrays_of(record).values())
    assert (sum(sent) < in_arrays) == (shared > 1)
    assert dumps[0].splitlines()[1:] == dumps[1].splitlines()[1:]
    for pid in started:
        with pytest.raises(ChildProcessError):  # it has been waited for
            os.waitpid(pid, os.WNOHANG)


def test_beside_a_gpu_threads_write_tables(
    simulated: str, gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes as in the thread that writes, and no table is made by that."""
    texts = tmp_path / "texts.txt"
    texts.write_text("the bank by the river\nthe river\n" * 20)
    threads = set[str]()
    group = parquet_sink._row_group

    def noted(*arguments: Any) -> Any:
        threads.add(threading.current_thread().name.rpartition("_")[0])
        return group(*arguments)

    monkeypatch.setattr(parquet_sink, "_ROWS", 200)
    monkeypatch.setattr(parquet_sink, "_row_group", noted)
    parts = []
    for cpus in (2, 5):
        threads.clear()
        monkeypatch.setattr("attnscope.batch.encoders.count_cpus", lambda cpus=cpus: cpus)
        path = tmp_path / f"{cpus}.parquet"
        words = ["batch", str(texts), "--model", str(gpt2), "--quiet", "--device", simulated]
        assert main([*words, "--table", "contributors,rows", "-o", f"{path}/"]) == 0
        parts.append([part.read_bytes() for part in sorted(path.rglob("[0-9]*.parquet"))])
        assert ("attnscope-parquet" in threads) == (cpus == 5)
        assert ("attnscope-writer" in threads) == (cpus == 2)
    assert parts[0] == parts[1] != []


@pytest.mark.parametrize("damaged", [False, True])
def test_the_next_window_is_prepared_while_a_gpu_computes(
    simulated: str, gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """Records stay as they are; a text that cannot be read ends the dump after all texts before it."""
    steps: list[str] = []
    prepare = ModelWorker.prepare
    holds = Frame.holds

    def prepared(worker: ModelWorker, item: Item) -> PreparedText | Record:
        steps.append(f"text {item.index}")
        return prepare(worker, item)

    def waited(frame: Frame, meanwhile: Callable[[], bool]) -> bool:
        steps.append("waits")
        right = holds(frame, meanwhile)
        steps.append("has waited")
        return right

    monkeypatch.setattr(ModelWorker, "prepare", prepared)
    monkeypatch.setattr(Frame, "holds", waited)
    texts = tmp_path / "texts.jsonl"
    lines = [json.dumps({"id": n, "text": "the bank by the river " * 2}) for n in range(30)]
    texts.write_text("\n".join([*lines, *(["{"] if damaged else [])]) + "\n")
    words = ["batch", str(texts), "--model", str(gpt2), "--keep", "heads", "--quiet"]
    dumps = []
    for device in ("cpu", simulated):
        steps.clear()
        path = tmp_path / f"{len(dumps)}.jsonl"
        main([*words, "--device", device, "-o", str(path)])
        dumps.append([record.heads.entropy for record in Dump(path).records() if record.heads])
    assert np.allclose(*dumps, atol=1e-5)
    assert len(dumps[0]) == 30
    n_first = 5  # texts of the first window
    meanwhile = steps[steps.index("waits") + 1 : steps.index("has waited")]
    assert meanwhile == [f"text {n}" for n in range(n_first, len(lines))]
