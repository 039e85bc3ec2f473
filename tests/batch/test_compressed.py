"""Compressed dumps: `convert` writes them, everything that reads a dump reads them, and `batch` refuses them."""

import gzip
import io
import random

import pytest

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.batch import dump_reader
from attnscope.batch.compressed import new_packer
from attnscope.batch.convert import convert
from attnscope.batch.dump_reader import Dump, dump_lines
from attnscope.batch.formats import ending_of
from attnscope.cli import main
from tests.helpers.batch_fakes import TEXTS, dump

FORMATS = [".jsonl.gz", ".jsonl.zst"]


@pytest.fixture(params=FORMATS)
def target(request, tmp_path):
    if request.param.endswith(".zst"):
        try:
            import compression.zstd  # noqa: F401
        except ImportError:
            pytest.importorskip("zstandard", reason="the extra zst is not installed")
    return tmp_path / f"dump{request.param}"


@pytest.fixture
def plain(tmp_path):
    """The lines of a dump by a fake model."""
    source = tmp_path / "texts.txt"
    source.write_text("".join(f"{text}\n" for text in TEXTS))
    dump(source, tmp_path / "plain.jsonl")
    return (tmp_path / "plain.jsonl").read_bytes()


def unpacked(path, data):
    """Content by a whole file's decompressor, which knows nothing of dumps."""
    if path.suffix == ".gz":
        return gzip.decompress(data)
    try:
        from compression import zstd

        return zstd.decompress(data)
    except ImportError:
        import zstandard

        with zstandard.ZstdDecompressor().stream_reader(
            io.BytesIO(data), read_across_frames=True
        ) as reader:
            return reader.read()


def unpacked_or_none(path, data):
    try:
        return unpacked(path, data)
    except Exception:  # each library has its own
        return None


def packed(path, content):
    packer = new_packer(path)
    return packer.compress(content) + packer.flush()


def test_convert_writes_the_bytes_of_the_plain_dump_and_reads_them_back(tmp_path, target):
    (tmp_path / "texts.txt").write_text("The bank by the river\nriver\n\nthe old bank\n")
    plain = tmp_path / "plain.jsonl"
    assert main(["batch", str(tmp_path / "texts.txt"), "-o", str(plain), "--quiet"]) == 0
    assert convert(plain, target, force=False) == (4, "records")
    assert unpacked(target, target.read_bytes()) == plain.read_bytes()
    assert target.stat().st_size < plain.stat().st_size / 3
    assert main(["verify", str(target), "--quiet"]) == 0
    for name in ("a.csv", "a.json", "shards", "again.jsonl", f"again{ending_of(target)}"):
        converted = tmp_path / f"converted-{name}"
        other = tmp_path / f"other-{name}"
        assert convert(target, converted, force=False) == convert(plain, other, force=False)
        if converted.is_dir():
            converted = converted / "index.jsonl"
            other = other / "index.jsonl"
        assert converted.read_bytes() == other.read_bytes(), name
    ids = [record.hash for record in attnscope.read_dump(plain)]
    assert [record.hash for record in attnscope.read_dump(target)] == ids
    assert len(ids) == 4


def test_batch_and_merge_refuse_them_in_one_line(tmp_path, target, capsys):
    (tmp_path / "texts.txt").write_text("The bank\n")
    assert main(["batch", str(tmp_path / "texts.txt"), "-o", str(target)]) == 2
    hint = f"use .jsonl, then: attnscope convert dump.jsonl dump{ending_of(target)}"
    assert capsys.readouterr().err == (
        f"attnscope: error: --output: '{target}' could not be resumed; {hint}\n"
    )
    part = tmp_path / "part.jsonl"
    assert main(["batch", str(tmp_path / "texts.txt"), "-o", str(part), "--quiet"]) == 0
    assert main(["merge", str(part), "-o", str(target)]) == 2
    assert "cannot hold parts that are files; use .jsonl\n" in capsys.readouterr().err
    assert not target.exists()


def test_gzip_says_no_time_and_no_name(tmp_path, plain):
    data = packed(tmp_path / "dump.jsonl.gz", plain)
    assert data[:8] == b"\x1f\x8b\x08\0\0\0\0\0"  # flags and time stamp are 0


def test_a_file_that_is_cut_off_is_damaged(target, plain, monkeypatch):
    monkeypatch.setattr(dump_reader, "check_record", lambda *_: None)  # the model is a fake
    whole = packed(target, plain)
    for size in (len(whole) - 1, len(whole) - 9, len(whole) // 2):
        target.write_bytes(whole[:size])
        with pytest.raises(AttnscopeError, match=rf"damaged {target.suffix} file"):
            list(Dump(target).records())
    # whole, but of a dump that is not
    target.write_bytes(packed(target, plain[: plain[:-1].rindex(b"\n") + 1]))
    with pytest.raises(AttnscopeError, match="is not finished"):
        list(Dump(target).records())


def test_several_frames_are_read_as_one_file(target, plain, monkeypatch):
    """As `cat` joins them, and older versions wrote them."""
    monkeypatch.setattr(dump_reader, "check_record", lambda *_: None)
    lines = plain.splitlines(keepends=True)
    target.write_bytes(b"".join(packed(target, line) for line in lines))
    assert len(list(Dump(target).records())) == len(TEXTS)
    target.write_bytes(b"".join(packed(target, line) for line in (*lines[:3], *lines[4:])))
    with pytest.raises(AttnscopeError, match="the line is damaged"):
        list(Dump(target).records())


def test_one_flipped_bit_is_refused(target, plain, monkeypatch):
    monkeypatch.setattr(dump_reader, "check_record", lambda *_: None)
    whole = packed(target, plain)
    luck = random.Random(2)
    refused = 0
    for at in [*range(0, 40), *(luck.randrange(len(whole)) for _ in range(160))]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << luck.randrange(8)
        if unpacked_or_none(target, bytes(damaged)) == plain:
            continue  # in a name of the operating system, or a time stamp
        target.write_bytes(damaged)
        with pytest.raises(AttnscopeError):
            list(Dump(target).records())
        refused += 1
    assert refused > 150


def test_zst_says_what_is_missing_before_anything_is_made(tmp_path, plain, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    files = sorted(tmp_path.iterdir())
    with pytest.raises(
        AttnscopeError,
        match=r"\.zst needs zstandard; install attnscope\[zst\], use Python 3.14, or use .jsonl.gz",
    ):
        convert(tmp_path / "plain.jsonl", tmp_path / "dump.jsonl.zst", force=False)
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl"])
def test_a_line_that_would_fill_the_memory_is_refused(plain, tmp_path, monkeypatch, suffix):
    header, record, *_ = plain.splitlines()
    path = tmp_path / f"long{suffix}"
    pack = gzip.compress if suffix.endswith("gz") else bytes
    monkeypatch.setattr("attnscope.batch.compressed.available_memory", lambda: 8 << 20)
    path.write_bytes(pack(header + b"\n" + record + b" " * (1 << 20) + b"\n"))
    with pytest.raises(AttnscopeError, match=r"long.*:2: the line is longer than 1,048,576 bytes"):
        list(dump_lines(path))
    path.write_bytes(pack(header + b" " * (1 << 16) + b"\n" + record + b"\n"))
    with pytest.raises(AttnscopeError, match="is not a dump"):
        list(dump_lines(path))
