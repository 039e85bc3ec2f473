"""Laws of attention that need no model: against three loops, against torch, and against itself in other tiles."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnscope.errors import AttnscopeError
from attnscope.model.attention import attend
from attnscope.model.call import Call, Rule
from attnscope.model.masks import Bidirectional, Causal, Mask, Window, compose
from attnscope.model.recorders import Matrices
from attnscope.model.tile import Tile
from tests.model import oracle
from tests.model.cases import Case, cases

STAGES = ("scores", "scaled", "masked", "weights", "output")


def everything(case: Case, *, tile: int | None = None) -> Matrices:
    """A recorder that keeps every cell."""
    _, heads, n_queries, n_keys = case.sizes
    recorder = Matrices(STAGES, range(heads), range(n_queries), range(n_keys))
    attend(case.call, [recorder], need_output=False, tile_elements=tile or case.tile)
    return recorder


def close(ours: Tensor, truth: Tensor) -> None:
    torch.testing.assert_close(ours.double(), truth.double(), rtol=1e-5, atol=1e-5, equal_nan=True)


@given(cases())
def test_every_stage_equals_three_loops(case: Case) -> None:
    truth, found = oracle.attention(case.call, case.allowed, alibi=case.alibi), everything(case).result()
    for stage in STAGES:
        close(found[stage], getattr(truth, stage))


@given(cases(), st.data())
def test_the_output_equals_three_loops_watched_or_not(case: Case, data: st.DataObject) -> None:
    truth = oracle.attention(case.call, case.allowed, alibi=case.alibi).plain_output
    heads, n_queries = case.sizes[1:3]
    close(attend(case.call, tile_elements=case.tile), truth)
    some = sorted(data.draw(st.sets(st.integers(0, heads - 1), min_size=1)))
    for watched in (some, range(heads)):
        recorder = Matrices(["weights"], watched, [n_queries - 1], [0])
        close(attend(case.call, [recorder], tile_elements=case.tile), truth)


@given(cases(softcap=False))
def test_the_output_equals_torch(case: Case) -> None:
    c = case.call
    allowed = case.allowed[:, None]  # (B, 1, Q, K)
    bias = torch.zeros(1) if c.rule.bias is None else c.rule.bias(*_positions(case))
    share = c.q.shape[1] // c.k.shape[1]
    k, v = (x.repeat_interleave(share, dim=1) for x in (c.k, c.v))
    theirs = scaled_dot_product_attention(
        c.q, k, v, attn_mask=torch.where(allowed, bias, -torch.inf), scale=c.rule.scale
    )
    close(attend(c, tile_elements=case.tile), theirs.masked_fill(~allowed.any(-1, keepdim=True), 0.0))


def _positions(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    _, heads, n_queries, n_keys = case.sizes
    return torch.arange(n_queries)[:, None], torch.arange(n_keys)[None], torch.arange(heads)


@given(cases())
def test_allowed_rows_sum_to_one_and_disallowed_keys_get_exactly_nothing(case: Case) -> None:
    found = everything(case).result()
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
    whole = everything(case, tile=1 << 20).result()
    for tile in {1, 2, case.tile, 3 * case.tile}:
        tiled = everything(case, tile=tile).result()
        for stage in STAGES:
            torch.testing.assert_close(tiled[stage], whole[stage], rtol=0, atol=1e-6, equal_nan=True)
        torch.testing.assert_close(
            attend(case.call, tile_elements=tile), attend(case.call), rtol=0, atol=1e-6, equal_nan=False
        )


@given(cases(square=True), st.integers(1, 4))
def test_under_a_causal_mask_a_prefix_does_not_see_what_is_appended(case: Case, window: int) -> None:
    n = case.sizes[2]
    for mask in (Causal(), compose((Causal(), Window(window)))):
        whole = _under(case.call, mask, n)
        for shorter in range(1, n):
            close(attend(_under(case.call, mask, shorter)), attend(whole)[:, :, :shorter])


def _under(call: Call, mask: Mask, n: int) -> Call:
    rule = Rule(call.rule.scale, mask, call.rule.softcap, call.rule.bias)
    return Call(0, call.q[:, :, :n], call.k[:, :, :n], call.v[:, :, :n], rule)


@given(cases(), st.data())
def test_an_observed_mask_changes_what_is_seen_and_not_the_output(case: Case, data: st.DataObject) -> None:
    _, heads, n_queries, n_keys = case.sizes
    window = Window(data.draw(st.integers(1, 4)))
    recorder = Matrices(STAGES, range(heads), range(n_queries), range(n_keys))
    output = attend(case.call, [recorder], observed=window, tile_elements=case.tile)
    close(output, attend(case.call))
    rule = Rule(case.call.rule.scale, window, case.call.rule.softcap, case.call.rule.bias)
    under = replace(case, call=replace(case.call, rule=rule))
    for stage, seen in everything(under).result().items():
        close(recorder.result()[stage], seen)


@given(cases())
def test_what_is_seen_does_not_depend_on_who_needs_the_output(case: Case) -> None:
    _, heads, n_queries, n_keys = case.sizes
    recorder = Matrices(STAGES, range(heads), range(n_queries), range(n_keys))
    assert attend(case.call, [recorder], tile_elements=case.tile) is not None
    for stage, seen in everything(case).result().items():
        torch.testing.assert_close(recorder.result()[stage], seen, rtol=0, atol=1e-6, equal_nan=True)


@given(cases(), st.data())
def test_rows_whose_raw_scores_are_read_may_have_tiles_of_their_own(case: Case, data: st.DataObject) -> None:
    _, heads, n_queries, n_keys = case.sizes
    rows = sorted(data.draw(st.sets(st.integers(0, n_queries - 1), min_size=1)))
    raw = Matrices(STAGES, range(heads), rows, range(n_keys))
    rest = Matrices(["masked", "weights", "output"], range(heads), range(n_queries), range(n_keys))
    attend(case.call, [raw, rest], tile_elements=case.tile)
    whole = everything(case, tile=1 << 20).result()
    for stage, seen in raw.result().items():
        torch.testing.assert_close(seen, whole[stage][:, :, rows], rtol=0, atol=1e-6, equal_nan=True)
    for stage, seen in rest.result().items():
        torch.testing.assert_close(seen, whole[stage], rtol=0, atol=1e-6, equal_nan=True)


class Tiles:
    """A recorder of nothing that remembers how large tiles are, and which of them hold raw scores."""

    heads, rows, raw = (), (), False

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int, bool]] = []

    def reach(self) -> None:
        """No raw scores."""

    def see(self, tile: Tile) -> None:
        """Remember it."""
        self.seen.append((tile.q0, tile.q1, tile.k1 - tile.k0, tile.scores is not None))


def test_raw_scores_of_two_rows_widen_the_tiles_of_these_alone() -> None:
    q = torch.randn(1, 1, 1024, 8)
    spy, raw = Tiles(), Matrices(["scores"], [0], [300, 301], range(1024))
    attend(Call(0, q, q, q, Rule(1.0, compose([Causal(), Window(16)]))), [raw, spy], tile_elements=1 << 14)
    wide = [tile for tile in spy.seen if tile[2] > 512]
    assert wide == [(300, 302, 1024, True)]
    assert sum(q1 - q0 for q0, q1, _, _ in spy.seen) == 1024
    assert not any(scores for q0, q1, _, scores in spy.seen if (q0, q1) != (300, 302))


def test_nothing_is_computed_where_nobody_watches_and_nobody_needs_it() -> None:
    q = torch.full((1, 1, 2, 2), torch.nan)
    assert attend(Call(0, q, q, q, Rule(1.0, Bidirectional())), need_output=False) is None


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_score_that_is_not_finite_names_layer_and_head(bad: float) -> None:
    q = torch.ones(1, 3, 4, 2)
    q[0, 2, 1, 0] = bad
    call = Call(5, q, torch.ones(1, 3, 4, 2), torch.ones(1, 3, 4, 2), Rule(1.0, Causal()))
    with pytest.raises(AttnscopeError, match=r"L5H2: 4 scores are not finite; the model overflows in this dtype; try "):
        attend(call, [Matrices(["weights"], range(3), range(4), range(4))])


@pytest.mark.parametrize(("size", "scale"), [(1e20, 1.0), (-1e20, 1.0), (1e18, 256.0), (-1e18, 256.0), (-1e18, 200.0)])
def test_a_score_that_overflows_names_layer_and_head(size: float, scale: float) -> None:
    q, k = torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4)
    q[0, 1, 2], k[0, 1, 0] = 1e18 * 8, size
    recorder = Matrices(["weights"], [0, 1], range(3), range(3))
    with pytest.raises(AttnscopeError, match="L7H1"):
        attend(Call(7, q, k, k, Rule(scale, Bidirectional())), [recorder])


def test_a_value_that_is_not_finite_names_layer_and_head() -> None:
    v = torch.ones(1, 2, 4, 2)
    v[0, 1, 3, 0] = torch.inf
    call = Call(1, torch.ones(1, 2, 4, 2), torch.ones(1, 2, 4, 2), v, Rule(1.0, Causal()))
    with pytest.raises(AttnscopeError, match="L1H1: 4 outputs are not finite"):
        attend(call, [Matrices(["weights"], range(2), range(4), range(4))])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stages_of_narrow_types_are_computed_in_float32(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 6, 4, generator=generator).to(dtype) for _ in range(3))
    recorder = Matrices(STAGES, range(2), range(6), range(6))
    output = attend(Call(0, q, k, v, Rule(0.5, Causal())), [recorder])
    assert output is not None
    assert output.dtype == dtype
    assert all(stage.dtype == torch.float32 for stage in recorder.result().values())
    close(recorder.result()["weights"].sum(-1), torch.ones(1, 2, 6))
