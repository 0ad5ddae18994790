"""Threads of our own for compiled code: started per call, gone when it returns, stopped by one shared flag.

Numba's parallel loops keep a pool of threads that neither survives a fork nor allows two callers at once. Here each
call starts its threads and joins them. Signal handlers run on the main thread, which only waits: an interrupt never
hits compiled code, it sets the flag, and the threads return at their next unit of work.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from taurank._checks import check_integer

Flag = npt.NDArray[np.int64]  # one number, so that kernels can read it: 0 go on, 1 stop
T = TypeVar("T")

MAX_THREADS = 64  # more are started only on a machine with more cores
START_SECONDS = 2.0  # to wait for a thread whose start was interrupted: it may be about to run, or may never run
BLOCKS_PER_THREAD = 4  # of `map_blocks`: evens out blocks that take longer


def worker_count(threads: int | None) -> int:
    """The number of threads to start: all cores this process may use, unless given."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if threads is None else min(check_integer("threads", threads), max(cores, MAX_THREADS))


def map_blocks(work: Callable[[int, int], object], n: int, threads: int | None = None) -> None:
    """Call ``work(begin, end)`` for blocks that cover 0 … n − 1, on several threads.

    ``work`` is a kernel that releases the GIL and writes results that do not depend on the cut into blocks.
    """
    run_interruptibly(lambda stop: share_blocks(work, n, threads, stop))


def share_blocks(work: Callable[[int, int], object], n: int, threads: int | None, stop: Flag) -> None:
    """``map_blocks`` for use inside a task that is run interruptibly."""
    count = worker_count(threads)
    blocks = max(1, min(n, BLOCKS_PER_THREAD * count))
    todo = _Shared(itertools.pairwise(n * block // blocks for block in range(blocks + 1)))

    def take_blocks() -> None:
        for begin, end in todo:
            if stop[0]:
                return
            work(begin, end)

    run_together(take_blocks, min(count, blocks), stop)


def run_interruptibly(task: Callable[[Flag], T]) -> T:
    """Run ``task`` on a thread of its own and wait; an exception here sets the flag that the task was given."""
    stop, done = np.zeros(1, np.int64), threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(task(stop))
        except BaseException as error:  # raised again by the caller
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run)
    try:
        thread.start()
        done.wait()  # not join: interrupted, it would take the thread for finished
    except RuntimeError as error:
        if "unlocked lock" not in str(error) or error.__context__ is None:
            raise
        raise error.__context__ from None  # Python's Event.wait, interrupted where it has given its lock back
    finally:
        stop[0] = 1
        if done.wait(START_SECONDS if thread.ident is None else None):
            thread.join()
    if errors:
        raise errors[0]
    return results[0]


def run_together(work: Callable[[], None], threads: int, stop: Flag) -> None:
    """Call ``work`` on this thread and on ``threads`` − 1 others; the first exception stops all and is raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # raised again below
            errors.append(error)
            stop[0] = 1

    helpers = [threading.Thread(target=run) for _ in range(threads - 1)]
    started = []
    try:
        for helper in helpers:
            helper.start()
            started.append(helper)
        run()
    except BaseException:  # the system cannot start another thread
        stop[0] = 1
        raise
    finally:
        for helper in started:
            helper.join()
    if errors:
        raise errors[0]


class _Shared:
    """An iterator that several threads take from."""

    def __init__(self, items: Any) -> None:
        self.items, self.lock = items, threading.Lock()

    def __iter__(self) -> _Shared:
        return self

    def __next__(self) -> Any:
        with self.lock:
            return next(self.items)


def one_blas_thread() -> AbstractContextManager[Any]:
    """BLAS on one thread inside the block: matrix products of a fixed shape then have fixed bits."""
    context: AbstractContextManager[Any] = _libraries().limit(limits=1, user_api="blas")
    return context


@cache
def _libraries() -> Any:
    """Looking for the libraries takes longer than a small evaluation, so it is done once."""
    return ThreadpoolController()
