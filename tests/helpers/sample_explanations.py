"""Explanations made by hand: real arithmetic on invented vectors, so that every number is known."""

import numpy as np

from attnscope.findings.explain import (
    ArithmeticCheck,
    ExplainedCell,
    Explanation,
    Part,
    Reason,
    Rest,
    Rival,
    Row,
    Sink,
    Vector,
)
from attnscope.findings.provenance import MaskUse, Provenance
from tests.helpers.sample_reports import BANK, tokens

WIDTH, VALUES = 8, 6


def vector(name, origin, values, **more):
    return Vector(
        name, origin, float(np.linalg.norm(values)), np.asarray(values, dtype=np.float32), **more
    )


def parts(q, k, rotated):
    """Dimensions, or pairs of the first `rotated` dimensions, largest first."""
    half, found = rotated // 2, []
    for i in range(half):
        dims = [i, i + half]
        product = float((q[dims] * k[dims]).sum())
        found.append(
            Part(
                dims,
                q[dims].tolist(),
                k[dims].tolist(),
                product,
                6.2831853 * 10.0**i,
                product * 0.9,
            )
        )
    found += [
        Part([i], [float(q[i])], [float(k[i])], float(q[i] * k[i])) for i in range(rotated, len(q))
    ]
    return sorted(found, key=lambda part: -abs(part.product))


def explanation(
    *, spelled=None, context=None, query=1, layer=0, head=1, group=1, allowed=None, cells=None, keys=None, rotated=0,
    width=WIDTH, softcap=None, bias=False, weights="trained", broken=None, notes=(), what_if=None, inputs=None,
    sink=None,
):  # fmt: skip
    """One query: `allowed` is a function of (query, key) positions, `keys` are those shown, `cells` those in depth."""
    rng = np.random.default_rng(7)
    spelled = tokens(BANK.split()) if spelled is None else spelled
    sources = spelled if context is None else context
    n = len(sources)
    q, k, v = (
        rng.standard_normal(width),
        rng.standard_normal((n, width)),
        rng.standard_normal((n, VALUES)),
    )
    scores, scale = k @ q, width**-0.5
    times = scores * scale
    capped = None if softcap is None else softcap * np.tanh(times / softcap)
    added = -0.25 * np.abs(np.arange(n) - query) if bias else None
    scaled = (times if capped is None else capped) + (0 if added is None else added)
    see = np.array([allowed is None or allowed(query, key) for key in range(n)])
    masked = np.where(see, scaled, -np.inf)
    dead = not see.any()
    largest = None if dead else float(max(masked.max(), -np.inf if sink is None else sink))
    e = np.full(n, np.nan) if dead else np.exp(masked - largest)
    drained = 0.0 if dead or sink is None else float(np.exp(sink - largest))
    total = None if dead else float(e.sum()) + drained
    alpha = e / (1.0 if dead else total)
    named = cells is not None
    cells = cells or [int(np.where(see | dead, scores, -np.inf).argmax())]
    keys = list(range(n)) if keys is None else sorted({*keys, *cells})
    left = np.array([key not in keys for key in range(n)])
    return Explanation(
        provenance=Provenance("0.1.0", "2.13.0", "riverbank", "llama", "0123456789abcdef", "native", "float32", "cpu",
                              weights, 4, 4),
        mask=MaskUse("causal", "causal" if what_if is None else "bidirectional", what_if),
        text=BANK, pair=None, tokens=spelled, context=context, query=query, layer=layer, head=head, group=group,
        chosen="chosen automatically: most weight on other words (0.71)",
        inputs=_inputs(rng, query) if inputs is None else inputs,
        query_steps=_steps("q", query, q, rotated),
        scale=scale, softcap=softcap, bias="alibi" if bias else None, keys=keys,
        row=_row(keys, k, v, scores, times, capped, added, scaled, masked, e, alpha),
        key_vectors=k[keys].astype(np.float32), value_vectors=v[keys].astype(np.float32),
        rest=_rest(left, see, e, alpha, v), maximum=largest, exponential_sum=total, fully_masked=dead,
        cells=[_cell(key, see[key], scores[key], q, k[key], rotated, named,
                     _reason(key, see, k, scores, times, capped, added, scaled, alpha)) for key in cells],
        blend=(np.zeros(0) if dead else alpha @ v).astype(np.float32),
        output=(np.zeros(0) if dead else alpha @ v).astype(np.float32),
        projected=None if dead else vector("projected", f"W_O of head {head} × output", alpha @ v * 2),
        checks=_checks(layer, rotated, broken, dead), notes=list(notes),
        sink=None if sink is None or dead else Sink(sink, drained, drained / total),
    )  # fmt: skip


def _inputs(rng, query):
    token, position = rng.standard_normal(32), rng.standard_normal(32)
    return [
        vector("token", "row 101 of the token table", token),
        vector("position", f"learned for position {query}", position),
        vector("sum", "token + position", token + position),
        vector(
            "normed",
            "(sum − mean) / deviation 1.652 × weight + bias; mean −0.3741",
            (token + position) / 1.652,
        ),
    ]


def residuals(count):
    """The residual stream in front of a late layer."""
    rng = np.random.default_rng(1)
    made = ["the embedding", *(f"after layer {i}" for i in range(count - 1))]
    return [
        vector("residual", said, rng.standard_normal(32) * (i + 1)) for i, said in enumerate(made)
    ]


def _row(keys, k, v, *columns):
    scores, times, capped, added, scaled, masked, e, alpha = (
        None if column is None else column[keys].astype(np.float32) for column in columns
    )
    norms = [np.linalg.norm(matrix[keys], axis=1).astype(np.float32) for matrix in (k, v)]
    return Row(*norms, scores, times, capped, added, scaled, masked, e, alpha)


def _rest(left, see, e, alpha, v):
    if not left.any():
        return None
    more = left & see
    blend = (alpha[more] @ v[more]).astype(np.float32)
    return Rest(
        int(more.sum()),
        int((left & ~see).sum()),
        float(e[more].sum()),
        float(alpha[more].sum()),
        blend,
    )


def _reason(key, see, k, scores, times, capped, added, scaled, alpha):
    """Why a key has its weight; the rotation of a sample adds nothing that is known."""
    others = [other for other in np.flatnonzero(see) if other != key]
    if not see.any():
        return None
    rank = 1 + int((scaled[see] > scaled[key]).sum())
    if not others:
        return Reason(rank, int(see.sum()), None)
    rival = max(others, key=lambda other: scaled[other])

    def ahead(values):
        return None if values is None else float(values[key] - values[rival])

    more = {"cap": None if capped is None else ahead(capped) - ahead(times), "bias": ahead(added)}
    held = float(scores[rival]), float(np.linalg.norm(k[rival])), float(alpha[rival])
    return Reason(
        rank, int(see.sum()), Rival(int(rival), *held, ahead(scaled), ahead(times), **more)
    )


def _cell(key, allowed, score, q, k, rotated, named, reason):
    made = parts(q, k, rotated)
    chosen = (
        "the key asked for"
        if named
        else f"largest of the {'allowed' if allowed else 'masked'} keys"
    )
    steps = _steps("k", key, k, rotated)
    total = sum(part.product for part in made)
    return ExplainedCell(key, chosen, bool(allowed), float(score), steps, made, total, reason)


def _steps(letter, position, values, rotated):
    if not rotated:
        return [vector(letter, f"W_{letter} x", values, bias=True)]
    return [
        vector(letter, f"W_{letter} x", values[::-1], bias=True),
        vector(f"{letter} rotated", "rotated", values, position=position),
    ]


def _checks(layer, rotated, broken, dead):
    said = {
        **({} if layer else {"embedding": "token + position = sum"}),
        "norm": "the residual, normed = x",
        "query": "W_q x + b = q",
        "key": "W_k x + b = k",
        "position": "q and k, rotated = q and k in q·k"
        if rotated
        else "q and k above = q and k in q·k",
        "parts": "the parts' sum = q·k",
        "scaled": "q·k × scale = scaled",
        "weights": "exponential / sum = weight",
        "output": "the sum of α·v = the output",
    }
    names = [name for name in said if not dead or name not in ("weights", "output")]
    return [
        ArithmeticCheck(
            name, said[name], 0.3 if name == broken else 1.2e-7 * (name != "scaled"), 3.9e-6
        )
        for name in names
    ]
