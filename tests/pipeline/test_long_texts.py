"""A text that is too long for a screen: what stands for its matrices says what they would have said."""

import json

import numpy as np
import pytest

from attnscope.findings.array_files import labelled_arrays
from attnscope.findings.codec import from_json, to_json
from attnscope.findings.row_statistics import STATISTICS
from attnscope.request.run_config import TextInput
from attnscope.request.selection import POOL, PRINTED
from attnscope.run.session import Session, inspect
from tests.helpers.requests import requested
from tests.helpers.row_statistics import group_means, runs

STACK = """
d_model = 32
n_heads = 4
n_layers = 2
d_mlp = 32
mask = "causal"
positions = "rope"
norm = "rmsnorm"
seed = 3
"""
LONG = " ".join(f"w{i * i % 83}" for i in range(150))
SHORT = " ".join(LONG.split()[:PRINTED])


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A causal stack whose positions end nowhere."""
    path = tmp_path_factory.mktemp("long") / "stack.toml"
    path.write_text(STACK)
    return path


@pytest.fixture
def look(config):
    def run(*texts, window=PRINTED, **options):
        given = tuple(TextInput(text) for text in texts or (LONG,))
        return inspect(
            requested(
                given, config=str(config), window=window, **{"layer": "1", "head": "all"} | options
            )
        )

    return run


def starts(count, size):
    """The first token of every run, by the definition: token i lies in run i·size // count."""
    run = np.arange(count) * min(size, count) // count
    return [int(np.flatnonzero(run == i)[0]) for i in range(run[-1] + 1)] + [count]


def test_the_longest_text_that_is_printed_has_its_matrices_and_one_token_more_has_a_map(look):
    exact, pooled = look(SHORT), look(SHORT + " w1")
    assert (exact.provenance.values, pooled.provenance.values) == ("exact", "pooled")
    assert exact.texts[0].heads[0].stages["weights"].shape == (PRINTED, PRINTED)
    assert exact.texts[0].heads[0].pooled is None
    assert pooled.texts[0].heads[0].stages == {}
    assert pooled.texts[0].heads[0].pooled.weights.shape == (POOL, POOL)
    assert (pooled.texts[0].queries, pooled.texts[0].keys) == ([], [])


@pytest.mark.parametrize("pool", [None, 7, 150])
@pytest.mark.parametrize("head", ["all", "mean"])
def test_map_columns_and_averages_are_those_of_the_matrices(look, pool, head):
    exact, found = look(window=None, head=head).texts[0], look(pool=pool, head=head).texts[0]
    assert len(exact.heads) == len(found.heads)
    cuts = starts(150, pool or POOL)
    for whole, short in zip(exact.heads, found.heads, strict=True):
        weights = whole.stages["weights"].astype(np.float64)
        groups = runs(150, pool or POOL)
        assert short.pooled.queries == short.pooled.keys == cuts
        np.testing.assert_allclose(
            short.pooled.weights, group_means(weights, groups, groups), atol=1e-6
        )
        np.testing.assert_allclose(short.pooled.weights.sum(1), 1.0, atol=1e-5)
        np.testing.assert_allclose(short.columns, weights.sum(0), atol=1e-4)
        assert short.columns.sum() == pytest.approx(150, abs=1e-3)
        for name in STATISTICS:
            expected = getattr(whole.rows, name).mean()
            assert getattr(short.means, name) == pytest.approx(expected, rel=1e-6, abs=1e-5), name


def test_texts_of_one_batch_are_each_shown_as_their_length_wants(look):
    both = look(LONG, SHORT)
    alone = look(SHORT)
    assert [text.heads[0].pooled is None for text in both.texts] == [False, True]
    np.testing.assert_allclose(
        both.texts[1].heads[0].stages["weights"],
        alone.texts[0].heads[0].stages["weights"],
        atol=1e-6,
    )
    np.testing.assert_allclose(
        both.texts[0].heads[2].pooled.weights,
        look(LONG).texts[0].heads[2].pooled.weights,
        atol=1e-6,
    )


def test_named_rows_and_columns_are_exact_and_alone(look):
    whole = look(window=None).texts[0].heads[0]
    text = look(query="140:144", key="130:150").texts[0]
    assert text.heads[0].pooled is None
    np.testing.assert_allclose(
        text.heads[0].stages["scores"], whole.stages["scores"][140:144, 130:150], atol=1e-6
    )
    np.testing.assert_array_equal(text.heads[0].top.keys, whole.top.keys[140:144])
    assert text.notes == ["--pool 64 adds a map of the whole text"]


def test_named_rows_cost_no_more_than_themselves(look, config):
    told = []
    asked = requested(
        (TextInput(LONG),), config=str(config), window=PRINTED, layer="0", head="2", query="5,149"
    )
    inspect(asked, Session(asked.texts, lambda what, done, total: told.append(what)))
    # before the layer, and after each tile: one of each named row
    assert told.count("attending · layer 1 of 1") == 3


def test_rows_and_a_map_where_both_were_asked_for(look):
    text = look(query="3,149", pool=8).texts[0]
    head = text.heads[0]
    assert (text.queries, head.top.keys.shape, head.pooled.weights.shape) == (
        [3, 149],
        (2, 3),
        (8, 8),
    )
    assert head.means.entropy == pytest.approx(look().texts[0].heads[0].means.entropy)
    assert head.rows.entropy.shape == (2,)


@pytest.mark.parametrize(
    "query", ["-1,0", "1:,-3"], ids=["all rows of one text", "all rows of both together"]
)
def test_means_over_layers_do_not_depend_on_the_other_text(look, query):
    """`-1,0` are all rows of one token and two of five; `1:,-3` lack row 0 of five tokens, which three have."""
    short = "w3" if query == "-1,0" else "w3 w1 w9"
    both = look("w1 w4 w9 w3 w5", short, layer="mean", query=query, pool=2).texts
    for text in both:
        alone = look(text.text, layer="mean", query=query, pool=2).texts[0].heads[0]
        assert (text.heads[0].means.entropy is None) == (len(text.queries) < len(text.tokens))
        assert text.heads[0].means.entropy == pytest.approx(alone.means.entropy, abs=1e-6)


@pytest.mark.parametrize(
    ("mask", "options", "queries", "keys"),
    [
        ("own", {"query": "149"}, (149, 149), (86, 149)),
        ("own", {"query": "100"}, (100, 100), (37, 100)),
        ("own", {"query": "5"}, (5, 5), (0, 63)),
        ("bidirectional", {"query": "100"}, (100, 100), (68, 131)),
        ("own", {"key": "20"}, (20, 83), (20, 20)),
        ("own", {"key": "149"}, (86, 149), (149, 149)),
    ],
)
def test_a_window_lies_next_to_what_was_named_where_no_weights_say_what_matters(
    look, mask, options, queries, keys
):
    text = look(mask=mask, stages=("scores",), **options).texts[0]
    assert (text.queries[0], text.queries[-1]) == queries
    assert (text.keys[0], text.keys[-1]) == keys
    assert any(
        f"{keys[0]}–{keys[1]} of 150" in note or f"{queries[0]}–{queries[1]} of 150" in note
        for note in text.notes
    )


@pytest.mark.parametrize(
    "options", [{"query": "149"}, {"query": "3,100:140"}, {"key": "20"}, {"key": "0,w4"}]
)
def test_of_a_long_text_those_are_shown_that_have_most_weight(look, options):
    """64 columns next to the row were shown, in which it had no weight."""
    whole = look(window=None, **options).texts[0]
    text = look(**options).texts[0]
    of_rows = "key" in options
    total = sum(head.stages["weights"].astype(float).sum(int(of_rows)) for head in whole.heads)
    shown, every = (text.queries, whole.queries) if of_rows else (text.keys, whole.keys)
    assert shown == sorted(every[n] for n in np.argsort(-total, kind="stable")[:10])
    rows, columns = (
        ([every.index(n) for n in shown], slice(None)) if of_rows else (slice(None), shown)
    )
    for head, full in zip(text.heads, whole.heads, strict=True):
        for stage, matrix in head.stages.items():
            np.testing.assert_allclose(matrix, full.stages[stage][rows][:, columns], atol=1e-6)
        np.testing.assert_array_equal(head.top.keys, full.top.keys[rows])
        np.testing.assert_allclose(head.rows.entropy, full.rows.entropy[rows], atol=1e-5)
    assert any(
        f"the 10 {'rows' if of_rows else 'columns'} with most weight are shown" in note
        for note in text.notes
    )


def test_data_is_exact_unless_a_map_was_asked_for(look):
    assert look(window=None).texts[0].heads[0].stages["weights"].shape == (150, 150)
    assert look(window=None, pool=4).texts[0].heads[0].pooled.weights.shape == (4, 4)


def test_a_pooled_report_survives_json_and_has_its_arrays_in_files(look):
    report = look(mask="own+window:2", pool=5)
    again = from_json(to_json(report))
    for before, after in zip(report.texts[0].heads, again.texts[0].heads, strict=True):
        np.testing.assert_array_equal(before.pooled.weights, after.pooled.weights)
        np.testing.assert_array_equal(before.columns, after.columns)
        assert before.means == after.means
    found = {one.name: one for one in labelled_arrays(report)}
    np.testing.assert_array_equal(
        found["pooled.weights"].pieces[0][2], report.texts[0].heads[2].pooled.weights
    )
    for name in ("pooled.queries", "pooled.keys"):  # the same runs for all heads
        (runs,) = found[name].pieces
        assert np.asarray(runs).tolist() == starts(150, 5)
    assert found["columns"].shape == (1, 4, 150)


def test_queries_that_may_see_nothing_are_left_out_of_map_and_averages(tmp_path, config):
    blind = [[key <= query and query % 3 != 0 for key in range(150)] for query in range(150)]
    (tmp_path / "mask.json").write_text(json.dumps(blind))
    made = requested((TextInput(LONG),), config=str(config), window=PRINTED, pool=50, layer="0", head="0",
                     mask=str(tmp_path / "mask.json"))  # fmt: skip
    head = inspect(made).texts[0].heads[0]
    np.testing.assert_allclose(head.pooled.weights.sum(1), 1.0, atol=1e-5)
    assert head.columns.sum() == pytest.approx(100, abs=1e-3)
