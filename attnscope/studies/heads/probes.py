"""Draw the sequences of random tokens that heads are measured on. Never imports torch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnscope.checkpoints.source import ModelSource
from attnscope.checkpoints.tokenization.hugging_face import FileTokenizer
from attnscope.findings.tokens import Token

REPEATED = 50  # number of different tokens of a sequence that is repeated once
NEEDLE = 10  # tokens of a needle
TRIPLED = 16  # number of different tokens of a sequence that is repeated twice
_FEWEST = 4  # smallest number of different tokens; with fewer there is nothing to find


@dataclass(frozen=True)
class Probe:
    """A sequence of tokens, with the key that each role looks for."""

    tokens: list[Token]
    # role to (rows, keys), position by position: a head has the role if rows[i] attends to keys[i]
    targets: dict[str, tuple[range, range]]
    draw: int  # number of the draw among sequences of its kind


@dataclass(frozen=True)
class RandomProbes:
    """Sequences of random tokens."""

    # the sequences: those repeated once, then those whose needle comes again, then those repeated twice
    probes: list[Probe]
    # number of different tokens in a sequence that is repeated once; 0 if there is none
    repeated: int
    needle: int  # number of tokens of each needle; 0 if the model is too small
    # number of different tokens in a sequence that is repeated twice; 0 if the model is too small
    tripled: int
    before: list[Token]  # special tokens in front
    after: list[Token]  # special tokens behind


def special_frame(source: ModelSource, tokens: Sequence[Token]) -> tuple[list[Token], list[Token]]:
    """Return the special tokens that a text has in front and behind.

    If the tokenizer puts no special token before a text, but the model's config names the token of its begin, that one
    is used, since many heads attend to it by default.
    """
    added = [token.special and token.start is None for token in tokens]
    text_start = added.index(False) if False in added else 0
    last = len(tokens) - (added[::-1].index(False) if False in added else 0)
    before = list(tokens[:text_start])
    after = list(tokens[last:])
    if not before and source.begin is not None and isinstance(source.tokenizer, FileTokenizer):
        before = [source.tokenizer.special_token(source.begin)]
    return before, after


def draw_probes(
    source: ModelSource, frame: tuple[list[Token], list[Token]], draws: int, seed: int
) -> RandomProbes:
    """Draw sequences from the model's vocabulary, without special and unknown tokens.

    A sequence is as long as 50 tokens and their repetition, or as the model allows. In one with a needle, the same
    number of tokens are random, apart from ten that come twice: somewhere in the middle, and at the end. Three copies
    of 16 tokens are a third kind. There are `draws` sequences of each.
    """
    before, after = frame
    ordinary = source.tokenizer.ordinary_ids() if source.only_media is None else []
    ids = np.array(
        [token_id for token_id in ordinary if token_id < source.config.vocab_size], dtype=np.int64
    )
    limit = source.config.max_positions
    if limit is None:
        room = 2 * REPEATED
    else:
        room = min(2 * REPEATED, limit - len(before) - len(after))
    half = min(room // 2, len(ids))
    half = half if half >= _FEWEST else 0
    needle = min(NEEDLE, 2 * half // 4, len(ids) - 1)
    needle = needle if needle >= _FEWEST else 0
    third = min(TRIPLED, room // 3, len(ids))
    third = third if third >= _FEWEST else 0
    random = np.random.default_rng(seed)
    start = len(before)
    type_id = before[0].type_id if before else 0

    def probe(numbers: np.ndarray, targets: dict[str, tuple[range, range]], draw: int) -> Probe:
        drawn_tokens = [Token(int(token_id), "", "", type_id=type_id) for token_id in numbers]
        return Probe([*before, *drawn_tokens, *after], targets, draw)

    probes = []
    for draw in range(draws if half else 0):
        copy = random.choice(ids, half, replace=False)
        rows = range(start + half, start + 2 * half)
        targets = {
            "duplicate": (rows, range(start, start + half)),
            "induction": (rows, range(start + 1, rows.start + 1)),
        }
        probes.append(probe(np.concatenate((copy, copy)), targets, draw))
    for draw in range(draws if needle else 0):
        wanted = random.choice(ids, needle, replace=False)
        other_ids = random.choice(np.setdiff1d(ids, wanted), 2 * half - 2 * needle)
        # at least a needle's length before its copy
        depth = int(random.integers(0, len(other_ids) - needle + 1))
        rows = range(start + 2 * half - needle, start + 2 * half - 1)
        keys = range(start + depth + 1, start + depth + needle)
        numbers = np.concatenate((other_ids[:depth], wanted, other_ids[depth:], wanted))
        probes.append(probe(numbers, {"retrieval": (rows, keys)}, draw))
    for draw in range(draws if third else 0):
        copy = random.choice(ids, third, replace=False)
        rows = range(start + 2 * third, start + 3 * third)
        targets = {"second-order": (rows, range(start + 1, start + third + 1))}
        probes.append(probe(np.tile(copy, 3), targets, draw))
    return RandomProbes(probes, half, needle, third, before, after)
