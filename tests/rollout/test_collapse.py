"""A product of layers in which every token stems from one and the same token says so, with its layer and share."""

import msgspec
import numpy as np
import pytest

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.findings.codec import from_json, to_json
from attnscope.studies.rollout.arithmetic import collapsed_on
from tests.helpers.effect_arithmetic import roll_out
from tests.page.reading import read_page

TOKENS = "The bank by the river".split()
LAYERS = 6


def sinking(share, source=0, layers=LAYERS):
    """Weights of two heads that put a share on one token, and the rest on the token itself."""
    size = len(TOKENS)
    one = (1 - share) * np.eye(size)
    one[:, source] += share
    return np.broadcast_to(one, (layers, 2, size, size)).astype(np.float32)


def rolled(weights, **options):
    given = attnscope.from_weights(weights, TOKENS)
    return given.inspect(measure="rollout", **options)


def first_collapsed(weights, residual=True):
    """The first layer whose product has a column of at least 0.9 in every row."""
    products = [roll_out(weights[: n + 1], residual=residual) for n in range(len(weights))]
    return next((n for n, product in enumerate(products) if (product >= 0.9).all(0).any()), None)


@pytest.mark.parametrize("source", [0, 3])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.99])
def test_the_layer_and_the_share_are_those_of_the_products(share, source):
    weights = sinking(share, source)
    (rollout,) = rolled(weights).data.texts[0].rollouts
    layer = first_collapsed(weights)
    if layer is None:
        assert share == 0.5
        assert rollout.collapse is None
        return
    assert (rollout.collapse.source, rollout.collapse.layer) == (source, layer)
    assert rollout.collapse.share == pytest.approx(roll_out(weights, residual=True)[-1, source])


def test_random_products_stay_collapsed_on_one_token():
    draw = np.random.default_rng(5)
    found = set()
    for _ in range(40):
        weights = draw.dirichlet(np.full(len(TOKENS), 0.3), (LAYERS, 1, len(TOKENS)))
        weights[..., 1] += draw.uniform(0, 30)
        weights /= weights.sum(-1, keepdims=True)
        places = [collapsed_on(roll_out(weights[: n + 1], residual=True)) for n in range(LAYERS)]
        first = places.index(1) if 1 in places else LAYERS
        assert places == [None] * first + [1] * (LAYERS - first)
        assert first_collapsed(weights) == (first if first < LAYERS else None)
        found.add(first)
    assert len(found) > 1


def test_a_row_or_a_layer_alone_is_no_collapse():
    assert collapsed_on(np.eye(2)[[0, 0]]) is None
    assert collapsed_on(np.eye(4)[[0, 0, 0, 1]]) is None
    assert collapsed_on(np.zeros((4, 4))) is None
    given = attnscope.from_weights(sinking(0.99), TOKENS)
    (rollout,) = given.inspect(measure="rollout", layer=0).data.texts[0].rollouts
    assert rollout.collapse is None


def test_terminal_and_page_say_it(tmp_path):
    weights = sinking(0.8, layers=8)
    layer = first_collapsed(weights)
    share = roll_out(weights, residual=True)[-1, 0]
    shown = rolled(weights)
    text = " ".join(str(shown).split())
    said = f"collapsed from layer {layer} on, at least 0.9 of every token stems from 0 The, and "
    said += f"{share:.2f} of the last one after"
    assert (
        f"{said} layer 7: the product hardly tells tokens apart; layer 0-{layer - 1} stops before that"
        in text
    )
    path = tmp_path / "page.html"
    shown.save(path)
    (walk,) = read_page(path).of_kind("walk")
    answer = walk["scenes"][0]["answer"].replace("\u2068", "").replace("\u2069", "")
    said = f"from layer {layer} on, at least 0.9 of every token comes from “The”, and {share:.2f} of the last"
    assert (
        f"{said} one after layer 7. The steps up to L0–{layer - 1} still tell tokens apart."
        in answer
    )


def test_a_saved_collapse_is_read_and_checked():
    report = rolled(sinking(0.8)).data
    assert (
        from_json(to_json(report)).texts[0].rollouts[0].collapse
        == report.texts[0].rollouts[0].collapse
    )
    for change, said in (
        ({"layer": 9}, "collapse.layer is 9, not one of the layers"),
        ({"source": 9}, "collapse.source has a position of 5 or more"),
    ):
        (text,) = report.texts
        (rollout,) = text.rollouts
        wrong = msgspec.structs.replace(
            rollout, collapse=msgspec.structs.replace(rollout.collapse, **change)
        )
        other = msgspec.structs.replace(
            report, texts=[msgspec.structs.replace(text, rollouts=[wrong])]
        )
        with pytest.raises(AttnscopeError, match=said):
            from_json(to_json(other))
