"""Why a cell has its weight: recomputed for every family from run's matrices and from vectors before the rotation."""

import re

import numpy as np
import pytest

from attnscope.findings.heads import STAGES
from attnscope.request.run_config import TextInput
from attnscope.run.session import inspect
from attnscope.studies.explain.reasons import largest_parts, reason_spans
from attnscope.studies.explain.run import explain
from attnscope.studies.explain.screen import present_explanation
from attnscope.views.parts import Text, joined
from attnscope.views.settings import DisplaySettings
from tests.explanation.test_families import QUERY, TEXT, folder  # noqa: F401
from tests.helpers.requests import requested

SETTINGS = DisplaySettings(precision=4)


def why(e, cell):
    spans = reason_spans(e, cell, cell.reason, SETTINGS)
    return "".join(span.text for span in spans).replace("\N{NO-BREAK SPACE}", " ")


def read(pattern, text):
    return [float(number.replace("−", "-")) for number in re.findall(pattern, text)]


def unrotated(e, cell):
    """q·k of a cell at a distance of 0: of the vectors before the rotation, times what it multiplies both by."""
    if e.query_steps[-1].position is None:
        return float(e.query_steps[-1].values.astype(float) @ cell.key_steps[-1].values)
    dims = sorted(dim for part in cell.parts if part.wavelength is not None for dim in part.dims)
    factors = np.ones(e.head_width)
    lengths = [np.linalg.norm(step.values[dims].astype(float)) for step in e.query_steps[-2:]]
    factors[dims] = (lengths[1] / lengths[0]) ** 2
    q, k = (steps[-2].values.astype(float) for steps in (e.query_steps, cell.key_steps))
    return float((q * k * factors).sum())


@pytest.mark.parametrize("layer", ["0", "1"])
def test_a_lead_is_the_sum_of_what_makes_it_and_the_ratio_of_weights(folder, layer):  # noqa: F811
    asked = {"texts": (TextInput(TEXT),), "model": folder, "layer": layer, "head": "1"}
    e = explain(requested(query=str(QUERY), key="0:", **asked))
    (head,) = inspect(requested(query=str(QUERY), stages=STAGES, **asked)).texts[0].heads
    scores, scaled, masked, weights = (
        head.stages[stage][0].astype(float) for stage in ("scores", "scaled", "masked", "weights")
    )
    allowed = np.flatnonzero(np.isfinite(masked))
    cells = {cell.key: cell for cell in e.cells}
    assert set(cells) == set(range(len(scores)))
    times = scores * head.scale
    capped = times if head.softcap is None else head.softcap * np.tanh(times / head.softcap)
    content = {key: head.scale * unrotated(e, cell) for key, cell in cells.items()}
    for key, cell in cells.items():
        others = sorted(set(allowed.tolist()) - {key}, key=lambda other: (-scaled[other], other))
        reason, rival = cell.reason, cell.reason.rival
        assert (reason.allowed, rival.key) == (len(allowed), others[0])
        assert reason.rank == 1 + sum(scaled[other] > scaled[key] for other in others)
        other = others[0]
        assert rival.lead == pytest.approx(scaled[key] - scaled[other], abs=1e-6)
        if cell.allowed:
            ratio = weights[key] / weights[other]
            assert np.exp(rival.lead) == pytest.approx(ratio, rel=1e-4)
        assert (rival.score, rival.weight) == (scores[other], weights[other])
        assert rival.key_norm == pytest.approx(np.linalg.norm(e.key_vectors[other]), rel=1e-5)
        size = 1e-4 * max(1, np.abs(times).max(), np.abs(scaled).max())
        made = {
            "content": content[key] - content[other],
            "rotation": times[key] - times[other] - (content[key] - content[other]),
            "cap": (capped - times)[key] - (capped - times)[other],
            "bias": (scaled - capped)[key] - (scaled - capped)[other],
        }
        for name, value in made.items():
            assert (getattr(rival, name) or 0.0) == pytest.approx(value, abs=size), name
        assert (rival.rotation is None) == (e.query_steps[-1].position is None)
        assert (rival.cap is None, rival.bias is None) == (head.softcap is None, head.bias is None)
        _assert_said(why(e, cell), cell, made, rival.lead, size)


def _assert_said(said, cell, made, lead, size):
    """The sentence is true of these numbers."""
    if not cell.allowed:
        assert said.startswith("the mask forbids it") and "without" not in said
        return
    assert ("is the largest of" in said) == (cell.reason.rank == 1)
    if not lead:
        assert "which has the same weight" in said and "without" not in said
        return
    known = {
        name: value
        for name, value in made.items()
        if name == "content" or getattr(cell.reason.rival, name) is not None
    }
    words = {"q·k": "content", "rotation": "rotation", "cap": "cap", "bias": "bias"}
    if len(known) == 1:
        assert "; q·k alone decides" in said and "without" not in said
        return
    found = re.search(r"; (?:without (.*?), .* would reach or pass |none decides alone)", said)
    assert found, said
    named = {name for word, name in words.items() if word in (found[1] or "")}
    if min(abs(lead - value) for value in known.values()) < 2 * size:
        return  # too near to tell
    needed = {name for name, value in known.items() if np.sign(lead - value) != np.sign(lead)}
    assert named == needed
    assert needed or "none decides alone" in said


@pytest.fixture
def stack(tmp_path):
    def written(**lines):
        path = tmp_path / "stack.toml"
        told = {"d_model": 16, "n_heads": 2, "mask": "causal", "seed": 4, **lines}
        path.write_text("".join(f"{name} = {value!r}\n" for name, value in told.items()))
        return str(path)

    return written


@pytest.mark.parametrize(
    ("positions", "said"),
    [
        ("alibi", "without the ALiBi bias, 1 river would reach or pass 2 river"),
        ("rope", "without the rotation by distance, "),
        ("none", "as is that of 0 river, which has the same weight"),
    ],
)
def test_of_equal_tokens_only_their_positions_can_decide(stack, positions, said):
    config = stack(positions=positions)
    asked = {"config": config, "layer": "0", "head": "0", "query": "2", "key": "2"}
    e = explain(requested((TextInput("river river river river"),), **asked))
    assert said in why(e, e.cells[0])
    assert positions == "none" or e.cells[0].reason.rival.content == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("scale", "query", "verb"),
    [(0.5, "2", "narrows"), (2.0, "2", "widens"), (1.0, "2", None), (0.5, "0", None)],
)
def test_a_scale_narrows_or_widens_the_scores_unless_it_does_nothing(stack, scale, query, verb):
    asked = {"config": stack(), "layer": "0", "head": "0", "query": query, "scale": scale}
    e = explain(requested((TextInput("river bank house"),), **asked))
    lines = [
        "".join(span.text for span in joined(part))
        for part in present_explanation(e, SETTINGS)
        if isinstance(part, Text)
    ]
    said = [re.match(r"the scale (\w+) .* from (\S+) to (\S+) ", line) for line in lines]
    found = [(match[1], *map(float, match.groups()[1:])) for match in said if match]
    if verb is None:
        assert found == []
    else:
        ((said_verb, before, after),) = found
        assert said_verb == verb
        assert after == pytest.approx(scale * before, abs=2e-4)


def test_of_one_allowed_key_nothing_is_compared(stack):
    e = explain(requested((TextInput("river bank"),), config=stack(), query="0"))
    (cell,) = e.cells
    assert why(e, cell) == "it is the only key that the mask allows, which gets all of it"
    assert e.row.weights[0] == 1


def test_the_sink_is_said_to_be_above_or_below(folder, request):  # noqa: F811
    e = explain(requested((TextInput(TEXT),), model=folder, layer="0", head="1", query=str(QUERY)))
    (cell,) = e.cells
    said = re.search(r"the sink, which is no key, is (above|below) it .* takes (\S+)", why(e, cell))
    assert (said is None) == (e.sink is None) == ("gpt_oss" not in folder_name(request))
    if said:
        assert float(said[2]) == pytest.approx(e.sink.weight, rel=0.02, abs=0.006)
        assert (said[1] == "above") == (e.sink.weight > e.row.weights[e.keys.index(cell.key)])


def folder_name(request):
    return request.node.callspec.params["folder"].name


def test_the_parts_that_make_half_of_a_dot_product(folder):  # noqa: F811
    e = explain(
        requested((TextInput(TEXT),), model=folder, layer="0", head="1", query=str(QUERY), key="0:")
    )
    q = e.query_steps[-1].values.astype(float)
    listed = 0
    for cell in e.cells:
        both, half = largest_parts(cell, SETTINGS).split("; ")
        k = cell.key_steps[-1].values.astype(float)
        adds = sorted((sum(q[part.dims] * k[part.dims]) for part in cell.parts), key=abs)[::-1]
        sides = {
            "for": sum(x for x in adds if x > 0),
            "against": sum(x for x in adds if x < 0),
        }
        first, second = ("for", "against") if cell.score >= 0 else ("against", "for")
        numbers = read(r"[+−][\d.]+", both)
        assert both.index(first) < both.index(second)
        assert numbers == pytest.approx([sides[first], sides[second]], rel=0.02, abs=0.006)
        same = np.array([x for x in adds if x * sides[first] > 0])
        count = 1 + int(np.argmax(np.abs(np.cumsum(same)) >= abs(sides[first]) / 2))
        assert half.startswith(f"{count} of {len(cell.parts)} ")
        shown = read(r"\(([+−][\d.]+)\)", half)
        expected = same[:count] if count <= 4 else []
        assert shown == pytest.approx(expected, rel=0.02, abs=0.006)
        listed += len(shown)
    assert listed


@pytest.mark.parametrize("layer", ["0", "2"])
def test_the_verdict_counts_the_checks_that_are_shown(folder, layer):  # noqa: F811
    e = explain(requested((TextInput(TEXT),), model=folder, layer=layer, head="1", query="3"))
    lines = [
        "".join(span.text for span in joined(part))
        for part in present_explanation(e, SETTINGS)
        if isinstance(part, Text)
    ]
    verdict, *shown = [line for line in lines if line.startswith("check: ")]
    assert verdict.startswith(f"check: all {len(shown)} hold")
    assert len(shown) > 6
