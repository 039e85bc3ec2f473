"""CUDA devices: whether there may be one, which one a run uses, and its memory. Asks torch only if it is imported."""

import os
import sys
from dataclasses import dataclass

# multiplications below which starting a GPU takes longer than a second of the CPU
WORTH_A_GPU = 1 << 35
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
_MOST_SCORES = 1 << 26
_FEWEST_SCORES = 1 << 20
_SCORE_BYTES = 24  # a tile's stages and what recorders make of them: 5.2 to 6 tensors of float32
_TILE_SHARE = 16  # a tile takes at most this part of the device


@dataclass(frozen=True)
class GpuMemory:
    """Bytes of a GPU."""

    free: int  # not taken by anyone, or only kept by torch for its next tensors
    total: int


def has_gpu_driver() -> bool:
    """Return whether a driver of a GPU is installed, as far as files show; True on Windows."""
    return os.name == "nt" or any(map(os.path.exists, _DRIVERS))


def cuda_device(name: str, multiplications: int) -> str | None:
    """Return the CUDA device that a run uses; None if it uses another one.

    Args:
        multiplications: How much there is to compute: `auto` is the CPU for little work.
    """
    torch = sys.modules.get("torch")
    if torch is None or (name != "auto" and not name.startswith("cuda")):
        return None
    if name == "auto":
        if multiplications >= WORTH_A_GPU and torch.cuda.is_available():
            return "cuda:0"
        return None
    return "cuda:0" if name == "cuda" else name


def count_gpus() -> int:
    """Count the CUDA devices; torch is imported."""
    return int(sys.modules["torch"].cuda.device_count())


def gpu_memory(device: str) -> GpuMemory | None:
    """Return the memory of a CUDA device, such as `cuda:0`; None if there is no such device."""
    torch = sys.modules["torch"]
    if not torch.cuda.is_available() or int(device.partition(":")[2]) >= torch.cuda.device_count():
        return None
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return GpuMemory(free + reserved, total)


def tile_scores(total: int) -> int:
    """Return the largest number of scores in a tile on a GPU with this memory in bytes.

    It does not depend on free memory: sums over tiles of other sizes differ in their last bits.
    """
    fit = total // _TILE_SHARE // _SCORE_BYTES
    return max(_FEWEST_SCORES, min(_MOST_SCORES, 1 << max(0, fit.bit_length() - 1)))


def tile_bytes(total: int, cells: int) -> int:
    """Return bytes that tiles take on a GPU of `total` bytes, in a layer of `cells` scores."""
    return _SCORE_BYTES * min(tile_scores(total), cells)


def device_tile_scores(device: str) -> int:
    """Return tile_scores of a CUDA device."""
    return tile_scores(sys.modules["torch"].cuda.get_device_properties(device).total_memory)
