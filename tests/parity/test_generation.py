"""Greedy continuations of both engines are those of transformers, token by token, with a cache of keys and values."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers as hf

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.base.model_config import ModelConfig, OutputHead
from attnscope.checkpoints.generation_rules import GenerationRules, parse_rules, read_rules
from attnscope.checkpoints.locating import open_checkpoint
from attnscope.engines.native import NativeEngine
from attnscope.engines.opening import open_source
from attnscope.engines.protocol import Engine, EngineSettings
from attnscope.engines.transformers.engine import TransformersEngine
from attnscope.engines.transformers.loading import load_model
from attnscope.findings.tokens import Token
from attnscope.model.batch import make_batch, pad_texts
from attnscope.model.layers import KeyValueCache
from attnscope.model.randomize import make_random
from attnscope.request.masks.terms import Own
from attnscope.request.run_config import TextInput
from attnscope.run.analysis.predictions import continue_text
from attnscope.run.plan import make_plan
from attnscope.run.session import Session, inspect
from tests.analysis.test_predictions import SAMPLE
from tests.helpers.architectures import write_tokenizer
from tests.helpers.reference_stages import uses_interface
from tests.helpers.requests import requested
from tests.helpers.tiny_models import _GQA, LONGROPE, Row, raise_weights
from tests.parity.test_logits import CPU, SETTINGS, WITH_HEAD, open_native

PROMPT = [3, 14, 15, 9, 26, 5, 35]
NEW = 12
PHI3 = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 40, "max_position_embeddings": 48, "original_max_position_embeddings": 12, "pad_token_id": 0,
}  # fmt: skip
CAUSAL = [
    row
    for row in WITH_HEAD
    if "Masked" not in row.model.__name__ and "PreTraining" not in row.model.__name__
]


def _tokens(ids: Sequence[int]) -> list[Token]:
    return [Token(number, "x", "x") for number in ids]


def _continued(engine: Engine, rules: GenerationRules) -> list[int]:
    spelling = (lambda i: ("x", "x")), (lambda i: Token(i, "x", "x", made=True))
    found = continue_text(engine.continuation().logits, _tokens(PROMPT), NEW, rules, spelling, CPU)
    assert [one.tokens[0].id for one in found.generated] == [
        token.id for token in found.tokens[len(PROMPT) :]
    ]
    assert [one.position + 1 for one in found.generated] == list(
        range(len(PROMPT), len(found.tokens))
    )
    return [token.id for token in found.tokens]


@pytest.mark.parametrize("row", CAUSAL, ids=lambda row: row.name)
def test_a_continuation_is_that_of_transformers(row: Row, tmp_path: Path) -> None:
    model = row.save(tmp_path)
    for ends in ((), (2,)):
        model.generation_config.eos_token_id = list(ends) or None
        with torch.inference_mode():
            expected = model.generate(torch.tensor([PROMPT]), do_sample=False, max_new_tokens=NEW)[
                0
            ].tolist()
        assert _continued(open_native(tmp_path), GenerationRules(ends)) == expected
    if uses_interface(row.model):
        loaded = load_model(open_checkpoint(tmp_path), torch.float32)
        assert _continued(TransformersEngine(loaded, SETTINGS), GenerationRules(ends)) == expected


RULES: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.7},
    "encouraged repetition": {"repetition_penalty": 0.3},
    "n-grams": {"no_repeat_ngram_size": 2, "repetition_penalty": 0.3},
    "single": {"no_repeat_ngram_size": 1},
    "suppressed": {
        "suppress_tokens": list(range(5, 40, 3)),
        "begin_suppress_tokens": list(range(4, 60, 2)),
    },
    "later end": {
        "eos_token_id": [*range(0, 60, 2)],
        "min_new_tokens": 4,
        "begin_suppress_tokens": [7],
    },
    "longer": {"eos_token_id": 2, "min_length": 12, "repetition_penalty": 1.2},
}


@pytest.mark.parametrize("name", RULES)
def test_a_continuation_under_a_generation_config_is_that_of_transformers(
    name: str, tmp_path: Path
) -> None:
    model = Row(f"llama {name}", hf.LlamaForCausalLM, {**_GQA, "eos_token_id": None}).save(tmp_path)

    def generate(**settings: Any) -> list[int]:
        with torch.inference_mode():
            made = model.generate(
                torch.tensor([PROMPT]), do_sample=False, max_new_tokens=NEW, **settings
            )
        ids: list[int] = made[0].tolist()
        return ids

    plain = generate()
    settings = RULES[name]
    # also what the model would say otherwise: single tokens, pairs, and pairs that go on
    if name == "suppressed":
        settings = {**settings, "bad_words_ids": [[plain[7]], plain[8:10], [PROMPT[-1], plain[9]]]}
    model.generation_config = hf.GenerationConfig(**settings)
    expected = generate()
    assert expected != plain
    model.generation_config.save_pretrained(tmp_path)
    assert _continued(open_native(tmp_path), read_rules({}, tmp_path)) == expected
    assert (
        _continued(open_native(tmp_path), parse_rules(model.generation_config.to_dict()))
        == expected
    )


def test_rules_that_are_not_applied_are_named() -> None:
    rules = parse_rules(
        {
            "num_beams": 4,
            "forced_eos_token_id": 2,
            "guidance_scale": 1.0,
            "repetition_penalty": "1.1",
        }
    )
    assert rules == GenerationRules(
        not_applied=("num_beams", "forced_eos_token_id", "repetition_penalty")
    )
    keys = "num_beams, forced_eos_token_id, repetition_penalty"
    config = "of the model's generation config, which generate() obeys"
    assert rules.notes == (f"generated tokens: without {keys} {config}",)
    assert (
        parse_rules(hf.GenerationConfig().to_dict())
        == parse_rules({"temperature": 0.6, "top_k": 50})
        == GenerationRules()
    )


def test_a_config_that_forbids_every_token_is_an_error() -> None:
    spelling = (lambda i: ("x", "x")), (lambda i: Token(i, "x", "x", made=True))
    forbidden = GenerationRules(suppress_tokens=(0, 1))
    with pytest.raises(
        AttnscopeError, match="the model's generation config forbids every next token"
    ):
        continue_text(lambda _: torch.ones(2), _tokens([1]), 1, forbidden, spelling, CPU)
    (made,) = continue_text(
        lambda _: torch.ones(3), _tokens([1]), 1, forbidden, spelling, CPU
    ).generated
    assert [(token.id, token.probability) for token in made.tokens] == [(2, 1.0)]


def test_a_run_says_which_rules_generated_its_tokens(tmp_path: Path) -> None:
    Row("llama", hf.LlamaForCausalLM, _GQA).save(tmp_path)
    write_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"repetition_penalty": 1.5, "num_beams": 4}')
    applied = "generated tokens and their probabilities: with repetition_penalty of the model's generation config"
    left_out = "generated tokens: without num_beams of the model's generation config, which generate() obeys"
    for engine in ("native", "transformers"):
        report = attnscope.inspect("the bank", model=tmp_path, engine=engine, generate=2)
        assert report.provenance.notes == [applied, left_out]
    assert attnscope.inspect("the bank", model=tmp_path).provenance.notes == []


@pytest.mark.parametrize("start", [11, 12])
def test_a_text_that_outgrows_its_rotation_is_computed_again(start: int, tmp_path: Path) -> None:
    """LongRoPE rotates every token otherwise beyond 12 tokens, also those that the cache holds."""
    model = raise_weights(Row("phi3", hf.Phi3ForCausalLM, {**PHI3, **LONGROPE}).save(tmp_path))
    model.save_pretrained(tmp_path)
    loaded = load_model(open_checkpoint(tmp_path), torch.float32)
    ids = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 3, 23, 8, 4, 6]
    for growing in (
        open_native(tmp_path).continuation(),
        TransformersEngine(loaded, SETTINGS).continuation(),
    ):
        for n in sorted({start, 12, 13, 14, 16}):
            with torch.inference_mode():
                expected = model(torch.tensor([ids[:n]])).logits[0, -1]
            found = growing.logits(pad_texts([_tokens(ids[:n])], CPU))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_rows_are_of_different_kinds() -> None:
    """Windows, soft-caps, sinks, learned and rotary positions."""
    names = {row.name for row in CAUSAL}
    assert {"gpt2", "gpt_neox", "mistral", "gemma2", "gpt_oss", "mixtral", "bert decoder"} <= names


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "alibi"},
        {"positions": "sinusoidal"},
        {"mask": "causal+prefix:3"},
        {"mask": "bidirectional"},  # what the cache holds changes with every new token
        {"mask": "prefix:9"},
        {"mask": "block:4"},
    ],
)
@pytest.mark.parametrize("end", [8, 9])
def test_what_the_cache_gives_is_what_the_whole_text_gives(
    changes: dict[str, str], end: int
) -> None:
    """Architectures that no family has."""
    config = ModelConfig(
        60, 24, 2, 4, 2, 6, 6, 40, mlp_bias=True, head=OutputHead(softcap=3.0), **changes
    )
    engine = NativeEngine(make_random(config, 7, 2, torch.float32, CPU), EngineSettings((Own(),)))
    growing, ids = engine.continuation(), [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]
    for n in (5, 6, end, 10):
        found = growing.logits(pad_texts([_tokens(ids[:n])], CPU))
        hidden = engine.forward(make_batch([_tokens(ids[:n])], None, CPU), {}, final=True)
        assert hidden is not None
        torch.testing.assert_close(found, engine.logits(hidden[0, -1:])[0], rtol=1e-5, atol=1e-5)


def test_a_run_shows_the_new_tokens_and_what_each_attended_to() -> None:
    text = "She sat by the bank of the"
    report = attnscope.inspect(text, mask="causal", generate=4, layer="all", head="all")
    assert [token.made for token in report.tokens] == [False] * 7 + [True] * 4
    assert [one.position for one in report.generated] == [6, 7, 8, 9]
    assert [one.tokens[0].piece for one in report.generated] == [
        token.piece for token in report.tokens[7:]
    ]
    model = hf.BertLMHeadModel.from_pretrained(
        SAMPLE, is_decoder=True, dtype=torch.float32, attn_implementation="eager"
    )
    ids = torch.tensor([[token.id for token in report.tokens]])
    with torch.inference_mode():
        made = model.eval()(ids, output_attentions=True)
    weights = torch.stack(made.attentions)[:, 0]
    torch.testing.assert_close(torch.from_numpy(report.weights), weights, rtol=0, atol=1e-5)
    assert made.logits[0, 6:10].argmax(-1).tolist() == ids[0, 7:].tolist()
    shown = report.text(width=100)
    assert "+bank" in shown
    assert "generated tokens" in shown
    with_word = attnscope.inspect(
        text, mask="causal", generate=4, query=[9], layer="all", head="all"
    )
    torch.testing.assert_close(
        torch.from_numpy(with_word.weights[:, :, 0]), weights[:, :, 9], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "riverbank does not predict the next token"),
        (
            {"mask": "causal", "what_if": "same-scores"},
            "what_if=.same-scores. and generate cannot be used together",
        ),
        (
            {"mask": "causal", "generate": 500},
            "7 tokens and 500 more, but the model takes at most 128",
        ),
        ({"mask": "causal", "generate": 500}, "use at most 121"),
        ({"config": "causal"}, "causal has no output head"),
    ],
)
def test_a_text_that_cannot_be_continued_is_refused(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(AttnscopeError, match=message):
        attnscope.inspect("She sat by the bank of the", **{"generate": 4, **options})


def test_a_model_that_cannot_generate_is_refused_before_memory_is_counted() -> None:
    for options, message in (
        ({"config": "causal"}, "has no output head"),
        ({}, "does not predict the next token"),
    ):
        with pytest.raises(AttnscopeError, match=message):
            attnscope.inspect("The bank by the river", generate=4, max_memory="1M", **options)


def test_a_text_that_leaves_no_room_is_not_told_to_generate_none() -> None:
    with pytest.raises(AttnscopeError, match="takes at most 128; use a shorter text"):
        attnscope.inspect("bank " * 200, mask="causal", truncate=True, generate=1)


def test_a_real_model_continues_as_transformers_does(smollm2: Path) -> None:
    """Every new token is the most probable one after those before it, which is what `generate(do_sample=False)` takes.

    The class of transformers has the weights that our reader gives: reading the file with it takes 30 seconds.
    """
    text = "The capital of France is"
    with attnscope.open_model(smollm2) as model:
        report = model.inspect(text, generate=10, stages=[], layer=0, head=0)
    ids = [token.id for token in report.tokens]
    loaded = load_model(open_checkpoint(smollm2), torch.float32)
    theirs = loaded.predicting
    theirs.set_attn_implementation("eager")
    with torch.inference_mode():
        logits = theirs(torch.tensor([ids])).logits[0].double()
    assert len(ids) == 15
    assert ids[5:] == logits[4:-1].argmax(-1).tolist()
    assert [one.position for one in report.generated] == list(range(4, 14))
    for one in (*report.generated, *report.predictions):
        share, best = logits[one.position].softmax(-1).topk(5)
        assert [token.id for token in one.tokens] == best.tolist()
        assert [token.probability for token in one.tokens] == pytest.approx(
            share.tolist(), abs=1e-5
        )
        assert [token.logit for token in one.tokens] == pytest.approx(
            logits[one.position, best].tolist(), abs=1e-4
        )


def test_the_cache_is_part_of_the_estimate_and_the_bar_counts_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What keys and values of every layer take, counted where they are kept, and once more of a layer that grows."""
    (row,) = (row for row in CAUSAL if row.name == "llama")
    row.save(tmp_path)
    write_tokenizer(tmp_path)
    caches, steps = list[KeyValueCache](), list[tuple[str, int, int]]()
    make = KeyValueCache.__init__
    monkeypatch.setattr(
        KeyValueCache, "__init__", lambda self: (make(self), caches.append(self))[0]
    )
    given = requested(
        (TextInput("the bank by the river"), TextInput("water")), str(tmp_path), predict=True
    )
    run = msgspec.structs.replace(given, generate=4)
    source = open_source(run, run.texts)
    report = inspect(run, Session(run.texts, lambda *step: steps.append(step)))
    (longest, _) = caches
    held = sum(tensor.nbytes for pair in longest._layers.values() for tensor in pair)
    layers, tokens = source.config.n_layers, len(report.texts[0].tokens)
    # the last token is not put into it, and </s>
    most = held * (layers + 1) // layers * (tokens + 1) // (tokens - 1)
    plain, grown = (make_plan(one, source).memory.estimate for one in (given, run))
    assert grown - plain == most
    assert [step for step in steps if step[0] == "generating"] == [
        ("generating", n, 8) for n in range(8)
    ]
