"""The vectors that enter a layer and become queries and keys, with names and norms."""

from collections.abc import Mapping

import msgspec
import numpy as np

from attnscope.base.model_config import ModelConfig
from attnscope.findings.explain import Vector
from attnscope.findings.tokens import Token
from attnscope.studies.explain.arithmetic import Numbers


def vector(name: str, origin: str, values: Numbers, *, bias: bool = False) -> Vector:
    """Return a vector as plain data, with its norm in float64."""
    return Vector(name, origin, float(np.linalg.norm(values)), values.astype(np.float32), bias)


def rotated(letter: str, position: int, values: Numbers, factor: float, dimensions: str = "") -> Vector:
    """Return a query or key that a rotation by its position has made.

    Args:
        factor: Factor on the rotated dimensions.
        dimensions: Their name, if they are not all.
    """
    times = "" if factor == 1 else f", {dimensions}× {factor:.4g}"
    turned = vector(f"{letter} rotated", "rotated", values)
    return msgspec.structs.replace(turned, position=position, times=times)


def inputs(
    config: ModelConfig,
    layer: int,
    token: Token,
    query: int,
    embedding: Mapping[str, Numbers],
    captured: Mapping[str, Numbers],
) -> list[Vector]:
    """Return the inputs of a layer, in order; queries are computed from the last.

    Args:
        captured: See HeadCapture.
    """
    vectors = _embedded(config, token, query, embedding, captured) if layer == 0 else _stream(captured["stream"])
    if config.norm_order in ("pre", "sandwich") and config.norm != "none":
        vectors.append(vector("normed", _norm_made(config, vectors[-1].name, captured["stream"][-1]), captured["x"]))
    return vectors


def _embedded(
    config: ModelConfig, token: Token, query: int, embedding: Mapping[str, Numbers], captured: Mapping[str, Numbers]
) -> list[Vector]:
    scale = "" if config.embedding_scale is None else f" × {config.embedding_scale:.4g}"
    origins = {
        "token": f"row {token.id} of the token table{scale}",
        "segment": f"row {token.type_id} of the segment table",
        "position": f"{'sines and cosines of' if config.positions == 'sinusoidal' else 'learned for'} position {query}",
    }
    vectors = [vector(name, origins[name], values) for name, values in embedding.items()]
    if len(vectors) > 1:
        vectors.append(vector("sum", " + ".join(embedding), captured["embedded"]))
    if config.embedding_norm and config.norm != "none":
        vectors.append(
            vector("embedding", _norm_made(config, vectors[-1].name, captured["embedded"]), captured["stream"][0])
        )
    return vectors


def _stream(stream: Numbers) -> list[Vector]:
    """Return the residual stream at the input of each layer."""
    origins = ["the embedding", *(f"after layer {layer}" for layer in range(len(stream) - 1))]
    return [vector("residual", origin, values) for origin, values in zip(origins, stream, strict=True)]


def _norm_made(config: ModelConfig, name: str, x: Numbers) -> str:
    """Describe what a norm does to this vector, with its numbers; queries are computed from `x`."""
    weight = "(1 + weight)" if config.norm_plus_one else "weight"
    if config.norm == "layernorm":
        deviation = float(np.sqrt(x.var() + config.norm_eps))
        mean = f"{'−' if x.mean() < 0 else ''}{abs(x.mean()):.4g}"
        return f"({name} − mean) / deviation {deviation:.4g} × weight + bias; mean {mean}"
    root = float(np.sqrt((x**2).mean() + config.norm_eps))
    return f"{name} / its root mean square {root:.4g} × {weight}"


def chain(
    config: ModelConfig, layer: int, letter: str, position: int, rows: Mapping[str, Numbers], factor: float
) -> list[Vector]:
    """Return a query or key as projected, normed and rotated, as far as the model does so.

    Args:
        letter: `q` or `k`.
        rows: `projected`, `used`, and `normed` if the model has that norm, (E,) each.
        factor: Factor on the rotated dimensions.
    """
    vectors = [vector(letter, f"W_{letter} x", rows["projected"], bias=config.qkv_bias)]
    if "normed" in rows:
        over = "all heads" if config.qk_norm == "whole" else f"the head's {config.d_head} dimensions"
        vectors.append(vector(f"{letter} normed", f"{config.norm} over {over}", rows["normed"]))
    rope = config.rope_of(layer)
    if rope is not None:
        dimensions = "" if rope.fraction == 1 else "the rotated dimensions "
        vectors.append(rotated(letter, position, rows["used"], factor, dimensions))
    return vectors
