"""How kernels are compiled: cached on disk, without the GIL, with strict floating-point arithmetic unless stated."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be reordered into vectors and products fused with sums. That happens once, when the code is compiled, so
# all threads run the same instructions; NaN and infinity keep their meaning.
_REORDERED = {"reassoc", "contract", "nsz", "arcp"}
_NO_CACHE = (
    "no folder for compiled code can be written, so taurank compiles its kernels again in every process; "
    "set NUMBA_CACHE_DIR to a writable folder."
)
_warned = False


def compiled(function: Function) -> Function:
    """A kernel: machine code cached on disk, releases the GIL, strict floating-point arithmetic."""
    return cached_njit(function)


def inlined(function: Function) -> Function:
    """A part of a kernel, inlined into the loop that calls it."""
    return cached_njit(function, forceinline=True)


def vectorized(function: Function) -> Function:
    """A loop over a row, inlined like ``inlined``; the compiler may reorder its sums into vectors.

    A loop that adds up should not also write to a row of fewer than 64 floats: before it runs such a loop in
    vectors, compiled code checks that the arrays are not too close in memory, and otherwise adds up one by one.
    The bits of the sum would then depend on where an array happens to lie.
    """
    return cached_njit(function, forceinline=True, fastmath=_REORDERED)


def cached_njit(function: Function, **options: Any) -> Function:
    """Compile with a cache on disk; without a writable cache folder in memory alone, with one warning."""
    try:
        return cast(Function, numba.njit(cache=True, nogil=True, **options)(function))
    except RuntimeError as error:  # Numba: "cannot cache function …: no locator available"
        if "cannot cache function" not in str(error):
            raise
    _warn_once()
    return cast(Function, numba.njit(nogil=True, **options)(function))


def _warn_once() -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(_NO_CACHE, RuntimeWarning, stacklevel=3)


@vectorized
def dot32(a: Any, b: Any) -> Any:
    """a · b in float32, of rows in float32."""
    total = np.float32(0.0)
    for j in range(len(a)):
        total += a[j] * b[j]
    return total
