"""One ranking on one log: every metric's estimate, its second opinions and its verdict, computed when asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank.data.log import Log
from taurank.estimation.estimators import Estimator
from taurank.evaluation.evidence import Evidence, apply
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rankers import Ranking
from taurank.evaluation.reach import Reach, reaches
from taurank.evaluation.uncertainty import Uncertainty
from taurank.evaluation.verdicts import Case, Verdict, judge

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Assessment:
    """Estimates of the metrics of one ranking by ``estimator``; the scores are ranked once, when first needed."""

    ranking: Ranking
    log: Log
    formulas: list[Metric]
    estimator: Estimator
    trained_here: bool = False
    workers: int = 1
    _answers: dict[tuple[str, str], Uncertainty] = field(default_factory=dict)
    _verdicts: dict[tuple[str, float], Verdict] = field(default_factory=dict)

    @cached_property
    def reaches(self) -> dict[str, Reach]:
        measured = reaches(self.ranking, self.log, self.formulas, self.estimator.variate, self.workers)
        return {reach.formula.name: reach for reach in measured}

    def answer(self, metric: str, estimator: Estimator | None = None, users: Mask | None = None) -> Uncertainty:
        """The estimate of a metric, by another estimator or for some users if named."""
        chosen = estimator or self.estimator
        if users is not None:
            return apply(chosen, self.reaches[metric], users)
        key = (metric, chosen.name)
        if key not in self._answers:
            self._answers[key] = apply(chosen, self.reaches[metric])
        return self._answers[key]

    def verdict(self, metric: str, level: float = 0.95, users: Mask | None = None) -> Verdict:
        if users is not None:
            return judge(self._case(metric, level, users))
        if (metric, level) not in self._verdicts:
            self._verdicts[metric, level] = judge(self._case(metric, level, None))
        return self._verdicts[metric, level]

    def _case(self, metric: str, level: float, users: Mask | None) -> Case:
        others = [
            (one.name, self.answer(metric, one, users))
            for one in (Estimator("SNIPS", normalized=True), Estimator("IPS"))
            if one.name != self.estimator.name
        ]
        evidence = Evidence(self.reaches[metric], users)
        return Case(self.answer(metric, users=users), others, evidence, level, self.trained_here)

    def __getstate__(self) -> dict[str, Any]:
        """A copy for another process has computed everything and leaves the scores behind."""
        for formula in self.formulas:
            self.verdict(formula.name)
        return {**self.__dict__, "ranking": None}
