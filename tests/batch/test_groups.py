"""Groups of texts: every text is in one, within bounds, and none is padded where that changes its numbers."""

from hypothesis import given
from hypothesis import strategies as st

from attnscope.batch.header import Grouping
from attnscope.batch.windows import MIN_PADDED_TOKENS, TextSize, group_texts

SIZES = st.lists(
    st.builds(TextSize, st.integers(1, 40), st.integers(1, 40), st.integers(0, 50)), max_size=60
)


@given(SIZES, st.integers(1, 400), st.integers(1, 400))
def test_groups_hold_every_text_once_and_stay_within_their_bounds(sizes, tokens, values):
    found = group_texts(sizes, Grouping(tokens, values, 0, 1))
    assert sorted(place for group in found for place in group) == list(range(len(sizes)))
    for group in found:
        mine = [sizes[place] for place in group]
        longest = max(size.longest for size in mine)
        assert len(group) == 1 or len(group) * longest <= tokens
        assert len(group) == 1 or sum(size.values for size in mine) <= values
        alike = len({(size.tokens, size.sources) for size in mine}) == 1
        assert alike or min(min(size.tokens, size.sources) for size in mine) >= MIN_PADDED_TOKENS


def test_longer_texts_are_padded():
    sizes = [TextSize(n, n, 1) for n in (20, 15, 16, 14, 15, 30)]
    assert group_texts(sizes, Grouping(1000, 1000, 0, 1)) == [[3], [1, 4], [2, 0, 5]]
