"""Commands on pictures: check passes, dumps take a picture from a record, and the command line reads files."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from attnscope.findings.images import spell_prompt
from attnscope.studies.screens.pictures import present_all_maps
from attnscope.views.settings import DisplaySettings
from tests.explore.headless import walk_without_terminal
from tests.helpers.sample_reports import tokens
from tests.helpers.tiny_vision import VISION, picture
from tests.helpers.tiny_vlm import PROMPTS, QUESTION

Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures")
    next(row for row in VISION if row.name == "dinov2_with_registers").save(path / "dinov2")
    next(row for row in PROMPTS if row.name == "qwen2_vl").save(path / "qwen", template=True)
    Image.fromarray(picture()).save(path / "cat.png")
    return path


@pytest.fixture(autouse=True)
def _here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


@pytest.mark.parametrize("words", [["-m", "dinov2"], [QUESTION, "-m", "qwen"]])
def test_check_passes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *words, "--image", "cat.png", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    verdicts = {item["name"]: item["verdict"] for item in report["checks"]}
    assert report["passed"]
    assert verdicts["equals eager transformers: weights"] == "pass"
    assert verdicts["padding changes nothing"] == "skipped"


def test_dumps_take_pictures_of_records(folder: Path) -> None:
    records = [
        {"text": QUESTION, "image": "cat.png"},
        {"text": QUESTION},
        {"text": "?", "image": ["cat.png"] * 2},
    ]
    Path("in.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in [*records, {"image": "none.png"}])
    )
    assert (
        main(
            ["batch", "in.jsonl", "-m", "qwen", "-o", "out.jsonl", "--stage", "weights", "--quiet"]
        )
        == 3
    )
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    by_index = {line["index"]: line for line in lines if "index" in line}
    assert by_index[3]["error"] == "none.png: no such file"
    pictures = [["cat.png"], None, ["cat.png", "cat.png"]]
    for index, (record, files) in enumerate(zip(records, pictures, strict=True)):
        alone = attnscope.inspect(
            record["text"], image=files, model="qwen", layer="all", head="all", stages="weights"
        )
        expected = alone.data.texts[0]
        assert [token["text"] for token in by_index[index]["tokens"]] == [
            token.text for token in expected.tokens
        ]
        dumped = np.array(by_index[index]["stages"]["weights"], dtype=np.float32)
        np.testing.assert_allclose(dumped, expected.heads.stages["weights"], atol=1e-5)


def test_a_dump_opens_the_half_of_a_model_that_its_first_record_needs(tmp_path: Path) -> None:
    """Of CLIP: pictures alone are seen, and a text among them says so; with a text first, pictures are left out."""
    clip = str(tmp_path / "clip")
    next(row for row in VISION if row.name == "clip").save(tmp_path / "clip")
    Image.fromarray(picture(seed=3)).save(tmp_path / "other.png")
    files = ["cat.png", str(tmp_path / "other.png")]

    def dumped(*records: dict[str, str]) -> list[dict[str, Any]]:
        texts, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        texts.write_text("".join(json.dumps(record) + "\n" for record in records))
        main(
            [
                "batch",
                str(texts),
                "-m",
                clip,
                "-o",
                str(out),
                "--stage",
                "weights",
                "--quiet",
                "--force",
            ]
        )
        return [line for line in map(json.loads, out.read_text().splitlines()) if "index" in line]

    first, text, second = dumped({"image": files[0]}, {"text": "hello"}, {"image": files[1]})
    for record, file in ((first, files[0]), (second, files[1])):
        seen = attnscope.inspect(
            image=file, model=clip, layer="all", head="all", stages="weights"
        ).data.texts[0]
        np.testing.assert_allclose(
            record["stages"]["weights"], seen.heads.stages["weights"], atol=1e-5
        )
    assert text["status"] == "failed" and text["error"].endswith(
        "takes no text; name a file as the member 'image'"
    )
    _, left_out = dumped({"text": "hello"}, {"image": files[0]})
    assert (
        left_out["status"] == "skipped"
        and "opens the half of this model that reads texts" in left_out["error"]
    )


def test_dumps_of_a_vision_model_need_no_text() -> None:
    Path("seen.jsonl").write_text('{"image": "cat.png"}\n')
    assert main(["batch", "seen.jsonl", "-m", "dinov2", "-o", "seen-out.jsonl", "--quiet"]) == 0
    record = json.loads(Path("seen-out.jsonl").read_text().splitlines()[1])
    assert record["status"] == "ok"
    assert [token["text"] for token in record["tokens"]][:5] == [
        "cls",
        *(f"register:{n}" for n in range(3)),
        "image:0,0",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "a cat", "--image", "cat.png", "-m", "dinov2"], "the model takes a picture alone"),
        (["run", "-m", "dinov2", "a cat"], "takes no text; pass --image FILE"),
        (["run", "a cat", "--image", "cat.png"], "riverbank takes texts alone"),
        (
            ["run", "--image", "cat.png", "--file", "in.txt", "-m", "dinov2"],
            "cannot be used together",
        ),
        (["run", "--image", "cat.png", "-m", "dinov2", "--engine", "native"], "takes texts alone"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_chat_takes_a_picture_of_an_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = tmp_path / "chat.json"
    parts = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    chat.write_text(json.dumps([{"role": "user", "content": parts}]))
    assert main(["run", "--chat", str(chat), "--image", "cat.png", "-m", "qwen", "--json"]) == 0
    text = json.loads(capsys.readouterr().out)["texts"][0]
    assert text["images"][0]["name"] == "cat.png"
    chat.write_text(
        json.dumps([{"role": "user", "content": [{"type": "video", "video": "cat.mp4"}]}])
    )
    assert main(["run", "--chat", str(chat), "-m", "qwen"]) == 2
    error = capsys.readouterr().err
    assert "is of type 'video'; give its frames as parts" in error and error.count("\n") == 1


def test_an_answer_behind_a_picture_is_given() -> None:
    result = attnscope.ablate(
        QUESTION, image="cat.png", model="qwen", spans="images", each="span", answer=" a cat"
    )
    made = [token.text for token in result.data.tokens][-2:]
    prompt = attnscope.inspect(QUESTION, image="cat.png", model="qwen").data.texts[0].tokens
    assert made == ["a", "cat"] and [token.id for token in result.data.tokens][:-2] == [
        token.id for token in prompt
    ]
    assert result.data.spans is not None and {"image", "answer"} <= set(result.data.spans.names)


def test_a_picture_is_one_source_of_edges_unless_its_patches_are_named() -> None:
    question: dict[str, Any] = {"image": "cat.png", "model": "qwen", "layer": 1, "head": 0}
    text = attnscope.inspect(QUESTION, **question, stages="weights").data.texts[0]
    names = [token.text for token in text.tokens]
    patches = [n for n, name in enumerate(names) if name.startswith("image:")]
    weights = text.heads[0].stages["weights"]
    last = len(names) - 1
    found = attnscope.ablate(QUESTION, **question, each="edge").data
    row = {
        key: float(weight)
        for query, key, weight in zip(found.queries, found.keys, found.weights, strict=True)
        if query == last
    }
    assert row.keys() & {*patches} == {patches[0]}
    assert row[patches[0]] == pytest.approx(float(weights[last, patches].sum()), abs=1e-5)
    (position,) = (n for n, name in enumerate(names) if name == "left")
    assert row[position] == pytest.approx(float(weights[last, position]), abs=1e-6)
    cut = attnscope.ablate(QUESTION, image="cat.png", model="qwen", cut=f"L1H0: {last}←image").data
    index = [*zip(found.queries, found.keys, strict=True)].index((last, patches[0]))
    for effects, alone in zip(found.effects, cut.effects, strict=True):
        assert effects.kl is not None
        assert effects.kl[index] == pytest.approx(alone.predictions[0].kl, rel=1e-4)
    each = attnscope.ablate(QUESTION, **question, each="edge", key="image").data
    assert {*each.keys} == {*patches}


def test_screens_quote_the_words_with_the_picture_as_one_thing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = [QUESTION, "--image", "cat.png", "-m", "qwen"]
    for words in (
        ["ablate", *asked, "--each", "edge", "--layer", "1", "--head", "0"],
        ["heads", *asked, "--key", "left"],
        ["explain", *asked, "--query", "left"],
    ):
        assert main(words) == 0
        screen = capsys.readouterr().out
        assert f"⟨image 4×6⟩ {QUESTION}" in screen and "image_pad" not in screen, words
        assert words[0] == "explain" or not re.search(r"image:\d", screen), words
    assert spell_prompt("a text", tokens(["a", "text"])) is None


def test_python_prints_maps_of_all_patches_and_no_matrices() -> None:
    printed = repr(attnscope.inspect(image="cat.png", model="dinov2", layer=1, head=2))
    assert "weights of cls" in printed and "patches" in printed and "scores" not in printed
    every = repr(attnscope.inspect(image="cat.png", model="dinov2", layer="all", head="all"))
    assert "below each: entropy in bits" in every and "are printed" not in every


def test_doctor_examines_what_applies_to_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "-m", "dinov2"]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "nothing is wrong: 8 checks are ok, 20 do not apply" in screen
    assert "row sums ok" in screen and "other size ok" in screen and "processor ok" in screen


def test_a_span_of_a_picture_counts_its_patches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--image", "cat.png", "-m", "dinov2", "--spans", "images"]) == 0
    screen = capsys.readouterr().out
    assert "16 patches" in screen and "register:0 register:1 register:2" in screen


def test_explore_names_the_places_that_a_row_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    screens = walk_without_terminal(monkeypatch)
    words = ["--image", "cat.png", "-m", "dinov2", "--layer", "1", "--head", "2"]
    assert main(["explore", *words]) == 0
    text = attnscope.inspect(image="cat.png", model="dinov2", layer=1, head=2).data.texts[0]
    weights = text.heads.stages["weights"][0, 0]  # of cls, where a walk starts
    listed = [line for line in screens[0] if "← " in line]
    for position in np.argsort(-weights)[:3]:
        name = f"← {position} {text.tokens[position].text} "
        assert any(name in line for line in listed), (name, listed)


def test_a_thumbnail_whose_row_rounds_above_1_has_nothing_outside_the_picture() -> None:
    text = attnscope.inspect(image="cat.png", model="dinov2", layer="all", head="all").data.texts[0]
    weights = text.heads.stages["weights"]
    weights[:] = 0
    weights[..., text.images[0].tokens[1, 1]] = np.nextafter(np.float32(1), np.float32(2))
    (drawn,) = present_all_maps(text, DisplaySettings())
    assert {thumbnail.facts[-1] for thumbnail in drawn.maps} == {"0%"}
