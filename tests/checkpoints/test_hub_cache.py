"""Repositories in the Hugging Face cache: which snapshot is opened, and what is said where none can be."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints import hub_cache
from attnscope.checkpoints.locating import locate
from attnscope.checkpoints.samples import samples_folder

FIRST, SECOND = "a" * 40, "b" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def repository(
    cache: Path,
    name: str,
    commit: str = FIRST,
    main: str | None = FIRST,
    files: tuple[str, ...] = (),
) -> Path:
    """A repository in the layout of huggingface_hub: links in a snapshot, their content in blobs."""
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "blobs").mkdir(exist_ok=True)
    for file in files or ("config.json", "tokenizer.json", "model.safetensors"):
        blob = folder / "blobs" / f"{commit[:4]}-{file}"
        source = samples_folder("sample_weights") / "riverbank" / file
        blob.write_bytes(source.read_bytes() if source.exists() else b"{}")
        (folder / "snapshots" / commit / file).symlink_to(Path("..", "..", "blobs", blob.name))
    if main is not None:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(main)
    return folder


@pytest.mark.parametrize("name", ["org/name", "bert-base-uncased", "Org.x/n_1-2.B"])
def test_a_cached_repository_is_found_by_its_name(cache: Path, name: str) -> None:
    folder = repository(cache, name)
    found = locate(name)
    assert found.path == folder / "snapshots" / FIRST
    assert found.details == (f"revision {FIRST[:12]} of {name} in the Hugging Face cache",)


def test_the_same_files_as_huggingface_hub(cache: Path) -> None:
    """Its own function finds the same snapshot."""
    import huggingface_hub

    repository(cache, "org/name", SECOND, None)
    repository(cache, "org/name", FIRST, SECOND)
    theirs = huggingface_hub.try_to_load_from_cache("org/name", "config.json", cache_dir=cache)
    assert str(locate("org/name").path / "config.json") == theirs


def test_a_local_folder_wins(cache: Path, tmp_path: Path) -> None:
    repository(cache, "org/name")
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "config.json").write_text("{}")
    assert locate("org/name").path == Path("org/name")


def test_the_folder_of_a_repository_is_opened_like_its_name(cache: Path) -> None:
    folder = repository(cache, "org/name")
    assert locate(str(folder)) == locate("org/name")


def test_of_two_snapshots_main_is_opened(cache: Path) -> None:
    folder = repository(cache, "org/name", FIRST, None)
    repository(cache, "org/name", SECOND, None)
    with pytest.raises(
        AttnscopeError, match="has 2 snapshots, and refs/main names none of them; pass one of them"
    ):
        locate("org/name")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(f"{SECOND}\n")
    assert locate("org/name").path.name == SECOND
    (folder / "refs" / "main").write_text("c" * 40)
    with pytest.raises(AttnscopeError, match="has 2 snapshots"):
        locate("org/name")


@pytest.mark.parametrize("main", [SECOND, None])
def test_the_only_snapshot_is_opened_with_a_note_if_main_is_at_another_one(
    cache: Path, main: str | None
) -> None:
    repository(cache, "org/name", FIRST, main)
    found = locate("org/name")
    assert (found.path.name, found.details) == (FIRST, ())
    revision = f"revision {FIRST[:12]} of org/name in the Hugging Face cache"
    assert found.notes == (f"{revision}, which is not that of its branch main",)


@pytest.mark.parametrize("blob", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_blob_is_named(cache: Path, blob: str) -> None:
    folder = repository(cache, "org/name")
    (folder / "blobs" / f"{FIRST[:4]}-{blob}").unlink()
    with pytest.raises(
        AttnscopeError, match=rf"the blob of {blob} is missing; run: hf download org/name$"
    ):
        locate("org/name")
    (folder / "blobs" / "1.incomplete").touch()
    with pytest.raises(AttnscopeError, match=r"is missing \(a download was interrupted\); run"):
        locate("org/name")


def test_a_missing_blob_that_is_not_read_does_no_harm(cache: Path) -> None:
    folder = repository(
        cache, "org/name", files=("config.json", "model.safetensors", "pytorch_model.bin")
    )
    (folder / "blobs" / f"{FIRST[:4]}-pytorch_model.bin").unlink()
    assert locate("org/name").path.name == FIRST


def test_a_snapshot_without_config_or_weights_says_so(cache: Path) -> None:
    repository(cache, "org/a", files=("tokenizer.json",))
    with pytest.raises(
        AttnscopeError, match=r"holds tokenizer.json, but no config.json; run: hf download org/a$"
    ):
        locate("org/a")
    repository(cache, "org/b", files=("config.json", "tokenizer.json"))
    with pytest.raises(
        AttnscopeError, match=r"holds config.json, tokenizer.json, but no weights; run: hf download"
    ):
        locate("org/b")
    assert locate("org/b", "--tokenizer").path.name == FIRST
    (cache / "models--org--c" / "blobs").mkdir(parents=True)
    with pytest.raises(AttnscopeError, match=r"has no snapshot; run: hf download org/c$"):
        locate("org/c")


def test_a_name_that_is_not_cached_names_the_command(cache: Path) -> None:
    with pytest.raises(
        AttnscopeError, match=r"run: hf download org/name \(or attnscope pull org/name, "
    ):
        locate("org/name")
    repository(cache, "google-bert/bert-base-uncased")
    with pytest.raises(
        AttnscopeError, match=r"the Hugging Face cache has google-bert/bert-base-uncased$"
    ):
        locate("bert-base-uncased")
    with pytest.raises(
        AttnscopeError, match=r"no such folder, file or bundled sample; use its name: org/name$"
    ):
        locate("https://huggingface.co/org/name/tree/main")
    for name in ("missing.gguf", "./missing.GGUF", "to/missing.safetensors"):
        with pytest.raises(AttnscopeError, match=f"^{name}: no such file; check the path$"):
            locate(name)


@pytest.mark.parametrize(
    "name", ["a--b", "org/na..me", "../x", "-x", "x/y/z", "x.git", "ö/x", "a" * 100, ".", ""]
)
def test_names_that_no_repository_can_have(name: str) -> None:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    assert not hub_cache.is_repository(name)
    with pytest.raises(HFValidationError):
        validate_repo_id(name)


PLACES = [
    ({"HF_HUB_CACHE": "/x/y"}, "/x/y"),
    ({"HUGGINGFACE_HUB_CACHE": "/old"}, "/old"),
    ({"HF_HOME": "/home"}, "/home/hub"),
    ({"HF_HOME": "$HOME/h", "HOME": "/root"}, "/root/h/hub"),
    ({"XDG_CACHE_HOME": "/cache"}, "/cache/huggingface/hub"),
    ({"HOME": "/u"}, "/u/.cache/huggingface/hub"),
    ({"HF_HUB_CACHE": "~/c", "HOME": "/u", "HF_HOME": "/n"}, "/u/c"),
]


def test_the_cache_is_where_huggingface_hub_has_it() -> None:
    code = """
import importlib, json, os, sys
from attnscope.checkpoints.hub_cache import cache_folder
places = json.loads(sys.argv[1])
names = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}
for environment, expected in places:
    for name in names:
        os.environ.pop(name, None)
    os.environ.update(environment)
    assert str(cache_folder()) == expected, environment
    import huggingface_hub.constants as constants
    assert importlib.reload(constants).HF_HUB_CACHE == expected, environment
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, json.dumps(PLACES)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr


def test_looking_takes_at_most_ten_milliseconds(cache: Path) -> None:
    for number in range(200):
        (cache / f"models--org--other{number}" / "snapshots").mkdir(parents=True)
    repository(cache, "org/name")
    times = []
    for _ in range(9):
        started = time.perf_counter()
        locate("org/name")
        times.append(time.perf_counter() - started)
    assert min(times) < 0.01


def test_a_cached_model_runs_without_a_network_or_the_library(cache: Path) -> None:
    repository(cache, "org/name")
    code = """
import socket, sys
def no(*_, **__): raise AssertionError("network")
socket.getaddrinfo = socket.socket.connect = socket.socket.connect_ex = no
from attnscope.cli import main
assert main(["info", "--model", "org/name"]) == 0
assert main(["info", "--model", "org/none"]) == 1
assert not {"huggingface_hub", "torch", "tqdm"} & set(sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert f"revision {FIRST[:12]} of org/name" in ran.stdout
