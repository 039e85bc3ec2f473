"""Words for how much cutting a head changes: they follow from the size of the change, in its own unit."""

import sys
from collections.abc import Sequence
from typing import NamedTuple

from attnscope.views.numbers import number_text
from attnscope.views.pictures import percent

# Smallest size that every word is for, largest first. By Pinsker's inequality, KL of so many bits moves the probability
# of no token by more than 18.6, 8.3 and 2.6 percentage points; a state that changes by so much of its length turns by at
# most 11.5, 2.9 and 0.6 degrees; so much of a logit multiplies the odds between two tokens by 2.72, 1.22 and 1.02.
_LEAST = {
    "kl": (0.1, 0.02, 0.002),
    "hidden": (0.2, 0.05, 0.01),
    "target": (1.0, 0.2, 0.02),
}
_WORDS = ("Much", "Somewhat", "Little", "Hardly", "Not at all")
_NAMED = 3  # of what ties
# What follows an effect of every measure; a page writes those that are shares in percent.
ENDINGS = {"kl": " bits", "hidden": "%", "target": ""}

# The words in a sentence.
WORDS_OF_EFFECTS = ", ".join(
    f"{word} from {bits:g} bits on (states: {100 * share:g} %)"
    for word, bits, share in zip(_WORDS, _LEAST["kl"], _LEAST["hidden"], strict=False)
)
WORDS_OF_EFFECTS += f", {_WORDS[3]} below."


class EffectWord(NamedTuple):
    """A word for sizes from `least` on."""

    least: float
    word: str


def effect_words(measure: str) -> list[EffectWord]:
    """Return the words for effects of a measure (`kl`, `hidden` or `target`), that for the largest ones first."""
    leasts = (*_LEAST[measure], sys.float_info.min, 0.0)
    return [EffectWord(least, word) for least, word in zip(leasts, _WORDS, strict=True)]


def effect_text(effect: float, measure: str) -> str:
    """Write an effect with its unit; a number without a measure as itself."""
    ending = ENDINGS.get(measure, "")
    return percent(effect) if ending == "%" else f"{number_text(effect, 2)}{ending}"


def tied_names(names: Sequence[str]) -> str:
    """Name what has the same number, such as heads, and count what there is no room for: `L0H0, L0H1 and 9 more`."""
    if len(names) <= _NAMED:
        return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"


def verdict_text(effect: float, measure: str) -> str:
    """Say whether an effect is large, and its size: `little, 0.014 bits`, or of states `somewhat, 5.6 %`."""
    return f"{effect_word(effect, measure).lower()}, {effect_text(effect, measure)}"


def matters_text(name: str, effect: float, measure: str) -> str:
    """Say in a sentence whether what is cut matters: `L13H8 matters little`; its name is `these` of several cuts."""
    word = effect_word(effect, measure).lower()
    verb = "matter" if name == "these" else "matters"
    return f"{name} {word} {verb}" if word == "hardly" else f"{name} {verb} {word}"


def effect_word(effect: float, measure: str) -> str:
    """Return the word for an effect, which is not NaN: `Much`, `Somewhat`, `Little`, `Hardly` or `Not at all`."""
    return next(word for least, word in effect_words(measure) if abs(effect) >= least)
