"""`attnscope run`: the attention of a text."""

from attnscope.studies.study import DRAWN, TABLES, FindingsKind, Study

STUDY = Study(
    (
        FindingsKind(
            "run",
            "attnscope.findings.run:Report",
            "attnscope.studies.run.screen:present_report",
            (*DRAWN, ".safetensors", ".npz", *TABLES),
            page="attnscope.studies.run.page:present_page",
        ),
    ),
)
