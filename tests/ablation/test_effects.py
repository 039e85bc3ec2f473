"""Effects, predictions and weights against `transformers` and plain float64, from the text to the report."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st

import attnscope
from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.checkpoints.locating import open_checkpoint
from attnscope.cli import main
from attnscope.findings.ablation import rank_correlation
from attnscope.model.tensors import read_tensors
from attnscope.request.run_config import TextInput
from attnscope.run.session import Session
from attnscope.studies.ablate import plan
from attnscope.studies.ablate.run import ablate, survey_effects
from tests.helpers.architectures import WORDS, save_gpt2, write_tokenizer
from tests.helpers.effect_arithmetic import change_of, divergence, log_softmax
from tests.helpers.effect_arithmetic import rank_correlation as counted_correlation
from tests.helpers.requests import cutting, requested
from tests.helpers.tiny_models import TABLE
from tests.parity.test_cuts import heads_replaced, masked_edges

TEXT = "the bank by the river was old and we sat"
N = 11  # tokens, with </s>
AT = -2  # the last token of the text itself
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A tiny GPT-2 with a tokenizer, and the same model of transformers."""
    return save_gpt2(tmp_path_factory.mktemp("gpt2"))


def seen(model, ids):
    """Log-probabilities after the last token of the text; final states after the last norm; weights: float64."""
    entered = []
    handle = model.transformer.ln_f.register_forward_hook(
        lambda _, __, made: entered.append(made[0])
    )
    with torch.inference_mode():
        made = model(input_ids=torch.tensor([ids]), output_attentions=True)
    handle.remove()
    logits = made.logits[0, AT].double().numpy()
    weights = torch.stack([one[0] for one in made.attentions]).double().numpy()  # (L, H, T, T)
    return log_softmax(logits), entered[0].double().numpy(), weights


def ids_of(found):
    return [token.id for token in found.tokens]


def cut_heads(model, *heads, value=0.0):
    values = torch.full((3, 4, 6), torch.nan)
    for layer, head in heads:
        values[layer, head] = value
    return heads_replaced(model, "gpt2", dict(enumerate(values)))


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_every_head(gpt2, engine, monkeypatch):
    path, model = gpt2
    monkeypatch.setattr(plan, "_TOKENS", 5 * N)  # five variants at a time, of twelve
    run = requested((TextInput(TEXT),), model=path, engine=engine)
    found = survey_effects(run, cutting(each="head"))
    assert list(zip(found.layers, found.heads, strict=True)) == [
        (n, h) for n in range(3) for h in range(4)
    ]
    before, hidden, weights = seen(model, ids_of(found))
    # from words to words: the first and </s> are left out
    off_sink = weights[:, :, 1:-1, 1:-1].sum(-1).mean(-1)
    np.testing.assert_allclose(found.grid(found.weights), off_sink, atol=1e-6)
    kl, moved = np.empty((3, 4)), np.empty((3, 4))
    for layer in range(3):
        for head in range(4):
            with cut_heads(model, (layer, head)):
                after, changed, _ = seen(model, ids_of(found))
            kl[layer, head] = divergence(before, after)
            moved[layer, head] = np.linalg.norm(changed[AT] - hidden[AT]) / np.linalg.norm(
                hidden[AT]
            )
    (effects,) = found.effects
    np.testing.assert_allclose(found.grid(effects.kl), kl, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.grid(effects.hidden), moved, rtol=1e-4)
    assert effects.correlation == pytest.approx(
        counted_correlation(off_sink.ravel(), kl.ravel()), abs=1e-6
    )
    assert found.order() == np.argsort(-kl.ravel()).tolist()
    with cut_heads(model, divmod(int(kl.argmax()), 4)):
        after, _, _ = seen(model, ids_of(found))
    (change,) = found.predictions
    assert (change.position, change.kl) == (N - 2, pytest.approx(kl.max(), rel=1e-4))
    first = [np.argsort(-logs)[:5].tolist() for logs in (before, after)]
    assert {token.id for token in change.tokens} == {*first[0], *first[1]}
    for token in change.tokens:
        assert token.before == pytest.approx(np.exp(before[token.id]), rel=1e-4)
        assert token.after == pytest.approx(np.exp(after[token.id]), rel=1e-4)


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_cuts_together(gpt2, engine):
    path, model = gpt2
    run = requested((TextInput(TEXT),), model=path, engine=engine)
    asked = cutting(("L0H1", "L2H2", "L1H0,L1H3: and→bank,river"))
    found = ablate(run, asked)
    before, hidden, weights = seen(model, ids_of(found))
    edges = [(1, [0, 3], [7], [1, 4])]
    with cut_heads(model, (0, 1), (2, 2)), masked_edges(model, "gpt2", edges, N):
        after, changed, _ = seen(model, ids_of(found))
    assert [part.heads for part in found.cuts] == [[(0, 1)], [(2, 2)], [(1, 0), (1, 3)]]
    assert found.cuts[2].weight == pytest.approx(
        weights[1, [0, 3], 7][:, [1, 4]].sum(-1).mean(), abs=1e-6
    )
    effect = found.effects[0]
    (change,) = effect.predictions
    assert (effect.how, change.position) == ("renormalised", N - 2)
    assert change.kl == pytest.approx(divergence(before, after), rel=1e-4)
    first = np.argsort(-before)[:5].tolist()
    assert [token.id for token in change.tokens][:5] == first
    assert set(np.argsort(-after)[:5].tolist()) <= {token.id for token in change.tokens}
    for token in change.tokens:
        assert token.before == pytest.approx(np.exp(before[token.id]), rel=1e-4)
        assert token.after == pytest.approx(np.exp(after[token.id]), rel=1e-4)
        assert token.change == pytest.approx((after - before)[token.id] / np.log(2), abs=1e-4)
    for token in change.tokens:
        assert token.text == (WORDS[token.id] if token.id < len(WORDS) else f"<{token.id}>")
    cosine, moved = change_of(hidden, changed)
    norms = np.linalg.norm(hidden, axis=-1)
    np.testing.assert_allclose(effect.change, moved, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(effect.cosine, cosine, atol=1e-5)
    np.testing.assert_allclose(found.norms, norms, rtol=1e-5)


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_final_states_are_normed_without_a_head(tmp_path, engine):
    """A checkpoint that has a final norm and no head: the change is that of transformers' `last_hidden_state`."""
    (row,) = (row for row in TABLE if row.name == "llama")
    model = hf.LlamaModel(hf.LlamaConfig(**row.config, tie_word_embeddings=False)).eval()
    with torch.no_grad():
        model.norm.weight.copy_(torch.linspace(0.2, 3.0, len(model.norm.weight)))
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    found = survey_effects(
        requested((TextInput(TEXT),), model=str(tmp_path), engine=engine), cutting(each="layer")
    )
    (effects,) = found.effects
    assert (effects.kl, found.positions) == (None, [])
    ids = torch.tensor([ids_of(found)])
    with torch.inference_mode():
        before = model(ids).last_hidden_state[0].double().numpy()
        for layer in range(3):
            handle = model.layers[layer].self_attn.register_forward_hook(
                lambda _, __, made: (torch.zeros_like(made[0]), *made[1:])
            )
            after = model(ids).last_hidden_state[0].double().numpy()
            handle.remove()
            moved = change_of(before, after)[1] / np.linalg.norm(before, axis=-1)
            assert effects.hidden[layer] == pytest.approx(moved.mean(), rel=1e-4)


def test_mean_over_a_reference_text(gpt2):
    path, model = gpt2
    reference = "river was old"
    run = requested((TextInput(TEXT),), model=path)
    found = ablate(run, cutting(("L1H2",), replacement="mean", reference=reference))
    joined = []
    handle = model.transformer.h[1].attn.c_proj.register_forward_pre_hook(
        lambda _, args: joined.append(args[0][0])
    )
    seen(model, [WORDS.index(word) for word in reference.split()] + [2])
    handle.remove()
    with cut_heads(model, (1, 2), value=joined[0].unflatten(-1, (4, 6))[:, 2].mean(0)):
        after, _, _ = seen(model, ids_of(found))
    before, _, _ = seen(model, ids_of(found))
    kl = divergence(before, after)
    assert found.effects[0].predictions[0].kl == pytest.approx(kl, rel=1e-4)
    # it has no token 9
    with_edge = cutting(("L1H2", "L2: -1→9"), replacement="mean", reference=reference)
    assert [effect.how for effect in ablate(run, with_edge).effects] == [
        "renormalised",
        "unnormalised",
    ]
    own = ablate(run, cutting(("L1H2",), replacement="mean"))
    assert own.effects[0].predictions[0].kl != pytest.approx(kl, rel=1e-3)


def test_a_reference_text_has_the_documents_of_the_mask(gpt2, capsys):
    """It ended in an internal error."""
    path, _ = gpt2
    text = "the bank by river"
    for reference, said in (("river was old", "docs:5"), ("by river", "docs:3,2")):
        asked = ["ablate", text, "--model", path, "--each", "head", "--replacement", "mean"]
        assert main([*asked, "--reference", reference, "--mask", said]) == 2
        shown = capsys.readouterr().err
        count = len(reference.split()) + 1
        assert (
            f"the documents have 5 tokens, but the text has {count} (the text of --reference)"
            in shown
        )
    assert main([*asked, "--reference", text, "--mask", "docs:3,2"]) == 0


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_hidden_tokens_are_hidden_in_a_reference_text_too(gpt2, engine):
    """As far as it has them: the mean is taken under the same mask, and a note names what is not there."""
    path, model = gpt2
    reference, hide = "was river old", "bank,river,9,2"
    ids = [WORDS.index(word) for word in reference.split()] + [2]
    joined, every = [], list(range(4))
    handle = model.transformer.h[1].attn.c_proj.register_forward_pre_hook(
        lambda _, args: joined.append(args[0][0])
    )
    edges = [(layer, every, range(len(ids)), [1, 2]) for layer in range(3)]
    with masked_edges(model, "gpt2", edges, len(ids)):
        seen(model, ids)
    handle.remove()
    run = requested((TextInput(TEXT),), model=path, hide=hide, engine=engine)
    found = ablate(run, cutting(("L1H2",), replacement="mean", reference=reference))
    n, mean = len(found.tokens), joined[0].unflatten(-1, (4, 6))[:, 2].mean(0)
    with masked_edges(
        model, "gpt2", [(layer, every, range(n), [1, 2, 4, 9]) for layer in range(3)], n
    ):
        before, _, _ = seen(model, ids_of(found))
        with cut_heads(model, (1, 2), value=mean):
            after, _, _ = seen(model, ids_of(found))
    assert found.effects[0].predictions[0].kl == pytest.approx(divergence(before, after), rel=1e-4)
    said = "--reference: the mean is over the 4 tokens of: was river old"
    assert found.notes == [said]
    assert found.provenance.notes == ["--reference: has no bank, 9 to hide"]


def test_an_encoder_without_a_head_has_hidden_states_alone(minilm: Path):
    run = requested((TextInput("The bank by the river"),), model=str(minilm))
    found = survey_effects(run, cutting(each="layer"))
    (effects,) = found.effects
    assert (effects.kl, found.positions, effects.ranked_by) == (None, [], "hidden")
    one = ablate(run, cutting(("L3",)))
    assert one.effects[0].predictions == []
    share = (one.effects[0].change / one.norms).mean()
    assert effects.hidden[3] == pytest.approx(share, rel=1e-5)
    at = survey_effects(run, cutting(each="layer", at="bank"))
    assert at.positions == [2]
    assert at.effects[0].hidden[3] == pytest.approx(
        one.effects[0].change[2] / one.norms[2], rel=1e-5
    )


def test_predictions_without_a_head_are_kept_of_three_positions_at_most(gpt2):
    run = requested((TextInput(TEXT),), model=gpt2[0], layer="0")
    for at, positions in (("bank,by,was", 3), ("bank,by,was,old", 0)):
        found = survey_effects(run, cutting(each="head", at=at))
        assert len(found.predictions) == positions
        assert len(found.positions) >= 3


def test_a_masked_model_predicts_at_mask_tokens(tmp_path):
    (row,) = (row for row in TABLE if row.name == "bert with heads")
    row.save(tmp_path)
    write_tokenizer(tmp_path)
    run = requested((TextInput("the bank by the river"),), model=str(tmp_path))
    found = ablate(run, cutting(("L1H1",)))
    assert found.effects[0].predictions == []
    assert any("no [MASK]" in note for note in found.provenance.notes)
    assert [
        p.position for p in ablate(run, cutting(("L1H1",), at="bank,by")).effects[0].predictions
    ] == [1, 2]


def test_cuts_of_a_real_model_equal_transformers(smollm2: Path):
    """Heads and edges of SmolLM2 from its GGUF file; the weights are ours, which tests/parity compares."""
    folder = open_checkpoint(smollm2)
    with torch.device("meta"):
        model = hf.LlamaForCausalLM(
            hf.LlamaConfig(**{**folder.config, "attn_implementation": "eager"})
        ).eval()
    model.load_state_dict(dict(read_tensors(folder, folder.tensors)), assign=True, strict=False)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    run = requested(
        (TextInput("When Mary and John went to the store, John gave"),), model=str(smollm2)
    )
    session = Session(run.texts)
    found = ablate(run, cutting(("L1H5", "L17H0: -1→Mary")), session=session)
    ids = [token.id for token in found.tokens]

    def predicted():
        with torch.inference_mode():
            return (
                model(input_ids=torch.tensor([ids])).logits[0, -1].double().log_softmax(-1).numpy()
            )

    before = predicted()
    values = torch.full((9, 64), torch.nan)
    values[5] = 0.0
    with (
        heads_replaced(model, "llama", {1: values}),
        masked_edges(model, "llama", [(17, [0], [len(ids) - 1], [1])], len(ids)),
    ):
        after = predicted()
    (change,) = found.effects[0].predictions
    assert change.kl == pytest.approx(divergence(before, after), abs=1e-5)
    for token in change.tokens:
        assert token.before == pytest.approx(np.exp(before[token.id]), abs=1e-5)
        assert token.after == pytest.approx(np.exp(after[token.id]), abs=1e-5)


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 1, width=16)), min_size=2, max_size=9))
def test_rank_correlation_is_that_of_counted_ranks(pairs):
    first, second = zip(*pairs, strict=True)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert rank_correlation(first, second) is None
    else:
        assert rank_correlation(first, second) == pytest.approx(
            counted_correlation(first, second), abs=1e-9
        )


def test_fewer_variants_run_side_by_side_where_memory_is_short(gpt2, monkeypatch):
    path, _ = gpt2
    tried = []
    real = plan.plan_passes

    def tight(run, source, groups, kept):
        tried.append(len(groups[0]))
        if len(groups[0]) > 3:
            raise AttnscopeError("does not fit")
        return real(run, source, groups, kept)

    run = requested((TextInput(TEXT),), model=path)
    plenty = survey_effects(run, cutting(each="head"))
    monkeypatch.setattr(plan, "plan_passes", tight)
    found = survey_effects(run, cutting(each="head"))
    assert tried == [12, 6, 3]
    np.testing.assert_allclose(found.effects[0].kl, plenty.effects[0].kl, atol=1e-6)
    with pytest.raises(AttnscopeError, match="needs about"):
        survey_effects(
            requested((TextInput(TEXT),), model=path, max_memory=100 << 20), cutting(each="head")
        )


def test_hidden_tokens_are_hidden_with_and_without_the_cut(gpt2, capsys):
    """The same 4-D mask in every layer of transformers, and the head's output 0."""
    path, model = gpt2
    assert (
        main(
            [
                "ablate",
                TEXT,
                "--model",
                path,
                "--hide",
                "bank,3",
                "--cut",
                "L1H2",
                "--format",
                "json",
            ]
        )
        == 0
    )
    found = attnscope.ablate(TEXT, cut="L1H2", model=path, hide=["bank", 3])
    typed = json.loads(capsys.readouterr().out)
    assert typed["effects"] == json.loads(found.to_json())["effects"]
    ids, every = ids_of(found.data), list(range(N))
    hidden = [(layer, list(range(4)), every, [1, 3]) for layer in range(3)]
    with masked_edges(model, "gpt2", hidden, N):
        before, states, _ = seen(model, ids)
        with cut_heads(model, (1, 2)):
            after, changed, _ = seen(model, ids)
    assert (typed["mask"]["hidden"], found.data.mask.hidden) == ("bank,3", '"bank",3')
    (effect,) = found.effects
    assert effect.predictions[0].kl == pytest.approx(divergence(before, after), rel=1e-4)
    np.testing.assert_allclose(effect.change, change_of(states, changed)[1], rtol=1e-4, atol=1e-5)
    assert main(["ablate", TEXT, "--model", path, "--hide", "bank,3", "--cut", "L1H2"]) == 0
    assert "bank,3" in capsys.readouterr().out


def test_a_token_whose_state_is_zero_is_left_out_of_means(tmp_path, capsys):
    """Without a residual stream, a query that sees nothing has a state of 0, and so has every token without heads."""
    (tmp_path / "x.toml").write_text(
        'n_heads = 2\nd_model = 8\nresidual = false\nmask = "causal"\n'
    )
    options = {"config": tmp_path / "x.toml", "hide": 0}  # the first token sees nothing
    found = attnscope.ablate("the bank by the river", each="head", **options)
    alone = attnscope.ablate("the bank by the river", each="head", at=slice(1, None), **options)
    assert np.isfinite(found.effect).all() and (found.effect > 0).all()
    np.testing.assert_allclose(found.effect, alone.effect, rtol=1e-6)
    cut = attnscope.ablate("the bank by the river", cut="L0", **options)
    assert np.isnan(cut.effects[0].cosine).all()
    assert np.isnan(attnscope.ablate("the", each="head", **options).effect).all()
    for shown in (cut, attnscope.ablate("the", each="head", **options)):
        assert "nan" not in shown.text(width=90) and "–" in shown.text(width=90)


def test_edges_of_a_query_that_sees_nothing(gpt2, capsys):
    asked = [
        "ablate",
        TEXT,
        "--model",
        gpt2[0],
        "--hide",
        "0",
        "--each",
        "edge",
        "--query",
        "0",
        "--layer",
        "0",
    ]
    assert main(asked) == 2
    assert "--each edge: none of the 44 edges has any weight" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        ("L3", "there is no layer 3; this model has layers 0 to 2"),
        ("L0H4", "there is no head 4; this model has heads 0 to 3"),
        ("L0: sea→bank", "'sea' is not in the text"),
        ("L0: 0→40", "'40' is not in the text"),
    ],
)
def test_what_is_not_there_is_refused(gpt2, cut, said):
    run = requested((TextInput(TEXT),), model=gpt2[0])
    with pytest.raises(UsageError) as error:
        ablate(run, cutting((cut,)))
    assert said in f"{error.value.message}; {error.value.hint}"
    assert error.value.where == f"cut={cut!r}"
