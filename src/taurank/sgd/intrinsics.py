"""The few machine operations that Numba lacks: prefetching, and atomic access to integers that threads share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LINE = 64  # bytes of a cache line
LINES_FETCHED = 4  # the processor's own prefetcher fetches the rest of a row

_INT = ir.IntType(64)
_WORD = ir.IntType(32)
_BYTES = ir.IntType(8).as_pointer()

_Value = Any  # an LLVM value; llvmlite has no type hints


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(context: Any, array: Any, index: Any) -> Any:
    """Load the first cache lines of ``array[index]`` (a row, or what follows an element) ahead of use."""

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
    """Add one to ``counter[0]`` atomically; return its value before."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[_Value]) -> _Value:
        address = _element(context, builder, signature.args[0], args[0], ir.Constant(_INT, 0))
        return builder.atomic_rmw("add", address, ir.Constant(_INT, 1), "acq_rel")

    return types.int64(counter), generate


@intrinsic  # type: ignore[untyped-decorator]
def load_acquire(context: Any, array: Any, index: Any) -> Any:
    """``array[index]``; what its writer wrote before is visible after this call."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[_Value]) -> _Value:
        address = _element(context, builder, signature.args[0], *args)
        return builder.load_atomic(address, ordering="acquire", align=8)

    return types.int64(array, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_release(context: Any, array: Any, index: Any, value: Any) -> Any:
    """Set ``array[index] = value``; a thread that reads it by ``load_acquire`` sees everything written before."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[_Value]) -> _Value:
        array, index, value = args
        address = _element(context, builder, signature.args[0], array, index)
        builder.store_atomic(value, address, ordering="release", align=8)
        return context.get_dummy_value()

    return types.none(array, types.int64, types.int64), generate


def _element(context: Any, builder: Any, kind: Any, array: _Value, index: _Value) -> _Value:
    return builder.gep(_array(context, builder, kind, array).data, [index])


def _row(context: Any, builder: Any, kind: Any, table: _Value, row: _Value) -> _Value:
    array = _array(context, builder, kind, table)
    columns = cgutils.unpack_tuple(builder, array.shape, 2)[1]
    return builder.gep(array.data, [builder.mul(row, columns)])


def _array(context: Any, builder: Any, kind: Any, value: _Value) -> Any:
    return context.make_array(kind)(context, builder, value)


def _prefetch(builder: Any, address: _Value) -> None:
    kind = ir.FunctionType(ir.VoidType(), [_BYTES] + [_WORD] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    to_read, keep, data = (ir.Constant(_WORD, n) for n in (0, 3, 1))
    builder.call(function, [address, to_read, keep, data])
