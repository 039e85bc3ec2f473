"""What differs between the heads of two models is the difference of what is measured of each."""

import csv
import json

import numpy as np
import pytest
from msgspec.structs import replace

import attnscope
from attnscope.cli import main
from attnscope.findings.head_roles import ROLES
from attnscope.studies.heads.changes import compare_heads
from tests.helpers import architectures
from tests.helpers.sample_surveys import survey
from tests.helpers.schemas import validate
from tests.survey.test_roles import WORDS, found_and_expected

TEXT = "the bank by the river was old"
FEW = ("--draws", "2", "--quiet")


def saved(path, seed, **changes):
    import torch

    sizes = {**architectures.ONE_PART["gpt2"], **changes}
    model, random = architectures.make("gpt2", sizes), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=random))
    path.mkdir()
    return architectures.save(path, model)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    return saved(base / "first", 1), saved(base / "second", 2)


def run(capfdbinary, *args):
    assert main(["heads", *args, "--json"]) == 0
    return json.loads(capfdbinary.readouterr().out)


def roles_of(document):
    return {role["name"]: np.array(role["values"], float) for role in document["roles"]}


def test_differences_of_roles_equal_eager_transformers(folders):
    (first, one), (second, other) = (
        found_and_expected(folder, WORDS[:2], draws=3) for folder in folders
    )
    found = compare_heads("model", [("a", first), ("b", second)])
    checked = 0
    for each in found.differences:
        if each.name != "copying":
            (a, a_error), (b, b_error) = one[each.name], other[each.name]
            np.testing.assert_allclose(each.difference, b - a, rtol=0, atol=2e-4, err_msg=each.name)
            np.testing.assert_allclose(
                each.error, np.hypot(a_error, b_error), rtol=0, atol=2e-4, err_msg=each.name
            )
            checked += 1
    assert checked >= 14
    ranked = {
        each.name: each.difference
        for each in found.differences
        if ROLES[each.name].rank is not None
    }
    largest = np.abs(np.stack(list(ranked.values()))).max(0)
    np.testing.assert_array_equal(np.abs(found.changed_most), largest)
    for (layer, head), value in np.ndenumerate(found.changed_most):
        assert ranked[found.role[layer][head]][layer, head] == value
    assert np.abs(found.changed_most).max() > 0.01, "the models are too alike to test anything"


def test_the_command_equals_two_commands_and_python(folders, capfdbinary, tmp_path, monkeypatch):
    models = [option for folder in folders for option in ("--model", str(folder))]
    found = run(capfdbinary, *models, *FEW)
    validate(found, "compared-heads")
    alone = [run(capfdbinary, "--model", str(folder), *FEW) for folder in folders]
    assert [side["roles"] for side in found["sides"]] == alone
    first, second = map(roles_of, alone)
    for each in found["differences"]:
        np.testing.assert_allclose(
            np.array(each["difference"], float),
            second[each["name"]] - first[each["name"]],
            atol=1e-6,
            rtol=0,
        )
    python = attnscope.heads(list(folders), draws=2)
    assert json.loads(python.to_json()) == found
    best = python.largest(k=1)[0]
    assert abs(best.value) == np.abs(python.changed_most).max()
    assert python.largest("self", 1)[0].value == max(python["self"].ravel(), key=abs)
    assert list(python.to_pandas().columns[:6]) == [
        "layer", "head", "main_first", "main_second", "changed_role", "changed_most",
    ]  # fmt: skip
    python.save(tmp_path / "changes.json")
    assert (
        attnscope.load(tmp_path / "changes.json", attnscope.HeadChangesResult).to_json()
        == python.to_json()
    )
    monkeypatch.chdir(tmp_path)
    for name in ("changes.csv", "changes.svg", "changes.html", "changes.txt"):
        python.save(name)
    with open("changes.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        place = int(row["layer"]), int(row["head"])
        assert float(row["self_difference"]) == np.float32(python["self"][place])
        assert float(row["self_second"]) == np.float32(second["self"][place])


def test_one_number_is_compared(folders, capfdbinary):
    models = [option for folder in folders for option in ("--model", str(folder))]
    found = run(capfdbinary, TEXT, *models, "--measure", "max_score", "--quiet")
    validate(found, "compared-heads")
    values = [
        np.array(
            run(capfdbinary, TEXT, "--model", str(folder), "--measure", "max_score", "--quiet")[
                "values"
            ]
        )
        for folder in folders
    ]
    (each,) = found["differences"]
    np.testing.assert_allclose(np.array(each["difference"]), values[1] - values[0], atol=1e-6)
    assert main(["heads", TEXT, *models, "--measure", "max_score"]) == 0
    screen = capfdbinary.readouterr().out.decode()
    place = np.unravel_index(np.abs(values[1] - values[0]).argmax(), values[0].shape)
    a, b = (matrix[place] for matrix in values)
    sign = "+" if b > a else "−"
    expected = f"L{place[0]}H{place[1]} {a:.2f} → {b:.2f} ({sign}{abs(b - a):.2f})".replace(
        " -", " −"
    )
    assert expected in " ".join(screen.split())


def test_other_sizes_share_what_both_have(folders, tmp_path, capsys):
    smaller = saved(tmp_path / "small", 3, n_layer=1)
    assert (
        main(
            [
                "heads",
                "--model",
                str(folders[0]),
                "--model",
                str(smaller),
                "--role",
                "self",
                *FEW[:2],
            ]
        )
        == 0
    )
    screen = " ".join(capsys.readouterr().out.split())
    assert "has 1 layer × " in screen
    assert "L0 and H0–" in screen
    found = attnscope.heads([folders[0], smaller], role="self", draws=2)
    alone = [
        attnscope.heads(folder, role="self", draws=2).values for folder in (folders[0], smaller)
    ]
    np.testing.assert_array_equal(found.differences, alone[1] - alone[0][:, :1])


def test_settings_and_given_arrays_are_compared(folders):
    found = attnscope.heads(folders[0], TEXT, measure="entropy", dtype=["float32", "bfloat16"])
    assert found.labels == ["float32", "bfloat16"]
    assert 0 < np.abs(found["entropy"]).max() < 0.1
    q, k = np.random.default_rng(0).normal(size=(2, 2, 6, 4)).astype("float32")
    arrays = [attnscope.from_qkv(q, k, window=window) for window in (None, 2)]
    both = attnscope.heads(qkv=arrays, measure="entropy")
    alone = [each.measure_heads(measure="entropy").values for each in arrays]
    np.testing.assert_allclose(both["entropy"], alone[1] - alone[0], atol=1e-6)


def test_a_model_in_the_environment_may_have_blanks_in_its_name(
    folders, tmp_path, monkeypatch, capfdbinary
):
    place = tmp_path / "a model"
    place.symlink_to(folders[0])
    monkeypatch.setenv("ATTNSCOPE_MODEL", str(place))
    for command in ("heads", "compare"):
        assert (
            main([command, TEXT, "--json", "--quiet", *(FEW[:2] if command == "heads" else ())])
            == 0
        )
        found = json.loads(capfdbinary.readouterr().out)
        found = found if command == "heads" else found["sides"][0]["report"]
        assert found["provenance"]["model"] == str(place)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model", "riverbank"] * 3, "has 3 values, not two"),
        (
            ["--model", "riverbank", "--model", "riverbank", "--needle", "a b"],
            "compared by roles or one number",
        ),
        (
            ["--model", "a", "--model", "b", "--dtype", "float32", "--dtype", "bfloat16"],
            "have several values",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(args, message, capsys):
    assert main(["heads", *args]) == 2
    assert message in capsys.readouterr().err


def test_heads_of_models_that_were_trained_apart_are_said_to_share_a_number_alone():
    first = survey(3, 4)
    family = replace(first.provenance, family="llama")
    for second, notes in (
        (survey(3, 4), 0),
        (survey(2, 4), 1),
        (replace(first, provenance=family), 1),
    ):
        found = compare_heads("model", [("a", first), ("b", second)])
        assert sum("share a number alone" in note for note in found.notes) == notes
