"""What tokens receive from others, and weights between words: both recomputed from whole matrices in float64."""

import re

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from attnscope.findings.tokens import group_words

TEXT = "The unbelievable bank by the river"
FILE = "She sat by the old bank of the river\nThe bank\n"


def received_of(weights, allowed, rows):
    """Weight from the rows other than the token itself, over what an even spread of each row would give."""
    even = allowed / allowed.sum(1, keepdims=True)
    others = (np.arange(len(weights))[:, None] != np.arange(weights.shape[1])) & np.isin(
        np.arange(len(weights)), rows
    )[:, None]
    with np.errstate(invalid="ignore"):
        return (weights * others).sum(0) / (even * others).sum(0)


@pytest.mark.parametrize(
    ("mask", "options"),
    [
        ("bidirectional", {}),
        ("causal", {}),
        ("causal+window:3", {"hide": "bank"}),
        ("causal", {"query": [2, 4, 5]}),
    ],
    ids=["bidirectional", "causal", "window", "rows"],
)
def test_what_a_token_receives_is_its_share_of_an_even_spread(mask, options):
    each = attnscope.inspect(
        TEXT, mask=mask, layer="all", head="all", least=2, **options
    ).data.texts[0]
    whole = attnscope.inspect(
        TEXT, mask=mask, layer="all", head="all", **options | {"query": slice(None)}
    ).data.texts[0]
    together = attnscope.inspect(TEXT, mask=mask, least=2, **options).data.texts[0]
    sums = np.zeros((2, len(whole.tokens)))
    for head, exact in zip(each.heads, whole.heads, strict=True):
        weights, allowed = (
            exact.stages["weights"].astype(np.float64),
            np.isfinite(exact.stages["masked"]),
        )
        np.testing.assert_allclose(
            head.received, received_of(weights, allowed, each.queries), rtol=1e-4
        )
        n, rows = np.arange(len(weights)), np.isin(np.arange(len(weights)), each.queries)
        counted = (n[:, None] != n) & rows[:, None]
        sums += (
            (weights * counted).sum(0),
            (allowed / allowed.sum(1, keepdims=True) * counted).sum(0),
        )
    (mean,) = together.heads
    assert (mean.layer, mean.head) == ("mean", "mean")
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(mean.received, sums[0] / sums[1], rtol=1e-4)
    if mask == "causal":
        assert np.isnan(mean.received[-1])  # no other token sees the last


def test_the_least_attended_are_listed_in_order(capsys):
    found = attnscope.inspect(TEXT, least=3, special=False).data.texts[0].heads[0].received
    assert main(["run", TEXT, "--least", "3", "--no-special"]) == 0
    shown = capsys.readouterr().out.split("least attended")[1]
    listed = re.findall(r"^ +(\d+) \S+ +([\d.]+)", shown, re.MULTILINE)
    order = [int(n) for n in np.argsort(found) if n != 0][:3]
    assert [int(position) for position, _ in listed] == order
    assert [float(number) for _, number in listed] == pytest.approx(found[order], abs=0.0051)


def test_a_padded_text_receives_nothing_from_padding(tmp_path):
    texts = FILE.splitlines()
    both = attnscope.inspect(texts, layer=1, head=2, least=1).data.texts
    for one, text in zip(both, texts, strict=True):
        alone = attnscope.inspect(text, layer=1, head=2, least=1).data.texts[0]
        np.testing.assert_allclose(one.heads[0].received, alone.heads[0].received, rtol=1e-4)


def test_words_in_json_are_sums_over_keys_and_means_over_queries(capsys):
    text = attnscope.inspect(TEXT, layer=[0, 2], head="all", words=True).data.texts[0]
    words = group_words(text.tokens, text.queries)
    assert text.words.queries == text.words.keys == words
    assert max(map(len, words)) > 1
    assert text.words.key_names == ["The", "unbelievable", "bank", "by", "the", "river"]
    for head in text.heads:
        weights = head.stages["weights"].astype(np.float64)
        expected = [[weights[np.ix_(rows, keys)].sum(1).mean() for keys in words] for rows in words]
        np.testing.assert_allclose(head.words.weights, expected, atol=1e-6)
    assert main(["run", TEXT, "--words", "--json"]) == 0
    from attnscope.findings.codec import from_json

    saved = from_json(capsys.readouterr().out.encode()).texts[0]
    assert saved.words.query_names == text.words.query_names
    assert saved.heads[0].words.weights.shape == (6, 6)


@pytest.mark.parametrize(("text", "options"), [(TEXT, ["--mask", "window:1"]), ("bank", [])])
def test_no_token_is_listed_where_none_can_be_read_by_another(text, options, capsys):
    assert main(["run", text, "--least", "2", *options]) == 0
    shown = capsys.readouterr().out
    assert "least attended  no token that other tokens may attend to" in shown
