"""One pass over the scores: metrics per user and per time, and how much of their weight lacks overlap.

Scores exist for one block of users at a time, and ranks are computed only where a gain needs one. How much of an
estimate's weight lacks overlap is measured in the same pass, by two more gains: 1 on the logged pairs that
have overlap, and 1 on those with an extreme propensity at any time.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from taurank._arrays import group
from taurank._threads import one_blas_thread, worker_count
from taurank._validation import check_choice, check_instance
from taurank.errors import InputError, plural, show
from taurank.estimation.gains import Gains
from taurank.estimation.logged_pairs import LoggedPairs, Pairs
from taurank.evaluation.formulas import DEFAULT, OUTCOME_DEFAULT, Formula, parse_all
from taurank.evaluation.rank_kernels import GainsByUser, Parts, RankWeights, measure
from taurank.evaluation.rankers import Block, Ranking, ranker_of, ranking_of
from taurank.evaluation.ranking_tables import TableRanker
from taurank.evaluation.results import Metric, Result
from taurank.evaluation.wording import Wording, training_sentence

Codes = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Unlisted = Literal["last"]


@dataclass(frozen=True)
class Measurement:
    """What rankers are measured by, prepared once for all of them."""

    gains: Gains
    formulas: list[Formula]
    unlisted: Unlisted | None
    unit: str
    workers: int
    parts: Parts  # the gains; 1 on logged pairs that have overlap; 1 on the extreme ones

    @classmethod
    def of(cls, gains: Gains, metrics: Any, unlisted: Any, unit: Any, threads: int | None) -> Measurement:
        check_instance("gains", gains, Gains, "taurank.gains, such as gains.ips(log), or take a sample's truth")
        if unlisted is not None:
            check_choice("unlisted", unlisted, ("last",))
        if not isinstance(unit, str):
            raise InputError(f"unit must be the name of a time, such as 'week', got {show(unit)}.")
        formulas = parse_all(metrics, OUTCOME_DEFAULT if gains.kind == "outcome" else DEFAULT)
        _check_binary(formulas, gains)
        parts = (_nonzero(gains), *_logged(gains))
        return cls(gains, formulas, None if unlisted is None else "last", unit, worker_count(threads), parts)

    def first_metric(self) -> Measurement:
        return replace(self, formulas=self.formulas[:1])

    def result(self, ranker: Any) -> Result:
        gains = self.gains
        ready = ranker_of(ranker)
        if isinstance(ready, TableRanker) and self.unlisted is None:
            ready.check_depth(self.formulas, gains.users, gains.items)
        ranking = ranking_of(ready, gains.users, gains.items)
        per_user, per_time, shares = self._measure(ranking)
        measured = {
            f.name: Metric(f, per_user[m], per_time[m], Wording.of(f, gains, self.unit), shares[m])
            for m, f in enumerate(self.formulas)
        }
        unknown = (ranking.unknown_users, ranking.unknown_items)
        trained_here = training_sentence([""]) if _trained_on(ready, gains) else ""
        return Result(measured, gains.users, gains.times, gains.name, *unknown, trained_here)

    def _measure(self, ranking: Ranking) -> tuple[Floats, Floats, list[float | None]]:
        """Per user and per time, both scaled, and the shares without overlap."""
        gains = self.gains
        per_user, per_time = self._sums(ranking)
        shares = [self._share(f, sums) for f, sums in zip(self.formulas, per_time[1:].sum(2).T, strict=True)]
        scale = np.array([[1.0 if f.area else f.factor(gains.n_items)] for f in self.formulas])
        _check_size(per_user[0], scale, gains)
        return per_user[0] * scale / gains.n_times, per_time[0] * scale / gains.n_users, shares

    def _sums(self, ranking: Ranking) -> tuple[Floats, Floats]:
        """Unscaled sums, part × metric × user and part × metric × time."""
        gains, shape = self.gains, (len(self.parts), len(self.formulas))
        tables = _tables(self.formulas, gains.n_items)
        per_user, per_time = np.zeros((*shape, gains.n_users)), np.zeros((*shape, gains.n_times))

        def run(block: Block) -> Floats:
            scores = ranking.scores(block)
            return measure(scores, block.users, block.column, self.parts, tables, gains.n_times, per_user)

        # one BLAS thread per block of fixed shape: the bits do not depend on how many blocks run at once
        with one_blas_thread(), ThreadPoolExecutor(self.workers) as pool:
            try:
                for sums in pool.map(run, ranking.blocks(self._needed())):  # added up in the order of the blocks
                    per_time += sums
            finally:
                pool.shutdown(cancel_futures=True)
        return per_user, per_time

    def _share(self, formula: Formula, sums: Floats) -> float | None:
        """The share of the logged pairs' weight on extreme ones; None if the metric has no weights to share out."""
        inside, extreme = sums
        if self.gains.overlap is None or formula.area or (formula.unscaled(self.gains.n_items) < 0).any():
            return None
        return float(extreme / (inside + extreme)) if extreme > 0 else 0.0

    def _needed(self) -> npt.NDArray[np.bool_]:
        """Which users have anything to be ranked."""
        needed = np.zeros(self.gains.n_users, np.bool_)
        for part in self.parts:
            needed |= np.diff(part.start) > 0
        return needed


def _check_binary(formulas: list[Formula], gains: Gains) -> None:
    names = [formula.name for formula in formulas if formula.area]
    if not names:
        return
    wrong = gains.value[(gains.value != 0.0) & (gains.value != 1.0)]
    if len(wrong):
        raise InputError(
            f"{names[0]} needs gains of 0 or 1; '{gains.name}' has another value in {plural(len(wrong), 'cell')}, "
            f"for example {wrong[0]:g}. C{names[0]} takes any gains."
        )


def _tables(formulas: list[Formula], n_items: int) -> RankWeights:
    weight = np.stack([formula.unscaled(n_items) for formula in formulas])
    summed = np.zeros((len(formulas), n_items + 1))
    np.cumsum(weight, axis=1, out=summed[:, 1:])
    return RankWeights(weight, summed, np.array([formula.area for formula in formulas]))


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
