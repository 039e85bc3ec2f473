"""Check that the parts of a Report that was read from a file fit together, so that nothing indexes beyond them."""

from collections.abc import Iterator, Sequence

import numpy as np

from attnscope.base.errors import JSON_FILE, AttnscopeError
from attnscope.findings.attribution import Attribution
from attnscope.findings.flow import TokenFlow
from attnscope.findings.overview import Columns, Pooled
from attnscope.findings.predictions import Prediction
from attnscope.findings.run import STAGES, HeadReport, Report, TextReport

DAMAGED = f"the file was edited or damaged: save it again with {JSON_FILE}"


def check_shapes(report: Report) -> None:
    """Refuse a Report whose positions, counts and array shapes contradict each other.

    Raises:
        AttnscopeError: The parts are inconsistent; the message names the field.
    """
    if not report.texts:
        raise AttnscopeError("the report has no text", hint=DAMAGED)
    for number, text in enumerate(report.texts):
        for where, found in _faults(text):
            raise AttnscopeError(f"texts[{number}].{where} {found}", hint=DAMAGED)


def _faults(text: TextReport) -> Iterator[tuple[str, str]]:
    """Yield each contradiction within one text, as its place and what was found there."""
    n_queries, n_keys = len(text.tokens), len(text.sources)
    if not n_queries or not n_keys:
        yield ("tokens" if not n_queries else "context"), "is empty"
    every = ("queries", text.queries, n_queries), ("keys", text.keys, n_keys), ("hidden", text.hidden, n_keys)
    for name, places, count in every:
        if not are_ascending(places, count):
            yield name, f"is not an ascending list of positions below {count}"
    words = n_queries - text.padding
    for name, count in (("predictions", words), ("generated", words - 1)):
        predictions: list[Prediction] = getattr(text, name)
        if not are_positions([one.position for one in predictions], count):
            yield name, f"has a position of {count} or more"
        if not all(one.tokens for one in predictions):
            yield name, "has a prediction without tokens"
    if text.attribution is not None:
        yield from _attribution_faults(text.attribution, n_queries)
    if not 0 <= text.padding < max(1, n_queries):
        yield "padding", f"is {text.padding} of {n_queries} tokens"
    for number, flow in enumerate(text.flows):
        for where, found in _flow_faults(flow, text):
            yield f"flows[{number}].{where}", found
    for number, head in enumerate(text.heads):
        for where, found in _head_faults(head, text):
            yield f"heads[{number}].{where}", found
        first = text.heads[0]
        if head.stages.keys() != first.stages.keys():
            yield f"heads[{number}].stages", "are not those of heads[0]"
        if head.top.keys.shape != first.top.keys.shape:
            shapes = list(head.top.keys.shape), list(first.top.keys.shape)
            yield f"heads[{number}].top.keys", f"has shape {shapes[0]}, that of heads[0] has {shapes[1]}"


def are_ascending(places: Sequence[int], count: int) -> bool:
    """Tell whether these are positions below a count, each larger than the one before."""
    return all(a < b for a, b in zip([-1, *places], [*places, count], strict=True))


def _head_faults(head: HeadReport, text: TextReport) -> Iterator[tuple[str, str]]:
    for name in ("layer", "head"):
        number = getattr(head, name)
        if number != "mean" and not (isinstance(number, int) and number >= 0):
            yield name, f"is {number!r}, neither a number from 0 nor 'mean'"
    if head.pooled is None and not text.queries:
        yield "pooled", "is missing, and there are no queries"
    yield from _stage_faults(head, text)
    yield from _row_faults(head, text)
    if not are_positions(head.fully_masked, len(text.tokens)):
        yield "fully_masked", f"has a position of {len(text.tokens)} or more"
    if head.pooled is not None:
        yield from _pooled_faults(head.pooled, len(text.tokens), len(text.sources))
    if head.columns is not None:
        yield from _column_faults(head.columns, len(text.sources))


def _attribution_faults(found: Attribution, n_tokens: int) -> Iterator[tuple[str, str]]:
    if len(found.sources) != n_tokens:
        yield "attribution.sources", f"has {len(found.sources)} numbers for {n_tokens} tokens"
    n_layers, n_heads = found.heads.shape
    for name in ("attention_biases", "mlps"):
        if len(getattr(found, name)) != n_layers:
            yield f"attribution.{name}", f"has {len(getattr(found, name))} numbers for {n_layers} layers"
    if not are_positions([found.position, *(edge.source for edge in found.edges)], n_tokens):
        yield "attribution", f"has a position of {n_tokens} or more"
    if not are_positions([edge.layer for edge in found.edges], n_layers):
        yield "attribution.edges", f"has a layer of {n_layers} or more"
    if not are_positions([edge.head for edge in found.edges], n_heads):
        yield "attribution.edges", f"has a head of {n_heads} or more"


def are_positions(places: Sequence[int], count: int) -> bool:
    """Tell whether these are positions below a count."""
    return all(0 <= place < count for place in places)


def _stage_faults(head: HeadReport, text: TextReport) -> Iterator[tuple[str, str]]:
    rows, columns = len(text.queries), len(text.keys)
    for name, matrix in head.stages.items():
        if name not in STAGES:
            yield "stages", f"has {name[:40]!r}, not one of {', '.join(STAGES)}"
        expected = (rows, matrix.shape[1] if name == "output" else columns)
        if matrix.shape != expected:
            yield f"stages.{name[:40]}", f"has shape {list(matrix.shape)}, queries and keys require {list(expected)}"


def _row_faults(head: HeadReport, text: TextReport) -> Iterator[tuple[str, str]]:
    """Yield contradictions in what is said of every row: statistics, the sink's share, the strongest sources."""
    rows, top = len(text.queries), head.top
    statistics = {f"rows.{name}": getattr(head.rows, name) for name in head.rows.__struct_fields__}
    for where, values in {**statistics, "sink": head.sink}.items():
        if values is not None and len(values) != rows:
            yield where, f"has {len(values)} numbers for {rows} queries"
    if len(top.keys) != rows:
        yield "top.keys", f"has {len(top.keys)} rows for {rows} queries"
    for name in ("weight", "value", "projected"):
        measure = getattr(top, name)
        if measure is not None and measure.shape != top.keys.shape:
            yield f"top.{name}", f"has shape {list(measure.shape)}, top.keys has {list(top.keys.shape)}"
    if top.keys.size and not (int(top.keys.min()) >= -1 and int(top.keys.max()) < len(text.sources)):
        yield "top.keys", f"has a position of {len(text.sources)} or more"
    if top.by not in ("weight", "value", "projected") or getattr(top, top.by) is None:
        yield "top.by", f"is {top.by[:40]!r}, which top does not have"


def _flow_faults(flow: TokenFlow, text: TextReport) -> Iterator[tuple[str, str]]:
    if not flow.layers:
        yield "layers", "is empty"
    expected = len(text.queries), len(text.keys)
    if flow.matrix.shape != expected:
        yield "matrix", f"has shape {list(flow.matrix.shape)}, queries and keys require {list(expected)}"
    if len(flow.keys) != expected[0] or flow.values.shape != flow.keys.shape:
        yield "keys", f"has shape {list(flow.keys.shape)}, values has {list(flow.values.shape)}"
    if flow.keys.size and not (int(flow.keys.min()) >= -1 and int(flow.keys.max()) < len(text.sources)):
        yield "keys", f"has a position of {len(text.sources)} or more"


def _pooled_faults(pooled: Pooled, n_queries: int, n_keys: int) -> Iterator[tuple[str, str]]:
    for name, starts, count in (("queries", pooled.queries, n_queries), ("keys", pooled.keys, n_keys)):
        if not are_ascending(starts[:-1], count) or starts[:1] != [0] or starts[-1] != count:
            yield f"pooled.{name}", f"does not run from 0 to {count}, the number of tokens"
    expected = len(pooled.queries) - 1, len(pooled.keys) - 1
    if pooled.weights.shape != expected:
        yield "pooled.weights", f"has shape {list(pooled.weights.shape)}, its runs require {list(expected)}"


def _column_faults(columns: Columns, n_keys: int) -> Iterator[tuple[str, str]]:
    if len(columns.mass) != n_keys:
        yield "columns.mass", f"has {len(columns.mass)} numbers for {n_keys} tokens"
    elif not np.isfinite(columns.total):
        yield "columns.total", f"is {columns.total}"
