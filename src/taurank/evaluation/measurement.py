"""One pass over the scores: metrics per user and per time, and how much of their weight lacks overlap.

Scores exist for one block of users at a time, and ranks are computed only where a gain needs one. How much of an
estimate's weight lacks overlap is measured in the same pass, by two more gains: 1 on the logged pairs that
have overlap, and 1 on those with an extreme propensity at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from taurank._arrays import group
from taurank._threads import Flag, one_blas_thread, run_interruptibly, worker_count
from taurank._validation import check_choice, check_instance
from taurank.data.ids import Ids
from taurank.data.log import Log
from taurank.errors import InputError, plural, show
from taurank.estimation.estimators import LoggedPairs, Pairs
from taurank.estimation.gains import Gains, recommended
from taurank.evaluation.assessment import Assessment
from taurank.evaluation.evidence import Evidence
from taurank.evaluation.list_weights import Cells, assortments, has_candidates, rank_weights, weigh
from taurank.evaluation.metrics import DEFAULT, OUTCOME_DEFAULT, Metric, parse_all
from taurank.evaluation.rank_kernels import GainsByUser, Parts, measure
from taurank.evaluation.rankers import Block, Ranking, ranker_of, ranking_of
from taurank.evaluation.ranking_tables import TableRanker
from taurank.evaluation.results import MetricResult, Result
from taurank.evaluation.visits import Visits
from taurank.evaluation.wording import Wording, training_sentence

Codes = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Sums = tuple[Floats, Floats, list[float | None]]  # per user, per time, shares without overlap
Unlisted = Literal["last"]


@dataclass(frozen=True)
class Measurement:
    """What rankers are measured by, prepared once for all of them."""

    gains: Gains
    formulas: list[Metric]
    unlisted: Unlisted | None
    unit: str
    workers: int
    parts: Parts  # the gains; 1 on logged pairs that have overlap; 1 on the extreme ones

    @classmethod
    def of(cls, gains: Gains | Log, metrics: Any, unlisted: Any, unit: Any, threads: int | None) -> Measurement:
        if isinstance(gains, Log):
            gains = recommended(gains)
        check_instance("gains", gains, Gains, "taurank.gains, such as gains.ips(log), or take a sample's truth")
        if unlisted is not None:
            check_choice("unlisted", unlisted, ("last",))
        if not isinstance(unit, str):
            raise InputError(f"unit must be the name of a time, such as 'week', got {show(unit)}.")
        formulas = parse_all(metrics, OUTCOME_DEFAULT if gains.kind == "outcome" else DEFAULT)
        _check_binary(formulas, gains)
        parts = (_nonzero(gains), *_logged(gains))
        return cls(gains, formulas, None if unlisted is None else "last", unit, worker_count(threads), parts)

    @cached_property
    def visits(self) -> Visits:
        return Visits.of(self.gains.catalog, self.gains.eligibility)

    def first_metric(self) -> Measurement:
        return replace(self, formulas=self.formulas[:1])

    def assess(self, ranker: Any) -> Assessment:
        """The estimates of a ranker by gains that an estimator made."""
        ready, ranking = self._ranking(ranker)
        for formula in self.formulas:
            if formula.area:
                raise InputError(f"{formula.name} is not a weighted sum of effects; estimate C{formula.name}.")
        assessment = self._assessment(ranking, _trained_on(ready, self.gains))
        assert assessment is not None
        return assessment

    def _ranking(self, ranker: Any) -> tuple[Any, Ranking]:
        gains = self.gains
        ready = ranker_of(ranker)
        if isinstance(ready, TableRanker) and self.unlisted is None:
            for items in self._catalogs():
                ready.check_depth(self.formulas, gains.users, items)
        return ready, ranking_of(ready, gains.users, gains.items)

    def _catalogs(self) -> Iterator[Ids]:
        """The items that lists are made of: the candidates of some times, or all of them."""
        gains = self.gains
        for part in assortments(gains.eligibility, gains.n_items, gains.n_times):
            whole = part.items is None
            yield gains.items if whole else Ids(gains.items.values.take(part.items), gains.items.column)

    def result(self, ranker: Any) -> Result:
        ready, ranking = self._ranking(ranker)
        trained_here = _trained_on(ready, self.gains)
        assessment = self._assessment(ranking, trained_here)
        narrower = has_candidates(self.gains.eligibility)
        if assessment is not None and (assessment.estimator.is_dense or narrower):
            sums = self._assessed(assessment)
        elif narrower:
            sums = self._among_candidates(ranking)
        else:
            sums = self._scaled(*self.sums(ranking))
        return self._result(trained_here, (ranking.unknown_users, ranking.unknown_items), sums, assessment)

    def summarize(
        self, ranker: Any, unknown: tuple[int, int], sums: tuple[Floats, Floats], assessment: Assessment | None
    ) -> Result:
        """The result from the sums of a pass; ``unknown`` counts users and items that the ranker does not know."""
        return self._result(self.trained_here(ranker), unknown, self._scaled(*sums), assessment)

    def trained_here(self, ranker: Any) -> bool:
        return _trained_on(ranker, self.gains)

    def _result(
        self, trained_here: bool, unknown: tuple[int, int], sums: Sums, assessment: Assessment | None
    ) -> Result:
        gains, (per_user, per_time, shares) = self.gains, sums
        measured = {
            f.name: MetricResult(
                f, per_user[m], per_time[m], Wording.of(f, gains, self.unit), shares[m], assessment, self.visits
            )
            for m, f in enumerate(self.formulas)
        }
        sentence = training_sentence([""]) if trained_here else ""
        return Result(measured, gains.users, gains.times, gains.name, *unknown, sentence)

    def _assessment(self, ranking: Ranking, trained_here: bool) -> Assessment | None:
        """How the gains were estimated; None if they were not, or if a metric is not a weighted sum."""
        gains = self.gains
        if gains.log is None or gains.estimator is None or any(formula.area for formula in self.formulas):
            return None
        return Assessment(ranking, gains.log, self.formulas, gains.estimator, trained_here, self.workers)

    def _assessed(self, assessment: Assessment) -> Sums:
        """Estimates that also count cells without a row."""
        answers = [assessment.answer(formula.name) for formula in self.formulas]
        per_user, per_time = np.stack([one.per_user for one in answers]), np.stack([one.per_time for one in answers])
        shares: list[float | None] = [Evidence(assessment.reaches[f.name]).overlap_share for f in self.formulas]
        return per_user, per_time, shares

    def _among_candidates(self, ranking: Ranking) -> Sums:
        """Where lists are narrower than the catalog: the weight of each gain on the list of its time."""
        gains, rows = self.gains, np.flatnonzero(self.gains.value)
        cells = Cells(gains.user[rows], gains.item[rows], gains.time[rows])
        weights, sizes = weigh(ranking, gains.eligibility, cells, self.formulas, self.workers)
        per_user, per_time = np.zeros((2, len(self.formulas)), object)
        for m, formula in enumerate(self.formulas):
            value, user, time = weights[m] * gains.value[rows], cells.user, cells.time
            if formula.area:
                value, user, time = _areas(weights[m], sizes, cells, gains.n_times)
            per_user[m] = np.bincount(user, value, minlength=gains.n_users)
            per_time[m] = np.bincount(time, value, minlength=gains.n_times)
        sums, by_time = np.stack(list(per_user)), np.stack(list(per_time))
        _check_size(sums, np.ones((len(sums), 1)), gains)
        return self.visits.per_user(sums), self.visits.per_time(by_time), [None] * len(self.formulas)

    def _scaled(self, per_user: Floats, per_time: Floats) -> Sums:
        """Per user and per time, both scaled, and the shares without overlap."""
        gains = self.gains
        shares = [self._share(f, sums) for f, sums in zip(self.formulas, per_time[1:].sum(2).T, strict=True)]
        scale = np.array([[1.0 if f.area else f.factor(gains.n_items)] for f in self.formulas])
        _check_size(per_user[0], scale, gains)
        return self.visits.per_user(per_user[0] * scale), self.visits.per_time(per_time[0] * scale), shares

    def sums(self, ranking: Ranking) -> tuple[Floats, Floats]:
        """Unscaled sums, part × metric × user and part × metric × time."""
        per_user, per_time = self.no_sums()

        def add_up(stop: Flag) -> None:
            for sums in self.block_sums(ranking, per_user):  # added up in the order of the blocks
                np.add(per_time, sums, out=per_time)
                if stop[0]:
                    break

        run_interruptibly(add_up)
        return per_user, per_time

    def no_sums(self) -> tuple[Floats, Floats]:
        """Zeros in the shape of ``sums``."""
        shape = (len(self.parts), len(self.formulas))
        return np.zeros((*shape, self.gains.n_users)), np.zeros((*shape, self.gains.n_times))

    def block_sums(self, ranking: Ranking, per_user: Floats) -> Iterator[Floats]:
        """The sums over time of one block of users after the other; those of the users go into ``per_user``."""
        gains, tables = self.gains, rank_weights(self.formulas, self.gains.n_items)

        def run(block: Block) -> Floats:
            scores = ranking.scores(block)
            return measure(scores, block.users, block.column, self.parts, tables, gains.n_times, per_user)

        # one BLAS thread per block of fixed shape: the bits do not depend on how many blocks run at once
        with one_blas_thread(), ThreadPoolExecutor(self.workers) as pool:
            try:
                yield from pool.map(run, ranking.blocks(self.needed()))
            finally:
                pool.shutdown(cancel_futures=True)

    def _share(self, formula: Metric, sums: Floats) -> float | None:
        """The share of the logged pairs' weight on extreme ones; None if the metric has no weights to share out."""
        inside, extreme = sums
        if self.gains.overlap is None or formula.area or (formula.unscaled(self.gains.n_items) < 0).any():
            return None
        return float(extreme / (inside + extreme)) if extreme > 0 else 0.0

    def needed(self) -> npt.NDArray[np.bool_]:
        """Which users have anything to be ranked."""
        needed = np.zeros(self.gains.n_users, np.bool_)
        for part in self.parts:
            needed |= np.diff(part.start) > 0
        return needed


def _check_binary(formulas: list[Metric], gains: Gains) -> None:
    names = [formula.name for formula in formulas if formula.area]
    if not names:
        return
    wrong = gains.value[(gains.value != 0.0) & (gains.value != 1.0)]
    if len(wrong):
        raise InputError(
            f"{names[0]} needs gains of 0 or 1; '{gains.name}' has another value in {plural(len(wrong), 'cell')}, "
            f"for example {wrong[0]:g}. C{names[0]} takes any gains."
        )


def _nonzero(gains: Gains) -> GainsByUser:
    columns = (gains.user, gains.item, gains.time, gains.value)
    if not gains.value.all():
        rows = np.flatnonzero(gains.value)
        columns = (gains.user[rows], gains.item[rows], gains.time[rows], gains.value[rows])
    return _by_user(gains.n_users, *columns)


def _logged(gains: Gains) -> tuple[GainsByUser, GainsByUser]:
    """Gains of 1 on the logged pairs with overlap and on those without."""
    inside, extreme = gains.overlap or LoggedPairs.none(gains.n_users)
    return _ones(inside), _ones(extreme)


def _ones(pairs: Pairs) -> GainsByUser:
    columns = pairs.item.view(), np.zeros(len(pairs.item), np.int32), np.ones(len(pairs.item))
    for column in columns:
        column.flags.writeable = False  # one kind of array, so that kernels are compiled once
    return GainsByUser(pairs.start, *columns)


def _areas(below: Floats, sizes: npt.NDArray[np.int64], cells: Cells, n_times: int) -> tuple[Floats, Codes, Codes]:
    """AUC of each list with positives, its user and its time; see ``rank_kernels._add_auc``."""
    visit, first, number = np.unique(
        cells.user.astype(np.int64) * n_times + cells.time, return_index=True, return_inverse=True
    )
    positives = np.bincount(number, minlength=len(visit))
    negatives = sizes[first] - positives
    area = np.bincount(number, below, minlength=len(visit)) / positives - 0.5 * (positives - 1)
    half = np.full(len(visit), 0.5)
    return np.divide(area, negatives, out=half, where=negatives > 0), cells.user[first], cells.time[first]


def _by_user(n_users: int, user: Codes, item: Codes, time: Codes, value: Floats) -> GainsByUser:
    start, (items, times, values) = group(user, n_users, item, time, value)
    return GainsByUser(start, items, times, values)


def _check_size(per_user: Floats, scale: Floats, gains: Gains) -> None:
    """Means of resampled users must not overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        largest = float(np.max(np.abs(per_user * scale), initial=0.0)) * gains.n_users
    if not np.isfinite(largest):
        raise InputError(
            f"the gains '{gains.name}' are too large to add up (up to {np.abs(gains.value).max():.1e}); cap them, "
            "for example gains.capped_ips(log, cap=0.01)."
        )


def _trained_on(ranker: Any, gains: Gains) -> bool:
    """Whether the ranker was trained on the log the gains were made from."""
    trained = getattr(ranker, "log_fingerprint_", None)
    return trained is not None and trained == gains.log_fingerprint
