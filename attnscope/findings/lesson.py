"""A Lesson of `attnscope learn`: steps with this row's numbers, questions and answers."""

import msgspec

from attnscope.findings.provenance import TextFindings

LESSON_SCHEMA = "attnscope.lesson/1"


class LessonRow(msgspec.Struct, frozen=True):
    """A row of a step's table: a token or head, and its numbers.

    Attributes:
        label: The token or head.
        values: A number for each column; null if there is none.
    """

    label: str
    values: list[float | None]


class LessonStep(msgspec.Struct, frozen=True):
    """A step of a lesson.

    Attributes:
        says: What it shows, in a sentence.
        formula: The formula with this row's numbers.
        question: A question to predict.
        choices: The answers to choose from.
        answer: Index of the right one, as the model's numbers have it.
        reveal: The answer, with the numbers.
        columns: Headings of the table; empty if there is none.
        rows: The table's rows.
    """

    says: str
    formula: str
    question: str
    choices: list[str]
    answer: int
    reveal: str
    columns: list[str] = []
    rows: list[LessonRow] = []


class Lesson(TextFindings, frozen=True):
    """A lesson on one row of one head.

    Attributes:
        name: Name of the lesson.
        title: What it is about.
        layer: Layer of the head.
        head: The head.
        query: Position of the row's token.
        temperature: What the scaled scores are divided by before the softmax; 1 is the model's own.
        steps: The steps, in order.
        chosen: Why this head is shown, if it was not named.
        schema: Name and version of this format.
    """

    name: str
    title: str
    layer: int
    head: int
    query: int
    temperature: float
    steps: list[LessonStep]
    chosen: str | None = None
    schema: str = LESSON_SCHEMA
