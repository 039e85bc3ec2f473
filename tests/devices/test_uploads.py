"""Weights reach a GPU from pinned memory, on a stream of their own, beside what it computes."""

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from attnscope.checkpoints.families import NATIVE_LAYOUT
from attnscope.checkpoints.folder import open_weights
from attnscope.model import uploads
from attnscope.model.checkpoint import load_stack
from attnscope.model.hooks import AttentionHooks
from attnscope.model.masks import build_mask
from attnscope.model.stack import Stack
from attnscope.model.uploads import Uploads
from attnscope.request.masks.expression import parse_mask
from attnscope.request.masks.terms import Bidirectional
from tests.devices.simulation import SimulatedEvent, SimulatedTensor, counts, streams
from tests.model.test_checkpoint import PLAIN
from tests.model.test_weights import LAYERS, TOKENS, written


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint, each tensor of which takes many pieces."""
    monkeypatch.setattr(uploads, "_PIECE", 64)
    return written(tmp_path)


def test_parameters_of_the_cpu_are_there_at_once() -> None:
    uploads, weight = Uploads(torch.device("cpu")), torch.ones(2)
    with uploads.beside():
        assert uploads.copy(weight) is weight
    assert uploads.arrival() is None


def opened(path: Path, device: str, *, keep: bool) -> Stack:
    deep = msgspec.structs.replace(PLAIN, n_layers=LAYERS)
    stack = load_stack(
        NATIVE_LAYOUT, deep, open_weights(path), LAYERS, torch.float32, torch.device(device)
    )
    stack.weights.keep = keep
    return stack


def hidden(stack: Stack, ids: Tensor) -> Tensor:
    """What the last block gives; launches and waits are counted from here on."""
    mask, types = build_mask(parse_mask(stack.config.mask)), torch.zeros_like(ids)
    counts.reset()
    output = stack.run(
        (ids, types),
        [mask] * LAYERS,
        Bidirectional(),
        AttentionHooks({}, all_outputs=True),
        final=True,
    )
    assert output is not None
    return output.cpu()


@pytest.mark.parametrize("keep", [True, False])
def test_weights_are_uploaded_beside_computation(
    simulated: str, path: Path, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = torch.arange(TOKENS, device=simulated)[None]
    everything_there = opened(path, simulated, keep=True)
    expected = hidden(everything_there, ids), hidden(everything_there, ids)
    waits = counts.waits
    assert not counts.beside
    stack = opened(path, simulated, keep=keep)
    for output in expected:
        assert torch.equal(hidden(stack, ids), output)
        assert counts.waits == waits, "computation waits for weights"
    assert bool(counts.beside) is not keep
    if keep:
        stored = load_file(path)
        assert stack.state_dict().keys() == stored.keys()
        assert all(
            torch.equal(weight.cpu(), stored[name]) for name, weight in stack.state_dict().items()
        )
    assert streams.reused == 0


@pytest.mark.parametrize("missing", ["copied.synchronize", "receive", "record_stream"])
def test_the_simulation_sees_what_uploads_may_not_leave_out(
    simulated: str, path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = torch.arange(TOKENS, device=simulated)[None]
    expected = hidden(opened(path, simulated, keep=True), ids)
    if missing == "copied.synchronize":
        monkeypatch.setattr(SimulatedEvent, "synchronize", lambda self: None)
    elif missing == "receive":
        monkeypatch.setattr(Uploads, "receive", lambda *given: None)
    else:
        monkeypatch.setattr(SimulatedTensor, "record_stream", lambda *given: None)
    stack = opened(path, simulated, keep=False)
    if missing == "receive":
        with pytest.raises(RuntimeError, match="another one still writes"):
            hidden(stack, ids)
    elif missing == "record_stream":
        hidden(stack, ids)
        assert streams.reused > LAYERS
    else:
        assert not torch.equal(hidden(stack, ids), expected)


def test_a_block_is_read_when_the_last_but_one_is_out_of_use(
    simulated: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the host would run ahead of the device, which would hold more blocks than planned."""
    released, waits = [0], list[int]()
    synchronize, release = SimulatedEvent.synchronize, Uploads.release
    stack = opened(path, simulated, keep=False)
    uploader = stack.weights._uploads

    def counted(uploads: Uploads) -> None:
        released[0] += 1
        release(uploads)

    def noted(event: SimulatedEvent) -> None:
        if event is uploader._released:
            waits.append(released[0])
        synchronize(event)

    monkeypatch.setattr(Uploads, "release", counted)
    monkeypatch.setattr(SimulatedEvent, "synchronize", noted)
    hidden(stack, torch.arange(TOKENS, device=simulated)[None])
    assert len(waits) == 1 + LAYERS  # the embedding, and every block
    assert all(count >= block - 1 for block, count in enumerate(waits[1:]))
