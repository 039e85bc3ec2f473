"""What is refused is refused in Python's words, and before torch is loaded where the command line does so."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope
from attnscope.base.errors import JSON_FILE, AttnscopeError, UsageError, arg
from attnscope.request.options import on_command_line
from tests.helpers.cli_runner import ROOT

TEXT = "The bank by the river"
REFUSED = [
    ({"haed": 1}, "inspect() has no argument 'haed'; did you mean 'head'?"),
    ({"layer": 99}, "layer: there is no layer 99; this model has layers 0 to 3"),
    ({"layer": "0-x"}, "layer: cannot read '0-x'; use auto, all, mean, 3, 0,2,5-7 or -1"),
    ({"layer": 1, "head": "L2H0"}, "layer: '1' contradicts L2H0; remove layer"),
    ({"layer": True}, "layer: cannot read True; use a number"),
    ({"layer": 1.5}, "layer: cannot read 1.5; use a number"),
    ({"layer": []}, "layer: the list of layers is empty; use 0"),
    ({"layer": slice(7, 9)}, "layer: the slice '7:9' is empty; this model has layers 0 to 3"),
    ({"head": [0, -9]}, "head: there is no head -9; this model has heads 0 to 3"),
    ({"head": slice("a")}, "head: cannot read slice(None, 'a', None)"),
    (
        {"query": 5},
        "query: '5' is not in the text; the text has tokens 0 to 4: The bank by the river",
    ),
    ({"query": "3"}, "query: '3' is not in the text"),
    ({"key": slice(7, 9)}, "key: '7:9' is outside the text or empty"),
    (
        {"key": slice(0, 4, 2)},
        "key: slice(0, 4, 2) has a step; use a range, or a list of positions",
    ),
    ({"key": 1.0}, "key: cannot read 1.0; use a position, a slice, a word, or several of them"),
    ({"query": ()}, "query: the list of positions is empty; leave it out for all"),
    ({"mask": "casual"}, "mask: unknown mask 'casual'; did you mean 'causal'?"),
    ({"mask": [[True]]}, "mask: list is not a mask; use a str such as 'causal'"),
    ({"stages": ["weigths"]}, "stages: unknown stage 'weigths'; did you mean 'weights'?"),
    ({"top": -1}, "top: must be a whole number, 0 or more, not '-1'"),
    (
        {"by": "wieght"},
        "by: must be weight, value, projected or logit, not 'wieght'; did you mean 'weight'?",
    ),
    ({"by": 3}, "by: must be weight, value, projected or logit, not '3'"),
    ({"special": 1}, "special: expected True or False, got 1"),
    ({"pool": 0}, "pool: 0 is out of range; use 1 to 1024"),
    ({"dtype": "float64"}, "dtype: must be float32, bfloat16 or float16, not 'float64'"),
    ({"device": "gpu"}, "device: must be auto, cpu, cuda, cuda:N or mps, not 'gpu'; use auto"),
    ({"max_memory": 1000}, "max_memory is 1000 B; use max_memory='"),
    (
        {"part": "cross"},
        "part: only works for a model with an encoder and a decoder; remove it",
    ),
    (
        {"model": "rivrbank"},
        "no such folder, bundled sample or repository in the Hugging Face cache; did you mean",
    ),
    (
        {"model": 5},
        "model: int is not a model; pass a folder, the name of a bundled sample, or a transformers model",
    ),
    (
        {"model": "riverbank", "config": "causal"},
        "config and model cannot be used together: a TOML stack is a whole model",
    ),
    (
        {"tokenizer": "no/where"},
        "tokenizer: no/where: no such folder, bundled sample or repository",
    ),
    ({"tokenizer": 5}, "tokenizer: int is not a path; give the path of its tokenizer.json"),
    (
        {"tokenizer": "x", "config": "causal"},
        "config and tokenizer cannot be used together: a TOML stack is a whole model, which names its tokenizer",
    ),
    ({"context": "x"}, "context: the model has no cross-attention; remove it"),
    ({"pair": ["x", "y"]}, "pair: 2 for 1 texts; pass one for each text"),
    ({"progress": 1}, "progress: 1 cannot be called; pass a function"),
]


def test_a_text_of_one_token_has_no_range():
    with pytest.raises(
        UsageError, match=r"query: '5' is not in the text; the text has one token, 0: bank"
    ):
        attnscope.inspect("bank", query=5)


@pytest.mark.parametrize(("given", "said"), REFUSED, ids=lambda given: str(given)[:40])
def test_arguments_that_do_not_fit_are_refused_in_words_of_python(given, said):
    with pytest.raises(attnscope.AttnscopeError) as caught:
        attnscope.inspect(TEXT, **given)
    assert said in str(caught.value)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (5, "text: 5 is not a text; pass a str, or several"),
        ([], "text: no text given; pass one, or several"),
        (["a", 5], "text: 5 is not a text; pass a str"),
        (["a", None], "text: None is not a text; pass a str"),
        (b"bank", "text: b'bank' is not a text"),
        ("  ", "text: the text is blank; pass some words"),
        (["bank", " "], "text 1: the text is blank"),
        (
            "bank " * 200,
            "text: 200 tokens, but the model takes at most 128; pass truncate=True to truncate the text",
        ),
        ("\ud800", "half of a surrogate pair"),
    ],
)
def test_an_argument_that_is_no_text_is_refused(text, said):
    with pytest.raises(attnscope.AttnscopeError) as caught:
        attnscope.inspect(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: attnscope.explain(TEXT), "query: explain needs one token; use query=WORD or"),
        (lambda: attnscope.explain(TEXT, query=[0, 1]), "query: '0,1' selects 2 tokens: 0 The, 1 bank; select one"),
        (lambda: attnscope.explain(TEXT, query=0, layer="mean"), "explain needs a single layer, not a mean; use one"),
        (lambda: attnscope.explain(TEXT, query=0, top=0), "top: 0 is out of range"),
        (lambda: attnscope.explain(TEXT, query=0, stages="weights"), "explain() has no argument 'stages'"),
        (
            lambda: attnscope.compare(TEXT, mask="own"),
            "mask: 'own' needs another mask to be compared with; use mask=['own', 'causal']",
        ),
        (lambda: attnscope.compare(TEXT, mask=["own"]), "mask: has 1 value; a comparison needs at least two"),
        (lambda: attnscope.compare(TEXT, mask=["own", "causal"], layer=[0, 1]), "layer and mask have several values; compare"),
        (lambda: attnscope.compare(attnscope.inspect(TEXT)), "there is only one report; a comparison needs"),
        (lambda: attnscope.compare(attnscope.inspect(TEXT), "x", "y"), "1 of 3 sides are saved reports; pass only"),
        (lambda: attnscope.compare([attnscope.inspect(TEXT), 5]), "text: 5 is not a text; pass a str"),
        (lambda: attnscope.compare([attnscope.inspect(TEXT)]), "text: has 1 value; a comparison needs at least"),
        (lambda: attnscope.inspect(TEXT, query=b"ab"), "query: cannot read b'ab'; use a position"),
        (lambda: attnscope.inspect(TEXT, layer=b"ab"), "layer: "),
        (lambda: attnscope.inspect(b"ab"), "text: b'ab' is not a text; pass a str, or several"),
        (lambda: attnscope.compare(*[attnscope.inspect(TEXT)] * 2, mask="own"), "mask: does not apply to saved reports"),
        (lambda: attnscope.compare(*[attnscope.inspect(TEXT)] * 2, layer=0), "'report 0' has no layer 0; it"),
        (lambda: attnscope.check(tolerance=-1), "tolerance: must be a number, 0 or more, not '-1'"),
        (lambda: attnscope.compare(TEXT, tolerance=[1]), "tolerance: must be a number, 0 or more, not '[1]'"),
        (lambda: attnscope.check(tolerance=10**400), "tolerance: must be a number, 0 or more"),
        (lambda: attnscope.check(tolerance=True), "tolerance: must be a number, 0 or more, not 'True'"),
        (
            lambda: attnscope.inspect(TEXT, engine=np.array(["native", "x"])),
            "engine: must be auto, native or transformers",
        ),
        (lambda: attnscope.inspect(TEXT, layer=slice(0, 2, 0)), "layer: cannot read slice(0, 2, 0)"),
        (lambda: attnscope.inspect(TEXT, hide=[]), "hide: the list of positions is empty; leave it out"),
        (lambda: attnscope.inspect(np.array(TEXT)), "text: array('The bank by the river'"),
        (lambda: attnscope.inspect([TEXT], pair=np.array("x")), "pair: array('x'"),
        (lambda: attnscope.compare(np.array(TEXT)), "text: array('The bank by the river'"),
        (lambda: attnscope.ablate(TEXT, cut=np.array("L0")), "cut: array('L0'"),
        (lambda: attnscope.inspect(TEXT, mask=torch.ones(5, 5).bfloat16()), "mask: has 1, which is neither 0 nor −inf"),
        (lambda: attnscope.inspect(TEXT, mask=torch.ones(5, 5).bool().to_sparse()), "mask: cannot be read as an"),
        (lambda: attnscope.inspect(TEXT, model=""), "model: the name is empty; name a folder, or leave it out"),
        (lambda: attnscope.inspect(TEXT, model="", engine="transformers"), "model: the name is empty; name a"),
        (lambda: attnscope.ablate(TEXT), "add cut='L0H0', cut='L0H0: QUERY←KEY', or each='head'"),
        (lambda: attnscope.inspect(TEXT, generate=1), "such as mask='causal' for riverbank"),
        (lambda: attnscope.heads(role=5), "role: unknown role '5'; known: previous"),
        (lambda: attnscope.ablate(TEXT, cut="L0", replacement="mean", reference=5), "reference: 5 is not a text; pass"),
        (lambda: attnscope.load(5), "path: int is not a path; pass a str or a Path"),
        (lambda: attnscope.read_dump(5), "path: int is not a path"),
        (lambda: attnscope.read_dump("a" * 5000), "the name is too long; choose another name"),
        (lambda: attnscope.read_dump("a\0"), "a\\x00: is not a valid file name"),
        (lambda: attnscope.open_model(layer=0), "open_model() has no argument 'layer'"),
        (lambda: attnscope.open_model("nowhere"), "nowhere: no such folder"),
        (lambda: attnscope.load("nowhere.json"), "nowhere.json: "),
        (lambda: attnscope.read_dump("nowhere.jsonl"), "nowhere.jsonl: no such file"),
    ],
)  # fmt: skip
def test_what_the_other_functions_refuse(call, said):
    with pytest.raises(attnscope.AttnscopeError) as caught:
        call()
    assert said in str(caught.value)
    assert "--" not in str(caught.value)


def test_what_a_report_holds_is_cut_with_a_sign():
    report = attnscope.inspect(" ".join(["the"] * 43), layer=0, head=0, query=slice(1, 43), top=1)
    with pytest.raises(attnscope.AttnscopeError, match=r"it holds 1, 2, .* 39, 40, …$"):
        report[0, 0].top(0)
    with pytest.raises(
        attnscope.AttnscopeError, match=r"selects 42 tokens: 1 the, .* 40 the, …; choose one"
    ):
        report[0, 0].top("the")


def test_a_report_says_what_it_does_not_hold():
    report = attnscope.inspect(
        "the bank and the river the", layer=0, head=[0, 1], top=2, query=slice(1, 5)
    )
    for call, said in (
        (
            lambda: report.output,
            "the report keeps no output; it keeps scores, masked, weights; inspect with stages=",
        ),
        (lambda: report[0, 0].scaled, "the report keeps no scaled"),
        (lambda: report[1, 0], "the report has no layer 1 with head 0; it holds [0, 0], [0, 1]"),
        (lambda: report[-1, 0], "the report has no layer -1 with head 0"),
        (lambda: report[0], "0 is not a layer and head; use report[layer, head]"),
        (
            lambda: report[0, 0].top("bank", k=3),
            "k: the report keeps 2 contributors; inspect with top=3",
        ),
        (lambda: report[0, 0].top("bank", k=-1), "k: the report keeps 2 contributors"),
        (lambda: report[0, 0].top(0), "query: the report has no row for 0; it holds 1, 2, 3, 4"),
        (lambda: report[0, 0].top("zebra"), "query: 'zebra' is not in the text"),
        (
            lambda: report[0, 0].top(slice(1, 3)),
            "query: '1:3' selects 2 tokens: 1 bank, 2 and; choose one by its",
        ),
        (lambda: report[0, 0].top("bank", k="2"), "k: the report keeps 2 contributors"),
        (lambda: report.text(width="wide"), "width: must be a whole number, 1 or more, not 'wide'"),
        (lambda: report.text(precision=-1), "precision: must be a whole number, 0 to 9, not '-1'"),
        (
            lambda: report.save("a.txt", width=-4),
            "width: must be a whole number, 1 or more, not '-4'",
        ),
        (lambda: report.save(5), "path: int is not a path"),
        (
            lambda: report.to_pandas("columns"),
            "table: the report has no table 'columns'; it has contributors, rows",
        ),
    ):
        with pytest.raises(attnscope.AttnscopeError) as caught:
            call()
        assert said in str(caught.value)
    assert report[0, 0].top("the")[0] == report[0, 0].top(3)[0]  # the one that the report holds


def test_a_report_of_a_measure_over_layers_has_no_arrays_of_heads():
    report = attnscope.inspect(TEXT, measure="rollout")
    for call in (lambda: report.weights, lambda: report.texts[0].scores, report.to_pandas):
        with pytest.raises(
            attnscope.AttnscopeError, match="the report holds rollout, not the weights of heads"
        ) as caught:
            call()
        assert "--" not in str(caught.value)


def test_an_error_names_options_as_each_face_spells_them():
    error = UsageError(
        f"{arg('max_memory')} is 3; '--layer' is not",
        where=arg("stages", ("scores", "weights")),
        hint=f"use {arg('special', False)}, {arg('top', placeholder='K')}, {arg('target', ' store')} or {JSON_FILE}",
    )
    assert str(error) == (
        "stages=('scores', 'weights'): max_memory is 3; '--layer' is not; "
        "use special=False, top=K, target=' store' or .save('report.json')"
    )
    assert error.line(on_command_line) == (
        "--stage scores,weights: --max-memory is 3; '--layer' is not; "
        "use --no-special, --top K, --target ' store' or --json"
    )
    assert (error.message, error.where) == (
        "max_memory is 3; '--layer' is not",
        "stages=('scores', 'weights')",
    )


def test_an_error_is_reworded_without_losing_its_options():
    first = AttnscopeError(f"raise {arg('max_memory')}", hint=f"pass {arg('force', True)}")
    second = AttnscopeError(f"{first.parts.message} (text 2)", where="x.txt", hint=first.parts.hint)
    assert second.line(on_command_line) == "x.txt: raise --max-memory (text 2); pass --force"
    assert str(second) == "x.txt: raise max_memory (text 2); pass force=True"


def test_text_of_a_user_names_no_option():
    mark = arg("layer")
    pretended = mark.replace(mark.split("\0")[1], "0" * 16)
    assert pretended != mark
    assert "layer" in str(AttnscopeError(pretended))
    assert "--layer" not in AttnscopeError(pretended).line(on_command_line)


REFUSING = """
import sys
import attnscope
for name, value in dict(layer=99, haed=1, model="nowhere", query="zebra", mask="x", max_memory=9).items():
    try:
        attnscope.inspect("The bank", **{name: value})
    except attnscope.AttnscopeError as e:
        print(name, e)
    assert not set(sys.modules) & {"torch", "transformers", "rich", "typer"}, (name, sys.modules)
"""


def test_what_cannot_be_done_is_said_without_torch():
    done = subprocess.run(
        [sys.executable, "-c", REFUSING], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    names = [line.partition(" ")[0] for line in done.stdout.splitlines()]
    assert names == ["layer", "haed", "model", "query", "mask", "max_memory"]


def test_importing_the_package_loads_nothing_heavy():
    script = (
        "import sys, attnscope; heavy = {'torch', 'transformers', 'typer', 'rich', 'tokenizers', 'safetensors', "
        "'pandas', 'numpy', 'msgspec'}; assert not heavy & set(sys.modules)\n"
        "assert set(attnscope.__all__) <= set(dir(attnscope))\n"
        "for name in attnscope.__all__: getattr(attnscope, name)\n"
        "assert not (heavy - {'numpy', 'msgspec'}) & set(sys.modules), heavy & set(sys.modules)\n"
        "assert callable(attnscope.inspect) and callable(attnscope.compare)\n"
        "import attnscope.studies.compare, attnscope.studies.explain, attnscope.run.session, attnscope.findings\n"
        "assert callable(attnscope.explain) and callable(attnscope.check) and callable(attnscope.load)\n"
        "try: attnscope.nothing\n"
        "except AttributeError as e: assert str(e) == \"module 'attnscope' has no attribute 'nothing'\"\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=Path(ROOT), check=True)


def test_one_position_layer_or_stage_may_be_an_array_without_axes():
    expected = attnscope.inspect(TEXT, query=3, layer=1, head=2, stages="weights").data
    for one in (np.array, torch.tensor):
        found = attnscope.inspect(
            TEXT, query=one(3), layer=one(1), head=one(2), stages=np.array("weights")
        ).data
        assert found.texts[0].queries == expected.texts[0].queries == [3]
        assert [(head.layer, head.head, list(head.stages)) for head in found.texts[0].heads] == [
            (1, 2, ["weights"])
        ]


def test_a_comparison_reads_a_generator_once():
    """Every side has all of it."""
    texts, layers = [TEXT, "the river"], (0, 1)
    expected = attnscope.compare(tuple(texts), mask=["own", "causal"], layer=layers, query=(0, 1))
    given = {"layer": (n for n in layers), "query": (n for n in (0, 1))}
    found = attnscope.compare((one for one in texts), mask=["own", "causal"], **given)
    assert str(found) == str(expected)
