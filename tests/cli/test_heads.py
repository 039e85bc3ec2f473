"""The command `attnscope heads` as a user types it."""

import csv
import json
import re

import pytest

import attnscope
from attnscope.cli import main
from attnscope.findings.head_roles import OF_PARTS, ROLES
from attnscope.request.arguments import roles
from tests.helpers.draws import in_two
from tests.helpers.schemas import validate

FEW = ("--draws", "2", "--quiet")

UNASKED = [name for name, role in ROLES.items() if role.measured not in OF_PARTS]


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("heads", ["The bank by the river was eroded", *FEW]),
        ("heads", ["--role", "induction,copying", *FEW]),
        (
            "measured-heads",
            ["The bank by the river", "--query", "bank", "--key", "river", "--quiet"],
        ),
        ("measured-heads", ["The bank by the river", "--measure", "within_16", "--quiet"]),
    ],
)
def test_json_keeps_to_its_schema(name, args, capfdbinary):
    assert main(["heads", *args, "--format", "json"]) == 0
    found = json.loads(capfdbinary.readouterr().out)
    validate(found, name)
    if name == "heads":
        assert [role["name"] for role in found["roles"]] == (
            UNASKED if "--role" not in args else args[1].split(",")
        )


@pytest.mark.parametrize("name", ROLES)
def test_roles_are_read_as_screens_spell_them(name):
    role = ROLES[name]
    assert roles(role.title.capitalize()) == roles(role.letter) == (name,)


def test_the_screen_of_a_role_says_how_many_heads_have_it(capsys):
    asked = ["heads", "--role", "previous,induction,copying", *FEW]
    assert main([*asked, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["roles"]
    assert main(asked) == 0
    screen = " ".join(capsys.readouterr().out.split())
    said = re.findall(
        r"(no head|\d+ of 16 heads) ha(?:s|ve) this role clearly, from 0\.4 on", screen
    )
    expected = []
    for role in found[:2]:
        count = sum(value >= 0.4 for row in role["values"] for value in row if value is not None)
        expected.append(f"{count} of 16 heads" if count else "no head")
    assert said == expected


def test_roles_are_read_in_any_case_and_mixed():
    assert roles("Same Token earlier, INDUCTION, order 2,p, Sink") == (
        "previous", "duplicate", "second-order", "first",
    )  # fmt: skip


def test_files_of_heads_hold_the_same_roles(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("heads.json", "heads.csv", "heads.parquet", "heads.txt", "heads.svg"):
        assert main(["heads", "-o", name, *FEW]) == 0
    with open("heads.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    document = json.loads((tmp_path / "heads.json").read_text())
    assert len(rows) == 16
    for row in rows:
        for role in document["roles"]:
            value = role["values"][int(row["layer"])][int(row["head"])]
            assert (float(row[role["name"]]) if row[role["name"]] else None) == value
    assert main(["heads", "-o", "heads.csv", *FEW]) == 1
    assert "--force" in capsys.readouterr().err
    assert main(["heads", "-o", "heads.safetensors", *FEW]) == 2


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--role", "inducton"], "unknown role 'inducton'"),
        (["--measure", "entrpy", "a"], "must be weight, value"),
        (["--role", "self", "--key", "a", "a bank"], "--role and --key cannot be used together"),
        (
            ["--measure", "entropy", "--draws", "4", "a bank"],
            "--draws and --measure entropy cannot be used together: one number for every head uses no random tokens",
        ),
        (
            ["--measure", "entropy", "--seed", "0", "a bank"],
            "--seed and --measure entropy cannot be used together",
        ),
        (
            ["--query", "a", "--key", "bank", "--draws", "8", "a bank"],
            "--draws and --key cannot be used together",
        ),
        (
            ["--query", "bank", "the bank"],
            "--query: applies only to --key or --measure other than mixing",
        ),
        (["--key", "bank"], "no text given"),
        (["--pair", "the river"], "no text given"),
        (["--context", "the river", "the bank"], "the model has no cross-attention"),
        (["--key", "sea", "the bank"], "'sea' is not in the text"),
        (["--draws", "1"], "out of range"),
        (["--sort", "name"], "must be value or layer"),
        (["--config", "life-is-short-cross"], "only for self-attention"),
        (
            ["--role", "uniform", "--mask", "docs:2,2", "a bank"],
            "the documents have 4 tokens, but the text has 2 (texts)",
        ),
        (
            ["--role", "induction", "--mask", "docs:1,1", "a bank"],
            "the documents have 2 tokens, but the text has 100 (random tokens)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(args, said, capsys):
    assert main(["heads", *args]) == 2
    assert said in capsys.readouterr().err


def test_documents_that_fit_a_text_are_apart(capsys):
    """Masks with documents ended in an internal error, even those that every text has."""
    text = "The bank by the river was old"
    found = []
    for mask in ("docs:7", "bidirectional", "docs:6,1"):
        asked = ["heads", text, "--role", "uniform", "--mask", mask, "--format", "json", "--quiet"]
        assert main(asked) == 0
        found.append(json.loads(capsys.readouterr().out)["roles"][0]["values"])
    assert found[0] == found[1] != found[2]


def test_a_seed_repeats_and_another_one_does_not(capsys):
    shown = []
    for seed in ("1", "1", "2"):
        assert main(["heads", "--role", "induction", "--format", "json", "--seed", seed, *FEW]) == 0
        shown.append(json.loads(capsys.readouterr().out)["roles"][0]["values"])
    assert shown[0] == shown[1] != shown[2]


def test_python_gives_what_the_command_gives(capfdbinary):
    assert main(["heads", "--format", "json", *FEW]) == 0
    found = attnscope.heads("riverbank", draws=2)
    assert found.to_json() == capfdbinary.readouterr().out.rstrip(b"\n")
    text = "The bank by the river"
    assert (
        main(["heads", text, "--query", "bank", "--key", "river", "--format", "json", "--quiet"])
        == 0
    )
    one = attnscope.heads(None, text, query="bank", key="river")
    assert one.to_json() == capfdbinary.readouterr().out.rstrip(b"\n")
    assert (one.measure, one.values.shape) == ("weight", (4, 4))
    assert [(best.layer, best.head) for best in one.strongest(2)] == [(2, 0), (3, 0)]
    assert one.strongest(1)[0].value == one.values.max()


def test_arrays_have_labels():
    with attnscope.open_model("riverbank") as model:
        found = model.heads(
            ["The bank by the river was eroded", "We sat on the old bank."], draws=2
        )
        few = model.heads(role=["previous", "copying"], draws=2)
        entropy = model.heads("The bank by the river", measure="entropy")
    assert found.values.shape == found.errors.shape == (15, 4, 4)
    assert found.roles == UNASKED
    assert (found["previous"] == found.values[0]).all()
    best = found.strongest("next", 1)[0]
    assert (best.layer, best.head, best.value) == (2, 1, found["next"].max())
    assert best.error == found.errors[1, 2, 1] > 0
    assert found.main[2, 1] == "next"
    assert few.roles == ["previous", "copying"]
    table = found.to_pandas()
    assert list(table.columns[:4]) == ["layer", "head", "main", "previous"]
    assert len(table) == 16
    assert table["next"].max() == best.value
    assert list(entropy.to_pandas().columns) == ["layer", "head", "entropy"]
    assert "L2" in repr(found)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"role": "inducton"}, "unknown role"),
        (
            {"role": "self", "measure": "entropy"},
            "role and measure='entropy' cannot be used together",
        ),
        ({"query": "bank"}, "query: applies only to key or measure other than mixing; add key"),
        ({"measure": "entropy", "draws": 4}, "draws and measure='entropy' cannot be used together"),
        ({"measure": "entropy", "seed": 3}, "seed and measure='entropy' cannot be used together"),
        ({"measure": "entropy"}, "no text given"),
        ({"draws": 1}, "out of range"),
        ({"rolle": "self"}, "no argument 'rolle'"),
    ],
)
def test_python_refuses_what_does_not_fit(options, said):
    with pytest.raises(attnscope.AttnscopeError, match=said):
        attnscope.heads("riverbank", **options)
    with pytest.raises(attnscope.AttnscopeError, match="no role"):
        attnscope.heads("riverbank", role="self", draws=2)["induction"]


PARTS = (
    (["--key", "2"], True),
    (["--key", "2", "--words"], False),
    (["--key", "2:6"], False),
    (["--key", "c"], False),
    (["--key", "c", "--query", "4"], True),
    (["--key", "c", "--against", "5"], True),
)


@in_two("cases", PARTS, short=2)
def test_a_part_of_a_character_hints_at_words(cases, smollm2, capsys):
    """Exactly where a query, a key or another key has some of the bytes of a character, and not all."""
    text = "a \N{EGYPTIAN HIEROGLYPH A001} b c"  # ␣ before four bytes: positions 2 to 5
    for options, hinted in cases:
        assert main(["heads", text, "--model", str(smollm2), *options]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert ("--words (whole words, not their bytes)" in shown) is hinted, options
