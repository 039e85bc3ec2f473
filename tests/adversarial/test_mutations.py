"""Valid files, damaged at random: they still open, or are refused with an AttnscopeError; nothing else, and soon."""

import json
import tempfile
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.base.errors import AttnscopeError
from attnscope.base.system.escape import escape_control
from attnscope.checkpoints.folder import open_folder
from attnscope.checkpoints.tokenization import tokenizer_json
from attnscope.checkpoints.tokenization.hugging_face import load_tokenizer
from attnscope.model.tensors import read_tensors
from tests.adversarial.fuzzers import as_json, damage, mutate
from tests.helpers.folders import TENSORS, safetensors, within, write_folder, write_sharded
from tests.helpers.tokenizer_files import content

SEEDS = st.integers(0, 1 << 62)


def mutated(original: Any) -> st.SearchStrategy[bytes]:
    """JSON with a few places of a value replaced, removed, or copied over another."""
    return SEEDS.map(lambda seed: as_json(mutate(Random(seed), original)))


def damaged(original: bytes, reach: int | None = None) -> st.SearchStrategy[bytes]:
    """Bytes with flips, insertions, deletions among the first `reach`, and perhaps cut there."""
    return SEEDS.map(
        lambda seed: damage(Random(seed), original[:reach]) + original[len(original[:reach]) :]
    )


def _is_one_clean_line(text: str) -> bool:
    return len(text) < 800 and escape_control(text.replace("\\", "")) == text.replace("\\", "")


def _check(path: Path) -> None:
    """The one oracle: success or AttnscopeError, within seconds."""
    with within(5):
        try:
            folder = open_folder(path)
            for name, tensor in read_tensors(folder, folder.tensors):
                assert tuple(tensor.shape) == folder.tensors[name].shape
        except AttnscopeError as e:
            refusal = str(e)
        else:
            refusal = ""
    assert _is_one_clean_line(refusal)


WEIGHTS = safetensors(TENSORS, {"format": "pt"})
HEADER = json.loads(WEIGHTS[8 : 8 + int.from_bytes(WEIGHTS[:8], "little")])
DATA = WEIGHTS[8 + int.from_bytes(WEIGHTS[:8], "little") :]


@given(damaged(WEIGHTS))
def test_damaged_weights(weights: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _check(write_folder(Path(folder), weights=weights))


@given(mutated(HEADER))
def test_mutated_headers(header: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _check(
            write_folder(Path(folder), weights=len(header).to_bytes(8, "little") + header + DATA)
        )


CONFIG_BYTES = (
    b'{"model_type": "bert", "hidden_size": 4, "rope": {"theta": 1e4}, "layers": ["a", "b"]}'
)


@given(damaged(CONFIG_BYTES))
def test_damaged_configs(config: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _check(write_folder(Path(folder), config))


INDEX = {
    "metadata": {"total_size": 66},
    "weight_map": {
        "embed.weight": "a.safetensors",
        "scalar": "a.safetensors",
        "blocks.0.bias": "b.safetensors",
    },
}


@given(mutated(INDEX))
def test_mutated_indexes(index: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_sharded(Path(folder))
        (path / "model.safetensors.index.json").write_bytes(index)
        _check(path)


def _check_tokenizer(data: bytes) -> None:
    for bulky in (1, 1 << 16):  # bytes from which on a vocabulary is left as text
        with patch.object(tokenizer_json, "_LARGE", bulky):
            _check_one_tokenizer(data)


def _check_one_tokenizer(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, within(5):
        file = Path(folder) / "tokenizer.json"
        file.write_bytes(data)
        try:
            tokenizer = load_tokenizer(file)
            for text in ("The bank [CLS] 😀", "é"):
                assert all(t.text is not None for t in tokenizer.encode(text, "by the river"))
        except AttnscopeError as e:
            refusal = str(e)
        else:
            refusal = ""
    assert _is_one_clean_line(refusal)


@pytest.mark.parametrize("kind", ["byte-level", "roberta", "wordpiece", "unigram", "byte-fallback"])
@given(st.data())
def test_mutated_tokenizers(kind: str, data: st.DataObject) -> None:
    _check_tokenizer(data.draw(mutated(content(kind))))


@given(damaged(json.dumps(content("unigram")).encode(), 2000))
def test_damaged_tokenizers(data: bytes) -> None:
    _check_tokenizer(data)


@given(st.lists(st.floats(width=32), min_size=1, max_size=30))
def test_values_that_are_not_finite_never_get_in(values: list[float]) -> None:
    array = np.array(values, np.float32)
    with tempfile.TemporaryDirectory() as path:
        folder = open_folder(write_folder(Path(path), weights=safetensors({"w": array})))
        if np.isfinite(array).all():
            ((_, tensor),) = read_tensors(folder, ["w"])
            assert np.array_equal(tensor.numpy(), array)
        else:
            first = int(np.flatnonzero(~np.isfinite(array))[0])
            with pytest.raises(AttnscopeError, match=rf" at \[{first}\]; "):
                list(read_tensors(folder, ["w"]))
