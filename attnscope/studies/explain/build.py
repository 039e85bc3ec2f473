"""Build an Explanation from captured numbers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from attnscope.findings.explain import ArithmeticCheck, ExplainedCell, Explanation, Rest, Row, Sink, Vector
from attnscope.findings.provenance import MaskUse, Provenance
from attnscope.request.run_config import RunConfig
from attnscope.studies.explain import arithmetic
from attnscope.studies.explain.arithmetic import Numbers
from attnscope.studies.explain.checks import model_checks, row_checks
from attnscope.studies.explain.location import QueryLocation
from attnscope.studies.explain.vectors import chain, inputs, rotated, vector

if TYPE_CHECKING:
    from attnscope.model.head_capture import HeadCapture, RowCapture
    from attnscope.model.stack import Ids, Stack


class Origin(Protocol):
    """Origin of the queries and keys of an explanation."""

    @property
    def lengths(self) -> Numbers | None:
        """Tokens per turn of each rotated pair, (R / 2,); None without rotation."""

    def inputs(self) -> list[Vector]:
        """Return the inputs of the layer, in order; empty if they are not known."""

    def steps(self, letter: str, position: int, rows: Mapping[str, Numbers]) -> list[Vector]:
        """Return the query or a key step by step, ending as attention uses it."""

    def checks(self, cells: list[ExplainedCell]) -> list[ArithmeticCheck]:
        """Check the steps up to the query and the keys in depth."""


class ModelOrigin:
    """A model: its embedding, norms and projections.

    Args:
        ids: Ids and segments of the text, (1, T) each.
    """

    def __init__(self, dtype: str, location: QueryLocation, stack: "Stack", capture: "HeadCapture", ids: "Ids") -> None:
        from attnscope.model.head_capture import embedding_parts, rotary_factor, wavelengths

        self._dtype, self._location, self._stack, self._capture = dtype, location, stack, capture
        self._embedding = embedding_parts(stack, ids, location.query)
        self._factor = rotary_factor(stack, location.layer, len(location.text_plan.tokens))
        self.lengths = wavelengths(stack, location.layer, len(location.text_plan.tokens))

    def inputs(self) -> list[Vector]:
        """Return the inputs of the layer."""
        location = self._location
        token = location.text_plan.tokens[location.query]
        captured = self._capture.captured
        return inputs(self._stack.config, location.layer, token, location.query, self._embedding, captured)

    def steps(self, letter: str, position: int, rows: Mapping[str, Numbers]) -> list[Vector]:
        """Return the query or a key as projected, normed and rotated."""
        return chain(self._stack.config, self._location.layer, letter, position, rows, self._factor)

    def checks(self, cells: list[ExplainedCell]) -> list[ArithmeticCheck]:
        """Check embedding, norms, projections and positions."""
        return model_checks(self._dtype, self._location, self._stack, self._capture, self._embedding, cells)


class GivenOrigin:
    """Given queries and keys, and the rotation applied to them."""

    def __init__(self, capture: "RowCapture") -> None:
        self._capture, rotation = capture, capture.rotation
        frequencies = None if rotation is None else rotation.frequencies.cpu().double().numpy()
        self.lengths: Numbers | None = None if frequencies is None else 2 * np.pi / frequencies

    def inputs(self) -> list[Vector]:
        """Return nothing: the inputs of given queries are not known."""
        return []

    def steps(self, letter: str, position: int, rows: Mapping[str, Numbers]) -> list[Vector]:
        """Return the query or a key as given, and as rotated."""
        vectors = [vector(letter, "given", rows["projected"])]
        if self._capture.rotation is not None:
            vectors.append(rotated(letter, position, rows["used"], self._capture.rotation.factor))
        return vectors

    def checks(self, cells: list[ExplainedCell]) -> list[ArithmeticCheck]:
        """Check the rotation."""
        rotation, captured = self._capture.rotation, self._capture.captured
        if rotation is None:
            return []
        angles = np.arange(len(captured["k"]))[:, None] * rotation.frequencies.cpu().double().numpy()
        angles = np.concatenate((angles, angles), axis=-1)
        cos, sin = np.cos(angles) * rotation.factor, np.sin(angles) * rotation.factor
        query = self._capture.query
        again = np.vstack(
            (arithmetic.rotate(captured["q"], cos[query], sin[query]), arithmetic.rotate(captured["k"], cos, sin))
        )
        held = np.vstack((captured["q_used"], captured["k_used"]))
        turns = 2.0**-22 * float(np.abs(angles).max(initial=1.0))  # angles are float32, and grow with the position
        sizes = 2 * np.abs(np.vstack((captured["q"], captured["k"]))).max(-1, keepdims=True) * (1 + turns / 2.0**-22)
        dtype = str(rotation.q.dtype).removeprefix("torch.")
        return [arithmetic.check("position", "q and k, rotated = q and k in q·k", again, held, sizes, dtype)]


def build(
    run: RunConfig,
    context: tuple[Provenance, MaskUse, str | None],
    location: QueryLocation,
    capture: "RowCapture",
    origin: Origin,
) -> Explanation:
    """Return the whole explanation.

    Args:
        context: Provenance, mask, and the mask of this layer if it differs.
    """
    captured, spec = capture.captured, capture.spec
    assert spec is not None
    cells = _cells(run, location, capture, origin)
    keys = _shown(captured, run.window, [cell.key for cell in cells])
    weigh = _softmax_terms(captured)
    output = np.zeros(0) if weigh is None else captured["output"]
    return Explanation(
        provenance=context[0],
        mask=context[1],
        layer_mask=context[2],
        **_about(run, location, capture),
        inputs=origin.inputs(),
        query_steps=origin.steps("q", location.query, _steps(captured, "q")),
        scale=spec.scale,
        softcap=spec.softcap,
        bias=spec.bias_name,
        keys=keys,
        row=_row(captured, weigh, keys, spec.scale, spec.softcap),
        key_vectors=captured["k_used"][keys].astype(np.float32),
        value_vectors=captured["v"][keys].astype(np.float32),
        rest=_rest(captured, weigh, keys),
        maximum=None if weigh is None else weigh[1],
        exponential_sum=None if weigh is None else weigh[2],
        fully_masked=weigh is None,
        cells=cells,
        blend=(output if weigh is None else captured["weights"] @ captured["v"]).astype(np.float32),
        output=output.astype(np.float32),
        projected=None if weigh is None else _projected(captured, location.head),
        checks=[*origin.checks(cells), *row_checks(captured, spec.scale, spec.softcap, cells, weigh)],
        sink=None if weigh is None else _sink(captured, weigh[1]),
    )


def _about(run: RunConfig, location: QueryLocation, capture: "RowCapture") -> dict[str, Any]:
    """Describe the explained query, head and text."""
    text, text_plan = run.texts[0], location.text_plan
    return {
        "text": text.text,
        "pair": text.pair,
        "tokens": text_plan.tokens,
        "context": text_plan.context,
        "notes": text_plan.notes,
        "query": location.query,
        "layer": location.layer,
        "head": location.head,
        "group": capture.group,
        "chosen": location.chosen,
    }


def _projected(captured: dict[str, Numbers], head: int) -> Vector | None:
    """Return the output after this head's part of the output projection, if the model has one."""
    if "out" not in captured:
        return None
    origin = f"W_O of head {head} × output: what this head adds to the residual stream"
    return vector("projected", origin, captured["out"] @ captured["output"])


def _softmax_terms(captured: dict[str, Numbers]) -> tuple[Numbers, float, float] | None:
    """Return exponentials, their maximum and their sum; None in a fully masked row."""
    if not np.isfinite(captured["masked"]).any():
        return None
    return arithmetic.exponentials(captured["masked"], float(captured["sink"][0]) if "sink" in captured else None)


def _sink(captured: dict[str, Numbers], maximum: float) -> Sink | None:
    """Return the weight on the head's sink, if it has one."""
    if "sink" not in captured:
        return None
    logit, weight = captured["sink"].tolist()
    return Sink(logit, float(np.exp(logit - maximum)), weight)


def _steps(captured: dict[str, Numbers], letter: str, at: int | None = None) -> dict[str, Numbers]:
    """Return the query, or the key at a position, by step."""
    names = {"projected": letter, "normed": f"{letter}_norm", "used": f"{letter}_used"}
    if letter not in captured:  # given as attention takes it
        names["projected"] = f"{letter}_used"
    steps = {step: captured[name] for step, name in names.items() if name in captured}
    return steps if at is None else {step: rows[at] for step, rows in steps.items()}


def _cells(run: RunConfig, location: QueryLocation, capture: "RowCapture", origin: Origin) -> list[ExplainedCell]:
    """Return the cells to explain in depth: those that the user named, or the one with the largest dot product."""
    captured, query = capture.captured, _steps(capture.captured, "q")
    allowed = np.isfinite(captured["masked"])
    if run.key is not None:
        named = dict.fromkeys(location.text_plan.keys, "--key")
    else:
        best = int(np.where(allowed | ~allowed.any(), captured["scores"], -np.inf).argmax())
        named = {best: f"largest of the {'allowed' if allowed.any() else 'masked'} keys"}
    cells = []
    for key, why in named.items():
        steps = _steps(captured, "k", key)
        unturned = query.get("normed", query["projected"]), steps.get("normed", steps["projected"])
        parts = arithmetic.parts(captured["q_used"], steps["used"], origin.lengths, unturned)
        total = float(sum(part.product for part in parts))
        chained = origin.steps("k", key, steps)
        cells.append(ExplainedCell(key, why, bool(allowed[key]), float(captured["scores"][key]), chained, parts, total))
    return cells


def _shown(captured: dict[str, Numbers], window: int | None, always: list[int]) -> list[int]:
    """Return the keys that are shown.

    The keys of the cells come first, then the allowed keys with the largest weights, then the first masked keys.
    """
    n = len(captured["scores"])
    if window is None or n <= window:
        return list(range(n))
    order = np.lexsort((np.arange(n), -captured["weights"], ~np.isfinite(captured["masked"])))
    return sorted(list(dict.fromkeys([*always, *order.tolist()]))[: max(window, len(always))])


def _row(
    captured: dict[str, Numbers],
    weigh: tuple[Numbers, float, float] | None,
    keys: list[int],
    scale: float,
    softcap: float | None,
) -> Row:
    times_scale, capped, _ = arithmetic.scaled(captured["scores"], scale, softcap, captured.get("bias"))
    nothing = np.full(len(captured["scores"]), np.nan)

    def shown(column: Numbers) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
        return column[keys].astype(np.float32)

    return Row(
        key_norms=shown(np.linalg.norm(captured["k_used"], axis=-1)),
        value_norms=shown(np.linalg.norm(captured["v"], axis=-1)),
        scores=shown(captured["scores"]),
        times_scale=shown(times_scale),
        capped=None if capped is None else shown(capped),
        bias=shown(captured["bias"]) if "bias" in captured else None,
        scaled=shown(captured["scaled"]),
        masked=shown(captured["masked"]),
        exponentials=shown(nothing if weigh is None else weigh[0]),
        weights=shown(nothing if weigh is None else captured["weights"]),
    )


def _rest(captured: dict[str, Numbers], weigh: tuple[Numbers, float, float] | None, keys: list[int]) -> Rest | None:
    left = np.ones(len(captured["scores"]), dtype=bool)
    left[keys] = False
    if not left.any():
        return None
    allowed = left & np.isfinite(captured["masked"])
    exponentials = 0.0 if weigh is None else float(weigh[0][allowed].sum())
    blend = (captured["weights"][allowed] @ captured["v"][allowed]).astype(np.float32)
    weight = float(captured["weights"][allowed].sum())
    return Rest(int(allowed.sum()), int((left & ~allowed).sum()), exponentials, weight, blend)
