"""Weights that are read when a layer needs them: the same numbers, never more than two layers, no thread left over."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep
from typing import BinaryIO

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from attnscope.base.errors import AttnscopeError
from attnscope.base.model_config import ModelConfig
from attnscope.checkpoints.families import NATIVE_LAYOUT
from attnscope.checkpoints.folder import open_weights
from attnscope.checkpoints.headers import TensorInfo
from attnscope.findings.heads import STAGES
from attnscope.model import tensors
from attnscope.model.checkpoint import load_stack
from attnscope.model.hooks import AttentionHooks
from attnscope.model.masks import build_mask, padding_mask
from attnscope.model.randomize import make_random
from attnscope.model.recorders import MatrixRecorder
from attnscope.model.stack import Stack
from attnscope.request.masks.expression import parse_mask
from tests.helpers.loaded_stack import load_all
from tests.model.test_checkpoint import CONFIGS, CPU, PLAIN

LAYERS, TOKENS = 6, 5


def written(path: Path, config: ModelConfig = PLAIN) -> Path:
    """A checkpoint with random weights, every layer in a place of its own."""
    deep = msgspec.structs.replace(config, n_layers=LAYERS)
    save_file(
        make_random(deep, 1, LAYERS, torch.float32, CPU).state_dict(), path / "stack.safetensors"
    )
    return path / "stack.safetensors"


def opened(
    path: Path,
    config: ModelConfig = PLAIN,
    dtype: torch.dtype = torch.float32,
    *,
    keep: bool = True,
) -> Stack:
    """The checkpoint, of which nothing has been read."""
    deep = msgspec.structs.replace(config, n_layers=LAYERS)
    stack = load_stack(NATIVE_LAYOUT, deep, open_weights(path), LAYERS, dtype, CPU)
    stack.weights.keep = keep
    return stack


def look(
    stack: Stack, on_progress: Callable[[int, int], None] | None = None, last: int = LAYERS
) -> list[dict[str, Tensor]]:
    """Every stage of every layer, over one text."""
    c, ids = stack.config, torch.arange(TOKENS)[None]
    found = {
        i: MatrixRecorder(STAGES, range(c.n_heads), range(TOKENS), range(TOKENS))
        for i in range(last)
    }
    hooks = AttentionHooks({layer: [one] for layer, one in found.items()})
    mask = build_mask(parse_mask(c.mask))
    stack.run(
        (ids, torch.zeros_like(ids)),
        [mask] * LAYERS,
        padding_mask([TOKENS], TOKENS, CPU),
        hooks,
        progress=on_progress,
    )
    return [one.compute() for one in found.values()]


def same(one: list[dict[str, Tensor]], other: list[dict[str, Tensor]]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a[stage], b[stage]) for a, b in zip(one, other, strict=True) for stage in STAGES
    )


def present(stack: Stack) -> list[int]:
    """Layers with a parameter that takes memory."""
    return [
        i for i, block in enumerate(stack.blocks) if not all(p.is_meta for p in block.parameters())
    ]


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("weights")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_pass_has_the_numbers_of_a_stack_that_is_all_there(
    config: ModelConfig, dtype: torch.dtype, tmp_path: Path
) -> None:
    path = written(tmp_path, config)
    expected = look(load_all(opened(path, config, dtype)))
    kept, streamed = opened(path, config, dtype), opened(path, config, dtype, keep=False)
    for _ in range(2):
        assert same(look(kept), expected)
        assert present(kept) == list(range(LAYERS))
        assert same(look(streamed), expected)
        assert present(streamed) == []
    assert not any(p.is_inference() for p in kept.parameters())


def counting(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, StorageWeakRef]]:
    """The name of every tensor that is read from here on, and whether its memory is still in use."""
    found: list[tuple[str, StorageWeakRef]] = []
    read = tensors._read

    def counted(file: BinaryIO, info: TensorInfo, dtype: torch.dtype, turned: bool) -> Tensor:
        made = read(file, info, dtype, turned)
        found.append((info.name, StorageWeakRef(made.untyped_storage())))
        return made

    monkeypatch.setattr(tensors, "_read", counted)
    return found


def test_nothing_is_read_before_it_is_needed_and_kept_weights_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    found = counting(monkeypatch)
    stack = opened(path)
    assert found == []
    look(stack, last=2)
    assert {name.split(".")[1] for name, _ in found if name.startswith("blocks.")} == {"0", "1"}
    look(stack)
    look(stack)
    assert sorted(name for name, _ in found) == sorted(name for name, _ in stack.named_parameters())
    stack.weights.keep = False
    found.clear()
    look(stack)
    look(stack)
    again = Counter(name for name, _ in found)
    assert again == {name: 2 for name, _ in stack.blocks.named_parameters(prefix="blocks")}


@pytest.mark.parametrize("config", ["attention alone", "everything"])
def test_one_layer_is_read_while_another_one_runs_and_no_more(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, CONFIGS[config])
    found, most = counting(monkeypatch), 0
    stack = opened(path, CONFIGS[config], keep=False)

    def living() -> set[str]:
        return {
            name.split(".")[1]
            for name, one in list(found)
            if name.startswith("blocks.") and not one.expired()
        }

    def on_progress(done: int, total: int) -> None:
        nonlocal most
        while done < total and str(done) not in living():
            sleep(0.001)  # until the thread has begun
        sleep(0.02)  # in which it would begin with another one
        assert living() == {str(done - 1), str(done)} - {str(total)}
        most += 1

    for _ in range(2):
        look(stack, on_progress)
        assert living() == set()
    assert most == 2 * LAYERS
    stack.weights.keep = True
    look(stack)
    assert living() == set(map(str, range(LAYERS)))


class Interrupted(BaseException):
    """What a signal raises."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Interrupted, RuntimeError])
@pytest.mark.parametrize("keep", [True, False])
def test_no_thread_outlives_what_breaks_a_pass_off(
    tmp_path: Path, kind: type[BaseException], keep: bool
) -> None:
    stack = opened(written(tmp_path), keep=keep)

    def break_off(done: int, total: int) -> None:
        assert readers() == ["weights_0"]
        raise kind

    with pytest.raises(kind):
        look(stack, break_off)
    assert readers() == []
    assert present(stack) == ([0] if keep else [])
    assert same(look(stack), look(load_all(opened(tmp_path / "stack.safetensors"))))
    assert readers() == []


def test_a_thread_that_nobody_waits_for_any_more_stops_at_the_next_tensor(tmp_path: Path) -> None:
    stack, read = opened(written(tmp_path)), 0
    original = stack.weights._read
    assert original is not None
    reached = threading.Event()

    def slow(piece: int | None) -> Iterator[tuple[str, Tensor]]:
        nonlocal read
        for pair in original(piece):
            if piece == 1:
                read += 1
                reached.set()
                threading.Event().wait(0.2)
            yield pair

    stack.weights._read = slow

    def break_off(done: int, total: int) -> None:
        assert reached.wait(10)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        look(stack, break_off)
    assert read <= 2
    assert readers() == []


def test_the_embedding_is_read_first_and_nothing_after_an_error(tmp_path: Path) -> None:
    stack, begun = opened(written(tmp_path)), list[int | None]()
    original = stack.weights._read
    assert original is not None
    interrupted = threading.Event()

    def noted(piece: int | None) -> Iterator[tuple[str, Tensor]]:
        begun.append(piece)
        assert interrupted.wait(10)
        yield from original(piece)

    def interrupt() -> None:
        while not begun:
            sleep(0.001)
        interrupted.set()
        raise KeyboardInterrupt

    stack.weights._read = noted
    with pytest.raises(KeyboardInterrupt), stack.weights.in_order(2, meanwhile=interrupt):
        pass
    assert begun == [None]


def test_an_error_holds_no_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = counting(monkeypatch)
    stack = opened(written(tmp_path))

    def fail() -> None:
        while not any(name.startswith("blocks.0") for name, _ in found):
            sleep(0.001)
        raise RuntimeError

    with pytest.raises(RuntimeError) as held, stack.weights.in_order(2, meanwhile=fail):
        pass
    assert [name for name, one in found if name.startswith("blocks.") and not one.expired()] == []
    assert held.traceback


def test_torch_has_as_many_threads_as_before(tmp_path: Path) -> None:
    def of_a_new_thread() -> list[int]:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        return found

    before, new = torch.get_num_threads(), of_a_new_thread()
    look(opened(written(tmp_path)))
    assert (torch.get_num_threads(), of_a_new_thread()) == (before, new)


@pytest.mark.parametrize("keep", [True, False])
def test_a_value_in_a_late_layer_is_named(tmp_path: Path, keep: bool) -> None:
    path = written(tmp_path)
    state = load_file(path)
    state["blocks.4.attention.k.weight"][2, 3] = float("nan")
    save_file(state, path)
    stack, done = opened(path, keep=keep), []
    with pytest.raises(AttnscopeError) as caught:
        look(stack, lambda layer, layers: done.append(layer))
    assert str(caught.value) == (
        f"{path}: blocks.4.attention.k.weight: contains nan at [2, 3]; 1 of 48 are not finite; "
        "the checkpoint is damaged: download it again"
    )
    assert done == [1, 2, 3, 4]
    assert readers() == []
    assert len(look(stack, last=4)) == 4


@pytest.mark.parametrize("how", ["cut", "replaced", "gone"])
@pytest.mark.parametrize("keep", [True, False])
def test_a_file_that_changes_between_two_layers_is_refused(
    tmp_path: Path, keep: bool, how: str
) -> None:
    path = written(tmp_path)
    stack, whole_file = opened(path, keep=keep), path.read_bytes()

    def change(done: int, total: int) -> None:
        if done == 2 and how == "cut":
            os.truncate(path, len(whole_file) // 3)
        elif done == 2 and how == "gone":
            path.unlink()
        elif done == 2:
            (tmp_path / "new").write_bytes(whole_file)
            (tmp_path / "new").replace(path)

    with pytest.raises(AttnscopeError) as caught:
        look(stack, change)
    assert caught.value.where == str(path)
    assert caught.value.message == (
        "no such file" if how == "gone" else "changed while it was read"
    )
    assert readers() == []


def test_one_layer_can_be_had_between_passes(tmp_path: Path) -> None:
    stack = opened(written(tmp_path), keep=False)
    expected = load_all(opened(tmp_path / "stack.safetensors")).blocks[3].attention.q.weight
    with stack.weights.holding(3):
        assert present(stack) == [3]
        assert torch.equal(stack.blocks[3].attention.q.weight, expected)
    assert present(stack) == []
    stack.weights.keep = True
    with stack.weights.holding(3):
        pass
    assert present(stack) == [3]


def test_weights_that_cannot_be_read_again_stay(tmp_path: Path) -> None:
    stack = make_random(
        msgspec.structs.replace(PLAIN, n_layers=LAYERS), 1, LAYERS, torch.float32, CPU
    )
    stack.weights.keep = False
    look(stack)
    assert present(stack) == list(range(LAYERS))
