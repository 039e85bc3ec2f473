"""Folders of dumps as arrays: each quantity is one array of all texts, mapped into memory and equal to the records'."""

import numpy as np
import pytest

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.batch import convert as conversion
from attnscope.batch.dump_arrays import RaggedArray
from attnscope.batch.dump_reader import Dump
from attnscope.batch.records import arrays_of
from attnscope.batch.shards import own_axes
from attnscope.cli import main

TEXTS = (
    "the bank by the river was old",
    "",
    "river",
    "we sat on the old [MASK] by the river all day and all night",
)
KEEP = {
    "brief": ("--keep", "brief"),
    "everything": (
        "--keep",
        "top,rows,columns,heads,pooled,effects",
        "--stage",
        "weights,output",
        "--top",
        "5",
    ),
    "some rows": ("--keep", "top,rows", "--query", "1:3"),
}


@pytest.fixture(params=KEEP)
def folder(request, tmp_path):
    texts = TEXTS if request.param != "some rows" else TEXTS[:2] + TEXTS[3:]
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    words = [
        "batch",
        str(tmp_path / "texts.txt"),
        "-o",
        str(tmp_path / "dump"),
        "--quiet",
        *KEEP[request.param],
    ]
    assert main(words) == 0
    return tmp_path / "dump"


def padded(array, ranks):
    """Ranks of an array as in the text of a dump that has most."""
    none = -1 if array.dtype == np.int32 else np.nan
    missing = np.full((*array.shape[:-1], ranks - array.shape[-1]), none, dtype=array.dtype)
    return np.concatenate([array, missing], -1)


def test_arrays_of_each_text_are_those_of_its_record(folder):
    arrays, compared = attnscope.open_dump(folder), 0
    records = [record for record in Dump(folder).records() if record.status == "ok"]
    assert arrays.texts.tolist() == [record.index for record in records]
    for record in records:
        parts = arrays.text(record.index)
        expected = arrays_of(record)
        assert set(parts) == set(expected)
        for path, part in parts.items():
            rounded = arrays.header.settings.digits is not None
            if part.dtype == np.float32 and not (rounded and not path.startswith("stages.")):
                assert not part.flags.owndata, "a view of the file"
            wanted = expected[path]
            if path.startswith("top."):
                wanted = padded(wanted, part.shape[-1])
            assert part.dtype == wanted.dtype
            np.testing.assert_array_equal(part, wanted, err_msg=path)
            compared += 1
    assert compared >= 10
    with pytest.raises(KeyError):
        arrays.text(1)  # it is blank


def test_quantities_of_the_whole_dump_are_ragged_arrays_without_a_copy(folder):
    pa = pytest.importorskip("pyarrow")
    arrays = attnscope.open_dump(folder)
    assert len(arrays) == len(list(arrays)) > 3
    for name, ragged in arrays.items():
        assert [len(texts) for texts in ragged.texts] == [
            len(lists.to_pylist()) for lists in ragged.to_arrow().chunks
        ]
        for number, (chunk, lists) in enumerate(
            zip(ragged.chunks, ragged.to_arrow().chunks, strict=True)
        ):
            flat = lists
            while pa.types.is_nested(flat.type):
                flat = flat.values if pa.types.is_large_list(flat.type) else flat.flatten()
            assert flat.buffers()[1].address == chunk.ctypes.data, name
            for place, text in enumerate(ragged.texts[number].tolist()):
                part = arrays.text(text)[name]
                found = np.array(lists[place].as_py(), dtype=np.float64)
                if ragged.decimals is not None and chunk.dtype.kind == "i":
                    none = found == np.iinfo(chunk.dtype).min
                    found = np.where(none, np.nan, found / 10**ragged.decimals)
                if chunk.dtype == np.uint16:
                    found[found == 65535] = -1
                if len(ragged.axes) > 1 and ragged.offsets is not None:
                    found = np.moveaxis(found, 0, own_axes(name)[0])
                np.testing.assert_allclose(found.reshape(-1), part.reshape(-1), rtol=1e-6)
    with pytest.raises(KeyError):
        arrays["rows.nothing"]


def test_numbers_of_a_brief_dump_take_two_bytes(tmp_path):
    (tmp_path / "texts.txt").write_text("the bank by the river was old\n" * 40)
    for name in ("dump", "dump.jsonl"):
        assert (
            main(["batch", str(tmp_path / "texts.txt"), "-o", str(tmp_path / name), "--quiet"]) == 0
        )
    arrays = attnscope.open_dump(tmp_path / "dump")
    types = {name: {str(chunk.dtype) for chunk in arrays[name].chunks} for name in arrays}
    assert types.pop("top.keys") == {"uint16"}
    assert set.union(*types.values()) == {"int16"}
    for record, other in zip(
        Dump(tmp_path / "dump").records(), Dump(tmp_path / "dump.jsonl").records(), strict=True
    ):
        np.testing.assert_array_equal(record.rows.entropy, other.rows.entropy)
        np.testing.assert_array_equal(record.top.weight, other.top.weight)


def test_what_is_no_folder_of_shards_is_refused(tmp_path):
    with pytest.raises(AttnscopeError, match="is no folder of shards"):
        attnscope.open_dump(tmp_path)
    with pytest.raises(AttnscopeError, match="path: int is not a path"):
        attnscope.open_dump(5)


@pytest.mark.parametrize("head", ["all", "mean"])
def test_units_are_told_once_a_shard_and_not_in_each_line(tmp_path, head):
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    words = ["batch", str(tmp_path / "texts.txt"), "--keep", "rows", "--quiet", "--head", head]
    for name in ("dump", "dump.jsonl"):
        assert main([*words, "-o", str(tmp_path / name)]) == 0
    lines = (tmp_path / "dump" / "index.jsonl").read_text().splitlines()
    assert not any('"units"' in line for line in lines)
    units = [record.units for record in Dump(tmp_path / "dump").records()]
    assert units == [record.units for record in Dump(tmp_path / "dump.jsonl").records()]
    assert attnscope.open_dump(tmp_path / "dump").units == units[0]
    assert (units[0][0].head == "mean") == (head == "mean") and len(units[0]) > 1


def test_to_arrow_joins_shards_that_differ_in_ranks(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(conversion, "MAX_WINDOW_RECORDS", 1)
    (tmp_path / "texts.txt").write_text("river\nthe bank by the river was old\n")
    monkeypatch.chdir(tmp_path)
    assert main(["batch", "texts.txt", "-o", "dump.jsonl", "--quiet"]) == 0
    assert main(["convert", "dump.jsonl", "dump", "--quiet"]) == 0
    weights = attnscope.open_dump("dump")["top.weight"]
    assert [chunk.shape[-1] for chunk in weights.chunks] == [1, 3]
    short, long = weights.to_arrow().to_pylist()
    assert np.shape(short) == (1, 16, 3) and np.shape(long) == (7, 16, 3)
    np.testing.assert_array_equal(np.array(short)[..., :1], weights.chunks[0])
    assert (np.array(short)[..., 1:] == -32768).all()
    np.testing.assert_array_equal(long, weights.chunks[1])


def test_to_arrow_decodes_shards_that_differ_in_type():
    pytest.importorskip("pyarrow")
    offsets, texts = [np.array([0, 1])] * 2, [np.array([0]), np.array([1])]
    small = np.array([[[7, -32768]]], dtype=np.int16)
    large = np.array([[[40_000, -(2**31)]]], dtype=np.int32)
    numbers = RaggedArray("top.value", ("query", "unit", "rank"), [small, large], offsets, texts, 3)
    found = np.array(numbers.to_arrow().to_pylist(), dtype=np.float32)
    expected = np.array([0.007, np.nan, 40, np.nan], dtype=np.float32)
    np.testing.assert_array_equal(found.ravel(), expected)
    near = np.array([[[7, 65_535]]], dtype=np.uint16)
    far = np.array([[[70_000, -1]]], dtype=np.int32)
    keys = RaggedArray("top.keys", ("query", "unit", "rank"), [near, far], offsets, texts, None)
    assert np.ravel(keys.to_arrow().to_pylist()).tolist() == [7, -1, 70_000, -1]
