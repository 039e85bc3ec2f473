"""`attnscope heads`: the roles of all heads, or one number for each."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from attnscope.base.errors import UsageError, arg
from attnscope.request.arguments import Dtype, EngineWord, asks_one_number
from attnscope.request.run_config import MachineArguments, PairArguments, TokenArguments, Tokens, TorchDtype
from attnscope.studies.study import DRAWN, TABLES, Call, FindingsKind, Listing, Request, Sides, Study, StudyCommand

_NO_TEXT = ("text", "file", "chat", "messages", "pair", "context", "query", "key", "against", "spans", "hide")
_NOT_OF_NEEDLES = (*_NO_TEXT, "role", "measure", "top")


def _kind(name: str, findings: str, screen: str) -> FindingsKind:
    return FindingsKind(
        name, f"attnscope.findings.{findings}", f"attnscope.studies.heads.{screen}", (*DRAWN, *TABLES), "heads"
    )


def _call(values: Mapping[str, Any], sides: Sides | None) -> Call:
    given = [name for name, value in values.items() if value is not None]
    if sides is not None:
        axis, compared = sides
        if "needle" in given:
            hint = f"remove {arg('needle')}, or measure one model after the other"
            raise UsageError("heads of two models are compared by roles or one number", where=arg(axis), hint=hint)
        if len(compared) != 2:
            hint = "the heads of two models are compared with each other"
            raise UsageError(f"has {len(compared)} values, not two", where=arg(axis), hint=hint)
    if "needle" in given:
        for name in _NOT_OF_NEEDLES:
            if name in given:
                hint = f"remove it, or {arg('needle')}"
                raise UsageError(f"cannot be used with {arg('needle')}", where=arg(name), hint=hint)
        return Call("needle", "none")
    for name in ("answer", "filler", "lengths", "depths"):
        if name in given:
            hint = f"add {arg('needle', placeholder='TEXT')}"
            raise UsageError(f"applies only to {arg('needle')}", where=arg(name), hint=hint)
    if values.get("words") and not {"query", "key"}.intersection(given):
        raise UsageError(f"applies only to {arg('query')} and {arg('key')}", where=arg("words"), hint="remove it")
    listing = Listing(values.get("top"), values.get("sort") or "value")
    return Call("heads", "named" if asks_one_number(values) else "built-in", listing)


def _answer(request: Request) -> Any:
    run, values, more = request.run, request.values, (request.progress, request.session)
    counts = {name: values[name] for name in ("draws", "seed") if values[name] is not None}
    if values["needle"] is not None:
        from attnscope.studies.heads.needle import DEPTHS, LENGTHS, NeedleOptions, find_needle, read_filler

        lengths, depths = values["lengths"] or LENGTHS, values["depths"] or DEPTHS
        filler = read_filler(values["filler"])
        return find_needle(
            run, NeedleOptions(values["needle"], values["answer"], filler, lengths, depths, **counts), *more
        )
    if values["measure"] is not None or run.key is not None:
        from attnscope.studies.heads.question import ask_heads

        return ask_heads(run, values["measure"] or "weight", *more, against=values["against"])
    from attnscope.studies.heads.run import SurveyOptions, survey_heads

    return survey_heads(run, SurveyOptions(values["role"], **counts), *more)


def _joined(axis: str, sides: Sequence[tuple[str, Any]]) -> Any:
    from attnscope.studies.heads.changes import compare_heads

    return compare_heads(axis, sides)


STUDY = Study(
    (
        _kind("heads", "head_findings:HeadRoles", "screen:present_survey"),
        _kind("measured-heads", "head_findings:HeadScores", "screen:present_measured"),
        _kind("compared-heads", "head_changes:HeadComparison", "changes_screen:present_changes"),
        _kind("needle", "needle:NeedleSurvey", "needle_screen:present_needle"),
    ),
    StudyCommand(
        """Show which head does what.

        Measures the roles of every head on texts (by default built-in ones) and on random tokens, and draws a grid of
        layers × heads: the letter is the head's main role, the shade its strength. With --key or --measure, draws one
        number for every head instead. With two models (or adapters, configs, dtypes or engines), shows which heads
        differ, the largest change first.
        """,
        """
        attnscope heads
        attnscope heads --model ./my-llama --role induction
        attnscope heads --model ./my-bert --output heads.csv
        attnscope heads "The bank by the river" --query bank --key river
        attnscope heads "The bank by the river" --query bank --key river --against by
        attnscope heads "The bank by the river" --measure entropy
        attnscope heads --file texts.txt --json | jq .main
        attnscope heads --model ./my-llama --model ./my-llama-tuned
        attnscope heads --model ./my-llama --adapter none --adapter ./my-lora --role induction
        attnscope heads --needle "The bank was old" --lengths 32,40 --depths 0,0.5,1 --model ./my-gpt2
        """,
        _answer,
        own=("top", "measure"),
        call=_call,
        built_in="attnscope.studies.heads.texts:TEXTS",
        joined=_joined,
    ),
)


class ModelHeadsArguments(PairArguments, TokenArguments, total=False):
    """Arguments of `heads`; see PairArguments and TokenArguments, too.

    Attributes:
        role: Roles to measure: a name, or several; None for all.
        measure: One number for every head instead of roles: `weight`, `value` or `projected` of `key`, or a statistic
            of the average row, such as `entropy`.
        against: Keys whose number is subtracted from that of `key`.
        words: Take the whole words that `query` and `key` name a piece of.
        draws: Number of random sequences of each kind.
        seed: Seed of the random tokens.
        needle: A sentence to hide in long texts, instead of roles: how much the retrieval heads read of it.
        answer: The part of the needle that is its answer; None for its last word.
        filler: The text around the needle, repeated if it is short; None for built-in texts.
        lengths: Tokens of the texts; None for 512 and 1024.
        depths: Shares of the text before the needle; None for 0, 0.1 and so on to 1.
    """

    needle: str | None
    answer: str | None
    filler: str | None
    lengths: int | Sequence[int] | None
    depths: float | Sequence[float] | None
    role: str | Sequence[str] | None
    measure: str | None
    against: Tokens | None
    words: bool
    draws: int
    seed: int


class HeadsArguments(ModelHeadsArguments, MachineArguments, total=False):
    """All that `attnscope.heads` takes apart from the model and texts; see OpenArguments.

    One of these, or the model, may be a list of two, whose heads are compared; `tokenizer`, too.
    """

    qkv: object
    config: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
    adapter: str | os.PathLike[str] | Sequence[str | os.PathLike[str] | None] | None
    dtype: Dtype | TorchDtype | Sequence[Dtype | TorchDtype]
    engine: EngineWord | Sequence[EngineWord]
