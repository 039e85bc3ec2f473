"""Compressed dumps: every window is a frame, and the same command resumes a file that was cut off anywhere."""

import gzip
import io
import random
from contextlib import suppress
from itertools import pairwise

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.batch import dump_reader
from attnscope.batch.convert import convert
from attnscope.batch.dump_reader import Dump, dump_lines
from attnscope.batch.formats import ending_of
from attnscope.batch.frames import FrameReader, packing_of
from attnscope.batch.header import MAGIC
from tests.batch.soak import content
from tests.helpers.batch_fakes import HOLDS, TEXTS, dump

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
def whole(source, target):
    """The dump's bytes, as one process writes them."""
    dump(source, target)
    return target.read_bytes()


@pytest.fixture
def plain(source, tmp_path):
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


def frames(path, data):
    """The bytes of every frame."""
    found, new = [], packing_of(path).new_reader
    while data:
        frame = new()
        frame.decompress(data)
        assert frame.eof
        found.append(data[: len(data) - len(frame.unused_data)])
        data = frame.unused_data
    return found


def edges(parts):
    found = [0]
    for part in parts:
        found.append(found[-1] + len(part))
    return found


def test_the_content_is_that_of_the_plain_dump(target, whole, plain):
    assert unpacked(target, whole) == plain
    assert len(whole) < len(plain) / 3


def test_header_windows_and_end_are_frames_of_whole_lines(source, target, whole, monkeypatch):
    from attnscope.batch.sinks import JsonlSink

    windows, real = [], JsonlSink.write_encoded

    def write(self, encoded, new):
        windows.append(new)
        real(self, encoded, new)

    monkeypatch.setattr(JsonlSink, "write_encoded", write)
    dump(source, target.with_name(f"other{ending_of(target)}"))
    lines = [unpacked(target, part).splitlines(keepends=True) for part in frames(target, whole)]
    assert [len(part) for part in lines] == [1, *windows, 1]
    assert len(windows) > 3
    assert all(line.endswith(b"\n") for part in lines for line in part)
    assert lines[0][0].startswith(MAGIC)


def test_gzip_says_no_time_and_no_name(source, tmp_path):
    dump(source, tmp_path / "dump.jsonl.gz")
    data = (tmp_path / "dump.jsonl.gz").read_bytes()
    for part in frames(tmp_path / "dump.jsonl.gz", data):
        assert part[:8] == b"\x1f\x8b\x08\0\0\0\0\0"  # flags and time stamp are 0


def test_cut_off_anywhere_it_goes_on_to_the_same_bytes(source, target, whole):
    """At every frame's edges and in it: whole frames stay, the torn one is written again."""
    places, luck = edges(frames(target, whole)), random.Random(1)
    inside = [luck.randrange(low + 2, high - 1) for low, high in pairwise(places) for _ in "ab"]
    for size in sorted(
        {*places, *(p + 1 for p in places[:-1]), *(p - 1 for p in places[1:]), *inside}
    ):
        target.write_bytes(whole[:size])
        kept = (
            unpacked(target, whole[: max(p for p in places if p <= size)])
            if size >= places[1]
            else b""
        )
        done = dump(source, target)
        assert target.read_bytes() == whole, size
        if size < len(whole):
            assert done[0].resumed == max(0, kept.count(b"\n") - 1), size
        else:
            assert done is None


def test_the_reader_says_what_is_missing(target, whole, monkeypatch):
    monkeypatch.setattr(dump_reader, "check_record", lambda *_: None)  # the model is a fake
    places = edges(frames(target, whole))
    for size in (*places[1:-1], places[-1] - 1, places[2] + 9):
        target.write_bytes(whole[:size])
        with pytest.raises(
            AttnscopeError,
            match=r"is not finished; to resume, run the command that started it again",
        ):
            list(Dump(target).records())
    target.write_bytes(whole)
    assert len(list(Dump(target).records())) == len(TEXTS)


def test_one_flipped_bit_is_refused_or_written_again(source, target, whole, monkeypatch):
    """Nothing follows the last frame, so that some damage in it looks like an end; all other frames are refused."""
    monkeypatch.setattr(dump_reader, "check_record", lambda *_: None)
    last, luck, refused, tried = edges(frames(target, whole))[-2], random.Random(2), 0, 0
    for at in [*range(0, 40), *(luck.randrange(len(whole)) for _ in range(160))]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << luck.randrange(8)
        if unpacked_or_none(target, bytes(damaged)) == unpacked(target, whole):
            continue  # in a name of the operating system, or a time stamp
        tried += 1
        target.write_bytes(damaged)
        with pytest.raises(AttnscopeError):
            list(Dump(target).records())
        if at >= last:
            with suppress(AttnscopeError):
                dump(source, target)
                assert target.read_bytes() == whole, at
            continue
        with pytest.raises(AttnscopeError, match=r"damaged|not a dump"):
            dump(source, target)
        assert target.read_bytes() == damaged, at
        refused += 1
    assert refused > 150
    assert refused < tried


def unpacked_or_none(path, data):
    try:
        return unpacked(path, data)
    except Exception:  # each library has its own
        return None


@pytest.mark.parametrize("change", ["drop", "repeat", "swap"])
def test_moved_frames_are_refused(source, target, whole, change):
    parts = frames(target, whole)
    changed = {
        "drop": parts[:3] + parts[4:],
        "repeat": parts[:4] + parts[3:],
        "swap": [*parts[:3], parts[4], parts[3], *parts[5:]],
    }[change]
    target.write_bytes(b"".join(changed))
    with pytest.raises(AttnscopeError, match="the line is damaged"):
        dump(source, target)
    assert target.read_bytes() == b"".join(changed)


def packed(path, content):
    packer = packing_of(path).new_frame()
    return packer.compress(content) + packer.flush()


def test_another_file_is_left_alone(source, target, plain):
    """Also one that is cut off; nothing but a header of ours is ever dropped from a first frame."""
    luck = random.Random(3)
    noise = luck.randbytes(200_000)
    others = [
        packed(target, b'{"mine":1}\n'), packed(target, b'{"mine":1}\n' * 90_000)[:-3],
        packed(target, noise)[:150_000], packed(target, plain + noise)[:-9], b"plain text\n",
    ]  # fmt: skip
    for other in others:
        target.write_bytes(other)
        with pytest.raises(
            AttnscopeError, match="exists and is not a dump; pass force=True to overwrite it"
        ):
            dump(source, target)
        assert target.read_bytes() == other


def test_a_dump_that_another_program_compressed(source, target, whole, plain):
    """One frame of everything is read and resumed; a line torn before it was compressed is not guessed at."""
    lines = plain.splitlines(keepends=True)
    target.write_bytes(packed(target, plain))
    assert dump(source, target) is None
    target.write_bytes(packed(target, b"".join(lines[:5])))
    assert dump(source, target)[0].resumed == 4
    assert unpacked(target, target.read_bytes()) == plain
    target.write_bytes(packed(target, b"".join(lines[:5]) + lines[5][:-9]))
    with pytest.raises(AttnscopeError, match=r":6: the line is damaged"):
        dump(source, target)


@pytest.mark.parametrize("name", ["dump.jsonl.gz", "shards"])
@pytest.mark.parametrize("bad", [2, 8, 13])
def test_a_strict_dump_goes_on_to_the_same_bytes(tmp_path, name, bad):
    """A window with a failure is not written at all: half of one would be another frame, or shard, than the whole."""
    source, stopped, whole = (
        tmp_path / "texts.txt",
        tmp_path / f"stopped-{name}",
        tmp_path / f"whole-{name}",
    )
    texts = [text.replace("bad", "fine").replace("spoils", "fine") for text in TEXTS]
    texts[bad] = f"bad {bad}"
    source.write_text("".join(f"{text}\n" for text in texts))
    with pytest.raises(AttnscopeError, match=f"x.txt:{bad + 1}: is bad; .*remove strict"):
        dump(source, stopped, strict=True)
    summary, _ = dump(source, stopped)
    assert summary.resumed == (9 if bad > 9 else 0)  # whole windows
    dump(source, whole)
    assert content(stopped) == content(whole)


def test_records_that_memory_holds_now_are_tried_again(source, target, whole):
    """Copied windows are frames, as they were."""
    roomy = target.with_name(f"roomy{ending_of(target)}")
    dump(source, roomy, holds=1000)
    assert dump(source, target, holds=HOLDS) is None
    dump(source, target, holds=1000)
    assert target.read_bytes() == roomy.read_bytes() != whole


def test_a_reader_stops_where_it_is_told(target, whole):
    packing, places = packing_of(target), edges(frames(target, whole))
    reader = FrameReader(io.BytesIO(whole), packing.new_reader, packing.damage, places[3])
    assert io.BufferedReader(reader).read() == unpacked(target, whole[: places[3]])
    assert reader.complete == places[3]


def test_zst_says_what_is_missing_before_anything_is_made(source, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    with pytest.raises(
        AttnscopeError,
        match=r"\.zst needs zstandard; install attnscope\[zst\], use Python 3.14, or use .jsonl.gz",
    ):
        dump(source, tmp_path / "dump.jsonl.zst")
    assert not list(tmp_path.iterdir())


def test_convert_takes_and_makes_them(tmp_path, target):
    """With a model: tables, and every other kind of dump, are those of the plain dump."""
    from attnscope.cli import main

    (tmp_path / "texts.txt").write_text("The bank by the river\nriver\n\nthe old bank\n")
    for name in ("plain.jsonl", target.name):
        assert (
            main(["batch", str(tmp_path / "texts.txt"), "-o", str(tmp_path / name), "--quiet"]) == 0
        )
    content = (tmp_path / "plain.jsonl").read_bytes()
    assert unpacked(target, target.read_bytes()) == content
    for name in ("a.csv", "a.json", "shards", "again.jsonl"):
        ours, other = tmp_path / f"ours-{name}", tmp_path / f"other-{name}"
        assert convert(target, ours, force=False) == convert(
            tmp_path / "plain.jsonl", other, force=False
        )
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
