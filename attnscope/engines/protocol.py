"""The interface of engines.

An engine module opens a `ModelSource`, whose `load` returns a `LoadedModel`, which becomes an `Engine` under a given
mask. No code outside `engines/` asks which engine it has.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from attnscope.model.batch import Batch, TokenTensors
from attnscope.model.cuts import Variant
from attnscope.model.head_capture import LayerModules
from attnscope.model.logit_parts import ResidualCapture
from attnscope.model.stack import BlockObserver, Progress
from attnscope.model.tile import Recorders
from attnscope.request.masks.terms import Mask, MaskTerm


@dataclass(frozen=True)
class EngineSettings:
    """How a model runs."""

    terms: tuple[MaskTerm, ...]  # the requested mask; `own` is the model's
    # masks of terms for files or hidden tokens
    resolved: Mapping[MaskTerm, Mask] = field(default_factory=dict)
    # recorders see that mask applied to the scores that the model computed under its own; without, the whole model runs
    # under it
    same_scores: bool = False
    # the encoder's if the decoder's self-attention is recorded; else None
    encoder_texts: TokenTensors | None = None
    tile_elements: int | None = None
    all_outputs: bool = False  # compute the output of every layer, also of the last one that runs
    padded_rows: bool = False
    variants: Sequence[Variant] = ()  # cuts of each text of a batch; empty for none
    scale: float | None = None  # factor of scores in every layer in place of the model's own


@dataclass(frozen=True)
class UncutRun:
    """One text that has run without cuts, and can run again under any."""

    hidden: Tensor  # its final hidden states, (1, T, D)
    # called with variants, sorted by the first layer in which they have a cut, perhaps with a progress function (done,
    # total) and with positions, ascending; gives the final hidden states of the text under each variant, (V, rows, D),
    # at these positions or at all
    run: Callable[..., Tensor]


class Engine(Protocol):
    """A model under a mask, ready to run."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of layers, and of query heads in each."""

    @property
    def layers(self) -> Sequence[int]:
        """Layers whose attention it shows, ascending: those that may have recorders."""

    def forward(
        self,
        batch: Batch,
        recorders: Recorders,
        progress: Progress | None = None,
        *,
        final: bool = False,
        **share_recorders: Recorders,
    ) -> Tensor | None:
        """Show the attention of every recorded layer over a batch to its recorders; layers above the last do not run.

        With `final`, they do, and the final hidden states of every token, (B, T, D), are returned. If the model's
        source has layers without softmax (`mixing`), `share_recorders` see the shares of |M| of these as weights.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits over the vocabulary, (N, V), float32, of chosen final hidden states, (N, D).

        Only available if the model's source has `predicts`.
        """

    def final_states(self, hidden: Tensor) -> Tensor:
        """Return hidden states, (…, D), of the end of `forward`, after the model's final norm, if it has one.

        With every engine they equal transformers' `last_hidden_state`.
        """

    def residual_stream(self, batch: Batch, positions: Sequence[int]) -> ResidualCapture:
        """Return what captures the residual stream of a batch at one position of every text; see model.logit_parts.

        Only available if the model's source has `predicts`; may run the batch.
        """

    def continuation(self, media: Mapping[str, Tensor] | None = None) -> "Continuation":
        """Start a text that grows; only for a model that predicts the next token.

        Args:
            media: The inputs of the text that are no token ids; see Batch.media.
        """

    def run_uncut(
        self, batch: Batch, recorders: Recorders, progress: Progress | None = None
    ) -> UncutRun:
        """Run all layers over a batch of one text without cuts; see `forward`."""

    def run_blocks(self, batch: Batch, last: int, observe: BlockObserver) -> None:
        """Hand each layer up to the last to a function that may run it again on other inputs."""

    def describe_mask(self) -> str:
        """Return the model's own mask as an expression or in words; some engines know it only after a forward pass."""

    def describe_layer_mask(self, layer: int) -> str:
        """Return the model's own mask of one layer; some engines know it only after a forward pass of the layer."""

    def output_projections(self, batch: Batch) -> list[nn.Module | None]:
        """Return the output projection of every layer, None if it is not found.

        Runs the batch if the projections are only visible during a run.
        """

    def value_and_output(self, layer: int) -> tuple[Tensor, Tensor] | str:
        """Return weights of a layer's value projection, (G·Ev, D), and of its output projection, (D, H·Ev).

        Only while the layer is held (see `holding`). The reason, in words, if either is unknown or missing.
        """

    def modules_of(self, layer: int) -> LayerModules | None:
        """Return the modules that make the queries and keys of a layer, for a HeadCapture; None if they are unknown."""

    def holding(self, layer: int) -> AbstractContextManager[None]:
        """Keep the weights of a layer in memory."""


class Continuation(Protocol):
    """A text that grows token by token, with a cache of computed keys and values."""

    def logits(self, tokens: TokenTensors) -> Tensor:
        """Return the logits of the next token, (V,), float32; the text must extend the previous one."""


class LoadedModel(Protocol):
    """A model whose weights can be run."""

    stream: bool  # weights are read again in every pass, layer by layer, instead of kept

    @property
    def module(self) -> nn.Module:
        """All of its modules."""

    @property
    def n_layers(self) -> int:
        """Number of layers that are loaded, counted from the first."""

    def under(self, settings: EngineSettings) -> Engine:
        """Put the model under a mask."""
