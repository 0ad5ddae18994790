"""The worker processes: one Ray actor each, replaced when it is lost.

A worker runs the functions it is sent, and holds one object between calls, its part of a fit. All work runs in these
actors, none in Ray tasks: a cluster that is full of workers would have no room for tasks.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from taurank.errors import InputError, first_line, missing_extra

ANSWER_SECONDS = 10.0  # for a lost worker to be noticed; one that is busy takes longer to answer, and is kept
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


class Worker:
    """A process with one thread."""

    def __init__(self, number: int) -> None:
        self.number, self.held = number, None

    def pid(self) -> int:
        return os.getpid()

    def run(self, held: bool, parts: int | None, function: Callable[..., Any], *arguments: Any) -> Any:
        value = function(self.held, *arguments) if held else function(*arguments)
        return value if parts is None else value[0] if parts == 1 else tuple(value)

    def hold(self, kind: Callable[..., Any], *arguments: Any) -> None:
        self.held = None  # released before the next one is made
        self.held = kind(*arguments)


class WorkerPool:
    """``workers`` actors, numbered from 0."""

    def __init__(self, workers: int) -> None:
        self.ray = require_ray()
        self._kind = self.ray.remote(Worker).options(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")
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

    def call(self, worker: int, function: Callable[..., Any], *arguments: Any, held: bool = False) -> Any:
        """Run a function on a worker, ``held``: as a method of the object it holds; a reference to the result."""
        return self.actor(worker).run.remote(held, None, function, *arguments)

    def split(
        self, worker: int, parts: int, function: Callable[..., Any], *arguments: Any, held: bool = False
    ) -> list[Any]:
        """As ``call`` for a function that returns ``parts`` things: a reference to each of them."""
        references = self.actor(worker).run.options(num_returns=parts).remote(held, parts, function, *arguments)
        return [references] if parts == 1 else references

    def hold(self, worker: int, kind: Callable[..., Any], *arguments: Any) -> None:
        """Let a worker make an object and hold it, instead of the one it held."""
        self.actor(worker).hold.remote(kind, *arguments)

    def each(self, method: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a method of the object that each worker holds; the results."""
        return list(self.get([self.call(n, method, *arguments, held=True) for n in range(len(self))]))

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
        """Drop the actors that are lost; their numbers. The next call starts them again."""
        self.losses += 1
        if self.losses > MAX_LOSSES:
            raise InputError(
                f"workers were lost {self.losses} times in a row, perhaps for lack of memory; use machines with more "
                "memory, or more of them."
            )
        answers = {actor.pid.remote(): n for n, actor in enumerate(self._actors) if actor is not None}
        ready, _ = self.ray.wait(list(answers), num_returns=len(answers), timeout=ANSWER_SECONDS)
        lost = sorted(answers[answer] for answer in ready if self._is_lost(answer))
        for worker in lost:
            self.ray.kill(self._actors[worker])
            self._actors[worker] = None
            self.generation[worker] += 1
        return lost

    def map(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """One result per task, in order; workers take tasks as they finish, and a lost worker's task is repeated."""
        results: list[Any] = [None] * len(tasks)
        waiting, running = deque(enumerate(tasks)), dict[Any, tuple[int, int]]()
        idle = deque(range(len(self)))
        while waiting or running:
            while waiting and idle:
                number, task = waiting.popleft()
                worker = idle.popleft()
                running[self.call(worker, function, *task)] = (number, worker)
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
        return [int(pid) for pid in self.get([self.actor(n).pid.remote() for n in range(len(self))])]

    def _is_lost(self, answer: Any) -> bool:
        try:
            self.ray.get(answer)
        except self.ray.exceptions.RayError:
            return True
        return False

    def _refuse_memory(self, error: BaseException) -> None:
        if isinstance(error, self.ray.exceptions.OutOfMemoryError) or _MEMORY_WORDS in str(error):
            raise out_of_memory() from error


def out_of_memory() -> InputError:
    return InputError(
        "a worker ran out of memory; use more workers on more machines (each holds its share of the positives and "
        "of the user factors), or fewer factors."
    )
