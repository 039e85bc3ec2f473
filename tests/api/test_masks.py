"""Boolean arrays as masks."""

import numpy as np
import pytest
import torch

import attnscope

TEXT = "The bank by the river"
CAUSAL = np.tril(np.ones((5, 5), bool))


def test_an_array_or_tensor_is_a_mask(tmp_path):
    holes = CAUSAL.copy()
    holes[3, 1] = holes[2] = False
    np.save(tmp_path / "mask.npy", holes)
    asked = {"layer": "all", "head": "all", "stages": ("masked", "weights")}
    of_file = attnscope.inspect(TEXT, mask=str(tmp_path / "mask.npy"), **asked)
    for mask in (holes, torch.from_numpy(holes), np.asfortranarray(holes)):
        report = attnscope.inspect(TEXT, mask=mask, **asked)
        np.testing.assert_array_equal(report.weights, of_file.weights)
        np.testing.assert_array_equal(
            report.masked == -np.inf, np.broadcast_to(~holes, (4, 4, 5, 5))
        )
        assert report.mask.used == attnscope.inspect(TEXT, mask=holes).mask.used
    assert report.mask.used != attnscope.inspect(TEXT, mask=CAUSAL).mask.used
    np.testing.assert_array_equal(
        attnscope.inspect(TEXT, mask=CAUSAL, **asked).weights,
        attnscope.inspect(TEXT, mask="causal", **asked).weights,
    )


def test_arrays_are_masks_for_every_function():
    both = attnscope.compare(TEXT, mask=[CAUSAL, "causal", CAUSAL.T], layer=0, head=(0, 1))
    assert [side.mask.used for side in both.sides] == both.labels
    assert both.labels[1] == "causal"
    assert not both.changes[0].heads[0].difference.any()
    assert both.changes[1].heads[0].difference.any()
    assert np.isneginf(attnscope.explain(TEXT, query=1, mask=CAUSAL).masked).tolist() == [
        False,
        False,
        *[True] * 3,
    ]
    ablated = [
        attnscope.ablate(TEXT, cut="L1", mask=mask).data.effects[0].change
        for mask in (CAUSAL, "causal")
    ]
    np.testing.assert_array_equal(*ablated)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (
            CAUSAL[:3],
            r"array:\w{8}: the matrix is 3 × 5, but the text needs 5 × 5; expected a row per query token",
        ),
        (
            CAUSAL * 1,
            "mask: has type int64, not bool; pass True where attention is allowed, such as mask == 1",
        ),
        (
            CAUSAL[0],
            r"mask: has shape \[5\]; pass a row per query token and a column per key token",
        ),
        (5, "mask: int is not a mask; use a str such as 'causal', a file's name, a boolean array"),
    ],
)
def test_what_is_no_mask_is_refused(mask, said):
    with pytest.raises(attnscope.AttnscopeError, match=said):
        attnscope.inspect(TEXT, mask=mask)


def test_one_array_is_no_comparison():
    with pytest.raises(
        attnscope.AttnscopeError,
        match=r"mask: 'array:\w{8}' needs another mask to be compared with",
    ):
        attnscope.compare(TEXT, mask=CAUSAL)
