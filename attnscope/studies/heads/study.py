"""`attnscope heads`: the roles of all heads, or one number for each."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attnscope.base.errors import UsageError, arg
from attnscope.base.layer_kinds import MIXING
from attnscope.studies.study import (
    DRAWN,
    TABLES,
    Call,
    FindingsKind,
    Request,
    Sides,
    Study,
    StudyCommand,
)
from attnscope.views.settings import Listing

_FILES = (*DRAWN, *TABLES), "heads"


def _call(values: Mapping[str, Any], sides: Sides | None) -> Call:
    given_names = [name for name, value in values.items() if value is not None]
    if sides is not None:
        axis, compared = sides
        if "needle" in given_names:
            hint = f"remove {arg('needle')}, or measure one model after the other"
            raise UsageError(
                "heads of two models are compared by roles or one number",
                where=arg(axis),
                hint=hint,
            )
        if len(compared) != 2:
            hint = "the heads of two models are compared with each other"
            raise UsageError(f"has {len(compared)} values, not two", where=arg(axis), hint=hint)
    if "needle" in given_names:
        return Call("needle", "none")
    listing = Listing(values.get("top"), values.get("sort") or "value")
    one_number = values.get("measure") not in (None, MIXING) or "key" in given_names
    return Call("heads", "named" if one_number else "built-in", listing)


def _answer(request: Request) -> Any:
    if request.sides:
        return _compare(request)
    run = request.run
    values = request.values
    session = request.session
    counts = {name: values[name] for name in ("draws", "seed") if values[name] is not None}
    if values["needle"] is not None:
        from attnscope.studies.heads.needle import (
            DEPTHS,
            LENGTHS,
            NeedleOptions,
            find_needle,
            read_filler,
        )

        lengths = values["lengths"] or LENGTHS
        depths = values["depths"] or DEPTHS
        hidden = values["needle"], values["answer"], read_filler(values["filler"])
        return find_needle(run, NeedleOptions(*hidden, lengths, depths, **counts), session)
    mixing = values["measure"] == MIXING
    if (values["measure"] is not None and not mixing) or run.key is not None:
        from attnscope.studies.heads.question import ask_heads

        measure = "weight" if mixing else values["measure"] or "weight"
        found: Any = ask_heads(run, measure, session, against=values["against"], mixing=mixing)
        return _with_shown_texts(request, found)
    from attnscope.studies.heads.run import SurveyOptions, survey_heads

    if run.media_kind == "audio":
        from attnscope.studies.heads.sound import survey_sound

        return survey_sound(run, SurveyOptions(values["role"], **counts), session)
    found = survey_heads(run, SurveyOptions(values["role"], mixing=mixing, **counts), session)
    return _with_shown_texts(request, found)


def _with_shown_texts(request: Request, found: Any) -> Any:
    """Run the texts that a page shows beside the findings, or the head that a figure does."""
    if request.shows_every_head:
        from attnscope.studies.heads.page import run_shown_texts

        request.every_head.append(run_shown_texts(request, found))
    elif request.form is not None and request.form.picture:
        from attnscope.studies.heads.example import run_example

        request.every_head.append(run_example(request, found))
    return found


def _compare(request: Request) -> Any:
    """Measure the heads of two models, one after the other, and compare them."""
    from attnscope.studies.compare.runs import side_label
    from attnscope.studies.heads.changes import compare_heads

    measured = []
    for _, run in request.sides:
        findings = _answer(replace(request, run=run, sides=(), shows_every_head=False))
        measured.append((side_label(request.axis, run), findings))
        request.session.models.clear()  # one of them is in memory at a time
    return compare_heads(request.axis, measured)


STUDY = Study(
    (
        FindingsKind(
            "heads",
            "head_findings:HeadRoles",
            "heads.screen:present_survey",
            *_FILES,
            "heads.page:present_survey_page",
        ),
        FindingsKind(
            "measured-heads",
            "head_findings:HeadScores",
            "heads.screen:present_measured",
            *_FILES,
            "heads.page:present_measured_page",
        ),
        FindingsKind(
            "compared-heads",
            "head_changes:HeadComparison",
            "heads.changes_screen:present_changes",
            *_FILES,
        ),
        FindingsKind(
            "needle", "head_findings:NeedleSurvey", "heads.needle_screen:present_needle", *_FILES
        ),
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
    ),
)
