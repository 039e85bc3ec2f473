"""`attnscope explain`: the arithmetic of one token's attention."""

from typing import Any

from attnscope.studies.study import FindingsKind, Request, Study, StudyCommand

_WINDOW = 16  # number of keys of a long text that a screen shows


def _answer(request: Request) -> Any:
    from msgspec.structs import replace

    from attnscope.studies.explain.run import explain, explain_mixing

    top = request.values.get("top")
    is_drawn = request.form is not None and request.form.window is not None
    window = top or (_WINDOW if is_drawn else None)
    run = replace(request.run, window=window)
    row = explain_mixing(run, top, request.session)
    if row is None:
        return explain(run, request.session)
    return row


STUDY = Study(
    (
        FindingsKind(
            "explain",
            "explain:Explanation",
            "explain.screen:present_explanation",
            page="explain.page:present_page",
        ),
    ),
    StudyCommand(
        """Explain the attention of one token, step by step.

        Shows the model's own numbers: what enters the layer, the query and every key, the dot products and the
        dimensions that contribute most to the largest, scale, mask, softmax, the weighted sum of the values, and the
        rest of the layer. Every step is recomputed and compared with the model. In a layer without softmax, shows
        what the row of its matrix is made of: q·k, decay and write strength of every key, and what the delta rule takes
        away.
        """,
        """
        attnscope explain "The bank by the river" --query bank
        attnscope explain "The bank by the river" --query bank --key river
        attnscope explain "The bank by the river" --query 1 --layer 0 --head 2
        attnscope explain "The bank by the river" --query bank --mask causal
        attnscope explain "The bank by the river" --query bank --json | jq .cells[0].parts
        """,
        _answer,
    ),
)
