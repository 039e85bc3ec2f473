"""What the words of a walk mean, each in one sentence: tooltips and help are made of it."""

from attnscope.findings.row_statistics import LAYER_STATISTICS, ROW_STATISTICS

GLOSSARY: dict[str, str] = {
    "query": "The token that reads: a row of the matrix.",
    "key": "A token that is read: a column of the matrix.",
    "head": "One of several attention patterns that a layer computes; layers (L) and heads (H) are numbered from 0.",
    "scores": "q·k, the product of query and key, before scaling.",
    "scaled": "Scores × scale, with soft-cap and position bias if the model has them.",
    "masked": "Scaled scores; cells that the mask forbids are −∞, and hatched.",
    "weights": "Softmax of the masked scores: how much of its output a query takes from each key; a row sums to 1, "
    "with its sink if the head has one.",
    "weight": "The share, from 0 to 1, that a query takes from a key; others call it attention, and formulas α.",
    "value": "weight·‖v‖ (α·‖v‖): the weight times the length of what is read.",
    "projected": "weight·‖v W‖ (α·‖v W‖): the length of what this head writes from there.",
    "content weight": "Weight on other words beyond what their distance, and what all rows give to the same word, predict.",
    "effect": "How far what the model predicts moves if the head's output is replaced by 0: KL(before ‖ after) in bits; "
    "of a model without an output head, how far its final states move. #1 is the head with the largest effect.",
    "moved": "Share of a row's weight that the second side puts elsewhere than the first: half the sum of all changes.",
    "sinks": "Tokens that heads rest on: the first, special ones, and sinks that a head has learned.",
    "reads": "The row of the chosen token: how much it takes from each token.",
    "read": "The column of the chosen cell: how much each token takes from this one.",
    **{statistic.name: statistic.meaning for statistic in ROW_STATISTICS},
}

# What the numbers of a head are called, where their names are no words.
_WORDS = {
    "distance": "mean distance",
    "max_score": "largest score",
    **{s.name: f"weight on {s.on}" for s in ROW_STATISTICS if s.on},
    **{s.name: f"weight on {s.on}" for s in LAYER_STATISTICS.values() if s.on},
    **{s.name: f"weight within {s.within:,} tokens" for s in ROW_STATISTICS if s.within},
}


def phrase_of(name: str) -> str:
    """Return what a number of a head is called: `weight within 16 tokens` for `within_16`."""
    return _WORDS.get(name, name.replace("_", " "))


def beside_phrase(name: str, meaning: str) -> str:
    """Return a meaning that stands beside what the number is called, and does not begin with that again."""
    rest = meaning.removeprefix(f"{phrase_of(name).capitalize()}; ")
    return rest[:1].upper() + rest[1:]
