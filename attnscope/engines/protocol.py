"""What the rest of the program needs of an engine."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from attnscope.model.batch import Batch
from attnscope.model.tile import Recorder


class Engine(Protocol):
    """What shows a model's attention to recorders."""

    def forward(self, batch: Batch, recorders: Mapping[int, Sequence[Recorder]]) -> None:
        """Show every watched layer's attention over a batch to its recorders."""
