"""What users of other command lines expect: short options, pipes, colour by environment, data alone."""

import json
import os
import re
import threading

import pytest
from typer.main import get_command

from attnscope.base.version import __version__
from attnscope.checkpoints.families import FAMILIES
from attnscope.checkpoints.samples import sample_names
from attnscope.cli import main
from attnscope.cli.app import COMMANDS, build_app
from attnscope.request.arguments import CHECKED_TEXTS

TEXT = "The bank by the river"


@pytest.mark.parametrize(
    ("short", "long"),
    [("-m", "model"), ("-l", "layer"), ("-H", "head"), ("-q", "query"), ("-o", "output")],
)
def test_a_long_option_has_its_short_one_in_every_command(short, long):
    declared = [
        option.opts
        for command in get_command(build_app()).commands.values()
        for option in command.params
        if f"--{long}" in option.opts
    ]
    assert len(declared) > 4
    assert [opts for opts in declared if short not in opts] == []


def test_short_options_are_the_long_ones(pipeline, capsys):
    asked = pipeline("fine")
    short = ["-m", "riverbank", "-l", "2", "-H", "1", "-q", "bank"]
    long = ["--model", "riverbank", "--layer", "2", "--head", "1", "--query", "bank"]
    assert main(["run", TEXT, *short]) == main(["run", TEXT, *long]) == 0
    assert asked[0] == asked[1]
    chosen = (asked[0].model, *map(str, (asked[0].layer, asked[0].head, asked[0].query)))
    assert chosen == ("riverbank", "2", "1", "bank")


@pytest.mark.parametrize("command", ["run", "compare", "explain", "heads"])
def test_a_short_option_names_the_file(command, tmp_path, capsys):
    (tmp_path / "there.json").write_text("")
    assert main([command, TEXT, "-o", str(tmp_path / "there.json")]) == 1
    assert "there.json: " in capsys.readouterr().err


@pytest.mark.parametrize("command", ["info", "check"])
def test_json_is_the_format(command, capfdbinary):
    def printed(*args):
        assert main([command, *args]) == 0
        return json.loads(capfdbinary.readouterr().out)

    assert printed("--json").keys() == printed("--format", "json").keys()


@pytest.mark.parametrize("command", ["run", "compare", "explain", "heads", "check", "info"])
def test_two_formats_contradict_each_other(command, capsys):
    assert main([command, "--json", "--format", "table"]) == 2
    said = (
        "attnscope: error: --json and --format table cannot be used together: findings are written in one format; "
        "remove one of them\n"
    )
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("command", COMMANDS)
def test_the_version_is_said_after_any_command(command, capsys):
    assert main([command, "--version"]) == 0
    assert capsys.readouterr() == (f"attnscope {__version__}\n", "")


def test_known_models_are_listed(capfdbinary):
    assert main(["info", "--list", "--json"]) == 0
    found = json.loads(capfdbinary.readouterr().out)
    assert list(found["samples"]) == sample_names("sample_weights")
    assert list(found["configs"]) == sample_names("configs")
    assert found["families"] == sorted(FAMILIES)
    assert found["samples"]["riverbank"] == "bert, 4 layers × 4 heads"
    assert main(["info", "--list"]) == 0
    words = capfdbinary.readouterr().out.decode().replace(",", "").split()
    assert {*found["samples"], *found["configs"], *found["families"]} <= {*words}


@pytest.fixture
def piped(monkeypatch):
    """A function that puts a pipe with some text in the place of standard input."""
    ours, theirs = os.pipe()

    def put(text):
        os.write(theirs, text.encode())
        os.close(theirs)

    with open(ours, encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield put


def stop_at_the_texts(asked, monkeypatch):
    """Let every command end when its texts are known, and note them."""

    def stop(*texts, **named):
        asked.append(named.get("texts") or texts[0])
        raise KeyboardInterrupt

    monkeypatch.setattr("attnscope.cli.run_config.run_config", stop)
    monkeypatch.setattr("attnscope.request.run_config.RunConfig", stop)


@pytest.mark.parametrize(
    "args",
    [["run"], ["run", "-"], ["explain"], ["heads", "--key", "river"], ["heads"], ["check", "-"]],
)
def test_what_is_piped_is_the_text(args, piped, pipeline, monkeypatch, capsys):
    asked = []
    stop_at_the_texts(asked, monkeypatch)
    piped(f"{TEXT}\n")
    assert main(args) == 130
    assert [(text.text, text.where) for text in asked[0]] == [(TEXT, "standard input")]


@pytest.mark.parametrize("args", [[], ["-"], ["--file", "-"]])
def test_every_side_of_a_comparison_has_what_is_piped(args, piped, capsys):
    piped(f"{TEXT}\n")
    assert main(["compare", *args, "--json", "--stage", "none"]) == 0
    texts = json.loads(capsys.readouterr().out)["sides"]
    assert len(texts) == 2


@pytest.mark.parametrize("command", ["run", "compare", "explain"])
def test_an_empty_pipe_is_no_text(command, piped, capsys):
    piped("")
    assert main([command]) == 2
    assert capsys.readouterr().err.startswith("attnscope: error: no text given; ")


@pytest.mark.parametrize("given", ["", "\n"])
def test_an_empty_pipe_leaves_heads_their_own_texts(given, piped, monkeypatch, capsys):
    stop_at_the_texts(asked := [], monkeypatch)
    piped(given)
    assert main(["heads"]) == 130
    assert asked == [()]
    assert "note" not in capsys.readouterr().err


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_heads_do_not_wait_for_ever_for_a_pipe(quiet, monkeypatch, capsys):
    stop_at_the_texts(asked := [], monkeypatch)
    monkeypatch.setattr("attnscope.cli.run_config.PATIENCE", 0.01)
    ours, theirs = os.pipe()
    with open(ours, encoding="utf-8") as stdin, open(theirs, "w"):  # open, and nobody writes
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["heads", *quiet]) == 130
    assert asked == [()]
    note = "attnscope: note: nothing came from standard input, so the built-in texts are used; pass - to wait for it\n"
    assert (note in capsys.readouterr().err) is not bool(quiet)


def test_heads_wait_for_a_slow_pipe(monkeypatch):
    stop_at_the_texts(asked := [], monkeypatch)
    ours, theirs = os.pipe()
    later = threading.Timer(0.2, lambda: (os.write(theirs, TEXT.encode()), os.close(theirs)))
    with open(ours, encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        later.start()
        assert main(["heads"]) == 130
    later.join()
    assert [text.text for text in asked[0]] == [TEXT]


@pytest.mark.parametrize(("line", "texts"), [(0, ["models/a\nmodels/b"]), (1, [])])
def test_the_rest_of_a_loops_list_is_no_text(line, texts, tmp_path, monkeypatch, capsys):
    stop_at_the_texts(asked := [], monkeypatch)
    (tmp_path / "list").write_text("models/a\nmodels/b\n")
    with open(tmp_path / "list", encoding="utf-8") as stdin:
        # where the shell's `read` has left it
        os.lseek(stdin.fileno(), line * len("models/a\n"), os.SEEK_SET)
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["heads"]) == 130
    assert [text.text for text in asked[0]] == texts
    assert "built-in" not in capsys.readouterr().err


def test_check_reads_a_pipe_only_if_asked_to(piped, monkeypatch):
    stop_at_the_texts(asked := [], monkeypatch)
    piped("models/b\n")
    assert main(["check"]) == 130
    assert [text.text for text in asked[0]] == [*CHECKED_TEXTS]


def test_texts_are_piped_to_a_dump(attnscope, tmp_path):
    (tmp_path / "texts").write_text(f"{TEXT}\n")
    with open(tmp_path / "texts") as file:
        done = attnscope(
            "",
            "batch",
            "--from",
            "txt",
            "-o",
            "dump.jsonl",
            "--layer",
            "0",
            stdin=file,
            cwd=tmp_path,
        )
    assert done.returncode == 0, done.stderr
    assert b'"records":1,"ok":1,"skipped":0,"failed":0' in (tmp_path / "dump.jsonl").read_bytes()
    done = attnscope("", "batch", "-o", "other.jsonl", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        b"attnscope: error: no input given; pass FILE, or - for standard input\n",
    )


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({"FORCE_COLOR": "1"}, True),
        ({}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": ""}, False),
    ],
)
@pytest.mark.parametrize("args", [["run", TEXT], ["run", "--help"]])
def test_colour_is_forced_into_a_pipe(args, environment, coloured, attnscope):
    done = attnscope("fine", *args, env=environment)
    assert done.returncode == 0
    assert (b"\x1b[" in done.stdout) == coloured


def test_quiet_leaves_data_alone(pipeline, capsys):
    pipeline("fine")
    assert main(["run", TEXT]) == 0
    loud = capsys.readouterr().out.splitlines()
    pipeline("fine")
    assert main(["run", TEXT, "--quiet"]) == 0
    quiet = capsys.readouterr().out.splitlines()
    begun = [n for n, line in enumerate(loud) if re.match(r" ?L0H1|scores ", line)]
    # without the lines between title and matrices
    data = [*loud[begun[0] : begun[0] + 1], *loud[begun[1] - 1 :]]
    end = next(n for n, line in enumerate(data) if line.startswith("more "))
    assert quiet == [data[0].partition("  chosen")[0].rstrip(), *data[1 : end - 1]]
    assert "weights" in " ".join(quiet)


def test_quiet_prints_tables_without_remarks(capsys):
    long = [f"{TEXT} " * n for n in (14, 15)]
    commands = (
        ["run", "The bank xylophoneq ☃"],
        ["compare", TEXT],
        ["compare", *long, "--layer", "0", "--head", "0"],
    )
    for command in commands:
        assert main([*command, "--quiet"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        head = out
        # begins with how much moved in every head, without the remark on the choice
        if command == ["compare", TEXT]:
            every, head = out.split("\n\nL", 1)
            strongest = r"strongest  (L\d+H\d+ \d\.\d{4}\s*)+\n\n"
            title = r"what moved  causal → bidirectional  .*\n"
            assert re.match(rf"{title}{strongest} head +0 .*\n", every), every[:200]
            head = f"L{head}"
        assert re.match(r"L\d+H\d+( .* → .*)?\n(only in .*)?\n", head), head[:80]
        for remark in (
            "automatically",
            "average row",
            "UNKNOWN",
            "not shown",
            "most weight moves",
            "most moved",
            "note ",
        ):
            assert remark not in out
    assert main(["explain", TEXT, "--query", "bank", "--quiet"]) == 0
    assert re.match(r"L\d+H\d+\n", capsys.readouterr().out)


QUIET = [
    ["run", "The bank xylophoneq by the river", "--layer", "all", "--head", "all"],
    ["run", f"{TEXT} " * 14, "--layer", "2", "--head", "0"],
    ["run", TEXT, "--words", "--pool", "2"],
    ["run", TEXT, "--generate", "2", "--mask", "causal"],
    ["run", TEXT, "--measure", "rollout"],
    ["compare", TEXT, "--head", "all", "--layer", "all"],
    ["explain", TEXT, "--query", "bank", "--top", "2", "--mask", "causal"],
    ["heads"],
    ["heads", TEXT, "--measure", "entropy"],
    ["ablate", TEXT, "--cut", "L2H0"],
    ["ablate", TEXT, "--each", "head"],
]
REMARK = re.compile(
    r"^(model|mask|text|note|more|legend|compare) |^on average|UNKNOWN|--[a-z]|clear role|minus infin"
)


@pytest.mark.parametrize(
    "command", QUIET, ids=lambda command: " ".join(word[:12] for word in command)
)
def test_quiet_prints_nothing_but_data(command, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(command) == 0
    loud = capsys.readouterr().out.splitlines()
    assert any(REMARK.search(line) for line in loud)
    assert main([*command, "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out
    assert [line for line in out.splitlines() if REMARK.search(line)] == []
    if "--words" not in command:  # which files refuse
        assert main([*command, "--quiet", "-o", str(tmp_path / "x.txt")]) == 0
        assert [
            line for line in (tmp_path / "x.txt").read_text().splitlines() if REMARK.search(line)
        ] == []


def test_quiet_keeps_what_was_asked_for(capsys):
    assert main(["run", TEXT, "--ids", "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("ids      0 The ")
    assert (
        main(
            [
                "compare",
                TEXT,
                "--head",
                "0",
                "--layer",
                "0",
                "--layer",
                "1",
                "--tolerance",
                "99",
                "--quiet",
            ]
        )
        == 0
    )
    assert re.match(r"verdict +passed", capsys.readouterr().out)
    assert main(["ablate", TEXT, "--cut", "L2H0", "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("cut       L2H0  1 head; mean weight ")


def test_quiet_keeps_the_label_of_random_weights(capsys):
    assert main(["run", TEXT, "--config", "causal", "--quiet"]) == 0
    assert re.match(r"L\d+H\d+  random weights *\n", capsys.readouterr().out)
    assert main(["compare", TEXT, "--config", "causal", "--quiet"]) == 0
    assert "RANDOM WEIGHTS" in capsys.readouterr().out


def test_quiet_keeps_what_warns(capsys):
    assert (
        main(
            [
                "run",
                TEXT,
                "--quiet",
                "--mask",
                "window:2",
                "--what-if",
                "same-scores",
                "--stage",
                "none",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out.startswith(
        "mask     window:2 in the softmax alone; the model's own"
    )


def test_a_quiet_check_is_its_table(capsys):
    assert main(["check", "--config", "causal", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["check", "off", "by", "limit", "worst", "text", "verdict"]
    assert {line.split()[-1] for line in lines[1:]} == {"ok", "skipped"}
