import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.mask_files import read_mask
from attnscope.request.run_config import TextInput
from attnscope.run.session import Session, inspect
from tests.helpers.requests import requested

MATRIX = np.array([[True, False, True], [True, True, False], [False, False, False]])


def write(path, matrix):
    if path.suffix == ".json":
        path.write_text(json.dumps(np.asarray(matrix).tolist()))
    elif path.suffix == ".npy":
        np.save(path, matrix)
    else:
        save_file({"allowed": np.asarray(matrix)}, path)
    return path


@pytest.mark.parametrize("name", ["m.json", "m.npy", "m.safetensors"])
def test_every_kind_of_file_holds_the_same_matrix(tmp_path, name):
    np.testing.assert_array_equal(read_mask(write(tmp_path / name, MATRIX)), MATRIX)


@pytest.mark.parametrize("name", ["m.npy", "m.safetensors"])
@pytest.mark.parametrize("masked", [-np.inf, np.finfo(np.float32).min])
def test_a_matrix_that_is_added_to_scores_is_a_mask(tmp_path, name, masked):
    added = np.where(MATRIX, 0, masked).astype(np.float32)[None, None]
    np.testing.assert_array_equal(read_mask(write(tmp_path / name, added)), MATRIX)
    added[0, 0, 1, 1] = -1
    with pytest.raises(AttnscopeError, match="has -1, which is neither 0 nor −inf"):
        read_mask(write(tmp_path / name, added))


@pytest.mark.parametrize("name", ["m.json", "m.npy", "m.safetensors"])
@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        (MATRIX.astype(int), r"(int64, not bool; save mask.astype\(bool\)|is 1, not a boolean)"),
        (MATRIX[0], "expected one"),
    ],
)
def test_what_is_no_boolean_matrix_is_refused(tmp_path, name, matrix, said):
    with pytest.raises(AttnscopeError, match=said) as error:
        read_mask(write(tmp_path / name, matrix))
    assert str(tmp_path / name) in str(error.value)


def _npz():
    file = io.BytesIO()
    np.savez(file, mask=MATRIX)
    return file.getvalue()


def _npy(shape):
    header = f"{{'descr': '|b1', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\x01" * 9


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("m.json", b"[[true], [true, false]]", "row 0 has length 1, but row 1 has length 2"),
        ("m.json", b"[[true], [null]]", "row 1, column 0 is None, not a boolean"),
        ("m.json", b"{}", "is not a list of rows"),
        ("m.npy", b"\x93NUMPY\x01\x00", "is not a NumPy array"),
        ("m.npy", b"", "is not a NumPy array"),
        ("m.npy", b"PK\x03\x04 cut off", "is not a NumPy array"),
        ("m.npy", _npz(), "is not a NumPy array"),
        ("m.npy", _npy("(1099511627776, 1024)"), "is not a NumPy array"),
        ("m.npy", _npy("(None, 3)"), "is not a NumPy array"),
        ("m.safetensors", b"12345678", "is not safetensors"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(AttnscopeError, match=said):
        read_mask(tmp_path / name)


def test_a_pickle_in_npy_is_never_loaded(tmp_path):
    np.save(tmp_path / "m.npy", np.array([[print]], dtype=object), allow_pickle=True)
    with pytest.raises(AttnscopeError, match="is not a NumPy array"):
        read_mask(tmp_path / "m.npy")


def run(mask, text="the cat sleeps", config="bidirectional"):
    return (
        inspect(requested(texts=(TextInput(text),), config=config, layer="0", head="0", mask=mask))
        .texts[0]
        .heads[0]
    )


def test_a_mask_file_decides_and_a_fully_masked_row_has_no_numbers(tmp_path):
    head = run(str(write(tmp_path / "m.json", MATRIX)))
    np.testing.assert_array_equal(head.stages["masked"] > -np.inf, MATRIX)
    assert (head.stages["weights"][:2][~MATRIX[:2]] == 0).all()
    np.testing.assert_allclose(head.stages["weights"][:2].sum(-1), 1, atol=1e-6)
    assert head.fully_masked == [2]
    assert np.isnan(head.stages["weights"][2]).all()
    assert (head.top.keys[2] == -1).all()
    assert np.isnan(head.rows.entropy[2])


def test_a_mask_file_composes_with_other_masks(tmp_path):
    head = run(f"causal+{write(tmp_path / 'm.npy', MATRIX)}")
    np.testing.assert_array_equal(head.stages["masked"] > -np.inf, MATRIX & np.tri(3, dtype=bool))


def test_a_matrix_of_another_size_is_refused_with_both_sizes(tmp_path):
    path = write(tmp_path / "m.json", MATRIX)
    with pytest.raises(
        AttnscopeError,
        match=re.escape(
            f"{path}: the matrix is 3 × 3, but the text needs 2 × 2; expected a row per"
        ),
    ):
        run(str(path), "the cat")


def test_packed_documents_do_not_see_each_other():
    allowed = run("block:2", "the cat sleeps on it").stages["masked"] > -np.inf
    block = np.arange(5) // 2
    np.testing.assert_array_equal(allowed, block[:, None] == block)


@pytest.mark.parametrize("path", ["downloads/m.npy", "owner.json", "causal.json", "prefix.npy"])
def test_a_files_name_is_neither_rewritten_nor_read_as_a_word(path, tmp_path, monkeypatch):
    """Only the file decides: a long text's window lies in the middle of a mask that is not causal."""
    monkeypatch.chdir(tmp_path)
    Path("downloads").mkdir()
    n = 80
    allowed = np.ones((n, n), dtype=bool)
    write(Path(path), allowed)
    text = TextInput("bank " * n)
    for mask in (path, f"own+{path}"):
        run = requested(
            (text,), config="bidirectional", mask=mask, layer="0", head="0", query="40", window=20
        )
        # with progress, which estimates the work from the mask
        report = inspect(run, Session(run.texts, lambda *_: None))
        assert report.mask.used == mask.replace("own+", "bidirectional+")
        assert report.texts[0].keys == list(range(30, 50))
