"""Commands besides `run` that take sound, the command that a page shows, the device, and the memory of a long sound."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

import attnscope
from attnscope.cli import main
from attnscope.engines.transformers import sound as sound_engine
from attnscope.studies.explore.scenes import text_scene
from tests.helpers.tiny_sound import noise

Tiny = Callable[[str], Path]


@pytest.mark.parametrize(
    ("name", "part"), [("whisper", ""), ("whisper", "encoder"), ("wav2vec2", ""), ("ast", "")]
)
def test_check_passes(
    tiny: Tiny, sound: Path, name: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = ["--part", part] if part else []
    assert main(["check", "--audio", str(sound), "-m", str(tiny(name)), *parts, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    verdicts = {item["name"]: item["verdict"] for item in report["checks"]}
    assert report["passed"]
    assert verdicts["equals eager transformers: weights"] == "pass"
    assert verdicts["padding changes nothing"] == "skipped"


@pytest.mark.parametrize("name", ["whisper", "moonshine"])
def test_the_padding_of_a_sound_is_no_source(tiny: Tiny, sound: Path, name: str) -> None:
    """Ranked sources had positions behind the last frame, at which explore ended with an internal error."""
    options = {"audio": str(sound), "model": str(tiny(name)), "layer": "all", "head": "all"}
    (text,) = attnscope.inspect("a b", top=5, stages="weights", **options).data.texts
    for head in text.heads:
        weights = head.stages["weights"]
        order = np.argsort(-weights, axis=1, kind="stable")[:, :5]
        listed = np.take_along_axis(weights, order, axis=1)
        np.testing.assert_allclose(head.top.measures["weight"], listed, atol=1e-6)
        assert head.top.keys.max() < len(text.sources) == weights.shape[1]


def test_dumps_take_sounds_of_records(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    soundfile.write("one.wav", noise(2), 16_000)
    soundfile.write("two.wav", noise(1.3, seed=3), 16_000)
    records: list[dict[str, Any]] = [
        {"audio": "one.wav"},
        {"audio": "two.wav"},
        {"audio": "one.wav", "text": "abc"},
    ]
    wrong: list[dict[str, Any]] = [
        {"audio": "none.wav"},
        {"audio": ["one.wav"]},
        {"audio": "one.wav", "image": "c.png"},
    ]
    Path("in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in [*records, *wrong]))
    model = tiny("whisper")
    assert (
        main(
            [
                "batch",
                "in.jsonl",
                "-m",
                str(model),
                "-o",
                "out.jsonl",
                "--stage",
                "weights",
                "--quiet",
            ]
        )
        == 3
    )
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    by_index = {line["index"]: line for line in lines if "index" in line}
    errors = [by_index[index]["error"] for index in (3, 4, 5)]
    assert errors[0] == "none.wav: no such file"
    assert errors[1].startswith("audio: Expected")
    assert errors[2] == "has both image and audio; give each a record of its own"
    for index, record in enumerate(records):
        text = record.get("text")
        alone = attnscope.inspect(
            text, audio=record["audio"], model=model, layer="all", head="all", stages="weights"
        )
        expected = alone.data.texts[0]
        assert [token["text"] for token in by_index[index]["tokens"]] == [
            token.text for token in expected.tokens
        ]
        dumped = np.array(by_index[index]["stages"]["weights"], dtype=np.float32)
        np.testing.assert_allclose(dumped, expected.heads.stages["weights"], atol=1e-5)


def test_a_dump_of_sounds_opens_the_half_of_a_model_that_hears(
    tiny: Tiny, sound: Path, tmp_path: Path
) -> None:
    model = tiny("qwen2_audio")
    (tmp_path / "in.jsonl").write_text(json.dumps({"audio": str(sound)}))
    attnscope.write_dump(
        tmp_path / "in.jsonl", model=model, output=tmp_path / "out.jsonl", stages="weights"
    )
    (record,) = attnscope.read_dump(tmp_path / "out.jsonl")
    shown = attnscope.inspect(
        None, audio=sound, model=model, layer="all", head="all", stages="weights"
    ).data.texts[0]
    np.testing.assert_allclose(record.stages["weights"], shown.heads.stages["weights"], atol=1e-6)


def test_the_command_of_a_page_names_the_sound(tiny: Tiny, sound: Path, tmp_path: Path) -> None:
    def command(text: str | None, path: Path, **options: Any) -> str | None:
        report = attnscope.inspect(
            text, model=tiny("whisper"), audio=path, layer=0, head=0, **options
        ).data
        spelled = text_scene(report, report.texts[0]).command
        return None if spelled is None else spelled.spell()

    assert f"run ' abc de' --audio {sound} --model" in str(command("abc de", sound))
    assert f"run --audio {sound} --model" in str(command(None, sound))
    soundfile.write(tmp_path / "long.wav", noise(8), 16_000)
    assert command(None, tmp_path / "long.wav", key="7.9s") is None


def test_a_model_hears_where_it_runs(
    tiny: Tiny, sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def choose(name: str, multiplications: int) -> torch.device:
        asked.append(name)
        assert multiplications > 0
        return torch.device("cpu")

    monkeypatch.setattr(sound_engine, "choose_device", choose)
    attnscope.inspect(model=tiny("whisper"), audio=sound, layer=0, head=0, device="cpu")
    assert asked and set(asked) == {"cpu"}


# The peak of getrusage has that of the process which started this one.
PEAK = """
import re, sys
from pathlib import Path
from attnscope.cli import main
assert main(["run", "--audio", sys.argv[1], "-m", sys.argv[2], "--quiet", "-o", sys.argv[3]]) == 0
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system has no /proc")
def test_memory_does_not_grow_with_a_long_sound(tiny: Tiny, tmp_path: Path) -> None:
    """Ten times as many windows of 3 seconds: 20 and 200."""
    peaks = []
    for seconds in (60, 600):
        path = tmp_path / f"{seconds}.wav"
        soundfile.write(path, np.tile(noise(60), seconds // 60), 16_000)
        words = [
            sys.executable,
            "-c",
            PEAK,
            str(path),
            str(tiny("whisper")),
            str(tmp_path / f"{seconds}.srt"),
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.split()[-1]))
    assert peaks[1] <= 1.05 * peaks[0], peaks
