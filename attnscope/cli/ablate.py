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
"""


def ablate(given: Given) -> None:
    """Cut heads or edges out of attention and show what changes.

    A large weight does not always matter. --cut runs the model again without the named heads or edges, and compares
    predictions and final hidden states. --each does so for every head, layer or edge, ranks them by effect, and shows
    how well weights predict the effect. A cut edge is shown in two ways: with its score at −inf, so that softmax
    redistributes its weight over the other keys (renormalised), and with its weight set to 0 (unnormalised).
    """
    from attnscope.cli.deliver import check_output, deliver
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import read_texts, run_config
    from attnscope.studies.heads.screen import Listing

    check_output(given, "ablate" if given.each is None else "effects")
    if given.top is not None and given.each is None:
        raise UsageError(
            f"applies only to {arg('each')}",
            where=arg("top"),
            hint=f"remove it: {arg('cut')} shows all that it changes",
        )
    run = run_config(read_texts(given), given, top=3, generate=0)
    from attnscope.studies.ablate.plan import AblationOptions
    from attnscope.studies.ablate.run import ablate as cut_once
    from attnscope.studies.ablate.run import survey_effects

    options = AblationOptions(
        given.cuts, given.each, given.replacement, given.reference, given.at, given.answer, given.generate
    )
    with progress(quiet=given.quiet) as on_progress:
        findings: Any = (cut_once if given.each is None else survey_effects)(run, options, on_progress)
    deliver(findings, given, Listing(given.top))
