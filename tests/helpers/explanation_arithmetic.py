"""Recompute an Explanation's arithmetic from its own plain data, without relying on its checks."""

import numpy as np

EPSILON = 2.0**-23
ROUNDINGS = 8


def close(made, held, terms, roundings=ROUNDINGS):
    """Equal but for float32 rounding of a sum whose terms are this large together."""
    return float(
        np.max(np.abs(np.asarray(made, np.float64) - held))
    ) <= roundings * EPSILON * float(np.max(terms))


def assert_sums(e):
    """Every part sums to its whole, from dot products to output."""
    row = e.row
    assert e.keys == list(range(len(e.sources)))
    for cell in e.cells:
        products = [part.product for part in cell.parts]
        assert sorted(dim for part in cell.parts for dim in part.dims) == list(
            range(e.key_vectors.shape[1])
        )
        assert close(sum(products), cell.score, sum(map(abs, products)))
        assert cell.total == sum(products)
        for part in cell.parts:
            assert part.product == np.dot(part.q, part.k)
        assert [abs(p) for p in products] == sorted(map(abs, products), reverse=True)
    q = e.query_steps[-1].values.astype(np.float64)
    k = e.key_vectors.astype(np.float64)
    assert close(k @ q, row.scores, np.abs(k) @ np.abs(q))
    scaled = row.scores.astype(np.float64) * e.scale
    if e.softcap is not None:
        scaled = e.softcap * np.tanh(scaled / e.softcap)
    sizes = np.abs(scaled)
    parts = [part for part in (row.content_position, row.position_content) if part is not None]
    assert bool(parts) == (e.bias == "disentangled")
    if parts:
        np.testing.assert_allclose(
            np.sum(parts, axis=0), row.bias, rtol=0, atol=1e-5 * max(1.0, np.abs(row.bias).max())
        )
    if row.bias is not None:
        scaled, sizes = scaled + row.bias, sizes + np.abs(row.bias)
    assert close(scaled, row.scaled, sizes)
    allowed = np.isfinite(row.masked)
    assert (row.masked[allowed] == row.scaled[allowed]).all()
    if e.fully_masked:
        assert not allowed.any() and e.maximum is None and len(e.output) == 0
        return
    logits = row.masked.astype(np.float64)
    if e.sink is not None:
        logits = np.append(logits, e.sink.logit)
    exponentials = np.exp(logits - logits.max())
    total = exponentials.sum()
    if e.sink is not None:
        assert close(exponentials[-1], e.sink.exponential, 1)
        assert close(exponentials[-1] / total, e.sink.weight, e.sink.weight)
        assert close(row.weights.sum(dtype=np.float64) + e.sink.weight, 1, 1)
        exponentials = exponentials[:-1]
    assert close(exponentials, row.exponentials, 1)
    assert close(total, e.exponential_sum, total)
    assert close(exponentials / total, row.weights, row.weights.max())
    assert (row.weights[~allowed] == 0).all()
    v, weights = e.value_vectors.astype(np.float64), row.weights.astype(np.float64)
    assert close(weights @ v, e.output, weights @ np.abs(v))
    assert close(e.blend, e.output, weights @ np.abs(v))


def assert_inputs_sum(e):
    """Layer 0: the embedding is the sum of its parts."""
    named = {vector.name: vector.values.astype(np.float64) for vector in e.inputs}
    parts = [named[name] for name in ("token", "segment", "position") if name in named]
    if len(parts) > 1:
        assert close(sum(parts), named["sum"], sum(np.abs(part) for part in parts))


def failed(e):
    """Names of the checks that do not hold."""
    return {check.name for check in e.checks if not check.holds}
