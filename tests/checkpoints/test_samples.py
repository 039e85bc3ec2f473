"""Names and paths of models and configs."""

from pathlib import Path

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints import samples
from attnscope.checkpoints.locating import Located, locate


@pytest.fixture(params=["checkout", "wheel"])
def package(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A package with two samples and one config, laid out as in a checkout or as in a wheel."""
    package = tmp_path / "attnscope"
    root = tmp_path if request.param == "checkout" else package / "_shipped"
    if request.param == "checkout":
        (tmp_path / "pyproject.toml").touch()
    for sample in ("riverbank", "tiny"):
        (root / "sample_weights" / sample).mkdir(parents=True)
        (root / "sample_weights" / sample / "config.json").touch()
    (root / "sample_weights" / "notes").mkdir()
    (root / "configs").mkdir()
    (root / "configs" / "causal.toml").touch()
    package.mkdir(exist_ok=True)
    monkeypatch.setattr(samples, "_PACKAGE", package)
    monkeypatch.chdir(tmp_path.parent)
    return root


def test_samples_and_configs_are_found_by_name(package: Path) -> None:
    assert samples.sample_names("sample_weights") == ["riverbank", "tiny"]
    assert samples.sample_names("configs") == ["causal"]
    assert locate("riverbank") == Located(package / "sample_weights" / "riverbank")
    assert (
        samples.find_config("causal")
        == samples.find_config("causal.toml")
        == package / "configs" / "causal.toml"
    )


def test_a_path_that_exists_wins(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work" / "riverbank").mkdir(parents=True)
    (tmp_path / "work" / "causal").touch()
    monkeypatch.chdir(tmp_path / "work")
    assert locate("riverbank").path == Path("riverbank")
    assert samples.find_config("causal") == Path("causal")


def test_an_unknown_name_names_the_nearest_or_lists_all(package: Path) -> None:
    with pytest.raises(
        AttnscopeError, match=r"^riverbonk: no such folder.*; did you mean 'riverbank'\?$"
    ):
        locate("riverbonk")
    with pytest.raises(
        AttnscopeError,
        match=r"^\./no/where: no such folder, file or bundled sample; "
        r"name a folder with config.json, a .gguf file, .*; bundled samples: riverbank, tiny$",
    ):
        locate("./no/where")
    with pytest.raises(AttnscopeError, match=r"^zzz.toml: no such file.*; known: causal$"):
        samples.find_config("zzz.toml")


@pytest.mark.parametrize(
    "name", ["../sample_weights/tiny", "", "\0", "x" * 5000, "riverbank/config.json"]
)
def test_only_plain_names_are_names(package: Path, name: str) -> None:
    with pytest.raises(AttnscopeError, match=r"no such (folder|file)|the name is empty"):
        locate(name)


def test_the_current_folder_can_be_named(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    assert locate(".").path == Path()


def test_a_file_for_a_folder_and_a_folder_for_a_file(package: Path, tmp_path: Path) -> None:
    with pytest.raises(AttnscopeError, match="is a TOML file, not a model; use config"):
        locate(str(package / "configs" / "causal.toml"))
    with pytest.raises(AttnscopeError, match="is a folder, not a TOML file; use model"):
        samples.find_config(str(tmp_path))


def test_a_strangers_folder_in_site_packages_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "theirs.toml").touch()
    monkeypatch.setattr(samples, "_PACKAGE", tmp_path / "attnscope")
    assert samples.sample_names("configs") == []
    with pytest.raises(AttnscopeError, match="no such file"):
        samples.find_config("theirs")
