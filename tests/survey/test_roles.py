"""Every role of every head equals plain NumPy over the weights of eager transformers."""

import re

import numpy as np
import pytest

import attnscope
from attnscope.checkpoints.source import tokenize
from attnscope.cli import main
from attnscope.findings.head_roles import HEAD_ROLES, OF_PARTS
from attnscope.request.run_config import TextInput
from attnscope.run.session import Session, inspect_every_head
from attnscope.studies.heads.probes import draw_probes, special_frame
from attnscope.studies.heads.run import SurveyOptions, survey_heads
from attnscope.studies.heads.texts import TEXTS
from attnscope.studies.run.every_head import RoleRecorders
from tests.helpers import architectures
from tests.helpers import head_roles as reference
from tests.helpers.requests import requested

WORDS = (
    "the bank by the river was old and we sat on it all day while the water ran",
    "we sat on the old bank while water ran by it",
    "the river ran all day and it was old",
)


def found_and_expected(folder, texts=WORDS, engine="native", draws=3, blocks=None):
    """What attnscope finds, and the reference, role by role: (value, error) each."""
    run = requested(tuple(TextInput(text) for text in texts), str(folder), engine=engine)
    session = Session(run.texts)
    survey = survey_heads(run, SurveyOptions(draws=draws), session=session)
    source = session.source(run)
    tokens, _ = tokenize(source, texts[0], None, "TEXT", truncate=False)
    frame = special_frame(source, tokens)
    random, eager = draw_probes(source, frame, draws, 0), reference.Eager(folder)

    def seen(probe):
        special = [
            *[True] * len(frame[0]),
            *[False] * (len(probe.tokens) - sum(map(len, frame))),
            *[True] * len(frame[1]),
        ]
        return eager.ids([token.id for token in probe.tokens], special)

    drawn = [seen(probe) for probe in random.probes]
    expected = reference.roles(
        [eager.text(text) for text in texts], drawn[:draws], drawn[draws:-draws], drawn[-draws:]
    )
    return survey, expected


def assert_same(survey, expected):
    for role in survey.roles:
        if role.name != "copying":
            for ours, theirs in zip((role.values, role.errors), expected[role.name], strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4, err_msg=role.name)


# others: test_planted_bugs.py
@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2", "phi3"])
def test_roles_of_an_architecture(kind, tmp_path):
    folder = architectures.save(tmp_path, architectures.make(kind, architectures.ONE_PART[kind]))
    assert_same(*found_and_expected(folder))


def test_roles_of_the_transformers_engine(tmp_path):
    folder = architectures.save(tmp_path, architectures.make("opt", architectures.ONE_PART["opt"]))
    survey, expected = found_and_expected(folder, engine="transformers")
    assert_same(survey, expected)


def test_all_roles_of_minilm(minilm):
    survey, expected = found_and_expected(minilm, TEXTS[:2], draws=2)
    assert_same(survey, expected)
    assert {role.name for role in survey.roles} == {
        role.name for role in HEAD_ROLES if role.measured not in OF_PARTS
    }
    weights = dict(reference.Eager(minilm).model.named_parameters())
    values = survey.roles[-1].values
    for layer, head in ((0, 3), (5, 7)):
        rows = slice(32 * head, 32 * head + 32)
        value = weights[f"encoder.layer.{layer}.attention.self.value.weight"][rows].detach().numpy()
        output = (
            weights[f"encoder.layer.{layer}.attention.output.dense.weight"][:, rows]
            .detach()
            .numpy()
        )
        assert values[layer, head] == pytest.approx(reference.copying(value, output), abs=1e-4)


def test_roles_that_one_pass_measured_are_the_same_when_asked_for_again():
    measured = RoleRecorders()
    run = requested((TextInput(WORDS[0]),), "riverbank")
    inspect_every_head(run, Session(run.texts), extra_recorders=measured.recorders)
    (first,), (second,) = measured.of_texts(1), measured.of_texts(1)
    assert first.words == second.words
    for mine, other in zip(first.roles, second.roles, strict=True):
        np.testing.assert_array_equal(mine.values, other.values)


def test_a_listed_head_has_the_letter_of_its_main_role_behind_it(capsys):
    """So that no row names a head for a role that the grid gives another letter."""
    found = attnscope.heads().data
    letters = {role.name: role.letter for role in found.roles}
    assert main(["heads", "--top", "5"]) == 0
    screen = capsys.readouterr().out
    rows = {
        line[0]: line
        for line in screen.splitlines()
        if re.match(r"[A-Z0-9] [a-z].* L\d+H\d+ ", line)
    }
    listed = 0
    for role in found.roles:
        for layer, head, letter in re.findall(
            r"L(\d+)H(\d+) ([A-Z0-9] )?", rows.get(role.letter, "")
        ):
            main_role = found.main[int(layer)][int(head)]
            expected = "" if main_role in (None, role.name) else letters[main_role]
            assert letter.strip() == expected, (role.name, layer, head)
            listed += 1
    assert listed > 20
