"""Check every captured step against float64 arithmetic."""

from typing import TYPE_CHECKING

import numpy as np

from attnscope.findings.explain import ArithmeticCheck, ExplainedCell, Step
from attnscope.studies.explain import arithmetic
from attnscope.studies.explain.arithmetic import Numbers, check
from attnscope.studies.explain.location import QueryLocation

if TYPE_CHECKING:
    from attnscope.model.head_capture import HeadCapture
    from attnscope.model.stack import Stack


def model_checks(
    dtype: str,
    location: QueryLocation,
    stack: "Stack",
    capture: "HeadCapture",
    embedding: dict[str, Numbers],
    cells: list[ExplainedCell],
) -> list[ArithmeticCheck]:
    """Check every step up to queries and keys by recomputing it in float64 from its inputs.

    Args:
        embedding: The terms of the embedding.
        cells: The cells in depth.
    """
    captured = capture.captured
    checks = []
    if location.layer == 0:
        rows = np.stack(list(embedding.values()))
        formula, sizes = f"{' + '.join(embedding)} = sum", np.abs(rows).sum(0)
        checks.append(check("embedding", formula, rows.sum(0), captured["embedded"], sizes, dtype))
    checks += _norm_checks(dtype, location.layer, stack, captured)
    checks += _projection_checks(dtype, location, stack, capture, [cell.key for cell in cells])
    checks.append(_position_check(dtype, location, stack, captured))
    return checks


def row_checks(
    captured: dict[str, Numbers],
    scale: float,
    softcap: float | None,
    cells: list[ExplainedCell],
    weigh: tuple[Numbers, float, float] | None,
) -> list[ArithmeticCheck]:
    """Check every step from queries and keys on, in the same way.

    Args:
        weigh: Exponentials, their maximum and sum; None in a fully masked row.
    """
    products = max(sum(abs(part.product) for part in cell.parts) for cell in cells)
    totals, scores = np.array([cell.total for cell in cells]), np.array([cell.score for cell in cells])
    checks = [check("parts", "the parts' sum = q·k", totals, scores, np.array(products))]
    times_scale, _, scaled_sizes = arithmetic.scaled(captured["scores"], scale, softcap, captured.get("bias"))
    sizes = np.abs(times_scale) + np.abs(captured.get("bias", np.zeros(1)))
    formula = " ".join(
        ["q·k × scale", *["soft-capped"] * bool(softcap), *["+ bias"] * ("bias" in captured), "= scaled"]
    )
    checks.append(check("scaled", formula, scaled_sizes, captured["scaled"], sizes))
    return checks if weigh is None else checks + _output_checks(captured, weigh)


def _norm_checks(dtype: str, layer: int, stack: "Stack", captured: dict[str, Numbers]) -> list[ArithmeticCheck]:
    """Check the norms before the layer's queries."""
    from attnscope.model.head_capture import norm_parameters

    c, checks = stack.config, []
    if c.norm == "none":
        return []
    if layer == 0 and c.embedding_norm:
        again = arithmetic.norm(c, captured["embedded"], *norm_parameters(stack, None))
        checks.append(
            check("embedding norm", "the sum, normed = the embedding", again, captured["stream"][0], again, dtype)
        )
    if c.norm_order not in ("post", "output"):
        again = arithmetic.norm(c, captured["stream"][-1], *norm_parameters(stack, layer))
        sizes = np.abs(again) + 1
        checks.append(check("norm", "the residual, normed = x", again, captured["x"], sizes, dtype))
    return checks


def _projection_checks(
    dtype: str, location: QueryLocation, stack: "Stack", capture: "HeadCapture", keys: list[int]
) -> list[ArithmeticCheck]:
    """Check the projections of the query and of the keys that are explained in depth."""
    from attnscope.model.head_capture import projection

    captured, checks = capture.captured, []
    of_query = [(capture.captured["x"], captured["q"])]
    of_keys = [(capture.key_input(key), captured["k"][key]) for key in keys]
    step: Step
    for step, head, pairs in (("query", location.head, of_query), ("key", capture.group or 0, of_keys)):
        letter = step[0]
        weight, bias = projection(stack, location.layer, letter, head)
        projected = [arithmetic.project(x, weight, bias) for x, _ in pairs]
        again, sizes = (np.stack(part) for part in zip(*projected, strict=True))
        formula = f"W_{letter} x{' + b' if bias is not None else ''} = {letter}"
        checks.append(check(step, formula, again, np.stack([held for _, held in pairs]), sizes, dtype))
    return checks


def _position_check(
    dtype: str, location: QueryLocation, stack: "Stack", captured: dict[str, Numbers]
) -> ArithmeticCheck:
    """Check the query and keys that attention used, rotated if positions are rotary."""
    from attnscope.model.head_capture import rotary

    n, query = len(captured["scores"]), location.query
    q, k = captured.get("q_norm", captured["q"]), captured.get("k_norm", captured["k"])
    formula = "q and k above = q and k in q·k"
    tables = rotary(stack, location.layer, max(n, len(location.text_plan.tokens)))
    if tables is not None:
        cos, sin = tables
        q, k = arithmetic.rotate(q, cos[query], sin[query]), arithmetic.rotate(k, cos[:n], sin[:n])
        formula = "q and k, rotated = q and k in q·k"
    held = np.vstack((captured["q_used"], captured["k_used"]))
    return check("position", formula, np.vstack((q, k)), held, 2 * np.abs(held), dtype)


def _output_checks(captured: dict[str, Numbers], weigh: tuple[Numbers, float, float]) -> list[ArithmeticCheck]:
    """Check weights against exponentials, and the output against weights and values."""
    exponentials, maximum, total = weigh
    held = captured["weights"]
    if "sink" in captured:
        exponentials = np.append(exponentials, np.exp(captured["sink"][0] - maximum))
        held = np.append(held, captured["sink"][1])
    blend, sizes = captured["weights"] @ captured["v"], captured["weights"] @ np.abs(captured["v"])
    return [
        check("weights", "exponential / sum = weight", exponentials / total, held, held),
        check("output", "the sum of α·v = the output", blend, captured["output"], sizes),
    ]
