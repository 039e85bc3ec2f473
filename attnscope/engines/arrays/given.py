"""Arrays that another program computed, with their settings, as plain data. Never imports torch."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from attnscope.base.errors import UsageError
from attnscope.base.model_config import ModelConfig, within_window
from attnscope.engines.arrays.settings import LayerSettings
from attnscope.findings.tokens import Token
from attnscope.request.masks.terms import ScoreFunction
from attnscope.request.run_config import TextInput


@dataclass(frozen=True)
class GivenSizes:
    """Sizes of every layer."""

    heads: int
    kv_heads: int  # key/value heads; each serves heads / kv_heads query heads
    width: int  # width of a query and a key; 0 if weights are given
    value_width: int  # width of a value; 0 if there are no values


class GivenConfig(ModelConfig, frozen=True):
    """The sizes of given arrays, whose layers may have masks that differ by more than a window."""

    # expression by layer; empty if all have the same
    masks: dict[int, str] = msgspec.field(default_factory=dict)
    # the function that changes scores, as a report names it; None for none
    score_mod: str | None = None

    def mask_of(self, layer: int) -> str:
        """Return the mask expression of one layer."""
        window = self.windows[layer] if self.windows else None
        return within_window(self.masks.get(layer, self.mask), window)

    def masks_of(self, n_layers: int) -> frozenset[str]:
        """List the different mask expressions of the first `n_layers` layers."""
        return frozenset(map(self.mask_of, range(n_layers)))

    def describe_mask(self) -> str:
        """Return the mask of all layers, or how many layers have each, and the function that changes scores."""
        counts = Counter(map(self.mask_of, self.masks))
        counted = f"{', '.join(f'{mask} in {count}' for mask, count in counts.items())} of {len(self.masks)} layers"
        described = counted if self.masks else super().describe_mask()
        if self.score_mod is None:
            return described
        return f"{described}, with {self.score_mod}"


@dataclass(frozen=True)
class GivenArrays:
    """Queries, keys and values of some layers, or their weights."""

    name: str
    sizes: GivenSizes
    settings: Mapping[int, LayerSettings]
    axes: tuple[str, ...]  # order of the axes of the arrays that `read` returns
    # first row of every text in packed keys and values, and the row after its last
    ranges: list[tuple[int, int]]
    # the same for queries, which may cover only a text's last tokens
    query_ranges: list[tuple[int, int]]
    texts: list[tuple[str, list[Token]]]  # every text with its tokens
    # arrays of a layer by name: `q`, `k`, perhaps `v`, or `weights`
    read: Callable[[int], Mapping[str, Any]]
    layer_bytes: int
    # what mask expressions name: boolean matrices, (queries, keys) or (heads, queries, keys), or a `mask_mod` of
    # FlexAttention
    matrices: Mapping[str, Any] = field(default_factory=dict)
    # name of a matrix to the addition where it allows
    biases: Mapping[str, Any] = field(default_factory=dict)
    # what a Python function makes of scaled scores; None for none
    score_mod: ScoreFunction | None = None
    dtype: str = "float32"  # type in which they are computed: `float32`, `bfloat16` or `float16`
    fingerprint: str = ""
    weights: bool = False
    outputs: bool = False  # the output of attention is given, too, as `output`
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[int, ...]:
        """Numbers of the layers that are there."""
        return tuple(self.settings)

    @property
    def first_queries(self) -> list[int]:
        """Position of the first query in every text; 0 if all tokens have queries."""
        pairs = zip(self.ranges, self.query_ranges, strict=True)
        return [(end - start) - (q_end - q_start) for (start, end), (q_start, q_end) in pairs]

    @property
    def inputs(self) -> tuple[TextInput, ...]:
        """The texts, each with its origin, by which its rows are found again."""
        return tuple(
            TextInput(text, where=self.origin(index)) for index, (text, _) in enumerate(self.texts)
        )

    def origin(self, index: int) -> str:
        """Return the origin of a text."""
        if len(self.texts) == 1:
            return self.name
        return f"{self.name}: text {index}"

    def config(self) -> ModelConfig:
        """Return the sizes that the program needs of a model; there are no weights."""
        windows = {layer: settings.window for layer, settings in self.settings.items()}
        masks = [settings.mask for settings in self.settings.values()]
        n_layers = 1 + max(self.layers)
        width = max(1, self.sizes.width)
        differ = len(set(masks)) > 1
        scales, caps = (
            {getattr(layer_settings, name) for layer_settings in self.settings.values()}
            for name in ("scale", "softcap")
        )
        layer_masks = {}
        if differ:
            layer_masks = {layer: settings.mask for layer, settings in self.settings.items()}
        layer_windows: tuple[int | None, ...] = ()
        if any(windows.values()):
            layer_windows = tuple(windows.get(layer) for layer in range(n_layers))
        score_mod = None
        if self.score_mod is not None:
            score_mod = str(self.score_mod)
        scale = None
        if len(scales) == 1:
            scale = next(iter(scales))
        softcap = None
        if len(caps) == 1:
            softcap = next(iter(caps))
        return GivenConfig(
            vocab_size=1 + max(token.id for _, tokens in self.texts for token in tokens),
            d_model=self.sizes.heads * width,
            n_layers=n_layers,
            n_heads=self.sizes.heads,
            n_kv_heads=self.sizes.kv_heads,
            d_head=width,
            d_value=self.sizes.value_width,
            mask=masks[0],
            masks=layer_masks,
            windows=layer_windows,
            score_mod=score_mod,
            scale=scale,
            softcap=softcap,
            sinks=any(
                layer_settings.sinks is not None for layer_settings in self.settings.values()
            ),
        )

    def only(self, index: int) -> "GivenArrays":
        """Return one of the texts."""
        if not 0 <= index < len(self.texts):
            raise UsageError(
                f"there is no text {index}", where="text", hint=f"use 0 to {len(self.texts) - 1}"
            )
        name = self.name if len(self.texts) == 1 else self.origin(index)
        return replace(
            self,
            name=name,
            ranges=[self.ranges[index]],
            query_ranges=[self.query_ranges[index]],
            texts=[self.texts[index]],
        )
