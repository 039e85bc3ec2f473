"""The terminal is as it was, however a walk ends; and whatever tokens hold, only our own sequences reach it."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
import unicodedata
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

pytest.importorskip("textual", reason="textual is not installed")

import attnscope
from attnscope.cli import main
from attnscope.findings.codec import to_json
from attnscope.studies.explore.saved import report_source
from attnscope.views.explore.app import ExploreApp
from attnscope.views.walk.scene import STAGES
from tests.explore.proof import KEYS, press
from tests.explore.pseudo_terminal import PseudoTerminal
from tests.helpers.sample_reports import HOSTILE

TEXT = "The bank by the river"
pytestmark = pytest.mark.unix


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "report.json"
    path.write_bytes(to_json(attnscope.inspect(TEXT, layer="all", head="all", stages=STAGES).data))
    return str(path)


def test_quitting_prints_the_command_below_the_old_screen(saved):
    with closing(PseudoTerminal("explore", saved)) as terminal:
        terminal.wait_for(b"softmax of masked")
        # the model is not needed
        assert b"libtorch" not in Path(f"/proc/{terminal.process.pid}/maps").read_bytes()
        terminal.press(b"}]jG")
        terminal.read(0.3)
        terminal.press(b"q")
        assert terminal.end() == 0
        said = terminal.written.rpartition(b"\x1b[?1049l")[2]
        assert b"attnscope run 'The bank by the river' --layer 1 --head 1 --query river" in said
        assert terminal.is_as_before()


def test_saved_findings_are_opened_without_what_computes_them(saved, tmp_path):
    """What compares two runs was imported before the first screen, with sessions and every family of checkpoints."""
    (tmp_path / "texts.txt").write_text(f"{TEXT}\n")
    dump, comparison = str(tmp_path / "dump.jsonl"), str(tmp_path / "comparison.json")
    assert main(["batch", str(tmp_path / "texts.txt"), "-o", dump, "--quiet"]) == 0
    assert main(["compare", TEXT, "-o", comparison, "--quiet"]) == 0
    script = (
        "import sys\n"
        "from types import SimpleNamespace\n"
        "from attnscope.cli.explore import saved_source\n"
        "from attnscope.views.explore.app import ExploreApp\n"
        "for path in sys.argv[1:]:\n"
        "    app = ExploreApp(saved_source(SimpleNamespace(text=path, file=None, typed=())))\n"
        "    app.state.settle()\n"
        "    print(app.state.head is not None, {'torch', 'attnscope.run.session'} & {*sys.modules})\n"
    )
    command = [sys.executable, "-c", script, saved, dump, comparison]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
        == "True set()\n" * 3
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_walk_at_once(saved, number, code):
    with closing(PseudoTerminal("explore", saved)) as terminal:
        terminal.wait_for(b"softmax of masked")
        start = time.monotonic()
        terminal.process.send_signal(number)
        assert terminal.end() == code and time.monotonic() - start < 3
        assert terminal.is_as_before()


def test_control_c_ends_it_at_any_size(saved):
    with closing(PseudoTerminal("explore", saved, size=(1, 1))) as terminal:
        terminal.wait_for(b"\x1b[?1049h")
        terminal.read(1.0)
        for size in ((120, 40), (20, 5), (1, 1), (80, 24)):
            terminal.resize(*size)
            terminal.press(b"lj")
            terminal.read(0.2)
        terminal.wait_for("▼".encode())
        terminal.press(b"\x03")
        assert terminal.end() == 130 and terminal.is_as_before()
        assert b"Traceback" not in terminal.written


def test_a_dead_terminal_ends_it(saved):
    with closing(PseudoTerminal("explore", saved)) as terminal:
        terminal.wait_for(b"softmax of masked")
        os.close(terminal._slave)
        terminal._slave = -1
        terminal.close_master()
        assert terminal.process.wait(10) in (129, 1)


@pytest.mark.parametrize("colours", ["truecolor", "256", "16", "none"])
def test_colours_are_those_that_the_terminal_has(saved, colours):
    settings = {
        "truecolor": {},
        "256": {"COLORTERM": ""},
        "16": {"COLORTERM": "", "TERM": "xterm-16color"},
        "none": {"NO_COLOR": "1"},
    }[colours]
    with closing(PseudoTerminal("explore", saved, **settings)) as terminal:
        terminal.wait_for(
            {"truecolor": b"48;2;", "256": b"48;5;", "16": b"46", "none": "█".encode()}[colours]
        )
        terminal.wait_for(b"softmax of masked")
        terminal.read(0.5)
        terminal.press(b"q")
        assert terminal.end() == 0
        seen = {
            name: mark in terminal.written
            for name, mark in (("truecolor", b"48;2;"), ("256", b"48;5;"))
        }
        assert seen == {"truecolor": colours == "truecolor", "256": colours == "256"}
        if colours in ("16", "none"):
            assert bool(re.search(rb"\x1b\[(?:\d+;)*4[1-7]m", terminal.written)) == (
                colours == "16"
            )
        assert ("█".encode() in terminal.written) or colours != "none"


def test_a_piped_text_is_walked_through_with_keys_of_the_terminal(tmp_path):
    script = tmp_path / "walk.py"
    script.write_text(
        "import os, subprocess, sys\n"
        f"walk = subprocess.Popen([sys.executable, '-m', 'attnscope', 'explore', '-'], stdin=subprocess.PIPE)\n"
        f"walk.communicate({TEXT!r}.encode() + b'\\n')\n"
        "sys.exit(walk.returncode)\n"
    )
    with closing(PseudoTerminal(script=script)) as terminal:
        terminal.wait_for(b"softmax of masked", 60)
        terminal.read(0.5)
        terminal.press(b"q")
        assert terminal.end() == 0
        assert b"attnscope run - --layer 2 --head 0 --query river" in terminal.written
        assert terminal.is_as_before()


def test_what_is_drawn_while_a_tokenizer_is_called_is_seen(saved, tmp_path):
    script = tmp_path / "walk.py"
    script.write_text(
        "import threading, time\n"
        "from pathlib import Path\n"
        "from attnscope.batch.reports import write_report\n"
        "from attnscope.checkpoints.tokenization.rust import call_rust\n"
        "from attnscope.studies.explore.opening import findings_source\n"
        "from attnscope.views.explore.terminal import walk\n"
        "called = threading.Event()\n"
        "def encode():\n"
        "    called.set()\n"
        "    time.sleep(2)\n"
        "def scene(variant):\n"
        "    if not called.is_set():\n"
        "        threading.Thread(target=call_rust, args=(encode, Path(), 'encoding')).start()\n"
        "        called.wait()\n"
        "    return saved_scene(variant)\n"
        f"source = findings_source(Path({saved!r}))\n"
        "saved_scene, source.scene = source.scene, scene\n"
        "walk(source, write_report)\n"
    )
    with closing(PseudoTerminal(script=script)) as terminal:
        terminal.wait_for(b"softmax of masked")
        terminal.press(b"q")
        assert terminal.end() == 0 and terminal.is_as_before()


@pytest.mark.parametrize("moment", [0.0, 0.3, 0.8])
def test_leaving_while_torch_computes_is_clean(moment, tmp_path):
    script = tmp_path / "walk.py"
    script.write_text(
        "import sys\n"
        "import torch\n"
        "from attnscope.cli import main\n"
        "from attnscope.studies.explore.live import LiveSource\n"
        "def measure(source, variant, progress):\n"
        "    progress('cutting each head', 2, 2)\n"
        "    square = torch.ones(700, 700)\n"
        "    while True:\n"
        "        square @ square\n"
        "LiveSource.measure_effects = measure\n"
        "sys.exit(main())\n"
    )
    with closing(PseudoTerminal("explore", TEXT, script=script)) as terminal:
        terminal.wait_for(b"softmax of masked")
        terminal.read(0.5)
        terminal.press(b"E")
        terminal.wait_for(b"cutting each head")
        terminal.read(moment)
        terminal.press(b"q")
        assert terminal.end() == 0
        said = terminal.written.rpartition(b"attnscope run ")[2]
        assert said == b"'The bank by the river' --layer 2 --head 0 --query river --key bank\r\n"
        assert terminal.is_as_before()


def test_a_model_in_python_is_walked_through(tmp_path):
    script = tmp_path / "walk.py"
    script.write_text(
        "import attnscope\n"
        "with attnscope.open_model() as model:\n"
        f"    print('left at', model.explore({TEXT!r}, layer=3, head=1, query='bank', words=True, cut='L0H1'))\n"
    )
    with closing(PseudoTerminal(script=script)) as terminal:
        terminal.wait_for(b"mean of", 60)
        terminal.read(0.5)
        terminal.press(b"q")
        assert terminal.end() == 0
        assert (
            b"left at attnscope run 'The bank by the river' --cut L0H1 --words --layer 3 --head 1 --query bank"
            in terminal.written
        )
        assert terminal.is_as_before()


def test_findings_in_memory_and_in_a_file_are_walked_through_in_python(saved, tmp_path):
    script = tmp_path / "walk.py"
    script.write_text(
        "import attnscope\n"
        "from pathlib import Path\n"
        f"found = attnscope.load({str(saved)!r})\n"
        f"for explored in (Path({str(saved)!r}), found):\n"
        "    print('left at', attnscope.explore(explored, layer=1, head=2), flush=True)\n"
        "for keyword in ('mask', 'model'):\n"
        "    try:\n"
        "        attnscope.explore(found, **{keyword: 'causal'})\n"
        "    except attnscope.AttnscopeError as error:\n"
        "        print(error)\n"
    )
    with closing(PseudoTerminal(script=script)) as terminal:
        for walks in (1, 2):
            terminal.wait_for(b"softmax of masked", 60)
            terminal.read(0.5)
            terminal.written = b""
            terminal.press(b"q")
            terminal.wait_for(b"left at attnscope run", 20)
            assert b"--layer 1 --head 2" in terminal.written, walks
        assert terminal.end() == 0
        for keyword in (b"mask", b"model"):
            line = (
                keyword
                + b": what is explored was computed already; remove the option, or pass a text"
            )
            assert line in terminal.written
        assert terminal.is_as_before()


def test_without_a_terminal_it_says_so(capsys):
    assert main(["explore", TEXT]) == 1
    assert capsys.readouterr().err == (
        "attnscope: error: explore needs a terminal that can be drawn on (standard error, and TERM); "
        "use attnscope run, compare or heads to print\n"
    )


def hostile_report():
    """A report whose tokens are what nobody wants on a terminal."""
    words = [
        *HOSTILE,
        "ש" * 30,
        "\u2066x\u2069",
        "w" * 20_000,
        "👩\u200d👩\u200d👧",
        "\x1b]52;c;aGk=\x07",
        "\udcff",
    ]
    text = " ".join(["bank"] * len(words))
    report = attnscope.inspect(text, layer="all", head="all", stages=STAGES, top=4).data
    inner, end = report.texts[0], 0
    tokens, spelled = [], ""
    for token, word in zip(inner.tokens, words, strict=True):
        start, spelled = len(spelled), f"{spelled}{word} "
        tokens.append(replace(token, text=word, piece=word, start=start, end=start + len(word)))
    assert end == 0
    made = replace(report.provenance, model="\x1b[31mmodel\u202e", notes=["\x9bnote"])
    return replace(report, provenance=made, texts=[replace(inner, tokens=tokens, text=spelled)])


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (30, 10)])
@pytest.mark.parametrize("colours", [1 << 24, 0])
def test_hostile_tokens_are_escaped_and_never_wider_than_their_panel(size, colours):
    source, rng = report_source(hostile_report()), np.random.default_rng(3)

    async def walk():
        app = ExploreApp(source, colours=colours)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            for n in range(40):
                press(app, str(rng.choice(KEYS)))
                if n % 5 == 0:
                    await pilot.pause()
                    for strip in app.screen._compositor.render_strips():
                        assert strip.cell_length == size[0]
                        bad = {unicodedata.category(c) for c in strip.text} & {
                            "Cc",
                            "Cf",
                            "Cs",
                            "Co",
                            "Cn",
                            "Zl",
                            "Zp",
                        }
                        assert not bad, strip.text
        assert not app.failure, app.failure

    asyncio.run(walk())
