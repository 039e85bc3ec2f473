"""The words of transcribed speech: which tokens each has, when it starts and ends, and how sure the model is."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from attnscope.findings.sound import SoundWord
from attnscope.findings.tokens import Token

# Marks of languages that are written without spaces between words, as the prompt of Whisper has them.
UNSPACED = frozenset(f"<|{language}|>" for language in ("zh", "ja", "th", "lo", "my", "yue"))
_BEFORE = "\"'“¡¿([{-"  # punctuation that belongs to the next word
_AFTER = "\"'.。,，!！?？:：”)]}、"  # and to the word before
_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


@dataclass(frozen=True)
class _Piece:
    """Tokens that together spell whole characters."""

    text: str
    first: int  # position of its first token
    end: int  # position after its last token


def speech_words(
    text: str,
    tokens: Sequence[Token],
    prompt: int,
    start_of: Callable[[int], float],
    end_of: Callable[[int], float],
    probability_of: Callable[[int], float],
) -> list[SoundWord]:
    """Return the words of a text, divided as in Whisper and transformers; their onsets are not moved to sounds yet.

    Args:
        text: The text that spans of tokens refer to.
        prompt: Tokens before the first that was said.
        start_of: Returns the second at which the token at a position starts.
        end_of: Returns the second at which the token at a position ends.
        probability_of: Returns the probability of the token at a position after those before it.
    """
    unspaced = any(token.piece in UNSPACED for token in tokens[:prompt])
    return [
        SoundWord(
            piece.text,
            start_of(piece.first),
            end_of(piece.end - 1),
            start_of(piece.first),
            end_of(piece.end - 1),
            sum(map(probability_of, range(piece.first, piece.end))) / (piece.end - piece.first),
            (piece.first, piece.end),
        )
        for run in _runs(text, tokens, prompt)
        for piece in _merge_punctuation(run if unspaced else _join_words(run))
    ]


def _runs(text: str, tokens: Sequence[Token], prompt: int) -> Iterator[list[_Piece]]:
    """Yield the pieces between special tokens, such as marks of time."""
    run = list[_Piece]()
    reached = 0
    for position, token in enumerate(tokens):
        if position < prompt or token.special or token.start is None or token.end is None:
            if run:
                yield run
            run = []
            continue
        if (
            run
            and position
            and tokens[position - 1].start == token.start
            and tokens[position - 1].end == token.end
        ):
            # it spells another part of the same characters
            run[-1] = _Piece(run[-1].text, run[-1].first, position + 1)
            continue
        run.append(_Piece(text[reached : token.end], position, position + 1))
        reached = token.end
    if run:
        yield run


def _join_words(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Join pieces to words: one starts with a blank, is punctuation, or is the first."""
    words = list[_Piece]()
    for piece in pieces:
        if not words or piece.text[:1].isspace() or piece.text.strip() in _PUNCTUATION:
            words.append(piece)
        else:
            words[-1] = _joined(words[-1], piece)
    return words


def _merge_punctuation(words: Sequence[_Piece]) -> list[_Piece]:
    """Join opening punctuation with the next word, then closing punctuation with the word before."""
    opened = list[_Piece]()
    for word in reversed(words):
        if opened and word.text.startswith(" ") and word.text.strip() in _BEFORE:
            opened[-1] = _joined(word, opened[-1])
        else:
            opened.append(word)
    closed = list[_Piece]()
    for word in reversed(opened):
        if closed and not closed[-1].text.endswith(" ") and word.text in _AFTER:
            closed[-1] = _joined(closed[-1], word)
        else:
            closed.append(word)
    return closed


def _joined(first: _Piece, second: _Piece) -> _Piece:
    return _Piece(first.text + second.text, first.first, second.end)
