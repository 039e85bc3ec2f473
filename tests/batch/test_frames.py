"""Compressed dumps: the bytes of the plain ones, written at the end, and read whoever compressed them."""

import gzip
import io
import random

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.batch import dump_reader
from attnscope.batch.convert import convert
from attnscope.batch.dump_reader import Dump, dump_lines
from attnscope.batch.formats import ending_of
from attnscope.batch.frames import packing_of
from tests.batch.soak import content
from tests.helpers.batch_fakes import TEXTS, dump

FORMATS = [".jsonl.gz", ".jsonl.zst"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("input") / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


@pytest.fixture(params=FORMATS)
def target(request, tmp_path):
    if request.param.endswith(".zst"):
        try:
            import compression.zstd  # noqa: F401
        except ImportError:
            pytest.importorskip("zstandard", reason="the extra zst is not installed")
    return tmp_path / f"dump{request.param}"


@pytest.fixture
def plain(source, tmp_path, monkeypatch):
    monkeypatch.setattr(dump_reader, "check_record", lambda *_: None)  # the model is a fake
    dump(source, tmp_path / "plain.jsonl")
    return (tmp_path / "plain.jsonl").read_bytes()


@pytest.fixture
def whole(target, plain):
    """The dump's bytes, compressed."""
    convert(target.with_name("plain.jsonl"), target, force=False)
    return target.read_bytes()


def unpacked(path, data):
    """Content by a whole file's decompressor, which knows nothing of dumps."""
    if path.suffix == ".gz":
        return gzip.decompress(data)
    try:
        from compression import zstd

        return zstd.decompress(data)
    except ImportError:
        import zstandard

        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True) as reader:
            return reader.read()


def test_the_content_is_that_of_the_plain_dump(target, whole, plain):
    assert unpacked(target, whole) == plain
    assert len(whole) < len(plain) / 3


def test_gzip_says_no_time_and_no_name(plain, tmp_path):
    convert(tmp_path / "plain.jsonl", tmp_path / "dump.jsonl.gz", force=False)
    assert (tmp_path / "dump.jsonl.gz").read_bytes()[:8] == b"\x1f\x8b\x08\0\0\0\0\0"  # flags and time stamp are 0


def test_a_file_that_was_cut_off_is_damaged(target, whole):
    luck = random.Random(1)
    for size in (1, len(whole) - 1, *(luck.randrange(20, len(whole)) for _ in range(20))):
        target.write_bytes(whole[:size])
        with pytest.raises(AttnscopeError, match=r"the compressed file is damaged \(.+\); restore it"):
            list(Dump(target).records())
    target.write_bytes(whole)
    assert len(list(Dump(target).records())) == len(TEXTS)


def test_a_flipped_bit_is_found(target, whole):
    luck = random.Random(2)
    tried = 0
    for at in [*range(0, 40), *(luck.randrange(len(whole)) for _ in range(160))]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << luck.randrange(8)
        if unpacked_or_none(target, bytes(damaged)) == unpacked(target, whole):
            continue  # in a name of the operating system, or a time stamp
        tried += 1
        target.write_bytes(damaged)
        with pytest.raises(AttnscopeError):
            list(Dump(target).records())
    assert tried > 150


def unpacked_or_none(path, data):
    try:
        return unpacked(path, data)
    except Exception:  # each library has its own
        return None


def packed(path, content):
    packer = packing_of(path).new_frame()
    return packer.compress(content) + packer.flush()


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_a_dump_that_another_program_compressed(target, plain, pieces):
    """In one frame, or in several that end anywhere."""
    step = -(-len(plain) // pieces)
    target.write_bytes(b"".join(packed(target, plain[at : at + step]) for at in range(0, len(plain), step)))
    assert [record.index for record in Dump(target).records()] == list(range(len(TEXTS)))


@pytest.mark.parametrize("name", ["shards"])
@pytest.mark.parametrize("bad", [2, 8, 13])
def test_a_strict_dump_goes_on_to_the_same_bytes(tmp_path, name, bad):
    """A window with a failure is not written at all: half of one would be another shard than the whole."""
    source, stopped, whole = tmp_path / "texts.txt", tmp_path / f"stopped-{name}", tmp_path / f"whole-{name}"
    texts = [text.replace("bad", "fine").replace("spoils", "fine") for text in TEXTS]
    texts[bad] = f"bad {bad}"
    source.write_text("".join(f"{text}\n" for text in texts))
    with pytest.raises(AttnscopeError, match=f"x.txt:{bad + 1}: is bad; .*remove strict"):
        dump(source, stopped, strict=True)
    summary, _ = dump(source, stopped)
    assert summary.resumed == (9 if bad > 9 else 0)  # whole windows
    dump(source, whole)
    assert content(stopped) == content(whole)


def test_zst_says_what_is_missing_before_anything_is_made(plain, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    with pytest.raises(
        AttnscopeError, match=r"\.zst needs zstandard; install attnscope\[zst\], use Python 3.14, or use .jsonl.gz"
    ):
        convert(tmp_path / "plain.jsonl", tmp_path / "dump.jsonl.zst", force=False)
    assert [path.name for path in tmp_path.iterdir()] == ["plain.jsonl"]


def test_convert_takes_and_makes_them(tmp_path, target):
    """With a model: tables, and every other kind of dump, are those of the plain dump."""
    from attnscope.cli import main

    (tmp_path / "texts.txt").write_text("The bank by the river\nriver\n\nthe old bank\n")
    for name in ("plain.jsonl", target.name):
        assert main(["batch", str(tmp_path / "texts.txt"), "-o", str(tmp_path / name), "--quiet"]) == 0
    content = (tmp_path / "plain.jsonl").read_bytes()
    assert unpacked(target, target.read_bytes()) == content
    for name in ("a.csv", "a.json", "shards", "again.jsonl"):
        ours, other = tmp_path / f"ours-{name}", tmp_path / f"other-{name}"
        assert convert(target, ours, force=False) == convert(tmp_path / "plain.jsonl", other, force=False)
        if ours.is_dir():
            ours, other = ours / "index.jsonl", other / "index.jsonl"
        assert ours.read_bytes() == other.read_bytes()
    convert(tmp_path / "ours-a.json", tmp_path / f"back{ending_of(target)}", force=False)
    back = (tmp_path / f"back{ending_of(target)}").read_bytes()
    assert unpacked(target, back) == content
    import attnscope

    ids = [record.hash for record in attnscope.read_dump(tmp_path / "plain.jsonl")]
    assert [record.hash for record in attnscope.read_dump(target)] == ids
    assert len(ids) == 4


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl"])
def test_a_line_that_would_fill_the_memory_is_refused(source, tmp_path, monkeypatch, suffix):
    dump(source, tmp_path / "dump.jsonl")
    header, record, *_ = (tmp_path / "dump.jsonl").read_bytes().splitlines()
    path = tmp_path / f"long{suffix}"
    pack = gzip.compress if suffix.endswith("gz") else bytes
    monkeypatch.setattr("attnscope.batch.frames.available_memory", lambda: 8 << 20)
    path.write_bytes(pack(header + b"\n" + record + b" " * (1 << 20) + b"\n"))
    with pytest.raises(AttnscopeError, match=r"long.*:2: the line is longer than 1,048,576 bytes"):
        list(dump_lines(path))
    path.write_bytes(pack(header + b" " * (1 << 16) + b"\n" + record + b"\n"))
    with pytest.raises(AttnscopeError, match="is not a dump"):
        list(dump_lines(path))
