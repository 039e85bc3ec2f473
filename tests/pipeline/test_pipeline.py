import re
import traceback
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer

from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.base.model_config import ModelConfig
from attnscope.batch.dump import write_dump
from attnscope.batch.header import Settings
from attnscope.batch.loading import DumpConfig
from attnscope.findings.heads import STAGES
from attnscope.model import attention, hooks
from attnscope.request.run_config import TextInput
from attnscope.request.selection import parse_positions
from attnscope.run.session import describe_mask_use, inspect
from attnscope.studies.compare.runs import compare_runs, side_of
from tests.conftest import SENTENCE
from tests.helpers.requests import changed, requested


def run(*texts, pair=None, **options):
    given = tuple(TextInput(text, pair) for text in texts or (SENTENCE,))
    return inspect(
        requested(
            texts=given, **({"config": "bidirectional"} if "model" not in options else {}) | options
        )
    )


def heads(report, text=0):
    return {(head.layer, head.head): head for head in report.texts[text].heads}


def test_a_real_bert_reads_bank_from_river(minilm):
    """Seen with transformers, too: L0H4 gives "river" about 0.70 of "bank"."""
    text = run(model=str(minilm), layer="0", head="4").texts[0]
    words = [token.text for token in text.tokens]
    weights = text.heads[0].stages["weights"]
    assert weights[words.index("bank"), words.index("river")] == pytest.approx(0.70, abs=0.005)
    assert words[text.heads[0].top.keys[words.index("bank"), 0]] == "river"


BY_CONTENT = "chosen automatically: most content weight from all words here ({:.2f})"


def beyond_means(weights, words):
    """Σ max(0, α − prediction) / rows over weights of at least 1/16 on other words.

    The prediction is the larger of two means, over all other pairs as far apart, or of the same key, and one of 0.
    """
    rows, found = [i for i, word in enumerate(words) if word], 0.0
    pairs = {(i, j): weights[i, j] for i in rows for j in rows if j and i != j}
    for (i, j), weight in pairs.items():
        as_far = [w for (k, m), w in pairs.items() if m - k == j - i and (k, m) != (i, j)]
        of_key = [w for (k, m), w in pairs.items() if m == j and k != i]
        predicted = max(sum(others) / (len(others) + 1) for others in (as_far, of_key))
        found += max(0, weight - predicted) if weight >= 1 / 16 else 0.0
    return found / len(rows)


def test_auto_takes_the_head_whose_weights_depend_most_on_content(minilm):
    every = heads(run(model=str(minilm), layer="all", head="all"))
    words = [not token.special for token in run(model=str(minilm)).texts[0].tokens]
    mass = {
        at: float(beyond_means(head.stages["weights"].astype(float), words))
        for at, head in every.items()
    }
    best = max(mass, key=lambda at: mass[at])
    assert best != (0, 2), "which looks at the token before, whatever that is"
    (chosen,) = run(model=str(minilm)).texts[0].heads
    assert (chosen.layer, chosen.head) == best
    assert chosen.chosen == BY_CONTENT.format(mass[best])
    (within,) = run(model=str(minilm), layer="3").texts[0].heads
    assert (within.layer, within.head) == max(
        (at for at in mass if at[0] == 3), key=lambda at: mass[at]
    )
    assert len(run(model=str(minilm), head="all").texts[0].heads) == 12
    (named,) = run(model=str(minilm), head="4").texts[0].heads
    assert named.layer == max(range(6), key=lambda layer: mass[layer, 4])
    assert named.chosen == "layer " + BY_CONTENT.format(mass[named.layer, 4])
    over = {layer: float(np.mean([mass[layer, head] for head in (0, 4)])) for layer in range(6)}
    two = run(model=str(minilm), head="0,4").texts[0].heads
    assert {head.layer for head in two} == {max(over, key=lambda layer: over[layer])}
    mean = f"{max(over.values()):.2f} on average over these heads"
    said = f"layer chosen automatically: the layer with the most content weight from all words here ({mean})"
    assert [head.chosen for head in two] == [said, said], (
        "the head was not chosen, and the figure is not its own"
    )
    assert run(model=str(minilm), layer="2", head="0,4").texts[0].heads[0].chosen is None
    assert [h.layer for h in run(model=str(minilm), layer="all").texts[0].heads] == list(range(6))


def test_auto_says_so_where_it_has_nothing_to_choose_by(minilm):
    (chosen,) = run("bank", model=str(minilm)).texts[0].heads  # no other word
    said = "chosen automatically: no head has content weight from all words here, so the first is shown"
    assert ((chosen.layer, chosen.head), chosen.chosen) == ((0, 0), said)


def test_auto_answers_the_question_that_was_asked(minilm):
    every = heads(run(model=str(minilm), layer="all", head="all"))
    words = [token.text for token in run(model=str(minilm)).texts[0].tokens]
    bank, river = words.index("bank"), words.index("river")
    for options, rows, said in (
        ({"query": "bank", "key": "river"}, [bank], "this query"),
        ({"key": "river"}, range(1, len(words) - 1), "all words"),
    ):
        mass = {
            at: float(head.stages["weights"][list(rows), river].mean())
            for at, head in every.items()
        }
        best = max(mass, key=lambda at: mass[at])
        (chosen,) = run(model=str(minilm), **options).texts[0].heads
        assert (chosen.layer, chosen.head) == best
        ranked = sorted(mass, key=mass.get, reverse=True)[1:5]
        others = ", ".join(f"L{at[0]}H{at[1]} {mass[at]:.2f}" for at in ranked)
        why = f"most weight from {said} on this key ({mass[best]:.2f}); then {others}"
        assert chosen.chosen == f"chosen automatically: {why}"


def test_auto_answers_the_question_of_a_comparison():
    """Every column is kept of both sides, whichever are shown."""
    asked = requested(
        (TextInput("The bank by the river"),), model="riverbank", query="river", key="bank"
    )
    sides = [(mask, side_of("mask", changed(asked, mask=mask))) for mask in ("own", "causal")]
    (change,) = compare_runs(
        "mask", sides, parse_positions("bank"), selected=("layer", "head")
    ).changes
    every = heads(run("The bank by the river", model="riverbank", layer="all", head="all"))
    best = max(every, key=lambda at: every[at].stages["weights"][4, 1])
    assert [head.first for head in change.heads] == [best]


def test_the_sample_leads_from_bank_to_river():
    for text in ("The bank by the river", "The bank by the river was eroded"):
        (head,) = run(text, model="riverbank").texts[0].heads
        assert (head.top.keys[1, 0], head.top.weight[1, 0] > 0.8) == (4, True)


@pytest.mark.parametrize(
    ("layer", "head", "shown"),
    [
        ("0", "mean", [(0, "mean")]),
        ("mean", "2", [("mean", 2)]),
        ("mean", "mean", [("mean", "mean")]),
        ("mean", "1,3", [("mean", 1), ("mean", 3)]),
        ("1,0", "-1", [(1, 3), (0, 3)]),
    ],
)
def test_selections(layer, head, shown):
    assert list(heads(run(layer=layer, head=head))) == shown


def test_a_mean_is_the_mean_of_every_stage_and_contribution():
    every = heads(run(layer="all", head="all", stages=STAGES, top=7))
    mean = heads(run(layer="mean", head="mean", stages=STAGES, top=7))["mean", "mean"]
    for stage in STAGES:
        expected = np.mean([head.stages[stage] for head in every.values()], axis=0)
        np.testing.assert_allclose(mean.stages[stage], expected, atol=1e-5)
    for name in ("weight", "value"):
        dense = np.zeros((7, 7))
        for head in every.values():
            for query in range(7):
                dense[query, head.top.keys[query]] += getattr(head.top, name)[query] / len(every)
        found = np.take_along_axis(dense, mean.top.keys, axis=1)
        np.testing.assert_allclose(getattr(mean.top, name), found, atol=1e-5)
        if name == "weight":
            np.testing.assert_allclose(found, -np.sort(-dense, axis=1), atol=1e-5)


def test_selected_rows_and_columns_are_those_of_the_whole():
    whole = heads(run(layer="1", head="2", stages=STAGES))[1, 2]
    report = run(layer="1", head="2", stages=STAGES, query="bank,4:6", key="river,0")
    part, text = heads(report)[1, 2], report.texts[0]
    assert (text.queries, text.keys) == ([1, 4, 5], [0, 4])
    for stage in STAGES:
        cells = whole.stages[stage][[1, 4, 5]]
        np.testing.assert_allclose(
            part.stages[stage], cells if stage == "output" else cells[:, [0, 4]], atol=1e-6
        )
    np.testing.assert_array_equal(part.top.keys, whole.top.keys[[1, 4, 5]])
    np.testing.assert_allclose(part.rows.entropy, whole.rows.entropy[[1, 4, 5]], atol=1e-6)


def test_scores_are_shown_for_keys_that_the_mask_forbids():
    """The trimmed range of a causal tile must not lose raw scores that the user asked to see."""
    free, causal = (
        heads(run(config="causal", layer="0", head="0", mask=m))[0, 0]
        for m in ("bidirectional", "own")
    )
    np.testing.assert_allclose(causal.stages["scores"], free.stages["scores"], atol=1e-5)
    above = np.triu_indices(7, 1)
    assert (causal.stages["masked"][above] == -np.inf).all()
    assert (causal.stages["weights"][above] == 0).all()


def test_padding_changes_no_number_and_is_not_shown(minilm):
    texts = ("The bank by the river was eroded by last year's flood", "Stop", "The river rose")
    together = run(*texts, model=str(minilm), layer="0,5", head="all", stages=STAGES)
    for i, text in enumerate(texts):
        alone = run(text, model=str(minilm), layer="0,5", head="all", stages=STAGES)
        assert together.texts[i].tokens == alone.texts[0].tokens
        for at, head in heads(alone).items():
            for stage in STAGES:
                other = heads(together, i)[at].stages[stage]
                expected = head.stages[stage]
                # Softmax makes of an error of scores one as large of weights.
                sizes = (
                    [expected, head.stages["scaled"]]
                    if stage in ("weights", "output")
                    else [expected]
                )
                np.testing.assert_allclose(
                    other, expected, atol=2e-6 * max(1, *(np.abs(x).max() for x in sizes))
                )
            np.testing.assert_allclose(
                heads(together, i)[at].stages["weights"].sum(-1), 1.0, atol=1e-6
            )


def test_a_pair_gives_its_second_segment_to_the_model(minilm):
    paired = run("Is it open?", pair="It opens at nine.", model=str(minilm), layer="0", head="0")
    assert [t.segment for t in paired.texts[0].tokens][-3:] == [1, 1, 1]
    assert paired.texts[0].pair == "It opens at nine."


def test_what_if_stack_and_same_scores_agree_in_layer_0_and_differ_later():
    stack, same = (
        heads(run(layer="all", head="all", mask="causal", what_if=w))
        for w in ("stack", "same-scores")
    )
    own = heads(run(layer="all", head="all"))
    above = np.triu_indices(7, 1)
    for at, head in same.items():
        np.testing.assert_allclose(head.stages["scores"], own[at].stages["scores"], atol=1e-5)
        assert (head.stages["weights"][above] == 0).all()
        differs = not np.allclose(head.stages["weights"], stack[at].stages["weights"], atol=1e-3)
        assert differs == (at[0] > 0)


def test_a_report_says_whose_mask_it_shows():
    assert run(mask="own").mask.what_if is None
    # riverbank was trained under this mask, too
    assert run(mask="causal", model="riverbank").mask.what_if is None
    assert (
        run(mask="causal", what_if="same-scores", model="riverbank").mask.what_if == "same-scores"
    )
    assert run(mask="bidirectional", what_if="same-scores").mask.what_if is None
    used = run(mask="own+window:2", what_if="same-scores").mask
    assert (used.own, used.used, used.what_if) == (
        "bidirectional",
        "bidirectional+window:2",
        "same-scores",
    )


@pytest.mark.parametrize(
    ("mask", "used"), [("own", None), ("own+block:2", "own+block:2"), ("causal", "causal")]
)
def test_a_mask_that_differs_between_layers_is_no_term_of_a_sum(mask, used):
    """ "causal, with window:4 in 1 of 2 layers+block:2" left open what the second term is added to."""
    sizes = dict(vocab_size=9, d_model=8, n_layers=2, n_heads=2, n_kv_heads=2, d_head=4, d_value=4)
    source = SimpleNamespace(
        config=ModelConfig(**sizes, mask="causal", windows=(4, None)),
        trained_masks=(),
        mask_known=True,
    )
    found = describe_mask_use(source, requested((TextInput("a"),), mask=mask))
    assert found.own == "causal, with window:4 in 1 of 2 layers"
    assert found.used == (used or found.own)


def test_special_tokens_and_the_first_token_can_be_left_out_of_the_ranking(minilm):
    text = run(model=str(minilm), layer="0", head="0", special=False, top=9).texts[0]
    special = {i for i, token in enumerate(text.tokens) if token.special} | {0}
    ranked = text.heads[0].top.keys
    assert not special & set(ranked.ravel().tolist())
    assert (ranked[:, 7:] == -1).all()
    assert np.isnan(text.heads[0].top.weight[:, 7:]).all()
    assert text.heads[0].top.left_out == ["special tokens", "first token"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_dtypes_keep_softmax_in_float32(minilm, dtype):
    exact, rough = (
        run(model=str(minilm), layer="all", head="all", dtype=d) for d in ("float32", dtype)
    )
    for head, other in zip(exact.texts[0].heads, rough.texts[0].heads, strict=True):
        np.testing.assert_allclose(other.stages["weights"].sum(-1), 1.0, atol=1e-6)
        np.testing.assert_allclose(other.stages["weights"], head.stages["weights"], atol=0.1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layer": "2"}, "layer: there is no layer 2; this model has layers 0 to 1"),
        ({"head": "4"}, "head: there is no head 4; this model has heads 0 to 3"),
        ({"query": "lake"}, "query: 'lake' is not in the text"),
        ({"mask": "casual"}, "mask: unknown mask 'casual'; did you mean 'causal'?"),
    ],
)
def test_selections_that_do_not_fit_are_refused(options, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        run(**options)


@pytest.mark.parametrize(
    "lengths", [(600, 2), (2, 600), (300, 400), (400, 300), (400, 400), (255, 400), (509, 1)]
)
def test_the_longer_text_of_a_pair_is_cut_as_tokenizers_does(minilm, lengths):
    first, second = "bank " * lengths[0], "river " * lengths[1]
    tokenizer = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(512, strategy="longest_first")
    expected = tokenizer.encode(first, second)
    report = run(
        first, pair=second, model=str(minilm), truncate=True, window=4, layer="0", head="0"
    )
    tokens = report.texts[0].tokens
    assert [token.id for token in tokens] == expected.ids
    assert [token.type_id for token in tokens] == expected.type_ids
    note = f"truncated from {sum(lengths) + 3} to 512 tokens"
    assert (note in report.provenance.notes) == (sum(lengths) + 3 > 512)


def test_a_text_longer_than_the_positions_is_refused_or_cut_and_said(minilm):
    long = "river " * 600
    with pytest.raises(
        AttnscopeError,
        match="text: 602 tokens, but the model takes at most 512; pass truncate=True to truncate the text",
    ):
        run(long, model=str(minilm))
    report = run(long, model=str(minilm), truncate=True, window=4, layer="0", head="0")
    text = report.texts[0]
    assert "truncated from 602 to 512 tokens" in report.provenance.notes
    assert (len(text.tokens), text.tokens[-1].piece, text.tokens[-2].piece) == (
        512,
        "[SEP]",
        "river",
    )


def test_what_needs_44_terabytes_is_refused_at_once_with_the_formula():
    with pytest.raises(AttnscopeError) as error:
        run(" ".join(["river"] * 200_000), config="grouped-query", layer="all", head="all")
    said = str(error.value)
    parts = "program .* weights .* activations .* tile .* kept .* TiB"
    assert re.search(rf"needs about [\d,.]+ TiB \({parts}", said)
    assert "layer, head, query, key or stages" in said


def test_max_memory_is_kept():
    with pytest.raises(AttnscopeError, match=r"max_memory is 1\.0 MiB"):
        run(max_memory=1 << 20)


def test_a_score_that_overflows_is_an_error_that_names_layer_head_and_count(tmp_path, minilm):
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(minilm, tmp_path / "m")
    state = load_file(tmp_path / "m/model.safetensors")
    state["encoder.layer.2.attention.self.query.weight"][32:64] *= 1e6
    save_file(state, tmp_path / "m/model.safetensors")
    with pytest.raises(AttnscopeError, match=r"L2H1: \d+ scores are not finite; .*dtype='float32'"):
        run(model=str(tmp_path / "m"), layer="2", head="all", dtype="float16")


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cuda_shows_what_the_cpu_shows(gpu, minilm, dtype):
    cpu, other = (
        run(model=str(minilm), layer="all", head="all", dtype=dtype, device=device)
        for device in ("cpu", gpu)
    )
    tolerance = 2e-5 if dtype == "float32" else 0.05
    for head, on_gpu in zip(cpu.texts[0].heads, other.texts[0].heads, strict=True):
        np.testing.assert_allclose(on_gpu.stages["weights"], head.stages["weights"], atol=tolerance)


@pytest.mark.parametrize("command", ["run", "compare", "batch"])
def test_five_calls_lead_from_the_pipeline_to_the_arithmetic(command, tmp_path, monkeypatch):
    """So that who looks for the arithmetic finds it: engine, stack, block, attention, hooks."""
    found = []

    def attend(*args, **named):
        files = [Path(frame.filename) for frame in traceback.extract_stack()]
        ours = [
            path.name
            for path in files
            if path.is_relative_to(Path(attention.__file__).parent.parent)
        ]
        found.append(ours[len(ours) - ours[::-1].index("session.py") :])
        return attention.attend(*args, **named)

    monkeypatch.setattr(hooks, "attend", attend)
    asked = requested(texts=(TextInput(SENTENCE),), config="causal", layer="0", head="0")
    if command == "run":
        inspect(asked)
    elif command == "compare":
        compare_runs(
            "mask",
            [("causal", asked), ("bidirectional", changed(asked, mask="bidirectional"))],
            None,
            None,
        )
    else:
        (tmp_path / "texts.txt").write_text(SENTENCE)
        order = DumpConfig(
            str(tmp_path / "texts.txt"), None, tmp_path / "dump.jsonl", Settings(), asked
        )
        write_dump(order, lambda summary, total: None)
    assert {tuple(files) for files in found} == {
        ("native.py", "stack.py", "layers.py", "layers.py", "hooks.py")
    }
