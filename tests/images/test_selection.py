"""Selections of places: patches, boxes, pictures, class tokens and registers; and pictures as spans."""

import numpy as np
import pytest

import attnscope
from attnscope.base.errors import NotInText
from attnscope.findings.tokens import Token
from attnscope.request.dividing import divide
from attnscope.request.run_config import TextInput
from attnscope.request.selection import parse_positions
from attnscope.request.spans import parse_spans
from tests.helpers.tiny_vision import VISION, picture

TEXT = "an image of 3,4 cats"


def _tokens() -> list[Token]:
    """Two pictures of 2 × 3 patches, the second with a thumbnail, after tokens of a vision model; then a text."""
    names = ["cls", "register:0", "register:1"]
    names += [
        f"image[{n}]:{row},{column}" for n in (0, 1) for row in range(2) for column in range(3)
    ]
    names += ["thumbnail[1]:0,0"]
    tokens = [
        Token(n, name, name, special=not name[-1].isdigit() or "register" in name)
        for n, name in enumerate(names)
    ]
    at = 0
    for word in TEXT.split():
        start = TEXT.index(word, at)
        at = start + len(word)
        tokens.append(Token(50, word, word, start, at))
    return tokens


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("cls", [0]),
        ("register", [1, 2]),
        ("register:1", [2]),
        ("image", list(range(3, 15))),
        ("image[1]", list(range(9, 15))),
        ("thumbnail", [15]),
        ("image[0]:1,2", [8]),
        ("image[0]:0,1-1,2", [4, 5, 7, 8]),
        ("image[1]:0,0,cls, image[0]:0,0-0,1", [9, 0, 3, 4]),
        ("3 image[0]:0,0", [3]),
        ("image:1,0", [6, 12]),
        ("Image", [17]),
        ('"3,4"', [19]),
        ("cats,register:0", [20, 1]),
    ],
)
def test_places_are_selected(written: str, expected: list[int]) -> None:
    assert parse_positions(written).find(_tokens(), (TEXT,), "query") == expected


@pytest.mark.parametrize("written", ["image[2]", "image[0]:2,0", "register:2", "frame[0]"])
def test_places_that_are_not_there(written: str) -> None:
    with pytest.raises(NotInText, match="not in the text"):
        parse_positions(written).find(_tokens(), (TEXT,), "query")


def test_the_first_of_one_picture() -> None:
    tokens = [Token(n, f"image:0,{n}", f"image:0,{n}") for n in range(3)]
    for written in ("image[0]:0,1", "image:0,1"):
        assert parse_positions(written).find(tokens, ("",), "query") == [1]


def test_pictures_are_spans() -> None:
    for word, words in (("words", ["an", "image (text)"]), ("images", ["text", "text"])):
        tokens = _tokens()
        for position, token in enumerate(tokens):
            if token.piece.startswith("image[0]"):
                name = token.piece.replace("[0]", "")
                tokens[position] = Token(token.id, name, name)
        spans = divide(TextInput(TEXT), tokens, parse_spans(word))
        of_token = [spans.names[index] for index in spans.of_token]
        assert of_token[:3] == ["(first)", "(special)", "(special)"]
        assert of_token[3:16] == ["image"] * 6 + ["image[1]"] * 6 + ["thumbnail[1]"]
        assert of_token[16:18] == words


def test_spans_selections_and_effects_of_a_vision_model(tmp_path) -> None:
    pytest.importorskip("PIL")
    row = next(row for row in VISION if row.name == "dinov2_with_registers")
    row.save(tmp_path)
    with attnscope.open_model(str(tmp_path)) as model:
        seen = {"image": picture(), "spans": "images"}
        text = model.inspect(
            query=["cls", "image:1,1"], layer=1, head=2, stages="weights", **seen
        ).data.texts[0]
        assert text.queries == [0, 9]
        whole = model.inspect(layer=1, head=2, stages="weights", image=picture()).data.texts[0]
        np.testing.assert_allclose(
            text.heads.stages["weights"], whole.heads.stages["weights"][:, [0, 9]], atol=1e-6
        )
        measured = model.heads(query="cls", key="image", image=picture()).data
        assert measured.values[1, 2] == pytest.approx(
            float(whole.heads.stages["weights"][0, 0, 4:].sum()), abs=1e-5
        )
        effects = model.ablate(each="span", **seen).data
        assert [effects.spans.names[index] for index in effects.span_numbers] == [
            "(first)",
            "image",
            "(special)",
        ]


@pytest.mark.parametrize("name", ["dinov2_with_registers"])
def test_roles_of_pictures_are_means_over_patches(tmp_path, name: str) -> None:
    """Each is recomputed from the weights of all heads."""
    pytest.importorskip("PIL")
    next(row for row in VISION if row.name == name).save(tmp_path)
    with attnscope.open_model(str(tmp_path)) as model:
        roles = {role.name: role.values for role in model.heads(image=picture()).data.roles}
        text = model.inspect(image=picture(), layer="all", head="all", stages="weights").data.texts[
            0
        ]
    weights = text.heads.stages["weights"].astype(np.float64)  # (layers · heads, tokens, tokens)
    places = {token: divmod(n, 4) for n, token in enumerate(text.images[0].tokens.ravel().tolist())}
    expected = {role: np.zeros(len(weights)) for role in ("row", "column", "near")}
    for query, (y, x) in places.items():
        for key, (row, column) in places.items():
            if key != query:
                expected["row"] += weights[:, query, key] * (row == y) / len(places)
                expected["column"] += weights[:, query, key] * (column == x) / len(places)
                expected["near"] += (
                    weights[:, query, key] * (max(abs(row - y), abs(column - x)) <= 1) / len(places)
                )
    for role, values in expected.items():
        np.testing.assert_allclose(roles[role].ravel(), values, atol=1e-5)
    words = weights[:, 4:, :]  # no patch is among the first two tokens
    np.testing.assert_allclose(roles["first"].ravel(), words[:, :, 0].mean(1), atol=1e-5)
    np.testing.assert_allclose(
        roles["special"].ravel(), words[:, :, 1:4].sum(-1).mean(1), atol=1e-5
    )
    assert np.isnan(roles["induction"]).all()
