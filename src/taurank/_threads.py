"""How many threads to use, and how to keep other libraries from starting their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import numba
from threadpoolctl import ThreadpoolController

from taurank._validation import check_integer


def worker_count(threads: int | None) -> int:
    """The number of threads to use: all cores this process may use, unless given."""
    if threads is not None:
        return check_integer("threads", threads)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def using_threads(threads: int | None) -> Iterator[None]:
    """Let Numba use this many threads inside the block (None: all of them)."""
    available = numba.config.NUMBA_NUM_THREADS
    if threads is not None:
        check_integer("threads", threads)
    before = numba.get_num_threads()
    numba.set_num_threads(min(threads or available, available))
    try:
        yield
    finally:
        numba.set_num_threads(before)


def one_blas_thread() -> AbstractContextManager[Any]:
    """BLAS on one thread inside the block: matrix products of a fixed shape then have fixed bits."""
    context: AbstractContextManager[Any] = _libraries().limit(limits=1, user_api="blas")
    return context


@cache
def _libraries() -> Any:
    """Looking for the libraries takes longer than a small evaluation, so it is done once."""
    return ThreadpoolController()
