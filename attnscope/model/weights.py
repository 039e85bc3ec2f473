"""Load the parameters of each block when it runs, and keep or drop them afterwards."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.cuda import Event as Arrival

from attnscope.model.uploads import Uploads
from attnscope.model.workers import one_openmp_thread

# a block's number, None for the embedding, or the output head
BlockIndex: TypeAlias = int | Literal["head"] | None
# parameters of a piece, by their names within it
ReadParameters = Callable[[BlockIndex], Iterator[tuple[str, Tensor]]]
# what a thread reads, and when its copies arrive; None if it is there already
_Pending = Future[tuple[dict[str, Tensor], Arrival | None]] | None
_BeginReading = Callable[[BlockIndex], _Pending]


class WeightStore:
    """Source and lifetime of the parameters of an embedding and of blocks.

    They are read when they are needed: `read` gives the parameters of a module that is still on "meta"; without it, all
    are loaded. While one block runs, a thread reads the next one, and no other. So there are never more than two blocks
    at a time where they are not kept; the output head, once it is read, stays. Exceptions of that thread are re-raised
    where its result is awaited.
    """

    def __init__(
        self,
        embed: nn.Module,
        blocks: Sequence[nn.Module],
        read: ReadParameters | None = None,
        head: nn.Module | None = None,
        uploads: Uploads | None = None,
    ) -> None:
        self._uploads = uploads or Uploads(torch.device("cpu"))
        self._embed = embed
        self._blocks = blocks
        self._read = read
        self._keep = True
        self._head = head
        # tensors on "meta"
        self._nothing = [block.state_dict() for block in blocks if read is not None]

    @property
    def keep(self) -> bool:
        """Keep blocks for the next pass; otherwise each is dropped after it has run, and read again in every pass."""
        return self._keep

    @keep.setter
    def keep(self, keep: bool) -> None:
        self._keep = keep
        self._drop(range(len(self._blocks)))

    @contextmanager
    def in_order(
        self, count: int, first_block: int = 0, meanwhile: Callable[[], None] | None = None
    ) -> Iterator[Iterator[nn.Module]]:
        """Provide one pass: the embedding, and the first blocks, each from when its turn comes to the next one's.

        `meanwhile` is done while the embedding is read, if it has to be.
        """
        with self._reading() as begin:
            pending = [begin(None), begin(first_block) if first_block < count else None]
            try:
                if pending[0] is not None and meanwhile is not None:
                    meanwhile()
                self._fill(None, pending.pop(0))
                # a name would hold the block
                yield self._in_turn(range(first_block, count), begin, pending.pop())
            finally:
                pending.clear()
                self._drop(range(count))

    @contextmanager
    def holding(self, piece: BlockIndex) -> Iterator[None]:
        """Hold a block, the embedding or the output head between passes."""
        with self._reading() as begin:
            try:
                self._fill(piece, begin(piece))
                yield
            finally:
                self._drop([piece] if isinstance(piece, int) else [])

    def _in_turn(self, layers: range, begin: _BeginReading, ahead: _Pending) -> Iterator[nn.Module]:
        for layer in layers:
            self._fill(layer, ahead)
            ahead = begin(layer + 1) if layer + 1 < layers.stop else None
            yield self._blocks[layer]
            self._drop([layer])

    @contextmanager
    def _reading(self) -> Iterator[_BeginReading]:
        """Start to read a piece in a separate thread, which ends with this context."""
        read = self._read
        stop = Event()

        def parameters(piece: BlockIndex) -> tuple[dict[str, Tensor], Arrival | None]:
            by_name: dict[str, Tensor] = {}
            # a second team of OpenMP threads, on the cores of the first, slows both by half
            with one_openmp_thread(), self._uploads.beside():
                for name, tensor in read(piece) if read is not None and not stop.is_set() else ():
                    if stop.is_set():
                        break  # nothing waits for it any more
                    by_name[name] = tensor
                return by_name, self._uploads.arrival()

        with ThreadPoolExecutor(1, "weights") as pool:
            try:
                yield (
                    lambda piece: (
                        pool.submit(parameters, piece)
                        if read is not None
                        and any(p.is_meta for p in self._module(piece).parameters())
                        else None
                    )
                )
            finally:
                stop.set()

    def _module(self, piece: BlockIndex) -> nn.Module:
        if piece == "head":
            assert self._head is not None
            return self._head
        if piece is None:
            return self._embed
        return self._blocks[piece]

    def _fill(self, piece: BlockIndex, ahead: _Pending) -> None:
        if ahead is not None:
            parameters, arrival = ahead.result()
            if arrival is not None:
                self._uploads.receive(arrival, parameters.values())
            self._module(piece).load_state_dict(parameters, strict=True, assign=True)

    def _drop(self, layers: Sequence[int]) -> None:
        """Drop blocks that are not kept and can be read again."""
        if not self._keep and self._read is not None:
            self._uploads.release()
            for layer in layers:
                self._blocks[layer].load_state_dict(self._nothing[layer], strict=True, assign=True)
