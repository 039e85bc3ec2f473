"""An engine and token ids in; every stage of every layer and head, whole, out: what laws are held against."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Protocol

import torch
from torch import Tensor

from attnscope.model.call import Call
from attnscope.model.native import Batch, make_batch
from attnscope.model.tile import Recorder, Tile
from attnscope.report import STAGES, Token


class Engine(Protocol):
    """What shows a model's attention to recorders."""

    def forward(self, batch: Batch, recorders: Mapping[int, Sequence[Recorder]]) -> None:
        """Show every watched layer's attention over a batch to its recorders."""


@dataclass
class Seen:
    """One layer's attention over a batch.

    Attributes:
        call: Its queries, keys, values and rule.
        stages: Stage to (B, H, Q, K), or (B, H, Q, Ev).
        dead: Rows that may see nothing, (B, H, Q).
        sink: What each row gives to the sink, (B, H, Q); 0 where there is none.
        projection: The output projection, (D, H·Ev), in float64; None where the layer has none, or nobody asked for it.
    """

    call: Call
    stages: dict[str, Tensor]
    dead: Tensor
    sink: Tensor
    projection: Tensor | None = None


class Whole:
    """A recorder that keeps everything, and that knows nothing of how others keep it.

    Args:
        n_heads: Query heads.
        n_queries: Rows.
        n_keys: Columns.
        barred: Scores of keys that are not allowed are wanted, too; without, a tile is as narrow as its mask lets it.
        projects: The output projection is kept, too.
    """

    def __init__(
        self, n_heads: int, n_queries: int, n_keys: int, *, barred: bool = True, projects: bool = False
    ) -> None:
        self.heads: Sequence[int] = list(range(n_heads))
        self.rows: Sequence[int] = list(range(n_queries))
        self._keys, self._barred, self._projects = n_keys, barred, projects
        self.seen: Seen | None = None
        self._making = Lock()

    raw = True  # every stage is kept

    def reach(self) -> tuple[int, int] | None:
        """Scores of every key, where those that are not allowed are wanted."""
        return (0, self._keys) if self._barred else None

    def see(self, tile: Tile) -> None:
        """Put a tile in its place."""
        with self._making:
            if self.seen is None:
                self.seen = self._empty(tile)
        rows, keys = slice(tile.q0, tile.q1), slice(tile.k0, tile.k1)
        for stage in STAGES:
            where = slice(None) if stage == "output" else keys
            self.seen.stages[stage][:, tile.heads, rows, where] = tile.stage(stage)
        if tile.dead is not None:
            self.seen.dead[:, tile.heads, rows] = tile.dead
        if tile.sink is not None:
            self.seen.sink[:, tile.heads, rows] = tile.sink

    def _empty(self, tile: Tile) -> Seen:
        shape = (len(tile.masked), len(self.heads), len(self.rows))
        like = tile.masked
        beyond = {"masked": -torch.inf, "weights": 0.0} if not self._barred else {}
        stages = {stage: like.new_full((*shape, self._keys), beyond.get(stage, torch.nan)) for stage in STAGES[:4]}
        stages["output"] = like.new_full((*shape, tile.output.shape[-1]), torch.nan)
        call = replace(tile.call, out_weight=None)  # the model's, which need not stay
        out = tile.call.out_weight if self._projects else None
        kept = None if out is None else out.double().clone()
        return Seen(call, stages, like.new_zeros(shape, dtype=torch.bool), like.new_zeros(shape), kept)


@dataclass(frozen=True)
class Look:
    """What to look at.

    Attributes:
        n_layers: Layers.
        n_heads: Query heads in a layer.
        device: Where the model is.
        context: Tokens that keys and values come from under cross-attention.
    """

    n_layers: int
    n_heads: int
    device: torch.device
    context: list[Token] | None


Beside = Callable[[Batch], Mapping[int, Sequence[Recorder]]]


def observe(
    engine: Engine, texts: Sequence[list[Token]], look: Look, *, barred: bool = True, beside: Beside | None = None
) -> list[Seen]:
    """Every layer's attention over these texts, padded on the right to one length.

    Args:
        engine: The model.
        texts: The tokens of each.
        look: What to look at.
        barred: See Whole.
        beside: Gives other recorders of the same pass, for a batch; None for none.

    Raises:
        AttnscopeError: A score is not finite.
    """
    contexts = None if look.context is None else [look.context] * len(texts)
    batch = make_batch(texts, contexts, look.device)
    sizes = look.n_heads, batch.tokens.ids[0].shape[1], batch.sources.real.shape[1]
    recorders = [Whole(*sizes, barred=barred, projects=beside is not None) for _ in range(look.n_layers)]
    others = {} if beside is None else beside(batch)
    engine.forward(batch, {layer: [one, *others.get(layer, ())] for layer, one in enumerate(recorders)})
    return [one.seen for one in recorders if one.seen is not None]
