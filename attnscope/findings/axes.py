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
def declared_paths(struct_type: type[msgspec.Struct]) -> dict[str, Along]:
    """Return the declaration of every array by its path in a struct; the path of a dict stands for its arrays."""
    inner = {
        f"{name}.{path}": a
        for name, k in structs_in(struct_type).items()
        for path, a in declared_paths(k).items()
    }
    return inner | declarations(struct_type)


@cache
def structs_in(struct_type: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """Return the type of every field that holds a struct, or None."""
    hints = get_type_hints(struct_type)
    types = [
        (name, of)
        for name in struct_type.__struct_fields__
        for of in get_args(hints[name]) or (hints[name],)
    ]
    return {
        name: of for name, of in types if isinstance(of, type) and issubclass(of, msgspec.Struct)
    }


@cache
def declarations(struct_type: type[msgspec.Struct]) -> dict[str, Along]:
    """Return the declaration of every field of a struct that has one."""
    hints = get_type_hints(struct_type, include_extras=True)
    along = {name: _along(hints[name]) for name in struct_type.__struct_fields__}
    return {name: declared for name, declared in along.items() if declared is not None}


def _along(hint: Any) -> Along | None:
    """Find the declaration within a type, such as an array or None."""
    declared = [meta for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, Along)]
    if declared or not hasattr(hint, "__args__"):
        return declared[0] if declared else None
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
        value = getattr(data, name)
        along = declared.get(name)
        if along is not None and value is not None:
            members = value if isinstance(value, dict) else {"": value}
            if along.filled and not value:
                yield name, "is empty"
            for member, array in members.items():
                if along.names and member not in along.names:
                    yield name, f"has {member[:40]!r}, not one of {', '.join(along.names)}"
                where = f"{name}.{member}" if member else name
                yield from (
                    (where, fault)
                    for fault in _array_faults(array, along.of_member(member), lengths)
                )
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
    if isinstance(array, np.ndarray):
        shape = array.shape
    elif along.axes:
        shape = (len(array),)
    else:
        shape = ()
    if len(shape) != len(along.axes):
        yield f"has shape {list(shape)}, expected {len(along.axes)} axes ({', '.join(along.axes)})"
        return
    expected = tuple(
        lengths.setdefault(axis, length) for axis, length in zip(along.axes, shape, strict=True)
    )
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
        array = np.asarray(
            [item for row in array for item in row] if nested else array, dtype=np.int64
        )
    if array.size and array.min() < -along.or_none:
        yield "has a negative position"
    elif array.size and array.max() >= count:
        yield f"has a position of {count} or more"


def are_ascending(places: Sequence[int], count: int) -> bool:
    """Tell whether these are positions below a count, in strictly ascending order."""
    return all(a < b for a, b in zip([-1, *places], [*places, count], strict=True))


def take(data: _Data, axis: str, index: Sequence[int] | slice | int) -> _Data:
    """Return findings with some places of an axis, in every array and list along it; a number removes the axis."""
    fields = {name: take_field(data, name, axis, index) for name in data.__struct_fields__}
    return msgspec.structs.replace(data, **fields)


def take_field(
    data: msgspec.Struct, name: str, axis: str, index: Sequence[int] | slice | int
) -> Any:
    """Return one field of `take`."""
    value = getattr(data, name)
    if isinstance(value, msgspec.Struct):
        return take(value, axis, index)
    if isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
        return [take(item, axis, index) for item in value]
    along = declarations(type(data)).get(name)
    if along is None or value is None:
        return value
    if isinstance(value, dict):
        return {
            member: _part(array, along.of_member(member).axes, axis, index)
            for member, array in value.items()
        }
    return _part(value, along.axes, axis, index)


def _part(array: Any, axes: Sequence[str], axis: str, index: Sequence[int] | slice | int) -> Any:
    if axis not in axes:
        return array
    if isinstance(array, np.ndarray):
        return array[(*[slice(None)] * axes.index(axis), index)]
    if isinstance(index, slice | int):
        return array[index]
    return [array[item] for item in index]


def arrays_in(
    data: msgspec.Struct, prefix: str = ""
) -> "Iterator[tuple[str, Along, np.ndarray[Any, Any]]]":
    """Yield every array with its path, such as `top.keys`, and its declaration; structs in lists are left out.

    Runs of tokens, which are lists, are arrays of int32.
    """
    declared = declarations(type(data))
    for name in data.__struct_fields__:
        value = getattr(data, name)
        if isinstance(value, msgspec.Struct):
            yield from arrays_in(value, f"{prefix}{name}.")
        elif name in declared:
            for member, array in (value if isinstance(value, dict) else {"": value}).items():
                along = declared[name].of_member(member)
                path = f"{prefix}{name}.{member}" if member else prefix + name
                if isinstance(array, np.ndarray):
                    yield path, along, array
                elif along.runs is not None and array is not None:
                    yield path, along, np.array(array, dtype=np.int32)


def declared_at(struct_type: type[msgspec.Struct], path: str) -> Along:
    """Return the declaration of an array by its path in a struct, such as `stages.output`; KeyError without one."""
    declared = declared_paths(struct_type)
    field, _, member = path.partition(".")
    if path in declared:
        return declared[path]
    return declared[field].of_member(member)


def gathered(struct_type: type[msgspec.Struct], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Gather the fields of a struct from arrays by path, `field` or `field.array`.

    Raises:
        TypeError: The struct in a field lacks one of its arrays, or has others.
    """
    fields: dict[str, dict[str, Any]] = {}
    declared = declared_paths(struct_type)
    for path, array in arrays.items():
        field, _, inner = path.partition(".")
        is_list = path in declared and declared[path].runs is not None
        fields.setdefault(field, {})[inner] = np.asarray(array).tolist() if is_list else array
    structs = structs_in(struct_type)
    return {
        field: structs[field](**members) if field in structs else members.get("", members)
        for field, members in fields.items()
    }


def every_array(data: msgspec.Struct) -> "Iterator[tuple[str, np.ndarray[Any, Any]]]":
    """Yield every array of findings, also of structs in lists, with the last name of its path."""
    for name in data.__struct_fields__:
        value = getattr(data, name)
        for member, array in (value if isinstance(value, dict) else {name: value}).items():
            if isinstance(array, np.ndarray):
                yield member, array
        for _, inner in _structs(name, value):
            yield from every_array(inner)
