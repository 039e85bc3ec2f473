"""Arguments of `attnscope.compare`."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnscope.request.arguments import By, Dtype, EngineWord
from attnscope.request.run_config import (
    Indices,
    MachineArguments,
    Model,
    PairArguments,
    Stage,
    Tokens,
    TorchDtype,
)

if TYPE_CHECKING:
    from attnscope.request.run_config import Mask


class ModelCompareArguments(PairArguments, total=False):
    """Arguments of `compare`; see ModelInspectArguments.

    One of the arguments is a list with an entry for each side; several layers or texts of one side are a tuple.

    Attributes:
        layer: Layers. Without them or `head`, models, configs, adapters, dtypes and engines, and all that a tolerance
            judges, are compared in all layers and heads; masks and texts in one head, chosen as by `inspect`.
        head: Heads, in the same form.
        tolerance: Largest allowed difference of a weight; of a cell of another stage, as a share of the largest value
            that the stage has in this layer of the first side. With it, or with `relative`, the result has a verdict.
        relative: Allowed on top, as a share of the first side's value.
    """

    mask: "Mask | list[Mask]"
    hide: Tokens | list[Tokens | None] | None
    layer: Indices | list[Indices]
    head: Indices | list[Indices]
    query: Tokens | None
    key: Tokens | None
    stages: Stage | Sequence[Stage]
    top: int
    by: By
    special: bool
    pool: int | None
    tolerance: float | None
    relative: float | None


class CompareArguments(ModelCompareArguments, MachineArguments, total=False):
    """All that `attnscope.compare` takes in addition to texts or reports.

    Attributes:
        qkv: Queries and keys that are compared with a model: a file, or what `from_qkv` returned; or a list of them,
            which are compared with each other.
    """

    qkv: object
    model: Model | list[Model] | None
    config: str | os.PathLike[str] | list[str | os.PathLike[str]] | None
    adapter: str | os.PathLike[str] | list[str | os.PathLike[str] | None] | None
    dtype: Dtype | TorchDtype | list[Dtype | TorchDtype]
    engine: EngineWord | list[EngineWord]
