"""Tensors read at their offsets equal those that safetensors reads; damage and change are refused."""

import os
from pathlib import Path

import pytest
import safetensors.numpy
import safetensors.torch
import torch

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.folder import open_folder
from attnscope.checkpoints.headers import DTYPE_BYTES
from attnscope.model import tensors
from attnscope.model.tensors import _DTYPES, read_tensors
from tests.helpers.folders import TENSORS, write_folder, write_sharded

DTYPES = sorted(DTYPE_BYTES)


def test_every_dtype_of_a_header_can_be_read() -> None:
    assert {name: dtype.itemsize for name, dtype in _DTYPES.items()} == DTYPE_BYTES


@pytest.mark.parametrize("code", DTYPES)
def test_tensors_equal_those_that_safetensors_reads(tmp_path: Path, code: str) -> None:
    dtype = _DTYPES[code]
    values = torch.arange(24).reshape(2, 3, 4).to(torch.float32).to(dtype)
    written = {
        "b": values,
        "a": values[:, :2].contiguous(),
        "scalar": values[0, 0, 1].clone(),
        "none": values[:0].clone(),
    }
    write_folder(tmp_path)
    if code in ("U16", "U32", "U64"):  # which older versions save of NumPy alone
        arrays = {name: tensor.numpy() for name, tensor in written.items()}
        safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    else:
        safetensors.torch.save_file(written, tmp_path / "model.safetensors")
    read = dict(read_tensors(open_folder(tmp_path), written))
    assert read.keys() == written.keys()
    for name, tensor in written.items():
        assert (read[name].dtype, read[name].shape) == (dtype, tensor.shape)
        assert (
            torch.equal(read[name].view(torch.uint8), tensor.view(torch.uint8))
            if tensor.ndim
            else read[name] == tensor
        )


def test_only_what_is_named_is_read_and_in_the_order_on_disk(tmp_path: Path) -> None:
    folder = open_folder(write_sharded(tmp_path))
    assert [name for name, _ in read_tensors(folder, ["blocks.0.bias", "embed.weight"])] == [
        "embed.weight",
        "blocks.0.bias",
    ]


def test_a_tensor_is_read_when_its_turn_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path)
    names = [f"t{i}" for i in range(9)]
    safetensors.torch.save_file(
        {name: torch.zeros(3) for name in names}, tmp_path / "model.safetensors"
    )
    begun = []
    read = tensors._read
    monkeypatch.setattr(
        tensors,
        "_read",
        lambda file, info, *how: (begun.append(info.name), read(file, info, *how))[1],
    )
    for number, _ in enumerate(read_tensors(open_folder(tmp_path), names), 1):
        assert len(begun) == number
    assert begun == names


@pytest.mark.parametrize("chunk", [1, 8, 24, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("stored", [torch.float64, torch.float32, torch.bfloat16])
def test_parts_turned_into_another_type_make_what_the_whole_makes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stored: torch.dtype,
    dtype: torch.dtype,
    chunk: int,
) -> None:
    written = {
        "w": torch.randn(5, 3, 7, dtype=torch.float64).to(stored),
        "scalar": torch.tensor(0.1, dtype=stored),
    }
    write_folder(tmp_path)
    safetensors.torch.save_file(written, tmp_path / "model.safetensors")
    monkeypatch.setattr(tensors, "_CHUNK", chunk)
    read = dict(read_tensors(open_folder(tmp_path), written, dtype))
    assert {name: tensor.dtype for name, tensor in read.items()} == dict.fromkeys(written, dtype)
    assert all(torch.equal(read[name], tensor.to(dtype)) for name, tensor in written.items())


@pytest.mark.parametrize("chunk", [1, 40, 1 << 20])
@pytest.mark.parametrize("shape", [(3, 5), (4, 3, 5), (7,), (0, 5), (3, 0), (2, 0, 4), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrices_are_transposed_on_their_way(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    chunk: int,
) -> None:
    written = {"w": torch.randn(shape), "other": torch.randn(shape)}
    write_folder(tmp_path)
    safetensors.torch.save_file(written, tmp_path / "model.safetensors")
    monkeypatch.setattr(tensors, "_CHUNK", chunk)
    read = dict(read_tensors(open_folder(tmp_path), written, dtype, {"w"}))
    assert read["w"].is_contiguous()
    assert torch.equal(read["w"], (written["w"].mT if len(shape) > 1 else written["w"]).to(dtype))
    assert torch.equal(read["other"], written["other"].to(dtype))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("asked", [None, torch.bfloat16])
def test_a_value_that_is_not_finite_is_named_with_its_index(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    value: float,
    dtype: torch.dtype,
    asked: torch.dtype | None,
) -> None:
    monkeypatch.setattr(tensors, "_CHUNK", 16)
    tensor = torch.zeros(2, 3, 5, dtype=dtype)
    tensor[1, 2, 3] = tensor[1, 2, 4] = value
    write_folder(tmp_path)
    safetensors.torch.save_file(
        {"good": torch.zeros(3), "bad": tensor}, tmp_path / "model.safetensors"
    )
    folder = open_folder(tmp_path)
    assert [name for name, _ in read_tensors(folder, ["good"])] == ["good"]
    with pytest.raises(AttnscopeError) as e:
        list(read_tensors(folder, ["good", "bad"], asked))
    assert e.value.where == f"{tmp_path / 'model.safetensors'}: bad"
    assert e.value.message == f"contains {value} at [1, 2, 3]; 2 of 30 are not finite"


def test_large_finite_values_are_fine(tmp_path: Path) -> None:
    write_folder(tmp_path)
    safetensors.torch.save_file(
        {"w": torch.full((99,), 65504.0, dtype=torch.float16)}, tmp_path / "model.safetensors"
    )
    assert list(read_tensors(open_folder(tmp_path), ["w"]))


def test_a_file_that_was_cut_after_opening_is_refused(tmp_path: Path) -> None:
    folder = open_folder(write_folder(tmp_path))
    os.truncate(tmp_path / "model.safetensors", 200)
    with pytest.raises(AttnscopeError, match="changed while it was read"):
        list(read_tensors(folder, TENSORS))


def test_a_file_that_is_cut_while_being_read_is_no_signal(tmp_path: Path) -> None:
    write_folder(tmp_path)
    big = {f"{i:02}": torch.ones(1 << 18) for i in range(4)}
    safetensors.torch.save_file(big, tmp_path / "model.safetensors")
    reading = read_tensors(open_folder(tmp_path), big)
    next(reading)
    os.truncate(tmp_path / "model.safetensors", 1 << 20)
    with pytest.raises(AttnscopeError) as e:
        list(reading)
    assert e.value.where == str(tmp_path / "model.safetensors")
    assert (e.value.message, e.value.hint) == (
        "changed while it was read",
        "run again when it is no longer being written",
    )


@pytest.mark.parametrize("how", ["replaced", "overwritten"])
def test_a_file_that_is_replaced_while_being_read_is_refused(tmp_path: Path, how: str) -> None:
    folder = open_folder(write_folder(tmp_path))
    file = tmp_path / "model.safetensors"
    reading = read_tensors(folder, TENSORS)
    next(reading)
    same_size = file.read_bytes()
    if how == "replaced":
        (tmp_path / "new").write_bytes(same_size)
        os.replace(tmp_path / "new", file)
    else:
        file.write_bytes(same_size)
        os.utime(file, ns=(0, 1))
    with pytest.raises(AttnscopeError, match="changed while it was read"):
        list(reading)


def test_a_file_that_was_replaced_after_opening_is_not_read_at_all(tmp_path: Path) -> None:
    folder = open_folder(write_folder(tmp_path))
    (tmp_path / "new").write_bytes((tmp_path / "model.safetensors").read_bytes())
    os.replace(tmp_path / "new", tmp_path / "model.safetensors")
    with pytest.raises(AttnscopeError, match="changed while it was read"):
        next(read_tensors(folder, TENSORS))
