"""The command `attnscope run`: show the matrices and top contributors of a text."""

from attnscope.base.errors import UsageError, arg
from attnscope.cli.parameters import Given
from attnscope.request.selection import PAGE, PRINTED, WALKED

EXAMPLES = """
attnscope run "The bank by the river"
attnscope run "The bank by the river" --layer 0 --head all --format heat
attnscope run "The bank by the river" --query bank --stage weights --by value
attnscope run "The bank by the river" --mask causal --what-if same-scores
attnscope run "She sat by the [MASK] of the river"
attnscope run "She sat by the bank of the" --mask causal --generate 5
attnscope run "abc" --by logit --target a --target b --model ./my-llama.gguf
attnscope run "The unbelievable bank" --words --ids
attnscope run "Is it open?" --pair "It opens at nine." --model ./my-bert
attnscope run "The bank by the river" --config causal --output causal.json
attnscope run "The bank by the river" --measure rollout --layer 0-2
echo "The bank by the river" | attnscope run --json | jq .texts[0].tokens
"""


def run(given: Given) -> None:
    """Show what attention does with a text.

    Prints, for each selected layer and head, the scores (q·k), the masked scores, the weights (their softmax), and the
    tokens that contribute most to each token. Ends with what the model predicts. With --measure, prints how much
    each token contributes to every token over several layers.
    """
    from attnscope.cli.deliver import check_output, deliver, is_page, is_picture, is_table
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import read_texts, run_config

    check_output(given, "run")
    _check_printed(given)
    if given.target and given.by != "logit":
        raise UsageError(f"applies only to {arg('by', 'logit')}", where=arg("target"), hint=f"add {arg('by', 'logit')}")
    if len(given.target) > 2:
        found = f"given {len(given.target)} times"
        raise UsageError(found, where=arg("target"), hint="give one token, or two for a difference")
    asked = run_config(
        read_texts(given),
        given,
        window=PAGE if is_page(given) else PRINTED if is_table(given) else None,
        picture=is_picture(given),
        target=given.target if given.by == "logit" else None,
        by="weight" if given.by == "logit" else given.by,
        **({"stages": WALKED} if is_page(given) and given.stages is None else {}),
    )
    from attnscope.studies.rollout.run import reporter

    every_head = None
    with progress(quiet=given.quiet) as on_progress:
        if is_page(given) and given.measure == "weights":
            from attnscope.run.session import inspect_every_head

            report, every_head = inspect_every_head(asked, on_progress)
        else:
            report = reporter(asked)(asked, on_progress)
    deliver(report, given, None, every_head, brief="stages" not in given.typed, words=given.words, ids=given.ids)


def _check_printed(given: Given) -> None:
    """Refuse --words and --ids where they would have no effect, and what would have none beside them."""
    if given.words:
        _check_words(given)
    for name in ("words", "ids"):
        if getattr(given, name) and (given.output is not None or given.format == "json"):
            hint = "remove it (files have all tokens with ids and spans), or print into a file: > FILE"
            raise UsageError("applies only to what is printed as tables", where=arg(name), hint=hint)


def _check_words(given: Given) -> None:
    """Refuse what words do not have: other measures and stages, and norms of values."""
    where = arg("words")
    if given.measure != "weights":
        hint = f"remove {arg('words')} or {arg('measure')}"
        raise UsageError(f"merges weights of heads, not {given.measure}", where=where, hint=hint)
    if given.stages == ():
        raise UsageError(
            f"merges the weights, which {arg('stages', 'none')} leaves out",
            where=where,
            hint=f"use {arg('stages', 'weights')}",
        )
    if given.stages is not None and "weights" not in given.stages:
        raise UsageError("needs weights", where=where, hint=f"add weights to {arg('stages')}")
    if others := [name for name in given.stages or () if name != "weights"]:
        raise UsageError("merges weights alone", where=where, hint=f"remove {','.join(others)} from {arg('stages')}")
    if given.by in ("value", "projected"):
        raise UsageError("ranks words by weight", where=where, hint=f"remove {arg('words')} or {arg('by', given.by)}")
