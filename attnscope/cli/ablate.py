"""The command `attnscope ablate`: cut something out of attention and show what changes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from attnscope.base.errors import UsageError
from attnscope.cli.option_groups import subset_of
from attnscope.cli.options import (
    SHOW,
    MachineOptions,
    ModelOptions,
    TableOutputOptions,
    TextOptions,
    choice,
    option,
    output_option,
    precision_option,
)
from attnscope.cli.selection_options import (
    NUMBERS,
    SelectionOptions,
    head_option,
    key_option,
    layer_option,
    query_option,
    top_option,
)
from attnscope.request import arguments
from attnscope.request.arguments import Each, Replacement
from attnscope.studies.formats import endings

_CUT = "What to cut"
_ENDINGS = endings("ablate")
_TABLES = [ending for ending in endings("effects") if ending not in _ENDINGS]

EXAMPLES = """
attnscope ablate "She sat by the [MASK] of the river" --cut L2H0
attnscope ablate "She sat by the [MASK] of the river" --cut "*: [MASK]→river"
attnscope ablate "She sat by the [MASK] of the river" --cut "L0-1: river->" --cut L3H1
attnscope ablate "She sat by the [MASK] of the river" --each head
attnscope ablate "She sat by the [MASK] of the river" --each edge --layer 2 --head 0
attnscope ablate "The bank by the river" --each head --at bank --with mean --output effects.csv
"""

Masking = subset_of(SelectionOptions, "mask", "hide")


@dataclass(frozen=True, kw_only=True)
class CutOptions:
    """What is cut, and what is compared.

    Attributes:
        cut: Expressions, all cut together.
        each: Cut every head, layer or edge alone.
        replacement: What stands for a head that is cut.
        reference: A text over which a mean is taken.
        layer: Layers to which --each keeps, as typed.
        head: Heads, likewise.
        query: Queries of edges, likewise.
        key: Keys of edges, likewise.
        at: Positions that are compared.
        top: How many of --each are listed.
    """

    cut: Annotated[
        list[str] | None,
        option(
            "--cut",
            group=_CUT,
            metavar="CUT",
            parser=arguments.cut,
            help="What to cut: a head (L5H1), several (L5-8H0-2), all heads of a layer (L5), all heads (*), or edges "
            'of any of these: "*: →[CLS]", "L5H1: it→animal" (query→key; -> is the same as →). Tokens are written as '
            "for --query. Repeatable; all cuts are made together.",
        ),
    ] = None
    each: Annotated[
        Each | None,
        choice(
            "--each",
            Each,
            group=_CUT,
            help="Cut each head, all heads of each layer, or each edge on its own, and rank them by effect. Edges need "
            "--layer, --head or --query.",
        ),
    ] = None
    layer: Annotated[str, layer_option(f"With --each, the layers to cut: all, {NUMBERS}", "all", group=_CUT)] = "all"
    head: Annotated[
        str,
        head_option(
            "With --each head or edge, the heads to cut: all, numbers such as 3, 0,2,5-7 (with 7) or -1 (the last), or "
            "L2H3.",
            "all",
            group=_CUT,
        ),
    ] = "all"
    query: Annotated[
        str | None,
        query_option(
            "With --each edge, the queries of the edges to cut: positions (3, 3:8 without 8, -1), words or phrases, "
            "separated by commas.",
            metavar="TOKENS",
            group=_CUT,
        ),
    ] = None
    key: Annotated[
        str | None,
        key_option("With --each edge, the keys of the edges to cut, in the same form.", metavar="TOKENS", group=_CUT),
    ] = None
    replacement: Annotated[
        Replacement,
        choice(
            "--with",
            Replacement,
            group=_CUT,
            help="What replaces the output of a cut head: zero, or its mean over the text's tokens.",
        ),
    ] = "zero"
    reference: Annotated[
        str | None,
        option(
            "--reference",
            group=_CUT,
            metavar="TEXT",
            help="With --with mean, average over the tokens of this text instead. Tokens that --hide names are hidden "
            "in it as well.",
        ),
    ] = None
    at: Annotated[
        str | None,
        option(
            "--at",
            group=_CUT,
            metavar="TOKENS",
            parser=arguments.text("--at"),
            help="Tokens at which predictions and hidden states are compared, written as for --query; default: the "
            "last token, or every [MASK] for a masked language model.",
        ),
    ] = None
    top: Annotated[
        int | None, top_option("With --each: number of entries to list; default: 10.", lowest=1, group=SHOW)
    ] = None


@dataclass(frozen=True, kw_only=True)
class AblateOutputOptions(TableOutputOptions):
    """Where the findings go, and how they look.

    Attributes:
        format: See TableOutputOptions.
        output: A file instead.
        precision: Digits after the point.
    """

    output: Annotated[
        Path | None,
        output_option(
            f"Write to a file; the extension sets the format: {' '.join(_ENDINGS)}, with --each also "
            f"{' '.join(_TABLES)}."
        ),
    ] = None
    precision: Annotated[
        int, precision_option("Decimal places in tables; files other than pictures and .txt are exact.")
    ] = 3


def ablate(
    source: TextOptions,
    stack: ModelOptions,
    asked: CutOptions,
    masking: Masking,  # type: ignore[valid-type]
    show: AblateOutputOptions,
    machine: MachineOptions,
) -> None:
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

    check_output(show, "ablate" if asked.each is None else "effects", source, stack, masking)
    if asked.top is not None and asked.each is None:
        raise UsageError("applies only to --each", where="--top", hint="remove it: --cut shows all that it changes")
    narrowed = {name: getattr(asked, name) for name in ("layer", "head", "query", "key")}
    selection = SelectionOptions(**vars(masking), **narrowed)
    run = run_config(read_texts(source, quiet=show.quiet), stack, selection, machine, window=None)
    from attnscope.studies.ablate.plan import AblationOptions
    from attnscope.studies.ablate.run import ablate as cut_once
    from attnscope.studies.ablate.run import survey_effects

    options = AblationOptions(tuple(asked.cut or ()), asked.each, asked.replacement, asked.reference, asked.at)
    with progress(quiet=show.quiet) as on_progress:
        found: Any = (cut_once if asked.each is None else survey_effects)(run, options, on_progress)
    deliver(found, show, Listing(asked.top))
