"""The learners of a pilot: safe defaults first, a few settings beside them, one fit on the training weeks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from taurank.data.files import atomic_path
from taurank.data.log import Log
from taurank.errors import Diverged
from taurank.evaluation.measurement import Measurement
from taurank.learners import LEARNERS, Learner, load
from taurank.pilot.categories import Categories, WithinCategories
from taurank.pilot.config import Options
from taurank.pilot.stages import Stages, key_of

# The settings of each learner in the order in which they are tried, as changes of the first. It has few factors and a
# cap near the mean propensity of what is shown: little variance.
_EFFECT: tuple[Mapping[str, Any], ...] = (
    {"factors": 32, "learning_rate": 0.003, "regularization": 0.03, "cap": 0.03, "epochs": 60},
    {"learning_rate": 0.01, "regularization": 0.1, "cap": 0.1},
    {"regularization": 0.1},
    {"learning_rate": 0.001, "regularization": 0.1, "cap": 0.01},
)
SETTINGS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "bpr": (
        {"factors": 32, "learning_rate": 0.1, "regularization": 0.01, "epochs": 60},
        {"learning_rate": 0.03}, {"regularization": 0.03}, {"regularization": 0.003},
    ),
    "dlto": _EFFECT,
    "dlce": _EFFECT,
}  # fmt: skip
VALIDATION_SHARE = 0.3  # of the training weeks, the last ones
VALIDATION_USERS = 20_000  # enough to tell settings apart

Ranking = Learner | WithinCategories


def within(model: Learner, categories: Categories | None) -> Ranking:
    return model if categories is None else WithinCategories(model, categories)


def learner_of(ranking: Ranking) -> Learner:
    return ranking.learner if isinstance(ranking, WithinCategories) else ranking


def fit_learners(
    options: Options, train: Log, categories: Categories | None, key: str, stages: Stages, threads: int | None
) -> dict[str, Learner]:
    """Each learner of the options, fitted to the training weeks with the best of its settings."""
    return {name: _fitted(name, options, train, categories, key, stages, threads) for name in options.learners}


def refit(name: str, model: Learner, log: Log, key: str, stages: Stages, threads: int | None) -> Learner:
    """The chosen learner with its settings, fitted to the whole log."""
    settings = {key: value for key, value in model.get_params().items() if key != "threads"}
    key = key_of(key, name, settings, "refit")
    return stages.run(
        f"refit-{name}", key, ".model", lambda path: _fit(name, settings, log, threads).save(path), load
    )


def _fitted(
    name: str,
    options: Options,
    train: Log,
    categories: Categories | None,
    key: str,
    stages: Stages,
    threads: int | None,
) -> Learner:
    tried = _settings(name, options)
    key = key_of(key, name, tried, options.k)
    best = stages.run(
        f"search-{name}", key, ".json",
        lambda path: _search(name, tried, options, train, categories, path, threads),
        lambda path: json.loads(path.read_text())["best"],
    )  # fmt: skip
    return stages.run(f"model-{name}", key, ".model", lambda path: _fit(name, best, train, threads).save(path), load)


def _settings(name: str, options: Options) -> list[dict[str, Any]]:
    first, *others = SETTINGS.get(name, ({},))
    changes = [{}, *others][: options.trials]
    epochs = {} if options.epochs is None or "epochs" not in first else {"epochs": options.epochs}
    return [{**first, **change, **epochs, "random_state": options.seed} for change in changes]


def _search(
    name: str, tried: list[dict[str, Any]], options: Options, train: Log, categories: Categories | None, path: Path,
    threads: int | None,
) -> None:  # fmt: skip
    """Write the settings that are best by the recommended estimate on the last training weeks, as JSON."""
    values = [0.0]
    if len(tried) > 1 and train.n_times > 1:
        early, late = train.split(share=VALIDATION_SHARE)
        measure = Measurement.prepare(_some_users(late, options.seed), options.metric)
        values = [_value(name, one, options, early, categories, measure, threads) for one in tried]
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps({"best": tried[int(np.argmax(values))], "tried": tried, "values": values}))


def _value(
    name: str, settings: Mapping[str, Any], options: Options, early: Log, categories: Categories | None,
    measure: Measurement, threads: int | None,
) -> float:  # fmt: skip
    try:
        model = _fit(name, settings, early, threads)
    except Diverged:
        return -1e9
    return measure.means(within(model, categories), threads)[options.metric]


def _some_users(log: Log, seed: int) -> Log:
    if log.n_users <= VALIDATION_USERS:
        return log
    chosen = np.random.default_rng(seed).choice(log.n_users, VALIDATION_USERS, replace=False)
    return log.select(users=log.users.values.take(np.sort(chosen)))


def _fit(name: str, settings: Mapping[str, Any], log: Log, threads: int | None) -> Learner:
    model = LEARNERS[name](**settings)
    if "threads" in model.get_params():
        model.set_params(threads=threads)
    return model.fit(log, None, show_progress=False)
