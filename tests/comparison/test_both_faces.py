"""`attnscope compare` and `attnscope.compare` give the same comparison, and refuse the same in the same words."""

import random
import shutil
from pathlib import Path

import pytest

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.samples import samples_folder
from attnscope.cli import main
from attnscope.request.options import on_command_line
from tests.helpers.draws import drawn

TEXT = "The bank by the river"
TEXTS = [TEXT, "The bank by a river", "A river"]
# values of an option that may differ between sides: what is typed, and what Python takes
SIDES = {
    "mask": [("own", "own"), ("causal", "causal"), ("window:2+own", "window:2+own")],
    "hide": [("none", None), ("1", 1), ("0,2", [0, 2])],
    "layer": [("0", 0), ("1,2", (1, 2)), ("L1H2", "L1H2")],
    "head": [("0", 0), ("-1", -1), ("1,3", (1, 3))],
    "dtype": [("float32", "float32"), ("bfloat16", "bfloat16")],
    "engine": [("native", "native"), ("auto", "auto")],
    "model": [("riverbank", None), ("copied", "copied")],
    "config": [("causal", "causal"), ("multi-head", "multi-head")],
}
OPTIONS = [
    (["--query", "1"], {"query": 1}),
    (["--key", "0"], {"key": 0}),
    (["--top", "1"], {"top": 1}),
    (["--pool", "2"], {"pool": 2}),
    (["--tolerance", "1e-3"], {"tolerance": 1e-3}),
    (["--relative", "0.5"], {"relative": 0.5}),
    (["--stage", "weights"], {"stages": "weights"}),
    (["--what-if", "same-scores"], {"what_if": "same-scores"}),
    (["--mask", "causal"], {"mask": "causal"}),
    (["--hide", "1"], {"hide": 1}),
    (["--layer", "1"], {"layer": 1}),
    (["--head", "all"], {"head": "all"}),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a copy of the sample, and two saved reports."""
    folder = tmp_path_factory.mktemp("sides")
    shutil.copytree(samples_folder("sample_weights") / "riverbank", folder / "copied")
    for name, mask in (("a.json", "own"), ("b.json", "causal")):
        attnscope.inspect(TEXT, mask=mask, layer=(0, 1), head="all").save(folder / name)
    return folder


def draw_call(choose):
    """Return a command line, and the texts and arguments of the same call in Python."""
    texts = choose.choice([TEXTS[:1], TEXTS[:1], TEXTS[:2], TEXTS])
    saved = choose.choice([[], [], [], ["a.json"], ["a.json", "b.json"]])
    if saved:
        texts = choose.choice([[], [], TEXTS[:1], TEXTS[:2]])
    words = [*saved, *texts]
    sides = [*map(Path, saved), *texts]
    arguments = {}
    count = choose.choice([0, 1]) if len(words) > 1 else choose.choice([0, 1, 1, 1, 2])
    for name in choose.sample(sorted(SIDES), count if choose.random() < 0.9 else 2):
        values = choose.choices(SIDES[name], k=2)
        words += [word for typed, _ in values for word in (f"--{name}", typed)]
        arguments[name] = [value for _, value in values]
    for typed, more in choose.sample(OPTIONS, choose.choice([0, 1, 2, 3])):
        if not more.keys() & arguments.keys():
            words += typed
            arguments |= more
    return words, sides, arguments


def in_python(sides, arguments):
    """Return the result of a call in Python, or the error that it raises."""
    try:
        return attnscope.compare(*sides, **arguments)
    except AttnscopeError as error:
        return error


@pytest.mark.parametrize("seed", range(drawn(2)))
def test_both_faces_compare_and_refuse_alike(seed, folder, capfdbinary, monkeypatch):
    """JSON is equal to the last bit, and errors are equal once Python's are spelled for the command line."""
    monkeypatch.chdir(folder)
    compared = refused = 0
    for number in range(25):
        words, sides, arguments = draw_call(random.Random(1000 * seed + number))
        capfdbinary.readouterr()
        code = main(["compare", *words, "--json", "--quiet"])
        typed = capfdbinary.readouterr()
        result = in_python(sides, arguments)
        if isinstance(result, AttnscopeError):
            line = f"attnscope: error: {result.line(on_command_line)}\n"
            assert (code, typed.err.decode()) == (result.code, line), words
            refused += 1
            continue
        verdict = result.data.verdict
        assert code == int(verdict is not None and not verdict.passed), words
        assert typed.out == result.to_json() + b"\n", words
        compared += 1
    assert compared >= 8
    assert refused >= 4
