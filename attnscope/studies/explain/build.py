"""Build an Explanation from captured numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnscope.findings.explain import (
    ArithmeticCheck,
    ExplainedCell,
    Explanation,
    Reason,
    Rest,
    Rival,
    Row,
    Sink,
    SoftmaxEffects,
    Vector,
)
from attnscope.model.head_capture import RowCapture
from attnscope.request.run_config import RunConfig
from attnscope.run.text_plan import TextPlan
from attnscope.studies.explain import arithmetic
from attnscope.studies.explain.arithmetic import Numbers, check, entropy, softmax
from attnscope.studies.explain.origins import GivenOrigin, ModelOrigin, vector

Captured = Mapping[str, Numbers]
# exponentials, their maximum and their sum; None in a fully masked row
Softmax = tuple[Numbers, float, float] | None


def build(
    run: RunConfig,
    text_plan: TextPlan,
    capture: RowCapture,
    origin: ModelOrigin | GivenOrigin,
    about: dict[str, Any],
    rest_of_layer: tuple[list[Vector], list[ArithmeticCheck]],
) -> Explanation:
    """Return the whole explanation.

    Args:
        about: Its fields that are no numbers of the head.
        rest_of_layer: What follows attention in the layer, with its checks.
    """
    captured = capture.captured
    spec = capture.spec
    head = capture.head
    assert spec is not None and capture.group is not None
    cells = _cells(run, text_plan, capture, origin)
    keys = _shown(captured, run.window, [cell.key for cell in cells])
    softmax: Softmax = None
    if np.isfinite(captured["masked"]).any():
        softmax = arithmetic.exponentials(
            captured["masked"], captured["sink"][0] if "sink" in captured else None
        )
    blend = output = np.zeros(0)
    gate = gated = projected = sink = None
    if softmax is not None:
        blend = captured["weights"] @ captured["v"]
        output = captured["output"]
        passed_on = output
        if "gate" in captured:
            passed_on = captured["gate"] * output
            gate = vector("gate", "a factor for every dimension of the output", captured["gate"])
            gated = vector("gated output", "gate ⊙ output", passed_on)
        if "out" in captured:
            name = "output" if gated is None else gated.name
            made = f"W_O of head {head} × {name}: what this head adds to the residual stream"
            projected = vector("projected", made, captured["out"] @ passed_on)
        if "sink" in captured:
            logit, weight = captured["sink"].tolist()
            sink = Sink(logit, float(np.exp(logit - softmax[1])), weight)
    return Explanation(
        **about,
        query=capture.query,
        layer=capture.layer,
        head=head,
        group=capture.group,
        inputs=origin.inputs(),
        query_steps=origin.steps("q", capture.query, _steps(captured, "q")),
        scale=spec.scale,
        softcap=spec.softcap,
        bias=spec.bias_name,
        keys=keys,
        row=_row(captured, softmax, keys, spec.scale, spec.softcap),
        key_vectors=captured["k_used"][keys].astype(np.float32),
        value_vectors=captured["v"][keys].astype(np.float32),
        rest=_rest(captured, softmax, keys),
        maximum=None if softmax is None else softmax[1],
        exponential_sum=None if softmax is None else softmax[2],
        fully_masked=softmax is None,
        cells=cells,
        blend=blend.astype(np.float32),
        output=output.astype(np.float32),
        projected=projected,
        checks=[
            *origin.checks(cells),
            *_row_checks(captured, spec.scale, spec.softcap, cells, softmax),
            *rest_of_layer[1],
        ],
        sink=sink,
        gate=gate,
        gated=gated,
        effects=None if softmax is None else _effects(captured, spec.scale, spec.softcap),
        rest_of_layer=rest_of_layer[0],
    )


def _effects(captured: Captured, scale: float, softcap: float | None) -> SoftmaxEffects:
    """Return what the scale does to spread and entropy, and what a mask after the softmax would leave."""
    allowed = np.isfinite(captured["masked"])
    extra = captured["sink"][:1] if "sink" in captured else np.zeros(0)
    times_scale, _, _ = arithmetic.scaled(captured["scores"], scale, softcap, captured.get("bias"))
    _, _, unscaled = arithmetic.scaled(captured["scores"], 1.0, softcap, captured.get("bias"))
    everywhere = softmax(np.append(captured["scaled"], extra))[: len(allowed)]
    return SoftmaxEffects(
        spread=float(captured["scores"][allowed].std()),
        scaled_spread=float(times_scale[allowed].std()),
        entropy=entropy(softmax(np.append(captured["masked"][allowed], extra))),
        unscaled_entropy=entropy(softmax(np.append(unscaled[allowed], extra))),
        masked_after=None if allowed.all() else float(everywhere[allowed].sum()),
    )


def _steps(captured: Captured, letter: str, at: int | None = None) -> dict[str, Numbers]:
    """Return the query, or the key at a position, by step."""
    names = {"projected": letter, "normed": f"{letter}_norm", "used": f"{letter}_used"}
    if letter not in captured:  # given as attention takes it
        names["projected"] = f"{letter}_used"
    steps = {step: captured[name] for step, name in names.items() if name in captured}
    if at is None:
        return steps
    return {step: rows[at] for step, rows in steps.items()}


def _cells(
    run: RunConfig, text_plan: TextPlan, capture: RowCapture, origin: ModelOrigin | GivenOrigin
) -> list[ExplainedCell]:
    """Return the cells to explain in depth: those that the user named, or the one with the largest dot product."""
    captured = capture.captured
    query = _steps(captured, "q")
    allowed = np.isfinite(captured["masked"])
    if run.key is not None:
        reason_by_key = dict.fromkeys(text_plan.keys, "the key asked for")
    else:
        best = int(np.where(allowed | ~allowed.any(), captured["scores"], -np.inf).argmax())
        reason_by_key = {best: f"largest of the {'allowed' if allowed.any() else 'masked'} keys"}
    cells = []
    for key, why in reason_by_key.items():
        steps = _steps(captured, "k", key)
        unturned = query.get("normed", query["projected"]), steps.get("normed", steps["projected"])
        parts = arithmetic.parts(
            captured["q_used"],
            steps["used"],
            origin.lengths,
            unturned,
            interleaved=origin.interleaved,
        )
        total = float(sum(part.product for part in parts))
        cell = ExplainedCell(
            key,
            why,
            bool(allowed[key]),
            float(captured["scores"][key]),
            origin.steps("k", key, steps),
            parts,
            total,
            _reason(capture, origin, key),
        )
        cells.append(cell)
    return cells


def _reason(capture: RowCapture, origin: ModelOrigin | GivenOrigin, key: int) -> Reason | None:
    """Return how a key stands among those that the mask allows; None if it allows none."""
    captured = capture.captured
    allowed = np.isfinite(captured["masked"])
    if not allowed.any():
        return None
    scaled = captured["scaled"]
    rank = 1 + int((scaled[allowed] > scaled[key]).sum())
    others = np.where(allowed, scaled, -np.inf)
    others[key] = -np.inf
    rival = int(others.argmax())
    count = int(allowed.sum())
    if not np.isfinite(others[rival]):
        return Reason(rank, count, None)
    spec = capture.spec
    assert spec is not None
    bias = captured.get("bias")
    times_scale, capped, _ = arithmetic.scaled(captured["scores"], spec.scale, spec.softcap, bias)

    def ahead(values: Numbers) -> float:
        return float(values[key] - values[rival])

    content = ahead(times_scale)
    rotation = None
    if origin.lengths is not None:
        content = spec.scale * ahead(_unrotated(captured, len(origin.lengths), origin.factor))
        rotation = ahead(times_scale) - content
    compared = Rival(
        rival,
        score=float(captured["scores"][rival]),
        key_norm=float(np.linalg.norm(captured["k_used"][rival])),
        weight=float(captured["weights"][rival]),
        lead=ahead(scaled),
        content=content,
        rotation=rotation,
        cap=None if capped is None else ahead(capped) - ahead(times_scale),
        bias=None if bias is None else ahead(bias),
    )
    return Reason(rank, count, compared)


def _unrotated(captured: Captured, pairs: int, factor: float) -> Numbers:
    """Return q·k of every key as it is at a distance of 0, where the rotations of q and k cancel out."""
    q, k = (captured.get(f"{letter}_norm", captured[letter]) for letter in "qk")
    factors = np.ones(len(q))
    factors[: 2 * pairs] = factor**2
    unrotated: Numbers = k @ (q * factors)
    return unrotated


def _shown(captured: Captured, window: int | None, always: list[int]) -> list[int]:
    """Return the keys that are shown: those of the cells, allowed ones by weight, then the first masked ones."""
    n = len(captured["scores"])
    if window is None or n <= window:
        return list(range(n))
    order = np.lexsort((np.arange(n), -captured["weights"], ~np.isfinite(captured["masked"])))
    return sorted(list(dict.fromkeys([*always, *order.tolist()]))[: max(window, len(always))])


def _row(
    captured: Captured, softmax: Softmax, keys: list[int], scale: float, softcap: float | None
) -> Row:
    times_scale, capped, _ = arithmetic.scaled(
        captured["scores"], scale, softcap, captured.get("bias")
    )
    nothing = np.full(len(captured["scores"]), np.nan)
    columns = {
        "key_norms": np.linalg.norm(captured["k_used"], axis=-1),
        "value_norms": np.linalg.norm(captured["v"], axis=-1),
        "times_scale": times_scale,
        "capped": capped,
        "bias": captured.get("bias"),
        "content_position": captured.get("content_position"),
        "position_content": captured.get("position_content"),
        "exponentials": nothing if softmax is None else softmax[0],
        "weights": nothing if softmax is None else captured["weights"],
    } | {stage: captured[stage] for stage in ("scores", "scaled", "masked")}
    rounded: dict[str, Any] = {
        name: None if of is None else of[keys].astype(np.float32) for name, of in columns.items()
    }
    return Row(**rounded)


def _rest(captured: Captured, softmax: Softmax, keys: list[int]) -> Rest | None:
    left = np.ones(len(captured["scores"]), dtype=bool)
    left[keys] = False
    if not left.any():
        return None
    allowed = left & np.isfinite(captured["masked"])
    exponentials = 0.0 if softmax is None else float(softmax[0][allowed].sum())
    blend = (captured["weights"][allowed] @ captured["v"][allowed]).astype(np.float32)
    weight = float(captured["weights"][allowed].sum())
    return Rest(int(allowed.sum()), int((left & ~allowed).sum()), exponentials, weight, blend)


def _row_checks(
    captured: Captured,
    scale: float,
    softcap: float | None,
    cells: list[ExplainedCell],
    softmax: Softmax,
) -> list[ArithmeticCheck]:
    """Check every step from queries and keys on by recomputing it in float64 from its inputs."""
    products = max(sum(abs(part.product) for part in cell.parts) for cell in cells)
    totals = np.array([cell.total for cell in cells])
    scores = np.array([cell.score for cell in cells])
    checks = [check("parts", "the parts' sum = q·k", totals, scores, np.array(products))]
    times_scale, _, scaled = arithmetic.scaled(
        captured["scores"], scale, softcap, captured.get("bias")
    )
    sizes = np.abs(times_scale) + np.abs(captured.get("bias", np.zeros(1)))
    changed = "".join([" soft-capped" * bool(softcap), " + bias" * ("bias" in captured)])
    checks.append(
        check("scaled", f"q·k × scale{changed} = scaled", scaled, captured["scaled"], sizes)
    )
    if softmax is None:
        return checks
    exponentials, maximum, total = softmax
    held = captured["weights"]
    if "sink" in captured:
        exponentials = np.append(exponentials, np.exp(captured["sink"][0] - maximum))
        held = np.append(held, captured["sink"][1])
    blend = captured["weights"] @ captured["v"]
    sizes = captured["weights"] @ np.abs(captured["v"])
    checks.append(check("weights", "exponential / sum = weight", exponentials / total, held, held))
    return [
        *checks,
        check("output", "the sum of α·v = the output", blend, captured["output"], sizes),
    ]
