"""Which settings to try next: a walk over the grid, or Optuna's tree-structured Parzen estimator (TPE).

A proposal depends on the seed, the number of the trial, and the trials it may look at; on nothing else. Settings that
were tried are never proposed again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from taurank.errors import missing_extra
from taurank.tuning.journal import Trial

Space = Mapping[str, Sequence[Any]]
Settings = dict[str, Any]
Point = tuple[int, ...]  # settings as positions in the lists of the space

SAMPLERS = ("tpe", "walk")
LEAPS = 3  # the first proposals of a walk, and every third after them, may be anywhere on the grid
MAX_POINTS = 20_000  # of a larger grid, this many points are drawn at random
TPE_STARTUP = 8  # trials before the estimator is used
TPE_ATTEMPTS = 20


def grid_size(space: Space) -> int:
    """The number of different settings."""
    return math.prod(len(values) for values in space.values())


def propose(
    sampler: str, space: Space, past: Sequence[Trial], tried: Sequence[Settings], best: Trial | None,
    larger_is_better: bool, metric: str, seed: Sequence[int],
) -> Settings | None:  # fmt: skip
    """New settings, or None if the whole grid was tried.

    ``past`` are the trials whose results may be used, ``tried`` all settings that were proposed before, and ``best``
    is the best of ``past``.
    """
    rng = np.random.default_rng(list(seed))
    if sampler == "tpe" and len(past) >= TPE_STARTUP:
        settings = _estimate(space, past, tried, larger_is_better, metric, int(rng.integers(2**31)))
        if settings is not None:
            return settings
    return walk(space, tried, None if sampler == "tpe" or best is None else dict(best.settings), rng)


# ---- the walk ------------------------------------------------------------------------------------


def walk(space: Space, tried: Sequence[Settings], best: Settings | None, rng: np.random.Generator) -> Settings | None:
    """New settings: the nearest to the best by steps on the grid or, on a leap, any."""
    seen = {_point(space, settings) for settings in tried}
    leaps = best is None or len(tried) <= LEAPS or len(tried) % LEAPS == 0
    start = None if best is None or leaps else _point(space, best)
    fresh = [point for point in _points(space, start, rng) if point not in seen]
    if not fresh:
        return None
    nearest = fresh if start is None else _nearest(space, fresh, start)
    return _settings(space, nearest[int(rng.integers(len(nearest)))])


def _points(space: Space, start: Point | None, rng: np.random.Generator) -> list[Point]:
    """The whole grid; of a large one, the neighbors of ``start`` and points at random."""
    sizes = [len(values) for values in space.values()]
    if math.prod(sizes) <= MAX_POINTS:
        return list(itertools.product(*map(range, sizes)))
    drawn = rng.integers(0, sizes, (MAX_POINTS, len(sizes)))
    return list(dict.fromkeys([*_neighbors(start, sizes), *map(tuple, drawn.tolist())]))


def _neighbors(start: Point | None, sizes: Sequence[int]) -> list[Point]:
    if start is None:
        return []
    around = [(*start[:n], start[n] + step, *start[n + 1 :]) for n in range(len(sizes)) for step in (-1, 1)]
    return [point for point in around if all(0 <= at < size for at, size in zip(point, sizes, strict=True))]


def _nearest(space: Space, points: Sequence[Point], start: Point) -> list[Point]:
    """The points with the fewest steps to ``start``; values that are not numbers are one step from each other."""
    apart = np.abs(np.array(points) - np.array(start))
    unordered = [not is_ordered(values) for values in space.values()]
    apart[:, unordered] = np.minimum(apart[:, unordered], 1)
    steps = apart.sum(axis=1)
    return [points[at] for at in np.flatnonzero(steps == steps.min()).tolist()]


def is_ordered(values: Sequence[Any]) -> bool:
    """Whether these values are numbers."""
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def _point(space: Space, settings: Mapping[str, Any]) -> Point:
    return tuple(list(values).index(settings[name]) for name, values in space.items())


def _settings(space: Space, point: Point) -> Settings:
    return {name: values[at] for (name, values), at in zip(space.items(), point, strict=True)}


# ---- TPE -----------------------------------------------------------------------------------------


def check_sampler() -> None:
    """Refuse TPE without Optuna, before anything is searched."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise missing_extra("optuna", "tune", 'in Python, search with sampler="walk"') from error


def _estimate(
    space: Space, past: Sequence[Trial], tried: Sequence[Settings], larger_is_better: bool, metric: str, seed: int
) -> Settings | None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=TPE_STARTUP)
    study = optuna.create_study(sampler=sampler, direction="maximize" if larger_is_better else "minimize")
    distributions = {name: optuna.distributions.CategoricalDistribution(values) for name, values in space.items()}
    study.add_trials([_frozen(trial, distributions, metric) for trial in past])
    for _ in range(TPE_ATTEMPTS):
        settings = dict(study.ask(distributions).params)
        if settings not in tried:
            return settings
    return None


def _frozen(trial: Trial, distributions: Mapping[str, Any], metric: str) -> Any:
    from optuna.trial import TrialState, create_trial

    finished = trial.state == "finished"
    return create_trial(
        state=TrialState.COMPLETE if finished else TrialState.PRUNED, params=dict(trial.settings),
        distributions=dict(distributions), value=trial.metrics[metric] if finished else None,
        intermediate_values=dict(enumerate(trial.curve)),
    )  # fmt: skip
