"""The search itself: rounds of trials, pruning, and what is stored of them.

Trials run in rounds. What a round tries, and which of its trials are pruned, follows from the seed and the rounds
before it. So the trials of a search are the same for one process or several, and after any interruption.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from statistics import median
from typing import Any

from taurank._progress import Progress
from taurank.errors import DivergedError
from taurank.tuning.journal import Journal, Trial
from taurank.tuning.proposals import Settings, Space, grid_size, propose
from taurank.tuning.workers import run_tasks

Report = Callable[[Mapping[str, float]], None]
Objective = Callable[[Settings, Report], Mapping[str, float]]

ROUND = 4  # trials in a round; as many as there are processes, if those are more
RIVALS = 4  # finished trials before any is pruned


@dataclass(frozen=True)
class SearchSpec:
    """What is searched: the settings of ``space`` for which ``objective`` returns the best ``metric``.

    ``objective(settings, report)`` returns the values of all metrics to be recorded. On its way it may call
    ``report`` with their values so far, which ends the trial if it falls behind the others after ``warmup`` reports.
    ``start`` are settings to try first. ``identity`` is text that identifies this search in its journal.
    """

    name: str
    objective: Objective
    space: Space
    metric: str
    larger_is_better: bool
    trials: int
    sampler: str = "tpe"
    start: tuple[Settings, ...] = ()
    warmup: int = 1
    seed: int = 0
    identity: str = ""

    def fingerprint(self) -> str:
        """What a journal belongs to. The number of trials is not part of it: more can be asked for later."""
        space = {name: list(values) for name, values in self.space.items()}
        facts = [self.identity, self.metric, space, self.sampler, self.start, self.seed, self.warmup]
        return blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def run_searches(
    specs: Sequence[SearchSpec],
    journals: Sequence[str | os.PathLike[str] | None],
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[list[Trial]]:
    """All trials of all searches, those in the journals included; ``jobs`` processes share the trials of all."""
    progress = progress or Progress(False)
    with ExitStack() as stack:
        searches = []
        for spec, path in zip(specs, journals, strict=True):
            journal = Journal(None if path is None else Path(path), spec.fingerprint())
            stack.enter_context(closing(journal))
            journal.check(spec.space, spec.metric)
            searches.append(_Search(spec, journal, max(ROUND, jobs)))
        total = sum(search.total for search in searches)
        progress.begin("trials", total, total - sum(search.left() for search in searches))
        if any(search.left() for search in searches):
            _run(searches, jobs, progress)
        return [sorted(search.journal.trials.values(), key=lambda trial: trial.number) for search in searches]


def best_trial(trials: Iterable[Trial], metric: str, larger_is_better: bool) -> Trial | None:
    """The finished trial with the best value of a metric; the first of equals."""
    finished = [trial for trial in trials if trial.state == "finished"]
    sign = 1.0 if larger_is_better else -1.0
    return max(finished, key=lambda trial: (sign * trial.metrics[metric], -trial.number), default=None)


def _run(searches: list[_Search], jobs: int, progress: Progress) -> None:
    specs = [search.spec for search in searches]
    results = run_tasks(_measure, specs, _batches(searches), min(jobs, sum(search.left() for search in searches)))
    with closing(results):
        for index, trial in results:
            searches[index].journal.add(trial)
            several = f"{specs[index].name}: " if len(specs) > 1 else ""
            progress.step(several + _news(trial, specs[index]))


def _batches(searches: list[_Search]) -> Iterator[list[tuple[int, int, Settings, list[tuple[float, ...]]]]]:
    """One round of every search after the other."""
    rounds = [search.rounds() for search in searches]
    while batch := [(n, *task) for n, tasks in enumerate(rounds) for task in next(tasks, [])]:
        yield batch


def _news(trial: Trial, spec: SearchSpec) -> str:
    settings = ", ".join(f"{name}={_short(value)}" for name, value in trial.settings.items())
    value = trial.metrics.get(spec.metric)
    outcome = f"{spec.metric} {value:.4f}" if trial.state == "finished" and value is not None else trial.state
    return f"{outcome} with {settings}"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---- rounds --------------------------------------------------------------------------------------


@dataclass
class _Search:
    """A search on its way."""

    spec: SearchSpec
    journal: Journal
    round: int

    @property
    def total(self) -> int:
        return min(self.spec.trials, grid_size(self.spec.space))

    def left(self) -> int:
        return sum(number not in self.journal.trials for number in range(self.total))

    def rounds(self) -> Iterator[list[tuple[int, Settings, list[tuple[float, ...]]]]]:
        """The missing trials of each round: number, settings, and the curves they compete with."""
        for first in range(0, self.total, self.round):
            numbers = range(first, min(first + self.round, self.total))
            if any(number not in self.journal.trials for number in numbers):
                past = [trial for number, trial in sorted(self.journal.trials.items()) if number < first]
                curves = [trial.curve for trial in past if trial.state == "finished" and trial.curve]
                chosen = self._choose(numbers, past)
                yield [(n, chosen[n], curves) for n in chosen if n not in self.journal.trials]

    def _choose(self, numbers: range, past: list[Trial]) -> dict[int, Settings]:
        """The settings of a round, of which an interrupted search has made some already."""
        chosen: dict[int, Settings] = {}
        for number in numbers:
            known = self.journal.trials.get(number)
            tried = [dict(trial.settings) for trial in past] + list(chosen.values())
            settings = dict(known.settings) if known else self._propose(number, past, tried)
            if settings is not None:
                chosen[number] = settings
        return chosen

    def _propose(self, number: int, past: list[Trial], tried: list[Settings]) -> Settings | None:
        spec, made = self.spec, [dict(trial.settings) for trial in self.journal.trials.values()]
        if number < len(spec.start) and spec.start[number] not in [*tried, *made]:
            return dict(spec.start[number])
        best = best_trial(past, spec.metric, spec.larger_is_better)
        tried = list(tried)
        while True:
            settings = propose(
                spec.sampler, spec.space, past, tried, best, spec.larger_is_better, spec.metric, (spec.seed, number)
            )
            if settings is None or settings not in made:
                return settings
            tried.append(settings)  # a search with rounds of another length has made it under another number


# ---- one trial -----------------------------------------------------------------------------------


class _Pruned(Exception):
    """Raised inside a trial that fell behind."""


def _measure(
    specs: Sequence[SearchSpec], index: int, number: int, settings: Settings, rivals: list[tuple[float, ...]]
) -> tuple[int, Trial]:
    """Run one trial, in whichever process."""
    spec, began = specs[index], time.perf_counter()
    curve: list[float] = []
    metrics: Mapping[str, float] = {}

    def report(values: Mapping[str, float]) -> None:
        nonlocal metrics
        metrics = values
        curve.append(float(values[spec.metric]))
        if falls_behind(curve, rivals, spec.larger_is_better, spec.warmup):
            raise _Pruned

    try:
        metrics, state = spec.objective(dict(settings), report), "finished"
    except _Pruned:
        state = "pruned"
    except DivergedError:
        metrics, state = {}, "diverged"
    values = {name: float(value) for name, value in metrics.items()}
    if state == "finished" and not math.isfinite(values[spec.metric]):
        state = "diverged"
    return index, Trial(number, settings, state, values, tuple(curve), time.perf_counter() - began)


def falls_behind(
    curve: Sequence[float], rivals: Sequence[Sequence[float]], larger_is_better: bool, warmup: int
) -> bool:
    """Whether the best value so far is worse than the median of the rivals' best values after as many checks."""
    checks = len(curve)
    if checks <= warmup or len(rivals) < RIVALS:
        return False
    if larger_is_better:
        return max(curve) < median(max(rival[:checks]) for rival in rivals)
    return min(curve) > median(min(rival[:checks]) for rival in rivals)
