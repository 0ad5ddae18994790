"""The few machine operations that Numba lacks: prefetching, and atomic access to integers that threads share."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LINE = 64  # bytes of a cache line
LINES_FETCHED = 4  # the processor's own prefetcher fetches the rest of a row

_INT, _WORD, _BYTES = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(context: Any, array: Any, index: Any) -> Any:
    """Load the first cache lines from element ``index`` of the flat array on, ahead of use."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start = builder.bitcast(_element(context, builder, signature, *args), _BYTES)
        kind = ir.FunctionType(ir.VoidType(), [_BYTES] + [_WORD] * 3)
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        to_read, keep, data = (ir.Constant(_WORD, n) for n in (0, 3, 1))
        for line in range(LINES_FETCHED):
            builder.call(fetch, [builder.gep(start, [ir.Constant(_INT, line * LINE)]), to_read, keep, data])
        return context.get_dummy_value()

    return types.none(array, types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def fetch_add(context: Any, array: Any, index: Any) -> Any:
    """Add one to ``array[index]`` atomically; return its value before.

    A thread that sees the sum by ``load_acquire`` sees everything that was written before.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _element(context, builder, signature, *args)
        return builder.atomic_rmw("add", address, ir.Constant(_INT, 1), "acq_rel")

    return types.int64(array, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def load_acquire(context: Any, array: Any, index: Any) -> Any:
    """``array[index]``; what its writer wrote before is visible after this call."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _element(context, builder, signature, *args)
        return builder.load_atomic(address, ordering="acquire", align=8)

    return types.int64(array, types.int64), generate


def _element(context: Any, builder: Any, signature: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(signature.args[0])(context, builder, array).data, [index])
