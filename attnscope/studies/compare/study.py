"""`attnscope compare`: what differs between texts, models, masks or settings."""

from attnscope.studies.study import FindingsKind, Study

STUDY = Study(
    (
        FindingsKind(
            "compare",
            "attnscope.findings.compare:Comparison",
            "attnscope.studies.compare.screen:present_comparison",
            page="attnscope.studies.compare.page:present_page",
        ),
    )
)
