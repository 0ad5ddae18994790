"""The learners of a pilot: safe defaults first, a few settings beside them, one fit on the earlier periods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from taurank.data.log import Log
from taurank.evaluation.measurement import Measurement
from taurank.learners import LEARNERS, Learner, load
from taurank.pilot.categories import Categories, WithinCategories
from taurank.pilot.config import Options
from taurank.pilot.stages import Stages, key_of
from taurank.tuning import Report, Search, best_trial

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
VALIDATION_SHARE = 0.3  # of the training periods, the last ones
VALIDATION_USERS = 20_000  # enough to tell settings apart

Ranking = Learner | WithinCategories


def within(model: Learner, categories: Categories | None) -> Ranking:
    return model if categories is None else WithinCategories(model, categories)


def learner_of(ranking: Ranking) -> Learner:
    return ranking.learner if isinstance(ranking, WithinCategories) else ranking


@dataclass(frozen=True)
class Learning:
    """Fits the learners of a pilot; each search and each model is stored."""

    options: Options
    categories: Categories | None
    key: str  # of the stages before
    stages: Stages
    threads: int | None

    def fit(self, name: str, train: Log) -> Learner:
        """A learner with the best of its settings, fitted to the training periods."""
        tried = self._settings(name)
        key = key_of(self.key, name, tried, self.options.k)
        return self.stages.run(
            f"model-{name}", key, ".model",
            lambda path: self._fit(name, self._best(name, tried, train, key), train).save(path), load,
        )  # fmt: skip

    def refit(self, name: str, model: Learner, log: Log) -> Learner:
        """The chosen learner with its settings, fitted to the whole log."""
        settings = {key: value for key, value in model.get_params().items() if key != "threads"}
        key = key_of(self.key, name, settings, "refit")
        return self.stages.run(
            f"refit-{name}", key, ".model", lambda path: self._fit(name, settings, log).save(path), load
        )

    def _settings(self, name: str) -> list[dict[str, Any]]:
        first, *others = SETTINGS.get(name, ({},))
        changes = [{}, *others][: self.options.trials]
        epochs = {} if self.options.epochs is None or "epochs" not in first else {"epochs": self.options.epochs}
        return [{**first, **change, **epochs, "random_state": self.options.seed} for change in changes]

    def _best(self, name: str, tried: list[dict[str, Any]], train: Log, key: str) -> dict[str, Any]:
        """The settings that are best by the recommended estimate on the last training periods."""
        if len(tried) == 1 or train.n_times == 1:
            return tried[0]
        early, late = train.split(share=VALIDATION_SHARE)
        metric = self.options.metric
        measure = Measurement.prepare(_some_users(late, self.options.seed), metric)

        def objective(settings: dict[str, Any], report: Report) -> dict[str, float]:
            model = within(self._fit(name, tried[settings["number"]], early), self.categories)
            return measure.means(model, self.threads)

        search = Search(
            name, objective, {"number": range(len(tried))}, metric, True, len(tried), "random", ({"number": 0},),
            identity=key,
        )  # fmt: skip
        best = best_trial(search.run(self.stages.folder / f"search-{name}-{key}.journal"), metric, True)
        return tried[0 if best is None else best.settings["number"]]

    def _fit(self, name: str, settings: Mapping[str, Any], log: Log) -> Learner:
        model = LEARNERS[name](**settings)
        if "threads" in model.get_params():
            model.set_params(threads=self.threads)
        return model.fit(log, None, show_progress=False)


def _some_users(log: Log, seed: int) -> Log:
    if log.n_users <= VALIDATION_USERS:
        return log
    chosen = np.random.default_rng(seed).choice(log.n_users, VALIDATION_USERS, replace=False)
    return log.select(users=log.users.values.take(np.sort(chosen)))
