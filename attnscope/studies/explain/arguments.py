"""Arguments of `attnscope.explain`."""

from typing import TYPE_CHECKING, Literal

from attnscope.request.run_config import NamedModel, OpenArguments, PairArguments, Tokens

if TYPE_CHECKING:
    from attnscope.request.run_config import Mask


class ModelExplainArguments(PairArguments, total=False):
    """Arguments of `explain`; see ModelInspectArguments for the rest.

    Attributes:
        query: The token: its position, or a word.
        key: The key whose dot product to break down; None for the largest dot product.
        layer: A layer, or `auto`.
        head: A head, or `auto`.
        top: Number of keys to keep, by weight; None for all.
        measure: `mixing` for the matrix of a layer without softmax, also where a layer has attention beside it.
    """

    mask: "Mask"
    hide: Tokens | None
    query: int | str
    key: Tokens | None
    layer: int | Literal["auto"]
    head: int | Literal["auto"]
    top: int | None
    measure: Literal["weights", "mixing"]


class ExplainArguments(OpenArguments, ModelExplainArguments, NamedModel, total=False):
    """All that `attnscope.explain` takes in addition to the text."""
