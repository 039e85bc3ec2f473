"""Keep what is shown of the matrices of one layer without softmax."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from attnscope.findings.heads import HeadRef, run_starts
from attnscope.findings.mixing import RankedHead, ReadKey
from attnscope.findings.tokens import Token
from attnscope.model.mixing import ChannelMean, HeadMixing, MixingInputs
from attnscope.model.recorders import strongest
from attnscope.request.run_config import RunConfig
from attnscope.run.text_plan import TextPlan

_RANKED_ROWS = 64  # rows of a text by which a head is chosen if no rows are shown
_LISTED = 10  # heads that a choice names
_VECTORS = ("row_sum", "size", "half_life", "write", "gate")
# of a report whose texts have one row each
_OF_A_ROW = ("direct", "products", "decay", "key_write")
_RANKED = ("keys", "mixing", "share", "value")


class LayerRecorder:
    """The matrices of some heads of one layer, in every text.

    Args:
        heads: The heads, or `mean`, the mean of all channels; None to choose the one that reads most from other tokens.
        check: Stops a run that takes too much memory.
        in_detail: Whether the only row of the only head is kept dimension by dimension.
    """

    def __init__(
        self,
        run: RunConfig,
        texts: Sequence[TextPlan],
        layer: int,
        heads: Sequence[int] | Literal["mean"] | None,
        check: Callable[[], None],
        *,
        scored: bool = False,
        in_detail: bool = False,
    ) -> None:
        self._run = run
        self._texts = texts
        self._layer = layer
        self._heads = heads
        self._check = check
        single = bool(run.stages) and all(len(text.queries) == 1 for text in texts)
        self.names = (
            *_VECTORS,
            *_RANKED,
            *(("matrix",) if run.stages else ()),
            *(_OF_A_ROW if single else ()),
        )
        if any(text.pool for text in texts):
            self.names += ("pooled",)
        self.units: list[HeadRef] = []
        self.kind = ""
        self.chosen: str | None = None
        # the arrays of every text by name, one for each unit
        self.kept: list[dict[str, list[Any]]] = []
        self.done = False
        self._scored = scored
        self._in_detail = in_detail
        self.read_keys: list[ReadKey] = []
        self.ranked: list[RankedHead] = []
        # of a scored layer, the largest share of |M| that its heads have on other tokens, or on named ones
        self.score = 0.0

    def record(self, inputs: MixingInputs) -> None:
        """Keep what is shown; called once, while the model runs."""
        self.kind = inputs.kind
        heads: Sequence[int | str]
        if self._heads == "mean":
            heads = ["mean"]
        else:
            heads = self._choose(inputs, self._heads)
        self.units = [HeadRef(self._layer, head) for head in heads]
        half_lives = inputs.half_lives()
        gates = inputs.gates()
        for index, text in enumerate(self._texts):
            arrays: dict[str, list[Any]] = {name: [] for name in self.names}
            for head in heads:
                n = len(text.tokens)
                # the mean of channels has their values as one vector, and the mean of their decays
                one: HeadMixing | ChannelMean
                if isinstance(head, str):
                    one = inputs.mean(index, n)
                    norms = inputs.value_norms[index, :, :n].norm(dim=0).cpu()
                    half_life = 1 / (1 / half_lives[index, :, :n]).mean(0)
                    gate = gates[index, :, :n].mean(0)
                else:
                    one = inputs.one_head(index, head, n)
                    norms = inputs.value_norms[index, head, :n].cpu()
                    half_life = half_lives[index, head, :n]
                    gate = gates[index, head, :n]
                vectors = {"half_life": half_life.cpu().numpy(), "gate": gate.cpu().numpy()}
                vectors["half_life"] = np.where(
                    np.isfinite(vectors["half_life"]), vectors["half_life"], np.nan
                )
                if one.write is None:
                    write = torch.full((n,), torch.nan)
                else:
                    write = one.write.cpu()
                vectors["write"] = write.numpy()
                for name, values in (
                    self._rows(text, one, norms) | self._vectors(text, vectors)
                ).items():
                    arrays[name].append(values)
                if "direct" in self.names:
                    for name, values in _one_row(one, text).items():
                        arrays[name].append(values)
                if self._in_detail and isinstance(one, HeadMixing):
                    self.read_keys = _read_keys(
                        one, text, arrays["matrix"][-1][0], named=self._run.key is not None
                    )
                if "pooled" in self.names:
                    arrays["pooled"].append(self._pooled(text, one))
            self.kept.append(arrays)
        self.done = True

    def _vectors(self, text: TextPlan, vectors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: values[text.queries].astype(np.float32) for name, values in vectors.items()}

    def _choose(self, inputs: MixingInputs, heads: Sequence[int] | None) -> Sequence[int]:
        """Return heads; by default that which reads most from other tokens, or from the named ones, over all rows."""
        if heads is not None and not self._scored:
            return heads
        candidates = range(inputs.n_heads) if heads is None else heads
        named = self._run.key is not None or self._run.auto_key is not None
        shares = np.zeros(len(candidates))
        for index, text in enumerate(self._texts):
            of_groups = [
                self._shares(mixing, text, named=named)
                for _, mixing in inputs.heads(index, candidates, len(text.tokens))
            ]
            shares += np.concatenate(of_groups) / len(self._texts)
        order = np.argsort(-shares, kind="stable")
        self.score = float(shares[order[0]])
        what = "layer " * (heads is not None)
        where = "these columns" if named else "other tokens"
        self.chosen = (
            f"{what}chosen automatically: largest share of |M| on {where} ({self.score:.2f})"
        )
        if heads is not None:
            return heads
        if len(candidates) == 1:
            self.chosen = None
            return candidates
        self.ranked = [
            RankedHead(self._layer, int(head), float(shares[head])) for head in order[:_LISTED]
        ]
        return [int(order[0])]

    def _shares(self, mixing: HeadMixing, text: TextPlan, *, named: bool) -> np.ndarray:
        """Return the mean share of |M| on other tokens, or on named ones, of some heads, (h,)."""
        rows = _ranked_rows(text)
        if named:
            if text.auto_keys is None:
                columns = text.keys
            else:
                columns = text.auto_keys
        else:
            columns = []
        total = np.zeros(len(mixing.k))
        for of_block, block in mixing.blocks(rows):
            self._check()
            size = block.abs()
            own = torch.arange(len(of_block)), torch.tensor(of_block)
            if named:
                part = size[..., columns].sum(-1)
            else:
                part = size.sum(-1) - size[:, *own]
            total += (part / size.sum(-1)).nan_to_num().sum(-1).cpu().double().numpy()
        return total / len(rows)

    def _rows(
        self, text: TextPlan, one: HeadMixing | ChannelMean, norms: Tensor
    ) -> dict[str, np.ndarray]:
        """Return the shown rows, their sums and their strongest sources."""
        eligible = _eligible(text.tokens, special=self._run.special)
        count = min(self._run.top, len(text.tokens))
        elsewhere = ("half_life", "write", "gate", "pooled", *_OF_A_ROW)
        blocks: dict[str, list[Tensor]] = {name: [] for name in self.names if name not in elsewhere}
        for rows, on_device in one.blocks(text.queries):
            self._check()
            block = on_device.cpu()
            size = block.abs()
            measure = size * norms if self._run.by == "value" else size
            later = torch.arange(len(text.tokens)) > torch.tensor(rows)[:, None]
            keys, values = strongest(measure.masked_fill(later | ~eligible, -torch.inf), count)
            none = values == -torch.inf
            total = size.sum(-1, keepdim=True)
            ranked = size.gather(1, keys)
            of_block = {
                "row_sum": block.sum(-1),
                "size": total[:, 0],
                "keys": keys.masked_fill(none, -1).int(),
                "mixing": block.gather(1, keys).masked_fill(none, torch.nan),
                "share": (ranked / total).masked_fill(none, torch.nan),
                "value": (ranked * norms[keys]).masked_fill(none, torch.nan),
                "matrix": block[:, text.keys],
            }
            for name, parts in blocks.items():
                parts.append(of_block[name])
        if not text.queries:
            return _no_rows(blocks, count, len(text.keys))
        return {name: torch.cat(parts).numpy() for name, parts in blocks.items()}

    def _pooled(self, text: TextPlan, one: HeadMixing | ChannelMean) -> np.ndarray:
        """Return the map of the whole text: shares of |M|, averaged over runs of queries."""
        assert text.pool is not None
        n = len(text.tokens)
        starts = np.array(run_starts(n, text.pool))
        run_of = np.searchsorted(starts, np.arange(n), side="right") - 1
        sums = np.zeros((len(starts) - 1, len(starts) - 1))
        counts = np.zeros(len(starts) - 1)
        for rows, block in one.blocks(range(n)):
            self._check()
            size = block.abs()
            shares = (size / size.sum(-1, keepdim=True)).cpu().numpy()
            finite = np.isfinite(shares[:, 0])
            runs = run_of[np.array(rows)[finite]]
            np.add.at(sums, runs, np.add.reduceat(shares[finite], starts[:-1], axis=1))
            np.add.at(counts, runs, 1)
        with np.errstate(invalid="ignore"):
            return (sums / counts[:, None]).astype(np.float32)


def _one_row(one: HeadMixing | ChannelMean, text: TextPlan) -> dict[str, np.ndarray]:
    """Return what the only row of a text is made of: factors that do not exist are NaN, as are those of a mean."""
    (row,) = text.queries
    missing = torch.full((len(text.tokens),), torch.nan)
    factors = one.factors(row) if isinstance(one, HeadMixing) else None
    write = missing if one.write is None else one.write
    parts = {
        "direct": one.direct().rows([row])[0],
        "products": missing if factors is None else factors[0],
        "decay": missing if factors is None else factors[1],
        "key_write": write,
    }
    return {name: values[text.keys].float().cpu().numpy()[None] for name, values in parts.items()}


def _read_keys(one: HeadMixing, text: TextPlan, row: np.ndarray, *, named: bool) -> list[ReadKey]:
    """Return the named keys in detail, as far as they are read; of all keys, that with the largest |M|."""
    (query,) = text.queries
    keys = text.keys if named else [text.keys[int(np.abs(row).argmax())]]
    read = []
    for key in keys:
        parts = one.dimensions(query, key) if key <= query else None
        if parts is not None:
            read.append(ReadKey(key, *parts.tolist()))
    return read


def _no_rows(names: Sequence[str] | dict[str, Any], count: int, keys: int) -> dict[str, np.ndarray]:
    """Return the arrays of a text of which no row is shown."""
    shapes = {
        "keys": (0, count),
        "mixing": (0, count),
        "share": (0, count),
        "value": (0, count),
        "matrix": (0, keys),
    }
    dtypes = {"keys": np.int32}
    return {name: np.zeros(shapes.get(name, (0,)), dtypes.get(name, np.float32)) for name in names}


def _ranked_rows(text: TextPlan) -> list[int]:
    """Return the rows by which a head is chosen: the named or shown ones, words among them, or some of a long text."""
    rows = text.queries if text.auto_queries is None else text.auto_queries
    rows = [row for row in rows if row < len(text.tokens)]
    if not rows:
        rows = (
            np.linspace(0, len(text.tokens) - 1, min(_RANKED_ROWS, len(text.tokens)))
            .round()
            .astype(int)
            .tolist()
        )
    words = [row for row in rows if not text.tokens[row].special]
    return sorted(set(words or rows))


def _eligible(tokens: Sequence[Token], *, special: bool) -> Tensor:
    """Return which sources take part in rankings, (T,), bool."""
    eligible = torch.tensor([special or not token.special for token in tokens])
    eligible[0] &= special
    return eligible
