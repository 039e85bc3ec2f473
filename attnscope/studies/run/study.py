"""`attnscope run`: the attention of a text."""

from attnscope.studies.study import DRAWN, TABLES, FindingsKind, Study

STUDY = Study(
    (
        FindingsKind(
            "run",
            "run:Report",
            "run.screen:present_report",
            (*DRAWN, ".safetensors", ".npz", ".srt", ".vtt", *TABLES),
            page="run.page:present_page",
        ),
    )
)
