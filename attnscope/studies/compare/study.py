"""`attnscope compare`: what differs between texts, models, masks or settings."""

from attnscope.studies.study import FindingsKind, Study

STUDY = Study(
    (
        FindingsKind(
            "compare",
            "compare:Comparison",
            "compare.screen:present_comparison",
            page="compare.page:present_page",
        ),
    )
)
