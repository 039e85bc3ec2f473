"""Bugs planted in the arithmetic of explain, or in the model: the check of that step fails, and no other."""

import numpy as np
import pytest

from attnscope.model import attention, head_capture, tile_stages
from attnscope.model.inputs import AttentionInputs
from attnscope.request.run_config import TextInput
from attnscope.studies.explain import arithmetic
from attnscope.studies.explain.run import explain
from tests.explanation.test_families import QUERY, TEXT, save
from tests.helpers.explanation_arithmetic import failed
from tests.helpers.requests import requested
from tests.helpers.tiny_models import TABLE

ARITHMETIC = "attnscope.studies.explain.arithmetic"
CAPTURE = "attnscope.model.head_capture"
_parts, _projection, _rotate = (
    head_capture.embedding_parts,
    head_capture.projection,
    arithmetic.rotate,
)
_norm_of, _exponentials, _softmax = (
    head_capture.norm_parameters,
    arithmetic.exponentials,
    tile_stages._softmax,
)

# what is made by the same code after the planted bug
LATER = {"value", "norm of the residual", "layer output"}


def _scaled(*, scale=True, cap=True, bias=True):
    """The arithmetic from scores to scaled, with a step forgotten."""

    def forgetful(scores, factor, softcap, added):
        times_scale = scores * (factor if scale else 1.0)
        capped = softcap * np.tanh(times_scale / softcap) if softcap and cap else times_scale
        return times_scale, capped, capped if added is None or not bias else capped + added

    return forgetful


def _without(name):
    def forgetful(*args):
        return {part: values for part, values in _parts(*args).items() if part != name}

    return forgetful


def _no_bias(stack, layer, letter, head):
    weight, bias = _projection(stack, layer, letter, head)
    return weight, None if letter == "q" else bias


def _neighbour(wrong):
    def mistaken(stack, layer, letter, head):
        return _projection(stack, layer, letter, head ^ (letter == wrong))

    return mistaken


def _sinkless(masked, sinks, buffer):
    weights, _ = _softmax(masked, None, buffer)
    return weights, weights[..., 0] * 0


def _unscaled(spec, needs_scores):
    return 1.0, 1.0


BUGS = {
    "rotation forgotten": ("llama", f"{ARITHMETIC}.rotate", lambda x, cos, sin, **pairs: x, "position"),
    "rotation forgotten by the model": ("llama", "attnscope.model.layers.rotate",
                                        lambda x, cos, sin, **pairs: x, "position"),
    "rotated the other way": ("gpt_neox", f"{ARITHMETIC}.rotate",
                              lambda x, cos, sin, **pairs: _rotate(x, cos, -sin, **pairs), "position"),
    "scale forgotten": ("bert", f"{ARITHMETIC}.scaled", _scaled(scale=False), "scaled"),
    "scale forgotten by the model": ("bert", "attnscope.model.tile_stages._factors", _unscaled, "scaled"),
    "soft-cap forgotten": ("gemma2", f"{ARITHMETIC}.scaled", _scaled(cap=False), "scaled"),
    "sink forgotten": ("gpt_oss", f"{ARITHMETIC}.exponentials", lambda masked, sink: _exponentials(masked), "weights"),
    "sink forgotten by the model": ("gpt_oss", "attnscope.model.tile_stages._softmax", _sinkless, "weights"),
    "position vector forgotten": ("gpt2", f"{CAPTURE}.embedding_parts", _without("position"), "embedding"),
    "segment vector forgotten": ("bert", f"{CAPTURE}.embedding_parts", _without("segment"), "embedding"),
    "bias of q forgotten": ("qwen2", f"{CAPTURE}.projection", _no_bias, "query"),
    "q of another head": ("bert", f"{CAPTURE}.projection", _neighbour("q"), "query"),
    "k of another head": ("llama", f"{CAPTURE}.projection", _neighbour("k"), "key"),
    "mean not taken off": ("gpt2", f"{ARITHMETIC}.norm", lambda c, x, weight, bias: x / x.std() * weight + bias,
                           "norm"),
    "one not added": ("gemma2", f"{CAPTURE}.norm_parameters", lambda *at: (_norm_of(*at)[0] - 1, None),
                      "norm"),
    "embedding norm without its bias": ("bert", f"{CAPTURE}.norm_parameters",
                                        lambda *at: (_norm_of(*at)[0], None), "embedding norm"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for name in {row for row, *_ in BUGS.values()} | {"llama"}:
        made[name] = tmp_path_factory.mktemp("model")
        save(next(row for row in TABLE if row.name == name), made[name])
    return made


def _explain(folder):
    return explain(
        requested((TextInput(TEXT),), model=str(folder), layer="0", head="3", query=str(QUERY))
    )


@pytest.mark.parametrize(("row", "target", "bug", "check"), BUGS.values(), ids=BUGS)
def test_a_planted_bug_fails_its_check(folders, monkeypatch, row, target, bug, check):
    assert failed(_explain(folders[row])) == set()
    monkeypatch.setattr(target, bug)
    e = _explain(folders[row])
    assert failed(e) - LATER == {check}
    assert e.check(check).difference > 1000 * e.check(check).tolerance


def test_a_key_head_of_another_group_fails(folders, monkeypatch):
    monkeypatch.setattr(
        AttentionInputs, "group", lambda inputs, heads: heads % inputs.k.shape[1] ^ 1
    )
    assert failed(_explain(folders["llama"])) - LATER == {"position"}


def test_weights_and_output_that_are_not_those_of_the_row_fail(folders, monkeypatch):
    tile = attention.compute_tile

    def warm(*args, **how):
        made = tile(*args, **how)
        made.output.mul_(0.98)  # computed when it is read, from weights that are right so far
        made.weights.mul_(0.99)
        return made

    monkeypatch.setattr(attention, "compute_tile", warm)
    assert failed(_explain(folders["llama"])) == {"weights", "output"}


def test_a_lost_part_fails(folders, monkeypatch):
    parts = arithmetic.parts
    monkeypatch.setattr(arithmetic, "parts", lambda *args, **pairs: parts(*args, **pairs)[:-1])
    assert failed(_explain(folders["llama"])) == {"parts"}
