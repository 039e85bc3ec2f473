"""A word that the vocabulary lacks is a word of the text: nowhere is it treated as a special token."""

import json

import numpy as np
import pytest

from attnscope.cli import main
from attnscope.request.run_config import TextInput
from attnscope.run.session import inspect
from tests.helpers.architectures import TWO_PARTS, make, save
from tests.helpers.requests import requested
from tests.pipeline.test_pipeline import BY_CONTENT, beyond_means

# the last of them but one is a special token that was typed
TEXT = "the zebra by the okapi </s> was old"
UNKNOWN, WORDS, SPECIAL = [1, 4], [0, 1, 2, 3, 4, 6, 7], [5, 8]


def _run(folder, text=TEXT, **more):
    asked = {"layer": "0", "head": "all", "stages": ("weights",), **more}
    return inspect(requested((TextInput(text),), str(folder), **asked)).texts[0]


def test_unknown_words_are_words_and_typed_special_tokens_are_special(folders):
    tokens = _run(folders("bert")).tokens
    assert [i for i, token in enumerate(tokens) if token.piece == "<unk>"] == UNKNOWN
    assert [i for i, token in enumerate(tokens) if token.special] == SPECIAL
    assert (tokens[1].text, tokens[1].start, tokens[1].end) == ("zebra", 4, 9)


def test_row_statistics_count_them_as_other_words(folders):
    for head in _run(folders("bert")).heads:
        weights = head.stages["weights"].astype(np.float64)
        for query in range(9):
            others = [key for key in WORDS if key not in (0, query)]
            assert head.rows.other[query] == pytest.approx(weights[query, others].sum(), abs=1e-6)
            assert head.rows.special[query] == pytest.approx(
                weights[query, SPECIAL].sum(), abs=1e-6
            )


def test_rankings_without_special_tokens_keep_them(folders):
    for head in _run(folders("bert"), special=False, top=20).heads:
        for row in head.top.keys:
            assert sorted(row[row >= 0].tolist()) == WORDS[1:]


def test_auto_and_the_line_above_a_head_average_over_their_rows(folders, capsys):
    report = _run(folders("bert"), head="auto")
    weights = [
        _run(folders("bert")).heads[head].stages["weights"].astype(np.float64) for head in range(4)
    ]
    found = [beyond_means(one, [i in WORDS for i in range(len(one))]) for one in weights]
    assert report.heads[0].head == int(np.argmax(found))
    assert report.heads[0].chosen == BY_CONTENT.format(max(found))
    rows = _run(folders("bert")).heads[int(np.argmax(found))].rows.other[WORDS]
    assert main(["run", TEXT, "--model", str(folders("bert")), "--layer", "0"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "on average, the row of a word has" in said
    assert f" {rows.mean():.2f} on the rest" in said


def test_a_long_text_that_ends_with_them_is_cut_at_its_end(folders):
    report = inspect(
        requested(
            (TextInput("the " * 46 + "zebra </s> " * 10),), str(folders("bert")), truncate=True
        )
    )
    (text,) = report.texts
    assert [token.text for token in text.tokens] == ["the"] * 46 + ["zebra", "</s>"]
    assert text.tokens[-1].start is None  # the one that the tokenizer adds
    assert report.provenance.notes == ["truncated from 67 to 48 tokens"]


def test_a_dump_looks_into_a_text_of_nothing_else(folders, tmp_path):
    texts, dump = tmp_path / "texts.txt", tmp_path / "dump.jsonl"
    texts.write_text("zebra okapi\n</s>\n")
    assert (
        main(["batch", str(texts), "-o", str(dump), "--model", str(folders("bert")), "--quiet"])
        == 0
    )
    records = [json.loads(line) for line in dump.read_text().splitlines()]
    assert [record["status"] for record in records if "status" in record] == ["ok", "ok"], (
        "a special token that was typed is a word as any other"
    )


def test_a_decoders_text_keeps_a_special_token_that_was_typed_at_its_end(tmp_path):
    folder = save(tmp_path, make("bart", TWO_PARTS["bart"]))
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**content, "post_processor": None}))
    options = {"engine": "transformers", "part": "decoder", "stages": ()}
    run = requested((TextInput("the zebra </s>", context="was old"),), str(folder), **options)
    tokens = inspect(run).texts[0].tokens
    assert [(token.piece, token.start) for token in tokens] == [
        ("</s>", None),
        ("the", 0),
        ("<unk>", 4),
        ("</s>", 10),
    ]
