"""A page with spans begins with the text and an answer: the walk between spans, and then that between tokens."""

import itertools
import json
import re
import shlex
from types import SimpleNamespace

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from attnscope.studies.run.span_walk import read_most, reading_heads
from attnscope.views.page.walk import _named_runs
from attnscope.views.spans import Span
from tests.chat import proof, span_cuts
from tests.page.reading import read_page, text_in
from tests.page.test_browser import LISTED
from tests.page.walking import middle_of_cell, shows

TEXT = "Doc: the bank by the river was steep. Note: a boat sank there. Answer: the old bank"
MARKS = "Doc:,Note:,Answer:"
CHAT = {
    "messages": [
        {"role": "system", "content": "river bank"},
        {
            "role": "user",
            "content": [
                {"type": "text", "name": "doc 1", "text": "the bank"},
                {"type": "text", "text": "old river"},
            ],
        },
    ]
}


def written(tmp_path, *options, name="page"):
    """The page of a run, and the JSON of its only text."""
    path, exact = tmp_path / f"{name}.html", tmp_path / f"{name}.json"
    for output in (path, exact):
        assert main(["run", *options, "-o", str(output), "--quiet"]) == 0
    return path, json.loads(exact.read_text())["texts"][0]


@pytest.fixture(scope="module")
def page_of_marks(tmp_path_factory):
    return written(tmp_path_factory.mktemp("marks"), TEXT, "--spans", MARKS)


def spans_scene(path):
    page = read_page(path)
    kinds = [node["k"] for node in page.nodes if isinstance(node, dict)]
    assert kinds == ["walk"]
    (walk,) = page.of_kind("walk")
    assert walk["texts"] == ["as spans", "as tokens"]
    return page, walk["scenes"][0]


def test_the_walk_between_spans_has_every_head_and_their_means(page_of_marks):
    path, text = page_of_marks
    page, scene = spans_scene(path)
    weights = np.array(text["spans"]["weights"], dtype=np.float64)
    found = {unit["name"]: page.stage(unit, "weights") for unit in scene["units"]}
    expected = {f"L{n}H{m}": weights[n, m] for n in range(4) for m in range(4)}
    expected |= {f"L{n} mean": weights[n].mean(0) for n in range(4)}
    expected |= {f"mean H{m}": weights[:, m].mean(0) for m in range(4)}
    expected["mean"] = weights.mean((0, 1))
    assert found.keys() == expected.keys()
    for name, matrix in expected.items():
        np.testing.assert_allclose(found[name], matrix, atol=1e-6)
    assert scene["size"] == "4×4"


def test_the_answer_names_what_is_read_most_and_the_head_that_reads_it_most(page_of_marks):
    path, text = page_of_marks
    _, scene = spans_scene(path)
    spans = text["spans"]
    weights = np.array(spans["weights"], dtype=np.float64)
    names = spans["text"]["names"]
    reader = names.index("Answer")
    others = [names.index(name) for name in ("Doc", "Note")]
    mean = weights.mean((0, 1))[reader]
    most = max(others, key=lambda span: mean[span])
    cells = weights[:, :, reader, most]
    tied = [
        f"L{n}H{m}" for n, m in np.ndindex(4, 4) if f"{cells[n, m]:.2f}" == f"{cells.max():.2f}"
    ]
    answer = scene["answer"].replace("\u2068", "").replace("\u2069", "")
    assert answer.startswith(
        f"In the mean of all 16 heads, “Answer” reads “{names[most]}” most of the other parts: {mean[most]:.2f} of its weight"
    )
    # a long part has more tokens to read
    assert f" (sums over tokens). It reads itself {mean[reader]:.2f}" in answer
    # L2H0 and L2H3 differ only in digits that are not shown
    assert len(tied) == 2
    best = f"Of all heads, {' and '.join(tied)} read “{names[most]}” most: {cells.max():.2f}."
    assert answer.endswith(best)
    assert scene["start"] == reader


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ((0.1426, 0.1382), "“a” and “b” most of the other parts: 0.14 of its weight each"),
        (
            (0.143, 0.138, 0.05),
            "“a” and “b” most of the other parts: 0.14 of its weight each, then “c” 0.05",
        ),
        (
            (0.15, 0.14, 0.14),
            "“a” most of the other parts: 0.15 of its weight, then “b” 0.14 and “c” 0.14",
        ),
        (
            (0.1449, 0.144, 0.1441, 0.144),
            "“a”, “c”, “b” and 1 more most of the other parts: 0.14 of its weight each",
        ),
    ],
)
def test_what_ties_by_the_digits_shown_has_no_winner(shares, said):
    names = [f"“{letter}”" for letter in "abcd"]
    read = sorted(range(len(shares)), key=lambda n: -shares[n])
    assert read_most(names, np.array(shares), read, "parts") == said


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"L0H0": 0.2, "L0H1": 0.391, "L1H0": 0.38}, "L0H1 reads “a” most: 0.39."),
        ({"L0H0": 0.394, "L0H1": 0.386, "L1H0": 0.38}, "L0H0 and L0H1 read “a” most: 0.39."),
    ],
)
def test_heads_that_tie_by_the_digits_shown_are_all_named(weights, said):
    assert reading_heads(weights, "“a”") == f"Of all heads, {said}"


def test_the_answer_stays_that_of_its_head_and_leads_back_to_it(open_page, page_of_marks):
    """While another head is open, so that it is not taken for an answer about this one."""
    path, _ = page_of_marks
    page = open_page(path, size=(1280, 800)).page
    answer = page.locator(".answer")
    said = answer.text_content()
    assert said.startswith("In the mean of all 16 heads, ")
    where = "document.querySelector('#where').textContent"
    colour = "getComputedStyle(document.querySelector('.answer')).color"
    bright = page.evaluate(colour)
    page.keyboard.press("]")
    assert shows(page, where + " !== 'mean'", True)
    assert answer.text_content() == f"{said} Back to mean."
    assert page.evaluate(colour) != bright
    answer.get_by_role("button", name="Back to mean.").click()
    assert shows(page, where, "mean")
    assert answer.text_content() == said
    assert page.evaluate(colour) == bright


def test_heads_of_many_spans_are_rounded_and_their_mean_is_exact(tmp_path, monkeypatch):
    monkeypatch.setattr("attnscope.studies.run.span_walk.MOST_CELLS", 1000)
    path, text = written(tmp_path, TEXT, "--spans", "whole-words")
    page, scene = spans_scene(path)
    weights = np.array(text["spans"]["weights"], dtype=np.float64)
    assert [unit["name"] for unit in scene["units"] if unit["exact"]] == ["mean"]
    (group,) = [group for group in scene["groups"] if not group["exact"]]
    places, shares = page.places(group), page.numbers(group["measures"]["weight"])
    unit = group["units"].index([2, 1])
    for row, query in enumerate(group["rows"]):
        known = weights[2, 1, query][places[:, unit, row]]
        np.testing.assert_allclose(shares[:, unit, row], known, atol=6e-4)


def test_the_text_and_the_answer_come_first(open_page, page_of_marks):
    path, _ = page_of_marks
    page = open_page(path, size=(1280, 800)).page
    places = [
        page.get_by_text("riverbank").first.bounding_box(),
        page.locator("#panel-text").bounding_box(),
        page.locator(".answer").bounding_box(),
        page.locator("#panel-heads").bounding_box(),
    ]
    for one, after in itertools.pairwise(places):
        assert one["y"] + one["height"] <= after["y"]
    assert page.locator("#panel-matrix").bounding_box()["y"] < 400
    assert places[-1]["y"] + places[-1]["height"] < 800
    assert page.locator(".flow").text_content() == TEXT


def test_the_page_begins_at_the_cell_that_its_answer_is_about(open_page, page_of_marks):
    """Although the row reads itself more: the lens, the row, the matrix and the address are of this cell."""
    path, text = page_of_marks
    weights = np.array(text["spans"]["weights"], dtype=np.float64)
    names = text["spans"]["text"]["names"]
    page = open_page(path, size=(1280, 800)).page
    answer = page.locator(".answer").text_content().replace("\u2068", "").replace("\u2069", "")
    reader, most = re.search(", “(.+?)” reads “(.+?)” most of the other parts", answer).groups()
    query, key = names.index(reader), names.index(most)
    assert weights.mean((0, 1))[query].argmax() != key
    assert page.locator(".heads-panel h2").text_content() == f"{reader} ← {most}"
    assert page.locator(".row-panel h2").text_content().strip() == f"{query} {reader}"
    row = page.locator("[data-arithmetic]").text_content()
    assert row == f"← {key} {most}weight {weights.mean((0, 1))[query, key]:.2f}"
    assert (
        page.locator(".matrix-panel p.cell")
        .text_content()
        .startswith(f"{query} {reader} ← {key} {most}: ")
    )
    assert f"query={reader}&key={most}" in page.evaluate("location.hash")
    largest = weights[..., query, key].max()
    head = page.evaluate(LISTED)[0][0]
    assert re.search(rf"Of all heads, {head} .*read “{most}” most: {largest:.2f}\.$", answer)
    # also on the way back from the tokens
    choice = page.locator(".text-panel select")
    choice.select_option(label="as tokens")
    choice.select_option(label="as spans")
    assert shows(
        page, "document.querySelector('.heads-panel h2').textContent", f"{reader} ← {most}"
    )


def test_a_click_on_a_part_of_the_text_shows_what_it_reads(open_page, page_of_marks):
    path, text = page_of_marks
    page = open_page(path, size=(1280, 800)).page
    weights = np.array(text["spans"]["weights"], dtype=np.float64).mean((0, 1))
    names = text["spans"]["text"]["names"]
    note = names.index("Note")
    page.locator("#panel-text .token", has_text="boat").click()
    assert shows(page, "document.querySelector('.row-panel h2').textContent.trim()", f"{note} Note")
    read = names[int(weights[note].argmax())]
    said = page.locator(".said-of").text_content()
    assert said.startswith(f"Note reads: {read} {weights[note].max():.2f} · ")
    address = page.evaluate("location.hash")
    page.keyboard.press("ArrowUp")
    assert shows(page, "document.querySelector('.row-panel h2').textContent.trim()", "1 Doc")
    again = open_page(path, address).page
    assert again.locator(".row-panel h2").text_content().strip() == f"{note} Note"


def test_the_command_of_a_span_repeats_its_row(open_page, page_of_marks, capsys):
    path, text = page_of_marks
    page = open_page(path, "#head=L1H2&query=Note", size=(1280, 800)).page
    _, *command = shlex.split(page.locator("p.command code").text_content())
    assert command[-6:] == ["--layer", "1", "--head", "2", "--query", "Note"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["texts"][0]["spans"]
    assert found["text"]["names"][found["query"]] == "Note"
    assert found["selected"] == [[1, 2]]
    np.testing.assert_allclose(found["weights"], text["spans"]["weights"], atol=1e-6)


def test_tokens_are_a_choice_away(open_page, page_of_marks):
    """From the mean, which tokens lack, at the head that is chosen automatically; a head stays."""
    path, text = page_of_marks
    first = text["heads"]["units"][0]
    page = open_page(path, size=(1280, 800)).page
    where = "document.querySelector('#where').textContent"
    assert page.evaluate(where) == "mean"
    choice = page.locator(".text-panel select")
    choice.select_option(label="as tokens")
    assert shows(page, where, f"L{first[0]}H{first[1]}")
    assert page.locator("#panel-text .token").count() == len(text["tokens"])
    choice.select_option(label="as spans")
    # a cell's middle is measured once the panels are in their new places
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    click = middle_of_cell(page.locator("#panel-heads"), 0, 1)
    page.locator("#panel-heads").click(position=click)
    choice.select_option(label="as tokens")
    assert shows(page, where, "L0H1")


def test_a_chat_is_shown_with_its_roles_and_its_command(tmp_path):
    folder = tmp_path / "gpt2"
    span_cuts.save(folder)
    (folder / "chat_template.jinja").write_text((proof.FOLDER / "phi3.jinja").read_text())
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps(CHAT))
    options = ["--chat", str(chat), "--model", str(folder)]
    path, text = written(tmp_path, *options)
    _, scene = spans_scene(path)
    names = text["spans"]["text"]["names"]
    passages = scene["passages"]
    for name, words in (
        ("system 1", "river bank"),
        ("doc 1", "the bank"),
        ("user 1", "old river"),
    ):
        at = passages.index([f"[{name}] ", -1, -1])
        shown, query, key = passages[at + 1]
        assert shown.replace("␣", " ") == words
        assert query == key == names.index(name)
    assert scene["answer"].startswith("In the mean of all 12 heads, “\u2068user 1\u2069” reads ")
    begin, _, model = scene["command"].partition(" --model ")
    assert begin == "attnscope run --chat chat.json"
    assert model.endswith("gpt2")
    path, _ = written(tmp_path, *options, "--query", "user 1", "--key", "doc 1", name="asked")
    _, scene = spans_scene(path)
    assert [scene["start"], scene["startKey"]] == [names.index("user 1"), names.index("doc 1")]
    assert not scene["answer"]  # of a cell, the lens says which head has most of it


def test_a_generated_token_has_one_name_and_is_text_between_spans(tmp_path):
    """The name has a mark, which the table of generated tokens explains."""
    folder = tmp_path / "gpt2"
    span_cuts.save(folder)
    (folder / "chat_template.jinja").write_text((proof.FOLDER / "phi3.jinja").read_text())
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps(CHAT))
    path, text = written(tmp_path, "--chat", str(chat), "--model", str(folder), "--generate", "4")
    made = [token for token in text["tokens"] if token.get("made")]
    assert len(made) == 4
    page = read_page(path)
    (walk,) = page.of_kind("walk")
    spans, tokens = walk["scenes"]
    names = tokens["queries"]["names"][-4:]
    assert all(name.startswith("+") for name in names)
    count = len(tokens["queries"]["names"])
    assert [piece for piece, query, _ in tokens["passages"] if query >= count - 4] == names
    below = " ".join(text_in(node) for node in page.nodes if isinstance(node, list))
    assert "generated  4 tokens (marked +), each the most probable one" in below
    for position, name in zip(range(count - 4, count), names, strict=True):
        assert f"{position} {name}" in below
    answer = spans["queries"]["names"].index("answer")
    (flow,) = [piece for piece, query, _ in spans["passages"] if query == answer]
    words = "".join(token["piece"].replace("Ġ", " ") for token in made)
    assert flow.strip() == words.strip()


def test_the_name_of_a_span_is_not_within_a_word():
    """The first token is a span of its own, and may be the beginning of a word; a special one is none."""
    for first, shown in (
        ("Ad", ["[sentence 1] ", "Ad", "a kept a cat."]),
        ("<s>", ["<s>", "[sentence 1] ", "a kept a cat."]),
    ):
        names = [Span("(first)"), Span("sentence 1")]
        queries = SimpleNamespace(special=[True, False], names=names)
        scene = SimpleNamespace(queries=queries, unit="spans")
        found = _named_runs(
            scene, [[first, 0, 0], ["a kept", 1, 1], [" ", -1, -1], ["a cat.", 1, 1]]
        )
        assert [text for text, _, _ in found] == shown


def test_python_writes_the_same_page(tmp_path):
    path = tmp_path / "page.html"
    attnscope.inspect(TEXT, spans=MARKS).save(path)
    page, scene = spans_scene(path)
    assert scene["command"].endswith(f"--spans {shlex.quote(MARKS)}")
    below = [text_in(node) for node in page.nodes if isinstance(node, list)]
    assert "What Answer reads of each span" in below


def test_an_address_without_a_row_begins_where_its_walk_does(open_page, page_of_marks):
    """The row and the key of the other walk have no meaning in it, nor has a name of a span among tokens."""
    path, _ = page_of_marks
    walk = read_page(path).of_kind("walk")[0]
    spans, tokens = walk["scenes"]
    starts = [scene["queries"]["names"][scene["start"]] for scene in (spans, tokens)]
    assert spans["start"] != tokens["start"]
    row = "document.querySelector('.row-panel h2').textContent.trim().replace(/^\\d+ /, '')"
    page = open_page(path, size=(1280, 800)).page
    for address, name in [
        ("#text=1", starts[1]),
        ("#text=1&query=5", tokens["queries"]["names"][5]),
        ("#query=Note", "Note"),
        ("#text=1&query=Note", starts[1]),
        ("#text=1&query=3", tokens["queries"]["names"][3]),
        ("#text=0", starts[0]),
    ]:
        page.evaluate(f"location.hash = '{address}'")
        assert shows(page, row, name), address
        assert open_page(path, address, size=(1280, 800)).page.evaluate(row) == name
    # nor does a key of the keyboard take the row along
    page.keyboard.press("ArrowUp")
    page.keyboard.press(")")
    assert shows(page, row, starts[1])
    page.keyboard.press("(")
    assert shows(page, row, starts[0])


def test_a_span_may_be_named_null(open_page, tmp_path):
    path, _ = written(tmp_path, "the null bank", "--spans", "whole-words")
    page = open_page(path, "#head=L1H1").page
    assert page.locator(".row-panel h2").text_content().strip() == "2 bank"


def test_on_a_phone_spans_keep_the_numbers_that_tell_them_apart(open_page, tmp_path):
    path = tmp_path / "page.html"
    command = ["run", "It rained. She went home.", "--spans", "sentences"]
    assert main([*command, "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=(360, 640), touch=True).page
    names = page.locator(".text-panel .stages bdi")
    assert names.all_text_contents() == ["sentence 2", "sentence 1"]
    assert names.evaluate_all("all => all.every((name) => name.scrollWidth <= name.clientWidth)")


def test_the_number_of_a_cell_follows_a_colon(open_page, page_of_marks):
    page = open_page(page_of_marks[0]).page
    said = page.locator(".heads-panel p.cell").text_content()
    cell, _, shown = said.rpartition(": ")
    assert " ← " in cell
    assert (
        page.locator(".matrix-panel p.cell")
        .text_content()
        .startswith(f"{cell.partition(': ')[2]}: {shown}"[:-1])
    )


def test_names_of_spans_outside_the_text_have_their_tokens(page_of_marks):
    """`(first)` and `(special)` are `[CLS]` and `[SEP]` in the text above; what one types is the name alone."""
    path, text = page_of_marks
    _, scene = spans_scene(path)
    tokens = attnscope.inspect(TEXT).tokens
    names = text["spans"]["text"]["names"]
    of_token = text["spans"]["text"]["of_token"]
    expected = [
        f"{name} {tokens[of_token.index(n)].text or tokens[of_token.index(n)].piece}"
        if name.startswith("(")
        else name
        for n, name in enumerate(names)
    ]
    assert expected != names
    assert scene["queries"]["names"] == expected
    assert list(map(shlex.split, scene["queries"]["positions"])) == [[name] for name in names]


def test_a_span_named_0_is_no_sink(open_page, tmp_path):
    """It is not at position 0: the row of the other span reads it past sinks and itself."""
    path, _ = written(tmp_path, "0 the bank 1 by the river", "--spans", "0,1")
    page = open_page(path, "#query=1&show=lens", size=(1280, 800)).page
    heading = "document.querySelector('.heads-panel h2').textContent"
    assert shows(page, heading, "1 reads most")
    named = page.locator(".lens bdi").all_text_contents()
    assert len(named) == 9
    assert all(name.endswith(" 0") for name in named)


def test_a_heading_that_follows_the_pointer_says_so(open_page, page_of_marks):
    """Beside an answer that stays."""
    path, _ = page_of_marks
    page = open_page(path, size=(1280, 800)).page
    heading = "document.querySelector('.heads-panel h2').textContent"
    answer = page.locator(".answer").text_content()
    assert "pointer" not in page.evaluate(heading)
    page.locator("#panel-text .token", has_text="boat").hover()
    assert shows(page, f"{heading}.endsWith('under the pointer')", True)
    assert page.locator(".answer").text_content() == answer
