"""Kernels compiled with a cache on disk, or in memory where no folder for the cache can be written."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

_WARNING = (
    "no folder for compiled code can be written, so taurank compiles its kernels again in every process; "
    "set NUMBA_CACHE_DIR to a writable folder."
)
_warned = False


def cached_njit(function: Function, **options: Any) -> Function:
    """``numba.njit(cache=True, **options)``; without a writable cache folder the same, uncached, with one warning."""
    try:
        return cast(Function, numba.njit(cache=True, **options)(function))
    except RuntimeError as error:  # Numba: "cannot cache function …: no locator available"
        if "cannot cache function" not in str(error):
            raise
    _warn_once()
    return cast(Function, numba.njit(**options)(function))


def _warn_once() -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(_WARNING, RuntimeWarning, stacklevel=3)
