"""Worker processes that never outlive the process they work for."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from taurank.errors import InputError

Result = TypeVar("Result")


def run_tasks(
    work: Callable[..., Result], shared: Any, batches: Iterable[list[tuple[Any, ...]]], jobs: int
) -> Generator[Result, None, None]:
    """``work(shared, *task)`` for every task of one batch after the other, in the order in which they end.

    ``shared`` is sent to every process once. The next batch is asked for when all results of the one before have been
    taken. However this generator ends, no process is left behind.
    """
    if jobs == 1:
        for batch in batches:
            for task in batch:
                yield work(shared, *task)
        return
    context = get_context("spawn")
    alive, lifeline = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(alive, work, shared))
    try:
        for batch in batches:
            with _interrupts_blocked():
                running = [pool.submit(_work, *task) for task in batch]
            for done in as_completed(running):
                yield done.result()
    except BrokenProcessPool as error:
        raise InputError(
            "a worker process ended unexpectedly, perhaps for lack of memory; try fewer jobs. With several jobs, "
            "learners must be importable from a module, and a script needs `if __name__ == '__main__':`."
        ) from error
    finally:
        lifeline.close()  # ends the workers at once, also in the middle of a task
        pool.shutdown(wait=True, cancel_futures=True)
        alive.close()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes that are started here inherit the mask and never see Ctrl-C: the one that started them ends them.

    In this process the signal is not lost but handled after the block.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_task: Callable[..., Any]  # of a worker process


def _begin(alive: Connection, work: Callable[..., Any], shared: Any) -> None:
    """In a new worker: watch the pipe whose other end only the first process holds, then wait for tasks."""
    global _task

    def end_with_parent() -> None:
        try:
            alive.poll(None)  # returns when the other end is closed, by the parent or by its death
        finally:
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()

    def task(*arguments: Any) -> Any:
        return work(shared, *arguments)

    _task = task


def _work(*arguments: Any) -> Any:
    return _task(*arguments)
