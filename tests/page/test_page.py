"""What a page holds: every part, exact numbers, and nothing that a browser would obey."""

import json
import re
import shlex
import tempfile
import webbrowser
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import attnscope
from attnscope.checkpoints.samples import samples_folder
from attnscope.cli import main
from attnscope.studies.formats import export
from attnscope.views.page import asset
from tests.helpers.sample_reports import report, text_report, tokens
from tests.page.reading import PageData, read_page, text_in

TEXT = "The bank by the river"
COMMANDS = {
    "run": ["run", TEXT],
    "compare": ["compare", TEXT],
    "explain": ["explain", TEXT, "--query", "bank"],
    "heads": ["heads", TEXT, "--measure", "entropy"],
    "ablate": ["ablate", TEXT, "--cut", "L2H0", "--at", "bank"],
}


def page_of(findings, tmp_path):
    return PageData(b"".join(export(findings, tmp_path / "page.html")).decode())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_loads_nothing_and_allows_only_its_own_script(command, tmp_path):
    path = tmp_path / "page.html"
    assert main([*COMMANDS[command], "-o", str(path), "--quiet"]) == 0
    page = read_page(path)
    # a page is read elsewhere, even with --quiet
    masks = "compare" if command == "compare" else "mask"
    assert {"model", masks} <= {term[2] for term in page.elements("dt")}
    assert any(
        re.sub(r"\W+", " ", text_in(value)).startswith("riverbank bert ")
        for value in page.elements("dd")
    )
    assert any(text_in(value).startswith(TEXT) for value in page.elements("dd"))
    shell = re.sub(r"<script.*?</script>|<style>.*?</style>", "", page.html, flags=re.DOTALL)
    assert not re.search(r"\b(src|href)=|refresh", shell)
    scripts = re.findall(r"<script>(.*?)</script>", page.html, re.DOTALL)
    # and the compressed ones are those of the package
    unpacked = [page.unpacked(name) for name in ("script", "style")]
    assert unpacked == [asset("page.js").encode(), asset("page.css").encode()]
    texts = [text.encode() for text in scripts] + unpacked
    hashes = [b64encode(sha256(text).digest()).decode() for text in texts]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page.html)[1]
    assert policy.startswith("default-src 'none'; ")
    assert re.findall(r"'sha256-([^']*)'", policy) == hashes
    assert "unsafe" not in policy


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_has_no_folder_of_this_machine(command, tmp_path):
    """A path of up to 30 characters stood in the header."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        model = Path(folder, "my-riverbank")
        model.symlink_to(samples_folder("sample_weights") / "riverbank")
        assert len(str(model)) <= 30
        path = tmp_path / "page.html"
        assert main([*COMMANDS[command], "--model", str(model), "-o", str(path), "--quiet"]) == 0
        header = json.dumps(read_page(path).header)
        assert "my-riverbank" in header and folder not in header + path.read_text()


def test_numbers_of_heads_are_exact(tmp_path):
    for name in ("page.html", "exact.json"):
        assert main([*COMMANDS["heads"], "-o", str(tmp_path / name), "--quiet"]) == 0
    page, exact = (
        read_page(tmp_path / "page.html"),
        json.loads((tmp_path / "exact.json").read_text()),
    )
    (scene,) = page.of_kind("walk")[0]["scenes"]
    assert scene["numbers"][0]["name"] == scene["display"] == "entropy"
    np.testing.assert_array_equal(
        page.numbers(scene["numbers"][0]["values"]), np.array(exact["values"], np.float32)
    )


def test_untrusted_text_is_data(tmp_path):
    hostile = "</script><img src=x onerror=alert(1)>\x1b\u202e"
    page = page_of(
        report(text_report(tokens([hostile, "b"]), text=hostile), notes=[hostile]), tmp_path
    )
    assert page.html.count("</script>") == 4
    assert "<img" not in page.html
    assert "&lt;/script&gt;&lt;img src=x" in page.html  # the title
    text = json.dumps(page.header, ensure_ascii=False)
    assert "</script><img src=x onerror=alert(1)>\\\\x1b\\\\u202e" in text
    assert not {"\x1b", "\u202e"} & set(text)


def test_a_dump_becomes_a_page(tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("The bank by the river\nShe sat by the bank\n", encoding="utf-8")
    dump, path = tmp_path / "dump.jsonl", tmp_path / "page.html"
    assert main(["batch", str(texts), "-o", str(dump), "--quiet"]) == 0
    assert main(["convert", str(dump), str(path), "--quiet"]) == 0
    page = read_page(path)
    (walk,) = page.of_kind("walk")
    records = [json.loads(line) for line in dump.read_text(encoding="utf-8").splitlines()[1:-1]]
    assert walk["texts"] == ["record 1: The bank by the rive…", "record 2: She sat by the bank"]
    assert len(records) == 2
    for scene, record in zip(walk["scenes"], records, strict=True):
        assert scene["queries"]["names"] == [token["text"] for token in record["tokens"]]
        (group,) = scene["groups"]
        weights = np.moveaxis(page.numbers(group["measures"]["weight"]), 0, 2)
        np.testing.assert_array_equal(weights, np.array(record["top"]["weight"], np.float32))
        np.testing.assert_array_equal(np.moveaxis(page.places(group), 0, 2), record["top"]["keys"])
        entropy = page.numbers(group["statistics"]["entropy"])
        np.testing.assert_array_equal(entropy, np.array(record["rows"]["entropy"], np.float32))
    assert main(["convert", str(dump), str(path), "--quiet"]) == 1  # it exists


def test_open_shows_a_page_in_the_browser(monkeypatch, tmp_path, capsys):
    opened = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    assert main(["run", TEXT, "--open"]) == 0
    (path,) = tmp_path.rglob("run.html")
    assert opened == [path.as_uri()]
    named = tmp_path / "named.html"
    assert main(["run", TEXT, "-o", str(named), "--open"]) == 0
    assert opened[1:] == [named.as_uri()]
    assert main(["run", TEXT, "-o", str(tmp_path / "named.json"), "--open"]) == 2
    said = capsys.readouterr().err
    assert "--open and --output" in said
    assert "cannot be used together: a browser opens a page" in said


def test_spans_and_every_head_are_on_a_page(tmp_path):
    path = tmp_path / "page.html"
    assert (
        main(
            ["run", "It rained. She went home.", "--spans", "sentences", "-o", str(path), "--quiet"]
        )
        == 0
    )
    page = read_page(path)
    kinds = [node["k"] for node in page.nodes if isinstance(node, dict)]
    assert kinds == ["walk"]
    _, scene = page.of_kind("walk")[0]["scenes"]
    assert [unit["name"] for unit in scene["units"]] == [
        f"L{n}H{m}" for n in range(4) for m in range(4)
    ]


def test_a_comparison_begins_between_spans(tmp_path):
    path, text = tmp_path / "page.html", "It rained. She went home."
    assert main(["compare", text, "--spans", "sentences", "-o", str(path), "--quiet"]) == 0
    page = read_page(path)
    assert not page.of_kind("panels")
    scenes = page.of_kind("walk")[0]["scenes"]
    spans = [[0], [1, 2, 3], [4, 5, 6, 7]]  # It | rain ##ed . | She went home .
    for scene, mask in zip(scenes, ("causal", "bidirectional"), strict=False):
        every = ["--layer", "all", "--head", "all", "--stage", "weights", "--mask", mask]
        arrays = tmp_path / f"{mask}.npz"
        assert main(["run", text, *every, "-o", str(arrays), "--quiet"]) == 0
        weights = np.load(arrays)["weights"].astype(np.float64).mean((0, 1))  # (queries, keys)
        expected = [[weights[row][:, column].sum(1).mean() for column in spans] for row in spans]
        (mean,) = [unit for unit in scene["units"] if unit["name"] == "mean"]
        np.testing.assert_allclose(page.stage(mean, "weights"), expected, atol=1e-6)


def test_the_share_that_moved_is_that_of_the_weights(tmp_path):
    text = "The bank by the river was steep , so they walked along the river to the bank"
    weights = []
    for mask in ("causal", "bidirectional"):
        every = ["--layer", "all", "--head", "all", "--stage", "weights", "--mask", mask]
        assert (
            main(["run", text, *every, "-o", str(tmp_path / "exact.npz"), "--quiet", "--force"])
            == 0
        )
        # (layers, heads, queries, keys)
        weights.append(np.load(tmp_path / "exact.npz")["weights"].astype(np.float64))
    moved = weights[1] - weights[0]
    of_a_row = np.abs(moved).sum(-1).max(-1) / 2  # of the row in which most moved
    # a map keeps the weight that each token receives
    of_maps = np.abs(moved.sum(-2)).sum(-1) / 2 / moved.shape[-2]
    for options, expected in ([], of_a_row), (["--pool", "8"], of_maps):
        assert (
            main(
                ["compare", text, *options, "-o", str(tmp_path / "page.html"), "--quiet", "--force"]
            )
            == 0
        )
        page = read_page(tmp_path / "page.html")
        numbers = page.of_kind("walk")[0]["scenes"][-1]["numbers"][0]
        assert numbers["name"] == "moved"
        np.testing.assert_allclose(page.numbers(numbers["values"]), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("moved", "words"), [(0.0, "nothing: "), (2e-5, "at most 2e-05 "), (0.3, None)]
)
def test_rounding_is_no_finding_of_a_comparison(moved, words, tmp_path, capsys):
    """A page says what a terminal says when less than 0.005 of every row moved, and has no map of it."""
    path, *files = (tmp_path / name for name in ("page.html", "before.json", "after.json"))
    every = ["--layer", "all", "--head", "all", "--stage", "weights"]
    assert main(["run", TEXT, *every, "-o", str(files[0]), "--quiet"]) == 0
    report = json.loads(files[0].read_text())
    row = report["texts"][0]["heads"]["stages"]["weights"][6][1]
    row[row.index(min(row))] += moved
    row[row.index(max(row))] -= moved
    files[1].write_text(json.dumps(report))
    sides = list(map(str, files))
    assert main(["compare", *sides, "-o", str(path), "--quiet"]) == 0
    scene = read_page(path).of_kind("walk")[0]["scenes"][0]
    capsys.readouterr()
    assert main(["compare", *sides, "--summary"]) == 0
    found = re.search(r"what moved  ((?:nothing:|at most) .*)", capsys.readouterr().out)
    if words is None:
        assert found is None
        assert "Of all heads, most weight moved in L1H2: 0.30, then in " in scene["answer"]
    else:
        assert found[1].startswith(words)
        assert scene["answer"] == f"What moved: {found[1]}."
        assert "moved" not in (scene["display"], *(number["name"] for number in scene["numbers"]))


def test_the_command_on_a_page_shows_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    arrays = {name: draw.standard_normal((1, 2, 5, 4), np.float32) for name in "qkv"}
    np.savez("given.npz", **arrays)
    for n, options in enumerate(
        (["--qkv", "given.npz"], [TEXT, "--mask", "causal", "--generate", "2"])
    ):
        assert main(["run", *options, "-o", f"{n}.html", "--quiet"]) == 0
        (scene,) = read_page(tmp_path / f"{n}.html").of_kind("walk")[0]["scenes"]
        assert main([*shlex.split(scene["command"])[1:], "-o", f"{n}.json", "--stage", "none"]) == 0
        names = [
            token["text"]
            for token in json.loads((tmp_path / f"{n}.json").read_text())["texts"][0]["tokens"]
        ]
        assert [name.removeprefix("+") for name in scene["queries"]["names"]] == names
    attnscope.from_qkv(**arrays).save("memory.html")  # there is no command for arrays in memory
    (scene,) = read_page(tmp_path / "memory.html").of_kind("walk")[0]["scenes"]
    assert scene["command"] == ""


def test_long_lists_are_folded(tmp_path):
    path, exact = tmp_path / "page.html", tmp_path / "exact.json"
    for output in (path, exact):
        assert main([*COMMANDS["explain"], "-o", str(output), "--quiet"]) == 0
    folded = re.findall(
        r'\["details",.*?… (\d+) more', json.dumps(read_page(path).nodes, ensure_ascii=False)
    )
    assert folded[:3] == ["181"] * 3  # of a length and 192 numbers, 12 are in sight


def test_a_role_lists_three_heads_and_folds_the_rest(tmp_path):
    path = tmp_path / "page.html"
    assert main(["heads", "--draws", "2", "-o", str(path), "--quiet"]) == 0
    rows = [text_in(row) for row in read_page(path).elements("tr")]
    folded = [row for row in rows if " more" in row]
    assert len(folded) > 5
    for row in folded:
        shown, rest = re.split(r"… \d+ more", row)
        assert len(re.findall(r"L\d+H\d+", shown)) == 3
        assert len(re.findall(r"L\d+H\d+", rest)) == int(re.search(r"… (\d+) more", row)[1])


def test_a_folded_list_counts_heads_that_are_not_listed(monkeypatch, tmp_path):
    """All heads with a role that is not 0.00, recomputed from the exact values."""
    monkeypatch.setattr("attnscope.studies.heads.screen._MOST", 9)
    path, exact = tmp_path / "page.html", tmp_path / "exact.json"
    for output in (path, exact):
        assert main(["heads", "--draws", "2", "-o", str(output), "--quiet"]) == 0
    roles = {role["name"]: role for role in json.loads(exact.read_text())["roles"]}
    count = int((np.array(roles["first"]["values"]) >= 0.005).sum())
    assert count > 9
    text = json.dumps(read_page(path).nodes, ensure_ascii=False)
    assert f"… {count - 3} more" in text
    assert f"… {count - 9} more, not listed here" in text


def test_the_title_of_a_chat_is_what_the_user_asked(smollm2, tmp_path):
    chat, path = tmp_path / "chat.json", tmp_path / "page.html"
    messages = [{"role": "user", "content": "Which river is longer?"}]
    chat.write_text(json.dumps(messages), encoding="utf-8")
    command = ["run", "--chat", str(chat), "--model", str(smollm2)]
    assert main([*command, "-o", str(path), "--quiet"]) == 0
    assert text_in(read_page(path).header["heading"]) == "Which river is longer? · attnscope run"


def test_a_page_can_be_replaced(tmp_path):
    path = tmp_path / "page.html"
    assert main(["run", TEXT, "-o", str(path), "--quiet"]) == 0
    assert main(["run", TEXT, "-o", str(path), "--quiet"]) == 1
    assert main(["run", TEXT, "-o", str(path), "--quiet", "--force"]) == 0


@pytest.mark.parametrize("command", ["run", "compare", "compare --layer 1,2"])
def test_roles_on_a_page_are_those_of_its_text(command, tmp_path):
    text = "The bank by the river was steep , so they walked along the river to the bank"
    path, exact = tmp_path / "page.html", tmp_path / "exact.npz"
    assert main([*command.split(), text, "-o", str(path), "--quiet"]) == 0
    every = ["--layer", "all", "--head", "all", "--stage", "weights"]
    assert main(["run", text, "-o", str(exact), "--quiet", *every]) == 0
    page = read_page(path)
    scene = page.of_kind("walk")[0]["scenes"][-1]  # of a comparison: the side that is bidirectional
    roles = scene["roles"]
    # (layers, heads, queries, keys)
    weights = np.load(exact)["weights"].astype(np.float64)[scene["layers"]]
    count = weights.shape[-1]
    rows = np.arange(2, count)  # words from the third token on; this text has no special tokens
    expected = {
        "previous": weights[:, :, rows, rows - 1].mean(-1),
        "self": weights[:, :, rows, rows].mean(-1),
        "next": weights[:, :, rows[:-1], rows[:-1] + 1].sum(-1) / len(rows),
        "first": weights[:, :, rows, 0].mean(-1),
        "uniform": np.minimum(weights[:, :, rows], 1 / count).sum(-1).mean(-1),
    }
    names = [roles["names"][n] if n >= 0 else None for n in page.raw(roles["main"]).ravel()]
    strength = page.numbers(roles["strength"]).ravel()
    seen = [(n, name) for n, name in enumerate(names) if name in expected]
    assert len({name for _, name in seen}) >= 2
    for n, name in seen:
        assert strength[n] == pytest.approx(expected[name].ravel()[n], abs=1e-5)
        assert strength[n] >= {"uniform": 0.6}.get(name, 0.4)
    for n, name in enumerate(names):  # of the clearest roles, the largest is the main one
        largest = max(
            expected, key=lambda role, n=n: expected[role].ravel()[n] if role != "uniform" else 0.0
        )
        if expected[largest].ravel()[n] >= 0.4 and largest != "first":
            assert name == largest
    left_out = "all but its first two tokens and special ones"
    said = f"Measured on {len(rows)} words of this text, {left_out}. attnscope heads has other values: "
    assert roles["measured"].startswith(said)


@pytest.mark.parametrize(
    "sides",
    [
        [TEXT],
        [TEXT, "--mask", "own", "--mask", "own+window:2"],
        [TEXT, "The bank by the road"],
        [TEXT, "--layer", "1", "--layer", "2"],
        [TEXT, "--head", "1", "--head", "3"],
    ],
    ids=["default", "masks", "texts", "layers", "heads"],
)
def test_a_page_and_a_terminal_show_the_same_head_of_a_comparison(sides, tmp_path, capsys):
    """The same comparison was of L2H0 in a terminal, and of L2H1 on its page."""
    assert main(["compare", *sides]) == 0
    shown = re.findall(r"^(L\d+H\d+)(?: → (L\d+H\d+))?(?:  .*)?$", capsys.readouterr().out, re.M)
    path = tmp_path / "page.html"
    assert main(["compare", *sides, "-o", str(path), "--quiet"]) == 0
    scenes = read_page(path).of_kind("walk")[0]["scenes"]
    (pair,) = shown
    for scene, head in zip((scenes[0], scenes[-1]), (pair[0], pair[1] or pair[0]), strict=True):
        layer, number = scene["first"]
        assert f"L{scene['layers'][layer]}H{scene['heads'][number]}" == head


def test_a_small_page_is_small_and_repeats_no_number(tmp_path):
    path = tmp_path / "page.html"
    every = ["--layer", "all", "--head", "all"]
    assert main(["run", TEXT, *every, "-o", str(path), "--quiet"]) == 0
    assert path.stat().st_size < 75_000
    page = read_page(path)
    (scene,) = page.of_kind("walk")[0]["scenes"]
    (group,) = scene["groups"]
    assert group["measures"]["weight"] is None  # the matrix has them
    assert {name for name, kept in group["statistics"].items() if kept is None} == {"first", "self"}
    everything = attnscope.inspect(TEXT, layer="all", head="all", top=5)
    heads = everything.data.texts[0].heads
    norms = page.raw(group["measures"]["value"]["norms"])
    places, weights = page.places(group), page.listed(scene, group)
    for n, head in enumerate(heads):
        np.testing.assert_array_equal(places[:, n].T, head.top.keys)
        np.testing.assert_allclose(weights[:, n].T, head.top.weight, atol=1e-6)
        products = weights[:, n] * norms[n][places[:, n]]
        np.testing.assert_allclose(products.T, head.top.value, atol=1e-5)


def test_a_page_names_no_option_as_its_reader_types_none(tmp_path):
    """Hints were spelled as in Python, such as `key selects others`, though a page has no such key."""
    for command in (
        ["run", "the river ran past an old bank " * 15, "--measure", "rollout"],
        ["ablate", TEXT, "--each", "head"],
    ):
        path = tmp_path / f"{command[0]}.html"
        assert main([*command, "-o", str(path), "--quiet"]) == 0
        page = read_page(path)
        said = json.dumps([node for node in page.nodes if isinstance(node, list)])
        said = said.replace(text_in(next(page.elements("code"), "")), "")
        for hint in ("selects other", "select other", "shows more", "lists all", "--at "):
            assert hint not in said
