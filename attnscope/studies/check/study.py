"""`attnscope check`: whether the numbers shown for a model are right."""

from attnscope.studies.study import FindingsKind, Study

STUDY = Study(
    (
        FindingsKind(
            "check",
            "attnscope.findings.check:CheckReport",
            "attnscope.studies.check.screen:present_check",
            (".json", ".txt"),
        ),
    )
)
