"""Record the strongest sources of every row."""

from collections.abc import Sequence
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from attnscope.model.inputs import AttentionInputs
from attnscope.model.recorders.block import MakeArray, own_array
from attnscope.model.tile import Overlap, Recorder, Tile, as_slice

RANKED_SINGLY = 8  # sources of a row that are selected one by one; more are sorted
_LONG = 1 << 14
_CHUNK = 64
_FEW_CHUNKS = 4  # a GPU looks into chunks where a row has so many times those that it looks into


class TopRecorder(Recorder):
    """The strongest sources of every row, among the `eligible` keys, (B, K), bool.

    By weight, keys are ranked by their masked scores, which order them as weights do and still distinguish what has
    become 0 in float32. Of measures the `names` are kept; None for weight, value, and `projected` if it ranks. Whether
    all keys take part, `ranks_all`, is read from the device unless the caller knows it.
    """

    def __init__(
        self,
        count: int,
        by: str,
        heads: Sequence[int],
        rows: Sequence[int],
        eligible: Tensor,
        names: tuple[str, ...] | None = None,
        make_array: MakeArray = own_array,
        ranks_all: bool | None = None,
    ) -> None:
        super().__init__(heads, rows)
        self._names = names or (
            ("weight", "value", "projected") if by == "projected" else ("weight", "value")
        )
        self.count = min(count, eligible.shape[1])
        self.by = by
        self.excluded = ~eligible
        self.ranks_all = bool(eligible.all()) if ranks_all is None else ranks_all
        if by == "weight" and self.ranks_all and self.count <= RANKED_SINGLY:
            self.n_strongest = self.count
        else:
            self.n_strongest = 0
        self.needs_masked = not self.n_strongest
        shape = (eligible.shape[0], len(self.heads), len(self.rows), self.count)
        self.keys = make_array("top.keys", shape, eligible.device, -1, torch.int32)
        self._weight = make_array("top.weight", shape, eligible.device, torch.nan)
        self._make_array = make_array
        self._norms: dict[str, Tensor] = {}
        self._gated: dict[str, Tensor] = {}
        self._making = Lock()

    def _record(self, tile: Tile, overlap: Overlap) -> None:
        if tile.k0 == tile.k1 or not self.count:
            return
        self._take_norms(tile.inputs)
        if tile.summary is not None and self.n_strongest:
            n = min(self.count, tile.k1 - tile.k0)
            keys = overlap.cut(tile.summary.places)[..., :n]
            none = keys < 0
            self._keep_keys(overlap, torch.where(none, keys, keys + tile.k0))
            weights = overlap.cut(tile.summary.strongest)[..., :n].masked_fill(none, torch.nan)
            self._keep_measures(tile, overlap, keys, weights)
            return
        weights = overlap.cut(tile.weights)  # (B, h, r, k)
        measure = self._ranked(tile, overlap, weights)
        has_peaks = (
            measure.data_ptr() == tile.masked.data_ptr() and measure.shape == tile.masked.shape
        )
        has_peaks = has_peaks and measure.device.type == "cpu"
        keys, values = strongest(measure, self.count, tile.peaks if has_peaks else None)
        none = values == -torch.inf
        self._keep_keys(overlap, (keys + tile.k0).masked_fill(none, -1))
        self._keep_measures(
            tile, overlap, keys, weights.gather(-1, keys).masked_fill_(none, torch.nan)
        )

    def _keep_measures(self, tile: Tile, overlap: Overlap, keys: Tensor, weights: Tensor) -> None:
        """Keep the weights of the strongest keys of rows, (B, h, r, n), which `keys` counts from the tile's first.

        Behind a gate, norms of values differ from row to row, and contributions are kept, too.
        """
        n = keys.shape[-1]
        self._weight[:, overlap.index, overlap.rows, :n] = weights
        if tile.inputs.gate is None:
            return
        for name in self._names:
            if name != "weight":
                norms = overlap.cut(tile.norms(name)).gather(-1, keys.clamp_min(0))
                self._gated_array(name)[:, overlap.index, overlap.rows, :n] = weights * norms

    def _gated_array(self, name: str) -> Tensor:
        with self._making:
            if name not in self._gated:
                shape = tuple(self._weight.shape)
                self._gated[name] = self._make_array(
                    f"top.{name}", shape, self._weight.device, torch.nan
                )
        return self._gated[name]

    def _keep_keys(self, overlap: Overlap, keys: Tensor) -> None:
        # Through a list of heads, torch writes only numbers of the same type.
        self.keys[:, overlap.index, overlap.rows, : keys.shape[-1]] = keys.to(self.keys.dtype)

    def _take_norms(self, inputs: AttentionInputs) -> None:
        for name in self._names if inputs.gate is None else ():
            if name != "weight" and name not in self._norms:
                self._norms[name] = inputs.norms(name)[:, as_slice(self.heads)]  # (B, heads, K)

    def take(self, keys: Tensor, weights: Tensor, inputs: AttentionInputs) -> None:
        """Keep the strongest keys of a layer and their weights, (B, H, Q, n); −1 and NaN where there are fewer."""
        self._take_norms(inputs)
        self.keys[:] = self.select(keys)[..., : self.count]
        self._weight[:] = self.select(weights)[..., : self.count]

    def _ranked(self, tile: Tile, overlap: Overlap, weights: Tensor) -> Tensor:
        """Return the ranking measure of keys, (B, h, r, k); −inf for excluded keys."""
        masked = overlap.cut(tile.masked)
        excluded = self.excluded[:, None, None, tile.k0 : tile.k1]
        on_cpu = masked.device.type == "cpu"  # elsewhere, asking takes longer than masking
        if self.by == "weight" and (self.ranks_all or (on_cpu and not excluded.any())):
            return masked
        buffer = tile.workspace.buffer("recorder", masked.shape, masked.device)
        if self.by == "weight":
            return buffer.copy_(masked).masked_fill_(excluded, -torch.inf)
        norms = tile.norms(self.by)  # (B, h, 1 or r, k)
        if norms.shape[2] == 1:
            norms = norms[:, overlap.heads]
        else:
            norms = overlap.cut(norms)
        return torch.mul(weights, norms, out=buffer).masked_fill_(
            (masked == -torch.inf) | excluded, -torch.inf
        )

    @property
    def measures(self) -> dict[str, Tensor]:
        """Weight and contributions of the strongest sources, (B, heads, rows, count); NaN where there are fewer."""
        keys = self.keys.clamp_min(0).long().flatten(2)
        measures = {}
        for name in self._names:
            if name in self._gated:
                measures[name] = self._gated[name]
            elif name in self._norms:
                measures[name] = self._weight * self._norms[name].gather(-1, keys).view_as(
                    self._weight
                )
            else:  # the weight itself, or of no tile that held a key: every weight is NaN then
                measures[name] = self._weight
        return measures

    def finish(self) -> None:
        for name, numbers in self.measures.items():
            if name != "weight" and name not in self._gated:
                self._make_array(f"top.{name}", tuple(numbers.shape), numbers.device, torch.nan)[
                    :
                ] = numbers
        self._norms = {}


def strongest(measure: Tensor, count: int, peaks: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return places and values of the `count` largest entries of the last dimension; among equals the first places win.

    So a result never depends on how a text was cut into tiles. The order of entries of −inf is left open: they stand
    for nothing. `measure` holds no NaN, `peaks` is the place of the largest entry, the first of equals, if known.
    """
    size = measure.shape[-1]
    # Side by side, as rows that are cut out of a tile need not be: maxima that were found are overwritten for a while.
    # (n, size)
    rows = measure.reshape(-1, size).contiguous()
    count = min(count, size)
    are_cut = size >= _FEW_CHUNKS * count * _CHUNK
    if rows.device.type == "cpu":
        are_cut = count <= RANKED_SINGLY and size >= _LONG
    if are_cut:
        places, values = _by_chunks(rows, count)
    else:
        places, values = _few_or_many(rows, count, None if peaks is None else peaks.reshape(-1))
    return places.reshape(*measure.shape[:-1], count), values.reshape(*measure.shape[:-1], count)


def _few_or_many(rows: Tensor, count: int, peaks: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the largest of rows (n, size) that are not worth cutting."""
    if rows.device.type != "cpu":
        return _on_device(rows, count)
    if count <= RANKED_SINGLY:
        return _by_argmax(rows, count, peaks)
    # One more, to see equals that were left outside.
    values, places = rows.topk(min(count + 1, rows.shape[1]), dim=-1)
    tied = ((values[:, 1:] == values[:, :-1]) & (values[:, 1:] > -torch.inf)).any(-1)
    places = places[:, :count]
    values = values[:, :count]
    if tied.any():
        places = places.clone()
        values = values.clone()
        places[tied], values[tied] = _by_argmax(rows[tied], count)
    return places, values


def _on_device(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Find them without waiting for the device, whose `max` gives the first of equals, and whose `sort` may."""
    if count > RANKED_SINGLY:
        values, places = rows.sort(dim=-1, descending=True, stable=True)
        return places[:, :count], values[:, :count]
    left = rows.clone()
    pairs = [rows.max(-1, keepdim=True)]
    while len(pairs) < count:
        pairs.append(left.scatter_(-1, pairs[-1].indices, -torch.inf).max(-1, keepdim=True))
    return torch.cat([pair.indices for pair in pairs], -1), torch.cat(
        [pair.values for pair in pairs], -1
    )


def _by_argmax(rows: Tensor, count: int, peaks: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Find them one after the other by NumPy's `argmax`, which gives the first of equals and is fastest for a few."""
    # A view or an error, never a copy: −inf written here must be seen in `cells`.
    flat = rows.view(-1).numpy()
    cells = flat.reshape(rows.shape)
    starts = np.arange(0, flat.size, rows.shape[1])
    places = np.empty((count, len(rows)), np.int64)
    values = np.empty((count, len(rows)), np.float32)
    for i, (at, value) in enumerate(zip(places, values, strict=True)):
        if i == 0 and peaks is not None:
            np.add(peaks.numpy(), starts, out=at)
        else:
            cells.argmax(-1, out=at)
            at += starts
        flat.take(at, out=value, mode="clip")  # `clip` writes to `out` at once
        flat[at] = -np.inf
    for at, value in zip(places[::-1], values[::-1], strict=True):
        # Put back; backwards, as −inf may have been taken from there, too.
        flat[at] = value
    places -= starts
    return torch.from_numpy(places.T.copy()), torch.from_numpy(values.T.copy())


def _by_chunks(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Search only the `count` chunks with the largest maxima, and the remainder: these contain the largest entries."""
    n, size = rows.shape
    chunked = size // _CHUNK * _CHUNK
    peaks = rows[:, :chunked].view(n, -1, _CHUNK).amax(-1)  # (n, size / chunk)
    # in the order of the row, for the sake of equals
    chunks = _few_or_many(peaks, count)[0].sort(-1).values
    lines = torch.arange(0, n * size, size, device=rows.device)[:, None]
    candidates = (
        rows.view(-1).unfold(0, _CHUNK, 1).index_select(0, (lines + chunks * _CHUNK).flatten())
    )
    repeated = chunks[:, 1:] == chunks[:, :-1]  # where fewer chunks than that hold anything
    if rows.device.type != "cpu" or repeated.any():
        candidates.view(n, count, _CHUNK)[:, 1:].masked_fill_(repeated[..., None], -torch.inf)
    # (n, count · chunk and the rest)
    candidates = torch.cat((candidates.view(n, -1), rows[:, chunked:]), -1)
    at, values = _few_or_many(candidates, count)
    inside = at < count * _CHUNK
    places = chunks.gather(-1, (at // _CHUNK).clamp_(max=count - 1)) * _CHUNK + at % _CHUNK
    return torch.where(inside, places, at + (chunked - count * _CHUNK)), values
