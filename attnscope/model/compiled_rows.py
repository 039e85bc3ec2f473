"""Loops over rows of scores as machine code: one pass does what a chain of operators does in several.

A row of scores stays in the first cache while its maximum, its softmax, its entropy and its largest entries are found.
Operators of torch and NumPy read and write the whole tile for each of these. LLVM (by llvmlite) makes the code for the
processor at hand when this module is imported, in about a tenth of a second; `row_summary`, the only module that
imports this one, does that for large layers. The loops don't hold the interpreter's lock, so threads run them side by
side.

The result of a row does not depend, to the last bit, on neighbouring rows or on keys after its last visible one: sums
have a fixed order, and such keys add 0.

How to read it: `b.fadd(x, y)` does not add. It writes an instruction that adds, where the builder `b` stands; Python's
own loops write the same instructions several times, `_loop` writes one that runs several times. What `_variable`
returns is an address, but LLVM keeps such variables in registers.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

LANES = 16  # numbers of a vector: a register of AVX-512, two of AVX2, four of NEON
# scores of a chunk, whose maximum is kept: the largest scores are looked for among these maxima
CHUNK = 2 * LANES
_BLOCK = 64  # vectors that are added up in float32; the sums of blocks are added up in float64

_FLOAT = ir.FloatType()
_DOUBLE = ir.DoubleType()
_INT = ir.IntType(32)
_LONG = ir.IntType(64)
_FLOATS, _DOUBLES, _INTS = (ir.VectorType(kind, LANES) for kind in (_FLOAT, _DOUBLE, _INT))
_ADDRESS = ir.PointerType()
# no NaN gets here; a product and its sum may be one instruction
_NUMBERS = ("nnan", "nsz", "contract")
_NOTHING = -np.inf
_NO_PLACE = 2**31 - 1
_Terms = list[tuple[Any, Any]]  # of a sum: a vector, and what it is multiplied by, or None

_ONE_OVER_LOG_2 = 1.4426950408889634
# their sum is log 2; the first has few digits
_LOG_2_HIGH = 0.693359375
_LOG_2_LOW = -2.12194440e-4
_ROUND = 12582912.0  # 1.5 · 2^23: added to a small float32, it leaves no digits behind the point
_MANTISSA = 23  # bits of a float32 below its exponent
_SMALLEST = -87.0  # above it, e^x is surely a normal float32; e^x of others counts as 0
# of e^r − 1 − r, divided by r², for |r| ≤ log(2) / 2, highest power first (Cephes Math Library, expf)
_SERIES = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)


def softmax(
    masked: NDArray[Any], weights: NDArray[Any], places: NDArray[Any], strongest: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Compute the softmax of every row, and its largest weights; return its entropy in bits and its largest score.

    Keys are ranked by scores, which give the order of weights and also order weights that underflow to 0. In a row
    without an allowed key weights and entropy are 0, and the largest score is −inf.

    Args:
        masked: Scores, (n, size), size at least 1; −inf where a key is not allowed, otherwise finite.
        weights: Receives the softmax, (n, size). It may be `masked` itself.
        places: Receives places of the largest weights in order, the first of equals first, (n, count), where count
            may be 0; −1 where fewer keys are allowed. int64.
        strongest: Receives these weights, (n, count); 0 where fewer keys are allowed.
    """
    n, size = masked.shape
    totals = np.empty((n, 3))
    work = np.empty(2 * CHUNK + -(-size // (CHUNK * LANES)) * LANES, np.float32)
    addresses = (array.ctypes.data for array in (masked, weights, totals, places, strongest, work))
    _softmax(*addresses, n, size, places.shape[1])
    # Σ e^(s − largest), and the sum of its terms times s − largest.
    total, weighted, largest = totals.T
    # since log w = (s − largest) − log Σ
    bits: NDArray[Any] = (np.log(total) - weighted / total) / np.log(2)
    bits = np.maximum(bits, 0, dtype=np.float32)
    return bits, largest.astype(np.float32)


def sums(
    weights: NDArray[Any], kinds: NDArray[Any], reaches: NDArray[Any], query: int
) -> NDArray[Any]:
    """Sum the weights of every row up: by distance, up to some distances, and on some kinds of keys.

    See RowSummary.sums; `weights` are (texts, heads, rows, size), size at least 1. `query` is the place of the first
    row's query among the keys: it may lie in front of them or behind.
    """
    texts, heads, rows, size = weights.shape
    padded = np.zeros((*kinds.shape[:2], -(-size // CHUNK) * CHUNK), np.float32)
    padded[..., :size] = kinds
    sums = np.empty((1 + len(reaches) + kinds.shape[1], texts, heads, rows), np.float32)
    work = np.empty(CHUNK, np.float32)
    addresses = (array.ctypes.data for array in (weights, padded, reaches, sums, work))
    _sums(
        *addresses,
        weights.size // size,
        size,
        rows,
        heads * rows,
        query,
        kinds.shape[1],
        len(reaches),
    )
    return sums


def _function(module: ir.Module, name: str, addresses: int, numbers: int) -> tuple[Any, Any]:
    """Begin a function with the given counts of address and number arguments; return a builder, and the arguments."""
    function_type = ir.FunctionType(ir.VoidType(), [_ADDRESS] * addresses + [_LONG] * numbers)
    function = ir.Function(module, function_type, name)
    b = ir.IRBuilder(function.append_basic_block("variables"))
    b.branch(start := function.append_basic_block("start"))
    b.position_at_end(start)
    return b, function.args


def _write_softmax(module: ir.Module) -> None:
    """Write the loops behind `softmax`: a function of its six arrays' addresses, of n, size and count."""
    b, (masked, weights, totals, places, strongest, work, n, size, count) = _function(
        module, "softmax", 6, 3
    )
    n_chunks = _divide_up(b, size, CHUNK)
    maxima = _at(b, work, _LONG(2 * CHUNK))
    with _loop(b, n) as i:
        begin = b.mul(i, size)
        offset = b.mul(i, count)
        scores = _Row(b, _at(b, masked, begin), size, work)
        shares = _Row(b, _at(b, weights, begin), size, _at(b, work, _LONG(CHUNK)))
        scores.take_rest(b, _NOTHING)
        largest = _chunk_maxima(b, scores, n_chunks, maxima)
        _strongest(b, scores, n_chunks, maxima, count, _at(b, places, offset, _LONG))
        total = _variable(b, _DOUBLE(1))
        weighted = _variable(b, _DOUBLE(0))
        with b.if_else(b.fcmp_ordered("==", largest, _FLOAT(_NOTHING))) as (
            without_keys,
            with_keys,
        ):
            with without_keys, _loop(b, b.mul(n_chunks, _LONG(2))) as number:
                shares.store(b, _vector(_FLOATS, 0), number)
            with with_keys:
                for sum_of_row, variable in zip(
                    _powers(b, scores, shares, n_chunks, largest), (total, weighted), strict=True
                ):
                    b.store(sum_of_row, variable)
                factor = b.fdiv(_FLOAT(1), b.fptrunc(b.load(total, typ=_DOUBLE), _FLOAT))
                with _loop(b, b.mul(n_chunks, _LONG(2))) as number:
                    shares.store(b, b.fmul(shares.load(b, number), _everywhere(b, factor)), number)
        shares.put_rest(b)
        of_row = (
            b.load(total, typ=_DOUBLE),
            b.load(weighted, typ=_DOUBLE),
            b.fpext(largest, _DOUBLE),
        )
        for k, number in enumerate(of_row):
            b.store(number, _at(b, totals, b.add(b.mul(i, _LONG(3)), _LONG(k)), _DOUBLE))
        with _loop(b, count) as j:
            key_index = b.load(_at(b, places, b.add(offset, j), _LONG), typ=_LONG)
            exists = b.icmp_signed(">=", key_index, _LONG(0))
            share = b.load(
                _at(b, weights, b.add(begin, b.select(exists, key_index, _LONG(0)))), typ=_FLOAT
            )
            b.store(b.select(exists, share, _FLOAT(0)), _at(b, strongest, b.add(offset, j)))
    b.ret_void()


def _write_sums(module: ir.Module) -> None:
    b, arguments = _function(module, "sums", 5, 7)
    weights, kinds, reaches, sums, work, n, size, rows, rows_of_text, query, n_kinds, n_reaches = (
        arguments
    )
    n_vectors = b.mul(_divide_up(b, size, CHUNK), _LONG(2))
    lanes = ir.Constant(_INTS, list(range(LANES)))
    with _loop(b, n) as i:
        row = _Row(b, _at(b, weights, b.mul(i, size)), size, work)
        row.take_rest(b, 0.0)
        own = b.add(query, b.srem(i, rows))
        kinds_of_text = _at(
            b, kinds, b.mul(b.mul(b.sdiv(i, rows_of_text), n_kinds), n_vectors), _FLOATS
        )

        def apart(index: Any) -> Any:
            """Return |query − key| of a vector's keys."""
            keys = b.add(_everywhere(b, b.trunc(b.mul(index, _LONG(LANES)), _INT)), lanes)
            away = b.sub(_everywhere(b, b.trunc(own, _INT)), keys)
            return b.select(b.icmp_signed("<", away, _vector(_INTS, 0)), b.neg(away), away)

        def by_distance(b: Any, index: Any) -> _Terms:
            return [(row.load(b, index), b.sitofp(apart(index), _FLOATS))]

        def put(column: Any, value: Any) -> None:
            b.store(b.fptrunc(value, _FLOAT), _at(b, sums, b.add(b.mul(column, n), i)))

        put(_LONG(0), *_add_up(b, n_vectors, by_distance))
        with _loop(b, n_reaches) as k:
            reach = b.load(_at(b, reaches, k, _LONG), typ=_LONG)
            first_vector = b.sdiv(_larger_number(b, b.sub(own, reach), _LONG(0)), _LONG(LANES))
            end = b.add(b.sdiv(b.add(own, reach), _LONG(LANES)), _LONG(1))
            reaching = _everywhere(b, b.trunc(reach, _INT))

            def near(b: Any, index: Any) -> _Terms:
                inside = b.icmp_signed("<=", apart(index), reaching)
                return [(b.select(inside, row.load(b, index), _vector(_FLOATS, 0)), None)]

            put(b.add(k, _LONG(1)), *_add_up(b, _smaller(b, end, n_vectors), near, first_vector))
        with _loop(b, n_kinds) as k:
            kind_address = _at(b, kinds_of_text, b.mul(k, n_vectors), _FLOATS)

            def of_kind(b: Any, index: Any) -> _Terms:
                return [
                    (
                        row.load(b, index),
                        b.load(_at(b, kind_address, index, _FLOATS), typ=_FLOATS, align=4),
                    )
                ]

            put(b.add(b.add(k, n_reaches), _LONG(1)), *_add_up(b, n_vectors, of_kind))
    b.ret_void()


class _Row:
    """A row as vectors, padded to whole chunks; `remainder` has room for its last numbers, which fill no vector."""

    def __init__(self, b: Any, start: Any, size: Any, remainder: Any) -> None:
        self._start = start
        self._size = size
        self._rest = remainder
        self._full = b.sdiv(size, _LONG(LANES))

    def load(self, b: Any, index: Any) -> Any:
        return b.load(self._vector(b, index), typ=_FLOATS, align=4)

    def store(self, b: Any, vector: Any, index: Any) -> None:
        b.store(vector, self._vector(b, index), align=4)

    def take_rest(self, b: Any, behind: float) -> None:
        """Copy the numbers that do not fill a vector out of the row, and pad them with `behind`."""
        for index in range(2):
            b.store(_vector(_FLOATS, behind), _at(b, self._rest, _LONG(index), _FLOATS), align=4)
        for inside, outside in self._rests(b):
            b.store(b.load(inside, typ=_FLOAT), outside)

    def put_rest(self, b: Any) -> None:
        """Copy the numbers that do not fill a vector back into the row."""
        for inside, outside in self._rests(b):
            b.store(b.load(outside, typ=_FLOAT), inside)

    def _vector(self, b: Any, index: Any) -> Any:
        inside = _at(b, self._start, index, _FLOATS)
        outside = _at(b, self._rest, b.sub(index, self._full), _FLOATS)
        return b.select(b.icmp_signed("<", index, self._full), inside, outside)

    def _rests(self, b: Any) -> Iterator[tuple[Any, Any]]:
        begin = b.mul(self._full, _LONG(LANES))
        with _loop(b, self._size, begin) as j:
            yield _at(b, self._start, j), _at(b, self._rest, b.sub(j, begin))


def _chunk_maxima(b: Any, scores: _Row, n_chunks: Any, maxima: Any) -> Any:
    """Write the largest score of every chunk, padded with −inf to whole vectors; return the largest of all."""
    last = b.sub(_divide_up(b, n_chunks, LANES), _LONG(1))
    b.store(_vector(_FLOATS, _NOTHING), _at(b, maxima, last, _FLOATS), align=4)
    largest = _variable(b, _vector(_FLOATS, _NOTHING))
    with _loop(b, n_chunks) as chunk:
        here = _larger(b, *(scores.load(b, index) for index in _vectors(b, chunk)))
        b.store(_combine(b, _larger, here), _at(b, maxima, chunk))
        b.store(_larger(b, b.load(largest, typ=_FLOATS), here), largest)
    return _combine(b, _larger, b.load(largest, typ=_FLOATS))


def _powers(b: Any, scores: _Row, powers: _Row, n_chunks: Any, largest: Any) -> list[Any]:
    """Write e^(s − largest) of every score; return Σ e^(s − largest), and Σ e^(s − largest)·(s − largest)."""
    smallest = _vector(_FLOATS, _SMALLEST)
    subtracted = _everywhere(b, largest)

    def terms(b: Any, index: Any) -> _Terms:
        below = _larger(b, b.fsub(scores.load(b, index), subtracted), smallest)
        power = b.select(
            b.fcmp_ordered(">", below, smallest), _power(b, below), _vector(_FLOATS, 0)
        )
        powers.store(b, power, index)
        return [(power, None), (power, below)]

    return _add_up(b, b.mul(n_chunks, _LONG(2)), terms, n_sums=2)


def _add_up(
    b: Any, end: Any, terms: Callable[[Any, Any], _Terms], start: Any = None, n_sums: int = 1
) -> list[Any]:
    """Return sums over the vectors from `start` (or 0) to `end`, exclusive; `terms` writes what each one adds."""
    start = _LONG(0) if start is None else start
    totals = [_variable(b, _vector(_DOUBLES, 0)) for _ in range(n_sums)]
    with _loop(b, _divide_up(b, b.sub(end, start), _BLOCK)) as block:
        of_block = [_variable(b, _vector(_FLOATS, 0)) for _ in range(n_sums)]
        begin = b.add(start, b.mul(block, _LONG(_BLOCK)))
        with _loop(b, _smaller(b, b.add(begin, _LONG(_BLOCK)), end), begin) as index:
            for so_far, (term, factor) in zip(of_block, terms(b, index), strict=True):
                before = b.load(so_far, typ=_FLOATS)
                b.store(
                    b.fadd(before, term)
                    if factor is None
                    else _multiply_add(b, term, factor, before),
                    so_far,
                )
        for total, so_far in zip(totals, of_block, strict=True):
            more = b.fpext(b.load(so_far, typ=_FLOATS), _DOUBLES)
            b.store(b.fadd(b.load(total, typ=_DOUBLES), more), total)
    return [_combine(b, ir.IRBuilder.fadd, b.load(total, typ=_DOUBLES)) for total in totals]


def _power(b: Any, x: Any) -> Any:
    """Return e^x for −87 ≤ x ≤ 0, to about two units in the last place: 2^n · e^r with n = round(x / log 2)."""
    shifted = _multiply_add(b, x, _vector(_FLOATS, _ONE_OVER_LOG_2), _vector(_FLOATS, _ROUND))
    exponent = b.shl(b.bitcast(shifted, _INTS), _vector(_INTS, _MANTISSA))
    n = b.fsub(shifted, _vector(_FLOATS, _ROUND))
    r = _multiply_add(b, n, _vector(_FLOATS, -_LOG_2_HIGH), x)
    r = _multiply_add(b, n, _vector(_FLOATS, -_LOG_2_LOW), r)
    series = _vector(_FLOATS, _SERIES[0])
    for factor in _SERIES[1:]:
        series = _multiply_add(b, series, r, _vector(_FLOATS, factor))
    power = b.fadd(_multiply_add(b, series, b.fmul(r, r), r), _vector(_FLOATS, 1))
    return b.bitcast(b.add(b.bitcast(power, _INTS), exponent), _FLOATS)


def _strongest(b: Any, scores: _Row, n_chunks: Any, maxima: Any, count: Any, places: Any) -> None:
    """Write the places of the largest scores, updating each chunk's maximum to its remaining scores."""
    lanes = ir.Constant(_INTS, list(range(LANES)))
    nowhere = _vector(_INTS, _NO_PLACE)
    # the score found last, and the next place
    last = _variable(b, _FLOAT(_NOTHING))
    behind = _variable(b, _INT(0))
    with _loop(b, count) as j:
        largest = _variable(b, _vector(_FLOATS, _NOTHING))
        numbers = _variable(b, _vector(_INTS, 0))
        with _loop(b, _divide_up(b, n_chunks, LANES)) as index:
            here = b.load(_at(b, maxima, index, _FLOATS), typ=_FLOATS, align=4)
            so_far = b.load(largest, typ=_FLOATS)
            larger = b.fcmp_ordered(">", here, so_far)
            b.store(b.select(larger, here, so_far), largest)
            before = b.load(numbers, typ=_INTS)
            now = _everywhere(b, b.trunc(index, _INT))
            b.store(b.select(larger, now, before), numbers)
        best = b.load(largest, typ=_FLOATS)
        value = _combine(b, _larger, best)
        values = _everywhere(b, value)
        with b.if_else(b.fcmp_ordered("==", value, _FLOAT(_NOTHING))) as (none_left, some_left):
            with none_left:
                b.store(_LONG(-1), _at(b, places, j, _LONG))
            with some_left:
                at = b.add(b.mul(b.load(numbers, typ=_INTS), _vector(_INTS, LANES)), lanes)
                chunk = _combine(
                    b, _smaller, b.select(b.fcmp_ordered("==", best, values), at, nowhere)
                )
                # equal scores are found in their order
                again = b.fcmp_ordered("==", value, b.load(last, typ=_FLOAT))
                start = _everywhere(b, b.select(again, b.load(behind, typ=_INT), _INT(0)))
                lowest = nowhere
                halves = []
                for half, index in enumerate(_vectors(b, b.sext(chunk, _LONG))):
                    begin = b.add(b.mul(chunk, _INT(CHUNK)), _INT(half * LANES))
                    here = scores.load(b, index)
                    at = b.add(_everywhere(b, begin), lanes)
                    equal = b.fcmp_ordered("==", here, values)
                    hit = b.and_(equal, b.icmp_signed(">=", at, start))
                    lowest = _smaller(b, lowest, b.select(hit, at, nowhere))
                    halves.append((here, at, equal))
                found = _combine(b, _smaller, lowest)
                left = _vector(_FLOATS, _NOTHING)
                for here, at, equal in halves:
                    later = b.and_(equal, b.icmp_signed(">", at, _everywhere(b, found)))
                    stays = b.or_(later, b.fcmp_ordered("<", here, values))
                    left = _larger(b, left, b.select(stays, here, _vector(_FLOATS, _NOTHING)))
                b.store(_combine(b, _larger, left), _at(b, maxima, b.sext(chunk, _LONG)))
                b.store(b.sext(found, _LONG), _at(b, places, j, _LONG))
                b.store(value, last)
                b.store(b.add(found, _INT(1)), behind)


def _variable(b: Any, value: Any) -> Any:
    """Return the address of a variable that holds `value` from here on."""
    with b.goto_entry_block():
        address = b.alloca(value.type)
    b.store(value, address)
    return address


@contextmanager
def _loop(b: Any, end: Any, start: Any = None) -> Iterator[Any]:
    """Write a loop over every number from `start` (or 0) to `end`, exclusive."""
    counter = _variable(b, _LONG(0) if start is None else start)
    head, body, behind = (b.append_basic_block(name) for name in ("head", "body", "behind"))
    b.branch(head)
    b.position_at_end(head)
    i = b.load(counter, typ=_LONG)
    b.cbranch(b.icmp_signed("<", i, end), body, behind)
    b.position_at_end(body)
    yield i
    b.store(b.add(i, _LONG(1)), counter)
    b.branch(head)
    b.position_at_end(behind)


def _vector(vector_type: Any, value: float) -> Any:
    return ir.Constant(vector_type, [value] * vector_type.count)


def _everywhere(b: Any, value: Any) -> Any:
    """Return a vector of the same number."""
    vector_type = ir.VectorType(value.type, LANES)
    first_lane = b.insert_element(ir.Constant(vector_type, ir.Undefined), value, _INT(0))
    return b.shuffle_vector(first_lane, first_lane, _vector(_INTS, 0))


def _combine(b: Any, operator: Callable[[Any, Any, Any], Any], vector: Any) -> Any:
    """Combine the numbers of a vector to one: always one half with the other."""
    width = LANES
    while width > 1:
        width //= 2
        halves = (range(width), range(width, 2 * width))
        places = (ir.Constant(ir.VectorType(_INT, width), list(half)) for half in halves)
        vector = operator(b, *(b.shuffle_vector(vector, vector, half) for half in places))
    return b.extract_element(vector, _INT(0))


def _at(b: Any, start: Any, index: Any, entry_type: Any = _FLOAT) -> Any:
    """Return the address of an entry of an array."""
    return b.gep(start, [index], source_etype=entry_type)


def _vectors(b: Any, chunk: Any) -> tuple[Any, Any]:
    first_vector = b.mul(chunk, _LONG(2))
    return first_vector, b.add(first_vector, _LONG(1))


def _divide_up(b: Any, value: Any, by: int) -> Any:
    return b.sdiv(b.add(value, _LONG(by - 1)), _LONG(by))


def _smaller(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.icmp_signed("<", x, y), x, y)


def _larger_number(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.icmp_signed(">", x, y), x, y)


def _larger(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.fcmp_ordered(">", x, y, flags=_NUMBERS), x, y, flags=_NUMBERS)


def _multiply_add(b: Any, x: Any, y: Any, z: Any) -> Any:
    return b.fadd(b.fmul(x, y, flags=_NUMBERS), z, flags=_NUMBERS)


def write() -> ir.Module:
    """Write all functions."""
    module = ir.Module()
    _write_softmax(module)
    _write_sums(module)
    return module


def _compile(ir_module: ir.Module) -> llvm.ExecutionEngine:
    """Make machine code for this processor; it lives as long as the returned object."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    processor = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    machine = llvm.Target.from_default_triple().create_target_machine(*processor, jit=True)
    module = llvm.parse_assembly(str(ir_module))
    simple = llvm.create_pipeline_tuning_options(speed_level=1)  # the loops are already of vectors
    simple.loop_unrolling = simple.loop_vectorization = simple.slp_vectorization = False
    passes = llvm.create_pass_builder(machine, simple)
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


_engine = _compile(write())
_softmax, _sums = (
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * addresses, *[ctypes.c_int64] * numbers)(
        _engine.get_function_address(name)
    )
    for name, addresses, numbers in (("softmax", 6, 3), ("sums", 5, 7))
)
