"""Where the query and keys of an explanation come from: a model's embedding, norms and projections, or given arrays.

Each gives the vectors before the dot product, with names and norms, and checks them against float64 arithmetic.
"""

from collections.abc import Mapping

import msgspec
import numpy as np

from attnscope.base.model_config import ModelConfig
from attnscope.findings.explain import ArithmeticCheck, ExplainedCell, Step, Vector
from attnscope.model import head_capture
from attnscope.model.head_capture import HeadCapture, RowCapture
from attnscope.model.stack import Ids, Stack
from attnscope.run.text_plan import TextPlan
from attnscope.studies.explain import arithmetic
from attnscope.studies.explain.arithmetic import Numbers, check


def vector(name: str, origin: str, values: Numbers, *, bias: bool = False) -> Vector:
    """Return a vector as plain data, with its norm in float64."""
    return Vector(name, origin, float(np.linalg.norm(values)), values.astype(np.float32), bias)


def _rotated(
    letter: str, position: int, values: Numbers, factor: float, dimensions: str = ""
) -> Vector:
    """Return a query or key that a rotation has made; `dimensions` names those with the factor, if they are not all."""
    times = "" if factor == 1 else f", {dimensions}× {factor:.4g}"
    turned = vector(f"{letter} rotated", "rotated", values)
    return msgspec.structs.replace(turned, position=position, times=times)


class ModelOrigin:
    """A model; `ids` are the ids and segments of the text, (1, T) each."""

    def __init__(
        self, dtype: str, text_plan: TextPlan, stack: Stack, capture: HeadCapture, ids: Ids
    ) -> None:
        self._dtype = dtype
        self._text_plan = text_plan
        self._stack = stack
        self._capture = capture
        self._config = stack.config
        self._captured = capture.captured
        at = stack, capture.layer, len(text_plan.tokens)
        self._embedding = head_capture.embedding_parts(stack, ids, capture.query)
        rotary = head_capture.rotary_numbers(*at)
        self.factor = 1.0 if rotary is None else rotary.factor  # on a rotated vector
        # tokens per turn of each rotated pair
        self.lengths = None if rotary is None else rotary.wavelengths
        self.interleaved = stack.config.rope.interleaved

    def inputs(self) -> list[Vector]:
        """Return the inputs of the layer, in order; queries are computed from the last."""
        c = self._config
        stream = self._captured["stream"]
        if self._capture.layer == 0:
            vectors = self._embedded()
        else:
            origins = [
                "the embedding",
                *(f"after layer {layer}" for layer in range(len(stream) - 1)),
            ]
            vectors = [
                vector("residual", origin, values)
                for origin, values in zip(origins, stream, strict=True)
            ]
        if c.norms_input(self._capture.layer):
            vectors.append(
                vector("normed", norm_made(c, vectors[-1].name, stream[-1]), self._captured["x"])
            )
        return vectors

    def _embedded(self) -> list[Vector]:
        c = self._config
        query = self._capture.query
        token = self._text_plan.tokens[query]
        scale = "" if c.embedding_scale is None else f" × {c.embedding_scale:.4g}"
        origins = {
            "token": f"row {token.id} of the token table{scale}",
            "segment": f"row {token.type_id} of the segment table",
            "position": f"{'sines and cosines of' if c.positions == 'sinusoidal' else 'learned for'} position {query}",
        }
        vectors = [vector(name, origins[name], values) for name, values in self._embedding.items()]
        if len(vectors) > 1:
            vectors.append(vector("sum", " + ".join(self._embedding), self._captured["embedded"]))
        if c.embedding_norm and c.norm != "none":
            made = norm_made(c, vectors[-1].name, self._captured["embedded"])
            vectors.append(vector("embedding", made, self._captured["stream"][0]))
        return vectors

    def steps(self, letter: str, position: int, rows: Mapping[str, Numbers]) -> list[Vector]:
        """Return a query or key (`q` or `k`) as projected, normed and rotated, as far as the model does so.

        `rows` are `projected`, `used`, and `normed` if the model has that norm, (E,) each.
        """
        c = self._config
        vectors = [vector(letter, f"W_{letter} x", rows["projected"], bias=c.qkv_bias)]
        if "normed" in rows:
            over = "all heads"
            if c.qk_norm != "whole":
                over = f"the head's {c.d_head} dimensions"
            vectors.append(vector(f"{letter} normed", f"{c.norm} over {over}", rows["normed"]))
        rope = c.rope_of(self._capture.layer)
        if rope is not None:
            dimensions = "" if rope.fraction == 1 else "the rotated dimensions "
            vectors.append(_rotated(letter, position, rows["used"], self.factor, dimensions))
        return vectors

    def checks(self, cells: list[ExplainedCell]) -> list[ArithmeticCheck]:
        """Check every step up to the query and the keys of these cells by recomputing it in float64 from its inputs."""
        checks = []
        if self._capture.layer == 0:
            rows = np.stack(list(self._embedding.values()))
            formula = f"{' + '.join(self._embedding)} = sum"
            sizes = np.abs(rows).sum(0)
            checks.append(
                check(
                    "embedding",
                    formula,
                    rows.sum(0),
                    self._captured["embedded"],
                    sizes,
                    self._dtype,
                )
            )
        keys = [cell.key for cell in cells]
        return [
            *checks,
            *self._norms(),
            *self._projections(keys),
            self._positions(),
            *self.value_check(keys),
        ]

    def value_check(self, keys: list[int]) -> list[ArithmeticCheck]:
        """Check the values of these keys; none for another engine, whose projection is not in the stack."""
        capture = self._capture
        if "attention" not in self._captured:
            return []
        weight, bias = head_capture.projection(self._stack, capture.layer, "v", capture.group or 0)
        projected = [arithmetic.project(capture.key_input(key), weight, bias) for key in keys]
        again, sizes = (np.stack(part) for part in zip(*projected, strict=True))
        formula = f"W_v x{' + b' if bias is not None else ''} = v"
        return [check("value", formula, again, self._captured["v"][keys], sizes, self._dtype)]

    def _norms(self) -> list[ArithmeticCheck]:
        c = self._config
        captured = self._captured
        layer = self._capture.layer
        checks = list[ArithmeticCheck]()
        if c.norm == "none":
            return []
        if layer == 0 and c.embedding_norm:
            again = arithmetic.norm(
                c, captured["embedded"], *head_capture.norm_parameters(self._stack, None)
            )
            formula = "the sum, normed = the embedding"
            held = captured["stream"][0]
            checks.append(check("embedding norm", formula, again, held, again, self._dtype))
        if c.norms_input(layer):
            again = arithmetic.norm(
                c, captured["stream"][-1], *head_capture.norm_parameters(self._stack, layer)
            )
            sizes = np.abs(again) + 1
            checks.append(
                check("norm", "the residual, normed = x", again, captured["x"], sizes, self._dtype)
            )
        return checks

    def _projections(self, keys: list[int]) -> list[ArithmeticCheck]:
        capture = self._capture
        checks = []
        of_query = [(self._captured["x"], self._captured["q"])]
        of_keys = [(capture.key_input(key), self._captured["k"][key]) for key in keys]
        step: Step
        for step, head, pairs in (
            ("query", capture.head, of_query),
            ("key", capture.group or 0, of_keys),
        ):
            letter = step[0]
            weight, bias = head_capture.projection(self._stack, capture.layer, letter, head)
            projected = [arithmetic.project(x, weight, bias) for x, _ in pairs]
            again, sizes = (np.stack(part) for part in zip(*projected, strict=True))
            formula = f"W_{letter} x{' + b' if bias is not None else ''} = {letter}"
            held = [held for _, held in pairs]
            checks.append(check(step, formula, again, np.stack(held), sizes, self._dtype))
        return checks

    def _positions(self) -> ArithmeticCheck:
        """Check the query and keys that attention used, rotated if positions are rotary."""
        captured = self._captured
        query = self._capture.query
        n = len(captured["scores"])
        q = captured.get("q_norm", captured["q"])
        k = captured.get("k_norm", captured["k"])
        formula = "q and k above = q and k in q·k"
        places = max(n, len(self._text_plan.tokens))
        rotary = head_capture.rotary_numbers(self._stack, self._capture.layer, places)
        if rotary is not None:
            q = arithmetic.rotate(
                q, rotary.cos[query], rotary.sin[query], interleaved=self.interleaved
            )
            k = arithmetic.rotate(k, rotary.cos[:n], rotary.sin[:n], interleaved=self.interleaved)
            formula = "q and k, rotated = q and k in q·k"
        held = np.vstack((captured["q_used"], captured["k_used"]))
        return check("position", formula, np.vstack((q, k)), held, 2 * np.abs(held), self._dtype)


def norm_made(config: ModelConfig, name: str, x: Numbers) -> str:
    """Describe what a norm does to this vector, with its numbers; queries are computed from `x`."""
    weight = "(1 + weight)" if config.norm_plus_one else "weight"
    if config.norm == "layernorm":
        deviation = float(np.sqrt(x.var() + config.norm_eps))
        mean = f"{'−' if x.mean() < 0 else ''}{abs(x.mean()):.4g}"
        bias = " + bias" if config.norm_bias else ""
        return f"({name} − mean) / deviation {deviation:.4g} × weight{bias}; mean {mean}"
    root = float(np.sqrt((x**2).mean() + config.norm_eps))
    return f"{name} / its root mean square {root:.4g} × {weight}"


class GivenOrigin:
    """Queries and keys of which nothing before is known, and the rotation applied to them; `origin` says whence."""

    interleaved = False  # pairs were put half a width apart

    def __init__(self, capture: RowCapture, origin: str) -> None:
        self._capture = capture
        self._origin = origin
        rotation = capture.rotation
        frequencies = None
        if rotation is not None:
            frequencies = rotation.frequencies.cpu().double().numpy()
        self.lengths: Numbers | None = None if frequencies is None else 2 * np.pi / frequencies
        self.factor = 1.0 if rotation is None else rotation.factor

    def inputs(self) -> list[Vector]:
        """Return nothing: the inputs of given queries are not known."""
        return []

    def steps(self, letter: str, position: int, rows: Mapping[str, Numbers]) -> list[Vector]:
        """Return the query or a key as given, and as rotated."""
        vectors = [vector(letter, self._origin, rows["projected"])]
        if self._capture.rotation is not None:
            vectors.append(_rotated(letter, position, rows["used"], self.factor))
        return vectors

    def checks(self, cells: list[ExplainedCell]) -> list[ArithmeticCheck]:
        """Check the rotation."""
        rotation = self._capture.rotation
        captured = self._capture.captured
        if rotation is None:
            return []
        angles = (
            np.arange(len(captured["k"]))[:, None] * rotation.frequencies.cpu().double().numpy()
        )
        angles = np.concatenate((angles, angles), axis=-1)
        cos = np.cos(angles) * rotation.factor
        sin = np.sin(angles) * rotation.factor
        query = self._capture.query
        again = np.vstack(
            (
                arithmetic.rotate(captured["q"], cos[query], sin[query]),
                arithmetic.rotate(captured["k"], cos, sin),
            )
        )
        held = np.vstack((captured["q_used"], captured["k_used"]))
        # angles are float32, and grow with the position
        turns = 2.0**-22 * float(np.abs(angles).max(initial=1.0))
        sizes = (
            2
            * np.abs(np.vstack((captured["q"], captured["k"]))).max(-1, keepdims=True)
            * (1 + turns / 2.0**-22)
        )
        dtype = str(rotation.q.dtype).removeprefix("torch.")
        return [check("position", "q and k, rotated = q and k in q·k", again, held, sizes, dtype)]
