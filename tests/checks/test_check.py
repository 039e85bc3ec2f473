"""What `check` says of models that are in order, in each of its forms."""

import json
import re
import sys
from hashlib import sha256

import pytest
import torch
import transformers as hf
from msgspec.structs import replace

from attnscope.checkpoints.families import FAMILIES
from attnscope.cli import main
from attnscope.findings.check import Check, CheckedText, CheckReport, Differences
from attnscope.findings.codec import to_json
from attnscope.findings.provenance import MaskUse
from attnscope.request.arguments import CHECKED_TEXTS
from attnscope.request.masks.terms import Causal
from attnscope.request.run_config import TextInput
from attnscope.studies.check.run import check
from attnscope.studies.registry import present
from attnscope.views.settings import DisplaySettings
from attnscope.views.terminal import as_text
from tests.helpers.architectures import ONE_PART
from tests.helpers.requests import requested
from tests.helpers.schemas import validate
from tests.helpers.transformers_runs import SOURCE

TEXT = "the bank by the river was old"


def checked(folder=None, context=None, text=TEXT, **options) -> CheckReport:
    return check(
        requested(
            (TextInput(text, context=context),), None if folder is None else str(folder), **options
        )
    )


@pytest.fixture(scope="module")
def of_llama(folders) -> CheckReport:
    """A check that is in order, of which several tests look at a part."""
    return checked(folders("llama"))


def verdicts(report):
    return {one.name: one.verdict for one in report.checks}


@pytest.mark.parametrize(
    "name",
    [
        "gpt2",
        "gemma2",
        "gemma3_text",
        "olmo2",
        "smollm3",
        "phi3",
        "distilbert",
        "gpt_oss",
        "mixtral",
    ],
)
def test_our_own_engine_passes(folders, name):
    assert checked(folders(name)).passed


@pytest.mark.parametrize("name", ["albert", "modernbert", "gpt_oss", "mixtral", "deepseek_v3"])
def test_the_transformers_engine_passes(folders, name):
    report = checked(folders(name), engine="transformers")
    assert report.passed and report.provenance.engine == "transformers"
    assert "fail" not in verdicts(report).values()


@pytest.mark.parametrize("part", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_every_part_passes(folders, name, part):
    report = checked(
        folders(name), None if part == "encoder" else SOURCE, engine="transformers", part=part
    )
    assert report.passed
    assert verdicts(report)["equals eager transformers: weights"] == "pass"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", sorted(ONE_PART.keys() & FAMILIES.keys()))
def test_smaller_types_have_their_own_tolerance(folders, name, dtype):
    report = checked(folders(name), dtype=dtype)
    assert report.passed
    unit = float(torch.finfo(getattr(torch, dtype)).eps) / 2
    for one in report.differences:
        if one.reference == "eager transformers":
            assert unit / 2 < one.limits[0] < 50 * unit, "nothing has grown yet in the first layer"


def test_a_tolerance_of_ones_own_is_that_of_every_comparison(folders):
    report = check(requested((TextInput(TEXT),), str(folders("gpt_oss")), dtype="bfloat16"), 0.3)
    assert {one.limit for one in report.checks if one.name.startswith("equals eager")} == {0.3}


def test_the_shipped_sample_passes():
    assert checked().passed


def test_without_a_text_several_kinds_are_checked(capsys):
    """Each check is that of the text nearest to its limit, which the table names."""
    assert main(["check"]) == 0
    screen = capsys.readouterr().out
    texts = [
        text.removeprefix(f"text {number}   ")
        for number, text in enumerate(screen.splitlines()[2:])
    ]
    assert texts[0] == f"{CHECKED_TEXTS[0]} · 8 tokens"
    assert "text 3   tokens drawn from the vocabulary · 11 tokens\n" in screen
    assert main(["check", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    prose, code, _, repeated = CHECKED_TEXTS  # the sample does not know other scripts
    assert [text["text"] for text in report["texts"]] == [
        prose,
        code,
        repeated,
        "tokens drawn from the vocabulary",
    ]
    assert len({one["text"] for one in report["checks"]}) > 1


def test_texts_that_the_vocabulary_does_not_fit_are_left_out(folders):
    report = check(
        requested(tuple(map(TextInput, CHECKED_TEXTS)), str(folders("bert"))), built_in=True
    )
    assert [text.text for text in report.texts] == [
        CHECKED_TEXTS[0],
        "tokens drawn from the vocabulary",
    ]
    assert not any(token.unknown for token in report.texts[1].tokens)


def test_several_texts_are_compared_with_eager_attention_each(folders):
    """The reference is loaded once, and back under our attention for each text."""
    report = check(
        requested((TextInput(TEXT), TextInput("the river was old")), str(folders("bert")))
    )
    alone = [
        checked(folders("bert"), text=text.text)
        for text in (TextInput(TEXT), TextInput("the river was old"))
    ]
    for number, one in enumerate(report.differences):
        for layer, heads in enumerate(one.by_head):
            assert heads in [other.differences[number].by_head[layer] for other in alone]


def test_a_text_that_is_cut_is_said_to_be(folders):
    report = checked(folders("gpt2"), text="bank " * 60, truncate=True)
    said = "truncated from 61 to 48 tokens"
    assert report.provenance.notes == [said]
    assert said in as_text(present(report), 200)


def test_what_has_no_meaning_is_skipped_and_says_why(folders):
    bert, gemma2 = verdicts(checked(folders("bert"))), verdicts(checked(folders("gemma2")))
    assert bert["a prefix does not see what follows"] == "skipped"
    assert gemma2["equals PyTorch's SDPA"] == "skipped"
    stack = checked(config="causal", text="The bank")
    assert verdicts(stack)["equals eager transformers"] == "skipped" and stack.passed
    one = checked(folders("gpt2"), text="bank", truncate=True)
    assert one.passed


def test_without_transformers_the_rest_is_checked(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    report = checked(folders("llama"))
    (skipped,) = [one for one in report.checks if one.verdict == "skipped"]
    assert report.passed and "pip install 'attnscope[transformers]'" in skipped.note


def test_differences_have_a_number_for_every_layer_and_head(of_llama):
    for one in of_llama.differences:
        assert len(one.by_head) == 2 and all(len(heads) == 4 for heads in one.by_head)
    assert {one.stage for one in of_llama.differences if one.reference == "eager transformers"} == {
        "scores", "scaled", "masked", "weights", "output"
    }  # fmt: skip


def test_fully_masked_rows_are_named(folders, monkeypatch):
    assert checked(folders("gpt2")).texts[0].fully_masked == []
    # the first and the fourth see nothing
    monkeypatch.setattr(Causal, "allowed", lambda self, q, k, heads=None: (k < q) & (q != 3))
    monkeypatch.setattr(Causal, "all_visible_range", lambda self, q0, q1, n_keys: (0, 0))
    report = checked(folders("gpt2"))
    assert report.texts[0].fully_masked == [0, 3]
    shown = as_text(present(report), 200)
    assert "masked   rows 0 the, 3 the: no key is allowed in some layer\n" in shown
    (sums,) = [one for one in report.checks if one.name == "rows sum to 1"]
    assert sums.verdict == "pass" and sums.note.startswith("16 rows are fully masked")


def test_the_reference_is_named_with_its_version(of_llama):
    assert of_llama.provenance.versions["transformers"] == hf.__version__
    assert "transformers" not in checked(config="causal").provenance.versions


def test_the_whole_weights_are_hashed_where_asked(folders, of_llama):
    report = checked(folders("llama"), hash_weights=True)
    assert (
        report.provenance.weights_hash
        == sha256((folders("llama") / "model.safetensors").read_bytes()).hexdigest()
    )
    assert of_llama.provenance.weights_hash is None


def test_real_output_keeps_to_the_published_schema(of_llama):
    validate(json.loads(to_json(of_llama)), "check")


def test_the_command_line(folders, capsys, tmp_path):
    folder = str(folders("llama"))
    assert main(["check", TEXT, "--model", folder]) == 0
    out = capsys.readouterr().out
    assert "all 17 checks passed (--verbose: the differences of each layer)" in out
    assert "largest difference from" not in out
    assert main(["check", TEXT, "--model", folder, "--verbose"]) == 0
    out = capsys.readouterr().out
    assert out.count("\nlargest difference from ") == 2
    assert out.index("\nall 17 checks passed\n\ncheck ") < out.index("\nlargest difference from ")
    report = tmp_path / "check.json"
    assert main(["check", TEXT, "--model", folder, "--quiet", "--output", str(report)]) == 0
    assert capsys.readouterr() == ("", "")
    assert json.loads(report.read_bytes())["schema"] == "attnscope.check/1"
    assert main(["check", TEXT, "--model", folder, "--tolerance", "1e-12"]) == 1
    out = capsys.readouterr().out
    assert "checks failed: do not trust" in out
    assert out.count("\nlargest difference from ") == 2
    assert main(["check", "--tolerance", "-1"]) == 2


def test_the_header_is_short_and_verbose_is_whole(minilm, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["check", "a river", "--model", str(minilm)]) == 0
    header = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in header] == ["model", "mask", "text"]
    assert header[0] == f"model    {minilm.parent.name}/{minilm.name} (bert) · 6 layers × 12 heads"
    assert main(["check", "a river", "--model", str(minilm), "--verbose"]) == 0
    header = capsys.readouterr().out.split("\n\n")[0].splitlines()
    whole = f"model    {minilm} (bert) · 6 layers × 12 heads · cpu · float32"
    assert header[0] == whole
    assert sum("stored in tokenizer.json" in line for line in header) == 2
    assert main(["run", "a river", "--model", str(minilm), "--verbose"]) == 0
    assert f"model    {minilm} (bert) · 6 layers" in capsys.readouterr().out
    assert main(["check", "--config", "causal", "--dtype", "bfloat16"]) in (0, 1)
    banner, model = capsys.readouterr().out.splitlines()[:2]
    assert banner.startswith(" RANDOM WEIGHTS ") and "bfloat16" in model


def test_a_failure_is_told_with_its_place():
    made = checked(config="causal", text="The bank").provenance
    failed = Check("rows sum to 1", "fail", 0.02, 1e-5, "L3H1")
    endless = Check("computing in tiles changes nothing", "fail", None, 1e-4, "L0H0")
    left = Check("equals eager transformers", "skipped", note="no\x1b[2J such")
    gaps = Differences(
        "eager transformers", "weights", [1e-4, 1e-4], [[0.0, 0.5], [None, 0.1]], [0, 1]
    )
    text = CheckedText("The\x1bbank", None, [], None, [])
    shown = as_text(
        present(
            CheckReport(
                made, MaskUse("causal", "causal"), [text], [failed, endless, left], [gaps], False
            )
        ),
        200,
    )
    lines = shown.splitlines()
    assert any(
        line.split() == ["rows", "sum", "to", "1", "2.0e-02", "1e-05", "L3H1", "FAIL"]
        for line in lines
    )
    assert any("not finite" in line and "FAIL" in line for line in lines)
    assert "5.0e-01 H1" in shown and "\x1b" not in shown
    verdict = next(n for n, line in enumerate(lines) if "rows" in line and "FAIL" in line) - 1
    above = "".join(lines[: verdict + 1])
    assert "2 of 2 checks failed, 1 skipped: do not trust" in above


def test_what_is_exact_is_written_as_zero(folders):
    report = checked(folders("bert"))
    lines = as_text(present(report), 200).splitlines()
    exact = [one for one in report.checks if one.measured == 0]
    assert len(exact) >= 3
    for one in exact:
        (line,) = [line for line in lines if line.startswith(f"{one.name}  ")]
        assert line.removeprefix(one.name).split()[0] == "0"
    assert "0e+00" not in "".join(lines)
    # a difference has a head; beside a limit above 0, an exact 0 is explained
    assert not re.search(r"\b0 H\d", as_text(present(report, DisplaySettings(verbose=True)), 200))
    assert "0: equal to the last bit" in as_text(present(report), 200)
    lawful = replace(report, checks=[one for one in exact if not one.limit])
    assert "0: equal to the last bit" not in as_text(present(lawful), 200)
