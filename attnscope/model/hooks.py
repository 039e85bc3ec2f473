"""Call `attend` for every layer with the recorders of that layer."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from attnscope.masks.terms import Mask
from attnscope.model.attention import attend
from attnscope.model.cuts import Variant, cuts_of_layer
from attnscope.model.inputs import AttentionInputs
from attnscope.model.tile import Recorder
from attnscope.model.workspace import Workspace


class AttentionHooks:
    """Recorders of every layer; any source of queries, keys and values passes its attention to `attend`.

    Attributes:
        recorders: Layer to its recorders.
        observed: Layer to a mask that recorders see instead of the layer's own (`same-scores`); empty otherwise.
        tile_elements: See `attend`.
        all_outputs: Every layer's output is computed, also if it is not used.
        variants: Cuts of each text of the batch; empty without cuts.
    """

    def __init__(
        self,
        recorders: Mapping[int, Sequence[Recorder]],
        observed: Mapping[int, Mask] | None = None,
        tile_elements: int | None = None,
        all_outputs: bool = False,
        variants: Sequence[Variant] = (),
    ) -> None:
        self.recorders, self.observed, self.tile_elements = recorders, observed or {}, tile_elements
        self.all_outputs, self.variants = all_outputs, variants
        self._workspace = Workspace()

    @property
    def last(self) -> int:
        """The last layer with a recorder; later layers need not run."""
        return max(self.recorders, default=-1)

    def attend(self, inputs: AttentionInputs) -> Tensor | None:
        """Compute the attention of one layer for its recorders; None if no later layer is recorded."""
        return attend(
            inputs,
            self.recorders.get(inputs.layer, ()),
            observed=self.observed.get(inputs.layer),
            need_output=self.all_outputs or inputs.layer < self.last,
            tile_elements=self.tile_elements,
            workspace=self._workspace,
            cuts=cuts_of_layer(self.variants, inputs.layer),
        )
