"""Inputs of every kind: what is read of them, what is refused, and what is only counted as bad."""

import gzip
import io
import sys
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.batch.blocks import BlockCounter, SelectedItems, cut_block, with_blocks
from attnscope.batch.header import Grouping, Settings
from attnscope.batch.items import (
    cost,
    from_jsonl,
    from_table,
    from_txt,
    jsonl_sizes,
    size_of,
    table_sizes,
    txt_sizes,
)
from attnscope.batch.reader import InputReader
from attnscope.batch.records import Record, encode
from attnscope.batch.windows import record_of
from attnscope.findings.codec import decode_json

NO_LIMITS = {"tokens": 1, "values": 1, "window": 1, "threads": 1}


def read(path, format=None, column="text"):
    with InputReader(str(path), format, column) as given:
        facts, items = given.facts(), list(given.items())
        assert facts.records == len(items)
        return items


def texts(items):
    return [(item.id, item.text and item.text.text) for item in items]


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_lines_of_text(tmp_path):
    items = read(write(tmp_path, "a.txt", "\ufeffone\r\n\n two \nthree"))
    assert texts(items) == [(1, "one"), (2, ""), (3, " two "), (4, "three")]
    assert [item.index for item in items] == [0, 1, 2, 3]
    assert items[2].text.where.endswith("a.txt:3")


def test_json_lines(tmp_path):
    content = '{"text":"a","id":"x","score":1.50,"deep":{"k":[1]}}\n\n{"pair":"p","text":"b","context":"c"}\n'
    first, second = read(write(tmp_path, "a.jsonl", content))
    assert (first.id, first.text.text, first.line) == ("x", "a", 1)
    # as it stood there
    assert msgspec.json.encode(first.fields) == b'{"score":1.50,"deep":{"k":[1]}}'
    assert (second.id, second.text.pair, second.text.context, second.index) == (3, "p", "c", 1)


@pytest.mark.parametrize(("name", "mark"), [("a.csv", ","), ("a.TSV", "\t")])
def test_csv_and_tsv_quote_lines_and_number_texts(tmp_path, name, mark):
    content = f'id{mark}review{mark}stars\n7{mark}"two\nlines"{mark}5\n{mark}plain{mark}\n'
    first, second = read(write(tmp_path, name, content), column="review")
    assert (first.id, first.text.text, first.fields) == ("7", "two\nlines", {"stars": "5"})
    assert (second.id, second.line, second.text.text) == (4, 4, "plain")


def test_blank_lines_of_a_table_are_left_out_and_those_of_a_cell_are_kept(tmp_path):
    content = '\nid,text\n1,one\n\n2,"two\n\nparagraphs"\r\n\r\n3,three\n'
    items = read(write(tmp_path, "a.csv", content))
    assert texts(items) == [("1", "one"), ("2", "two\n\nparagraphs"), ("3", "three")]
    assert [(item.index, item.line) for item in items] == [(0, 3), (1, 5), (2, 9)]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (
            b'"text,id\nhello,1\n',
            r"a.csv: its row of column names is not valid CSV \(unexpected end of data\)",
        ),
        (b"text,\xff\nhello,1\n", "a.csv: its row of column names is not UTF-8"),
        (
            b"text,n,text\nhello,1,you\n",
            "a.csv: has several columns 'text'; rename all but one of them",
        ),
        (b"id,text,id\n1,hello,2\n", "a.csv: has several columns 'id'"),
        (b"\n\n", "a.csv: is empty; expected a row of column names"),
    ],
)
def test_a_bad_row_of_column_names_is_refused(tmp_path, content, error):
    with pytest.raises(AttnscopeError, match=error):
        read(write(tmp_path, "a.csv", content))


def test_gzip_and_what_is_under_it(tmp_path):
    path = write(tmp_path, "a.jsonl.gz", gzip.compress(b'{"text":"a"}\n'))
    assert texts(read(path)) == [(1, "a")]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(AttnscopeError, match=r"damaged .gz file"):
        read(path)


def packed(content):
    """Content as one frame, by whatever is there to make one."""
    try:
        from compression import zstd

        return zstd.compress(content)
    except ImportError:
        return pytest.importorskip("zstandard", reason="the extra zst is not installed").compress(
            content
        )


def test_zstandard(tmp_path):
    many = "".join(f"text {i} {'word ' * (i % 50)}\n" for i in range(3000))
    items = read(write(tmp_path, "a.txt.zst", packed(many.encode()) + packed(b"one\ntwo\n")))
    assert [item.text.text for item in items] == [*many.splitlines(), "one", "two"]
    (item,) = read(write(tmp_path, "b.jsonl.ZST", packed(b'{"text":"a","id":"x"}\n')))
    assert (item.id, item.text.text) == ("x", "a")


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"PK" + data, lambda data: data + b"PK\3\4" * 9]
)
def test_damaged_zstandard(tmp_path, damage):
    path = write(tmp_path, "a.txt.zst", damage(packed(b"one\ntwo\n" * 900)))
    with pytest.raises(
        AttnscopeError, match=r"a.txt.zst: damaged .zst file \(.+\); compress it again"
    ):
        read(path)


def test_zstandard_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    with pytest.raises(
        AttnscopeError, match=r"install attnscope\[zst\], use Python 3.14, or decompress it"
    ):
        read(write(tmp_path, "a.txt.zst", b"(\xb5/\xfd"))


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    from pyarrow import parquet

    table = pa.table({"text": ["a", None], "id": [7, 8], "stars": [1.5, 2.5]})
    parquet.write_table(table, tmp_path / "a.parquet")
    first, second = read(tmp_path / "a.parquet")
    assert (first.id, first.text.text, first.fields) == (7, "a", {"stars": 1.5})
    assert second.error == "text: no text"


@pytest.mark.parametrize(
    ("name", "values", "error"),
    [
        ("id", [1.5, 2.5], "id: Expected 'int | str | null', got 'float'"),
        ("id", [[1], [2]], "id: Expected 'int | str | null', got 'array'"),
        ("id", [True, False], "id: Expected 'int | str | null', got 'bool'"),
        ("pair", [7, 8], "pair: Expected 'str | null', got 'int'"),
        ("context", [["a"], ["b"]], "context: Expected 'str | null', got 'array'"),
    ],
)
def test_a_column_of_another_type_makes_bad_records(tmp_path, name, values, error):
    pa = pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": ["a", None], name: values}), tmp_path / "a.parquet")
    items = read(tmp_path / "a.parquet")
    assert [(item.text, item.id, item.error) for item in items] == [
        (None, 1, error),
        (None, 2, error),
    ]


def test_a_dump_holds_what_json_has_no_type_for(tmp_path):
    """Other columns are copied: times as text (in nanoseconds they need pandas), bytes as base64, no number as null."""
    pa = pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    pytest.importorskip("pandas", reason="times in nanoseconds need it")
    from datetime import date

    from pyarrow import parquet

    columns = {
        "text": ["a"], "when": pa.array([1], pa.timestamp("ns")), "took": pa.array([1500], pa.duration("ns")),
        "day": [date(2020, 1, 31)], "raw": [b"a"], "score": [float("nan")],
        "pairs": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())),
    }  # fmt: skip
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    (item,) = read(tmp_path / "a.parquet")
    written = decode_json(encode(record_of(item, "skipped")), Record)
    assert written.fields == {
        "when": "1970-01-01 00:00:00.000000001", "took": "0 days 00:00:00.000001500", "day": "2020-01-31",
        "raw": "YQ==", "score": None, "pairs": [["k", 1]],
    }  # fmt: skip


def test_a_value_that_python_cannot_hold_is_named(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    from pyarrow import parquet

    table = pa.table({"text": ["a"], "when": pa.array([1 << 61], pa.timestamp("us"))})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(
        AttnscopeError, match=r"a.parquet: a value cannot be read \(.+\); remove the column"
    ):
        read(tmp_path / "a.parquet")


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(AttnscopeError, match=r"pip install 'attnscope\[parquet\]'"):
        read(write(tmp_path, "a.parquet", b"PAR1"))


def test_standard_input_is_kept_so_that_it_can_be_read_twice(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"text":"a"}\n{"text":"b"}\n')))
    assert texts(read("-", "jsonl")) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"x" * (10 << 20), "the line is longer than 4,000,000 bytes"),
        (b'{"text":"caf\xe9"}', "byte 0xe9 at byte 12 of the line (30 of the file) is not UTF-8"),
        (b'{"text":"\\ud800"}', "not valid JSON"),
        (b'{"text":', "not valid JSON"),
        (b"[1]", "message 0: is a number, not an object"),
        (b'{"txt":"a"}', "no member 'text'"),
        (b'{"text":7}', "text: Expected 'str', got 'int'"),
        (b'{"text":null}', "text: Expected 'str', got 'null'"),
        (b'{"text":"a","id":1.5}', "id: Expected 'int | str | null', got 'float'"),
        (b'{"text":"a","pair":["b"]}', "pair: Expected 'str | null', got 'array'"),
        (b'{"text":"a","n":{"m":[1,-1e999]}}', "n: Number out of range"),
    ],
)
def test_a_bad_line_is_one_bad_record(tmp_path, line, error):
    good = b'{"text":"a good"}\n'
    items = read(write(tmp_path, "a.jsonl", good + line + b"\n" + good))
    assert [item.text is None for item in items] == [False, True, False]
    assert error in items[1].error
    assert (items[1].line, items[2].line) == (2, 3)


def test_bad_rows_of_a_table(tmp_path):
    content = b'text,n\nok,1\ntoo,many,cells\n\xff,2\n"odd"quote,3\nok,4\n'
    items = read(write(tmp_path, "a.csv", content))
    assert [item.error and item.error.split(";")[0] for item in items] == [
        None,
        "3 cells, but the header has 2",
        "byte 0xff is not UTF-8",
        "not valid CSV (',' expected after '\"')",
        None,
    ]
    assert [item.line for item in items] == [2, 3, 4, 5, 6]


def test_what_fails_keeps_its_id(tmp_path):
    """Unless the id itself cannot be read: then it has the number of its line, as one without a name."""
    lines = (
        b'{"id":"a","txt":"b"}', b'{"id":70,"text":null}', b'{"id":"c","text":"d","pair":[]}', b'{"id":"e","text":',
        b'{"id":1.5,"text":"f"}', b'{"id":null,"text":2}', b'{"text":"\\ud800","id":"g"}',
    )  # fmt: skip
    items = read(write(tmp_path, "a.jsonl", b"\n".join(lines)))
    assert [(item.text, item.id) for item in items] == [
        (None, i) for i in ("a", 70, "c", 4, 5, 6, 7)
    ]
    rows = b"id,text,n\nx,\xff,1\n\xff,ok,2\ny,ok\n,\xff,3\n"
    assert [item.id for item in read(write(tmp_path, "a.csv", rows))] == ["x", 3, 4, 5]


def test_a_row_without_text_keeps_its_id(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(
        pa.table({"id": ["x", None], "text": pa.array([None, None], pa.string())}),
        tmp_path / "a.parquet",
    )
    assert [(item.text, item.id) for item in read(tmp_path / "a.parquet")] == [
        (None, "x"),
        (None, 2),
    ]


def test_an_id_that_is_the_number_of_a_line_without_one_is_explained(tmp_path):
    content = '{"text":"a"}\n{"text":"b","id":1}\n'
    with pytest.raises(AttnscopeError, match="a record without one is the number of its line"):
        read(write(tmp_path, "a.jsonl", content))


@pytest.mark.parametrize("ids", ['"x"', "7"])
def test_an_id_that_occurs_twice_is_refused(tmp_path, ids):
    content = f'{{"text":"a","id":{ids}}}\n{{"text":"b","id":"y"}}\n{{"text":"c","id":{ids}}}\n'
    with pytest.raises(AttnscopeError, match=r"a.jsonl:3: duplicate id .*, first used on line 1"):
        read(write(tmp_path, "a.jsonl", content))


@pytest.mark.parametrize(
    ("options", "blocks", "left"),
    [
        ({}, {}, range(10)),
        ({"skip": 3}, {}, range(3, 10)),
        ({"limit": 4}, {}, range(4)),
        ({"skip": 8, "limit": 4}, {}, [8, 9]),
        ({"shard": (1, 3)}, {"block_characters": 9}, [0, 3, 6, 9]),
        ({"shard": (3, 3)}, {"block_characters": 9}, [2, 5, 8]),
        ({"shard": (3, 3)}, {"block_characters": 18}, [4, 5]),
        ({"skip": 1, "limit": 5, "shard": (2, 2)}, {"block_characters": 9}, [2, 4]),
        ({"skip": 1, "limit": 5, "shard": (2, 2)}, {"block_characters": 18}, [3, 4]),
        ({"skip": 20}, {}, []),
    ],
)
def test_parts_of_an_input(tmp_path, options, blocks, left):
    path = write(tmp_path, "a.txt", "".join(f"{i}\n" for i in range(10)))
    settings, bounds = Settings(**options), Grouping(**NO_LIMITS | blocks)
    with InputReader(str(path), None, "text") as given:
        items = SelectedItems(given, settings)
        assert [item.index for item in items.select(bounds)] == list(left)
        given.facts()
        assert items.count(bounds) == len(left)


@drawn(
    st.lists(st.integers(0, 30), max_size=60),
    st.integers(1, 60),
    st.integers(0, 5),
    st.integers(1, 5),
)
def test_shards_are_blocks_that_follow_from_the_input_alone(lengths, characters, skip, count):
    items = list(from_txt(io.BytesIO("".join("x" * n + "\n" for n in lengths).encode()), "a.txt"))
    bounds = Grouping(**NO_LIMITS | {"block_characters": characters})
    given = SimpleNamespace(items=lambda: iter(items), costs=[cost(item) for item in items])
    every = list(SelectedItems(given, Settings(skip=skip)).select(bounds))
    assert [item.index for item in every] == list(range(skip, len(lengths)))
    blocks = [
        [item for item in every if item.block == n]
        for n in range(every[-1].block + 1 if every else 0)
    ]
    assert [item for block in blocks for item in block] == every
    for n, block in enumerate(blocks):
        costs = [cost(item) for item in block]
        assert len(block) == 1 or sum(costs) <= characters
        if n + 1 < len(blocks):  # as many as fit
            assert sum(costs) + cost(blocks[n + 1][0]) > characters
    shards = [
        SelectedItems(given, Settings(skip=skip, shard=(n, count))) for n in range(1, count + 1)
    ]
    parts = [list(shard.select(bounds)) for shard in shards]
    assert sorted((item for part in parts for item in part), key=lambda item: item.index) == every
    assert all({item.block % count for item in part} <= {n} for n, part in enumerate(parts))
    for shard, part in zip(shards, parts, strict=True):
        assert shard.count(bounds) == len(part)


@drawn(
    st.lists(st.integers(0, 30), min_size=10, max_size=20),
    st.integers(0, 300),
    st.integers(0, 5),
    st.none() | st.integers(1, 20),
)
def test_the_block_that_a_limit_cuts_is_that_of_the_first_text_after_it(
    lengths, characters, skip, limit
):
    """Its texts before the limit are computed again where the limit grows."""
    bounds = Grouping(**NO_LIMITS | {"block_characters": characters})
    cut = cut_block(lengths, Settings(skip=skip, limit=limit), bounds)
    block = 0
    filled = 0
    blocks = {}
    for index, length in list(enumerate(lengths))[skip:]:
        if characters and filled and filled + length > characters:
            block += 1
            filled = 0
        filled += length
        blocks[index] = block
    after = len(lengths) if limit is None else skip + limit
    expected = [n for n in blocks if n < after and blocks[n] == blocks.get(after)]
    assert list(cut) == expected


@pytest.mark.parametrize(
    ("tokens", "blocks"),
    # of 8 groups of 1,024 tokens, of an eighth of the input, and of a window of 18,800
    [(8000, 1), (16000, 2), (80000, 8), (320000, 18)],
)
def test_a_block_has_eight_groups_or_an_input_has_eight_blocks(tokens, blocks):
    costs = [80] * (tokens // 20)  # characters, four a token
    bounds = with_blocks(Grouping(1024, 1, 1, 1, window_tokens=18800), Settings(), costs)
    counter = BlockCounter(bounds)
    assert [counter.next(length) for length in costs][-1] + 1 == blocks


def test_the_first_block_is_as_short_as_the_first_window():
    bounds = Grouping(1, 1, 1, 1, window_tokens=1000, first_window_tokens=10, block_characters=4000)
    assert [bounds.most_characters(n) for n in range(4)] == [40, 4000, 4000, 4000]


def test_an_input_of_unknown_format_or_column_is_refused(tmp_path):
    with pytest.raises(
        UsageError, match=r"cannot tell the format of '.*/a.doc' from its name; set input_format"
    ):
        read(write(tmp_path, "a.doc", ""))
    with pytest.raises(AttnscopeError, match=r"no such file"):
        InputReader(str(tmp_path / "missing.txt"), None, "text")
    with pytest.raises(UsageError, match=r"has no column 'txt'; did you mean 'text'"):
        read(write(tmp_path, "a.csv", "id,text\n1,a\n"), column="txt")
    with pytest.raises(
        UsageError, match=r"a.csv: has no column 'text'; name one with column: id, review$"
    ):
        read(write(tmp_path, "a.csv", "id,review\n1,a\n"))
    with pytest.raises(AttnscopeError, match="is empty"):
        read(write(tmp_path, "b.csv", ""))


@pytest.mark.parametrize(
    ("records", "kilobytes", "name", "measured"),
    [
        (3, 1, "a.txt", False),
        (2, 1, "a.txt", True),
        (3, 0, "a.txt", True),
        (3, 1, "a.txt.gz", True),
    ],
)
def test_lines_are_made_into_records_once(
    tmp_path, monkeypatch, records, kilobytes, name, measured
):
    """They are read before, without it, if they are more or longer, or compressed; the records are the same."""
    content = b"one\ntwo\nthree\n"
    path = write(tmp_path, name, gzip.compress(content) if name.endswith("gz") else content)
    turns = []

    def counted(function):
        def call(*arguments):
            turns.append(function.__name__)
            return function(*arguments)

        return call

    monkeypatch.setattr("attnscope.batch.reader._KEPT_RECORDS", records)
    monkeypatch.setattr("attnscope.batch.reader._KEPT_BYTES", 1024 * kilobytes)
    for function in (from_txt, txt_sizes):
        monkeypatch.setattr(f"attnscope.batch.reader.{function.__name__}", counted(function))
    assert texts(read(path)) == [(1, "one"), (2, "two"), (3, "three")]
    assert turns == ["txt_sizes"] * measured + ["from_txt"]


ODD_VALUES = (
    '"a"', '"é😀\\n"', '""', "null", "true", "7", "1.0", "1e3", "1e999", "12345678901234567890123", '"\\ud800"', "[1]",
    "[" * 60 + "]" * 60, "[" * 101 + "]" * 101, "[" * 2400 + "]" * 2400,
    '"[[["', '{"k": "v"}', "[1,]", '{"role": "user", "content": "hi"}',
    '[{"role": "user", "content": "hi"}]',
)  # fmt: skip
ODD_LINES = (
    b"",
    b"  ",
    b"\r",
    b"\xff",
    b'{"text": "\xff"}',
    b'{"text": "a"} x',
    b"x" * 5010,
    b"[1]",
    b"{}",
)


@pytest.mark.parametrize(
    "start", [b"", b"\xef\xbb\xbfone\n", b'\xef\xbb\xbf{"text": "a", "id": 1}\n']
)
def test_sizes_are_those_of_the_records(monkeypatch, start):
    """Whatever a line holds: blocks are cut by them before records are made."""
    monkeypatch.setattr("attnscope.request.text_files.MAX_LINE", 5000)
    keys = ("text", "id", "pair", "context", "messages", "image", "other")
    lines = [f'{{"text": "one", "{key}": {value}}}' for key in keys for value in ODD_VALUES]
    lines += [f'{{"{key}": {value}, "other": 1.50}}' for key in keys for value in ODD_VALUES]
    content = start + b"\n".join([*ODD_LINES, *map(str.encode, lines), *ODD_LINES])
    assert list(txt_sizes(io.BytesIO(content))) == [
        size_of(item) for item in from_txt(io.BytesIO(content), "a")
    ]
    for column in ("text", "pair", "id"):
        items = list(from_jsonl(io.BytesIO(content), "a", column))
        assert list(jsonl_sizes(io.BytesIO(content), column)) == [size_of(item) for item in items]
        assert 0 < sum(item.text is None for item in items) < len(items)


ODD_ROWS = (
    b"x,1,p,c,o", b"x,,,,", b",,,,", b"x,1,p,c", b"x,1,p,c,o,o", b"\xff,1,p,c,o", b"x,\xff,p,c,o", b"", b"x" * 101, b'"',
    b'"x\ny",2,"a""b",,', b'"x"y,1,p,c,o', "é😀,é,é,é,é".encode(), b"x,1,p,c,o\r", b'"', b"x,1,p,c,o",
)  # fmt: skip


@pytest.mark.parametrize("column", ["text", "pair", "id", "other"])
def test_sizes_of_rows_are_those_of_the_records(monkeypatch, column):
    monkeypatch.setattr("attnscope.request.text_files.MAX_LINE", 100)
    content = b"text,id,pair,context,other\n" + b"\n".join([*ODD_ROWS, *ODD_ROWS[:-2]])
    items = list(from_table(io.BytesIO(content), "a", column, ","))
    sizes = list(table_sizes(io.BytesIO(content), "a", column, ","))
    assert sizes == [size_of(item) for item in items]
    assert [item.index for item in items] == list(range(len(items)))
    assert 3 < sum(item.text is None for item in items) < len(items) - 3


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = write(tmp_path, "a.txt", "one\ntwo\n")
    with InputReader(str(path), None, "text") as given:
        items = given.items()
        next(items)
        with open(path, "a") as file:
            file.write("three\n")
        with pytest.raises(AttnscopeError, match="changed while it was read"):
            list(items)
