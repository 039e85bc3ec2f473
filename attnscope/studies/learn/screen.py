"""A lesson as a screen: steps with their questions, and the answers below each or at the end."""

from collections.abc import Iterator

import numpy as np

from attnscope.findings.lesson import Lesson, LessonStep
from attnscope.studies.screens.header import report_header, text_header
from attnscope.views.numbers import Digits, digits_for, written
from attnscope.views.parts import GAP, Column, Facts, Table, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, ours, token_span, untrusted

LETTERS = "abcde"  # of the answers to choose from, which may be numbers themselves
_NONE = "−∞"  # cell of a key that is not allowed


def present_lesson(lesson: Lesson, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Turn a whole lesson into parts, with the answers after all questions."""
    yield from lesson_header(lesson, settings)
    for step_number, step in enumerate(lesson.steps, 1):
        yield GAP
        yield from step_parts(lesson, step_number, step)
        yield from question_parts(step)
    yield GAP
    yield paragraph((Span("Answers", "title"),))
    for step_number, step in enumerate(lesson.steps, 1):
        yield GAP
        yield paragraph((Span(f"{step_number}  ", "bold"), *untrusted(step.reveal)))
        yield from answer_parts(step, settings)


def lesson_header(lesson: Lesson, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Name the lesson, the model, the text and the row."""
    yield paragraph((Span(lesson.title, "title"),))
    yield GAP
    yield from report_header(lesson.provenance, lesson.mask, settings)
    yield text_header(lesson, settings)
    row = (
        Span(f"L{lesson.layer}H{lesson.head}, query {lesson.query} "),
        token_span(lesson.tokens, lesson.query),
    )
    yield Facts([("row", row)])
    if lesson.temperature != 1.0:
        yield Facts(
            [("what if", ours(f"scores are divided by a temperature of {lesson.temperature:g}"))]
        )


def step_parts(lesson: Lesson, step_number: int, step: LessonStep) -> Iterator[ViewPart]:
    """Present what a step says, and its formula."""
    yield paragraph((Span(f"{step_number}/{len(lesson.steps)}  ", "bold"), *untrusted(step.says)))
    yield paragraph(untrusted(step.formula, "bold"), indent=1)


def question_parts(step: LessonStep) -> Iterator[ViewPart]:
    """Present a step's question with lettered answers."""
    yield paragraph(untrusted(f"?  {step.question}"), indent=1)
    for letter, choice in zip(LETTERS, step.choices, strict=False):
        yield paragraph(untrusted(f"{letter}  {choice}"), indent=1)


def reveal_parts(step: LessonStep, settings: DisplaySettings, *, right: bool) -> Iterator[ViewPart]:
    """Present whether an answer was right, the answer, and its numbers."""
    if right:
        verdict = Span("✓ right.", "bold")
    else:
        verdict = Span(f"✗ it is {LETTERS[step.answer]}.", "bold")
    yield paragraph((verdict, Span(" "), *untrusted(step.reveal)), indent=1)
    yield from answer_parts(step, settings)


def answer_parts(step: LessonStep, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Present the numbers behind an answer."""
    if not step.columns:
        return
    values = list(zip(*(row.values for row in step.rows), strict=True))
    digits = [
        digits_for(np.array([v for v in column if v is not None]), settings.precision)
        for column in values
    ]
    # columns are compared with one another, so they have as many decimals
    shared = Digits(max(d.decimals for d in digits))
    columns = [
        Column(untrusted(heading), written(column, d if d.scientific else shared, none=_NONE))
        for heading, column, d in zip(step.columns, values, digits, strict=True)
    ]
    yield Table("", columns, labels=[untrusted(row.label) for row in step.rows])
