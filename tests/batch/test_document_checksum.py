"""`verify` finds every changed byte of a dump that is one JSON document."""

import json
import random
from pathlib import Path

import pytest

from attnscope.cli import main
from tests.helpers.draws import drawn


def test_every_flipped_byte_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts, dump = tmp_path / "texts.txt", tmp_path / "dump.json"
    texts.write_text("The bank by the river\nThe cat sat\n")
    assert main(["batch", str(texts), "-o", str(dump), "--quiet"]) == 0
    assert main(["verify", str(dump)]) == 0
    data = dump.read_bytes()
    assert [*json.loads(data)] == ["header", "records", "end", "check"]
    source = random.Random(14)
    places = [
        *source.sample(range(len(data) - 1), drawn(60)),
        len(data) - 2,
        len(data) - 5,
        len(data) - 1,
    ]
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << source.randrange(8)
        dump.write_bytes(damaged)
        assert main(["verify", str(dump), "--quiet"]) == 1, (
            place,
            data[max(0, place - 20) : place + 20],
        )
    capsys.readouterr()
    # A copy in another format is still possible, and back.
    dump.write_bytes(data)
    lines, again = tmp_path / "dump.jsonl", tmp_path / "again.json"
    assert main(["convert", str(dump), str(lines)]) == 0
    assert main(["convert", str(lines), str(again)]) == 0
    assert again.read_bytes() == data
