"""One block of arrays for all units of a pass, of which every recorder fills its own units."""

from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.model.frame import download

# Larger arrays, in bytes, are copied from a device one by one, since joining them would take their memory again.
_JOINED = 1 << 26
_ALIGNED = 8  # bytes


class MakeArray(Protocol):
    """Makes an array of a recorder, (B, units, …), filled with one value."""

    def __call__(
        self,
        name: str,
        shape: tuple[int, ...],
        device: torch.device,
        fill: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor: ...


def own_array(
    name: str,
    shape: tuple[int, ...],
    device: torch.device,
    fill: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Make an array for a recorder that is alone; see MakeArray."""
    return torch.full(shape, fill, dtype=dtype, device=device)


@dataclass
class Block:
    """The arrays of a pass by name, each with the axes text and unit in front, (B, units, …)."""

    n_units: int
    arrays: dict[str, Tensor] = field(default_factory=dict)
    _making: Lock = field(default_factory=Lock)

    def array(
        self,
        units: slice,
        name: str,
        shape: tuple[int, ...],
        device: torch.device,
        fill: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return some units of an array; those of all units are made when the first are requested; see MakeArray."""
        with self._making:
            if name not in self.arrays:
                self.arrays[name] = own_array(
                    name, (shape[0], self.n_units, *shape[2:]), device, fill, dtype
                )
        return self.arrays[name][:, units]

    def round(self, digits: int) -> None:
        """Round numbers to decimal places."""
        for array in self.arrays.values():
            if array.is_floating_point():
                # adding 0 turns −0 into 0
                array.round_(decimals=digits).add_(0)

    def to_cpu(self, *, rows_first: bool = False) -> None:
        """Move all arrays to the CPU, small ones in a single copy, because each copy waits.

        Args:
            rows_first: Put the units of a row side by side in memory before, which a CPU would do number by number.
        """
        moved = {}
        if rows_first:
            moved = {name: axis for name in self.arrays if (axis := _row_axis(name)) is not None}
        for name, axis in moved.items():
            self.arrays[name] = self.arrays[name].movedim(1, axis).contiguous()
        small = {name: array for name, array in self.arrays.items() if array.nbytes <= _JOINED}
        large = {name: array for name, array in self.arrays.items() if name not in small}
        bytes_of = [array.reshape(-1).view(torch.uint8) for array in small.values()]
        if small:
            joined = [torch.cat([F.pad(part, (0, -len(part) % _ALIGNED)) for part in bytes_of])]
        else:
            joined = []
        arrived = download([*large.values(), *joined])
        self.arrays |= zip(large, arrived, strict=False)
        start = 0
        for name, array in small.items():
            end = start + array.nbytes
            self.arrays[name] = arrived[-1][start:end].view(array.dtype).view(array.shape)
            start = end + -end % _ALIGNED
        for name, axis in moved.items():
            self.arrays[name] = self.arrays[name].movedim(axis, 1)


def _row_axis(name: str) -> int | None:
    """Return the axis of an array of a block along which a text's own rows or keys lie; None if it has none, or two."""
    if name.startswith("top."):
        return 2
    return {"rows": 3, "columns": 2}.get(name)
