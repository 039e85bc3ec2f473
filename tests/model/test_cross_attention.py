import numpy as np
import pytest
import torch

from attnscope.base.errors import UsageError
from attnscope.engines.opening import open_source
from attnscope.findings.heads import STAGES
from attnscope.request.run_config import TextInput
from attnscope.run.session import inspect
from tests.helpers.requests import requested

pytestmark = pytest.mark.usefixtures("both_ways")

TEXT, CONTEXT = "life is short", "eat the dessert first today"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "cross.toml"
    path.write_text(
        'd_model = 16\nn_heads = 2\nmask = "bidirectional"\ncross_attention = true\nqkv_bias = true\nseed = 4\n'
    )
    return str(path)


def run(config, *pairs, **options):
    texts = tuple(TextInput(text, context=context) for text, context in pairs or ((TEXT, CONTEXT),))
    return inspect(requested(texts=texts, config=config, head="all", stages=STAGES, **options))


def test_queries_are_of_one_text_and_keys_and_values_of_the_other(config):
    """Against the formula itself, with the stack's own matrices."""
    text = run(config).texts[0]
    assert [t.text for t in text.tokens] == TEXT.split()
    assert [t.text for t in text.sources] == CONTEXT.split()
    source = open_source(requested((), config=config), [TextInput(TEXT, context=CONTEXT)])
    stack = source.load(1, torch.float32, torch.device("cpu")).module
    a = stack.blocks[0].attention
    rows, keys = (
        stack.embed.tokens.weight[[t.id for t in side]] for side in (text.tokens, text.sources)
    )
    for h, head in enumerate(text.heads):
        at = slice(8 * h, 8 * h + 8)
        scores = a.q(rows)[:, at] @ a.k(keys)[:, at].T
        weights = (scores / 8**0.5).softmax(-1)
        np.testing.assert_allclose(head.stages["scores"], scores.detach(), atol=1e-5)
        np.testing.assert_allclose(head.stages["weights"], weights.detach(), atol=1e-6)
        np.testing.assert_allclose(
            head.stages["output"], (weights @ a.v(keys)[:, at]).detach(), atol=1e-5
        )
        assert head.stages["weights"].shape == (3, 5)
        assert np.isnan(head.rows.self).all()
        assert head.top.keys.max() <= 4


def test_contexts_of_different_lengths_are_padded_and_padding_gets_nothing(config):
    pairs = ((TEXT, CONTEXT), ("is it", "first dessert"))
    together = run(config, *pairs)
    assert [head.stages["weights"].shape for head in together.texts[1].heads] == [(2, 2)] * 2
    for text in together.texts:
        for head in text.heads:
            np.testing.assert_allclose(head.stages["weights"].sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize("pool", [1, 2, 4, 64])
@pytest.mark.parametrize("mask", ["own", "window:2"])
@pytest.mark.parametrize("more", ["keys", "queries"])
def test_a_map_has_runs_of_queries_against_runs_of_the_context(config, pool, mask, more):
    """Beside a longer text; under the window a last row may see nothing."""
    pairs = [(TEXT, CONTEXT), ("is", "first dessert")]
    pairs = pairs if more == "keys" else [(context, text) for text, context in pairs]
    maps, matrices = (
        run(config, *pairs, mask=mask, **asked).texts for asked in ({"pool": pool}, {})
    )
    for text, whole in zip(maps, matrices, strict=True):
        sizes = len(text.tokens), len(text.sources)
        cuts = [[-(-i * n // min(pool, n)) for i in range(min(pool, n) + 1)] for n in sizes]
        for head, exact in zip(text.heads, whole.heads, strict=True):
            weights = exact.stages["weights"].astype(float)
            seen = ~np.isnan(weights).any(-1)
            assert (head.pooled.queries, head.pooled.keys) == tuple(cuts)
            expected = np.full([len(cut) - 1 for cut in cuts], np.nan)
            for i, j in np.ndindex(*expected.shape):
                rows = [q for q in range(cuts[0][i], cuts[0][i + 1]) if seen[q]]
                if rows:
                    expected[i, j] = weights[rows, cuts[1][j] : cuts[1][j + 1]].sum() / len(rows)
            np.testing.assert_allclose(head.pooled.weights, expected, atol=1e-6)
            np.testing.assert_allclose(head.columns, weights[seen].sum(0), atol=1e-6)
            assert head.means.entropy == pytest.approx(exact.rows.entropy[seen].mean(), abs=1e-6)


def test_words_of_the_context_select_columns(config):
    text = run(config, key="dessert", query="life").texts[0]
    assert (text.queries, text.keys) == ([0], [2])


def test_a_context_is_needed_and_only_taken_where_there_is_cross_attention(config):
    with pytest.raises(
        UsageError, match="context: is required, since the model attends to a second text"
    ):
        run(config, (TEXT, None))
    with pytest.raises(UsageError, match="context: the model has no cross-attention"):
        run("bidirectional")
