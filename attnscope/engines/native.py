"""The native engine: attnscope's own stack under a mask."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from attnscope.config import MaskTerm, parse_mask
from attnscope.model.batch import Batch
from attnscope.model.hooks import AttentionHooks
from attnscope.model.masks import Mask, build_mask, intersect, padding_mask
from attnscope.model.stack import Stack
from attnscope.model.tile import Recorder


@dataclass(frozen=True)
class NativeEngine:
    """A stack that runs under a mask.

    Attributes:
        stack: The model.
        terms: The mask that the user asked for; `own` is the model's.
        same_scores: Recorders see the asked-for mask on the scores that the model computed under its own; otherwise the
            whole model runs under the asked-for one.
        files: The masks that the expression's files hold.
        tile_elements: See `attend`.
        all_outputs: Every layer's output is computed, also where nobody goes on with it.
    """

    stack: Stack
    terms: tuple[MaskTerm, ...]
    same_scores: bool
    files: Mapping[str, Mask]
    tile_elements: int | None = None
    all_outputs: bool = False

    def forward(
        self,
        batch: Batch,
        recorders: Mapping[int, Sequence[Recorder]],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Show every watched layer's attention over a batch to its recorders."""
        config, keys = self.stack.config, batch.context or batch.tokens
        own = [build_mask(parse_mask(config.mask_of(layer))) for layer in range(len(self.stack.blocks))]
        used = [build_mask(self.terms, mask, self.files) for mask in own]
        pad = padding_mask(keys.lengths, max(keys.lengths), keys.real.device)
        observed: dict[int, Mask] = {}
        if self.same_scores:
            observed = {layer: intersect((mask, pad)) for layer, mask in enumerate(used)}
        self.stack.run(
            batch.tokens.ids,
            own if self.same_scores else used,
            pad,
            AttentionHooks(recorders, observed, self.tile_elements, self.all_outputs),
            context=None if batch.context is None else batch.context.ids,
            progress=progress,
        )

    @property
    def sizes(self) -> tuple[int, int]:
        """Layers, and query heads in each."""
        return self.stack.config.n_layers, self.stack.config.n_heads

    def describe_mask(self) -> str:
        """The model's own mask."""
        return self.stack.config.describe_mask()
