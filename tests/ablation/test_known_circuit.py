"""Effects in a model that was built by hand: what each cut destroys is known."""

from math import log2

import numpy as np
import pytest

from attnscope.request.run_config import TextInput
from attnscope.studies.ablate.run import ablate, survey_effects
from tests.helpers.requests import cutting, requested
from tests.survey.test_known_heads import LETTERS, induction_circuit

TEXT = "c a b d a"  # the second a attends to b, which followed the first one


@pytest.fixture(scope="module")
def circuit(tmp_path_factory):
    """The induction circuit with an output head: logits are the first part of the stream, one for each word."""
    path = induction_circuit(tmp_path_factory.mktemp("circuit"))
    path.write_text(path.read_text() + "\n[head]\nnorm = false\n")
    return str(path)


def distribution(**logits: float) -> np.ndarray:
    values = np.exp([logits.get(letter, 0.0) for letter in LETTERS])
    return values / values.sum()


def bits(before: np.ndarray, after: np.ndarray) -> float:
    return float((before * np.log2(before / after)).sum())


# The last token is an a; induction adds the b. Without L1H0 nothing is added; without L0H0 all tokens look alike to it.
UNCUT = distribution(a=1, b=1)
NO_COPY = distribution(a=1)
BLURRED = distribution(a=1 + 2 / 5, b=1 / 5, c=1 / 5, d=1 / 5)


def test_cutting_a_head_of_the_circuit_destroys_the_copy_and_others_do_nothing(circuit):
    found = survey_effects(requested((TextInput(TEXT),), config=circuit), cutting(each="head"))
    (effects,) = found.effects
    assert (found.positions, effects.ranked_by, effects.how) == ([4], "kl", "zero")
    expected = [[bits(UNCUT, BLURRED), 0.0], [bits(UNCUT, NO_COPY), 0.0]]
    np.testing.assert_allclose(found.grid(effects.effect), expected, atol=1e-4)
    assert effects.kl[[1, 3]].max() < 1e-6
    np.testing.assert_allclose(effects.hidden[[1, 3]], 0.0, atol=1e-6)
    # Weights off the first token of words 1 to 4: the head before looks at it from word 1, the uniform one from each.
    assert found.weights == pytest.approx(
        [3 / 4, 0, found.weights[2], (1 / 2 + 2 / 3 + 3 / 4 + 4 / 5) / 4], abs=1e-4
    )
    assert sorted(found.order()[:2]) == [0, 2]


def test_mean_of_a_head_is_what_it_gives_on_average(circuit):
    found = ablate(
        requested((TextInput(TEXT),), config=circuit), cutting(("L1H0",), replacement="mean")
    )
    # What L1H0 copies for c, a, b, d, a: nothing precedes the first three words, so they see all keys before alike.
    copied = np.array([[0, 0, 1, 0], [1, 0, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]) / np.array(
        [[1], [2], [3], [4]]
    )
    mean = (copied.sum(0) + np.array([0, 1, 0, 0])) / 5  # of a, b, c, d; the last token copies b
    after = distribution(a=1 + mean[0], b=mean[1], c=mean[2], d=mean[3])
    (effect,) = found.effects
    assert effect.how == "mean"
    assert effect.predictions[0].kl == pytest.approx(bits(UNCUT, after), abs=1e-4)


@pytest.mark.parametrize("arrow", ["→", "->"])
def test_an_edge_is_cut_both_ways(circuit, arrow):
    run = requested((TextInput(TEXT),), config=circuit)
    found = ablate(run, cutting((f"L1H0: -1{arrow}b",)))
    (part,) = found.cuts
    assert (part.queries, part.keys, part.heads) == ([4], [2], [(1, 0)])
    assert part.weight == pytest.approx(1.0, abs=1e-4)
    renormalised, unnormalised = found.effects
    assert (renormalised.how, unnormalised.how) == ("renormalised", "unnormalised")
    spread = distribution(a=1 + 2 / 4, c=1 / 4, d=1 / 4)  # the other four keys get all the weight
    for effect, after in ((renormalised, spread), (unnormalised, NO_COPY)):
        (change,) = effect.predictions
        assert change.kl == pytest.approx(bits(UNCUT, after), abs=1e-4)
        for token in change.tokens:
            before, now = UNCUT[token.id], after[token.id]
            assert (token.before, token.after) == (
                pytest.approx(before, abs=1e-4),
                pytest.approx(now, abs=1e-4),
            )
            assert token.change == pytest.approx(log2(now / before), abs=1e-3)
            assert token.text == LETTERS[token.id]
        assert effect.change[:4].max() == 0.0  # no other token changes
        assert effect.cosine[:4] == pytest.approx(1.0)
    # The stream of the last token, one-hot parts: word a and copied b, its place, and the word before it.
    assert found.norms[4] == pytest.approx(2.0, abs=1e-3)
    assert unnormalised.change[4] == pytest.approx(1.0, abs=1e-3)
    assert unnormalised.cosine[4] == pytest.approx(3 / (2 * 3**0.5), abs=1e-3)


def test_every_edge_of_the_induction_head(circuit):
    run = requested((TextInput(TEXT),), config=circuit, layer="1", head="0", query="-1")
    found = survey_effects(run, cutting(each="edge"))
    assert (found.queries, found.keys) == ([4] * 5, [0, 1, 2, 3, 4])
    assert found.order()[0] == 2
    for effects, after in zip(
        found.effects, (distribution(a=1.5, c=0.25, d=0.25), NO_COPY), strict=True
    ):
        assert effects.kl == pytest.approx([0, 0, bits(UNCUT, after), 0, 0], abs=1e-4)


def test_every_layer(circuit):
    found = survey_effects(requested((TextInput(TEXT),), config=circuit), cutting(each="layer"))
    expected = [[bits(UNCUT, BLURRED)], [bits(UNCUT, NO_COPY)]]
    np.testing.assert_allclose(found.grid(found.effects[0].effect), expected, atol=1e-4)
