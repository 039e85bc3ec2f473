"""Check that the parts of a Comparison or an Explanation that was read from a file fit together, as `shapes` does."""

from collections.abc import Iterator, Sequence
from typing import Any

from attnscope.base.errors import AttnscopeError
from attnscope.findings.compare import Comparison, HeadChange, Side, StageVerdict
from attnscope.findings.explain import Explanation
from attnscope.findings.run import TextReport, selection_name
from attnscope.findings.shapes import DAMAGED, are_ascending, are_positions, check_shapes


def check_comparison(comparison: Comparison) -> None:
    """Refuse a Comparison whose sides and changes contradict each other.

    Raises:
        AttnscopeError: The parts are inconsistent; the message names the field.
    """
    sides = comparison.sides
    if len(sides) < 2:
        raise AttnscopeError(f"the comparison has {len(sides)} of at least 2 sides", hint=DAMAGED)
    for side in sides:
        check_shapes(side.report)
    for n, change in enumerate(comparison.changes):
        if not 0 < change.side < len(sides):
            raise AttnscopeError(f"changes[{n}].side is {change.side} of {len(sides)} sides", hint=DAMAGED)
        for h, head in enumerate(change.heads):
            reports = [sides[0].report.texts, sides[change.side].report.texts]
            if not all(0 <= head.text < len(texts) for texts in reports):
                raise AttnscopeError(f"changes[{n}].heads[{h}].text is {head.text}", hint=DAMAGED)
            for where, found in _change_faults(head, [texts[head.text] for texts in reports]):
                raise AttnscopeError(f"changes[{n}].heads[{h}].{where} {found}", hint=DAMAGED)
    for n, stage in enumerate(comparison.verdict.stages if comparison.verdict is not None else ()):
        for where, found in _verdict_faults(stage, sides):
            raise AttnscopeError(f"verdict.stages[{n}].{where} {found}", hint=DAMAGED)


def _verdict_faults(stage: StageVerdict, sides: Sequence[Side]) -> Iterator[tuple[str, str]]:
    texts, cell = sides[0].report.texts, stage.cell
    if not 0 < stage.side < len(sides):
        yield "side", f"is {stage.side} of {len(sides)} sides"
    if not 0 <= stage.text < len(texts):
        yield "text", f"is {stage.text} of {len(texts)} texts"
        return
    counts = {"query": len(texts[stage.text].tokens), "key": len(texts[stage.text].sources)}
    for name, count in counts.items():
        if name == "key" and stage.stage == "output":  # a dimension of the value
            continue
        if not 0 <= getattr(cell, name) < count:
            yield f"cell.{name}", f"is {getattr(cell, name)} of {count} tokens"


def _change_faults(head: HeadChange, texts: Sequence[TextReport]) -> Iterator[tuple[str, str]]:
    for name, text in zip(("first", "second"), texts, strict=True):
        named = next((one for one in text.heads if selection_name(one) == getattr(head, name)), None)
        if named is None:
            yield name, f"is {getattr(head, name)[:40]!r}, which its side does not have"
        elif head.mass is None and "weights" not in named.stages:
            yield name, f"is {getattr(head, name)!r}, whose weights its side does not hold"
    for side, (text, alone) in enumerate(zip(texts, ("only_first", "only_second"), strict=True)):
        held = {"queries": set(text.queries), "keys": set(text.keys)}
        for name, positions in held.items():
            if not positions.issuperset(pair[side] for pair in getattr(head, name)):
                yield name, "has a position that its side does not hold"
        listed = [getattr(head, alone), *(head.left, head.entered)[side]]
        chosen = [position for position in (head.lost, head.gained)[side] if position != -1]
        if not all(are_positions(places, len(text.sources)) for places in (*listed, chosen)):
            yield alone, f"has a position of {len(text.sources)} or more"
    rows, columns = len(head.queries), len(head.keys)
    shapes: dict[str, tuple[int, ...]] = {"difference": (rows, columns), "future": (2, rows), "entropy": (2, rows)}
    shapes |= dict.fromkeys(("total_variation", "jensen_shannon", "gain", "loss"), (rows,))
    yield from _shape_faults(head, shapes)
    for name in ("gained", "lost", "entered", "left"):
        if len(getattr(head, name)) != rows:
            yield name, f"has {len(getattr(head, name))} entries for {rows} queries"
    if head.partial is not None:
        yield from _shape_faults(head.partial, {"outside": (2, rows)})
    if head.mass is not None:
        yield from _shape_faults(head, {"mass": (2, len(texts[0].sources))})


def check_explanation(e: Explanation) -> None:
    """Refuse an Explanation whose positions, counts and array shapes contradict each other.

    Raises:
        AttnscopeError: The parts are inconsistent; the message names the field.
    """
    for where, found in _explanation_faults(e):
        raise AttnscopeError(f"{where} {found}", hint=DAMAGED)


def _explanation_faults(e: Explanation) -> Iterator[tuple[str, str]]:
    if not 0 <= e.query < len(e.tokens):
        yield "query", f"is {e.query} of {len(e.tokens)} tokens"
    if not are_ascending(e.keys, len(e.sources)):
        yield "keys", f"is not an ascending list of positions below {len(e.sources)}"
    keys = len(e.keys)
    given = [name for name in e.row.__struct_fields__ if getattr(e.row, name) is not None]
    yield from _shape_faults(e.row, dict.fromkeys(given, (keys,)), "row.")
    for name in ("key_vectors", "value_vectors"):
        if len(getattr(e, name)) != keys:
            yield name, f"has {len(getattr(e, name))} rows for {keys} keys"
    width = () if e.fully_masked else (e.value_vectors.shape[1],)
    if not e.fully_masked:
        yield from _shape_faults(e, {"blend": width, "output": width})
        if e.rest is not None:
            yield from _shape_faults(e.rest, {"blend": width}, "rest.")
    for name, field in (("capped", "softcap"), ("bias", "bias")):
        if (getattr(e.row, name) is None) != (getattr(e, field) is None):
            yield f"row.{name}", f"is {'missing' if getattr(e.row, name) is None else 'there'}, unlike {field}"
    for name in ("inputs", "query_steps", "cells"):
        if not getattr(e, name):
            yield name, "is empty"
    for n, cell in enumerate(e.cells):
        if cell.key not in e.keys or not cell.key_steps:
            yield f"cells[{n}]", "has a key that is not among keys, or no steps"
        if not all(len(part.dims) == len(part.q) == len(part.k) > 0 for part in cell.parts):
            yield f"cells[{n}].parts", "has a part without as many numbers as dimensions"


def _shape_faults(data: Any, shapes: dict[str, tuple[int, ...]], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, expected in shapes.items():
        found = getattr(data, name).shape
        if found != expected and not (0 in found and 0 in expected):  # in JSON, an empty array has no shape
            yield f"{prefix}{name}", f"has shape {list(found)}, expected {list(expected)}"
