"""What is asked of explain, and what it refuses: one query of one head, cells in depth, windows, masks, contexts."""

import json

import jsonschema
import numpy as np
import pytest
import torch

from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.engines.opening import open_source
from attnscope.findings.codec import to_json
from attnscope.findings.heads import STAGES
from attnscope.model.head_capture import HeadCapture, modules_of
from attnscope.request.run_config import TextInput
from attnscope.run.session import inspect
from attnscope.studies.explain.run import explain
from attnscope.studies.explain.screen import present_explanation
from attnscope.views.parts import Facts, Text, joined
from attnscope.views.settings import DisplaySettings
from tests.helpers.explanation_arithmetic import assert_sums, failed
from tests.helpers.requests import requested
from tests.helpers.row_statistics import entropy
from tests.helpers.schemas import validate

TEXT = "The bank by the river was eroded by the river"


def walk(text=TEXT, context=None, pair=None, **options):
    options = {"config": "causal", "query": "bank", "layer": "1", "head": "2", **options}
    return explain(requested((TextInput(text, pair, context),), **options))


@pytest.fixture
def masked(tmp_path):
    """A mask file under which token 1 sees nothing."""
    allowed = np.tril(np.ones((5, 5), dtype=bool))
    allowed[1] = False
    path = tmp_path / "mask.json"
    path.write_text(json.dumps(allowed.tolist()))
    return str(path)


@pytest.fixture(params=["none", "rope", "sinusoidal"])
def cross(tmp_path, request):
    path = tmp_path / "cross.toml"
    lines = [
        "d_model = 16",
        "n_heads = 2",
        'mask = "bidirectional"',
        "cross_attention = true",
        "seed = 4",
    ]
    path.write_text("\n".join([*lines, f'positions = "{request.param}"', ""]))
    return str(path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"query": None}, r"query: explain needs one token; use query=WORD .* 0 The, 1 bank"),
        ({"query": "the"}, r"query: 'the' selects 2 tokens: 3 the, 8 the; select one by its position, such as query=8"),
        ({"query": "1:3"}, r"query: '1:3' selects 2 tokens: 1 bank, 2 by"),
        ({"query": "boat"}, r"query: 'boat' is not in the text"),
        ({"key": "boat"}, r"key: 'boat' is not in the text"),
        ({"head": "mean"}, r"head: explain needs a single head, not a mean; use one, such as head=0"),
        ({"layer": "mean"}, r"layer: explain needs a single layer"),
        ({"head": "all"}, r"head: 'all' is not a single head"),
        ({"layer": "0,1"}, r"layer: '0,1' is not a single layer"),
        ({"head": "0-1"}, r"head: '0-1' is not a single head"),
        ({"head": "9"}, r"head: there is no head 9"),
    ],
)  # fmt: skip
def test_what_is_no_single_walk_is_refused(options, said):
    with pytest.raises(UsageError, match=said):
        walk(**options)


@pytest.mark.parametrize(
    ("options", "end"), [({"query": None}, ""), ({"query": "0:"}, "; select one by its position")]
)
def test_a_cut_list_of_tokens_says_so(options, end):
    with pytest.raises(UsageError) as caught:
        walk(" ".join(["a"] * 41), **options)
    assert f"38 a, 39 a, …{end}" in str(caught.value) and "40 a" not in str(caught.value)
    with pytest.raises(UsageError) as caught:
        walk(" ".join(["a"] * 40), **options)
    assert f"38 a, 39 a{end}" in str(caught.value) and "…" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "(residual − mean) / deviation"),
        ({"layer": "0"}, "(sum − mean) / deviation"),
        ({"config": "grouped-query", "layer": "0"}, "token / its root mean square"),
        ({"config": None, "layer": "0"}, "(sum − mean) / deviation"),
    ],
)
def test_a_norm_names_the_vector_above_it(options, said):
    """Both it and what queries are made of were called x."""
    assert walk(**options).inputs[-1].formula.startswith(said)


@pytest.mark.parametrize("query", ["1", "5"])
def test_what_scale_and_mask_do_to_the_softmax(query):
    e = walk(query=query)
    scores, scaled = e.row.scores.astype(float), e.row.scaled.astype(float)
    allowed = np.arange(len(scores)) <= int(query)

    def softmax(row):
        return np.exp(row - row.max()) / np.exp(row - row.max()).sum()

    assert e.effects.spread == pytest.approx(scores[allowed].std(), rel=1e-5)
    assert e.effects.scaled_spread == pytest.approx(e.scale * scores[allowed].std(), rel=1e-5)
    assert e.effects.entropy == pytest.approx(entropy(e.row.weights[allowed]), abs=1e-5)
    assert e.effects.unscaled_entropy == pytest.approx(entropy(softmax(scores[allowed])), abs=1e-5)
    assert e.effects.masked_after == pytest.approx(softmax(scaled)[allowed].sum(), rel=1e-5)
    window = walk(query=query, window=2)
    assert window.effects == e.effects


def test_a_mask_that_forbids_nothing_loses_nothing():
    assert walk(query="9").effects.masked_after is None
    assert walk(config=None).effects.masked_after is None


def test_one_text_at_a_time():
    with pytest.raises(UsageError, match="2 texts; explain takes one"):
        explain(requested((TextInput("a b"), TextInput("c d")), config="causal", query="0"))


def test_without_a_key_the_largest_visible_dot_product_is_taken_apart():
    e = walk(query="5")
    (cell,) = e.cells
    assert cell.allowed and cell.chosen == "largest of the allowed keys"
    assert cell.score == e.row.scores[:6].max() == e.row.scores[cell.key]


def test_keys_that_are_named_are_taken_apart():
    e = walk(query="5", key="river,0")
    assert [(cell.key, cell.allowed) for cell in e.cells] == [(0, True), (4, True), (9, False)]
    assert {cell.chosen for cell in e.cells} == {"the key asked for"}
    assert_sums(e)
    assert not failed(e)


@pytest.mark.parametrize("query", ["2", "8"])
@pytest.mark.parametrize("window", [1, 3, 7])
def test_a_window_keeps_the_heaviest_keys_and_the_sums_of_the_rest(query, window):
    whole, part = walk(query=query, key="7"), walk(query=query, key="7", window=window)
    assert len(part.keys) == window and 7 in part.keys and part.keys == sorted(part.keys)
    left = [key for key in whole.keys if key not in part.keys]
    allowed = [key for key in left if np.isfinite(whole.row.masked[key])]
    assert (part.rest.allowed, part.rest.barred) == (len(allowed), len(left) - len(allowed))
    others = [key for key in part.keys if key != 7]
    assert (
        not others
        or not allowed
        or whole.row.weights[others].min() >= whole.row.weights[allowed].max()
    )
    assert part.rest.weight + part.row.weights.sum() == pytest.approx(1, abs=1e-6)
    assert part.rest.exponentials + part.row.exponentials.sum() == pytest.approx(
        part.exponential_sum, rel=1e-6
    )
    np.testing.assert_allclose(
        part.row.weights @ part.value_vectors + part.rest.blend, part.output, atol=1e-6
    )
    for name in ("scores", "weights", "key_norms"):
        np.testing.assert_array_equal(getattr(part.row, name), getattr(whole.row, name)[part.keys])
    assert not failed(part)


def test_a_query_that_sees_nothing(masked):
    e = walk("The bank by the river", mask=masked)
    assert (
        e.fully_masked and e.exponential_sum is None and e.projected is None and len(e.output) == 0
    )
    assert np.isneginf(e.row.masked).all() and np.isnan(e.row.weights).all()
    assert e.cells[0].chosen == "largest of the masked keys" and not e.cells[0].allowed
    assert {check.name for check in e.checks} == {
        "norm",
        "query",
        "key",
        "position",
        "parts",
        "scaled",
    }
    assert_sums(e)
    seen = walk("The bank by the river", mask=masked, query="by")
    assert not seen.fully_masked and not failed(seen)
    validate(json.loads(to_json(e)), "explain")


@pytest.mark.parametrize("what_if", ["stack", "same-scores"])
def test_another_mask_is_that_of_run(what_if):
    options = {
        "mask": "bidirectional",
        "what_if": what_if,
        "config": "causal",
        "layer": "1",
        "head": "2",
    }
    e = walk(query="2", **options)
    (head,) = (
        inspect(requested((TextInput(TEXT),), query="2", stages=STAGES, **options)).texts[0].heads
    )
    np.testing.assert_array_equal(e.row.weights, head.stages["weights"][0])
    assert e.mask.what_if == what_if and (e.row.weights > 0).all()
    assert_sums(e)
    assert not failed(e)


@pytest.mark.parametrize(
    ("options", "whole", "names"),
    [
        ({}, "causal, with window:2/3 in 2 of 2 layers", ("causal+window:2", "causal+window:3")),
        (
            {"hide": "bank"},
            "causal, with window:2/3 in 2 of 2 layers",
            ("causal+window:2", "causal+window:3"),
        ),
        (
            {"mask": "own+block:2"},
            "own+block:2",
            ("causal+window:2+block:2", "causal+window:3+block:2"),
        ),
        ({"mask": "bidirectional"}, "bidirectional", (None, None)),
    ],
)
def test_the_mask_of_the_layer_is_named_where_layers_differ(tmp_path, options, whole, names):
    path = tmp_path / "windows.toml"
    path.write_text('d_model = 16\nn_heads = 2\nn_layers = 2\nmask = "causal"\nwindows = [2, 3]\n')
    for layer, name in enumerate(names):
        e = walk(config=str(path), query="2", layer=str(layer), head="0", **options)
        assert (e.mask.used, e.layer_mask) == (whole, name)
        (shown,) = [
            text
            for part in present_explanation(e, DisplaySettings(precision=2))
            if isinstance(part, Text)
            for text in ("".join(span.text for span in joined(part)),)
            if text.startswith("mask: ")
        ]
        hidden = ", with 'bank' hidden" if "hide" in options else ""
        assert shown == f"mask: {name or whole}{hidden}"


def test_queries_of_one_text_and_keys_of_another(cross):
    context = "eat the dessert first today"
    e = walk("life is short", context, config=cross, layer="0", head="1", query="is", key="dessert")
    asked = requested(
        (TextInput("life is short", None, context),),
        config=cross,
        head="1",
        query="1",
        stages=STAGES,
    )
    (head,) = inspect(asked).texts[0].heads
    assert [token.text for token in e.sources] == context.split() and e.cells[0].key == 2
    np.testing.assert_array_equal(e.row.weights, head.stages["weights"][0])
    np.testing.assert_array_equal(e.output, head.stages["output"][0])
    assert_sums(e)
    assert not failed(e)


def test_deeper_layers_show_the_residual_stream():
    e = walk(layer="1")
    assert [(vector.name, vector.formula) for vector in e.inputs[:2]] == [
        ("residual", "the embedding"),
        ("residual", "after layer 0"),
    ]
    first = walk(layer="0")
    (embedding,) = [vector for vector in first.inputs if vector.name == "sum"]
    np.testing.assert_array_equal(e.inputs[0].values, embedding.values)
    assert e.inputs[0].norm == pytest.approx(float(np.linalg.norm(embedding.values)), rel=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("config", ["causal", "grouped-query"])
def test_half_precision_rounds_more_and_still_holds(dtype, config):
    e = walk(config=config, dtype=dtype, query="5")
    assert not failed(e), [check for check in e.checks if not check.holds]
    assert_sums(e)


def test_the_projected_output_is_what_the_head_adds():
    """With one head, the attention module's own output without its bias."""
    e = walk(config="single-head", layer="0", head="0")
    source = open_source(requested((), config="single-head"), [TextInput(TEXT)])
    stack = source.load(1, torch.float32, torch.device("cpu")).module
    expected = stack.blocks[0].attention.out.weight @ torch.from_numpy(e.output)
    np.testing.assert_allclose(e.projected.values, expected.detach(), atol=1e-6)


@pytest.mark.parametrize("config", ["causal", "bidirectional", "grouped-query", "sliding-window"])
@pytest.mark.parametrize("window", [None, 3])
def test_real_output_keeps_to_the_published_schema(config, window):
    data = json.loads(to_json(walk(config=config, window=window)))
    validate(data, "explain")
    assert data["schema"] == "attnscope.explain/1"
    del data["cells"][0]["parts"]
    with pytest.raises(jsonschema.ValidationError, match="parts"):
        validate(data, "explain")


def test_more_than_the_memory_allows_is_refused_with_the_formula():
    from attnscope.engines.opening import open_source
    from attnscope.run.plan import make_plan
    from benchmarks.memory import required_memory

    text = " ".join(["river"] * 9000)
    asked = {"config": "grouped-query", "query": "0", "layer": "1", "head": "2"}
    run = requested((TextInput(text),), stages=(), max_memory=1 << 40, **asked)
    source = open_source(run, run.texts)
    without_walk = sum(required_memory(make_plan(run, source)).values())
    with pytest.raises(
        AttnscopeError, match=r"needs about .* \+ walk 5\.5 MiB\), but max_memory is .* MiB; use "
    ):
        walk(
            text, query="0", config="grouped-query", max_memory=without_walk + (2 << 20), window=16
        )
    enough = without_walk + (7 << 20)
    assert (
        walk(text, query="0", config="grouped-query", max_memory=enough, window=16).rest.barred
        == 8984
    )
    with pytest.raises(AttnscopeError, match=r"walk 5\.5 MiB"):
        walk(text, query="0", config="grouped-query", max_memory=enough)


def test_listening_ends_with_the_walk():
    """Hooks are taken away again, also where the walk fails."""

    from attnscope.engines.opening import open_source

    stack = (
        open_source(requested((), config="causal"), [TextInput(TEXT)])
        .load(1, torch.float32, torch.device("cpu"))
        .module
    )
    with pytest.raises(AttnscopeError), HeadCapture(modules_of(stack, 0), 0, 0, 0, 5).capturing():
        raise AttnscopeError("interrupted")
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in stack.modules())


def test_the_query_and_the_keys_in_depth_are_named_before_the_head_that_was_chosen():
    shown = [
        joined(cell)
        for part in present_explanation(walk(key="river,by", query="bank"), DisplaySettings())
        if isinstance(part, Facts)
        for name, cell in part.lines
        if name == "key"
    ]
    assert "".join(span.text for span in shown[0]) == "2 by, 4 river, 7 by, 9 river"
