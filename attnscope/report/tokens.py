"""A token of a text, as plain data."""

import msgspec


class Token(msgspec.Struct, frozen=True):
    """One token of a text.

    Attributes:
        id: The vocabulary id that the model was given.
        piece: The tokenizer's own spelling, such as `Ġriver` or `##ing`.
        text: The readable piece: the text it covers, or what the piece spells if it covers none
            or for part of a character.
        start: Where it starts in its text, in characters; None for a token that covers no text.
        end: Where it ends, exclusive.
        special: Added by the tokenizer (such as `[CLS]`), or a special token that the user wrote, which has a span.
        segment: 0, or 1 for the second text of a pair; `start` and `end` count in that text.
        type_id: The row of the segment table that the model was given, where it has one.
    """

    id: int
    piece: str
    text: str
    start: int | None = None
    end: int | None = None
    special: bool = False
    segment: int = 0
    type_id: int = 0
