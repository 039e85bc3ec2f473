"""Masks: what each predicate allows, by hand; and that a span never leaves an allowed key out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.model.masks import (
    PaddingMask,
    build_mask,
    hidden_keys_mask,
    intersect,
    padding_mask,
    plain_mask,
)
from attnscope.request.masks.expression import parse_mask
from attnscope.request.masks.terms import TERMS, Bidirectional, Causal, Mask, SizedTerm
from tests.helpers.attention_cases import masks, whole


def _picture(mask: Mask, n: int, batch: int = 1) -> list[str]:
    cells = whole(mask, batch, n, n)
    return [
        "".join("x" if cell else "." for cell in row) for text in cells.tolist() for row in text
    ]


@pytest.mark.parametrize(
    ("expression", "picture"),
    [
        ("bidirectional", ["xxxx", "xxxx", "xxxx", "xxxx"]),
        ("causal", ["x...", "xx..", "xxx.", "xxxx"]),
        ("window:2", ["xx..", "xxx.", ".xxx", "..xx"]),
        ("causal+window:2", ["x...", "xx..", ".xx.", "..xx"]),
        ("causal+window:1", ["x...", ".x..", "..x.", "...x"]),
        ("prefix:2", ["xx..", "xx..", "xxx.", "xxxx"]),
        ("prefix:2+window:3", ["xx..", "xx..", "xxx.", ".xxx"]),
        ("block:2", ["xx..", "xx..", "..xx", "..xx"]),
        ("causal+block:3", ["x...", "xx..", "xxx.", "...x"]),
    ],
)
def test_what_an_expression_allows(expression: str, picture: list[str]) -> None:
    assert _picture(build_mask(parse_mask(expression)), 4) == picture


def test_own_stands_for_the_models_own_mask() -> None:
    assert build_mask(parse_mask("own"), Causal()) == Causal()
    assert _picture(build_mask(parse_mask("own+window:1"), Causal()), 2) == ["x.", ".x"]


def test_padding_hides_what_lies_behind_each_text() -> None:
    assert _picture(padding_mask([1, 2], 2, torch.device("cpu")), 2, batch=2) == [
        "x.",
        "x.",
        "xx",
        "xx",
    ]
    assert padding_mask([2, 2], 2, torch.device("cpu")) == Bidirectional()


def test_hidden_tokens_are_columns_that_no_query_of_their_text_sees() -> None:
    mask = hidden_keys_mask([[1], [0, 2]], 3, torch.device("cpu"))
    assert _picture(mask, 3, batch=2) == ["x.x"] * 3 + [".x."] * 3
    assert hidden_keys_mask([[0, 4], [1, 4]], 7, torch.device("cpu")).all_visible_range(
        0, 7, 7
    ) == (2, 4)
    assert hidden_keys_mask([[]], 3, torch.device("cpu")).all_visible_range(0, 3, 3) == (0, 3)


def test_compose_drops_what_says_nothing_or_repeats_itself() -> None:
    assert intersect(()) == Bidirectional()
    assert intersect((Bidirectional(), Mask())) == Bidirectional()
    assert (
        intersect((Causal(), Bidirectional(), Causal(), intersect((Causal(), Mask())))) == Causal()
    )


@given(st.data(), st.integers(1, 2), st.integers(1, 8), st.integers(1, 8))
def test_a_span_leaves_no_allowed_key_out(
    data: st.DataObject, batch: int, n_queries: int, n_keys: int
) -> None:
    mask = data.draw(masks(batch, n_queries, n_keys))
    cells = whole(mask, batch, n_queries, n_keys)
    for q0 in range(n_queries):
        for q1 in range(q0 + 1, n_queries + 1):
            k0, k1 = mask.key_range(q0, q1, n_keys)
            assert 0 <= k0 <= k1 <= n_keys
            assert not cells[:, q0:q1, :k0].any()
            assert not cells[:, q0:q1, k1:].any()


@given(st.data(), st.integers(1, 2), st.integers(1, 8), st.integers(1, 8))
def test_every_query_of_a_block_sees_every_key_of_its_all_visible_range(
    data: st.DataObject, batch: int, n_queries: int, n_keys: int
) -> None:
    mask = data.draw(masks(batch, n_queries, n_keys))
    cells = whole(mask, batch, n_queries, n_keys)
    for q0 in range(n_queries):
        for q1 in range(q0 + 1, n_queries + 1):
            k0, k1 = mask.all_visible_range(q0, q1, n_keys)
            assert k0 >= k1 or 0 <= k0 < k1 <= n_keys
            assert cells[:, q0:q1, k0:k1].all()


@pytest.mark.parametrize(
    "mask",
    [
        Bidirectional(),
        Causal(),
        *(
            kind(size)
            for kind in TERMS
            if issubclass(kind, SizedTerm)
            for size in (1, 2, 3, 4, 7, 20)
        ),
        PaddingMask(torch.tensor([4])),
        PaddingMask(torch.tensor([5, 2, 9])),
    ],
    ids=repr,
)
def test_the_ranges_of_one_predicate_are_as_narrow_and_as_wide_as_can_be(mask: Mask) -> None:
    """Wider ones are right, too, but cost the time that they are there to save."""
    n = 9
    cells = whole(mask, 3, n, n)
    for q0 in range(n):
        for q1 in range(q0 + 1, n + 1):
            some, every = (
                getattr(cells[:, q0:q1].flatten(0, 1), how)(0).nonzero().flatten().tolist()
                for how in ("any", "all")
            )
            assert mask.key_range(q0, q1, n) == (some[0], some[-1] + 1)
            k0, k1 = mask.all_visible_range(q0, q1, n)
            assert list(range(k0, k1)) == every


@given(st.data(), st.integers(1, 2), st.integers(1, 8), st.integers(1, 8))
def test_a_mask_says_the_same_of_a_block_as_of_each_cell(
    data: st.DataObject, batch: int, n_queries: int, n_keys: int
) -> None:
    mask = data.draw(masks(batch, n_queries, n_keys))
    at_once = mask.allowed(torch.arange(n_queries)[:, None], torch.arange(n_keys)[None])
    cells = whole(mask, batch, n_queries, n_keys)
    if at_once is None:
        assert cells.all()
    else:
        assert torch.equal(at_once.expand(batch, 1, n_queries, n_keys)[:, 0], cells)


@given(st.data(), st.integers(1, 3), st.integers(1, 8), st.integers(1, 8))
def test_a_plain_mask_allows_real_tokens_what_the_mask_does(
    data: st.DataObject, batch: int, n_queries: int, n_keys: int
) -> None:
    lengths = data.draw(st.lists(st.integers(1, n_keys), min_size=batch, max_size=batch))
    padded_rows = data.draw(st.booleans())
    padding = padding_mask(lengths, n_keys, torch.device("cpu"), padded_rows=padded_rows)
    mask = intersect((data.draw(masks(batch, n_queries, n_keys)), padding))
    plain = plain_mask(mask, n_queries, n_keys)
    if plain is None:
        return
    assert isinstance(plain, Causal | Bidirectional)
    cells, expected = (whole(one, batch, n_queries, n_keys) for one in (plain, mask))
    for text, length in enumerate(lengths):
        rows = n_queries if padded_rows or n_queries != n_keys else length
        assert torch.equal(cells[text, :rows], expected[text, :rows])


@pytest.mark.parametrize(
    ("parts", "plain"),
    [
        ("causal", "causal"), ("causal+window:6", "causal"), ("causal+window:5", None), ("block:6", "bidirectional"),
        ("prefix:6", "bidirectional"), ("causal+prefix:2", None),
    ],
)  # fmt: skip
def test_terms_that_narrow_nothing_need_no_mask(parts: str, plain: str | None) -> None:
    found = plain_mask(build_mask(parse_mask(parts)), 6, 6)
    assert (None if found is None else str(found)) == plain


def test_padding_behind_a_causal_text_needs_no_mask() -> None:
    hidden, shown = (
        padding_mask([2, 6], 6, torch.device("cpu"), padded_rows=rows) for rows in (False, True)
    )
    assert plain_mask(intersect((Causal(), hidden)), 6, 6) == Causal()
    assert plain_mask(intersect((Causal(), shown)), 6, 6) is None
    assert plain_mask(hidden, 6, 6) is None


def test_a_composition_that_nothing_passes_has_an_empty_span() -> None:
    behind = intersect((PaddingMask(torch.tensor([1])), build_mask(parse_mask("window:1"))))
    assert behind.key_range(3, 4, 5) == (3, 3)
