"""A model of transformers that is in memory: the numbers of its own eager attention, and it is given back as it was."""

import json
import logging
import threading
from functools import partial

import numpy as np
import peft
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer
from torch import nn

import attnscope
from attnscope.engines.torch_setup import restore_threads
from attnscope.findings.check import CheckReport
from attnscope.model.module_hooks import listening
from tests.helpers.tiny_models import raise_weights
from tests.helpers.tokenizer_files import content, write

TEXT = "The bank by the river"
SIZES = {"vocab_size": 400, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
         "max_position_embeddings": 48, "hidden_size": 32, "bos_token_id": 1, "eos_token_id": 2,
         "pad_token_id": 0}  # fmt: skip
MODELS = {
    "bert": lambda: hf.BertModel(hf.BertConfig(**SIZES)),
    "bert with a head": lambda: hf.BertForSequenceClassification(hf.BertConfig(**SIZES)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, num_key_value_heads=2)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=8, sliding_window=3)
    ),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=400,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=48,
            bos_token_id=1,
            eos_token_id=2,
        )
    ),
    "qwen2, sdpa": lambda: hf.AutoModelForCausalLM.from_config(
        hf.Qwen2Config(**SIZES, num_key_value_heads=4), attn_implementation="sdpa"
    ),
}


@pytest.fixture(autouse=True)
def _default_threads():
    """Undo the thread count that `main()` sets in an earlier test: the command line does not restore it."""
    restore_threads()


def tokenizer(kind="wordpiece"):
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content(kind)))
    )


def made(name):
    torch.manual_seed(3)
    return raise_weights(MODELS[name]())


def state(model):
    """Everything of a model that running it could change."""
    return {
        "training": [module.training for module in model.modules()],
        "implementation": [
            getattr(m, "config", None) and m.config._attn_implementation for m in model.modules()
        ],
        "config": model.config.to_dict(),
        "hooks": [
            [
                list(getattr(module, name))
                for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
            ]
            for module in model.modules()
        ],
        "forward": [module.__dict__.get("forward") for module in model.modules()],
        "parameters": [
            (n, p.data_ptr(), p._version, p.requires_grad, p.grad)
            for n, p in model.named_parameters()
        ],
        "buffers": [
            (name, buffer.data_ptr(), buffer._version) for name, buffer in model.named_buffers()
        ],
        "random": torch.random.get_rng_state().tolist(),
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
    }


@pytest.mark.parametrize("name", MODELS)
def test_numbers_are_those_of_eager_attention_and_the_model_is_as_it_was(name):
    model, words = made(name).train(), tokenizer()
    model.get_submodule(
        next(n for n, m in model.named_modules() if isinstance(m, nn.Dropout | nn.Linear))
    ).eval()
    fired: list[object] = []
    model.base_model.register_forward_hook(lambda *given: fired.append(given[0]))
    before = state(model)
    report = attnscope.inspect(TEXT, model=model, tokenizer=words, layer="all", head="all")
    assert state(model) == before
    ids = words(TEXT, return_tensors="pt")
    assert [token.id for token in report.tokens] == ids["input_ids"][0].tolist()
    model.eval().set_attn_implementation("eager")
    with torch.inference_mode():
        theirs = model(**ids, output_attentions=True).attentions
    np.testing.assert_allclose(report.weights, torch.cat(list(theirs)).numpy(), atol=2e-6)
    assert report.provenance.model == type(model).__name__
    assert (report.provenance.weights, report.provenance.engine) == ("live", "transformers")


@pytest.mark.parametrize("name", ["bert", "llama", "gemma2"])
def test_a_live_model_is_its_own_checkpoint(name, tmp_path):
    """Saved and opened by attnscope itself, it has the same tokens and the same numbers."""
    model = made(name)
    model.save_pretrained(tmp_path)
    write(tmp_path, content("wordpiece"))
    stages = ("scores", "scaled", "masked", "weights", "output")
    given = {"layer": "all", "head": "all", "stages": stages, "by": "projected", "top": 4}
    live = attnscope.inspect(TEXT, model=model, tokenizer=tokenizer(), **given)
    ours = attnscope.inspect(TEXT, model=tmp_path, **given)
    assert live.tokens == ours.tokens
    for stage in stages:
        one, other = getattr(live, stage), getattr(ours, stage)
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)
    for one, other in zip(live, ours, strict=True):
        tops = [(c.position, c.projected) for query in range(3) for c in one.top(query)]
        expected = [(c.position, c.projected) for query in range(3) for c in other.top(query)]
        np.testing.assert_allclose(tops, expected, rtol=1e-3)
    from_file = attnscope.inspect(TEXT, model=model, tokenizer=tmp_path, **given)
    assert from_file.tokens == live.tokens
    np.testing.assert_array_equal(from_file.weights, live.weights)


def test_a_model_that_was_loaded_from_a_folder_finds_its_tokenizer(tmp_path):
    made("bert").save_pretrained(tmp_path)
    write(tmp_path, content("wordpiece"))
    model = hf.AutoModel.from_pretrained(tmp_path)
    report = attnscope.inspect(TEXT, model=model)
    assert report.tokens == attnscope.inspect(TEXT, model=model, tokenizer=tokenizer()).tokens
    assert report.provenance.model == f"BertModel ({tmp_path})"


@pytest.mark.parametrize("kind", ["wordpiece", "byte-level", "roberta", "unigram", "byte-fallback"])
def test_tokens_are_those_of_the_tokenizer(kind):
    words = tokenizer(kind)
    for text in (TEXT, "The  river bank,\nwas eroded."):
        words.pad_token = words.convert_ids_to_tokens(0)
        # leaves its mark on the tokenizer
        words(text, padding="max_length", max_length=30, truncation=True)
        before = words.backend_tokenizer.to_str()
        report = attnscope.inspect(text, model=made("llama"), tokenizer=words)
        assert words.backend_tokenizer.to_str() == before
        assert [token.id for token in report.tokens] == words(text)["input_ids"]


class _Broken(nn.Module):
    def forward(self, *given: object, **more: object) -> None:
        raise RuntimeError("the layer is broken")


@pytest.mark.parametrize("breaks", ["tokenizer", "layer", "selection", "text"])
def test_the_model_is_as_it_was_after_an_error(breaks):
    model, given = made("llama").train(), {"tokenizer": tokenizer(), "layer": "all"}
    text = "the " * 100 if breaks == "text" else TEXT
    if breaks == "tokenizer":
        given["tokenizer"] = None
    if breaks == "layer":
        model.model.layers[1].mlp = _Broken().train()
    if breaks == "selection":
        given["layer"] = 9
    before = state(model)
    with pytest.raises(attnscope.AttnscopeError):
        attnscope.inspect(text, model=model, **given)
    assert state(model) == before


def test_texts_beside_each_other_are_rotated_each_by_its_own_length():
    """LongRoPE: transformers takes the factors of the longest text of a batch for all of its texts."""
    torch.manual_seed(3)
    rope = {
        "rope_type": "longrope",
        "rope_theta": 5000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [8.0] * 4,
    }
    config = hf.Phi3Config(
        **SIZES, num_key_value_heads=2, original_max_position_embeddings=16, rope_parameters=rope
    )
    model, given = (
        raise_weights(hf.Phi3ForCausalLM(config)),
        {"tokenizer": tokenizer(), "layer": "all", "head": "all"},
    )
    before = state(model)["forward"]
    texts = TEXT, f"{TEXT} was old and {TEXT}"
    together = attnscope.inspect(texts, model=model, **given).texts
    assert state(model)["forward"] == before
    assert len(together[0].tokens) <= 16 < len(together[1].tokens)
    for text, beside in zip(texts, together, strict=True):
        np.testing.assert_allclose(
            beside.weights, attnscope.inspect(text, model=model, **given).weights, atol=1e-5
        )


def assert_equal_up_to_rounding(logits, expected):
    """Another thread may sum in another order: errors grow with the largest terms, not with each logit."""
    limit = 64 * torch.finfo(expected.dtype).eps * float(expected.abs().max())
    torch.testing.assert_close(logits, expected, rtol=0, atol=limit)


def test_the_model_runs_in_another_thread_meanwhile():
    model, words = made("qwen2, sdpa").eval(), tokenizer()
    ids = words(TEXT, return_tensors="pt")
    with torch.inference_mode():
        expected = model(**ids).logits
    found: list[torch.Tensor] = []

    def forward() -> None:
        with torch.inference_mode():
            found.append(model(**ids).logits)

    def progress(*_: object) -> None:
        other = threading.Thread(target=forward)
        other.start()
        other.join()

    given = {"model": model, "tokenizer": words, "layer": 1, "head": 0}
    calls = (
        partial(attnscope.inspect, TEXT, **given, predict=True),
        partial(attnscope.explain, TEXT, **given, query=3),
    )
    for call in calls:
        assert call(progress=progress).to_json() == call().to_json()
    assert len(found) > 2
    for logits in found:
        assert_equal_up_to_rounding(logits, expected)


# rounding is only measured in the second
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_model_runs_in_another_thread_while_its_modules_are_watched(dtype):
    model, words = made("llama").to(dtype).eval(), tokenizer()
    ids, here, logits = (
        words(TEXT, return_tensors="pt"),
        threading.get_ident(),
        list[torch.Tensor](),
    )

    def forward() -> None:
        with torch.inference_mode():
            logits.append(model(input_ids=ids["input_ids"]).logits)

    def beside(*_: object) -> None:
        if threading.get_ident() == here:
            other = threading.Thread(target=forward)
            other.start()
            other.join()

    forward()
    alone = attnscope.check(TEXT, model=model, tokenizer=words).to_json()
    with listening([model.model.layers[1].register_forward_pre_hook(beside)]):
        assert attnscope.check(TEXT, model=model, tokenizer=words).to_json() == alone
    assert len(logits) > 5
    for made_beside in logits:
        assert_equal_up_to_rounding(made_beside, logits[0])


def test_an_open_model_is_borrowed_for_each_call_only():
    model = made("bert").train()
    before = state(model)
    with attnscope.open_model(model, tokenizer=tokenizer()) as opened:
        assert state(model) == before
        first = opened.inspect(TEXT, layer="all", mask="causal")
        assert state(model) == before
        compared = opened.compare(TEXT, head=1)
        checked = opened.check(TEXT)
        assert state(model) == before
    assert (
        first.to_json()
        == attnscope.inspect(
            TEXT, model=model, tokenizer=tokenizer(), layer="all", mask="causal"
        ).to_json()
    )
    assert compared.labels == ["causal", "bidirectional"]
    assert np.isneginf(compared.sides[0].masked[..., 0, 1:]).all()
    assert isinstance(checked.data, CheckReport) and checked.passed
    with torch.inference_mode():  # transformers' hooks for this went, and come again
        assert (
            len(
                model.eval()(
                    **tokenizer()(TEXT, return_tensors="pt"), output_hidden_states=True
                ).hidden_states
            )
            == 3
        )
    named = {check.name: check.verdict for check in checked.checks}
    assert named["equals eager transformers: weights"] == "pass"


def test_live_models_are_compared():
    first, second, words = made("bert"), made("bert"), tokenizer()
    with torch.no_grad():
        second.embeddings.word_embeddings.weight.mul_(0.5)
    compared = attnscope.compare(
        TEXT, model=[first, second], tokenizer=words, layer="all", head="all"
    )
    assert compared.labels == ["BertModel", "BertModel 2"]
    for model, side in zip((first, second), compared.sides, strict=True):
        alone = attnscope.inspect(TEXT, model=model, tokenizer=words, layer="all", head="all")
        np.testing.assert_array_equal(side.weights, alone.weights)
    assert np.abs(compared.sides[0].weights - compared.sides[1].weights).max() > 0.01
    same = attnscope.compare(TEXT, model=[first, first], tokenizer=words, tolerance=0)
    assert same.verdict is not None and same.verdict.passed


def test_tokenizers_of_one_live_model_are_compared():
    """They were given one name, so that the last one read both sides."""
    model = made("bert")
    both = [tokenizer("words"), tokenizer()]
    compared = attnscope.compare(TEXT, model=model, tokenizer=both, layer=0, head=0)
    tokens = [[token.text for token in side.data.texts[0].tokens] for side in compared.sides]
    alone = [attnscope.inspect(TEXT, model=model, tokenizer=words) for words in both]
    assert tokens == [[token.text for token in report.data.texts[0].tokens] for report in alone]
    assert tokens[0] != tokens[1]


def test_parts_of_an_encoder_decoder():
    sizes = {
        "vocab_size": 400,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 40,
        "num_layers": 2,
        "num_heads": 4,
    }
    torch.manual_seed(3)  # else the weights, and so the rounding, depend on the tests before
    model = raise_weights(
        hf.T5ForConditionalGeneration(hf.T5Config(**sizes, decoder_start_token_id=0))
    ).eval()
    words, before = tokenizer(), state(model)
    report = attnscope.inspect(
        TEXT, model=model, tokenizer=words, part="cross", context="the river", layer=1, head="all"
    )
    assert state(model) == before
    assert (report.provenance.part, len(report.keys)) == (
        "cross",
        len(words("the river")["input_ids"]),
    )
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        inputs = {"input_ids": words("the river", return_tensors="pt")["input_ids"]}
        inputs["decoder_input_ids"] = torch.tensor([[token.id for token in report.tokens]])
        theirs = model(**inputs, output_attentions=True).cross_attentions[1]
    np.testing.assert_allclose(report.weights, theirs.numpy(), atol=2e-5)


class _Added(nn.Module):
    """A projection that adds something to what its weight makes, as LoRA does."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.more = base, nn.Linear(base.in_features, base.out_features)
        self.weight = base.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.more(x)


def test_an_output_projection_with_something_added_is_not_mistaken_for_its_weight():
    model = made("llama").eval()
    for layer in model.model.layers:
        layer.self_attn.o_proj = _Added(layer.self_attn.o_proj)
    assert attnscope.inspect(TEXT, model=model, tokenizer=tokenizer()).weights.shape[0] == 1
    with pytest.raises(
        attnscope.AttnscopeError,
        match=r"by='projected': the model's output projection was not found",
    ):
        attnscope.inspect(TEXT, model=model, tokenizer=tokenizer(), by="projected")


@pytest.mark.parametrize(
    ("change", "given", "said"),
    [
        (lambda m: m.double(), {}, "model: the model runs in float64; convert it to float32, bfloat16, float16"),
        (lambda m: m.to("meta"), {}, "the device 'meta'"),
        (lambda m: m, {"dtype": "bfloat16"}, "dtype: 'bfloat16' contradicts the model, which is 'float32'; leave"),
        (lambda m: m, {"engine": "native"}, "engine: 'native' contradicts the model"),
        (lambda m: m, {"hash_weights": True}, "hash_weights: a model in memory has no files to hash; leave it out"),
        (lambda m: m, {"config": "causal"}, "config and model cannot be used together"),
        (lambda m: m, {"tokenizer": 5}, "tokenizer: int has no tokenizer.json; pass a fast tokenizer"),
        (lambda m: m, {"tokenizer": None}, "tokenizer: there is no tokenizer for LlamaForCausalLM; pass tokenizer="),
        (lambda m: m, {"tokenizer": "nowhere.json"}, "nowhere.json: "),
        (lambda m: nn.Linear(2, 2), {}, "model: Linear is not a model; pass a folder"),
        (nn.Sequential, {}, "model: Sequential is not a model of transformers; pass the model in it: model.0"),
        (lambda m: peft.get_peft_model(m, peft.LoraConfig(target_modules=["q_proj"])), {},
         "model: PeftModel is not a model of transformers; pass the model in it: model.base_model.model"),
        (lambda m: torch.ao.quantization.quantize_dynamic(m, {nn.Linear}), {}, "model: the model is quantised"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings(
    "ignore:(.is_gradient_checkpointing.|torch.ao.quantization|torch.quantize_per_tensor)"
)
def test_live_models_that_cannot_be_run_are_refused(change, given, said):
    with pytest.raises(attnscope.AttnscopeError) as caught:
        attnscope.inspect(TEXT, model=change(made("llama")), **{"tokenizer": tokenizer(), **given})
    assert said in str(caught.value)


def test_a_config_without_an_end_token():
    config = hf.MobileBertConfig(
        **SIZES, embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32
    )
    del config.eos_token_id
    model = hf.MobileBertModel(config)
    assert not hasattr(model.config, "eos_token_id")
    assert len(attnscope.inspect(TEXT, model=model, tokenizer=tokenizer(), layer=0).tokens) == 12


def test_a_model_in_a_smaller_type_runs_in_it():
    model = made("llama").to(torch.bfloat16)
    report = attnscope.inspect(
        TEXT, model=model, tokenizer=tokenizer(), dtype=torch.bfloat16, device=torch.device("cpu")
    )
    assert (report.provenance.dtype, report.provenance.device) == ("bfloat16", "cpu")
    assert report.weights.dtype == np.float32


def test_loading_a_folder_leaves_the_library_as_loud_as_it_was(tmp_path):
    made("bert").save_pretrained(tmp_path)
    write(tmp_path, content("wordpiece"))
    level, bars = hf.logging.get_verbosity(), hf.logging.is_progress_bar_enabled()
    try:
        hf.logging.set_verbosity(logging.INFO)
        hf.logging.enable_progress_bar()
        attnscope.inspect(TEXT, model=tmp_path, engine="transformers")
        assert hf.logging.get_verbosity() == logging.INFO
        assert hf.logging.is_progress_bar_enabled()
    finally:
        hf.logging.set_verbosity(level)
        if not bars:
            hf.logging.disable_progress_bar()
