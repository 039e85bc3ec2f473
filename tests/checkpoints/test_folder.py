"""What open_folder reads, and how it knows one model from another."""

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import as_object, parse_json, read_file, read_json
from attnscope.checkpoints.folder import hash_weights, open_folder
from attnscope.checkpoints.headers import read_header
from tests.helpers.folders import CONFIG, TENSORS, safetensors, write_folder, write_sharded
from tests.helpers.tokenizer_files import content, write


def test_a_folder_gives_config_tensors_files_and_metadata(tmp_path: Path) -> None:
    write_folder(tmp_path, weights=safetensors(TENSORS, {"format": "pt"}))
    write(tmp_path, content("unigram"))
    folder = open_folder(tmp_path)
    assert folder.config == CONFIG
    assert folder.metadata == {"format": "pt"}
    assert {n: (t.dtype, t.shape) for n, t in folder.tensors.items()} == {
        "embed.weight": ("F32", (3, 4)),
        "blocks.0.bias": ("F16", (5,)),
        "scalar": ("I64", ()),
    }
    assert folder.files == {
        n: (tmp_path / n).stat().st_size
        for n in ("config.json", "tokenizer.json", "model.safetensors")
    }


def test_offsets_count_from_the_start_of_the_file(tmp_path: Path) -> None:
    info = open_folder(write_folder(tmp_path)).tensors["embed.weight"]
    data = info.file.read_bytes()[info.start : info.end]
    assert np.array_equal(
        np.frombuffer(data, np.float32).reshape(info.shape), TENSORS["embed.weight"]
    )


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    folder = open_folder(write_sharded(tmp_path))
    assert {n: t.file.name for n, t in folder.tensors.items()} == {
        "embed.weight": "a.safetensors",
        "scalar": "a.safetensors",
        "blocks.0.bias": "b.safetensors",
    }
    assert set(folder.files) == {"config.json", "a.safetensors", "b.safetensors"}


def test_the_hash_of_the_weights_is_over_every_byte_of_them(tmp_path: Path) -> None:
    one, several = write_folder(tmp_path / "one"), write_sharded(tmp_path / "several")
    assert (
        hash_weights(open_folder(one))
        == sha256((one / "model.safetensors").read_bytes()).hexdigest()
    )
    whole = (several / "a.safetensors").read_bytes() + (several / "b.safetensors").read_bytes()
    assert hash_weights(open_folder(several)) == sha256(whole).hexdigest()


def test_weights_that_change_before_they_are_hashed_are_refused(tmp_path: Path) -> None:
    folder = open_folder(write_folder(tmp_path))
    with (tmp_path / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(AttnscopeError, match="changed while it was read"):
        hash_weights(folder)


def test_shards_may_be_symbolic_links(tmp_path: Path) -> None:
    path = write_sharded(tmp_path / "snapshot")
    blob = tmp_path / "0123abcd"
    (path / "b.safetensors").rename(blob)
    (path / "b.safetensors").symlink_to(os.path.join("..", blob.name))
    assert open_folder(path).tensors["blocks.0.bias"].shape == (5,)


def test_a_single_file_comes_before_an_index(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    write_folder(tmp_path)
    assert {t.file.name for t in open_folder(tmp_path).tensors.values()} == {"model.safetensors"}


def _fingerprint(path: Path) -> str:
    return open_folder(path).fingerprint


def test_the_fingerprint_stays_in_a_copy_and_changes_with_each_part(tmp_path: Path) -> None:
    write_folder(tmp_path / "one")
    write(tmp_path / "one", content("unigram"))
    write_folder(tmp_path / "copy")
    write(tmp_path / "copy", content("unigram"))
    first = _fingerprint(tmp_path / "one")
    assert first == _fingerprint(tmp_path / "copy")
    assert len(first) == 16
    assert int(first, 16) >= 0
    seen = {first}
    write(tmp_path / "copy", content("wordpiece"))
    seen.add(_fingerprint(tmp_path / "copy"))
    write_folder(tmp_path / "copy", CONFIG | {"x": 1})
    seen.add(_fingerprint(tmp_path / "copy"))
    renamed = {n.replace("embed", "wte"): array for n, array in TENSORS.items()}
    write_folder(tmp_path / "copy", CONFIG | {"x": 1}, safetensors(renamed))
    seen.add(_fingerprint(tmp_path / "copy"))
    assert len(seen) == 4


def test_two_trainings_of_one_architecture_have_different_fingerprints(tmp_path: Path) -> None:
    one = write_folder(
        tmp_path / "one", weights=safetensors({"w": np.zeros((300, 300), np.float32)})
    )
    other = write_folder(
        tmp_path / "other", weights=safetensors({"w": np.ones((300, 300), np.float32)})
    )
    assert _fingerprint(one) != _fingerprint(other)


def test_a_real_model_opens(minilm: Path) -> None:
    folder = open_folder(minilm)
    assert len(folder.tensors) == 104
    assert folder.tensors["embeddings.word_embeddings.weight"].shape == (30522, 384)
    assert set(folder.files) == {"config.json", "tokenizer.json", "model.safetensors"}


def test_empty_tensors_and_headers_padded_with_spaces_are_fine(tmp_path: Path) -> None:
    header = (
        json.dumps({"a": {"dtype": "F32", "shape": [0, 3], "data_offsets": [0, 0]}}).encode()
        + b"    "
    )
    file = tmp_path / "x.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    assert read_header(file).tensors["a"].shape == (0, 3)


def test_read_file_holds_its_cap(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"12345")
    assert read_file(file, cap=5) == b"12345"
    with pytest.raises(AttnscopeError, match=r"has 5 bytes; at most 4 are read"):
        read_file(file, cap=4)


def test_read_file_holds_its_cap_where_the_size_is_not_known_beforehand() -> None:
    assert read_file(Path("/proc/self/status"), cap=100_000).startswith(b"Name:")
    with pytest.raises(AttnscopeError, match="at most 10 are read"):
        read_file(Path("/proc/self/status"), cap=10)


def test_a_list_in_place_of_a_json_object_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    file.write_text('[1, "é"]')
    found = read_json(file, cap=100)
    assert found == [1, "é"]
    with pytest.raises(AttnscopeError) as e:
        as_object(found, str(file))
    assert (e.value.where, e.value.message) == (str(file), "is a list, not a JSON object")


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"a": {"b": [1, -2, 3.5, True, None, "ä\u2028\x7f\n\0😀\\"]}},
        [1e300, 1e-7, 0.1, -0.0],
        7,
        "x",
    ],
)
@pytest.mark.parametrize("indent", [None, 2, 4])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_json_is_the_same_however_it_is_written(
    value: object, indent: int | None, ascii_only: bool
) -> None:
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=ascii_only)
    found = parse_json(text.encode(), "x")
    assert repr(found) == repr(value)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize(
    ("items", "found"),
    [(['"a":1', '"a":1'], "is given twice"), (['"a":1e999'], "is not JSON"), (['"a":NaN'], "is not JSON"),
     (['"b":{"a":[{"c":2', '"c":2}]}'], "is given twice")],
)  # fmt: skip
def test_what_json_must_not_hold_is_found_however_it_is_written(
    items: list[str], found: str, separators: tuple[str, str]
) -> None:
    text = "{" + separators[0].join(items).replace(":", separators[1]) + "}"
    with pytest.raises(AttnscopeError, match=found):
        parse_json(text.encode(), "x")


def test_parse_json_keeps_numbers_exact() -> None:
    assert parse_json(b'{"a": 123456789012345678901, "b": 0.1, "c": -0.0}', "x") == {
        "a": 123456789012345678901,
        "b": 0.1,
        "c": 0.0,
    }


def test_neither_torch_nor_tokenizers_is_imported() -> None:
    code = "import attnscope.checkpoints, sys\n"
    code += (
        "import attnscope.checkpoints.tokenization.hugging_face, attnscope.checkpoints.samples\n"
    )
    code += "import attnscope.request.text_files\n"
    code += "print(sorted({'torch', 'tokenizers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
