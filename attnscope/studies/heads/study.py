"""`attnscope heads`: the roles of all heads, or one number for each."""

from attnscope.studies.study import DRAWN, TABLES, FindingsKind, Study


def _kind(name: str, findings: str, screen: str) -> FindingsKind:
    return FindingsKind(
        name, f"attnscope.findings.{findings}", f"attnscope.studies.heads.{screen}", (*DRAWN, *TABLES), "heads"
    )


STUDY = Study(
    (
        _kind("heads", "head_findings:HeadRoles", "screen:present_survey"),
        _kind("measured-heads", "head_findings:HeadScores", "screen:present_measured"),
        _kind("compared-heads", "head_changes:HeadComparison", "changes_screen:present_changes"),
        _kind("needle", "needle:NeedleSurvey", "needle_screen:present_needle"),
    )
)
