import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.samples import find_config, sample_names
from attnscope.checkpoints.stack_file import read_stack
from attnscope.engines.description import describe
from attnscope.findings.heads import STAGES
from attnscope.model.randomize import make_random
from attnscope.model.stack import Stack
from attnscope.request.memory import embedding_parameters, layer_parameters
from attnscope.request.run_config import TextInput
from attnscope.run.session import inspect
from tests.helpers.requests import requested
from training.walkthroughs import word_tokenizer

TEXT = TextInput("The bank by the river, the bank")
LIFE = "Life is short, eat dessert first"
KNOWN = {"four-tokens": "t0 t1 t2 t3"} | dict.fromkeys(
    ("life-is-short", "life-is-short-three-heads", "life-is-short-cross"), LIFE
)


@pytest.mark.parametrize("name", sample_names("configs"))
def test_every_shipped_config_runs_and_says_that_its_weights_are_random(name):
    described = read_stack(find_config(name))
    cross = described.model.get("cross_attention", False)
    text = KNOWN.get(
        described.file.tokenizer.split("/")[-2] if "/" in described.file.tokenizer else "",
        TEXT.text,
    )
    given = TextInput(text, context="s0 s1 s2 s3 s4 s5 s6 s7" if cross else None)
    report = inspect(requested(texts=(given,), config=name, head="all"))
    assert report.provenance.weights == "random", "none of them was trained"
    assert report.provenance.family == "config"
    for head in report.texts[0].heads:
        torch.testing.assert_close(
            torch.tensor(head.stages["weights"]).sum(-1), torch.ones(len(report.texts[0].tokens))
        )


@pytest.mark.parametrize("name", sample_names("configs"))
def test_parameters_are_counted_as_torch_counts_them(name):
    c = describe(None, name).config
    with torch.device("meta"):
        counted = sum(p.numel() for p in Stack(c).parameters())
    assert embedding_parameters(c) + c.n_layers * layer_parameters(c) == counted


EXPERTS = (
    "d_model = 8\nd_mlp = 12\ngated = true\nn_experts = 6\nexperts_per_token = 2\nsinks = true\n"
)


def test_parameters_of_experts_and_sinks_are_counted_too(tmp_path):
    path = written(tmp_path, EXPERTS + "router_bias = true\nmlp_bias = true\nn_layers = 2\n")
    c = describe(None, str(path)).config
    with torch.device("meta"):
        counted = sum(p.numel() for p in Stack(c).parameters())
    assert embedding_parameters(c) + c.n_layers * layer_parameters(c) == counted


def test_experts_that_do_not_fit_are_refused_before_any_is_made(tmp_path):
    path = written(tmp_path, EXPERTS.replace("n_experts = 6", "n_experts = 1000000000"))
    with pytest.raises(AttnscopeError, match=r"weights 1\.1 TiB"):
        inspect(requested((TEXT,), config=str(path)))


def test_a_stack_with_experts_and_sinks_runs(tmp_path):
    (head,) = inspect(requested((TEXT,), config=str(written(tmp_path, EXPERTS)))).texts[0].heads
    np.testing.assert_allclose(head.stages["weights"].sum(1) + head.rows.sink, 1, atol=1e-6)
    assert (head.rows.sink > 0.01).all()


CHECKPOINT = 'd_model = 8\nweights = "stack.safetensors"\ntokenizer = "tokenizer.json"\n'


def written(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(
        word_tokenizer(["The", "bank", "by", "the", "river", "x"])
    )
    path = tmp_path / "stack.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("heads = 2", "stack.toml: unknown key 'heads'; did you mean 'n_heads'?"),
        ("layers = 2", "stack.toml: unknown key 'layers'; did you mean 'n_layers'?"),
        ("model = 8", "stack.toml: unknown key 'model'; did you mean 'd_model'?"),
        ("d_modle = 8", "stack.toml: unknown key 'd_modle'; did you mean 'd_model'?"),
        ('d_model = "8"', "stack.toml: d_model = '8': Expected int, got str"),
        ("n_heads = 0", "stack.toml: n_heads = 0: Expected int >= 1"),
        ("d_model = 1.5", "stack.toml: d_model = 1.5: Expected int, got float"),
        (
            "d_mlp = 8\nn_experts = 4",
            "stack.toml: n_experts is 4, but experts_per_token is 0; n_experts must",
        ),
        (
            "d_mlp = 8\nexperts_per_token = 1",
            "stack.toml: n_experts is 0, but experts_per_token is 1; n_experts must ",
        ),
        (
            "n_experts = 4\nexperts_per_token = 1",
            "stack.toml: n_experts is 4, but d_mlp is not set; set d_mlp, ",
        ),
        ("n_experts = -1", "stack.toml: n_experts = -1: Expected int >= 0"),
        ("glu_limit = 0.0", "stack.toml: glu_limit = 0.0: Expected float > 0.0"),
        ("d_model = 10\nn_heads = 3", "stack.toml: d_model is 10, but n_heads is 3; set d_head"),
        ("d_model = 12\nn_heads = 4\nn_kv_heads = 3", "n_heads is 4, but n_kv_heads is 3"),
        ('positions = "rotary"', "stack.toml: positions = 'rotary': Invalid enum value"),
        ('mask = "casual"', "stack.toml: mask: unknown mask 'casual'; did you mean 'causal'?"),
        ('mask = "own"', "stack.toml: mask: 'own' cannot be the model's own mask"),
        (
            'mask = "causal+m.npy"',
            "stack.toml: mask: a file cannot be the model's mask; pass it with mask",
        ),
        ('d_model = 6\nn_heads = 2\npositions = "rope"', "rotary width 3 is odd"),
        ("n_layers = 2\nwindows = [4]", "1 windows for 2 layers"),
        (
            "d_value = 8\nout_projection = false",
            "without an output projection the heads are 8 wide",
        ),
        (
            "[rope]\nteta = 3.0",
            "stack.toml: rope = {'teta': 3.0}: Object contains unknown field teta",
        ),
        ("seed = -1", "stack.toml: seed = -1: Expected int >= 0"),
        ("= 3", "stack.toml: not TOML: "),
    ],
)
def test_what_is_wrong_is_named_with_its_value(tmp_path, text, said):
    with pytest.raises(AttnscopeError) as error:
        read_stack(written(tmp_path, text))
    assert said in str(error.value)


def test_scale_can_be_switched_off(tmp_path):
    on, off = (
        read_stack(written(tmp_path, f"d_model = 16\nscale = {word}")).config(5)
        for word in ("true", "false")
    )
    assert (on.attention_scale, off.attention_scale) == (0.25, 1.0)


def test_the_same_seed_makes_the_same_weights_and_another_one_others():
    c = describe(None, "causal").config
    one, same, other = (
        make_random(c, s, 2, torch.float32, torch.device("cpu")).state_dict() for s in (1, 1, 2)
    )
    name = "blocks.1.attention.q.weight"
    assert torch.equal(one[name], same[name])
    assert not torch.equal(one[name], other[name])


def test_fewer_layers_have_the_same_weights():
    c = describe(None, "causal").config
    one, two = (
        make_random(c, 1, n, torch.float32, torch.device("cpu")).state_dict() for n in (1, 2)
    )
    assert len(one) < len(two)
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("text", ["a river", "an otter by a river on a zebra, or by another bank"])
def test_numbers_of_a_text_do_not_depend_on_the_vocabulary_of_other_texts(tmp_path, text):
    path = str(
        written(
            tmp_path, "head = {tied = false}\nd_mlp = 8\npositions = 'learned'\nmask = 'causal'"
        )
    )
    texts = TEXT, TextInput(text)
    alone, first, second = (
        inspect(requested(texts=some, config=path, head="0", stages=STAGES, predict=True)).texts
        for some in (texts[:1], texts, texts[::-1])
    )
    for beside in (first[0], second[1]):
        for stage, matrix in alone[0].heads[0].stages.items():
            np.testing.assert_allclose(beside.heads[0].stages[stage], matrix, rtol=1e-6, atol=1e-6)


def test_a_word_has_the_same_logit_in_every_vocabulary(tmp_path):
    config = read_stack(written(tmp_path, "d_model = 8\nhead = {tied = false, norm = false}"))
    few, more = (["by", "river"], ["a", "by", "river", "the"])
    one, two = (
        make_random(config.config(len(words)), 3, 1, torch.float32, torch.device("cpu"), words)
        for words in (few, more)
    )
    hidden = torch.ones(1, 8)
    assert torch.equal(one.embed.tokens.weight, two.embed.tokens.weight[1:3])
    torch.testing.assert_close(one.logits(hidden), two.logits(hidden)[:, 1:3])
    assert two.embed.tokens.weight.unique().numel() == 4 * 8, "no two words share numbers"


def test_rows_without_a_word_are_drawn_together(tmp_path, monkeypatch):
    """One by one, two million of them took a minute."""
    drawn = []
    generator = np.random.default_rng
    monkeypatch.setattr(
        np.random, "default_rng", lambda seed: (drawn.append(seed), generator(seed))[1]
    )
    config = read_stack(written(tmp_path, "d_model = 8\nvocab_size = 5000")).config(2)
    table = make_random(
        config, 3, 1, torch.float32, torch.device("cpu"), ["by", "river"]
    ).embed.tokens.weight
    assert len(drawn) == 2
    assert 0.9 < float(table.detach()[2:].std()) < 1.1


def test_a_row_of_the_embedding_without_a_word_is_named_by_its_number(tmp_path):
    path = written(tmp_path, "head = {tied = false}\nmask = 'causal'\nvocab_size = 200")
    report = inspect(requested(texts=(TEXT,), config=str(path), predict=True))
    pieces = [token.text for place in report.texts[0].predictions for token in place.tokens]
    assert "<" in "".join(pieces)


def test_weights_without_a_tokenizer_are_refused(tmp_path):
    said = "weights need a tokenizer; set tokenizer to a tokenizer.json: the words of a text have no fixed ids"
    with pytest.raises(AttnscopeError, match=said):
        read_stack(written(tmp_path, 'weights = "stack.safetensors"'))


def test_weights_from_a_checkpoint_are_used_and_not_called_random(tmp_path):
    path = written(tmp_path, CHECKPOINT)
    stack = make_random(read_stack(path).config(6), 3, 1, torch.float32, torch.device("cpu"))
    state = {name: value.clone() for name, value in stack.state_dict().items()}
    state["blocks.0.attention.q.weight"].zero_()
    save_file(state, tmp_path / "stack.safetensors")
    report = inspect(requested(texts=(TEXT,), config=str(path), layer="0", head="0"))
    assert report.provenance.weights == "trained"
    assert (report.texts[0].heads[0].stages["scores"] == 0).all()


def test_a_checkpoint_that_lacks_a_weight_is_refused(tmp_path):
    path = written(tmp_path, CHECKPOINT)
    state = dict(
        make_random(
            read_stack(path).config(6), 3, 1, torch.float32, torch.device("cpu")
        ).state_dict()
    )
    del state["blocks.0.attention.k.weight"]
    save_file(state, tmp_path / "stack.safetensors")
    said = re.escape("the tensor 'blocks.0.attention.k.weight' is missing")
    with pytest.raises(AttnscopeError, match=said):
        inspect(requested(texts=(TEXT,), config=str(path)))
