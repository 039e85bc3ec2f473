"""Build an Explanation from captured numbers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from attnscope.findings.explain import ArithmeticCheck, ExplainedCell, Explanation, Rest, Row, Sink, Vector
from attnscope.findings.run import MaskUse, Provenance
from attnscope.request.run_config import RunConfig
from attnscope.studies.explain import arithmetic
from attnscope.studies.explain.arithmetic import Numbers
from attnscope.studies.explain.checks import model_checks, row_checks
from attnscope.studies.explain.location import QueryLocation
from attnscope.studies.explain.vectors import chain, inputs, vector

if TYPE_CHECKING:
    from attnscope.model.head_capture import HeadCapture, RowCapture
    from attnscope.model.stack import Ids, Stack


class Origin(Protocol):
    """Where the queries and keys of an explanation come from."""

    @property
    def lengths(self) -> Numbers | None:
        """Tokens that each rotated pair takes for a whole turn, (R / 2,); None where nothing is rotated."""

    def inputs(self) -> list[Vector]:
        """Return what enters the layer, in order; empty if that is not known."""

    def steps(self, letter: str, position: int, rows: Mapping[str, Numbers]) -> list[Vector]:
        """Return the query or a key step by step, as attention takes it last."""

    def checks(self, cells: list[ExplainedCell]) -> list[ArithmeticCheck]:
        """Check the steps up to the query and the keys in depth."""


class ModelOrigin:
    """A model: its embedding, norms and projections.

    Args:
        dtype: The type that the model ran in.
        location: Which query of which head.
        stack: The model.
        capture: The captured vectors and numbers.
        ids: Ids and segments of the text, (1, T) each.
    """

    def __init__(self, dtype: str, location: QueryLocation, stack: "Stack", capture: "HeadCapture", ids: "Ids") -> None:
        from attnscope.model.head_capture import embedding_parts, rotary_factor, wavelengths

        self._dtype, self._location, self._stack, self._capture = dtype, location, stack, capture
        self._embedding = embedding_parts(stack, ids, location.query)
        self._factor = rotary_factor(stack, location.layer, len(location.text_plan.tokens))
        self.lengths = wavelengths(stack, location.layer, len(location.text_plan.tokens))

    def inputs(self) -> list[Vector]:
        """Return what enters the layer."""
        location = self._location
        token = location.text_plan.tokens[location.query]
        found = self._capture.captured
        return inputs(self._stack.config, location.layer, token, location.query, self._embedding, found)

    def steps(self, letter: str, position: int, rows: Mapping[str, Numbers]) -> list[Vector]:
        """Return the query or a key as projected, normed and rotated."""
        return chain(self._stack.config, self._location.layer, letter, position, rows, self._factor)

    def checks(self, cells: list[ExplainedCell]) -> list[ArithmeticCheck]:
        """Check embedding, norms, projections and positions."""
        return model_checks(self._dtype, self._location, self._stack, self._capture, self._embedding, cells)


class GivenOrigin:
    """Queries and keys that were given, and the rotation that they still got.

    Args:
        capture: The captured vectors and numbers.
    """

    def __init__(self, capture: "RowCapture") -> None:
        self._capture, rotation = capture, capture.rotation
        frequencies = None if rotation is None else rotation.frequencies.cpu().double().numpy()
        self.lengths: Numbers | None = None if frequencies is None else 2 * np.pi / frequencies

    def inputs(self) -> list[Vector]:
        """Return nothing: what queries are made of was not given."""
        return []

    def steps(self, letter: str, position: int, rows: Mapping[str, Numbers]) -> list[Vector]:
        """Return the query or a key as it was given, and as it was rotated."""
        made = [vector(letter, "given", rows["projected"])]
        if self._capture.rotation is not None:
            factor = self._capture.rotation.factor
            times = "" if factor == 1 else f", × {factor:.4g}"
            made.append(vector(f"{letter} rotated", f"rotated by position {position}{times}", rows["used"]))
        return made

    def checks(self, cells: list[ExplainedCell]) -> list[ArithmeticCheck]:
        """Check the rotation."""
        rotation, found = self._capture.rotation, self._capture.captured
        if rotation is None:
            return []
        angles = np.arange(len(found["k"]))[:, None] * rotation.frequencies.cpu().double().numpy()
        angles = np.concatenate((angles, angles), axis=-1)
        cos, sin = np.cos(angles) * rotation.factor, np.sin(angles) * rotation.factor
        query = self._capture.query
        again = np.vstack(
            (arithmetic.rotate(found["q"], cos[query], sin[query]), arithmetic.rotate(found["k"], cos, sin))
        )
        held = np.vstack((found["q_used"], found["k_used"]))
        turns = 2.0**-22 * float(np.abs(angles).max(initial=1.0))  # angles are float32, and grow with the position
        sizes = 2 * np.abs(np.vstack((found["q"], found["k"]))).max(-1, keepdims=True) * (1 + turns / 2.0**-22)
        dtype = str(rotation.q.dtype).removeprefix("torch.")
        return [arithmetic.check("position", "q and k, rotated = those in q·k", again, held, sizes, dtype)]


def build(
    run: RunConfig,
    made: tuple[Provenance, MaskUse, str | None],
    location: QueryLocation,
    capture: "RowCapture",
    origin: Origin,
) -> Explanation:
    """Return the whole explanation.

    Args:
        run: What the user asked.
        made: What produced the numbers, under which mask, and the mask of this layer, if that is another.
        location: Which query of which head.
        capture: The captured vectors and numbers.
        origin: Where queries and keys come from.
    """
    found, spec = capture.captured, capture.spec
    assert spec is not None
    cells = _cells(run, location, capture, origin)
    keys = _shown(found, run.window, [cell.key for cell in cells])
    weigh = _softmax_terms(found)
    output = np.zeros(0) if weigh is None else found["output"]
    return Explanation(
        *made[:2],
        layer_mask=made[2],
        **_about(run, location, capture),
        inputs=origin.inputs(),
        query_steps=origin.steps("q", location.query, _steps(found, "q")),
        scale=spec.scale,
        softcap=spec.softcap,
        bias=spec.bias_name,
        keys=keys,
        row=_row(found, weigh, keys, spec.scale, spec.softcap),
        key_vectors=found["k_used"][keys].astype(np.float32),
        value_vectors=found["v"][keys].astype(np.float32),
        rest=_rest(found, weigh, keys),
        maximum=None if weigh is None else weigh[1],
        exponential_sum=None if weigh is None else weigh[2],
        fully_masked=weigh is None,
        cells=cells,
        blend=(output if weigh is None else found["weights"] @ found["v"]).astype(np.float32),
        output=output.astype(np.float32),
        projected=None if weigh is None else _projected(found, location.head),
        checks=[*origin.checks(cells), *row_checks(found, spec.scale, spec.softcap, cells, weigh)],
        sink=None if weigh is None else _sink(found, weigh[1]),
    )


def _about(run: RunConfig, location: QueryLocation, capture: "RowCapture") -> dict[str, Any]:
    """Describe which query of which head of which text is explained."""
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


def _projected(found: dict[str, Numbers], head: int) -> Vector | None:
    """Return the output after this head's part of the output projection, where there is one."""
    if "out" not in found:
        return None
    said = f"W_O of head {head} × output: what this head adds to the residual stream"
    return vector("projected", said, found["out"] @ found["output"])


def _softmax_terms(found: dict[str, Numbers]) -> tuple[Numbers, float, float] | None:
    """Return exponentials, their maximum and their sum; None in a fully masked row."""
    if not np.isfinite(found["masked"]).any():
        return None
    return arithmetic.exponentials(found["masked"], float(found["sink"][0]) if "sink" in found else None)


def _sink(found: dict[str, Numbers], maximum: float) -> Sink | None:
    """Return what the head's sink takes, where it has one."""
    if "sink" not in found:
        return None
    logit, weight = found["sink"].tolist()
    return Sink(logit, float(np.exp(logit - maximum)), weight)


def _steps(found: dict[str, Numbers], letter: str, at: int | None = None) -> dict[str, Numbers]:
    """Return the query, or the key at a position, by step."""
    names = {"projected": letter, "normed": f"{letter}_norm", "used": f"{letter}_used"}
    if letter not in found:  # given as attention takes it
        names["projected"] = f"{letter}_used"
    steps = {step: found[name] for step, name in names.items() if name in found}
    return steps if at is None else {step: rows[at] for step, rows in steps.items()}


def _cells(run: RunConfig, location: QueryLocation, capture: "RowCapture", origin: Origin) -> list[ExplainedCell]:
    """Return the cells in depth: those that the user named, or that of the largest dot product."""
    found, query = capture.captured, _steps(capture.captured, "q")
    allowed = np.isfinite(found["masked"])
    if run.key is not None:
        named = dict.fromkeys(location.text_plan.keys, "--key")
    else:
        best = int(np.where(allowed | ~allowed.any(), found["scores"], -np.inf).argmax())
        named = {best: f"largest of the {'allowed' if allowed.any() else 'masked'} keys"}
    cells = []
    for key, why in named.items():
        steps = _steps(found, "k", key)
        unturned = query.get("normed", query["projected"]), steps.get("normed", steps["projected"])
        parts = arithmetic.parts(found["q_used"], steps["used"], origin.lengths, unturned)
        total = float(sum(part.product for part in parts))
        chained = origin.steps("k", key, steps)
        cells.append(ExplainedCell(key, why, bool(allowed[key]), float(found["scores"][key]), chained, parts, total))
    return cells


def _shown(found: dict[str, Numbers], window: int | None, always: list[int]) -> list[int]:
    """Return the keys that are shown.

    The keys of the cells come first, then the allowed keys with the largest weights, then the first masked keys.
    """
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
