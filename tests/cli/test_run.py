"""`attnscope run`: what the options become, where the texts come from, and where the findings go."""

import io
import json
import re
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from attnscope.cli import main
from attnscope.findings.codec import from_json, to_json
from attnscope.request.run_config import TextInput
from attnscope.run.session import inspect
from attnscope.studies.registry import present
from attnscope.views.terminal import as_text
from tests.helpers import cli_fakes
from tests.helpers.architectures import save_gpt2
from tests.helpers.draws import in_two
from tests.helpers.requests import requested
from tests.helpers.schemas import validate

TEXT = "The bank by the river"


def run_config(pipeline, *args):
    asked = pipeline("fine")
    assert main(["run", *args]) == 0
    return asked[0]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("ATTNSCOPE_MODEL", "COLUMNS", "ATTNSCOPE_DEBUG"):
        monkeypatch.delenv(name, raising=False)


def test_defaults_are_those_of_run_config(pipeline):
    assert run_config(pipeline, TEXT) == requested((TextInput(TEXT),), window=64, predict=None)


def test_every_option_arrives(pipeline):
    got = run_config(
        pipeline, TEXT, "--pair", "It was flooded", "--context", "Le quai", "--model", "m", "--mask", "causal+window:4",
        "--layer", "0,2-3", "--head", "-1", "--query", "bank", "--key", "1:4",
        "--stage", "output,scores", "--top", "5", "--by", "projected", "--no-special", "--device", "cuda:1",
        "--dtype", "bfloat16", "--truncate", "--max-memory", "1.5G",
        "--threads", "3", "--generate", "2", "--no-predict", "--show-padding", "--hide", "river",
    )  # fmt: skip
    assert got == requested(
        (TextInput(TEXT, "It was flooded", "Le quai"),), model="m", mask="causal+window:4",
        layer="0,2-3", head="-1", query="bank", key="1:4", stages=("scores", "output"), top=5,
        by="projected", special=False, device="cuda:1", dtype="bfloat16", window=64, truncate=True, max_memory=3 << 29,
        threads=3, generate=2, predict=False, show_padding=True, hide="river",
    )  # fmt: skip
    got = run_config(
        pipeline, TEXT, "--measure", "rollout", "--what-if", "same-scores", "--hide", "river"
    )
    assert got == requested(
        (TextInput(TEXT),),
        what_if="same-scores",
        hide="river",
        measure="rollout",
        window=64,
        predict=None,
    )


@pytest.mark.parametrize(
    ("typed", "count"),
    [
        ("800M", 800 << 20),
        ("1k", 1024),
        ("2gib", 2 << 30),
        ("4096", 4096),
        ("0.5 T", 1 << 39),
        ("10B", 10),
    ],
)
def test_max_memory_reads_units_of_bytes(pipeline, typed, count):
    assert run_config(pipeline, TEXT, "--max-memory", typed).max_memory == count


@pytest.mark.parametrize(
    ("environment", "args", "model", "config"),
    [
        (None, (), None, None),
        ("m", (), "m", None),
        ("m", ("--model", "n"), "n", None),
        ("m", ("--config", "c"), None, "c"),
        (None, ("--config", "c"), None, "c"),
    ],
)
def test_model_or_config(pipeline, monkeypatch, environment, args, model, config):
    if environment:
        monkeypatch.setenv("ATTNSCOPE_MODEL", environment)
    got = run_config(pipeline, TEXT, *args)
    assert (got.model, got.config) == (model, config)


@pytest.mark.parametrize(
    ("args", "window"),
    [((), 64), (("--format", "heat"), 64), (("--format", "json"), None), (("--query", "0:9"), 64)],
)
def test_only_screens_have_a_window(pipeline, args, window):
    assert run_config(pipeline, TEXT, *args).window == window


@pytest.mark.parametrize(
    ("ending", "window"),
    [(".txt", 64), (".svg", 64), (".json", None), (".safetensors", None), (".npz", None)],
)
def test_only_drawn_files_have_a_window(pipeline, tmp_path, ending, window):
    target = tmp_path / f"out{ending}"
    assert run_config(pipeline, TEXT, "--output", str(target)).window == window
    assert target.stat().st_size > 100


def test_json_is_the_report(pipeline, capfdbinary):
    run_config(pipeline, TEXT, "--format", "json")
    out, err = capfdbinary.readouterr()
    assert out == to_json(cli_fakes.small_report()) + b"\n"
    assert err == b""
    assert to_json(from_json(out)) + b"\n" == out


def test_file_is_announced_unless_quiet(pipeline, tmp_path, capsys):
    target = tmp_path / "out.json"
    run_config(pipeline, TEXT, "--output", str(target))
    written = target.read_bytes()
    assert json.loads(written)["schema"] == "attnscope.report/2"
    assert capsys.readouterr() == ("", f"attnscope: wrote: {target} ({len(written):,} bytes)\n")
    run_config(pipeline, TEXT, "--output", str(target), "--force", "--quiet")
    assert capsys.readouterr() == ("", "")


def test_an_output_that_cannot_be_written_is_refused_before_the_work(pipeline, tmp_path, capsys):
    asked = pipeline("fine")
    (tmp_path / "old.json").write_text("old")
    for target in ("old.json", ""):
        assert main(["run", TEXT, "--output", str(tmp_path / target)]) == 1
    errors = [
        f"{tmp_path}/old.json: exists; pass --force to overwrite it",
        f"{tmp_path}: is a folder; add a file name",
    ]
    assert capsys.readouterr() == ("", "".join(f"attnscope: error: {error}\n" for error in errors))
    assert asked == []
    assert (tmp_path / "old.json").read_text() == "old"


@pytest.mark.parametrize("data", [b"The bank\nby the river\n", b"The bank\nby the river"])
def test_dash_is_standard_input_as_one_text(pipeline, monkeypatch, data):
    stdin(monkeypatch, data)
    assert run_config(pipeline, "-", "--pair", "b").texts == (
        TextInput("The bank\nby the river", pair="b", where="standard input"),
    )


@pytest.mark.parametrize("data", [b"user\nHi\n", b"user\nHi\r\n", b"user\nHi"])
def test_a_last_newline_of_standard_input_is_left_out_with_a_note_or_kept(
    pipeline, monkeypatch, capsys, data
):
    stdin(monkeypatch, data)
    assert run_config(pipeline, "-", "--keep-newline").texts[0].text == data.decode()
    assert capsys.readouterr().err == ""
    stdin(monkeypatch, data)
    assert run_config(pipeline, "-").texts[0].text == "user\nHi"
    note = (
        "attnscope: note: the last newline of standard input is left out; --keep-newline keeps it\n"
    )
    assert capsys.readouterr().err == (note if data.endswith(b"\n") else "")
    stdin(monkeypatch, data)
    run_config(pipeline, "-", "--quiet")
    assert capsys.readouterr().err == ""


def test_a_newline_is_only_kept_of_standard_input(pipeline, capsys):
    pipeline("fine")
    assert main(["run", "The bank", "--keep-newline"]) == 2
    assert "--keep-newline: only works with standard input; remove it" in capsys.readouterr().err


def test_standard_input_that_is_not_utf8(pipeline, monkeypatch, capsys):
    pipeline("fine")
    stdin(monkeypatch, b"good\nb\xe9d\n")
    assert main(["run", "-"]) == 1
    error = "standard input: byte 0xe9 at byte 1 of line 2 is not UTF-8; convert it to UTF-8"
    assert capsys.readouterr() == ("", f"attnscope: error: {error}\n")


def test_standard_input_without_end(pipeline, capsys, monkeypatch):
    pipeline("fine")
    with open("/dev/zero", "rb") as endless:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(endless))
        assert main(["run", "-"]) == 1
    assert (
        "standard input: is longer than 16,777,216 bytes; split the text" in capsys.readouterr().err
    )


def test_a_byte_order_mark_and_line_ends_of_windows_are_no_part_of_the_text(pipeline, monkeypatch):
    stdin(monkeypatch, b"\xef\xbb\xbfThe bank\r\n")
    assert run_config(pipeline, "-").texts[0].text == "The bank"


def stdin(monkeypatch, data):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_file_has_one_text_per_line(pipeline, tmp_path, capsys):
    path = tmp_path / "texts"
    path.write_bytes("The bank\n\nby the riverä\n".encode())
    assert [text.text for text in run_config(pipeline, "--file", str(path)).texts] == [
        "The bank",
        "by the riverä",
    ]
    assert capsys.readouterr().err == f"attnscope: note: {path}: line 2 skipped: blank\n"
    texts = run_config(pipeline, "--file", str(path), "--quiet", "--context", "Le quai").texts
    assert {text.context for text in texts} == {"Le quai"}
    assert capsys.readouterr().err == ""


def test_a_text_that_is_no_text(pipeline, tmp_path, capsys):
    assert main(["run", "--file", str(tmp_path / "missing")]) == 1
    assert capsys.readouterr().err.startswith(f"attnscope: error: {tmp_path}/missing: no such file")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["notes.txt"],
            "TEXT: 'notes.txt' is a file name, not a text; use --file notes.txt to read one text per line, or - to ",
        ),
        (
            ["./a.JSONL"],
            "TEXT: './a.JSONL' is a file name, not a text; use attnscope batch ./a.JSONL -o dump.jsonl to read its "
            "records",
        ),
        (
            ["bank"],
            "TEXT: 'bank' is a file name, not a text; use --file bank to read one text per line, or - to",
        ),
        (["my notes"], "TEXT: 'my notes' is a file name, not a text; use --file 'my notes' to"),
        (
            ["a.json"],
            "TEXT: 'a.json' is a file name, not a text; use attnscope compare with at least two saved",
        ),
        (
            ["x.npz"],
            "TEXT: 'x.npz' is a file name, not a text; use attnscope compare with at least two saved",
        ),
        (
            [TEXT, "--pair", "b.md"],
            "--pair: 'b.md' is a file name, not a text; pass the text itself; with a",
        ),
        (
            [TEXT, "--context", "bank"],
            "--context: 'bank' is a file name, not a text; pass the text itself",
        ),
        (
            ["./my bert"],
            "TEXT: './my bert' is a model, not a text; use --model './my bert' to open it",
        ),
        (
            ["my bert/config.json"],
            "TEXT: 'my bert/config.json' is a model, not a text; use --model 'my",
        ),
        (
            ["llama.GGUF"],
            "TEXT: 'llama.GGUF' is a model, not a text; use --model llama.GGUF to open it",
        ),
        (
            [TEXT, "--pair", "my bert"],
            "--pair: 'my bert' is a model, not a text; pass the text itself; with a",
        ),
    ],
)
def test_the_name_of_a_file_or_a_model_is_no_text(
    pipeline, tmp_path, monkeypatch, capsys, args, said
):
    monkeypatch.chdir(tmp_path)
    for name in ("bank", "my notes", "my bert/config.json"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("The bank\n")
    asked = pipeline("fine")
    assert main(["run", *args]) == 2
    assert capsys.readouterr().err.startswith(f"attnscope: error: {said}")
    assert asked == []


def test_a_dump_is_no_text(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("The bank\n")
    assert main(["batch", "texts.txt", "-o", "dump.jsonl", "--quiet"]) == 0
    assert main(["run", "dump.jsonl"]) == 2
    said = "TEXT: 'dump.jsonl' is a dump of attnscope batch, not a text; use attnscope explore dump.jsonl to walk"
    assert capsys.readouterr().err.startswith(f"attnscope: error: {said}")


@pytest.mark.parametrize(
    "text",
    [
        "See notes.txt",
        ".txt files",
        "What is 3.14?",
        "river",
        "a.b",
        "x\x00",
        "y" * 5000,
        "end.",
        "a.txt ",
    ],
)
def test_a_text_is_a_text(pipeline, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    assert run_config(pipeline, text, "--pair", "folder").texts == (TextInput(text, "folder"),)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["./bert"], "TEXT: './bert' is a model, not a text; use --model ./bert to open it"),
        (
            ["a.txt"],
            "TEXT: 'a.txt' is a file name, not a text; pass the text itself; with a space at the end, 'a.txt '",
        ),
        (
            ["--context", "a.txt"],
            "--context: 'a.txt' is a file name, not a text; pass the text itself",
        ),
    ],
)
def test_check_does_not_check_the_sample_on_the_name_of_a_model(
    tmp_path, monkeypatch, capsys, args, said
):
    monkeypatch.chdir(tmp_path)
    Path("bert").mkdir()
    Path("bert/config.json").write_text("{}")
    assert main(["check", *args]) == 2
    assert capsys.readouterr().err.startswith(f"attnscope: error: {said}")


def test_compare_takes_no_file_that_is_no_report_for_a_text(capsys):
    assert main(["compare", "x.safetensors", "y.json"]) == 2
    assert "TEXT: 'x.safetensors' is a file name, not a text" in capsys.readouterr().err


def test_standard_input_may_be_the_name_of_a_file(pipeline, monkeypatch):
    stdin(monkeypatch, b"notes.txt\n")
    assert run_config(pipeline, "-").texts[0].text == "notes.txt"


@pytest.mark.parametrize(
    ("args", "layer", "head"),
    [
        (["--head", "L2H3"], "2", "3"),
        (["--layer", "l2h3"], "2", "3"),
        (["--layer", "2", "--head", "L2H3"], "2", "3"),
        (["--layer", "L2", "--head", "H0-H2"], "2", "0-2"),
    ],
)
def test_labels_of_layers_and_heads_are_understood(pipeline, args, layer, head):
    got = run_config(pipeline, TEXT, *args)
    assert (str(got.layer), str(got.head)) == (layer, head)


def test_stages_and_contributors_may_be_left_out(pipeline):
    got = run_config(pipeline, TEXT, "--stage", "none", "--top", "0")
    assert (got.stages, got.top) == ((), 0)


@pytest.mark.parametrize("head", ["auto", "mean"])
@pytest.mark.parametrize("query", [None, "bank"])
def test_what_is_left_out_is_on_no_screen_and_in_json_that_fits_the_schema(
    tmp_path, capsys, head, query
):
    rows = [] if query is None else ["--query", query]
    for stage, top in (("none", "0"), ("none", "2"), ("weights", "0")):
        args = ["run", TEXT, "--head", head, "--stage", stage, "--top", top, *rows]
        for format in ("table", "heat"):
            assert main([*args, "--format", format]) == 0
            out = capsys.readouterr().out
            assert ("top contributors" in out) == (top != "0")
            assert bool(re.search(r"^ *(weights |weights: |key .* weights)", out, re.M)) == (
                stage != "none"
            )
            assert "\n\n\n" not in out
        assert main([*args, "--format", "json"]) == 0
        data = json.loads(capsys.readouterr().out)
        validate(data, "report")
        report = from_json(json.dumps(data).encode())
        (found,) = report.texts[0].heads
        assert found.top.keys.shape == found.top.weight.shape == (1 if query else 5, int(top))
        assert list(found.stages) == ([] if stage == "none" else [stage])
        target = tmp_path / f"{head}{query}{stage}{top}.safetensors"
        assert main([*args, "--output", str(target), "--quiet"]) == 0
        assert load_file(target)["top.keys"].shape == (1, 1, *found.top.keys.shape)


@pytest.mark.parametrize(
    "command",
    [["run"], ["compare"], ["explain", "--query", "bank"], ["heads"], ["ablate", "--cut", "L0H0"]],
)
def test_an_output_that_is_the_input_is_refused(command, tmp_path, capsys):
    texts = tmp_path / "texts.txt"
    texts.write_text("The bank by the river\n")
    assert main([*command, "--file", str(texts), "--output", str(texts), "--force"]) == 1
    said = f"attnscope: error: {texts}: is an input of this command; choose another output\n"
    assert capsys.readouterr() == ("", said)
    assert texts.read_text() == "The bank by the river\n"


@pytest.mark.parametrize(
    "command",
    [["run"], ["compare"], ["explain", "-q", "b"], ["heads"], ["ablate", "--cut", "L0H0"]],
)
@pytest.mark.parametrize("read", ["mask", "model"])
def test_an_output_that_is_the_mask_or_belongs_to_the_model_is_refused(
    command, read, tmp_path, capsys
):
    shutil.copytree(Path(__file__).parents[2] / "sample_weights" / "riverbank", tmp_path / "model")
    masks = tmp_path / "allowed.json", tmp_path / "link.json"
    masks[0].write_text("[[true, false], [true, true]]")
    masks[1].symlink_to(masks[0])
    mine = masks[0] if read == "mask" else tmp_path / "model" / "config.json"
    before = mine.read_bytes()
    args = [
        "a b",
        "--model",
        str(tmp_path / "model"),
        "--mask",
        f"causal+{masks[1]}",
        "--output",
        str(mine),
        "--force",
    ]
    assert main([*command, *args]) == 1
    which = (
        f"is a file of {tmp_path / 'model'}" if read == "model" else "is an input of this command"
    )
    assert capsys.readouterr() == (
        "",
        f"attnscope: error: {mine}: {which}; choose another output\n",
    )
    assert mine.read_bytes() == before


def test_an_output_that_is_a_compared_report_is_refused(tmp_path, capsys):
    one, other = tmp_path / "a.json", tmp_path / "b.json"
    for path in (one, other):
        assert main(["run", "a b", "--config", "causal", "--output", str(path), "--quiet"]) == 0
    assert main(["compare", str(one), str(other), "--output", str(other), "--force"]) == 1
    said = f"attnscope: error: {other}: is an input of this command; choose another output\n"
    assert capsys.readouterr() == ("", said)


TARGETS = (
    ("When Mary and John went", "Mary", "␣Mary", True),
    ("When Mary and John went ", "Mary", "Mary", False),
    ("When Mary and John went", " Mary", "␣Mary", False),
    ("When Mary and John went", "<25653>", "Mary", False),
    # without the space, it is two tokens
    ("When Mary and John went", "trophy", "␣trophy", False),
    ("When Mary and John went", ".", ".", False),
)
BY_LOGIT = ("run", "--by", "logit", "--stage", "none", "--query", "-1")


@in_two("targets", TARGETS, short=2)
def test_a_target_after_a_word_is_taken_with_its_space(targets, smollm2, capsys):
    """And the header says so, above the table; a text that ends in a space, a mark or an id keep what was typed."""
    said = "note --target 'Mary' is taken as ' Mary', since the text does not end in a space; <25653> is 'Mary' without"
    for text, target, token, noted in targets:
        assert main([*BY_LOGIT, "--model", str(smollm2), text, "--target", target]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert f"logit of {token} after" in out, (text, target)
        assert (said in out) is noted
        assert not noted or out.index(said) < out.index("logit of")


@pytest.mark.exhaustive
def test_of_two_targets_each_is_as_typed(smollm2, capsys):
    asked = [*BY_LOGIT, "--model", str(smollm2)]
    assert main([*asked, "When Mary and John went", "--target", "Mary", "--target", " Mary"]) == 0
    assert "logit of Mary minus that of ␣Mary" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, "When Mary and John went ", "--target", "trophy"]) == 2
    assert (
        "with the space before it, it is one token: --target ' trophy'" in capsys.readouterr().err
    )


def test_notes_are_about_what_is_shown(capsys):
    """Not of a map that the least attended tokens replace; but of words beside spans, where no head is shown."""
    long = "The bank by the river. " * 16
    for options, noted in ((["--least", "2"], False), ([], True)):
        assert main(["run", long, *options]) == 0
        assert ("replaces the matrices" in " ".join(capsys.readouterr().out.split())) == noted
    assert main(["run", "The bank by the river", "--spans", "words", "--words"]) == 0
    assert "--layer L --head H adds the matrices of a head" in " ".join(
        capsys.readouterr().out.split()
    )


@in_two(
    "cases", [("河岸", False, True), ("河岸", True, False), ("the bank", False, False)], short=1
)
def test_bytes_of_a_character_hint_at_words(cases, smollm2, capsys):
    asked = ["run", "--model", str(smollm2), "--layer", "3", "--head", "2"]
    for text, words, hinted in cases:
        assert main([*asked, text, *(["--words"] if words else [])]) == 0
        assert (
            "--words (whole words, not their bytes)" in " ".join(capsys.readouterr().out.split())
        ) is hinted


def test_a_key_alone_says_what_is_true_of_it(capsys):
    """It said "all allowed" and "over all 5 keys" of a row that may see four of them."""
    asked = ["run", "The bank by the river", "--mask", "causal", "--query", "3"]
    for key, meaning in (("1", "this key is allowed"), ("4", "· is not allowed")):
        assert main([*asked, "--key", key]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert f"(head width); {meaning} weights:" in out
        assert "each row sums to 1 over the keys that it may see" in out
    assert main([*asked, "--key", "0:2"]) == 0
    assert "(head width); all of these are allowed" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, "--key", "0:5"]) == 0
    assert "each row sums to 1;" in " ".join(capsys.readouterr().out.split())


def test_rows_that_are_all_masked_are_not_said_to_sum_to_1(capsys):
    asked = ["run", "The bank by the river", "--hide", "0:"]
    for options, said in (
        (("--layer", "0", "--head", "0"), "softmax of masked; masked: no key is allowed"),
        (("--layer", "0", "--head", "0", "--key", "1"), "masked: no key is allowed"),
        (("--layer", "0", "--head", "0", "--pool", "2"), "a run of queries; no row has weights"),
        (("--spans", "words"), "(summed); no row has weights"),
    ):
        assert main([*asked, *options]) == 0
        shown = re.sub(r"[│\s]+", " ", capsys.readouterr().out)
        assert said in shown or options[-2:] == ("--key", "1"), shown
        assert "sums to" not in shown


def test_a_layer_whose_heads_add_nothing_still_has_an_mlp(tmp_path, capsys):
    path, model = save_gpt2(tmp_path)
    for block in model.transformer.h:
        block.attn.c_proj.weight.data.zero_()
    model.save_pretrained(path)
    assert main(["run", "the bank by river", "--model", path, "--by", "logit"]) == 0
    out = capsys.readouterr().out
    assert "L0 MLP" in out
    assert "whole layer" not in out


def test_a_list_says_whose_contribution_it_has(capsys):
    asked = ["run", "The bank by the river", "--query", "bank"]
    for top, said in (("2", True), ("5", False)):
        assert main([*asked, "--top", top]) == 0
        assert (f"α·‖v‖: of the top {top} keys alone" in capsys.readouterr().out) is said
    assert main([*asked, "--top", "1"]) == 0
    assert "α·‖v‖: of the top key alone" in capsys.readouterr().out
    assert main([*asked[:2], "--pool", "2", "--mask", "sink:1"]) == 0
    assert "the 1 below receives 100 %" in " ".join(capsys.readouterr().out.split())


def test_the_last_word_of_a_text_is_in_its_header(capsys, monkeypatch):
    """The token after it is predicted."""
    text = "The animal did not cross the street because it was too"
    for text_of_header in (text, f"{text}. " * 9 + text):
        for width in (60, 80, 120):
            monkeypatch.setenv("COLUMNS", str(width))
            assert main(["run", text_of_header, "--query", "8"]) == 0
            (line,) = re.findall(r"^text +(.*)$", capsys.readouterr().out, re.MULTILINE)
            start, _, end = line.partition(" · ")[0].rpartition("…")
            assert text.endswith(end) and end.endswith(" too")
            assert text.startswith(start)


def test_colours_do_not_decide_what_is_on_a_screen():
    """The key of colours took lines, so that a briefer form was taken."""
    differ = []
    for count in range(2, 9):
        text = "the bank by the river of old stones"
        report = inspect(requested(texts=(TextInput(" ".join(text.split()[:count])),)))
        plain, coloured = (as_text(present(report, brief=True), 80, colours=n) for n in (0, 256))
        assert "top contributors" in plain
        differ.append(("α·‖v‖" in plain) != ("α·‖v‖" in coloured))
    assert not any(differ)


def test_the_header_of_a_head_says_what_each_share_counts(capsys):
    assert main(["run", "The bank by the river, and a bank by the road."]) == 0
    out = " ".join(capsys.readouterr().out.split())
    shares = {
        name: float(value)
        for value, name in re.findall(r"([\d.]+) (?:of its weight )?on ([a-z ]+)", out)
    }
    assert abs(sum(shares.values()) - shares["punctuation "] - 1) < 0.02
    assert "on punctuation (counted above, too)" in out
    assert main(["run", "The bank by the river"]) == 0
    said = "content weight: weight on other words that neither distance nor word explains"
    assert said in " ".join(capsys.readouterr().out.split())
