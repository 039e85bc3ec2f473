"""Measure what every head of a model does: the roles of `report.head_roles`, and single numbers for a question."""

from attnscope.survey.question import ask_heads
from attnscope.survey.run import SurveyOptions, survey_heads

__all__ = ["SurveyOptions", "ask_heads", "survey_heads"]
