"""GGUF headers and metadata: what is read, and what is refused in one line."""

import re
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families import family_for, read_config
from attnscope.checkpoints.gguf_header import MAX_HEADER, read_gguf_header
from attnscope.checkpoints.locating import open_checkpoint
from attnscope.cli import main
from attnscope.engines.opening import open_source
from attnscope.request.run_config import TextInput
from attnscope.run.plan import make_plan
from attnscope.run.session import inspect
from benchmarks.memory import required_memory
from tests.helpers import gguf_files
from tests.helpers.requests import requested


def refused(path: Path) -> str:
    with pytest.raises(AttnscopeError) as caught:
        read_config(
            family_for((config := open_checkpoint(path).config), str(path)), config, str(path)
        )
    return str(caught.value).removeprefix(f"{path}: ")


def test_the_header_is_the_library_s(tmp_path: Path) -> None:
    """Places, types and metadata are those that the library's own reader finds."""
    path = tmp_path / "m.gguf"
    gguf_files.write(
        path, "gemma3", "Q5_K", {"general.tags": ["a", "ü"], "general.sampling.temp": 0.5}
    )
    mine, its = read_gguf_header(path), gguf.GGUFReader(path)
    assert mine.metadata == {
        key: field.contents() for key, field in its.fields.items() if not key.startswith("GGUF.")
    }
    assert {t.name: (t.dtype, t.shape, t.start, t.end) for t in mine.tensors.values()} == {
        t.name: (
            t.tensor_type.name,
            tuple(map(int, t.shape[::-1])),
            t.data_offset,
            t.data_offset + t.n_bytes,
        )
        for t in its.tensors
    }


@pytest.mark.parametrize("command", ["run", "compare", "check", "explain"])
def test_commands_work_on_a_gguf_file(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gguf_files.write(tmp_path / "m.gguf", "qwen3", "Q4_K")
    more = ["--query", "0"] if command == "explain" else []
    code = main([command, "abc z y", "--model", str(tmp_path / "m.gguf"), "--verbose", *more])
    said, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert "GGUF: Q4_K weights, converted to floating point as they are read" in said
    if command == "check":
        assert re.search(r"equals eager transformers: output +\S+ +\S+ +L\dH\d +ok", said)


def test_a_dump_of_a_gguf_file(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "m.gguf", "llama", "Q8_0")
    (tmp_path / "texts.txt").write_text("abc\nz y\n")
    assert (
        main(
            [
                "batch",
                str(tmp_path / "texts.txt"),
                "-o",
                str(tmp_path / "d.jsonl"),
                "--model",
                str(tmp_path / "m.gguf"),
            ]
        )
        == 0
    )
    assert len((tmp_path / "d.jsonl").read_bytes().splitlines()) == 4


def test_layers_that_do_not_fit_into_memory_are_read_again(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "m.gguf", "gemma3", "Q4_K")
    run = requested(
        (TextInput("abc z y"),), model=str(tmp_path / "m.gguf"), layer="all", head="all"
    )
    least = sum(required_memory(make_plan(run, open_source(run, ()))).values()) - 1
    expected = inspect(run)
    with pytest.warns(UserWarning, match="weights are read again in every pass"):
        found = inspect(replace(run, max_memory=least))
    for a, b in zip(expected.texts[0].heads, found.texts[0].heads, strict=True):
        assert np.array_equal(a.stages["weights"], b.stages["weights"])


def test_info_names_types_and_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gguf_files.write(tmp_path / "m.gguf", "gemma2", "Q6_K")
    assert main(["info", "--model", str(tmp_path / "m.gguf")]) == 0
    said = capsys.readouterr().out
    assert "gemma2" in said
    assert "× Q6_K" in said
    assert "soft-capped at 2" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"general.architecture": "rwkv6"}, "general.architecture is 'rwkv6'; supported in GGUF files: llama, "),
        ({"general.type": "adapter"}, "is a GGUF 'adapter', not a model"),
        ({"split.count": 3}, "is one of 3 parts of a model; merge them with llama.cpp's llama-gguf-split"),
        ({"llama.expert_count": 8}, "llama.expert_count: is 8; only 0 is supported"),
        ({"llama.attention.foo": 1}, "llama.attention.foo: is not understood; it may change attention"),
        ({"llama.context_length": None}, "llama.context_length: is missing; attention depends on it"),
        ({"llama.attention.head_count": "many"}, "llama.attention.head_count: is 'many'"),
        ({"llama.attention.head_count_kv": [2, 1]}, "llama.attention.head_count_kv: is a list"),
        ({"llama.rope.dimension_count": 32}, "llama.rope.dimension_count: is 32; only 64 is supported"),
        ({"llama.rope.scaling.type": "longrope"}, "llama.rope.scaling.type: is longrope"),
        ({"general.alignment": 33}, "general.alignment is 33; expected a power of two"),
    ],
)  # fmt: skip
def test_metadata_that_is_not_supported_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    gguf_files.write(tmp_path / "m.gguf", "llama", "F16", changes)
    assert refused(tmp_path / "m.gguf").startswith(said)


def test_one_number_per_layer_is_one_number(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "m.gguf", "llama", "F16", {"llama.attention.head_count_kv": [2, 2]})
    assert open_checkpoint(tmp_path / "m.gguf").config["num_key_value_heads"] == 2


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_llama_3_s_rotary_factors_are_recognised(tmp_path: Path, theta: float) -> None:
    """As convert_hf_to_gguf.py makes them: one factor for each frequency."""
    factor, low, high, old, dim = 32.0, 1, 4, 8192, 64
    factors = []
    for freq in 1.0 / (theta ** (np.arange(0, dim, 2, dtype=np.float32) / dim)):
        wavelength = 2 * np.pi / freq
        smooth = (old / wavelength - low) / (high - low)
        between = 1 / ((1 - smooth) / factor + smooth)
        factors.append(
            1 if wavelength < old / high else factor if wavelength > old / low else between
        )
    table = {"rope_freqs.weight": np.array(factors, dtype=np.float32)}
    gguf_files.write(tmp_path / "m.gguf", "llama", "F16", {"llama.rope.freq_base": theta}, table)
    assert open_checkpoint(tmp_path / "m.gguf").config["rope_scaling"] == {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    table["rope_freqs.weight"][20] *= 1.01
    gguf_files.write(tmp_path / "m.gguf", "llama", "F16", {"llama.rope.freq_base": theta}, table)
    assert refused(tmp_path / "m.gguf").startswith("rope_freqs.weight: is not understood")
    for other, scaled in ((0.0, 1.0), (-2.0, 1.0), (theta, 0.0)):  # no such base or factor
        zeros = {"rope_freqs.weight": table["rope_freqs.weight"] * np.float32(scaled)}
        gguf_files.write(
            tmp_path / "m.gguf", "llama", "F16", {"llama.rope.freq_base": other}, zeros
        )
        assert refused(tmp_path / "m.gguf").startswith("rope_freqs.weight: is not understood")


@pytest.mark.parametrize(
    ("architecture", "names", "line"),
    [
        ("phi3", ["rope_factors_long"], "rope_factors_short.weight: is missing"),
        (
            "phi3",
            ["rope_factors_long", "rope_factors_short", "rope_freqs"],
            "rope_freqs.weight: is not understood",
        ),
        ("qwen2", ["rope_freqs"], "rope_freqs.weight: is not understood"),
        ("llama", ["rope_factors_short"], "rope_factors_short.weight: is not understood"),
    ],
)
def test_no_table_of_rotary_factors_is_ignored(
    tmp_path: Path, architecture: str, names: list[str], line: str
) -> None:
    tables = {f"{name}.weight": np.full(16, 2.0, dtype=np.float32) for name in names}
    gguf_files.write(tmp_path / "m.gguf", architecture, "F16", tables=tables)
    assert refused(tmp_path / "m.gguf").startswith(line)


def test_damage_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    gguf_files.write(path, "llama", "Q4_0")
    whole = path.read_bytes()
    for damaged, said in (
        (b"", "is not GGUF (0 bytes)"),
        (b"\x80\x04" + whole[2:], "is a Python pickle, not GGUF"),
        (whole[:4] + struct.pack(">I", 3) + whole[8:], "is big-endian"),
        (whole[:4] + struct.pack("<I", 1) + whole[8:], "is GGUF version 1"),
        (whole[:100], "is truncated within its header"),
        (whole[:-4000], "the file is truncated"),
        (
            whole.replace(b"llama.block_count", b"llama.block_coun\xff"),
            "a string in its header is not UTF-8",
        ),
        (
            whole.replace(b"llama.block_count\4", b"llama.block_count\x2a"),
            "has the unknown type 42",
        ),
        (whole[:16] + struct.pack("<Q", 2**60) + whole[24:], ""),
        (
            whole[:24] + struct.pack("<Q", 2**40) + whole[32:],
            f"the header is longer than {MAX_HEADER:,} bytes",
        ),
        (whole.replace(b"blk.1.attn_q.weight", b"blk.1.attn_k.weight", 1), "is given twice"),
        (whole.replace(b"blk.1.attn_q.weight", b"blk.1.attn_z.weight", 1), ""),
    ):
        path.write_bytes(damaged)
        if said:
            assert said in refused(path)
        else:
            assert main(["run", "abc", "--model", str(path)]) == 1


def test_without_the_library_floats_work_and_blocks_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf_files.write(tmp_path / "f.gguf", "llama", "F16")
    gguf_files.write(tmp_path / "q.gguf", "llama", "Q4_0")
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    assert main(["run", "abc", "--model", str(tmp_path / "f.gguf")]) == 0
    assert refused(tmp_path / "q.gguf").endswith("pip install 'attnscope[gguf]'")
