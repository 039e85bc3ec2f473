"""Call `attend` for every layer with the recorders of that layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.model.attention import attend
from attnscope.model.cuts import Variant, cuts_of_layer
from attnscope.model.inputs import AttentionInputs
from attnscope.model.row_summary import find_summarizer
from attnscope.model.tile import Recorders, Workspace
from attnscope.request.masks.terms import Mask


@dataclass
class AttentionHooks:
    """Recorders of every layer; any source of queries, keys and values passes its attention to `attend`."""

    recorders: Recorders
    # layer to a mask that recorders see instead of the layer's own (`same-scores`)
    observed: Mapping[int, Mask] = field(default_factory=dict)
    tile_elements: int | None = None
    all_outputs: bool = False  # every layer's output is computed, also if it is not used
    variants: Sequence[Variant] = ()  # cuts of each text of the batch
    _workspace: Workspace = field(default_factory=Workspace)

    @property
    def last(self) -> int:
        """The last layer with a recorder; later layers need not run."""
        return max(self.recorders, default=-1)

    def prepare(
        self, masks: Sequence[Mask], size: tuple[int, int, int], device: torch.device
    ) -> None:
        """Compile code for the attention of recorded layers ahead of its first use."""
        texts, n_queries, n_keys = size
        for layer, recorders in self.recorders.items():
            heads = {head for recorder in recorders for head in recorder.heads}
            every_row = self._needs_output(layer) and layer not in self.observed
            if every_row:
                n_rows = n_queries
            else:
                n_rows = len({row for recorder in recorders for row in recorder.rows})
            mask = self.observed.get(layer, masks[layer])
            cells = texts * len(heads) * n_rows * n_keys
            strongest = [recorder.n_strongest for recorder in recorders]
            if find_summarizer(strongest, mask, cells, n_queries, n_keys, device) is not None:
                break

    def _needs_output(self, layer: int) -> bool:
        return self.all_outputs or layer < self.last

    def attend(self, inputs: AttentionInputs) -> Tensor | None:
        """Compute the attention of one layer for its recorders; None if no later layer is recorded."""
        cuts = None
        if self.variants:
            cuts = cuts_of_layer(self.variants, inputs.layer)
        return attend(
            inputs,
            self.recorders.get(inputs.layer, ()),
            observed=self.observed.get(inputs.layer),
            need_output=self._needs_output(inputs.layer),
            tile_elements=self.tile_elements,
            workspace=self._workspace,
            cuts=cuts,
        )
