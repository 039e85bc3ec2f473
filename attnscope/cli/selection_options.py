"""Options that say what to compute and record, shared by the commands that run a model."""

from dataclasses import dataclass
from typing import Annotated

from attnscope import arguments
from attnscope.arguments import By, WhatIf
from attnscope.cli import completion
from attnscope.cli.options import choice, option
from attnscope.masks.expression import MASK_FILES
from attnscope.masks.terms import TERMS, Own
from attnscope.selection import POOL, PRINTED

_SELECT = "What to compute"
_STAGES = "scores,masked,weights"


@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """What to compute and keep.

    Attributes:
        mask: Mask expression.
        what_if: What a changed mask changes.
        hide: Tokens that no query sees, as typed; `none` for none.
        layer: Layers, as typed.
        head: Heads, as typed.
        query: Rows, as typed.
        key: Columns, as typed.
        stage: Stages whose matrices are kept, joined by commas; None where the user left that to us.
        top: Contributors per token.
        by: What ranks them.
        no_special: Leave special tokens and the first token out of the ranking.
    """

    layer: Annotated[
        str,
        option(
            "--layer",
            group=_SELECT,
            metavar="LAYERS",
            parser=arguments.indices("--layer"),
            autocompletion=completion.words("auto", "all", "mean"),
            help="Layers, counted from 0: auto, all, mean, or numbers such as 3, 0,2,5-7 or -1 (the last).",
        ),
    ] = "auto"
    head: Annotated[
        str,
        option(
            "--head",
            group=_SELECT,
            metavar="HEADS",
            parser=arguments.indices("--head"),
            autocompletion=completion.words("auto", "all", "mean"),
            help="Heads, in the same form, or L2H3. auto picks the head with the most weight from "
            "--query on --key; without --key, the one whose weights depend most on content, not on distance, special "
            "tokens or the first.",
        ),
    ] = "auto"
    query: Annotated[
        str | None,
        option(
            "--query",
            group=_SELECT,
            metavar="ROWS",
            parser=arguments.text("--query"),
            help="Rows: positions (3, 3:8, -1), words or phrases, separated by commas. Numbers that are not positions, "
            "and anything in double quotes, are words.",
        ),
    ] = None
    key: Annotated[
        str | None,
        option(
            "--key",
            group=_SELECT,
            metavar="COLUMNS",
            parser=arguments.text("--key"),
            help="Columns, in the same form; 0: selects all.",
        ),
    ] = None
    mask: Annotated[
        str,
        option(
            "--mask",
            group=_SELECT,
            metavar="MASK",
            parser=arguments.mask,
            autocompletion=completion.masks,
            help=f"own (the model's), {', '.join(term.form for term in TERMS if term is not Own)}, or a file with a "
            f"boolean matrix ({' '.join(MASK_FILES)}); combine with +.",
        ),
    ] = "own"
    what_if: Annotated[
        WhatIf,
        choice(
            "--what-if",
            WhatIf,
            group=_SELECT,
            help="Apply another --mask to the whole stack, or only to the softmax over the model's own scores.",
        ),
    ] = "stack"
    hide: Annotated[
        str | None,
        option(
            "--hide",
            group=_SELECT,
            metavar="TOKENS",
            parser=arguments.text("--hide"),
            help='Hide tokens from every query, in the same form as --query, such as "[CLS],[SEP]" or 3,7; none hides '
            "no token.",
        ),
    ] = None
    stage: Annotated[
        str | None,
        option(
            "--stage",
            group=_SELECT,
            metavar="STAGES",
            parser=arguments.stages,
            autocompletion=completion.stages,
            help=f"Stages to show, separated by commas: {', '.join(completion.STAGES)}, or none; default: {_STAGES}, "
            "or weights alone where these would fill more than a screen.",
        ),
    ] = None
    top: Annotated[
        int,
        option(
            "--top",
            group=_SELECT,
            metavar="K",
            parser=arguments.number("--top", 0),
            help="Contributors per token; 0 hides them.",
        ),
    ] = 3
    by: Annotated[
        By,
        choice(
            "--by",
            By,
            group=_SELECT,
            help="Rank contributors by weight α, by α·‖v‖, or by α·‖v W‖ after the output projection.",
        ),
    ] = "weight"
    no_special: Annotated[
        bool,
        option("--no-special", group=_SELECT, help="Exclude special tokens and the first token from the ranking."),
    ] = False

    @property
    def hidden(self) -> str | None:
        """Tokens that no query sees, as typed; None for none."""
        return None if self.hide == "none" else self.hide

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages whose matrices are kept."""
        return () if self.stage == "none" else tuple((self.stage or _STAGES).split(","))


@dataclass(frozen=True, kw_only=True)
class OverviewOptions:
    """What replaces matrices that are too large.

    Attributes:
        pool: Runs of tokens that a pooled map has each way.
    """

    pool: Annotated[
        int | None,
        option(
            "--pool",
            group=_SELECT,
            metavar="N",
            parser=arguments.number("--pool", 1, 1024),
            help=f"Show a map of N × N runs of tokens and the most attended tokens instead of matrices. Tables of "
            f"texts longer than {PRINTED} tokens show a {POOL} × {POOL} map unless --query or --key is given.",
        ),
    ] = None
