"""The worker processes: Ray actors that run the functions they are sent.

A worker also holds one object between calls, its part of a fit. All work runs in these actors, none in Ray tasks: a
cluster that is full of workers would have no room for tasks. Ray starts a lost worker again and repeats what it was
doing; what it held is gone, though, and the next use of it raises ``Lost``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from taurank.errors import InputError, missing_extra

MAX_LOSSES = 10  # of one worker, while the connection is open
_MEMORY_WORDS = "running low on memory"  # Ray's monitor; the kernel's is among the causes that it lists for any loss


class Lost(InputError):
    """A worker, or what it held, is gone."""

    def __init__(self, sentence: str = "") -> None:
        super().__init__(
            f"a worker was lost more than {MAX_LOSSES} times, perhaps for lack of memory; use machines with more "
            "memory, or more of them."
        )


def require_ray() -> Any:
    """The module ``ray``, or the sentence that says how to install it."""
    try:
        import ray
    except ImportError as error:
        raise missing_extra("ray", "cluster") from error
    return ray


class Worker:
    """A process with one thread."""

    held: Any = None

    def run(self, parts: int | None, function: Callable[..., Any], *arguments: Any) -> Any:
        return _parts(function(*arguments), parts)

    def hold(self, kind: Callable[..., Any], *arguments: Any) -> None:
        self.held = None  # released before the next one is made
        self.held = kind(*arguments)

    def use(self, parts: int | None, method: Callable[..., Any], *arguments: Any) -> Any:
        if self.held is None:
            raise Lost
        return _parts(method(self.held, *arguments), parts)


def _parts(value: Any, parts: int | None) -> Any:
    """What Ray stores as so many objects."""
    return value if parts is None else value[0] if parts == 1 else tuple(value)


class WorkerPool:
    """``workers`` actors, numbered from 0, and ``storage``, a folder that all their machines reach."""

    def __init__(self, workers: int, storage: Path) -> None:
        self.ray, self.storage = require_ray(), storage
        kind = self.ray.remote(Worker).options(
            num_cpus=1, max_restarts=MAX_LOSSES, max_task_retries=-1, scheduling_strategy="SPREAD"
        )
        self.actors = [kind.remote() for _ in range(workers)]

    def __len__(self) -> int:
        return len(self.actors)

    def run(self, worker: int, function: Callable[..., Any], *arguments: Any, parts: int | None = None) -> Any:
        """Run a function on a worker: a reference to its result, or a list of them to the ``parts`` of it."""
        return _references(self.actors[worker].run, parts, (function, *arguments))

    def hold(self, worker: int, kind: Callable[..., Any], *arguments: Any) -> None:
        """Let a worker make an object and hold it, instead of the one it held."""
        self.actors[worker].hold.options(max_task_retries=0).remote(kind, *arguments)

    def use(self, worker: int, method: Callable[..., Any], *arguments: Any, parts: int | None = None) -> Any:
        """As ``run``, for a method of the object that the worker holds."""
        return _references(self.actors[worker].use, parts, (method, *arguments), max_task_retries=0)

    def use_all(self, method: Callable[..., Any], *arguments: Any) -> list[Any]:
        """A method of the object that each worker holds; the results."""
        return list(self.get([self.use(n, method, *arguments) for n in range(len(self))]))

    def map(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """One result per task, in order; workers take tasks as they finish."""
        from ray.util import ActorPool

        self.check_open()
        numbered, pool = [(number, function, *task) for number, task in enumerate(tasks)], ActorPool(self.actors)
        with self._errors():
            results = dict(pool.map_unordered(lambda actor, task: actor.run.remote(None, _numbered, *task), numbered))
        return [results[number] for number in range(len(tasks))]

    def put(self, value: Any) -> Any:
        """Store a value once for all workers."""
        self.check_open()
        return self.ray.put(value)

    def get(self, references: Any) -> Any:
        """The values behind references; an error of a worker's own work is raised here."""
        with self._errors():
            return self.ray.get(references)

    def new_folder(self) -> Path:
        """An empty folder in the storage, for as long as the connection is open."""
        return Path(tempfile.mkdtemp(dir=self.storage))

    def check_open(self) -> None:
        if not self.actors:
            raise InputError("the connection of this log is closed; read it again inside `with connect(…)`.")

    def pids(self) -> list[int]:
        """The process of every worker, once all are there."""
        return [int(pid) for pid in self.get([self.run(n, os.getpid) for n in range(len(self))])]

    def close(self) -> None:
        """End the workers."""
        for actor in self.actors:
            self.ray.kill(actor)
        self.actors = []

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the error of a function as it was; a lost worker as ``Lost``, or as the lack of memory behind it."""
        errors = self.ray.exceptions
        losses = (errors.RayActorError, errors.ObjectLostError, errors.WorkerCrashedError)
        try:
            yield
        except (errors.RayTaskError, errors.OutOfMemoryError, *losses) as error:
            cause = error.cause if isinstance(error, errors.RayTaskError) else error
            if isinstance(cause, (MemoryError, errors.OutOfMemoryError)) or _MEMORY_WORDS in str(cause):
                raise InputError(
                    "a worker ran out of memory; use more workers on more machines (each holds its share of the "
                    "positives and of the user factors), or fewer factors."
                ) from error
            if isinstance(cause, losses):  # also of a task that needed what a lost worker should have made
                raise Lost from error
            raise cause from None


def _references(method: Any, parts: int | None, arguments: tuple[Any, ...], **options: Any) -> Any:
    references = method.options(num_returns=parts or 1, **options).remote(parts, *arguments)
    return [references] if parts == 1 else references


def _numbered(number: int, function: Callable[..., Any], *arguments: Any) -> tuple[int, Any]:
    return number, function(*arguments)
