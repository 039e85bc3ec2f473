"""Malformed and hostile folders: each is refused at once, with place, finding and hint, and none of its code runs."""

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import read_file
from attnscope.checkpoints.folder import open_folder
from attnscope.checkpoints.headers import read_header
from attnscope.engines.opening import open_source
from tests.helpers.folders import (
    CONFIG,
    TENSORS,
    entry,
    raw,
    safetensors,
    within,
    write_folder,
    write_sharded,
)
from tests.helpers.requests import requested

WEIGHTS = safetensors(TENSORS)
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 90868376\n"
HTML = b"\n <!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>"
ZIP = b"PK\x03\x04" + bytes(2000)
_OPENED: list[str] | None = None


def _record(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and _OPENED is not None:
        _OPENED.append(os.fsdecode(args[0]) if isinstance(args[0], str | bytes) else str(args[0]))


sys.addaudithook(_record)  # hooks cannot be taken off again; this one is idle outside `_opened_by`


def _opened_by(path: Path) -> tuple[AttnscopeError, list[str]]:
    """The refusal of a folder, and every file that was opened on the way."""
    global _OPENED
    _OPENED = []
    try:
        # open() with an opener is reported twice
        return _refusal(path), list(dict.fromkeys(_OPENED))
    finally:
        _OPENED = None


def _refusal(path: Path, seconds: float = 1) -> AttnscopeError:
    with within(seconds), pytest.raises(AttnscopeError) as e:
        open_folder(path)
    assert str(e.value).isprintable()
    assert len(str(e.value)) < 600
    return e.value


# 1: config.json


@pytest.mark.parametrize(
    ("config", "found", "hint"),
    [
        (b"", "is empty, not JSON", "download it again"),
        (
            bytes(100),
            "is nothing but zero bytes, not JSON",
            "the download did not finish: download it again",
        ),
        (
            b" \n\n ",
            "is truncated at line 3, column 2: Expecting value",
            "complete it, or download it again",
        ),
        (
            b'{"model_type": "ber',
            "is truncated at line 1, column 16: Unterminated string",
            "complete it, or download it again",
        ),
        (b'{\n "a": 1,\n', "is truncated at line 3, column 1: Expecting property name", None),
        (b'{\n "a": 1,\n "b" 2}', "is not JSON at line 3, column 6: Expecting ':' delimiter", None),
        (b'{"a": 1} trailing', "is not JSON at line 1, column 10: Extra data", None),
        (
            b"\xef\xbb\xbf{}",
            "is text that starts with a byte order mark, not JSON",
            "save it as plain UTF-8",
        ),
        ('{"a": 1}'.encode("utf-16"), "is UTF-16 text, not JSON", "save it as UTF-8"),
        ('{"a": 1}'.encode("utf-16-be"), "is UTF-16 text, not JSON", "save it as UTF-8"),
        (b'{"a": "\xe9"}', "byte 0xe9 at offset 7 is not UTF-8", "save it as UTF-8"),
        (b"[" * 200_000, "is nested too deeply", "model files have fewer levels"),
        (b'{"a":' * 200_000, "is nested too deeply", "model files have fewer levels"),
        (b"null", "is null, not a JSON object", "expected { … }"),
        (b"[]", "is [], not a JSON object", "expected { … }"),
        (b'"text"', "is 'text', not a JSON object", "expected { … }"),
        (LFS, "is a Git LFS pointer, not JSON", "fetch the file itself: git lfs pull"),
        (HTML, "is an HTML page, not JSON", "download the file itself, not the page about it"),
        (ZIP, "is a zip archive, as torch.save writes, not JSON", "convert it to safetensors"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "contains an integer with thousands of digits", None),
        (b"[" + b"0," * 1_900_000 + b"0]", "is a list, not a JSON object", "expected { … }"),
        (b" " * 4_000_001, "has 4,000,001 bytes", "at most 4,000,000 are read"),
    ],
)
def test_config_that_is_no_json_object(
    tmp_path: Path, config: bytes, found: str, hint: str | None
) -> None:
    error = _refusal(write_folder(tmp_path, config))
    assert error.where == str(tmp_path / "config.json")
    assert error.message.startswith(found)
    assert hint is None or error.hint == hint


def test_a_folder_without_config(tmp_path: Path) -> None:
    error = _refusal(tmp_path)
    assert (error.where, error.message) == (str(tmp_path), "has no config.json")
    assert error.hint == "expected config.json, tokenizer.json, *.safetensors"


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    assert _refusal(tmp_path / "missing").message == "no such folder"
    (tmp_path / "file").touch()
    assert _refusal(tmp_path / "file").message == "is a file, not a model folder"
    assert "embedded null" in _refusal(Path("a\0b")).message


# 2: values; what depends on their type is tested with the families


@pytest.mark.parametrize(
    ("config", "field", "found"),
    [
        (b'{"n_layer": 4, "n_layer": 6}', "n_layer", "is given twice, as 4 and as 6"),
        (
            b'{"rope": {"theta": 1, "a": 0, "theta": "x"}}',
            "theta",
            "is given twice, as 1 and as 'x'",
        ),
        (b'{"n_layer": NaN}', "n_layer", "NaN is not JSON"),
        (b'{"n_layer": -Infinity}', "n_layer", "-Infinity is not JSON"),
        (b'{"scale": 1e999}', "scale", "1e999 is not JSON"),
        (b'{"\\u001b[2J": 1, "\\u001b[2J": 2}', "\\x1b[2J", "is given twice, as 1 and as 2"),
    ],
)
def test_config_with_a_value_that_json_does_not_have(
    tmp_path: Path, config: bytes, field: str, found: str
) -> None:
    error = _refusal(write_folder(tmp_path, config))
    assert str(error).startswith(f"{tmp_path / 'config.json'}: {field}: {found}")


def test_config_with_nan_in_a_list(tmp_path: Path) -> None:
    assert (
        _refusal(write_folder(tmp_path, b'{"a": [1, NaN]}')).message
        == "contains NaN, which is not JSON"
    )


# 5: nothing is executed


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
@pytest.mark.parametrize("start", [b"\x80\x02", ZIP])
def test_pickles_are_refused_by_their_first_bytes(tmp_path: Path, name: str, start: bytes) -> None:
    write_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(start + b"cposix\nsystem\n")
    error, opened = _opened_by(tmp_path)
    assert error.message == f"has its weights only as pickles ('{name}'), which can run code"
    assert error.hint is not None
    assert f"attnscope import {tmp_path} {tmp_path}-safetensors" in error.hint
    assert [Path(o).name for o in opened] == ["config.json", name]


def test_weights_of_another_program_are_not_called_pickles(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.bin").write_bytes(b"\6\0\0\0\x0c\0WhisperSpec\0")  # CTranslate2
    error = _refusal(tmp_path)
    assert error.where == str(tmp_path / "model.bin")
    assert error.message == "is no file of PyTorch, and there are no other weights"
    assert error.hint is not None and "import" not in error.hint


def test_auto_map_runs_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    write_folder(
        tmp_path, CONFIG | {"auto_map": {"AutoConfig": "evil.Config"}, "trust_remote_code": True}
    )
    with pytest.raises(AttnscopeError, match="the folder has its own model code"):
        open_source(requested((), model=str(tmp_path)), [])
    assert not marker.exists()
    assert "evil" not in sys.modules


def test_a_folder_with_other_weights_says_what_is_there(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00002.safetensors")
    error = _refusal(tmp_path)
    assert error.message == "has no weights"
    assert (
        error.hint
        == "found 'model-00001-of-00002.safetensors'; model.safetensors.index.json is missing"
    )
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    assert _refusal(tmp_path).hint == "expected model.safetensors or model.safetensors.index.json"


# 6: weights that are something else


@pytest.mark.parametrize(
    ("weights", "found"),
    [
        (b"", "is empty, not safetensors"),
        (bytes(4096), "is nothing but zero bytes, not safetensors"),
        (LFS, "is a Git LFS pointer, not safetensors"),
        (HTML, "is an HTML page, not safetensors"),
        (ZIP, "is a zip archive, as torch.save writes, not safetensors"),
        (b"\x80\x04\x95" + bytes(60), "is a Python pickle, not safetensors"),
        (b"GGUF\x03" + bytes(60), "is a GGUF file, not safetensors"),
        (b"\x89HDF\r\n\x1a\n" + bytes(60), "is an HDF5 file, not safetensors"),
        (b"\x1f\x8b\x08" + bytes(60), "is gzip-compressed, not safetensors"),
        (b"12345", "is not safetensors (5 bytes)"),
        (b"\x05" + bytes(7) + b"hello", "is not safetensors (13 bytes)"),
        (WEIGHTS[:7], "is not safetensors (7 bytes)"),
        (WEIGHTS[:50], "the header should have"),
        (WEIGHTS[:-1], "ends at byte 66 of the data, of which the file has 65"),
        (WEIGHTS + b"x", "1 bytes belong to no tensor"),
    ],
)
def test_weights_that_are_something_else(tmp_path: Path, weights: bytes, found: str) -> None:
    error = _refusal(write_folder(tmp_path, weights=weights))
    assert (error.where or "").startswith(str(tmp_path / "model.safetensors"))
    assert error.message.startswith(found)


def _folder(path: Path) -> None:
    path.mkdir()


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(os.path.relpath(path))


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json"]
)
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (os.mkfifo, "is a named pipe, not a regular file"),
        (_folder, "is a folder, not a regular file"),
        (_device, "is a device, not a regular file"),
        (_socket, "is a socket, not a regular file"),
        (_dangling, "no such file"),
        (_loop, "cannot be read: too many levels of symbolic links"),
    ],
)
def test_a_file_that_is_no_file_never_blocks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    make: Callable[[Path], None],
    found: str,
) -> None:
    write_folder(tmp_path)
    if name.endswith("index.json"):
        (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).unlink(missing_ok=True)
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    make(tmp_path / name)
    error = _refusal(tmp_path)
    assert (error.where, error.message) == (str(tmp_path / name), found)


def test_a_pipe_that_takes_a_files_place_between_look_and_opening_never_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    file.touch()
    os.mkfifo(pipe)
    status = os.stat(file)
    monkeypatch.setattr(os, "stat", lambda *_, **__: status)
    with within(1), pytest.raises(AttnscopeError, match="is a named pipe, not a regular file"):
        read_file(pipe, cap=10)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise PermissionError(13, "Permission denied")

    write_folder(tmp_path)
    monkeypatch.setattr(os, "open", refuse)  # file modes do not stop root
    assert _refusal(tmp_path).message == "cannot be read: permission denied"


# 7: headers


@pytest.mark.parametrize(
    ("weights", "field", "found"),
    [
        (raw({}, length=1 << 63), "", "header length 9,223,372,036,854,775,808 exceeds the format's limit"),
        (raw({}, length=100_000_001), "", "header length 100,000,001 exceeds the format's limit"),
        (raw({}, length=99_999_999), "", "the header should have 99,999,999 bytes, the file has 10"),
        (raw({}, length=1), "header", "is truncated"),
        (raw(b'{"a": 1,'), "header", "is truncated"),
        (raw(b"[" * 1_000_000), "", "is not safetensors"),
        (raw(b'{"a":' * 500_000), "header", "is nested too deeply"),
        (raw(b'{"a":' + b"[" * 500_000), "header", "is nested too deeply"),
        (raw(b'{"a": [' + b"1," * 5_000_001 + b"1]}"), "header", "has more than 5,000,000 values"),
        (raw(b'{"a": 1, "a": 2}'), "header: a", "is given twice, as 1 and as 2"),
        (raw(b'{"a": NaN}'), "header: a", "NaN is not JSON"),
        (raw(b'{"\xff": 1}'), "header", "byte 0xff at offset 2 is not UTF-8"),
        (raw({"a": None}), "a", "is null, not a JSON object"),
        (raw({"a": {}}), "a", "has the fields none"),
        (raw({"a": entry("F32", [], 0, 4) | {"x": 1}}, bytes(4)), "a", "has the fields 'dtype', 'shape'"),
        (raw({"a": entry("F4", [8], 0, 4)}, bytes(4)), "a", "dtype is 'F4'"),
        (raw({"a": {"dtype": None, "shape": [], "data_offsets": [0, 0]}}), "a", "dtype is null"),
        (raw({"a": {"dtype": ["F32"], "shape": [], "data_offsets": [0, 0]}}), "a", "dtype is a list"),
        (raw({"a": entry("F32", [-1], 0, 4)}, bytes(4)), "a", "shape is [-1]"),
        (raw({"a": entry("F32", [1.0], 0, 4)}, bytes(4)), "a", "shape is [1.0]"),  # type: ignore[list-item]
        (raw({"a": entry("F32", [True], 0, 4)}, bytes(4)), "a", "shape is [true]"),
        (raw({"a": entry("F32", [1] * 9, 0, 4)}, bytes(4)), "a", "shape is [1, 1, 1, 1, 1, 1, 1, 1, …]"),
        (raw({"a": entry("F32", [0, 1 << 62], 0, 0)}), "a", "F32 of shape [0, 4611686018427387904] needs 0 bytes"),
        (raw({"a": entry("F32", [1 << 62, 4], 0, 0)}), "a", "F32 of shape [4611686018427387904, 4] needs 737869762948"),
        (raw({"a": entry("F32", [10**4000] * 8, 0, 0)}), "a", "F32 of shape [a whole number of more than 40 digits, "),
        (raw({"a": entry("F32", [2], 0, 4)}, bytes(4)), "a", "F32 of shape [2] needs 8 bytes, data_offsets give it 4"),
        (raw({"a": entry("F32", [1], 0, 1 << 70)}, bytes(4)), "a", "ends at byte 1180591620717411303424 of the data"),
        (raw({"a": entry("F32", [1], 4, 0)}, bytes(4)), "a", "data_offsets is [4, 0]"),
        (raw({"a": entry("F32", [1], -4, 0)}, bytes(4)), "a", "data_offsets is [-4, 0]"),
        (raw({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, bytes(6)), "b", "overlaps 'a'"),
        (raw({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 0, 4)}, bytes(4)), "b", "overlaps 'a'"),
        (raw({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 4, 6)}, bytes(6)), "b", "leaves a gap after 'a'"),
        (raw({"a": entry("U8", [2], 2, 4)}, bytes(4)), "a", "leaves a gap after the header"),
        (raw({"a": entry("U8", [2], 0, 2)}, bytes(4)), "", "2 bytes belong to no tensor"),
        (raw({"__metadata__": {"a": 1}}), "__metadata__.a", "is 1, not text"),
        (raw({"__metadata__": []}), "__metadata__", "is [], not a JSON object"),
        (raw({"\x1b]0;x\x07" * 99: entry("F4", [], 0, 0)}), "\\x1b]0;x\\x07", "dtype is 'F4'"),
    ],
)  # fmt: skip
def test_headers_that_contradict_the_format(
    tmp_path: Path, weights: bytes, field: str, found: str
) -> None:
    write_folder(tmp_path, weights=weights)
    error = _refusal(tmp_path, seconds=1)
    assert str(error).startswith(f"{tmp_path / 'model.safetensors'}: {field}")
    assert error.message.startswith(found)


def test_a_real_header_of_10000_tensors_takes_well_under_a_second(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(
        safetensors(
            {
                f"model.layers.{i}.self_attn.q_proj.weight": np.zeros(1, np.float32)
                for i in range(10_000)
            }
        )
    )
    started = time.process_time()  # of the processor: other programs may keep it busy
    with within(20):
        assert len(read_header(file).tensors) == 10_000
    assert time.process_time() - started < 1


def test_a_file_that_is_cut_between_size_and_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path)
    real = os.fstat

    def larger(descriptor: int) -> os.stat_result:
        status = real(descriptor)
        return os.stat_result((*status[:6], status.st_size + 50, *status[7:10]))

    monkeypatch.setattr(os, "fstat", larger)
    os.truncate(tmp_path / "model.safetensors", len(WEIGHTS) - 100)
    assert _refusal(tmp_path).message == "was truncated while it was read"


# 9: the index of shards


@pytest.mark.parametrize(
    "shard",
    ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "..\\a.safetensors", "c:a.safetensors",
     "a\0.safetensors", "..", ".", "", "pytorch_model.bin", None, 1, ["a.safetensors"]],
)  # fmt: skip
def test_shards_with_names_that_are_not_plain_are_never_opened(tmp_path: Path, shard: Any) -> None:
    (tmp_path / "outside.safetensors").write_bytes(WEIGHTS)
    path = write_sharded(tmp_path / "model", {"embed.weight": "a.safetensors", "scalar": shard})
    (path / "pytorch_model.bin").touch()
    error, opened = _opened_by(path)
    assert error.where == f"{path / 'model.safetensors.index.json'}: weight_map.scalar"
    assert error.hint == "expected the plain name of a *.safetensors file"
    assert [Path(o).name for o in opened] == ["config.json", "model.safetensors.index.json"]


@pytest.mark.parametrize(
    "index", [{}, {"weight_map": {}}, {"weight_map": []}, {"weight_map": None}, {"weight_map": "a"}]
)
def test_an_index_that_lists_nothing(tmp_path: Path, index: dict[str, Any]) -> None:
    path = write_sharded(tmp_path)
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    error = _refusal(path)
    assert error.where == f"{path / 'model.safetensors.index.json'}: weight_map"
    assert error.message == "lists no tensors" or error.message.endswith("not a JSON object")


@pytest.mark.parametrize(
    ("weight_map", "field", "found"),
    [
        ({"scalar": "c.safetensors"}, "weight_map.scalar", "the shard 'c.safetensors' is missing"),
        ({"nowhere": "a.safetensors"}, "nowhere", "is not in 'a.safetensors'"),
        (
            {
                "embed.weight": "a.safetensors",
                "scalar": "b.safetensors",
                "blocks.0.bias": "b.safetensors",
            },
            "scalar",
            "is not in 'b.safetensors' but in 'a.safetensors'",
        ),
        (
            {"embed.weight": "a.safetensors"},
            "scalar",
            "is in 'a.safetensors', but not in the index",
        ),
    ],
)
def test_an_index_that_the_shards_contradict(
    tmp_path: Path, weight_map: dict[str, str], field: str, found: str
) -> None:
    path = write_sharded(tmp_path, weight_map)
    error = _refusal(path)
    assert error.where == f"{path / 'model.safetensors.index.json'}: {field}"
    assert error.message == found


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    path = write_sharded(tmp_path)
    (path / "b.safetensors").write_bytes(
        safetensors({n: TENSORS[n] for n in ("scalar", "blocks.0.bias")})
    )
    error = _refusal(path)
    assert (error.where, error.message) == (f"{path}: scalar", "is in more than one shard")


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    path = write_sharded(tmp_path)
    (path / "b.safetensors").write_bytes(LFS)
    assert _refusal(path).where == str(path / "b.safetensors")
