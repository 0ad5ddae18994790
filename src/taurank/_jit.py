"""How kernels are compiled: cached on disk, without the GIL, with strict floating-point arithmetic unless stated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be reordered into vectors and products fused with sums. That happens once, when the code is compiled, so
# all threads run the same instructions; NaN and infinity keep their meaning.
_REORDERED = {"reassoc", "contract", "nsz", "arcp"}


def compiled(function: Function) -> Function:
    """A kernel: machine code cached on disk, releases the GIL, strict floating-point arithmetic."""
    return cast(Function, njit(cache=True, nogil=True)(function))


def inlined(function: Function) -> Function:
    """A part of a kernel, inlined into the loop that calls it."""
    return cast(Function, njit(cache=True, nogil=True, forceinline=True)(function))


def vectorized(function: Function) -> Function:
    """A loop over a row, inlined like ``inlined``; the compiler may reorder its sums into vectors."""
    return cast(Function, njit(cache=True, nogil=True, forceinline=True, fastmath=_REORDERED)(function))
