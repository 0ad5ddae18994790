"""One question, several answers: what rankings are worth by every estimator, and whether to believe it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank._validation import check_instance
from taurank.data.log import Log
from taurank.estimation.estimators import Estimator
from taurank.estimation.gains import recommended
from taurank.evaluation.assessment import Assessment
from taurank.evaluation.bootstrap import check_fraction
from taurank.evaluation.estimates import Estimate
from taurank.evaluation.evaluate import check_names
from taurank.evaluation.evidence import Evidence, opinions, slope
from taurank.evaluation.measurement import Measurement, Unlisted
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rankers import AnyRanker
from taurank.evaluation.segments import segments_of
from taurank.evaluation.uncertainty import Uncertainty
from taurank.evaluation.verdicts import Verdict
from taurank.evaluation.wording import OVERLAP_LIMIT, number, span

Mask = npt.NDArray[np.bool_]
Row = dict[str, Any]


def estimate(
    ranker: AnyRanker | Mapping[str, AnyRanker],
    log: Log,
    metrics: str | Metric | Iterable[str | Metric] | None = None,
    *,
    baseline: str | None = None,
    by: Any = None,
    level: float = 0.95,
    unlisted: Unlisted | None = None,
    unit: str = "time",
    threads: int | None = None,
) -> Estimate:
    """Estimate what a ranker, or several by name, are worth on a log that they were not trained on.

    Every estimator is computed: the doubly robust one, which is the answer, and SNIPS, IPS and caps with SLOPE's
    choice among them, which check it. Where overlap fails a row "worst case" has all that is certain. ``baseline`` is
    the ranker that the paired differences are taken from (the first one, unless named). ``by`` splits the users: a
    frame with ``user_id`` and one more column, a mapping of user ids to labels, or an array of labels in the order of
    the log's catalog. Other options as in ``evaluate``.
    """
    import pandas as pd

    check_instance("log", log, Log, "Log.from_frame(frame) or Log.read(path)")
    check_fraction("level", level)
    rankers = ranker if isinstance(ranker, Mapping) else {"ranking": ranker}
    check_names(rankers, baseline)
    measurement = Measurement.of(recommended(log), metrics, unlisted, unit, threads)
    assessments = {name: measurement.assess(one) for name, one in rankers.items()}
    whole = _Estimation(assessments, next(iter(rankers)) if baseline is None else baseline, level)
    parts = {} if by is None else segments_of(by, log.users)
    table, differences = list(whole.rows()), list(whole.differences())
    for label, users in parts.items():
        part = _Estimation(assessments, whole.baseline, level, users)
        table += [{"segment": label, **row} for row in part.rows()]
        differences += [{"segment": label, **row} for row in part.differences()]
    if parts:
        table, differences = _all_first(table), _all_first(differences)
    columns = _DIFFERENCES if not parts else ["segment", *_DIFFERENCES]
    choice, verdict = whole.choice()
    frames = pd.DataFrame(table), pd.DataFrame(differences, columns=columns)
    return Estimate(*frames, whole.baseline, choice, verdict, whole.verdicts())


_DIFFERENCES = ["ranker", "baseline", "metric", "difference", "low", "high", "better", "believe"]


def _all_first(rows: list[Row]) -> list[Row]:
    return [{"segment": "all", **row} for row in rows]


@dataclass(frozen=True, eq=False)
class _Estimation:
    """The rows of an estimate, for all users or some of them."""

    assessments: Mapping[str, Assessment]
    baseline: str
    level: float
    users: Mask | None = None

    @property
    def formulas(self) -> list[Metric]:
        return self.assessments[self.baseline].formulas

    def rows(self) -> Iterator[Row]:
        for formula in self.formulas:
            for name, assessment in self.assessments.items():
                yield from self._opinions(name, assessment, formula.name)

    def _opinions(self, name: str, assessment: Assessment, metric: str) -> Iterator[Row]:
        """The recommended estimate first, then the others."""
        verdict = assessment.verdict(metric, self.level, self.users)
        evidence = Evidence(assessment.reaches[metric], self.users)
        shared = {
            "believe": verdict.believe, "reason": verdict.reason, "effective_purchases": evidence.purchases,
            "exposure": evidence.exposure[0], "overlap_share": evidence.overlap_share,
        }  # fmt: skip
        answer = assessment.answer(metric, users=self.users)
        capped = [(assessment.estimator, answer)]
        yield _row(name, metric, assessment.estimator.name, answer, self.level, True, shared)
        for one in opinions(assessment.estimator, _smallest(assessment.log)):
            other = assessment.answer(metric, one, self.users)
            yield _row(name, metric, one.name, other, self.level, False, shared)
            if one.caps.treated > 0:
                capped.append((one, other))
        if evidence.overlap_share > OVERLAP_LIMIT:
            low, high = evidence.worst_case(self.level)
            ends = {"estimate": np.nan, "low": low, "high": high, "recommended": False}
            yield {"ranker": name, "metric": metric, "estimator": "worst case", **ends, **shared}
        elif len(capped) > 1:
            estimator, chosen = capped[slope([one for _, one in capped], self.level)]
            yield _row(name, metric, f"SLOPE: {_cap(estimator)}", chosen, self.level, False, shared)

    def differences(self) -> Iterator[Row]:
        for formula in self.formulas:
            for name in self.assessments:
                if name != self.baseline:
                    yield self._difference(name, formula)

    def _difference(self, name: str, formula: Metric) -> Row:
        metric = formula.name
        pair = [self.assessments[one] for one in (name, self.baseline)]
        first, second = (one.answer(metric, users=self.users) for one in pair)
        difference = first.minus(second)
        low, high = difference.interval(self.level)
        clear = low > 0 or high < 0
        better = ("yes" if (low > 0) == formula.larger_is_better else "no") if clear else "unclear"
        believe = all(one.verdict(metric, self.level, self.users).believe for one in pair)
        ends = {"difference": difference.estimate, "low": low, "high": high, "better": better, "believe": believe}
        return {"ranker": name, "baseline": self.baseline, "metric": metric, **ends}

    def verdicts(self) -> dict[tuple[str, str], Verdict]:
        return {
            (name, formula.name): assessment.verdict(formula.name, self.level)
            for name, assessment in self.assessments.items()
            for formula in self.formulas
        }

    def choice(self) -> tuple[str | None, Verdict]:
        """The best ranker by the first metric, and why to believe it; None if the log cannot tell."""
        formula = self.formulas[0]
        own = self.assessments[self.baseline].verdict(formula.name, self.level)
        if not own.believe:
            return None, own if len(self.assessments) == 1 else _about(self.baseline, own)
        if len(self.assessments) == 1:
            return self.baseline, own
        rows = [self._difference(name, formula) for name in self.assessments if name != self.baseline]
        return self._best(formula, [row for row in rows if row["believe"]], len(rows))

    def _best(self, formula: Metric, rows: list[Row], n_all: int) -> tuple[str | None, Verdict]:
        if not rows:
            name = next(name for name in self.assessments if name != self.baseline)
            return None, _about(name, self.assessments[name].verdict(formula.name, self.level))
        sign = 1.0 if formula.larger_is_better else -1.0
        best = max(rows, key=lambda row: sign * row["difference"])
        figure = f"{formula.name} {number(best['difference'])}, {span((best['low'], best['high']))}"
        others = "" if len(rows) == n_all else f" ({n_all - len(rows)} of {n_all} rankings are not believable)"
        if best["better"] == "yes":
            reason = f"{best['ranker']} is clearly better than {self.baseline} ({figure}){others}"
            return best["ranker"], Verdict(True, reason, "confirm it on a random part of the users")
        if all(row["better"] == "no" for row in rows):
            reason = f"{self.baseline} is clearly better than the others (best of them: {figure}){others}"
            return self.baseline, Verdict(True, reason, f"stay with {self.baseline}")
        reason = f"no ranking is clearly better than {self.baseline} (best: {best['ranker']}, {figure}){others}"
        return None, Verdict(False, reason, "collect a longer log, or show more at random")


def _row(name: str, metric: str, label: str, one: Uncertainty, level: float, answer: bool, shared: Row) -> Row:
    low, high = one.interval(level)
    ends = {"estimate": one.estimate, "low": low, "high": high, "recommended": answer}
    return {"ranker": name, "metric": metric, "estimator": label, **ends, **shared}


def _about(name: str, verdict: Verdict) -> Verdict:
    return Verdict(verdict.believe, f"for {name} {verdict.reason}", verdict.next_step)


def _cap(estimator: Estimator) -> str:
    return f"cap {estimator.caps.treated:g}" if estimator.caps.treated else "no cap"


def _smallest(log: Log) -> float:
    """The smallest denominator of any row."""
    propensity = log.recorded_propensity("estimate")
    return float(np.minimum(propensity, 1.0 - propensity).min(initial=1.0))
