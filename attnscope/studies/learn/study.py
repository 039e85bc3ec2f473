"""`attnscope learn`: lessons; `cli/learn.py` walks through one."""

from attnscope.studies.study import DRAWN, FindingsKind, Study

STUDY = Study((FindingsKind("learn", "lesson:Lesson", "learn.screen:present_lesson", DRAWN),))
