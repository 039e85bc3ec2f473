"""What people have in place of a checkpoint folder: it is used, or called by its name, with what to do."""

import json
import shutil
from pathlib import Path

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.folder import open_folder
from attnscope.checkpoints.locating import Located, locate
from attnscope.checkpoints.samples import samples_folder
from attnscope.cli import main
from tests.helpers.folders import TENSORS, safetensors, write_folder, write_sharded

ADAPTER = {"peft_type": "LORA", "base_model_name_or_path": "org/base"}
TRANSFORMER = "sentence_transformers.models.Transformer"


def refusal(path: Path) -> str:
    with pytest.raises(AttnscopeError) as caught:
        locate(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


def sentence_transformers(path: Path, *inner: str, kind: str = TRANSFORMER) -> Path:
    path.mkdir(exist_ok=True)
    modules = [{"idx": n, "type": kind, "path": name} for n, name in enumerate(inner)]
    modules.append(
        {"idx": len(inner), "type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
    )
    (path / "modules.json").write_text(json.dumps(modules))
    return path


@pytest.mark.parametrize("inner", ["0_Transformer", "0_BERT"])
def test_the_transformer_of_sentence_transformers_is_opened(tmp_path: Path, inner: str) -> None:
    path = sentence_transformers(
        tmp_path / "st", inner, kind=TRANSFORMER if "T" in inner[-6:] else "x.models.BERT"
    )
    (path / "config.json").write_text('{"__version__": "0.2"}')  # as old ones have it
    write_folder(path / inner)
    assert locate(str(path)) == Located(
        path / inner, details=(f"the transformer of a sentence-transformers folder: {inner}",)
    )
    (path / inner / "sentence_bert_config.json").write_text(
        '{"max_seq_length": 128, "do_lower_case": true}'
    )
    assert (
        "lower-cases texts before tokenizing them; attnscope does not" in locate(str(path)).notes[0]
    )


def test_a_transformer_at_the_root_of_sentence_transformers(tmp_path: Path) -> None:
    path = write_folder(sentence_transformers(tmp_path / "st", ""))
    assert locate(str(path)) == Located(path)


@pytest.mark.parametrize("inner", [("../x",), ("a/b",), ("..",), (), ("a", "b"), ("\0",)])
def test_modules_that_name_no_folder_of_their_own(tmp_path: Path, inner: tuple[str, ...]) -> None:
    path = sentence_transformers(tmp_path / "st", *inner)
    assert "names no transformer in a subfolder; pass the folder" in refusal(path)
    assert locate(str(write_folder(path))) == Located(path)


def test_a_training_names_its_last_checkpoint(tmp_path: Path) -> None:
    for step in (500, 1000, 90):
        write_folder(tmp_path / f"checkpoint-{step}")
    (tmp_path / "checkpoint-2000").mkdir()  # without a model
    said = refusal(tmp_path)
    assert said == (
        "is the output folder of a training run, with 3 checkpoints; pass one of them: "
        f"model={str(tmp_path / 'checkpoint-1000')!r}"
    )
    assert locate(said.rpartition("model=")[2].strip("'")).path == tmp_path / "checkpoint-1000"


def test_a_training_whose_model_is_at_the_root_is_opened(tmp_path: Path) -> None:
    write_folder(tmp_path / "checkpoint-500")
    assert locate(str(write_folder(tmp_path))) == Located(tmp_path)


def test_a_folder_above_names_the_one_with_a_config(tmp_path: Path) -> None:
    write_folder(tmp_path / "final")
    assert (
        refusal(tmp_path)
        == f"has no config.json; pass the folder that has one: model={str(tmp_path / 'final')!r}"
    )


def test_an_adapter_names_its_base(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(ADAPTER))
    (tmp_path / "adapter_model.safetensors").write_bytes(safetensors(TENSORS))
    said = f"is an adapter of 'org/base', not a model; pass both: model='org/base' adapter={str(tmp_path)!r}"
    assert refusal(tmp_path) == said
    assert refusal(tmp_path / "adapter_model.safetensors").endswith(said)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert refusal(tmp_path).startswith(
        "is an adapter of another model, not a model; pass both: model=BASE"
    )


def test_metas_own_layout(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text('{"dim": 4096}')
    (tmp_path / "consolidated.00.pth").touch()
    assert refusal(tmp_path) == (
        "is a model in its authors' own layout (params.json), without config.json; download it in Hugging Face layout, "
        "or convert it with transformers' convert_*_weights_to_hf.py"
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "m.onnx",
            "is an ONNX graph, which does not show where its attention is; use the model's safetensors version",
        ),
        ("m.TAR.GZ", "is an archive; unpack it: tar xf {path}"),
        ("m.zip", "is an archive; unpack it: unzip {path}"),
        ("tf_model.h5", "is a model of TensorFlow; use the model's safetensors version"),
        ("flax_model.msgpack", "is a model of Flax; use the model's safetensors version"),
        (
            "m.tflite",
            "is a compiled model, which does not show its attention; use the model's safetensors version",
        ),
        ("m.safetensors", "has only the weights: there is no config.json beside it; put"),
        ("readme.md", "is a file, not a model; use a folder with config.json, or a .gguf file"),
    ],
)
def test_files_that_are_no_checkpoint(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).touch()
    assert refusal(tmp_path / name).startswith(said.format(path=tmp_path / name, folder=tmp_path))


def test_a_folder_with_an_onnx_graph_alone(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    assert refusal(tmp_path).startswith("has no config.json; model.onnx is an ONNX graph")


def test_a_gguf_file_is_passed_on_and_its_folder_names_it(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    assert locate(str(tmp_path / "model.gguf")) == Located(tmp_path / "model.gguf")
    assert (
        refusal(tmp_path)
        == f"has no config.json; pass the GGUF file: model={str(tmp_path / 'model.gguf')!r}"
    )


@pytest.mark.parametrize("name", ["config.json", "modules.json", "model.gguf"])
def test_a_hint_names_what_can_be_opened(tmp_path: Path, name: str) -> None:
    """The folder of a GGUF file is refused, so that a hint names the file itself."""
    model = tmp_path / "model.gguf" if name == "model.gguf" else tmp_path
    (tmp_path / "notes.sh").touch()
    (tmp_path / name).touch()
    assert refusal(tmp_path / "notes.sh") == f"is a file, not a model; try {model}"
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(
        json.dumps(ADAPTER | {"base_model_name_or_path": str(tmp_path)})
    )
    assert refusal(adapter).endswith(f"pass both: model={str(model)!r} adapter={str(adapter)!r}")


def test_a_safetensors_file_is_its_folder(tmp_path: Path) -> None:
    write_folder(tmp_path)
    assert locate(str(tmp_path / "model.safetensors")) == Located(tmp_path)
    (tmp_path / "other.safetensors").write_bytes(safetensors({"w": TENSORS["scalar"]}))
    found = locate(str(tmp_path / "other.safetensors"))
    assert found == Located(tmp_path, "other.safetensors")
    assert set(open_folder(found.path, found.weights).tensors) == {"w"}
    assert set(open_folder(found.path, found.weights).files) == {"config.json", "other.safetensors"}


def test_a_shard_is_the_whole_checkpoint(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    assert locate(str(tmp_path / "a.safetensors")) == Located(tmp_path)
    (tmp_path / "c.safetensors").write_bytes(safetensors(TENSORS))
    assert locate(str(tmp_path / "c.safetensors")) == Located(tmp_path, "c.safetensors")


def test_run_opens_sentence_transformers_folders_and_weight_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sentence_transformers(tmp_path / "st", "0_Transformer")
    shutil.copytree(samples_folder("sample_weights") / "riverbank", path / "0_Transformer")
    for model in (path, path / "0_Transformer" / "model.safetensors"):
        assert (
            main(
                [
                    "run",
                    "The bank",
                    "--model",
                    str(model),
                    "--layer",
                    "0",
                    "--head",
                    "0",
                    "--verbose",
                ]
            )
            == 0
        )
        assert f"{model}(bert)" in "".join(capsys.readouterr().out.split())
