"""`attnscope check`: whether the numbers shown for a model are right."""

from typing import Any

from attnscope.studies.study import Call, FindingsKind, Request, Study, StudyCommand


def _answer(request: Request) -> Any:
    from attnscope.engines.torch_setup import import_torch

    import_torch()
    from attnscope.studies.check.run import check

    limit = request.values["tolerance"]
    return check(request.run, limit, request.session, built_in=request.built_in)


STUDY = Study(
    (FindingsKind("check", "check:CheckReport", "check.screen:present_check", (".json", ".txt")),),
    StudyCommand(
        """Check that the numbers shown for a model are right.

        Tests what always holds for attention (rows sum to 1, …) on every layer and head, and compares with eager
        transformers if it is installed.
        Exits with 0 if every check passes, with 1 if one fails.
        """,
        """
        attnscope check
        attnscope check --model ./my-bert
        attnscope check "Water ran over the old stones"
        attnscope check --model ./my-bert --json | jq .checks
        attnscope check "Water ran over the old stones" --model ./my-llama --dtype bfloat16
        attnscope check --model ./my-t5 --engine transformers --part cross --context "Wasser"
        """,
        _answer,
        call=lambda _values, _sides: Call("check", "typed"),
        built_in="attnscope.request.arguments:CHECKED_TEXTS",
        failed=lambda report: not report.passed,
    ),
)
