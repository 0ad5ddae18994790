"""The few machine operations that Numba cannot express: fused multiply-add, prefetch, atomics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

WIDTH = 8  # floats per vector; the number of columns of a factor table is a multiple of it

LINE = 64  # bytes of a cache line
LINES_FETCHED = 4  # the processor itself asks for what follows them

_FLOAT = ir.FloatType()
_INT = ir.IntType(64)
_LANE = ir.IntType(32)
_BYTES = ir.IntType(8).as_pointer()

_Value = Any  # an LLVM value; llvmlite carries no types of its own


@intrinsic  # type: ignore[untyped-decorator]
def fused(context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c in one instruction."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[_Value]) -> _Value:
        return _fma(builder, *args)

    return types.float32(types.float32, types.float32, types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(context: Any, array: Any, index: Any) -> Any:
    """Ask for the first cache lines of array[index], a row or what begins there, ahead of use."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[_Value]) -> _Value:
        kind = signature.args[0]
        find = _row if kind.ndim == 2 else _element
        start = builder.bitcast(find(context, builder, kind, *args), _BYTES)
        for line in range(LINES_FETCHED):
            _prefetch(builder, builder.gep(start, [ir.Constant(_INT, line * LINE)]))
        return context.get_dummy_value()

    return types.none(array, types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def fetch_add(context: Any, counter: Any) -> Any:
    """Add one to counter[0] for all threads at once; return what it was."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[_Value]) -> _Value:
        place = _element(context, builder, signature.args[0], args[0], ir.Constant(_INT, 0))
        return builder.atomic_rmw("add", place, ir.Constant(_INT, 1), "acq_rel")

    return types.int64(counter), generate


@intrinsic  # type: ignore[untyped-decorator]
def load_acquire(context: Any, board: Any, index: Any) -> Any:
    """board[index], and with it everything its writer wrote before."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[_Value]) -> _Value:
        place = _element(context, builder, signature.args[0], *args)
        return builder.load_atomic(place, ordering="acquire", align=8)

    return types.int64(board, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_release(context: Any, board: Any, index: Any, value: Any) -> Any:
    """Set board[index] = value for all threads, after everything written before."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[_Value]) -> _Value:
        board, index, value = args
        place = _element(context, builder, signature.args[0], board, index)
        builder.store_atomic(value, place, ordering="release", align=8)
        return context.get_dummy_value()

    return types.none(board, types.int64, types.int64), generate


def _array(context: Any, builder: Any, kind: Any, value: _Value) -> Any:
    return context.make_array(kind)(context, builder, value)


def _element(context: Any, builder: Any, kind: Any, array: _Value, index: _Value) -> _Value:
    return builder.gep(_array(context, builder, kind, array).data, [index])


def _row(context: Any, builder: Any, kind: Any, table: _Value, row: _Value) -> _Value:
    array = _array(context, builder, kind, table)
    columns = cgutils.unpack_tuple(builder, array.shape, 2)[1]
    return builder.gep(array.data, [builder.mul(row, columns)])


def _prefetch(builder: Any, place: _Value) -> None:
    kind = ir.FunctionType(ir.VoidType(), [_BYTES] + [_LANE] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    to_read, keep, data = (ir.Constant(_LANE, n) for n in (0, 3, 1))
    builder.call(function, [place, to_read, keep, data])


def _fma(builder: Any, a: _Value, b: _Value, c: _Value) -> _Value:
    name = "llvm.fma.f32" if a.type == _FLOAT else f"llvm.fma.v{WIDTH}f32"
    kind = ir.FunctionType(a.type, [a.type] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [a, b, c])
