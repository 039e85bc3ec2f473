"""Walks through dumps of many records, which are read as far as one walks."""

import asyncio
import gzip

import msgspec
import numpy as np
import pytest

pytest.importorskip("textual", reason="textual is not installed")

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.batch.dump_reader import dump_lines
from attnscope.batch.journal import seal
from attnscope.batch.record_store import RecordStore
from attnscope.batch.records import End, encode
from attnscope.batch.walks import dump_source
from attnscope.cli import main
from attnscope.views.explore.app import ExploreApp
from attnscope.views.walk.scene import Variant
from tests.explore.proof import region_text, settled

COUNT = 1100
PAIR = ["the bank by the river", "the bank that lent us money"]
TEXTS = [f"{PAIR[n % 2]} {n}" for n in range(COUNT)]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The header and the records of a dump of two texts."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in PAIR))
    assert (
        main(["batch", str(folder / "texts.txt"), "-o", str(folder / "dump.jsonl"), "--quiet"]) == 0
    )
    header, *records, _ = dump_lines(folder / "dump.jsonl")
    return header, records


@pytest.fixture(scope="module", params=[".jsonl", ".jsonl.gz"])
def many(request, two, tmp_path_factory):
    """A dump of 1,100 records: those of two texts again and again, under other ids and with a number in their text."""
    header, records = two
    bodies = [header]
    for number, text in enumerate(TEXTS):
        record = msgspec.json.decode(records[number % 2])
        bodies.append(
            msgspec.json.encode(record | {"index": number, "id": f"r{number}", "text": text})
        )
    bodies.append(encode(End(True, COUNT, COUNT, 0, 0)))
    lines, crc = [], 0
    for body in bodies:
        line, crc = seal(body, crc)
        lines.append(line)
    path = tmp_path_factory.mktemp("many") / f"dump{request.param}"
    data = b"".join(lines)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_every_record_of_a_long_dump_is_reached(many):
    async def walk():
        app = ExploreApp(dump_source(many))
        async with app.run_test(size=(120, 40)) as pilot:
            await settled(app, pilot)

            async def press(*keys):
                for key in keys:
                    await pilot.press(key)
                    await settled(app, pilot)
                return region_text(app, "title")[0]

            async def pick(words):
                await pilot.press("#")
                await pilot.press(*words)
                return await press("enter")

            plain = many.suffix == ".jsonl"
            # a compressed dump is counted as it is read
            assert f"record r0 · 1 of {'1,100' if plain else '1+'}  " in await press("j")
            assert "record r2 · 3 of" in await press(")", ")")
            assert "record r1099 · 1,100 of 1,100" in await pick(str(COUNT))
            title, here = await press("("), app.state.place.spot
            assert here.text == COUNT - 2 and "record r1098" in title
            rows = app.state.head.rows["entropy"]
            assert "record r0 · 1 of" in await press(")", ")")  # round
            assert "record r501 · 502 of" in await pick("r501")
            assert "record r1095" in await pick("money 1095")
            await pick("nothing")
            assert "no text has" in region_text(app, "title")[0]
            assert len(app.state.source.saved._made) <= 8
            return here, rows

    here, rows = asyncio.run(walk())
    expected = attnscope.inspect(PAIR[here.text % 2], layer=here.layer, head=here.head)[
        here.layer, here.head
    ]
    # of a brief dump, which keeps three decimals
    assert np.allclose(rows, expected.rows.entropy, atol=6e-4)


def test_records_are_read_again_where_they_are_not_kept(many, monkeypatch):
    monkeypatch.setattr("attnscope.batch.record_store._MOST_BYTES", 1)
    store = RecordStore(many)
    assert store.reach(None) and store.total == COUNT == len(store) and len(store._kept) == 1
    for number in (0, 7, COUNT - 1, 500):
        assert store.brief(number).index == number
    assert not store.reach(COUNT)


def test_a_damaged_record_is_named_when_it_is_reached(many, tmp_path):
    if many.suffix != ".jsonl":
        pytest.skip("a damaged frame is refused at once")
    lines = many.read_bytes().splitlines(keepends=True)
    lines[900] = lines[900].replace(b"bank", b"bonk")
    path = tmp_path / "damaged.jsonl"
    path.write_bytes(b"".join(lines))
    source = dump_source(path)
    assert source.scene(Variant()) is not None
    with pytest.raises(AttnscopeError, match=r"damaged.jsonl:901.*damaged"):
        source.compute(Variant(text=1000), 0, 0, "weights", (0, 0), lambda *_: None)
    assert len(source.texts) == 899
