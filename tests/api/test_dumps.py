"""Dumps, read record by record: the arrays are those of a report, and damage is refused."""

from pathlib import Path

import numpy as np
import pytest

import attnscope
from attnscope.cli import main

TEXTS = ["The bank by the river", "", "river", "the old bank was eroded by the river"]


@pytest.fixture(params=["dump.jsonl", "shards", "dump.json"])
def dump(request, tmp_path: Path) -> Path:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    words = [
        "--layer",
        "1",
        "--head",
        "all",
        "--stage",
        "weights,output",
        "--top",
        "2",
        "--keep",
        "top,rows",
        "--quiet",
    ]
    assert main(
        ["batch", str(tmp_path / "texts.txt"), "-o", str(tmp_path / request.param), *words]
    ) in (0, 3)
    return tmp_path / request.param


def test_records_hold_the_arrays_of_a_report(dump: Path):
    read = attnscope.read_dump(str(dump))
    assert read.header.provenance.model == "riverbank"
    records = list(read)
    assert [record.text for record in records if record.status == "ok"] == [
        text for text in TEXTS if text
    ]
    for record in (record for record in records if record.status == "ok"):
        report = attnscope.inspect(
            record.text, layer=1, head="all", stages=("weights", "output"), top=2
        )
        assert [token.text for token in record.tokens] == report.query_tokens
        assert record.units == [(1, head) for head in range(4)]
        for stage in ("weights", "output"):
            assert record.stages[stage].dtype == np.float32
            np.testing.assert_allclose(
                record.stages[stage], getattr(report, stage)[0], rtol=2e-5, atol=2e-6
            )
        assert record.top is not None and record.rows is not None
        np.testing.assert_allclose(
            record.rows.entropy, [head.rows.entropy for head in report], rtol=1e-4, atol=1e-6
        )
        weights = [
            [[c.weight for c in head.top(query)] for query in report.queries] for head in report
        ]
        if len(report.tokens) > 1:
            np.testing.assert_allclose(record.top.weight, weights, rtol=2e-5, atol=2e-6)
    again = [record.index for record in read]
    assert again == [record.index for record in records] == list(range(len(records)))
    assert (
        repr(read) == f"DumpFile({str(dump)!r}, model='riverbank', keep=('top', 'rows', 'stages'))"
    )


def test_damage_and_a_missing_end_are_refused(dump: Path):
    if dump.is_dir():
        (shard,) = dump.glob("*.safetensors")
        shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    elif dump.suffix == ".jsonl":
        lines = dump.read_bytes().splitlines(keepends=True)
        dump.write_bytes(b"".join([lines[0], lines[1].replace(b"river", b"rivet", 1), *lines[2:]]))
    else:
        dump.write_bytes(dump.read_bytes()[:-20])
    with pytest.raises(attnscope.AttnscopeError, match=r"damaged|is not a dump"):
        list(attnscope.read_dump(dump))
    if dump.suffix == ".jsonl":
        dump.write_bytes(b"".join(lines[:-1]))
        read = iter(attnscope.read_dump(dump))
        assert next(read).text == TEXTS[0]
        with pytest.raises(attnscope.AttnscopeError, match="is not finished"):
            list(read)
