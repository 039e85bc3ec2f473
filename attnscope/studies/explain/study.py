"""`attnscope explain`: the arithmetic of one token's attention."""

from typing import TYPE_CHECKING, Any, Literal

from attnscope.request.run_config import NamedModel, OpenArguments, PairArguments, Tokens
from attnscope.studies.study import FindingsKind, Request, Study, StudyCommand

if TYPE_CHECKING:
    from attnscope.request.run_config import Mask

_WINDOW = 16  # number of keys of a long text that a screen shows


def _answer(request: Request) -> Any:
    from msgspec.structs import replace

    from attnscope.studies.explain.run import explain

    window = request.values.get("top") or (_WINDOW if request.brief else None)
    run = replace(request.run, window=window, top=3)
    return explain(run, request.progress, request.session)


STUDY = Study(
    (
        FindingsKind(
            "explain", "attnscope.findings.explain:Explanation", "attnscope.studies.explain.screen:present_explanation"
        ),
    ),
    StudyCommand(
        """Explain the attention of one token, step by step.

        Shows the model's own numbers: what enters the layer, the query and every key, the dot products and the
        dimensions that contribute most to the largest, scale, mask, softmax, and the weighted sum of the values. Every
        step is recomputed and compared with the model.
        """,
        """
        attnscope explain "The bank by the river" --query bank
        attnscope explain "The bank by the river" --query bank --key river
        attnscope explain "The bank by the river" --query 1 --layer 0 --head 2
        attnscope explain "The bank by the river" --query bank --config causal --mask bidirectional
        attnscope explain "The bank by the river" --query bank --json | jq .cells[0].parts
        """,
        _answer,
    ),
)


class ModelExplainArguments(PairArguments, total=False):
    """Arguments of `explain`; see ModelInspectArguments for the rest.

    Attributes:
        query: The token: its position, or a word.
        key: The key whose dot product to break down; None for the largest dot product.
        layer: A layer, or `auto`.
        head: A head, or `auto`.
        top: Number of keys to keep, by weight; None for all.
    """

    mask: "Mask"
    hide: Tokens | None
    query: int | str
    key: Tokens | None
    layer: int | Literal["auto"]
    head: int | Literal["auto"]
    top: int | None


class ExplainArguments(OpenArguments, ModelExplainArguments, NamedModel, total=False):
    """All that `attnscope.explain` takes in addition to the text."""
