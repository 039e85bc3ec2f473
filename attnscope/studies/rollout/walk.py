"""The page of a measure over layers: a walk whose matrices are the layers, or the layers up to each."""

from dataclasses import replace
from functools import partial

import numpy as np

from attnscope.findings.heads import Pooled, run_starts
from attnscope.findings.rollout import COLLAPSED, ROLLOUT_MEASURES, TokenRollout
from attnscope.findings.run import Report, TextReport
from attnscope.run.summary_plan import MOST_CELLS, RUNS
from attnscope.studies.explore.saved import SavedSource, SavedText
from attnscope.studies.explore.scenes import scene_of
from attnscope.studies.rollout.arithmetic import strongest
from attnscope.views.page.elements import text_of
from attnscope.views.page.walk import Walk, Wording
from attnscope.views.spans import Span
from attnscope.views.walk.scene import Number, RankedSources, Scene, WalkHead

_LISTED = 8  # sources of a row
_NAMED = 3  # sources that the answer names
_WORTH_NAMING = 0.005  # share of a source that it names beside the strongest
_SHARE = "Share of each token before the layers (column) in each token after them (row); a row sums to 1."


def rollout_walk(report: Report) -> Walk:
    """Return a walk through the matrices of a measure over layers, whose last one is shown first."""
    saved = {}
    for n, text in enumerate(report.texts):
        matrices = _matrices(text)
        saved[n, 0] = SavedText(partial(_scene, report, text, matrices), partial(_makers, matrices))
    source = SavedSource([text.text for text in report.texts], [report.mask.used], saved)
    return Walk(source, selects=(), wording=_wording(report.texts[0].rollouts[-1]))


def _matrices(text: TextReport) -> dict[tuple[int, int], WalkHead]:
    """Return the matrices by row and column of a grid: one below the other if they are few, else in reading order."""
    columns = max(1, round(float(np.sqrt(0.7 * len(text.rollouts)))))
    cells = len(text.rollouts) * len(text.queries) * len(text.keys)
    matrices = {}
    for n, rollout in enumerate(text.rollouts):
        is_last = rollout is text.rollouts[-1]
        matrices[divmod(n, columns)] = _matrix(text, rollout, exact=is_last or cells <= MOST_CELLS)
    return matrices


def _matrix(text: TextReport, rollout: TokenRollout, *, exact: bool) -> WalkHead:
    """Return a matrix as a head without scores; in place of one that is not exact, its map."""
    masked = frozenset(n for n, position in enumerate(text.queries) if position in rollout.nothing)
    pooled = None
    if not exact:
        queries, keys = (run_starts(size, RUNS) for size in rollout.matrix.shape)
        summed = np.add.reduceat(np.nan_to_num(rollout.matrix), keys[:-1], axis=1)
        sizes = np.diff(queries)[:, None]
        pooled = Pooled(queries, keys, np.add.reduceat(summed, queries[:-1], axis=0) / sizes)
    return WalkHead(
        rollout.layers[-1],
        "mean",
        stages={"weights": rollout.matrix},
        masked_rows=masked,
        sources=_sources(text, rollout),
        map=pooled,
        exact=exact,
        covers=rollout.name,
    )


def _sources(text: TextReport, rollout: TokenRollout) -> RankedSources:
    """Rank the sources of every row; as the report does if it has not all of them."""
    places = rollout.keys
    values = rollout.values
    if len(text.keys) == len(text.sources):
        eligible = np.array(
            [
                not (rollout.left_out and (token.special or n == 0))
                for n, token in enumerate(text.sources)
            ]
        )
        places, values = strongest(np.nan_to_num(rollout.matrix), eligible, _LISTED)
    return RankedSources("weight", places, {"weight": values}, rollout.left_out)


def _makers(matrices: dict[tuple[int, int], WalkHead]) -> dict[tuple[int, int], partial[WalkHead]]:
    return {indices: partial(replace, matrix) for indices, matrix in matrices.items()}


def _scene(report: Report, text: TextReport, matrices: dict[tuple[int, int], WalkHead]) -> Scene:
    rows = 1 + max(row for row, _ in matrices)
    columns = 1 + max(column for _, column in matrices)
    named: list[list[str]] = [[] for _ in range(rows)]
    for (row, _), matrix in sorted(matrices.items()):
        named[row].append(matrix.name)
    # a row is named by its first and last matrix; a column, which has matrices of all depths, has no name
    layers: list[Number] = [" … ".join(dict.fromkeys((names[0], names[-1]))) for names in named]
    heads: list[Number] = [""] * columns
    first = max(matrices)
    scene = scene_of(report, text, (layers, heads), {}, ("weights",))
    return replace(
        scene,
        first=first,
        answer=_answer(scene, text.rollouts[-1], matrices[first]),
        command=None,
        size=f"{text.rollouts[-1].name} {text.rollouts[-1].measure}",
        measure="share",
    )


def _answer(scene: Scene, rollout: TokenRollout, matrix: WalkHead) -> str:
    """Say what the token comes from that the page begins at."""
    row = len(scene.queries.positions) - 1 if scene.start is None else scene.start
    sources = matrix.sources
    assert sources is not None
    pairs = zip(sources.places[row, :_NAMED], sources.measures["weight"][row], strict=False)
    strong = [
        f"{_quoted(scene.sources.names[int(place)])} {share:.2f}"
        for rank, (place, share) in enumerate(pairs)
        if place >= 0 and (rank == 0 or share >= _WORTH_NAMING)
    ]
    token = _quoted(scene.queries.names[row])
    if not strong:
        return f"{token}, after layer {rollout.layers[-1]}, comes from nothing."
    begin = f"{token}, after layer {rollout.layers[-1]}, comes most from the tokens before layer {rollout.layers[0]} at "
    return f"{begin}{', '.join(strong)}.{_collapse(scene, rollout)}"


def _collapse(scene: Scene, rollout: TokenRollout) -> str:
    """Say that nearly all of every token comes from one token, if that is so, and what tells tokens apart."""
    collapse = rollout.collapse
    if collapse is None:
        return ""
    source = _quoted(scene.sources.names[collapse.source])
    said = f" The product has collapsed: from layer {collapse.layer} on, at least {COLLAPSED:g} of every token comes "
    said += (
        f"from {source}, and {collapse.share:.2f} of the last one after layer {rollout.layers[-1]}."
    )
    if rollout.before_collapse:
        said += f" The steps up to L{rollout.before_collapse.replace('-', '–')} still tell tokens apart."
    return said


def _quoted(name: Span) -> str:
    return f"“\u2068{text_of(name)}\u2069”"


def _wording(rollout: TokenRollout) -> Wording:
    """Say where a token comes from and goes, in place of what reads what."""
    measure = ROLLOUT_MEASURES.get(rollout.measure)
    meaning = rollout.measure
    if measure is not None:
        meaning = f"{measure.name}: {measure.meaning} ({measure.source})."
    words = {
        "begin": "Point at a word or tap it: what it comes from is coloured.",
        "pair": "is the token after the layers. Now click one that it comes from.",
        "heads": "Layers",
        "what": "where {} comes from",
        "who": "where {} goes",
        "reading": "comes from",
        "mostly": "comes most from",
        "readBy": "goes to",
        "goes": "goes to",
        "shows": "What every layer shows",
        "strong": "Layers with the largest share",
        "rest": "The share of all tokens that are weaker than those above.",
        "sqrt": "colours follow the root of shares",
        "linear": "colours follow shares",
        "log": "colours follow the logarithm of shares",
        "pin": "compare other layers with these (c)",
        "unpin": "no longer compare layers with these (c)",
        "another": "pinned: go to other layers, with [ and ] or a click, to compare them with these",
        "unmoved": "Less than 0.005 of the share of every row differs.",
    }
    glossary = {
        "query": "A token after the layers: a row of the matrix.",
        "key": "A token before the layers: a column of the matrix.",
        "head": f"The layers that the matrix is of. {meaning}",
        "weights": _SHARE,
        "weight": _SHARE,
        "reads": "The row of the chosen token: how much of it comes from each token.",
        "read": "The column of the chosen cell: how much of each token comes from this one.",
    }
    return Wording(words, {"weight": "share"}, glossary, {"weights": _SHARE}, ("follow", "explain"))
