"""`attnscope ablate`: what changes if heads or edges are cut."""

from attnscope.studies.study import DRAWN, TABLES, FindingsKind, Study

STUDY = Study(
    (
        FindingsKind(
            "ablate", "attnscope.findings.ablation:Ablation", "attnscope.studies.ablate.screen:present_ablation"
        ),
        FindingsKind(
            "effects",
            "attnscope.findings.ablation:EffectSurvey",
            "attnscope.studies.ablate.screen:present_effects",
            (*DRAWN, *TABLES),
            "ablate --each",
        ),
    )
)
