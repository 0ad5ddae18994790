"""The learners of a pilot: safe defaults first, a few settings beside them, one fit on the earlier periods."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from taurank.data.features import Features
from taurank.data.files import write_text
from taurank.data.log import Log
from taurank.errors import DivergedError
from taurank.evaluation.measurement import Measurement
from taurank.learners import LEARNERS, Learner, load
from taurank.pilot.categories import WithinCategories
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
VALIDATION_SHARE = 0.3  # of the training periods, the last ones
VALIDATION_USERS = 20_000  # enough to tell settings apart

Ranking = Learner | WithinCategories


def learner_of(ranking: Ranking) -> Learner:
    return ranking.learner if isinstance(ranking, WithinCategories) else ranking


@dataclass(frozen=True)
class Learning:
    """Fits the learners of a pilot; the value of each setting and each model is stored."""

    options: Options
    categories: Features | None
    key: str  # of the stages before
    stages: Stages
    threads: int | None

    def within(self, model: Learner) -> Ranking:
        return model if self.categories is None else WithinCategories(model, self.categories)

    def fit(self, name: str, train: Log) -> Learner:
        """A learner with the best of its settings, fitted to the training periods."""
        first, *others = SETTINGS.get(name, ({},))
        epochs = {} if self.options.epochs is None or "epochs" not in first else {"epochs": self.options.epochs}
        changes = [{}, *others][: self.options.trials]
        tried = [{**first, **change, **epochs, "random_state": self.options.seed} for change in changes]
        return self._stage(
            f"model-{name}", [tried, self.options.k], name, lambda: self._best(name, tried, train), train
        )

    def refit(self, name: str, model: Learner, log: Log) -> Learner:
        """The chosen learner with its settings, fitted to the whole log."""
        settings = {key: value for key, value in model.get_params().items() if key != "threads"}
        return self._stage(f"refit-{name}", settings, name, lambda: settings, log)

    def _stage(
        self, stage: str, facts: Any, name: str, settings: Callable[[], Mapping[str, Any]], log: Log
    ) -> Learner:
        def make(path: Path) -> None:
            self._fit(name, settings(), log).save(path)

        return self.stages.run(stage, key_of(self.key, name, facts), ".model", make, load)

    def _best(self, name: str, tried: list[dict[str, Any]], train: Log) -> dict[str, Any]:
        """The settings that are best by the recommended estimate on the last training periods."""
        if len(tried) == 1 or train.n_times == 1:
            return tried[0]
        early, late = train.split(share=VALIDATION_SHARE)
        if late.n_users > VALIDATION_USERS:
            chosen = np.random.default_rng(self.options.seed).choice(late.n_users, VALIDATION_USERS, replace=False)
            late = late.select(users=late.users.values.take(np.sort(chosen)))
        metric = self.options.metric
        measure = Measurement.prepare(late, metric)

        def write_value(path: Path, settings: Mapping[str, Any]) -> None:
            try:
                value = measure.means(self.within(self._fit(name, settings, early)), self.threads)[metric]
            except DivergedError:
                value = -math.inf
            write_text(path, json.dumps(value))

        values = [
            self.stages.run(
                f"setting-{name}", key_of(self.key, name, settings, metric), ".json",
                partial(write_value, settings=settings), lambda path: float(json.loads(path.read_text())),
                is_step=False,
            )
            for settings in tried
        ]  # fmt: skip
        return tried[int(np.argmax(values))]

    def _fit(self, name: str, settings: Mapping[str, Any], log: Log) -> Learner:
        model = LEARNERS[name](**settings)
        if "threads" in model.get_params():
            model.set_params(threads=self.threads)
        return model.fit(log, None, show_progress=False)
