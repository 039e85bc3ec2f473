"""Laws of attention that need no model: against three loops, against torch, and against itself in other tiles."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnscope.base.errors import AttnscopeError
from attnscope.model.attention import attend
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.masks import intersect
from attnscope.model.recorders import MatrixRecorder
from attnscope.model.tile import Tile
from attnscope.request.masks.terms import Bidirectional, Causal, Mask, SlidingWindow
from tests.helpers import attention_oracle
from tests.helpers.attention_cases import Case, cases

pytestmark = pytest.mark.usefixtures("both_ways")

STAGES = ("scores", "scaled", "masked", "weights", "output")


def everything(case: Case, *, tile: int | None = None) -> MatrixRecorder:
    """A recorder that keeps every cell."""
    _, heads, n_queries, n_keys = case.sizes
    recorder = MatrixRecorder(STAGES, range(heads), range(n_queries), range(n_keys))
    attend(case.inputs, [recorder], need_output=False, tile_elements=tile or case.tile)
    return recorder


def near(case: Case) -> dict[str, float]:
    """Limits of numbers whose products have another shape, and may be summed in another order.

    A sum is then off by up to two units in the last place of the largest product of lengths that enters it; softmax
    passes on what the scores are off by, and the output has it times the longest value.
    """
    q, k, v = (x.norm(dim=-1).max().item() for x in (case.inputs.q, case.inputs.k, case.inputs.v))
    return {"rtol": 0, "atol": 2**-22 * max(1, q * k) * max(1, case.inputs.spec.scale) * max(1, v)}


def close(ours: Tensor, truth: Tensor) -> None:
    torch.testing.assert_close(ours.double(), truth.double(), rtol=1e-5, atol=1e-5, equal_nan=True)


@given(cases())
def test_every_stage_equals_three_loops(case: Case) -> None:
    truth, found = (
        attention_oracle.attention(case.inputs, case.allowed, alibi=case.alibi),
        everything(case).compute(),
    )
    for stage in STAGES:
        close(found[stage], getattr(truth, stage))


@given(cases(), st.data())
def test_the_output_equals_three_loops_watched_or_not(case: Case, data: st.DataObject) -> None:
    truth = attention_oracle.attention(case.inputs, case.allowed, alibi=case.alibi).plain_output
    heads, n_queries = case.sizes[1:3]
    close(attend(case.inputs, tile_elements=case.tile), truth)
    some = sorted(data.draw(st.sets(st.integers(0, heads - 1), min_size=1)))
    for recorded in (some, range(heads)):
        recorder = MatrixRecorder(["weights"], recorded, [n_queries - 1], [0])
        close(attend(case.inputs, [recorder], tile_elements=case.tile), truth)


@given(cases(softcap=False))
def test_the_output_equals_torch(case: Case) -> None:
    c = case.inputs
    allowed = case.allowed[:, None]  # (B, 1, Q, K)
    bias = torch.zeros(1) if c.spec.bias is None else c.spec.bias(*_positions(case))
    share = c.q.shape[1] // c.k.shape[1]
    k, v = (x.repeat_interleave(share, dim=1) for x in (c.k, c.v))
    theirs = scaled_dot_product_attention(
        c.q, k, v, attn_mask=torch.where(allowed, bias, -torch.inf), scale=c.spec.scale
    )
    close(
        attend(c, tile_elements=case.tile), theirs.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    )


def _positions(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    _, heads, n_queries, n_keys = case.sizes
    return torch.arange(n_queries)[:, None], torch.arange(n_keys)[None], torch.arange(heads)


@given(cases())
def test_allowed_rows_sum_to_one_and_disallowed_keys_get_exactly_nothing(case: Case) -> None:
    found = everything(case).compute()
    allowed = case.allowed[:, None].expand_as(found["weights"])
    alive = allowed.any(-1)
    close(found["weights"].sum(-1)[alive], torch.ones(int(alive.sum())))
    assert (found["weights"][~allowed & alive[..., None]] == 0).all()
    assert (found["masked"][~allowed] == -torch.inf).all()
    assert found["masked"][allowed].isfinite().all()
    assert torch.equal(found["masked"][allowed], found["scaled"][allowed])
    assert found["weights"][~alive].isnan().all()
    assert found["output"][~alive].isnan().all()


@given(cases())
def test_tiles_of_every_size_say_the_same(case: Case) -> None:
    whole = everything(case, tile=1 << 20).compute()
    for tile in {1, 2, case.tile, 3 * case.tile}:
        tiled = everything(case, tile=tile).compute()
        for stage in STAGES:
            torch.testing.assert_close(tiled[stage], whole[stage], equal_nan=True, **near(case))
        torch.testing.assert_close(
            attend(case.inputs, tile_elements=tile),
            attend(case.inputs),
            equal_nan=False,
            **near(case),
        )


@given(cases(square=True), st.integers(1, 4))
def test_under_a_causal_mask_a_prefix_does_not_see_what_is_appended(
    case: Case, window: int
) -> None:
    n = case.sizes[2]
    for mask in (Causal(), intersect((Causal(), SlidingWindow(window)))):
        whole = _under(case.inputs, mask, n)
        for shorter in range(1, n):
            close(attend(_under(case.inputs, mask, shorter)), attend(whole)[:, :, :shorter])


def _under(inputs: AttentionInputs, mask: Mask, n: int) -> AttentionInputs:
    spec = AttentionSpec(inputs.spec.scale, mask, inputs.spec.softcap, inputs.spec.bias)
    return AttentionInputs(0, inputs.q[:, :, :n], inputs.k[:, :, :n], inputs.v[:, :, :n], spec)


@given(cases(), st.data())
def test_an_observed_mask_changes_what_is_seen_and_not_the_output(
    case: Case, data: st.DataObject
) -> None:
    _, heads, n_queries, n_keys = case.sizes
    window = SlidingWindow(data.draw(st.integers(1, 4)))
    recorder = MatrixRecorder(STAGES, range(heads), range(n_queries), range(n_keys))
    output = attend(case.inputs, [recorder], observed=window, tile_elements=case.tile)
    close(output, attend(case.inputs))
    spec = AttentionSpec(
        case.inputs.spec.scale, window, case.inputs.spec.softcap, case.inputs.spec.bias
    )
    under = replace(case, inputs=replace(case.inputs, spec=spec))
    for stage, seen in everything(under).compute().items():
        close(recorder.compute()[stage], seen)


@given(cases())
def test_what_is_seen_does_not_depend_on_who_needs_the_output(case: Case) -> None:
    _, heads, n_queries, n_keys = case.sizes
    recorder = MatrixRecorder(STAGES, range(heads), range(n_queries), range(n_keys))
    assert attend(case.inputs, [recorder], tile_elements=case.tile) is not None
    for stage, seen in everything(case).compute().items():
        torch.testing.assert_close(recorder.compute()[stage], seen, equal_nan=True, **near(case))


@given(cases(), st.data())
def test_rows_whose_raw_scores_are_read_may_have_tiles_of_their_own(
    case: Case, data: st.DataObject
) -> None:
    _, heads, n_queries, n_keys = case.sizes
    rows = sorted(data.draw(st.sets(st.integers(0, n_queries - 1), min_size=1)))
    needs_scores = MatrixRecorder(STAGES, range(heads), rows, range(n_keys))
    rest = MatrixRecorder(
        ["masked", "weights", "output"], range(heads), range(n_queries), range(n_keys)
    )
    attend(case.inputs, [needs_scores, rest], tile_elements=case.tile)
    whole = everything(case, tile=1 << 20).compute()
    for stage, seen in needs_scores.compute().items():
        torch.testing.assert_close(seen, whole[stage][:, :, rows], equal_nan=True, **near(case))
    for stage, seen in rest.compute().items():
        torch.testing.assert_close(seen, whole[stage], equal_nan=True, **near(case))


class Tiles:
    """A recorder of nothing that remembers how large tiles are, and which of them hold raw scores."""

    heads, rows, needs_scores, needs_masked, n_strongest = (), (), False, False, 0

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int, bool]] = []

    def score_range(self) -> None:
        """No raw scores."""

    def update(self, tile: Tile) -> None:
        """Remember it."""
        self.seen.append((tile.q0, tile.q1, tile.k1 - tile.k0, tile.scores is not None))


def test_raw_scores_of_two_rows_widen_the_tiles_of_these_alone() -> None:
    q = torch.randn(1, 1, 1024, 8)
    spy, needs_scores = Tiles(), MatrixRecorder(["scores"], [0], [300, 301], range(1024))
    attend(
        AttentionInputs(0, q, q, q, AttentionSpec(1.0, intersect([Causal(), SlidingWindow(16)]))),
        [needs_scores, spy],
        tile_elements=1 << 14,
    )
    wide = [tile for tile in spy.seen if tile[2] > 512]
    assert wide == [(300, 302, 1024, True)]
    assert sum(q1 - q0 for q0, q1, _, _ in spy.seen) == 1024
    assert not any(scores for q0, q1, _, scores in spy.seen if (q0, q1) != (300, 302))


def test_nothing_is_computed_where_nobody_watches_and_nobody_needs_it() -> None:
    q = torch.full((1, 1, 2, 2), torch.nan)
    assert (
        attend(AttentionInputs(0, q, q, q, AttentionSpec(1.0, Bidirectional())), need_output=False)
        is None
    )


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_score_that_is_not_finite_names_layer_and_head(bad: float) -> None:
    q = torch.ones(1, 3, 4, 2)
    q[0, 2, 1, 0] = bad
    inputs = AttentionInputs(
        5, q, torch.ones(1, 3, 4, 2), torch.ones(1, 3, 4, 2), AttentionSpec(1.0, Causal())
    )
    with pytest.raises(
        AttnscopeError,
        match=r"L5H2: 4 scores are not finite; the model overflows in this dtype; use ",
    ):
        attend(inputs, [MatrixRecorder(["weights"], range(3), range(4), range(4))])


@pytest.mark.parametrize(
    ("size", "scale"), [(1e20, 1.0), (-1e20, 1.0), (1e18, 256.0), (-1e18, 256.0), (-1e18, 200.0)]
)
def test_a_score_that_overflows_names_layer_and_head(size: float, scale: float) -> None:
    q, k = torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4)
    q[0, 1, 2], k[0, 1, 0] = 1e18 * 8, size
    recorder = MatrixRecorder(["weights"], [0, 1], range(3), range(3))
    with pytest.raises(AttnscopeError, match="L7H1"):
        attend(AttentionInputs(7, q, k, k, AttentionSpec(scale, Bidirectional())), [recorder])


def test_a_value_that_is_not_finite_names_layer_and_head() -> None:
    v = torch.ones(1, 2, 4, 2)
    v[0, 1, 3, 0] = torch.inf
    inputs = AttentionInputs(
        1, torch.ones(1, 2, 4, 2), torch.ones(1, 2, 4, 2), v, AttentionSpec(1.0, Causal())
    )
    with pytest.raises(AttnscopeError, match="L1H1: 4 outputs are not finite"):
        attend(inputs, [MatrixRecorder(["weights"], range(2), range(4), range(4))])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stages_of_narrow_types_are_computed_in_float32(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 6, 4, generator=generator).to(dtype) for _ in range(3))
    recorder = MatrixRecorder(STAGES, range(2), range(6), range(6))
    output = attend(AttentionInputs(0, q, k, v, AttentionSpec(0.5, Causal())), [recorder])
    assert output is not None
    assert output.dtype == dtype
    assert all(stage.dtype == torch.float32 for stage in recorder.compute().values())
    close(recorder.compute()["weights"].sum(-1), torch.ones(1, 2, 6))
