"""What recorders keep equals what whole tensors say: cells, means, rankings, statistics of rows."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnscope.findings.row_statistics import WITHIN
from attnscope.model.attention import attend
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.masks import MatrixMask, intersect
from attnscope.model.recorders import (
    MatrixRecorder,
    MeanRowRecorder,
    RowRecorder,
    TopRecorder,
    strongest,
    top,
)
from attnscope.request.masks.terms import Bidirectional, Causal, Mask, SlidingWindow
from tests.helpers import attention_oracle
from tests.helpers.attention_cases import Case, cases
from tests.helpers.key_tokens import key_tokens
from tests.helpers.row_statistics import entropy, row_statistics
from tests.model.test_attention import close

pytestmark = pytest.mark.usefixtures("both_ways")

CELLS = ("scores", "scaled", "masked", "weights", "output", "value", "projected")


def truth(case: Case) -> dict[str, Tensor]:
    """Every stage and contribution, whole, from three loops and an explicit projection."""
    found = attention_oracle.attention(case.inputs, case.allowed, alibi=case.alibi)
    heads, share = case.sizes[1], case.inputs.q.shape[1] // case.inputs.k.shape[1]
    v = case.inputs.v.double().repeat_interleave(share, dim=1)  # (B, H, K, Ev)
    out = case.inputs.out_weight.double().unflatten(1, (heads, -1))  # (D, H, Ev)
    # the tensor that must never be built
    vectors = torch.einsum("bhqk,bhke,dhe->bhqkd", found.weights, v, out)
    return {
        **{
            name: getattr(found, name)
            for name in ("scores", "scaled", "masked", "weights", "output")
        },
        "value": found.weights * v.norm(dim=-1)[:, :, None],
        "projected": vectors.norm(dim=-1),
    }


def some(data: st.DataObject, count: int) -> list[int]:
    """One or more numbers below `count`, sorted."""
    return sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))


def run(case: Case, *recorders: MatrixRecorder | TopRecorder | RowRecorder) -> None:
    assert attend(case.inputs, recorders, need_output=False, tile_elements=case.tile) is None


@given(cases(), st.data())
def test_matrices_are_the_whole_tensors_indexed(case: Case, data: st.DataObject) -> None:
    _, n_heads, n_queries, n_keys = case.sizes
    heads = data.draw(st.permutations(some(data, n_heads)))
    rows, columns = some(data, n_queries), some(data, n_keys)
    recorder = MatrixRecorder(CELLS, heads, rows, columns)
    run(case, recorder)
    for stage, whole in truth(case).items():
        expected = whole[:, heads][:, :, rows]
        close(recorder.compute()[stage], expected if stage == "output" else expected[..., columns])


@given(cases(), st.data())
def test_stages_alone_say_the_same_as_stages_together(case: Case, data: st.DataObject) -> None:
    """A recorder of raw scores makes tiles wider; no other recorder's numbers may depend on that."""
    _, n_heads, n_queries, n_keys = case.sizes
    stage = data.draw(st.sampled_from(CELLS))
    alone = MatrixRecorder([stage], range(n_heads), range(n_queries), range(n_keys))
    run(case, alone)
    close(alone.compute()[stage], truth(case)[stage])


@given(cases(), st.data())
def test_recorders_of_different_heads_and_rows_do_not_disturb_each_other(
    case: Case, data: st.DataObject
) -> None:
    _, n_heads, n_queries, n_keys = case.sizes
    stages = ["weights", "masked", "output"]
    together = [
        MatrixRecorder(stages, some(data, n_heads), some(data, n_queries), some(data, n_keys))
        for _ in range(3)
    ]
    run(case, *together)
    whole = truth(case)
    for one in together:
        for stage in stages:
            expected = whole[stage][:, one.heads][:, :, one.rows]
            close(
                one.compute()[stage], expected if stage == "output" else expected[..., one.columns]
            )


@given(cases(), st.data())
def test_a_mean_is_the_mean(case: Case, data: st.DataObject) -> None:
    _, n_heads, n_queries, n_keys = case.sizes
    heads, rows, columns = some(data, n_heads), some(data, n_queries), some(data, n_keys)
    stages = sorted(data.draw(st.sets(st.sampled_from(CELLS), min_size=1)))
    recorder = MatrixRecorder(stages, heads, rows, columns, mean=True)
    run(case, recorder)
    for stage in stages:
        whole = truth(case)[stage]
        expected = whole[:, heads].mean(1, keepdim=True)[:, :, rows]
        close(recorder.compute()[stage], expected if stage == "output" else expected[..., columns])


@given(cases(), cases())
def test_a_mean_over_layers_counts_each_layer_once(first: Case, second: Case) -> None:
    other = AttentionInputs(
        3,
        first.inputs.q * 0.5,
        first.inputs.k,
        first.inputs.v,
        first.inputs.spec,
        first.inputs.out_weight,
    )
    _, n_heads, n_queries, n_keys = first.sizes
    both = MatrixRecorder(["weights"], range(n_heads), range(n_queries), range(n_keys), mean=True)
    apart = [
        MatrixRecorder(["weights"], range(n_heads), range(n_queries), range(n_keys), mean=True)
        for _ in range(2)
    ]
    for inputs, one in ((first.inputs, apart[0]), (other, apart[1])):
        attend(inputs, [both, one], need_output=False, tile_elements=second.tile)
    close(
        both.compute()["weights"],
        (apart[0].compute()["weights"] + apart[1].compute()["weights"]) / 2,
    )


def test_a_mean_of_masked_scores_is_masked_beyond_the_reach_of_a_tile() -> None:
    """With one-row tiles the keys behind a window are in no tile at all."""
    ones = torch.ones(1, 2, 6, 2)
    inputs = AttentionInputs(
        0, ones, ones, ones, AttentionSpec(1.0, intersect((Causal(), SlidingWindow(2))))
    )
    recorder = MatrixRecorder(["masked"], range(2), range(6), range(6), mean=True)
    attend(inputs, [recorder], need_output=False, tile_elements=1)
    allowed = torch.ones(6, 6).tril().bool() & ~torch.ones(6, 6).tril(-2).bool()
    assert torch.equal(recorder.compute()["masked"][0, 0], torch.where(allowed, 2.0, -torch.inf))


@given(cases(), st.data(), st.sampled_from(["weight", "value", "projected"]), st.integers(1, 8))
def test_top_is_the_whole_rows_sorted(case: Case, data: st.DataObject, by: str, count: int) -> None:
    _, n_heads, n_queries, n_keys = case.sizes
    heads, rows = some(data, n_heads), some(data, n_queries)
    eligible = case.sources.content() if data.draw(st.booleans()) else case.sources.real
    top = TopRecorder(count, by, heads, rows, eligible)
    whole = MatrixRecorder(("masked", "weights", "value", "projected"), heads, rows, range(n_keys))
    run(case, top, whole)
    kept = {**whole.compute(), "weight": whole.compute()["weights"]}
    ranking = kept["masked" if by == "weight" else by]
    for b in range(case.sizes[0]):
        for h in range(len(heads)):
            for r, row in enumerate(rows):
                may = [j for j in range(n_keys) if eligible[b, j] and case.allowed[b, row, j]]
                ranked = sorted(may, key=lambda j: (-float(ranking[b, h, r, j]), j))[: top.count]
                assert kept[by][b, h, r, ranked].diff().le(0).all()
                blank = [-1] * (top.count - len(ranked))
                assert top.keys[b, h, r].tolist() == ranked + blank
                for name, measure in top.measures.items():
                    expected = torch.tensor(
                        [float(kept[name][b, h, r, j]) for j in ranked] + [math.nan] * len(blank)
                    )
                    torch.testing.assert_close(
                        measure[b, h, r], expected, rtol=0, atol=0, equal_nan=True
                    )


def test_among_equals_the_first_places_win_however_the_text_is_cut() -> None:
    ones = torch.ones(1, 1, 40, 2)
    inputs = AttentionInputs(0, ones, ones, ones, AttentionSpec(1.0, Bidirectional()))
    for tile in (1, 7, 1 << 20):
        top = TopRecorder(3, "weight", [0], range(40), torch.ones(1, 40, dtype=torch.bool))
        attend(inputs, [top], need_output=False, tile_elements=tile)
        assert (top.keys == torch.tensor([0, 1, 2])).all()


@given(
    st.lists(st.sampled_from([0.0, 1.0, 2.0, 2.5, -math.inf]), min_size=1, max_size=12),
    st.integers(1, 6),
)
def test_strongest_sorts_and_lets_the_first_of_equals_win(row: list[float], count: int) -> None:
    places, values = strongest(torch.tensor([row]), count)
    ranked = sorted(range(len(row)), key=lambda j: (-row[j], j))[:count]
    finite = [j for j in ranked if row[j] > -math.inf]
    assert values[0].tolist() == [row[j] for j in ranked]
    assert places[0].tolist()[: len(finite)] == finite


@given(cases(), st.data())
def test_rows_equal_their_formulas(case: Case, data: st.DataObject) -> None:
    _, n_heads, n_queries, n_keys = case.sizes
    heads, rows, sources = (
        data.draw(st.permutations(some(data, n_heads))),
        some(data, n_queries),
        case.sources,
    )
    recorder = RowRecorder(heads, rows, sources)
    whole = MatrixRecorder(["weights", "masked"], heads, rows, range(n_keys))
    run(case, recorder, whole)
    for b in range(case.sizes[0]):
        weights = whole.compute()["weights"][b].double().numpy()
        kinds = sources.special[b].numpy(), sources.kinds["punctuation"][b].numpy()
        real = sources.real[b].numpy()
        expected = row_statistics(
            weights, *kinds, queries=rows, aligned=sources.self_attention, real=real
        )
        expected["max_score"] = whole.compute()["masked"][b].double().numpy().max(-1)
        none = ~case.allowed[b, rows].any(-1)
        for name, kept in recorder.recorded.items():
            close(kept[b], torch.from_numpy(expected[name]).masked_fill(none, torch.nan))


@given(cases(), st.data(), st.integers(1, 2))
def test_statistics_of_mean_rows_are_those_of_the_mean_matrix(
    case: Case, data: st.DataObject, layers: int
) -> None:
    _, n_heads, _, n_keys = case.sizes
    heads, rows = some(data, n_heads), some(data, case.sizes[2])
    recorder = MeanRowRecorder(heads, rows, case.sources, layers)
    whole = MatrixRecorder(["weights", "masked"], heads, rows, range(n_keys), mean=True)
    for layer in range(layers):
        attend(
            replace(case.inputs, layer=layer, q=case.inputs.q * (1 - layer / 2)),
            [recorder, whole],
            need_output=False,
            tile_elements=max(1, case.tile // (layer + 1)),
        )
    weights, masked = (whole.compute()[stage].double().numpy() for stage in ("weights", "masked"))
    close(recorder.recorded["entropy"], torch.from_numpy(entropy(weights)))
    largest = masked.max(-1)
    close(
        recorder.recorded["max_score"],
        torch.from_numpy(np.where(largest == -np.inf, np.nan, largest)),
    )


@pytest.mark.parametrize("heads", [[0, 3, 2], [0, 3, 2, 1], [3, 2, 1, 0]])
@pytest.mark.parametrize("tile", [2 * 5 * 6, 1])
def test_heads_of_cross_attention_are_written_to_their_places_in_any_order(
    heads: list[int], tile: int
) -> None:
    """A tile has two of them, which may be apart in the recorder; of cross-attention, some statistics are undefined."""
    q, k, v = torch.randn(1, 4, 5, 3), torch.randn(1, 4, 6, 3), torch.randn(1, 4, 6, 3)
    real = torch.ones(1, 6, dtype=torch.bool)
    recorder, whole = (
        RowRecorder(heads, range(5), key_tokens(~real, real, same=False)),
        MatrixRecorder(["weights"], heads, range(5), range(6)),
    )
    inputs = AttentionInputs(0, q, k, v, AttentionSpec(0.6, Bidirectional()))
    attend(inputs, [recorder, whole], need_output=False, tile_elements=tile)
    weights = (0.6 * q @ k.mT).softmax(-1)[:, heads]
    close(whole.compute()["weights"], weights)
    close(recorder.recorded["first"], weights[..., 0])
    close(recorder.recorded["other"], weights[..., 1:].sum(-1))
    close(recorder.recorded["entropy"], torch.from_numpy(entropy(weights.numpy())))
    assert recorder.recorded["self"].isnan().all()


@pytest.mark.parametrize(
    "mask",
    [Bidirectional(), Causal(), intersect((Causal(), SlidingWindow(100))), SlidingWindow(300)],
    ids=repr,
)
@pytest.mark.parametrize("elements", [None, 9_000])
def test_weight_near_a_query_and_its_mean_distance(mask: Mask, elements: int | None) -> None:
    """A text long enough that near is not everywhere, and runs of rows that lie beside what they see."""
    n = 700
    generator = torch.Generator().manual_seed(3)
    q, k, v = torch.randn(3, 1, 2, n, 8, generator=generator).unbind(0)
    real = torch.ones(1, n, dtype=torch.bool)
    rows = [0, 1, 2, 50, *range(300, 420), n - 1]
    recorder = RowRecorder([0, 1], rows, key_tokens(~real, real))
    whole = MatrixRecorder(["weights"], [0, 1], rows, range(n))
    attend(
        AttentionInputs(0, q, k, v, AttentionSpec(0.5, mask)),
        [recorder, whole],
        need_output=False,
        tile_elements=elements,
    )
    weights = whole.compute()["weights"].double()
    expected = row_statistics(
        weights.numpy(), *torch.zeros(2, n, dtype=torch.bool).numpy(), queries=rows
    )
    for name in ("distance", *(f"within_{near}" for near in WITHIN)):
        close(recorder.recorded[name], torch.from_numpy(expected[name]))


@pytest.mark.parametrize("size", [2048, 2049, 2111, 5000, (1 << 14) + 63])
@pytest.mark.parametrize("count", [1, 5, 8, 20])
def test_strongest_of_long_rows(size: int, count: int) -> None:
    """Few different values, so that equals meet within chunks, between them and in what is left over."""
    generator = torch.Generator().manual_seed(size + count)
    n = 30 if size < 1 << 14 else 3
    rows = torch.cat(
        (
            torch.randn(n, size, generator=generator),
            torch.randint(0, 40, (n, size), generator=generator).float(),
            torch.zeros(1, size),
            torch.full((1, size), -torch.inf).index_fill(1, torch.tensor([7, size - 1]), 2.0),
        )
    )
    before = rows.clone()
    places, values = strongest(rows, count)
    exact = before.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(rows, before)
    assert torch.equal(values, exact.values[:, :count])
    finite = values > -torch.inf
    assert torch.equal(places[finite], exact.indices[:, :count][finite])


@pytest.mark.parametrize("count", [1, 3, 8, 20])
def test_a_device_finds_the_strongest_in_the_same_order(count: int) -> None:
    """Its way is taken by every device that is no CPU; it runs on one, too."""
    rows = torch.randint(0, 12, (40, 90), generator=torch.Generator().manual_seed(count)).float()
    places, values = top._on_device(rows, count)
    exact = rows.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(values, exact.values[:, :count])
    assert torch.equal(places, exact.indices[:, :count])


def test_up_to_eight_sources_by_weight_are_taken_from_the_summary_of_a_tile() -> None:
    def asked(count: int, by: str = "weight", eligible: int = 40) -> int:
        keys = torch.arange(40)[None] < eligible
        return TopRecorder(count, by, [0], range(3), keys).n_strongest

    assert [asked(count) for count in (0, 1, 8, 9)] == [0, 1, 8, 0]
    assert asked(3, "value") == asked(3, eligible=39) == 0


@pytest.mark.parametrize("size", [9, 5000])
@pytest.mark.parametrize("cut", ["columns", "every second row", "heads"])
def test_strongest_of_rows_that_do_not_lie_side_by_side(size: int, cut: str) -> None:
    """What is cut out of a tile: −inf must be written where the next maximum is looked for, not into a copy."""
    whole = torch.randn(4, 6, size + 1, generator=torch.Generator().manual_seed(5))
    rows = {
        "columns": whole[..., :size],
        "every second row": whole[:, ::2],
        "heads": whole.transpose(0, 1),
    }[cut]
    before = whole.clone()
    places, values = strongest(rows, 3)
    exact = rows.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(whole, before)
    assert torch.equal(places, exact.indices[..., :3])
    assert torch.equal(values, exact.values[..., :3])


def test_few_rows_of_several_heads_have_as_many_contributors_as_were_asked_for() -> None:
    """A tile's rows that are cut out of several heads do not lie side by side."""
    q, k, v = torch.randn(3, 1, 3, 7, 4, generator=torch.Generator().manual_seed(6)).unbind(0)
    top = TopRecorder(3, "weight", [0, 2], [4], torch.ones(1, 7, dtype=torch.bool))
    whole = MatrixRecorder(["weights"], [0, 2], [4], range(7))
    attend(AttentionInputs(0, q, k, v, AttentionSpec(0.5, Bidirectional())), [top, whole])
    assert torch.equal(top.keys, whole.compute()["weights"].argsort(-1, descending=True)[..., :3])


SINKS = torch.tensor([2.0, 150.0, -3.0])


@pytest.mark.parametrize("elements", [1, None])
def test_statistics_of_rows_whose_weight_goes_to_the_sink(elements: int | None) -> None:
    """Where the sink is so large that every weight is 0 in float32, the row is not fully masked; where it is, it is."""
    q, k, v = torch.randn(3, 1, 3, 6, 4, generator=torch.Generator().manual_seed(7)).unbind(0)
    real = torch.ones(1, 6, dtype=torch.bool)
    allowed = torch.ones(6, 6).tril().bool()
    allowed[2] = False
    rows = RowRecorder(range(3), range(6), key_tokens(~real, real))
    attend(
        AttentionInputs(0, q, k, v, AttentionSpec(0.5, MatrixMask(allowed), sinks=SINKS)),
        [rows],
        tile_elements=elements,
    )
    masked = (q.double() @ k.double().mT * 0.5).masked_fill(~allowed, -torch.inf)
    logits = torch.cat((masked, SINKS.double()[None, :, None, None].expand(1, 3, 6, 1)), -1)
    shares = logits.softmax(-1)
    weights, sink = shares[..., :-1], shares[..., -1]
    fully_masked = torch.tensor([False, False, True, False, False, False])
    close(
        rows.recorded["entropy"],
        torch.from_numpy(entropy(weights.numpy())).masked_fill(fully_masked, torch.nan),
    )
    close(
        rows.recorded["self"],
        weights.diagonal(dim1=-2, dim2=-1).masked_fill(fully_masked, torch.nan),
    )
    close(rows.of_layers["sink"], sink.masked_fill(fully_masked, torch.nan))
    assert torch.equal(rows.fully_masked, fully_masked.expand_as(rows.fully_masked))


def test_content_is_neither_special_nor_padding_nor_first() -> None:
    special = torch.tensor([[True, False, False, True, False]])
    real = torch.tensor([[True, True, True, True, False]])
    assert key_tokens(special, real).content().tolist() == [[False, True, True, False, False]]
    assert key_tokens(torch.zeros(1, 2, dtype=torch.bool), real[:, :2]).content().tolist() == [
        [False, True]
    ]


def test_the_entropy_of_one_key_is_not_minus_zero() -> None:
    q, k, v = (torch.ones(1, 1, 3, 2) for _ in range(3))
    inputs = AttentionInputs(0, q, k, v, AttentionSpec(1.0, Causal()))
    real = torch.ones(1, 3, dtype=torch.bool)
    rows = RowRecorder(range(1), range(3), key_tokens(~real, real), ["entropy"])
    top = TopRecorder(1, "weight", range(1), range(3), real)
    attend(inputs, [rows, top], need_output=False)
    assert [f"{bits:.2f}" for bits in rows.recorded["entropy"][0, 0].tolist()] == [
        "0.00",
        "1.00",
        "1.58",
    ]
