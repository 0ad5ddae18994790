"""How kernels are compiled: cached on disk, without the GIL, without fast-math."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """A kernel: machine code cached on disk, releases the GIL, strict floating-point arithmetic."""
    return cast(Function, njit(cache=True, nogil=True)(function))


def inlined(function: Function) -> Function:
    """A part of a kernel, inlined into the loop that calls it."""
    return cast(Function, njit(cache=True, nogil=True, forceinline=True)(function))
