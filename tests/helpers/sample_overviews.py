"""Reports of long texts made by hand: weights that are known in full, and the map that they come down to."""

import numpy as np
from msgspec.structs import replace

from attnscope.findings.heads import Pooled, Top
from attnscope.findings.row_statistics import Means, Rows
from attnscope.findings.run import TextReport
from tests.helpers.heads import stacked
from tests.helpers.row_statistics import group_means, runs
from tests.helpers.sample_reports import head_report, report, tokens, words

NONE = np.zeros(0, dtype=np.float32)


def weights_of(count, *, near=0.02, bidirectional=False, dead=()):
    """Rows that look at their neighbours and at the first token; those of `dead` see nothing."""
    rng = np.random.default_rng(0)
    at = np.arange(count)
    scores = rng.standard_normal((count, count)) * 2 - near * np.abs(at[:, None] - at[None])
    scores[:, 0] += 3
    weights = np.exp(scores) if bidirectional else np.tril(np.exp(scores))
    weights /= weights.sum(1, keepdims=True)
    weights[list(dead)] = np.nan
    return weights.astype(np.float32)


def starts(count, size):
    n = min(size, count)
    return [-(-i * count // n) for i in range(n + 1)]


def pooled_of(weights, size):
    """The map of these weights; a run of queries that see nothing is NaN."""
    means = group_means(weights, *(runs(n, size) for n in weights.shape))
    return Pooled(*(starts(n, size) for n in weights.shape), means.astype(np.float32))


def overview(count, *, size=64, spelled=None, left_out=(), special=(), notes=(), **kw):
    """A report of a text that is too long for a screen, with one head."""
    text = tokens(spelled or words(count), special=special)
    weights = weights_of(count, **kw)
    few = tokens(words(2))
    empty = np.zeros((0, 3), dtype=np.float32)
    mass = np.nan_to_num(weights).sum(0)
    head = head_report(few, few, [0, 1], [0, 1]) | dict(
        stages={},
        top=Top(empty.astype(np.int32), empty, empty, by="weight", left_out=list(left_out)),
        rows=Rows(*[NONE] * Rows.__struct_fields__.index("sink")),
        pooled=pooled_of(weights, size),
        columns=mass,
        means=Means(
            entropy=3.25,
            first=0.25,
            special=0.0,
            self=0.125,
            other=0.625,
            distance=12.5,
            within_16=0.5,
            within_64=0.75,
            within_256=0.875,
            within_1024=1.0,
        ),
    )
    said = " ".join(token.text for token in text)
    made = report(TextReport(said, None, text, None, 0, [], [], stacked([head]), list(notes)))
    return replace(made, provenance=replace(made.provenance, values="pooled"))
