"""Memory for the matrices of several texts, one text after the other, without padding.

Data for a file is copied only once, from the tile, and does not have to be cut, stacked or moved afterwards.
"""

from collections.abc import Sequence
from itertools import groupby
from threading import Lock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.model.frame import download


class PackedMatrices:
    """Matrices of a batch, for every text (units, rows, columns) of these sizes, shared by recorders of all layers."""

    def __init__(self, units: int, sizes: Sequence[tuple[int, int]]) -> None:
        self.units = units
        self.output_widths = [0] * units
        self._runs = list[tuple[slice, int, int]]()  # texts of one size, and the size
        for (rows, columns), run in groupby(enumerate(sizes), key=lambda numbered: numbered[1]):
            places = [index for index, _ in run]
            self._runs.append((slice(places[0], places[-1] + 1), rows, columns))
        self._kept: dict[str, list[Tensor]] = {}
        self._making = Lock()

    def put(self, stage: str, part: Tensor, units: slice | list[int], first_row: int) -> None:
        """Copy some rows of a text's matrices out of (B, units, rows, columns), padding included."""
        with self._making:
            if stage == "output":
                self._make_outputs(part, units)
            elif stage not in self._kept:
                self._kept[stage] = [
                    _empty((len(part[texts]), self.units, rows, columns), part)
                    for texts, rows, columns in self._runs
                ]
        for (texts, rows, _), matrices in zip(self._runs, self._kept[stage], strict=True):
            here = min(part.shape[2], rows - first_row)
            width = min(part.shape[3], matrices.shape[3])
            if here > 0:
                matrices[:, units, first_row : first_row + here, :width] = part[
                    texts, :, :here, :width
                ]

    def _make_outputs(self, part: Tensor, units: slice | list[int]) -> None:
        """Make room for outputs of this width; those of narrower layers are followed by NaN."""
        width = part.shape[-1]
        for unit in range(self.units)[units] if isinstance(units, slice) else units:
            self.output_widths[unit] = width
        before = self._kept.get("output")
        if before is not None and before[0].shape[3] == width:
            return
        if before is None:
            self._kept["output"] = [
                _empty((len(part[texts]), self.units, rows, width), part)
                for texts, rows, _ in self._runs
            ]
            return
        widest = max(width, before[0].shape[3])
        self._kept["output"] = [
            F.pad(matrices, (0, widest - matrices.shape[3]), value=torch.nan) for matrices in before
        ]
        for matrices in self._kept["output"]:
            matrices[:, units, :, width:] = torch.nan

    def to_cpu(self) -> None:
        """Move the matrices to the CPU."""
        arrived = iter(download([run for runs in self._kept.values() for run in runs]))
        self._kept = {stage: [next(arrived) for _ in runs] for stage, runs in self._kept.items()}

    def text(self, text_index: int) -> dict[str, Tensor]:
        """Return the matrices of one text by stage, (units, rows, columns)."""
        of_text = {}
        for number, (texts, _, _) in enumerate(self._runs):
            if texts.start <= text_index < texts.stop:
                for stage, runs in self._kept.items():
                    of_text[stage] = runs[number][text_index - texts.start]
        return of_text


def _empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return an uninitialised tensor on the device of another one."""
    if like.device.type != "cpu":
        return like.new_empty(shape)
    # NumPy asks for huge pages: the system clears pages, which takes a tenth of a dump where they are small.
    return torch.from_numpy(np.empty(shape, dtype=np.float32))
