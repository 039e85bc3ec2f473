"""What notes tell a reader to type, declared once: findings hold notes as strings, of which a figure leaves this out."""

from enum import Enum


class Hint(Enum):
    """The end of a note, with `{}` for what differs; without a sign in front it is a note of its own."""

    ALL_ROWS = "; --query {} shows all"
    ALL_COLUMNS = "; --key {} shows all"
    OTHER_ROWS = "; --query selects others"
    OTHER_COLUMNS = "; --key selects others"
    ANOTHER_ROW = "; --query ROWS shows others"
    OTHER_SECONDS = "; --key {}s shows others"
    ANOTHER_TOKEN = "; --query {} explains another"
    WHOLE_ROWS = "; save it without --key to get them"
    WHOLE_WORDS = ": --spans whole-words compares words"
    SEPARATE_DOCUMENTS = "; --mask {} shows them apart"
    PREDICTIONS = "; --at compares predictions at a token"
    ANSWER = "; --answer TEXT gives another one"
    MOST_MOVED_HEADS = "; --summary finds those that move most"
    ROWS_FOR_WORDS = ": add --query ROWS"
    EVERY_SHARE = "; --json has every number (spans.generated)"
    MATRICES = "--layer L --head H adds the matrices of a head"
    MAP = "--pool {} adds a map of the whole text"
    EXACT_CELLS = "for exact cells and contributors, select rows and columns, such as {}"

    def after(self, statement: str, value: object = "") -> str:
        """Return a note: a statement about the findings, then what to type."""
        return statement + self.value.replace("{}", str(value))


def hint_of(text: str) -> str:
    """Return the end of a note that tells what to type; empty if it is a statement alone."""
    for hint in Hint:
        before, _, after = hint.value.partition("{}")
        start = text.rfind(before)
        value = text[start + len(before) : len(text) - len(after)]
        if start >= 0 and text == hint.after(text[:start], value):
            return text[start:]
    return ""
