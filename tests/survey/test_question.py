"""One number for every head is what eager transformers' weights say."""

import json

import numpy as np
import pytest
import torch

import attnscope
from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.cli import main
from attnscope.findings.row_statistics import STATISTICS
from attnscope.request.run_config import TextInput
from attnscope.run.session import inspect
from attnscope.studies.heads.question import ask_heads
from attnscope.studies.heads.run import SurveyOptions, survey_heads
from attnscope.studies.heads.texts import TEXTS
from tests.helpers import architectures
from tests.helpers import head_roles as reference
from tests.helpers.requests import changed, requested
from tests.helpers.row_statistics import row_statistics

TEXT = "The animal did not cross the street because it was too tired."
OTHER = "The animal saw it"


def asked(folder, measure, *texts, **options):
    run = requested(tuple(TextInput(text) for text in texts or (TEXT,)), str(folder), **options)
    return ask_heads(run, measure)


@pytest.fixture(scope="module")
def eager(minilm):
    return reference.Eager(minilm)


def test_weight_from_a_word_to_a_word(minilm, eager):
    found = asked(minilm, "weight", query="it", key="animal")
    seen = eager.text(TEXT)
    words = [eager.tokenizer.id_to_token(number) for number in seen.ids]
    expected = seen.weights[:, :, words.index("it"), words.index("animal")]
    np.testing.assert_allclose(found.values, expected, atol=1e-5)
    assert (found.texts[0].queries, found.texts[0].keys) == (
        [words.index("it")],
        [words.index("animal")],
    )
    assert found.meaning == "α from query to key."


def test_weight_of_several_rows_on_several_keys_in_several_texts(minilm, eager):
    found = asked(minilm, "weight", TEXT, OTHER, key="animal,it")
    total, count = 0.0, 0
    for text in (TEXT, OTHER):
        seen = eager.text(text)
        words = [eager.tokenizer.id_to_token(number) for number in seen.ids]
        keys = [n for n, word in enumerate(words) if word in ("animal", "it")]
        for row in range(1, len(words) - 1):  # [CLS] and [SEP] are no words
            total, count = total + seen.weights[:, :, row][..., keys].sum(-1), count + 1
    np.testing.assert_allclose(found.values, total / count, atol=1e-5)
    assert found.meaning.endswith("key, summed over keys, averaged over queries.")


@pytest.mark.parametrize("measure", ["value", "projected"])
def test_contributions_are_weights_times_norms(minilm, eager, measure):
    found = asked(minilm, measure, query="it", key="animal")
    seen, parameters = eager.text(TEXT), dict(eager.model.named_parameters())
    words = [eager.tokenizer.id_to_token(number) for number in seen.ids]
    row, key = words.index("it"), words.index("animal")
    with torch.inference_mode():
        states = eager.model(
            input_ids=torch.tensor([seen.ids]), output_hidden_states=True
        ).hidden_states
    for layer in (0, 5):
        base = f"encoder.layer.{layer}.attention"
        x = states[layer][0, key].double().numpy()
        w, b = (
            parameters[f"{base}.self.value.{n}"].detach().double().numpy()
            for n in ("weight", "bias")
        )
        out = parameters[f"{base}.output.dense.weight"].detach().double().numpy()
        value = (w @ x + b).reshape(12, 32)
        for head in range(12):
            vector = (
                value[head]
                if measure == "value"
                else out[:, head * 32 : head * 32 + 32] @ value[head]
            )
            expected = seen.weights[layer, head, row, key] * np.linalg.norm(vector)
            assert found.values[layer, head] == pytest.approx(expected, abs=1e-4)


# weights hold no score
@pytest.mark.parametrize("measure", [name for name in STATISTICS if name != "max_score"])
def test_statistics_of_the_average_word(minilm, eager, measure):
    found = asked(minilm, measure)
    seen = eager.text(TEXT)
    rows = [row for row in range(len(seen.ids)) if not seen.special[row]]
    expected = row_statistics(seen.weights[:, :, rows], seen.special, seen.marks, queries=rows)[
        measure
    ]
    np.testing.assert_allclose(found.values, expected.mean(-1), atol=1e-4)


def test_the_largest_score_is_that_of_all_rows_and_texts():
    found = asked("riverbank", "max_score", TEXT, OTHER)
    report = inspect(
        requested((TextInput(TEXT), TextInput(OTHER)), "riverbank", layer="all", head="all")
    )
    masked = [np.stack([head.stages["masked"] for head in text.heads]) for text in report.texts]
    expected = np.max([scores.max((1, 2)) for scores in masked], 0).reshape(4, 4)
    np.testing.assert_array_equal(found.values, expected)
    assert found.meaning.endswith("; the largest of the rows.")


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_weight_on_keys_of_heads_with_sinks(tmp_path, engine):
    model = architectures.make("gpt_oss", architectures.ONE_PART["gpt_oss"])
    folder = architectures.save(tmp_path, model)
    found = asked(folder, "weight", "the bank by the river", key="0,2", query="3", engine=engine)
    with torch.inference_mode():
        ids = torch.tensor([[token.id for token in found.texts[0].tokens]])
        weights = model(input_ids=ids, output_attentions=True).attentions
    expected = np.stack([layer[0, :, 3, [0, 2]].sum(-1).numpy() for layer in weights])
    np.testing.assert_allclose(found.values, expected, atol=1e-5)


def test_every_statistic_is_a_measure():
    assert all(np.isfinite(asked("riverbank", name, OTHER).values).all() for name in STATISTICS)


@pytest.mark.parametrize(
    ("measure", "options", "said"),
    [
        ("weight", {}, "measure='weight': applies only to key; add key"),
        (
            "entropy",
            {"key": "it"},
            "key and measure='entropy' cannot be used together: a statistic",
        ),
    ],
)
def test_a_measure_and_its_keys_belong_together(minilm, measure, options, said):
    with pytest.raises(UsageError, match=said):
        attnscope.heads(minilm, TEXT, measure=measure, **options)


def test_rows_that_may_see_nothing_do_not_count(tmp_path):
    mask = tmp_path / "mask.json"
    allowed = np.ones((5, 5), dtype=bool)
    allowed[2] = False
    mask.write_text(json.dumps(allowed.tolist()))
    found = asked("riverbank", "weight", "The bank by the river", key="0:", mask=str(mask))
    np.testing.assert_allclose(found.values, 1.0, atol=1e-5)


STACK = 'd_model = 16\nn_heads = 2\nn_layers = 2\nmask = "causal"\npositions = "rope"\nmax_positions = 4096\n'


def test_offsets_of_a_long_text_beyond_those_that_are_kept_apart(tmp_path):
    (tmp_path / "long.toml").write_text(STACK)
    run = requested((TextInput(" ".join(TEXTS + TEXTS[:3])),), config=str(tmp_path / "long.toml"))
    survey = survey_heads(
        run, SurveyOptions(("previous", "first", "uniform", "positional", "content"), draws=2)
    )
    size = survey.probes.tokens
    assert size > 2.5 * reference.FURTHEST
    (text,) = inspect(changed(run, layer="all", head="all", stages=("weights",), top=0)).texts
    weights = text.heads.stages["weights"].astype(np.float64).reshape(2, 2, size, size)
    causal = np.tril(np.ones((2, size, size), dtype=bool))
    none = np.zeros(size, dtype=bool)
    ids = [token.id for token in text.tokens]
    seen = reference.Seen(ids, weights, causal, none, none)
    assert len(survey.roles) == 5
    for role in survey.roles:
        expected = reference.of_texts()[role.name]([seen])
        np.testing.assert_allclose(role.values, expected, atol=1e-4, err_msg=role.name)


def test_many_texts_are_several_passes():
    survey = survey_heads(
        requested(tuple(TextInput(t) for t in TEXTS * 6), "riverbank"), SurveyOptions(draws=2)
    )
    assert survey.probes.texts == 48
    once = survey_heads(
        requested(tuple(TextInput(t) for t in TEXTS), "riverbank"), SurveyOptions(draws=2)
    )
    for many, few in zip(survey.roles, once.roles, strict=True):
        # what offsets predict is known better from more texts
        if few.measured == "texts" and few.name != "content":
            np.testing.assert_allclose(many.values, few.values, atol=1e-5, err_msg=few.name)


def test_too_little_memory_is_refused_before_anything_runs(minilm):
    run = requested((TextInput(TEXT),), str(minilm), max_memory=300 << 20)
    with pytest.raises(AttnscopeError, match=r"needs about .* kept .*max_memory is 300\.0 MiB"):
        survey_heads(run, SurveyOptions())


def test_a_model_that_attends_to_another_text_has_no_roles(capsys):
    assert main(["heads", "--config", "life-is-short-cross", "--quiet"]) == 2
    assert "roles are defined only for self-attention" in capsys.readouterr().err


def test_texts_that_the_model_does_not_know(capsys):
    assert main(["heads", "--config", "life-is-short", "--quiet"]) == 1
    assert "the built-in texts do not fit this model" in capsys.readouterr().err
    assert (
        main(["heads", "Life is short, eat dessert first", "--config", "life-is-short", "--quiet"])
        == 0
    )
    shown = capsys.readouterr().out
    assert "RANDOM WEIGHTS" in shown


def test_two_keys_are_contrasted_over_all_heads(minilm, tmp_path, capsys):
    """Each number is that of the whole matrices of `run`, and eager transformers', minus the other."""
    path, typed = (
        tmp_path / "heads.csv",
        ["--query", "it,tired", "--key", "animal,The", "--against", "street"],
    )
    assert main(["heads", TEXT, "--model", str(minilm), *typed, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["heads", TEXT, "--model", str(minilm), *typed, "-o", str(path), "--quiet"]) == 0
    whole = inspect(
        requested((TextInput(TEXT),), str(minilm), layer="all", head="all", stages=("weights",))
    ).texts[0]
    weights = (
        np.stack([head.stages["weights"] for head in whole.heads])
        .astype(np.float64)
        .reshape(6, 12, *[len(whole.tokens)] * 2)
    )
    places = {token.text: n for n, token in enumerate(whole.tokens)}
    rows, (text,) = [places["it"], places["tired"]], found["texts"]
    assert (text["queries"], text["keys"]) == (rows, [1, places["animal"]])
    assert text["against"] == [places["street"]]
    keys, against = (
        weights[:, :, rows][..., text[name]].sum(-1).mean(-1) for name in ("keys", "against")
    )
    np.testing.assert_allclose(found["values"], keys - against, atol=1e-6)
    np.testing.assert_allclose(found["contrast"]["keys"], keys, atol=1e-6)
    np.testing.assert_allclose(found["contrast"]["against"], against, atol=1e-6)
    lines = [line.split(",") for line in path.read_text().splitlines()]
    assert lines[0] == ["layer", "head", "weight", "key", "against"]
    np.testing.assert_allclose(
        [float(line[2]) for line in lines[1:]], (keys - against).ravel(), atol=1e-6
    )
    assert main(["heads", TEXT, "--model", str(minilm), *typed]) == 0
    shown = capsys.readouterr().out
    layer, head = np.unravel_index(np.abs(keys - against).argmax(), keys.shape)
    first = next(
        line.split() for line in shown.splitlines() if line.split()[:1] == [f"L{layer}H{head}"]
    )
    expected = [
        f"{value[layer, head]:{form}}"
        for value, form in ((keys - against, "+.2f"), (keys, ".2f"), (against, ".2f"))
    ]
    assert first[1:] == [number.replace("-", "−") for number in expected]


def test_a_contrast_needs_a_key(capsys):
    assert main(["heads", TEXT, "--against", "street", "--measure", "entropy"]) == 2
    assert "--against: applies only to --key; add --key" in capsys.readouterr().err


@pytest.mark.parametrize(
    "typed", [["--key", "2"], ["--key", "2", "--against", "3"], ["--measure", "entropy"]]
)
def test_no_head_has_a_number_where_no_key_may_be_read(typed, tmp_path, capsys):
    command = ["heads", "The bank by the river", "--hide", "0:5", *typed]
    assert main(command) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "no head has a number: none of these rows may read a key" in shown
    for name in ("a.svg", "a.html", "a.csv"):
        assert main([*command, "-o", str(tmp_path / name)]) == 0


def test_several_rows_of_a_word_are_named_as_averages(capsys):
    text = "the river by the bank"
    assert main(["heads", text, "--query", "the", "--key", "by"]) == 0
    both = capsys.readouterr().out
    assert "query    0 the · 3 the; numbers are averages over these rows" in both
    assert '"the" reads "by" most in ' in both and "--query 3 (that row alone)" in both
    assert main(["heads", text, "--query", "3", "--key", "by"]) == 0
    assert "averages over" not in capsys.readouterr().out
