"""The worker processes: one Ray actor each, replaced when it is lost.

All work runs in these actors, none in Ray tasks: a cluster that is full of workers would have no room for tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from taurank.errors import InputError, first_line, missing_extra

MAX_LOSSES = 5  # in a row, without an epoch, a piece or a group finished in between
_MEMORY_WORDS = (
    "running low on memory"  # Ray's monitor; the kernel's is one of the causes that Ray lists for any loss
)


class Lost(Exception):
    """A worker, or what it had computed, is gone."""


def require_ray() -> Any:
    """The module ``ray``, or the sentence that says how to install it."""
    try:
        import ray
    except ImportError as error:
        raise missing_extra("ray", "cluster") from error
    return ray


class Pool:
    """``workers`` actors of a class, numbered from 0."""

    def __init__(self, kind: type, workers: int) -> None:
        self.ray = require_ray()
        self._kind = self.ray.remote(kind).options(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")
        self._actors: list[Any] = [None] * workers
        self.generation = [0] * workers  # how often each was replaced
        self.losses = 0

    def __len__(self) -> int:
        return len(self._actors)

    def actor(self, worker: int) -> Any:
        """The actor of this number, started if it is not there."""
        if self._actors[worker] is None:
            self._actors[worker] = self._kind.remote(worker)
        return self._actors[worker]

    def call(self, worker: int, method: str, *arguments: Any, returns: int = 1) -> Any:
        """Ask a worker for something; a reference, or a list of ``returns`` references."""
        return getattr(self.actor(worker), method).options(num_returns=returns).remote(*arguments)

    def each(self, method: str, *arguments: Any) -> list[Any]:
        """The same call on every worker; their results."""
        return list(self.get([self.call(worker, method, *arguments) for worker in range(len(self))]))

    def get(self, references: Any) -> Any:
        """The values behind references; a lost worker raises ``Lost``, an error of its own work that error."""
        errors = self.ray.exceptions
        losses = (errors.RayActorError, errors.ObjectLostError, errors.WorkerCrashedError)
        try:
            return self.ray.get(references)
        except (errors.RayTaskError, *losses) as error:
            cause = error.cause if isinstance(error, errors.RayTaskError) else error
            if isinstance(cause, losses):  # also a task that needed what a lost worker should have made
                self._refuse_memory(cause)
                raise Lost(first_line(cause)) from error
            raise (out_of_memory() if isinstance(cause, MemoryError) else cause) from None

    def repair(self) -> list[int]:
        """Drop the actors that no longer answer; their numbers. The next call starts them again."""
        self.losses += 1
        if self.losses > MAX_LOSSES:
            raise InputError(
                f"workers were lost {self.losses} times in a row, perhaps for lack of memory; use machines with more "
                "memory, or more of them."
            )
        lost = []
        for worker, actor in enumerate(self._actors):
            if actor is not None and not self._answers(actor):
                self.ray.kill(actor)
                self._actors[worker] = None
                self.generation[worker] += 1
                lost.append(worker)
        return lost

    def map(self, method: str, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """One result per task, in order; workers take tasks as they finish, and a lost worker's task is repeated."""
        results: list[Any] = [None] * len(tasks)
        waiting, running = deque(enumerate(tasks)), dict[Any, tuple[int, int]]()
        idle = deque(range(len(self)))
        while waiting or running:
            while waiting and idle:
                number, task = waiting.popleft()
                worker = idle.popleft()
                running[self.call(worker, method, *task)] = (number, worker)
            (done,), _ = self.ray.wait(list(running), num_returns=1)
            number, worker = running.pop(done)
            idle.append(worker)
            try:
                results[number] = self.get(done)
                self.losses = 0
            except Lost:
                self.repair()
                waiting.appendleft((number, tasks[number]))
        return results

    def put(self, value: Any) -> Any:
        """Store a value once for all workers."""
        return self.ray.put(value)

    def close(self) -> None:
        """End the workers."""
        for worker, actor in enumerate(self._actors):
            if actor is not None:
                self.ray.kill(actor)
                self._actors[worker] = None

    def pids(self) -> list[int]:
        """The process of every worker."""
        return [int(pid) for pid in self.each("pid")]

    def _answers(self, actor: Any) -> bool:
        try:
            self.ray.get(actor.pid.remote(), timeout=60)
        except Exception:  # lost, or unable to answer: it is replaced either way
            return False
        return True

    def _refuse_memory(self, error: BaseException) -> None:
        if isinstance(error, self.ray.exceptions.OutOfMemoryError) or _MEMORY_WORDS in str(error):
            raise out_of_memory() from error


def out_of_memory() -> InputError:
    return InputError(
        "a worker ran out of memory; use more workers on more machines (each holds its share of the positives and "
        "of the user factors), or fewer factors."
    )
