"""`attnscope import`: pickled weights become the same model in safetensors; what holds code is refused and not run."""

import json
import os
import pickle
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

from attnscope.checkpoints.convert_pickle import unpickle
from attnscope.checkpoints.convert_pickle.folder import _plan
from attnscope.cli import main
from tests.helpers import native_stages
from tests.helpers.tiny_models import TABLE
from tests.helpers.tokenizer_files import content, write
from tests.helpers.unpickling import unpickle_here

RUN = "/tmp/attnscope-was-run"
ROWS = {row.name: row for row in TABLE}


def pickled(folder: Path, name: str = "gpt2") -> hf.PreTrainedModel:
    """A folder as it was published before there was safetensors."""
    model = ROWS[name].save(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    write(folder, content("byte-level"))
    (folder / "modeling_own.py").write_text("raise SystemExit")
    return model


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(arguments) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_the_same_model_comes_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the line that the error of `run` names."""
    model = pickled(tmp_path / "old one")
    said = refused(["run", "the river", "--model", str(tmp_path / "old one")], capsys)
    line = said.strip().partition("convert them, without running code: ")[2]
    assert line == f"attnscope import '{tmp_path}/old one' '{tmp_path}/old one-safetensors'"
    assert main(shlex.split(line)[1:]) == 0
    assert "copied config.json, generation_config.json, tokenizer.json" in capsys.readouterr().err
    made = tmp_path / "old one-safetensors"
    assert sorted(os.listdir(made)) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    tensors = load_file(made / "model.safetensors")
    assert tensors.keys() == model.state_dict().keys()
    assert all(torch.equal(tensors[name], value) for name, value in model.state_dict().items())
    native_stages.open_stack(made)
    assert sorted(os.listdir(tmp_path)) == ["old one", "old one-safetensors"]


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    unpickle_here(monkeypatch)


@pytest.mark.parametrize("name", ["LICENSE", "tokenizer.json"])
def test_files_that_links_name_elsewhere_are_not_copied(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, private = tmp_path / "old", tmp_path / "new", tmp_path / "private"
    pickled(old)
    private.write_text("{}")
    (old / name).unlink(missing_ok=True)
    (old / name).symlink_to(private)
    error = refused(["import", str(old), str(new)], capsys)
    assert f"{old}/{name}: is a link to {private}, outside of the folder; remove the link" in error
    assert not new.exists()


@pytest.mark.usefixtures("unlimited")
def test_links_within_the_hugging_face_cache_are_copied(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    snapshot, blobs = repository / "snapshots" / ("a" * 40), repository / "blobs"
    pickled(snapshot)
    blobs.mkdir()
    (snapshot / "config.json").rename(blobs / "1234")
    (snapshot / "config.json").symlink_to(Path("..", "..", "blobs", "1234"))
    assert main(["import", str(snapshot), str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / "config.json").read_bytes() == (blobs / "1234").read_bytes()
    assert not (tmp_path / "new" / "config.json").is_symlink()


@pytest.mark.usefixtures("unlimited")
def test_pickled_shards_become_one_checkpoint(tmp_path: Path) -> None:
    model = pickled(tmp_path / "old", "llama")
    (tmp_path / "old" / "pytorch_model.bin").unlink()
    names = list(model.state_dict())
    parts = {
        "pytorch_model-00001-of-00002.bin": names[:7],
        "pytorch_model-00002-of-00002.bin": names[7:],
    }
    for file, held in parts.items():
        torch.save({name: model.state_dict()[name] for name in held}, tmp_path / "old" / file)
    table = {name: file for file, held in parts.items() for name in held}
    (tmp_path / "old" / "pytorch_model.bin.index.json").write_text(
        json.dumps({"weight_map": table})
    )
    assert main(["import", str(tmp_path / "old"), str(tmp_path / "new")]) == 0
    stack = native_stages.open_stack(tmp_path / "new")
    assert torch.equal(
        stack.blocks[2].mlp.down.weight, model.state_dict()["model.layers.2.mlp.down_proj.weight"]
    )


class _Code:
    def __reduce__(self) -> Any:
        return os.system, (f"touch {RUN}",)


@pytest.mark.usefixtures("unlimited")
def test_a_pickle_with_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pickled(tmp_path / "old")
    torch.save({"w": torch.zeros(3), "x": _Code()}, tmp_path / "old" / "pytorch_model.bin")
    error = refused(["import", str(tmp_path / "old"), str(tmp_path / "new")], capsys)
    assert (
        "pytorch_model.bin: refers to posix.system, which is code: it was not run; get the model as"
        in error
    )
    assert sorted(os.listdir(tmp_path)) == ["old"]
    assert not os.path.exists(RUN)


@pytest.mark.usefixtures("unlimited")
@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"w": 3}, "holds a int under 'w', not a tensor"),
        ({}, "holds an empty table, not a table of tensors"),
        (torch.zeros(3), "holds a Tensor, not a table of tensors"),
        ({"w": torch.zeros(3).to_sparse()}, "'w' is a sparse, quantised or complex tensor"),
        ({"x": _Code()}, "refers to posix.system, which is code: it was not run"),
    ],
)
def test_what_is_no_table_of_tensors_is_refused(tmp_path: Path, held: Any, said: str) -> None:
    torch.save(held, tmp_path / "a.bin")
    assert unpickle.main(0, 0, str(tmp_path / "a.bin"), str(tmp_path / "b"))[0]["error"] == said
    assert not os.path.exists(RUN)


@pytest.mark.usefixtures("unlimited")
@pytest.mark.parametrize(
    "damage", [b"", b"\x80\x02garbage", b"PK\3\4" + bytes(50), pickle.dumps(_Code())]
)
def test_damage_is_one_line(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "a.bin").write_bytes(damage)
    assert "\n" not in unpickle.main(0, 0, str(tmp_path / "a.bin"), str(tmp_path / "b"))[0]["error"]
    assert not os.path.exists(RUN)


@pytest.mark.usefixtures("unlimited")
@pytest.mark.parametrize("wrapper", ["state_dict", "model"])
def test_weights_within_what_a_training_script_saved(tmp_path: Path, wrapper: str) -> None:
    shared = torch.arange(6.0).view(2, 3)
    torch.save({wrapper: {"a": shared.T, "b": shared}, "epoch": 3}, tmp_path / "last.ckpt")
    assert unpickle.main(0, 0, str(tmp_path / "last.ckpt"), str(tmp_path / "b"))[0] == {
        "tensors": {"a": 24, "b": 24}
    }
    assert torch.equal(load_file(tmp_path / "b")["a"], shared.T)


def test_a_checkpoint_of_a_trainer_has_one_file_of_weights(tmp_path: Path) -> None:
    for name in ("last.ckpt", "training_args.bin", "optimizer.pt", "rng_state_0.pth"):
        (tmp_path / name).touch()
    assert _plan(tmp_path) == {"last.ckpt": "model.safetensors"}


def test_a_file_that_needs_more_memory_than_it_may_take_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pickled(tmp_path / "old")
    torch.save({"w": torch.zeros(1 << 25)}, tmp_path / "old" / "pytorch_model.bin")
    error = refused(
        ["import", str(tmp_path / "old"), str(tmp_path / "new"), "--max-memory", "64M"], capsys
    )
    assert "raise --max-memory" in error


def test_what_needs_no_import_or_has_no_place_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ROWS["gpt2"].save(tmp_path / "new one")
    pickled(tmp_path / "old")
    for arguments, said in (
        (
            (tmp_path / "new one", tmp_path / "x"),
            f"already has safetensors; use it as it is: --model '{tmp_path}/new one'",
        ),
        ((tmp_path / "old", tmp_path / "new one"), "exists; use a folder that does not exist yet"),
        ((tmp_path / "nowhere", tmp_path / "x"), "no such folder"),
        ((tmp_path / "old", tmp_path / "no" / "x"), "no such folder"),
        (
            (tmp_path, tmp_path / "x"),
            "has no files with pickled weights; expected pytorch_model.bin",
        ),
    ):
        assert said in refused(["import", *map(str, arguments)], capsys)
