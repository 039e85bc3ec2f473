"""What a walk found in; the Explanation, each step held against the one computed again, out."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnscope.config import RunConfig
from attnscope.explanation import arithmetic
from attnscope.explanation.arithmetic import Numbers, check
from attnscope.explanation.vectors import chain, inputs, vector
from attnscope.report import Cell, Check, Explanation, MaskUse, Provenance, Rest, Row
from attnscope.request import Page

if TYPE_CHECKING:
    from attnscope.model.stack import Ids, Stack
    from attnscope.model.walk import Walk


@dataclass(frozen=True)
class Place:
    """Which query of which head.

    Attributes:
        page: The text.
        query: Position of the query.
        layer: Number of the layer.
        head: Number of the query head.
        chosen: How they came to be chosen; None where the user named them.
    """

    page: Page
    query: int
    layer: int
    head: int
    chosen: str | None


def build(
    run: RunConfig, made: tuple[Provenance, MaskUse], place: Place, stack: "Stack", walk: "Walk", ids: "Ids"
) -> Explanation:
    """The whole explanation.

    Args:
        run: What the user asked.
        made: What produced the numbers, and under which mask.
        place: Which query of which head.
        stack: The model.
        walk: What was found along the way.
        ids: Ids and segments of the text, (1, T) each.
    """
    from attnscope.model.walk import embedding_parts

    c, found, page = stack.config, walk.found, place.page
    embedding = embedding_parts(stack, ids, place.query)
    cells = _cells(run, place, stack, walk)
    keys = _shown(found, run.window, [cell.key for cell in cells])
    weigh = _weigh(found)
    projected = None
    if "out" in found and weigh is not None:
        said = f"W_O of head {place.head} × output: what this head adds to the residual stream"
        projected = vector("projected", said, found["out"] @ found["output"])
    nothing = np.zeros(0)
    return Explanation(
        *made,
        text=run.texts[0].text,
        pair=run.texts[0].pair,
        tokens=page.tokens,
        context=page.context,
        query=place.query,
        layer=place.layer,
        head=place.head,
        group=walk.group,
        chosen=place.chosen,
        inputs=inputs(c, place.layer, page.tokens[place.query], place.query, embedding, found),
        query_steps=chain(c, place.layer, "q", place.query, _steps(found, "q")),
        scale=c.attention_scale,
        softcap=c.softcap,
        bias="alibi" if c.positions == "alibi" else None,
        keys=keys,
        row=_row(found, weigh, keys, c.attention_scale, c.softcap),
        key_vectors=found["k_used"][keys].astype(np.float32),
        value_vectors=found["v"][keys].astype(np.float32),
        rest=_rest(found, weigh, keys),
        maximum=None if weigh is None else weigh[1],
        exponential_sum=None if weigh is None else weigh[2],
        fully_masked=weigh is None,
        cells=cells,
        blend=(nothing if weigh is None else found["weights"] @ found["v"]).astype(np.float32),
        output=(nothing if weigh is None else found["output"]).astype(np.float32),
        projected=projected,
        checks=_checks(run.dtype, place, stack, walk, embedding, cells, weigh),
        notes=page.notes,
    )


def _weigh(found: dict[str, Numbers]) -> tuple[Numbers, float, float] | None:
    """Exponentials, their maximum and sum; None in a fully masked row."""
    return arithmetic.exponentials(found["masked"]) if np.isfinite(found["masked"]).any() else None


def _steps(found: dict[str, Numbers], letter: str, at: int | None = None) -> dict[str, Numbers]:
    """The query, or the key at a position, by step."""
    names = {"projected": letter, "normed": f"{letter}_norm", "used": f"{letter}_used"}
    steps = {step: found[name] for step, name in names.items() if name in found}
    return steps if at is None else {step: rows[at] for step, rows in steps.items()}


def _cells(run: RunConfig, place: Place, stack: "Stack", walk: "Walk") -> list[Cell]:
    """The cells in depth: those that the user named, or that of the largest dot product."""
    from attnscope.model.walk import wavelengths

    found, lengths = walk.found, wavelengths(stack, place.layer)
    allowed = np.isfinite(found["masked"])
    if run.key is not None:
        named = dict.fromkeys(place.page.keys, "--key")
    else:
        best = int(np.where(allowed | ~allowed.any(), found["scores"], -np.inf).argmax())
        named = {best: f"the largest of the {'visible' if allowed.any() else 'barred'} ones"}
    cells = []
    for key, why in named.items():
        steps = _steps(found, "k", key)
        unturned = found.get("q_norm", found["q"]), steps.get("normed", steps["projected"])
        parts = arithmetic.parts(found["q_used"], steps["used"], lengths, unturned)
        total = float(sum(part.product for part in parts))
        chained = chain(stack.config, place.layer, "k", key, steps)
        cells.append(Cell(key, why, bool(allowed[key]), float(found["scores"][key]), chained, parts, total))
    return cells


def _shown(found: dict[str, Numbers], window: int | None, always: list[int]) -> list[int]:
    """The keys that are shown: the cells' own, then the heaviest allowed ones, then the first of the barred."""
    n = len(found["scores"])
    if window is None or n <= window:
        return list(range(n))
    order = np.lexsort((np.arange(n), -found["weights"], ~np.isfinite(found["masked"])))
    return sorted(list(dict.fromkeys([*always, *order.tolist()]))[: max(window, len(always))])


def _row(
    found: dict[str, Numbers],
    weigh: tuple[Numbers, float, float] | None,
    keys: list[int],
    scale: float,
    softcap: float | None,
) -> Row:
    times_scale, capped, _ = arithmetic.scaled(found["scores"], scale, softcap, found.get("bias"))
    nothing = np.full(len(found["scores"]), np.nan)

    def shown(column: Numbers) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
        return column[keys].astype(np.float32)

    return Row(
        key_norms=shown(np.linalg.norm(found["k_used"], axis=-1)),
        value_norms=shown(np.linalg.norm(found["v"], axis=-1)),
        scores=shown(found["scores"]),
        times_scale=shown(times_scale),
        capped=None if capped is None else shown(capped),
        bias=shown(found["bias"]) if "bias" in found else None,
        scaled=shown(found["scaled"]),
        masked=shown(found["masked"]),
        exponentials=shown(nothing if weigh is None else weigh[0]),
        weights=shown(nothing if weigh is None else found["weights"]),
    )


def _rest(found: dict[str, Numbers], weigh: tuple[Numbers, float, float] | None, keys: list[int]) -> Rest | None:
    left = np.ones(len(found["scores"]), dtype=bool)
    left[keys] = False
    if not left.any():
        return None
    allowed = left & np.isfinite(found["masked"])
    exponentials = 0.0 if weigh is None else float(weigh[0][allowed].sum())
    blend = (found["weights"][allowed] @ found["v"][allowed]).astype(np.float32)
    weight = float(found["weights"][allowed].sum())
    return Rest(int(allowed.sum()), int((left & ~allowed).sum()), exponentials, weight, blend)


def _checks(
    dtype: str,
    place: Place,
    stack: "Stack",
    walk: "Walk",
    embedding: dict[str, Numbers],
    cells: list[Cell],
    weigh: tuple[Numbers, float, float] | None,
) -> list[Check]:
    """Every step, done again in float64 from what went into it."""
    from attnscope.model.walk import projection

    found, c = walk.found, stack.config
    checks = []
    if place.layer == 0 and len(embedding) > 1:
        rows = np.stack(list(embedding.values()))
        said, sizes = f"{' + '.join(embedding)} = the sum", np.abs(rows).sum(0)
        checks.append(check("embedding", said, rows.sum(0), found["embedded"], sizes, dtype))
    weight, bias = projection(stack, place.layer, place.head)
    again, sizes = weight @ found["x"], np.abs(weight) @ np.abs(found["x"])
    if bias is not None:
        again, sizes = again + bias, sizes + np.abs(bias)
    said = "W_q x + b = q" if bias is not None else "W_q x = q"
    checks.append(check("query", said, again, found["q"], sizes, dtype))
    checks.append(_position_check(found, place.query, dtype))
    products = max(sum(abs(part.product) for part in cell.parts) for cell in cells)
    totals, scores = np.array([cell.total for cell in cells]), np.array([cell.score for cell in cells])
    checks.append(check("parts", "the parts' sum = q·k", totals, scores, np.array(products)))
    times_scale, _, whole = arithmetic.scaled(found["scores"], c.attention_scale, c.softcap, found.get("bias"))
    sizes = np.abs(times_scale) + np.abs(found.get("bias", np.zeros(1)))
    said = " ".join(["q·k × scale", *["soft-capped"] * bool(c.softcap), *["+ bias"] * ("bias" in found), "= scaled"])
    checks.append(check("scaled", said, whole, found["scaled"], sizes))
    return checks if weigh is None else checks + _output_checks(found, weigh)


def _position_check(found: dict[str, Numbers], query: int, dtype: str) -> Check:
    """The query and every key above are those that attention took, rotated where positions are rotary."""
    n = len(found["scores"])
    q, k = found.get("q_norm", found["q"]), found.get("k_norm", found["k"])
    said = "q and k above = those in q·k"
    if "cos" in found:
        cos, sin = found["cos"], found["sin"]
        q, k = arithmetic.rotate(q, cos[query], sin[query]), arithmetic.rotate(k, cos[:n], sin[:n])
        said = "q and k, rotated = those in q·k"
    held = np.vstack((found["q_used"], found["k_used"]))
    return check("position", said, np.vstack((q, k)), held, 2 * np.abs(held), dtype)


def _output_checks(found: dict[str, Numbers], weigh: tuple[Numbers, float, float]) -> list[Check]:
    """Weights from exponentials, and the output from weights and values."""
    exponentials, _, total = weigh
    blend, sizes = found["weights"] @ found["v"], found["weights"] @ np.abs(found["v"])
    return [
        check("weights", "exponential / sum = weight", exponentials / total, found["weights"], np.ones(1)),
        check("output", "the sum of α·v = the output", blend, found["output"], sizes),
    ]
