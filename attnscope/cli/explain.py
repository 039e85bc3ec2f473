"""The command `attnscope explain`: show the arithmetic of one token's attention."""

from attnscope.cli.parameters import Given

_WINDOW = 16  # number of keys of a long text that a screen shows

EXAMPLES = """
attnscope explain "The bank by the river" --query bank
attnscope explain "The bank by the river" --query bank --key river
attnscope explain "The bank by the river" --query 1 --layer 0 --head 2
attnscope explain "The bank by the river" --query bank --config causal --mask bidirectional
attnscope explain "The bank by the river" --query bank --json | jq .cells[0].parts
"""


def explain(given: Given) -> None:
    """Explain the attention of one token, step by step.

    Shows the model's own numbers: what enters the layer, the query and every key, the dot products and the dimensions
    that contribute most to the largest, scale, mask, softmax, and the weighted sum of the values. Every step is
    recomputed and compared with the model.
    """
    from attnscope.cli.deliver import check_output, deliver, is_table
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import read_texts, run_config

    check_output(given, "explain")
    window = given.top or (_WINDOW if is_table(given) else None)
    asked = run_config(read_texts(given), given, window=window, top=3)
    from attnscope.studies.explain.run import explain as walk

    with progress(quiet=given.quiet) as on_progress:
        explanation = walk(asked, on_progress)
    deliver(explanation, given)
