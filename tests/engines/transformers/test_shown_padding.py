"""`--show-padding`: rows and columns of padding are those of a padded batch in transformers."""

import json
import re
from itertools import product

import numpy as np
import pytest
import torch
from transformers import AutoModel

from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.cli import main
from attnscope.findings.codec import from_json, to_json
from attnscope.request.run_config import TextInput
from attnscope.run.session import inspect
from tests.helpers.requests import requested
from tests.helpers.transformers_runs import SOURCE, TEXTS, run


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *product(("bert", "llama", "gpt2"), ("native", "transformers")),
        ("mobilebert", "transformers"),
    ],
)
def test_whole_padded_matrices_are_those_of_transformers(folders, name, engine):
    report = run(folders(name), engine=engine, show_padding=True)
    short, long = report.texts
    lost = len(long.tokens) - (n := len(short.tokens) - short.padding)
    assert (short.padding, long.padding) == (lost, 0)
    assert len(short.tokens) == len(long.tokens)
    assert [token.text for token in short.tokens[n:]] == ["(pad)"] * lost
    assert short.queries == short.keys == long.queries
    ids = torch.tensor([[token.id for token in text.tokens] for text in (short, long)])
    real = torch.ones_like(ids)
    real[0, n:] = 0
    model = AutoModel.from_pretrained(folders(name), attn_implementation="eager").eval()
    with torch.no_grad():
        theirs = torch.cat(
            [
                one[:, None]
                for one in model(ids, attention_mask=real, output_attentions=True).attentions
            ],
            1,
        ).numpy()
    for number, text in enumerate((short, long)):
        ours = np.stack([head.stages["weights"] for head in text.heads]).reshape(
            theirs[number].shape
        )
        np.testing.assert_allclose(ours, theirs[number], rtol=0, atol=1e-5)
    for head in short.heads:
        assert np.isneginf(head.stages["masked"][:, n:]).all()
        assert (head.stages["weights"][:, n:] == 0).all()
        assert np.isfinite(head.stages["scores"]).all()
    assert to_json(from_json(to_json(report))) == to_json(report)


def test_what_is_not_padding_stays_as_it_was(folders):
    plain, shown = (run(folders("bert"), show_padding=padding) for padding in (False, True))
    n = len(plain.texts[0].tokens)
    for a, b in zip(plain.texts[0].heads, shown.texts[0].heads, strict=True):
        np.testing.assert_array_equal(a.stages["weights"], b.stages["weights"][:n, :n])
        np.testing.assert_array_equal(a.top.keys, b.top.keys[:n])
        np.testing.assert_array_equal(a.rows.entropy, b.rows.entropy[:n])


def test_rows_that_are_named_stay_the_only_ones():
    texts = tuple(TextInput(text) for text in ("the cat sleeps", "the small dog runs fast"))
    asked = {"config": "padded-batch", "show_padding": True, "head": "0"}
    (short, _) = inspect(requested(texts, query="0", **asked)).texts
    assert (short.queries, short.keys, short.padding) == ([0], [0, 1, 2, 3, 4], 2)
    (short, _) = inspect(requested(texts, query="0", key="1", **asked)).texts
    assert (short.queries, short.keys, short.padding) == ([0], [1], 0)
    assert short.notes == ["--show-padding: has no effect, since not all rows or columns are shown"]
    (only,) = inspect(requested(texts[:1], **asked)).texts
    assert only.notes == ["--show-padding: no text is padded"]


def test_a_screen_names_padding_and_ranks_nothing_for_it(tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("the cat sleeps\nthe small dog runs fast\n")
    asked = [
        "run",
        "--file",
        str(tmp_path / "texts.txt"),
        "--config",
        "padded-batch",
        "--head",
        "0",
        "--show-padding",
    ]
    assert main([*asked, "--stage", "weights"]) == 0
    out = capsys.readouterr().out
    first = out[: out.index("text 1 ")]
    assert "the cat sleeps · 3 tokens" in first
    assert "padding  2 tokens" in first
    assert "on special tokens" not in first
    matrix, ranking = first.split("top contributors")
    assert len(re.findall(r"^4 \(pad\) .* ·      ·$", matrix, re.MULTILINE)) == 1
    assert "(pad)" not in ranking
    assert main([*asked, "--format", "json"]) == 0
    damaged = json.loads(capsys.readouterr().out)
    damaged["texts"][0]["padding"] = 9
    with pytest.raises(AttnscopeError, match="padding is 9 of 5 tokens"):
        from_json(json.dumps(damaged).encode())


def test_what_it_does_not_go_with_is_refused(folders):
    with pytest.raises(UsageError, match="show_padding: applies only to self-attention"):
        run(folders("bart"), texts=TEXTS, context=SOURCE, part="cross", show_padding=True)
    assert (
        main(
            [
                "run",
                "a b",
                "--config",
                "causal",
                "--measure",
                "rollout",
                "--show-padding",
                "--quiet",
            ]
        )
        == 2
    )
