"""Axes of findings: declared on the fields of structs by `arrays.along`, and what follows from the declarations.

Checks of what was read, parts of a text, the arrays of files and the records of dumps are all made of these functions,
so that a new field needs its declaration only. A struct may add two methods: `axis_lengths() -> dict[str, int]` with
the lengths of the axes that it defines, and `contradictions(lengths) -> Iterator[tuple[str, str]]` with what axes
cannot say, each as a field and what is wrong with it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np

from attnscope.base.errors import AttnscopeError
from attnscope.findings.arrays import Along

DAMAGED = "the file was edited or damaged: save it again with --json"
_Data = TypeVar("_Data", bound=msgspec.Struct)


@cache
def declared_paths(kind: type[msgspec.Struct]) -> dict[str, Along]:
    """Return the declaration of every array by its path in a struct; the path of a dict stands for its arrays."""
    inner = {f"{name}.{path}": a for name, k in structs_in(kind).items() for path, a in declared_paths(k).items()}
    return inner | declarations(kind)


@cache
def structs_in(kind: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """Return the type of every field that holds a struct, or None."""
    hints = get_type_hints(kind)
    types = [(name, of) for name in kind.__struct_fields__ for of in get_args(hints[name]) or (hints[name],)]
    return {name: of for name, of in types if isinstance(of, type) and issubclass(of, msgspec.Struct)}


@cache
def declarations(kind: type[msgspec.Struct]) -> dict[str, Along]:
    """Return the declaration of every field of a struct that has one."""
    hints = get_type_hints(kind, include_extras=True)
    along = {name: _along(hints[name]) for name in kind.__struct_fields__}
    return {name: declared for name, declared in along.items() if declared is not None}


def _along(hint: Any) -> Along | None:
    """Find the declaration within a type, such as an array or None."""
    given = [meta for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, Along)]
    if given or not hasattr(hint, "__args__"):
        return given[0] if given else None
    return next((along for along in map(_along, get_args(hint)) if along is not None), None)


def check_axes(data: msgspec.Struct) -> None:
    """Refuse findings from a file whose positions, counts and array shapes contradict each other; name the field."""
    for where, fault in faults(data, {}):
        raise AttnscopeError(f"{where} {fault}", hint=DAMAGED)


def faults(data: msgspec.Struct, lengths: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield each contradiction within findings: the field and the message.

    An axis without a length gets that of the first array along it; each item of a list has its own lengths.
    """
    lengths |= getattr(data, "axis_lengths", dict)()
    declared = declarations(type(data))
    for name in data.__struct_fields__:
        value, along = getattr(data, name), declared.get(name)
        if along is not None and value is not None:
            members = value if isinstance(value, dict) else {"": value}
            if along.filled and not value:
                yield name, "is empty"
            for member, array in members.items():
                if along.names and member not in along.names:
                    yield name, f"has {member[:40]!r}, not one of {', '.join(along.names)}"
                where = f"{name}.{member}" if member else name
                yield from ((where, fault) for fault in _array_faults(array, along.of_member(member), lengths))
        for where, inner in _structs(name, value):
            scope = lengths if inner is value else dict(lengths)
            yield from ((f"{where}.{path}", fault) for path, fault in faults(inner, scope))
    yield from getattr(data, "contradictions", lambda _: ())(lengths)


def _structs(name: str, value: Any) -> Iterator[tuple[str, msgspec.Struct]]:
    """Yield the structs in a field, each with its path."""
    if isinstance(value, msgspec.Struct):
        yield name, value
    elif isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
        yield from ((f"{name}[{n}]", item) for n, item in enumerate(value))


def _array_faults(array: Any, along: Along, lengths: dict[str, int]) -> Iterator[str]:
    """Yield the contradictions between an array, a list or a number and its declaration."""
    if along.runs is not None:
        count = lengths[along.runs]
        if not are_ascending(array[:-1], count) or array[:1] != [0] or array[-1] != count:
            yield f"does not run from 0 to {count}, the number of tokens"
        lengths[along.axes[0]] = len(array) - 1
        return
    shape = array.shape if isinstance(array, np.ndarray) else (len(array),) if along.axes else ()
    if len(shape) != len(along.axes):
        yield f"has shape {list(shape)}, expected {len(along.axes)} axes ({', '.join(along.axes)})"
        return
    expected = tuple(lengths.setdefault(axis, length) for axis, length in zip(along.axes, shape, strict=True))
    if shape != expected:
        yield f"has shape {list(shape)}, expected {list(expected)} ({', '.join(along.axes)})"
    # Positions in another text are checked by the struct around this one.
    if along.positions not in lengths:
        return
    count = lengths[along.positions]
    if along.ascending:
        if not are_ascending(array, count):
            yield f"is not an ascending list of positions below {count}"
        return
    if not isinstance(array, np.ndarray):
        nested = isinstance(array, list) and array and isinstance(array[0], list)
        array = np.asarray([place for row in array for place in row] if nested else array, dtype=np.int64)
    if array.size and array.min() < -along.or_none:
        yield "has a negative position"
    elif array.size and array.max() >= count:
        yield f"has a position of {count} or more"


def are_ascending(places: Sequence[int], count: int) -> bool:
    """Tell whether these are positions below a count, in strictly ascending order."""
    return all(a < b for a, b in zip([-1, *places], [*places, count], strict=True))


def take(data: _Data, axis: str, index: Sequence[int] | slice) -> _Data:
    """Return findings with some places of an axis, in every array and list along it."""
    declared = declarations(type(data))
    changes: dict[str, Any] = {}
    for name in data.__struct_fields__:
        value, along = getattr(data, name), declared.get(name)
        if isinstance(value, msgspec.Struct):
            changes[name] = take(value, axis, index)
        elif isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
            changes[name] = [take(item, axis, index) for item in value]
        elif along is None or value is None:
            continue
        elif isinstance(value, dict):
            changes[name] = {key: _part(array, along.of_member(key).axes, axis, index) for key, array in value.items()}
        elif axis in along.axes:
            changes[name] = _part(value, along.axes, axis, index)
    return msgspec.structs.replace(data, **changes)


def _part(array: Any, axes: Sequence[str], axis: str, index: Sequence[int] | slice) -> Any:
    if axis not in axes:
        return array
    if isinstance(array, np.ndarray):
        return array[(*[slice(None)] * axes.index(axis), index)]
    return array[index] if isinstance(index, slice) else [array[place] for place in index]


def arrays_in(data: msgspec.Struct, prefix: str = "") -> "Iterator[tuple[str, Along, np.ndarray[Any, Any]]]":
    """Yield every array with its path, such as `top.keys`, and its declaration; structs in lists are left out.

    Runs of tokens, which are lists, are arrays of int64.
    """
    declared = declarations(type(data))
    for name in data.__struct_fields__:
        value = getattr(data, name)
        if isinstance(value, msgspec.Struct):
            yield from arrays_in(value, f"{prefix}{name}.")
        elif name in declared:
            for member, array in (value if isinstance(value, dict) else {"": value}).items():
                along, path = declared[name].of_member(member), f"{prefix}{name}.{member}" if member else prefix + name
                if isinstance(array, np.ndarray):
                    yield path, along, array
                elif along.runs is not None and array is not None:
                    yield path, along, np.array(array, dtype=np.int64)


def every_array(data: msgspec.Struct) -> "Iterator[tuple[str, np.ndarray[Any, Any]]]":
    """Yield every array of findings, also of structs in lists, with the last name of its path."""
    for name in data.__struct_fields__:
        value = getattr(data, name)
        for member, array in (value if isinstance(value, dict) else {name: value}).items():
            if isinstance(array, np.ndarray):
                yield member, array
        for _, inner in _structs(name, value):
            yield from every_array(inner)


def stacked(items: Sequence[msgspec.Struct]) -> "Mapping[str, np.ndarray[Any, Any]]":
    """Return the arrays that all of these structs have, by path, stacked along a new first axis."""
    arrays = [{path: array for path, _, array in arrays_in(item)} for item in items]
    shared = [path for path in arrays[0] if all(path in of_item for of_item in arrays)]
    return {path: np.stack([of_item[path] for of_item in arrays]) for path in shared}
