"""The roles `receiver` and `alignment`, recomputed from whole matrices."""

from typing import Any

import numpy as np
import pytest

import attnscope
from attnscope.findings.head_roles import APART, FEWEST_SPANS
from attnscope.studies.heads.segments import alignment_parts
from tests.referee.models import minilm_folder

STORY = (
    "The cat sat. The dog ran off. A bird sang. The bird flew. It was late. The dog came back. The cat slept. "
    "The sun set. Then it was dark. All was calm."
)
OTHER = "We sat down. A boat came. It was green. The sea was calm. Nobody saw it. We ate. It rained. We left. It was cold."
ROLES = ("alignment", "alignment-share", "alignment-sharpness", "alignment-monotonicity")


def kurtosis(text: str) -> Any:
    """Of the scores of sentences, (layers, heads), from the matrices of tokens."""
    report = attnscope.inspect(text, spans="sentences", layer="all", head="all", stages="weights")
    of_token, weights = np.array(report.span_of_token), report.weights.astype(np.float64)
    sentences = [
        np.flatnonzero(of_token == n)
        for n, name in enumerate(report.spans)
        if name.startswith("sentence")
    ]
    assert len(sentences) >= FEWEST_SPANS
    scores = []
    for at, keys in enumerate(sentences[:-APART]):
        later = [
            weights[:, :, rows][:, :, :, keys].mean((2, 3)) for rows in sentences[at + APART :]
        ]
        scores.append(np.mean(later, axis=0))
    off = np.array(scores) - np.mean(scores, axis=0)
    return (off**4).mean(0) / (off**2).mean(0) ** 2 - 3


def test_receivers_are_those_of_the_matrices() -> None:
    expected = (kurtosis(STORY) + kurtosis(OTHER)) / 2
    found = attnscope.heads(text=[STORY, OTHER], role="receiver")
    np.testing.assert_allclose(found.data.roles[0].values, expected, rtol=1e-3, atol=1e-4)
    again = attnscope.heads(text=[STORY, OTHER], spans="sentences")
    assert [role.name for role in again.data.roles][-1] == "receiver"
    np.testing.assert_allclose(again.data.roles[-1].values, expected, rtol=1e-3, atol=1e-4)


def test_alignment_is_that_of_the_matrices() -> None:
    text, pair = "the bank by the river was old", "the old river ran by the bank"
    options = {"model": minilm_folder()}
    report = attnscope.inspect(
        text, pair=pair, layer="all", head="all", stages="weights", **options
    )
    content = [not token.special and position > 0 for position, token in enumerate(report.tokens)]
    keys, rows = (
        [n for n, t in enumerate(report.tokens) if content[n] and t.segment == side]
        for side in (0, 1)
    )
    weights = report.weights.astype(np.float64)[:, :, rows][:, :, :, keys]  # (L, H, r, k)
    share = weights.sum(-1)
    inside = weights / share[..., None]
    sharp = 1 + (inside * np.log(inside)).sum(-1) / np.log(len(keys))
    centre = inside @ np.array(keys, dtype=np.float64)
    mean = lambda values: (values * share).sum(-1) / share.sum(-1)  # noqa: E731
    place = np.broadcast_to(np.array(rows, dtype=np.float64), share.shape)
    covariance = mean(place * centre) - mean(place) * mean(centre)
    spread = (mean(place**2) - mean(place) ** 2) * (mean(centre**2) - mean(centre) ** 2)
    expected = {
        "alignment-share": share.mean(-1),
        "alignment-sharpness": mean(sharp),
        "alignment-monotonicity": covariance / np.sqrt(spread),
    }
    product = expected["alignment-share"] * expected["alignment-sharpness"]
    expected["alignment"] = product * expected["alignment-monotonicity"]
    found = attnscope.heads(text=text, pair=pair, role=ROLES, **options)
    assert {role.name for role in found.data.roles} == set(ROLES)
    for role in found.data.roles:
        np.testing.assert_allclose(role.values, expected[role.name], atol=2e-4, err_msg=role.name)


def test_a_head_that_copies_in_order_is_aligned() -> None:
    """Each of four rows reads one key, in order, with all of its weight: share, sharpness and monotonicity are 1."""
    i, c = np.arange(4, 8.0), np.arange(1, 5.0)
    moments = np.array([[4, 4, 0, i.sum(), c.sum(), (i**2).sum(), (c**2).sum(), (i * c).sum()]])
    for name, value in alignment_parts(moments, 4).items():
        assert value == pytest.approx([1.0]), name


def test_roles_of_spans_need_two_segments_or_a_reader() -> None:
    with pytest.raises(attnscope.AttnscopeError, match="two segments"):
        attnscope.heads(text=STORY, role="alignment")
    found = attnscope.heads(text="One. Two. Three.", role="receiver")
    assert np.isnan(found.data.roles[0].values).all()
    assert any("receiver is not measured" in note for note in found.data.notes)
    assert "receiver" not in [role.name for role in attnscope.heads(text=STORY, draws=2).data.roles]
