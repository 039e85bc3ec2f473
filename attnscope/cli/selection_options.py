"""Options that say what to compute and record, shared by the commands that run a model."""

from dataclasses import dataclass
from typing import Annotated, Any

from attnscope.cli import completion
from attnscope.cli.options import choice, option
from attnscope.request import arguments
from attnscope.request.arguments import By, RankBy, WhatIf
from attnscope.request.masks.expression import MASK_FILES
from attnscope.request.masks.terms import TERMS, Own
from attnscope.request.selection import POOL, PRINTED, parse_unit

SELECT = "What to compute"
STAGES = "scores,masked,weights"
NUMBERS = "or numbers such as 3, 0,2,5-7 (with 7) or -1 (the last)."
AUTO_HEAD = (
    "auto picks the head with the most weight from --query on --key; without --key, the one whose weights depend most "
    "on content, not on distance, special tokens or the first."
)


def layer_option(help: str, *words: str, metavar: str = "LAYERS", group: str = SELECT) -> Any:
    """Declare `--layer`; the words are completed."""
    return _indices("--layer", "-l", metavar, words, help, group)


def head_option(help: str, *words: str, metavar: str = "HEADS", group: str = SELECT) -> Any:
    """Declare `--head`; the words are completed."""
    return _indices("--head", "-H", metavar, words, help, group)


def _indices(name: str, short: str, metavar: str, words: tuple[str, ...], help: str, group: str) -> Any:
    completed = completion.words(*words)
    return option(
        name, short, group=group, metavar=metavar, parser=arguments.indices(name), autocompletion=completed, help=help
    )


def query_option(help: str, *, metavar: str = "ROWS", group: str = SELECT) -> Any:
    """Declare `--query`."""
    return option("--query", "-q", group=group, metavar=metavar, parser=arguments.text("--query"), help=help)


def key_option(help: str, *, metavar: str = "COLUMNS", group: str = SELECT) -> Any:
    """Declare `--key`."""
    return option("--key", group=group, metavar=metavar, parser=arguments.text("--key"), help=help)


def stage_option(help: str, default: str = ".") -> Any:
    """Declare `--stage`; its help begins with what is done with the stages, and ends with the default."""
    return option(
        "--stage",
        group=SELECT,
        metavar="STAGES",
        parser=arguments.stages,
        autocompletion=completion.stages,
        help=f"{help}, separated by commas: {', '.join(arguments.STAGES)}, or none{default}",
    )


def top_option(help: str, *, lowest: int, group: str = SELECT) -> Any:
    """Declare `--top`."""
    return option("--top", group=group, metavar="K", parser=arguments.number("--top", lowest), help=help)


def pool_option(help: str) -> Any:
    """Declare `--pool`."""
    read = arguments.number("--pool", 1, arguments.LARGEST_POOL)
    return option("--pool", group=SELECT, metavar="N", parser=read, help=help)


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
        str, layer_option(f"Layers, counted from 0: auto, all, mean, {NUMBERS}", "auto", "all", "mean")
    ] = "auto"
    head: Annotated[str, head_option(f"Heads, in the same form, or L2H3. {AUTO_HEAD}", "auto", "all", "mean")] = "auto"
    query: Annotated[
        str | None,
        query_option(
            "Rows: positions (3, 3:8 without 8, -1), words or phrases, separated by commas. Numbers that are not "
            "positions, and anything in quotation marks, are words."
        ),
    ] = None
    key: Annotated[str | None, key_option("Columns, in the same form; the slice 0: selects all.")] = None
    mask: Annotated[
        str,
        option(
            "--mask",
            group=SELECT,
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
            group=SELECT,
            help="Apply another --mask to the whole stack, or only to the softmax over the model's own scores.",
        ),
    ] = "stack"
    hide: Annotated[
        str | None,
        option(
            "--hide",
            group=SELECT,
            metavar="TOKENS",
            parser=arguments.text("--hide"),
            help='Hide tokens from every query, in the same form as --query, such as "[CLS],[SEP]" or 3,7; none hides '
            "no token.",
        ),
    ] = None
    stage: Annotated[
        str | None,
        stage_option(
            "Stages to show", f"; default: {STAGES}, or weights alone where these would fill more than a screen."
        ),
    ] = None
    top: Annotated[int, top_option("Contributors per token; 0 hides them.", lowest=0)] = 3
    by: Annotated[
        RankBy,
        choice(
            "--by",
            By,
            group=SELECT,
            help="Rank contributors by weight α, by α·‖v‖, or by α·‖v W‖ after the output projection.",
        ),
    ] = "weight"
    no_special: Annotated[
        bool,
        option("--no-special", group=SELECT, help="Exclude special tokens and the first token from the ranking."),
    ] = False

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages whose matrices are kept."""
        return () if self.stage == "none" else tuple((self.stage or STAGES).split(","))

    def masking(self) -> dict[str, Any]:
        """Return the fields of a RunConfig that say which keys a query sees."""
        return {"mask": self.mask, "what_if": self.what_if, "hide": None if self.hide == "none" else self.hide}

    def chosen(self) -> dict[str, Any]:
        """Return the fields of a RunConfig, and of a dump's settings, that say what is computed of a text.

        Raises:
            UsageError: Layer and head contradict each other.
        """
        layer, head = parse_unit(self.layer, self.head)
        return {
            "layer": layer,
            "head": head,
            "query": self.query,
            "key": self.key,
            "stages": self.stages,
            "top": self.top,
            "by": "weight" if self.by == "logit" else self.by,
            "special": not self.no_special,
        }


@dataclass(frozen=True, kw_only=True)
class RunSelectionOptions(SelectionOptions):
    """What `attnscope run` computes and keeps.

    Attributes:
        by: What ranks contributors, or `logit`.
    """

    by: Annotated[
        RankBy,
        choice(
            "--by",
            RankBy,
            group=SELECT,
            help="Rank contributors by weight α, by α·‖v‖, or by α·‖v W‖ after the output projection; logit also shows "
            "how much each part of the model adds to the logit of --target.",
        ),
    ] = "weight"


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """What is shown over layers.

    Attributes:
        measure: `weights` for the attention of heads, or a measure of token to token.
    """

    measure: Annotated[
        str,
        option(
            "--measure",
            group=SELECT,
            metavar="NAME",
            parser=arguments.flow_measure,
            autocompletion=completion.flow_measures,
            help="Show how much each token contributes to every token over --layer, instead of the heads' weights: "
            "rollout, rollout-no-residual, value-zeroing (of each layer) or value-zeroing-rollout.",
        ),
    ] = "weights"


@dataclass(frozen=True, kw_only=True)
class PaddingOptions:
    """What is shown of the batch around a text.

    Attributes:
        show_padding: Rows and columns of padding.
    """

    show_padding: Annotated[
        bool,
        option(
            "--show-padding",
            group=SELECT,
            help="With several texts (--file), also show the rows and columns of padding.",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class OverviewOptions:
    """What replaces matrices that are too large.

    Attributes:
        pool: Runs of tokens that a pooled map has each way.
    """

    pool: Annotated[
        int | None,
        pool_option(
            f"Show a map of N × N runs of tokens and the most attended tokens instead of matrices. Tables of "
            f"texts longer than {PRINTED} tokens show a {POOL} × {POOL} map unless --query or --key is given."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PredictionOptions:
    """What the model makes of the text.

    Attributes:
        predict: Show what it predicts; None for where that costs little.
        generate: Tokens that it continues the text by.
        target: Whose logit `--by logit` takes apart.
    """

    predict: Annotated[
        bool | None,
        option(
            "--predict/--no-predict",
            group=SELECT,
            help="Show the five most probable tokens: the next one, or at every [MASK]. Default: where the checkpoint "
            "has an output head, all layers run anyway and texts are short.",
        ),
    ] = None
    generate: Annotated[
        int,
        option(
            "--generate",
            group=SELECT,
            metavar="N",
            parser=arguments.number("--generate", 0, arguments.GENERATED),
            help="Continue the text by up to N tokens, each the most probable one, and show what each attended to.",
        ),
    ] = 0
    target: Annotated[
        list[str] | None,
        option(
            "--target",
            group=SELECT,
            metavar="TOKEN",
            help="Token whose logit --by logit breaks down, such as ' store' with its leading space; given twice, "
            "the difference between the two logits. Default: the most probable token.",
        ),
    ] = None
