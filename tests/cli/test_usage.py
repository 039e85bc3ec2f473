"""A command line that cannot be read: exit code 2, one line with a hint, and nothing is run."""

import sys

import pytest

from attnscope.cli import main
from attnscope.cli.app import COMMANDS

TEXT = "The bank by the river"
DASHES = "see attnscope run --help; put -- before a text that starts with '-'"
QUOTES = 'put quotation marks around a text: "The bank by the river"'
ENDINGS = ".json .txt .svg .png .pdf .html .safetensors .npz .srt .vtt .csv .parquet"
CASES = [
    ((), "--haed=1", "no such option '--haed'; did you mean '--head'?"),
    ((), "-5", f"no such option '-5'; {DASHES}"),
    ((), "by", f"unexpected extra argument: by; {QUOTES}"),
    ((), "--layer", "option '--layer' requires an argument; see attnscope run --help"),
    ((), "--head=1x", "--head: cannot read '1x'; use auto, all, mean, 3, 0,2,5-7 or -1"),
    ((), "--layer=7-2", "--layer: the range '7-2' is reversed; use 2-7"),
    ((), "--mask=casual", "--mask: unknown mask 'casual'; did you mean 'causal'?"),
    ((), "--mask=x.txt", "--mask: unknown mask 'x.txt'; known: own, causal, bidirectional, window:N, prefix:N, "
     "block:N, sink:N, docs:N,N,…, docs:eos, FILE (.json, .npy or .safetensors)"),
    ((), "--mask=window:0", "--mask: 'window:0' needs a size of 1 or more; use window:N"),
    ((), "--what-if=stakc", "--what-if: must be stack or same-scores, not 'stakc'; did you mean 'stack'?"),
    ((), "--by=norm", "--by: must be weight, value, projected or logit, not 'norm'"),
    ((), "--stage=weights,soft", "--stage: unknown stage 'soft'; known: scores, scaled, masked, weights, output"),
    ((), "--stage=", "--stage: unknown stage ''; known: scores, scaled, masked, weights, output"),
    ((), "--top=-1", "--top: must be a whole number, 0 or more, not '-1'"),
    ((), "--top=1.5", "--top: must be a whole number, 0 or more, not '1.5'"),
    ((), "--top=٣", "--top: must be a whole number, 0 or more, not '٣'"),
    ((), "--precision=10", "--precision: 10 is out of range; use 0 to 9"),
    ((), "--device=gpu", "--device: must be auto, cpu, cuda, cuda:N or mps, not 'gpu'; use auto"),
    ((), "--device=cud", "--device: must be auto, cpu, cuda, cuda:N or mps, not 'cud'; did you mean 'cuda'?"),
    ((), "--dtype=float61", "--dtype: must be float32, bfloat16 or float16, not 'float61'; did you mean 'float16'?"),
    ((), "--format=tabel", "--format: must be table, heat or json, not 'tabel'; did you mean 'table'?"),
    ((), "--color=on", "--color: must be auto, always or never, not 'on'"),
    ((), "--max-memory=1.5Q", "--max-memory: '1.5Q' is not a size; use 1.5G, 800M or a number of bytes"),
    ((), "--max-memory=0", "--max-memory: must be at least one byte"),
    (("--format=heat",), "--output=a.svg", "--format heat and --output cannot be used together: the ending of a file sets "
     "its format; remove one of them"),
    ((), "--output=a.jpg", f"a.jpg: unknown extension '.jpg'; use {ENDINGS}"),
    ((), "--output=json", f"json: the name has no extension; use {ENDINGS}"),
    (("--model=a",), "--config=b", "--config and --model cannot be used together: a TOML stack is a whole model, "
     "which names its tokenizer; remove one of them"),
    ((), "--file=a.txt", "--file and TEXT cannot be used together; remove one of them"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "last", "line"), CASES, ids=[case[1] for case in CASES])
def test_a_wrong_option_is_one_line_and_nothing_runs(before, last, line, pipeline, capsys):
    asked = pipeline("fine")
    assert main(["run", TEXT, *before, last]) == 2
    assert capsys.readouterr() == ("", f"attnscope: error: {line}\n")
    assert asked == []


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["rnu"], "no such command 'rnu'; did you mean 'run'?"),
        (["x\x1b[2J\u202e"], f"no such command 'x\\x1b[2J\\u202e'; known: {', '.join(COMMANDS)}"),
        (["rollout", TEXT], "no such command 'rollout'; use --measure rollout of attnscope run"),
        (["spans"], "no such command 'spans'; use --spans SPANS of attnscope run"),
        (["run", TEXT, "--rollout"], "no such option '--rollout'; use --measure rollout of attnscope run"),
        (["run", TEXT, "--kolor"], "no such option '--kolor'; did you mean '--color'?"),
        (["run"], "no text given; pass TEXT, - for standard input, or --file PATH"),
        (["run", "--file=a", "--pair=b"], "--file and --pair cannot be used together; remove one of them"),
        (["convert", "d.jsonl", "-o", "d.csv"],
            "no such option '-o'; the file comes second, without -o: attnscope convert IN OUT"),
        (["verify", "d.jsonl", "-x"], "no such option '-x'; see attnscope verify --help"),
        (["run", TEXT, "--mask", "causal+"],
            "--mask: nothing stands where a mask is expected; name one there, such as causal+window:4"),
        (["run", TEXT, "--\x1b[2J"], f"no such option '--\\x1b[2J'; {DASHES}"),
        (["doctor", "x"], "unexpected extra argument: x; name a model with --model: attnscope doctor --model x"),
        (["info", "x", "-m", "y"], "MODEL and --model cannot be used together: it is the model; remove one of them"),
        (["info", "x", "--list"], "--list and MODEL cannot be used together: no model is opened; remove one of them"),
        (["batch", "a.txt", "b.txt", "-o", "c.jsonl"], "unexpected extra argument: b.txt; see attnscope batch --help"),
        (["pull", "a/b", "c"], "unexpected extra argument: c; see attnscope pull --help"),
        (["The bank"], "no such command 'The bank'; to see its attention, use attnscope run 'The bank'"),
        (["info", "--cst"], "no such option '--cst'; did you mean '--cost'?"),
        (["info", "--format=heat"], "--format: must be table or json, not 'heat'"),
        (["--verison"], "no such option '--verison'; did you mean '--version'?"),
        (["run", TEXT, "--html", "x.html"], "no such option '--html'; use -o FILE.html"),
        (["heads", "--export", "x.csv"], "no such option '--export'; use -o FILE"),
        (["run", TEXT, "--limit", "3"], "no such option '--limit'; it is an option of batch"),
        (
            ["run", TEXT, "--chat", "--layer", "3"],
            "--chat: needs FILE|-, but --layer follows; use --chat FILE|-, or --chat=--layer if that is meant",
        ),
        *(
            (
                ["heads", "--needle", *following],
                f"--needle: needs TEXT, but {following[0]} follows; use --needle TEXT, or --needle={following[0]} if "
                "that is meant",
            )
            for following in (["--lengths", "64"], ["--lengths=64"], ["-m", "x"])
        ),
        *(
            ([*words, "--what-if", "same-scores"],
             "--what-if same-scores: applies only to --mask, --hide or --qkv; add --mask MASK")
            for words in (["run", TEXT], ["explain", TEXT, "--query", "0"], ["heads"], ["batch", "a", "-o", "b.jsonl"])
        ),
        (["run", TEXT, "--words", "--stage", "scores"], "--words and --stage scores cannot be used together: "
         "only weights are merged; remove one of them"),
        (
            ["run", TEXT, "--target", "river"],
            "--target: the logits of riverbank are not a sum over its parts: its output head has a non-linear layer in "
            "front of the vocabulary; remove it, or use a pre-norm model, such as GPT-2 or Llama",
        ),
        (["run", TEXT, "--quiet=1"], "option '--quiet' does not take a value; see attnscope run --help"),
    ],
)  # fmt: skip
def test_refused_elsewhere(args, line, capsys):
    assert main(args) == 2
    assert capsys.readouterr() == ("", f"attnscope: error: {line}\n")


@pytest.mark.parametrize(
    ("module", "args", "line"),
    [
        (
            "pyarrow",
            ["heads", "-o", "x.parquet"],
            ".parquet needs pyarrow; pip install 'attnscope[parquet]'",
        ),
        (
            "resvg_py",
            ["run", "a", "-o", "x.png"],
            ".png needs resvg-py; pip install 'attnscope[figures]', or write .svg",
        ),
    ],
)
def test_a_format_whose_library_is_missing_is_refused_before_any_work(
    module, args, line, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("attnscope.run.session.Session", None)  # opens models
    assert main(args) == 1
    assert capsys.readouterr().err == f"attnscope: error: {line}\n"


def test_without_arguments_the_help_is_shown(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Usage: attnscope")


@pytest.mark.parametrize(
    "args", [["--version"], ["-h"], ["--help"], ["run", "-h"], ["info", "--help"]]
)
def test_what_only_prints_is_done(args, capsys):
    assert main(args) == 0
    out, err = capsys.readouterr()
    assert out.startswith(("Usage: attnscope", "attnscope 0."))
    assert err == ""


def test_a_text_may_start_with_a_dash(pipeline):
    asked = pipeline("fine")
    assert main(["run", "--quiet", "--", "-5 degrees"]) == 0
    assert asked[0].texts[0].text == "-5 degrees"


def test_a_mark_that_no_line_of_a_file_has_names_the_line(tmp_path, capsys):
    """`--file` has a text on every line, and a prompt of several lines has its marks on several."""
    (tmp_path / "prompt.txt").write_text("Doc 1: the bank\nQuestion: which river\n")
    words = ["run", "--file", str(tmp_path / "prompt.txt"), "--spans", "Doc 1:,Question:"]
    assert main(words) == 2
    where = f"{tmp_path / 'prompt.txt'}:1"
    assert f"the mark 'Question:' is not in the text ({where});" in capsys.readouterr().err
