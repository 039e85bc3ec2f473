"""Cuts in `attend` against whole matrices in float64, in tiles of any size, with and without recorders."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnscope.model.attention import attend
from attnscope.model.cuts import BatchCuts, EdgeCut, HeadCut, LayerCut, cuts_of_layer
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.positions import alibi
from attnscope.model.recorders import MatrixRecorder, RowRecorder
from attnscope.request.masks.terms import Bidirectional, Causal
from tests.helpers.attention_cases import Case, cases
from tests.helpers.key_tokens import key_tokens
from tests.helpers.row_statistics import entropy

pytestmark = pytest.mark.usefixtures("both_ways")


def expected(case: Case, places: dict[int, LayerCut]) -> tuple[Tensor, Tensor]:
    """Weights and output of a call with cuts, computed from whole matrices."""
    inputs, spec = case.inputs, case.inputs.spec
    heads, share = inputs.q.shape[1], inputs.q.shape[1] // inputs.k.shape[1]
    q, k, v = inputs.q.double(), inputs.k.double().repeat_interleave(share, 1), inputs.v.double()
    v = v.repeat_interleave(share, 1)
    scores = q @ k.mT * spec.scale
    if spec.softcap is not None:
        scores = torch.tanh(scores / spec.softcap) * spec.softcap
    if case.alibi:
        at = [torch.arange(n) for n in (q.shape[2], k.shape[2])]
        scores = (
            scores + alibi(at[0][:, None], at[1][None], torch.arange(heads), n_heads=heads).double()
        )
    allowed = case.allowed[:, None].expand_as(scores).clone()
    zeroed = torch.zeros_like(allowed)
    for place, cut in places.items():
        for edge in cut.edges:
            for h in edge.heads:
                for i in edge.queries:
                    for j in edge.keys:
                        if edge.renormalised:
                            allowed[place, h, i, j] = False
                        else:
                            zeroed[place, h, i, j] = True
    weights = (
        scores.masked_fill(~allowed, -torch.inf)
        .softmax(-1)
        .nan_to_num(0.0)
        .masked_fill(zeroed, 0.0)
    )
    output = weights @ v
    for place, cut in places.items():
        for one in cut.heads:
            output[place, one.head] = 0.0 if one.output is None else one.output.double()
    return weights, output


@st.composite
def cut_calls(draw: st.DrawFn) -> tuple[Case, dict[int, LayerCut]]:
    case = draw(cases())
    batch, heads, queries, keys = case.sizes
    width = case.inputs.v.shape[-1]

    def some(count: int) -> st.SearchStrategy[list[int]]:
        return st.lists(st.integers(0, count - 1), min_size=1, unique=True)

    edges = st.builds(EdgeCut, some(heads), some(queries), some(keys), st.booleans())
    outputs = st.one_of(
        st.none(), st.floats(-2, 2, width=32).map(lambda x: torch.full((width,), x))
    )
    heads_cut = st.builds(HeadCut, st.integers(0, heads - 1), outputs)
    layer = st.builds(
        LayerCut, st.lists(heads_cut, max_size=1).map(tuple), st.lists(edges, max_size=2).map(tuple)
    )
    return case, draw(st.dictionaries(st.integers(0, batch - 1), layer))


@given(cut_calls(), st.booleans(), st.data())
def test_cuts_equal_whole_matrices(
    call: tuple[Case, dict[int, LayerCut]], tiled: bool, data: st.DataObject
) -> None:
    case, places = call
    batch, heads, queries, keys = case.sizes
    weights, output = expected(case, places)
    cuts = cuts_of_layer([{3: places[b]} if b in places else {} for b in range(batch)], 3)
    assert (cuts is None) == (not places)
    watched = data.draw(st.lists(st.integers(0, heads - 1), unique=True).map(sorted))
    recorder = MatrixRecorder(["weights"], watched, range(queries), range(keys))
    recorders = [recorder] if watched else []
    ours = attend(case.inputs, recorders, tile_elements=case.tile if tiled else None, cuts=cuts)
    assert ours is not None
    torch.testing.assert_close(ours.double(), output, atol=2e-5, rtol=2e-5)
    if watched:
        seen = recorder.compute()["weights"].double().nan_to_num(0.0)
        torch.testing.assert_close(seen, weights[:, watched], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0])])
def test_a_query_without_a_key_left_has_no_output(sinks: Tensor | None) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, 4, 3, generator=generator) for _ in range(3))
    inputs = AttentionInputs(0, q, k, v, AttentionSpec(0.6, Causal(), sinks=sinks))
    plain = attend(inputs)
    cuts = BatchCuts({0: LayerCut(edges=(EdgeCut([1], [0, 2], [0, 1, 2]),))})
    cut = attend(inputs, cuts=cuts)
    assert plain is not None and cut is not None
    assert (cut[0, 1, [0, 2]] == 0).all()
    torch.testing.assert_close(cut[0, 0], plain[0, 0])
    torch.testing.assert_close(cut[0, 1, [1, 3]], plain[0, 1, [1, 3]])


def test_the_entropy_of_a_row_is_that_of_the_keys_that_are_left() -> None:
    """Also where every key of the tile would be visible without the cut."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, 4, 3, generator=generator) for _ in range(3))
    inputs = AttentionInputs(0, q, k, v, AttentionSpec(0.6, Bidirectional()))
    matrices = MatrixRecorder(["weights"], range(2), range(4), range(4))
    real = torch.ones(1, 4, dtype=torch.bool)
    rows = RowRecorder(range(2), range(4), key_tokens(~real, real), ["entropy"])
    attend(
        inputs,
        [matrices, rows],
        cuts=BatchCuts({0: LayerCut(edges=(EdgeCut([0, 1], [0, 2], [1, 3]),))}),
    )
    weights = matrices.compute()["weights"].double().numpy()
    assert (weights == 0).sum() == 8
    np.testing.assert_allclose(rows.recorded["entropy"], entropy(weights), atol=1e-5)
