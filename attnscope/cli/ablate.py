"""The command `attnscope ablate`: cut something out of attention and show what changes."""

from typing import Any

from attnscope.base.errors import UsageError, arg
from attnscope.cli.parameters import Given

EXAMPLES = """
attnscope ablate "She sat by the [MASK] of the river" --cut L2H0
attnscope ablate "She sat by the [MASK] of the river" --cut "*: [MASK]→river"
attnscope ablate "She sat by the [MASK] of the river" --cut "L0-1: river->" --cut L3H1
attnscope ablate "She sat by the [MASK] of the river" --each head
attnscope ablate "She sat by the [MASK] of the river" --each edge --layer 2 --head 0
attnscope ablate "The bank by the river" --each head --at bank --with mean --output effects.csv
attnscope ablate "She sat by the [MASK] of the river" --each head --target river --target sea --with resample
attnscope ablate "A [MASK] in the house" --from "A [MASK] in the river" --each head --target house --target river
"""


def ablate(given: Given) -> None:
    """Cut heads or edges out of attention and show what changes.

    A large weight does not always matter. --cut runs the model again without the named heads or edges, and compares
    predictions and final hidden states. --each does so for every head, layer or edge, ranks them by effect, and shows
    how well weights predict the effect. A cut edge is shown in two ways: with its score at −inf, so that softmax
    redistributes its weight over the other keys (renormalised), and with its weight set to 0 (unnormalised). --from
    patches what a second text gives instead, and --with resample what other texts give.
    """
    from attnscope.cli.deliver import check_output, deliver
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import read_other_texts, read_texts, refuse_path, run_config
    from attnscope.studies.study import Listing

    if given.patch_from is not None:
        refuse_path("patch_from", given.patch_from, reads_files=False)
    check_output(given, "ablate" if given.each is None else "effects")
    if given.top is not None and given.each is None:
        raise UsageError(
            f"applies only to {arg('each')}",
            where=arg("top"),
            hint=f"remove it: {arg('cut')} shows all that it changes",
        )
    run = run_config(read_texts(given), given, top=3, generate=0, cuts=(), target=None)
    from attnscope.studies.ablate.plan import AblationOptions
    from attnscope.studies.ablate.run import ablate as cut_once
    from attnscope.studies.ablate.run import survey_effects

    names = ("cuts", "each", "replacement", "reference", "at", "answer", "generate", "target", "patch_from")
    values = {name: getattr(given, name) for name in (*names, "draws", "seed")}
    options = AblationOptions(**values, others=read_other_texts(given))
    with progress(quiet=given.quiet) as on_progress:
        findings: Any = (cut_once if given.each is None else survey_effects)(run, options, on_progress)
    deliver(findings, given, Listing(given.top))
