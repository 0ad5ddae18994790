"""What rankers are measured by: gains and metrics, prepared once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from taurank._checks import check_choice, check_instance
from taurank._threads import worker_count
from taurank._types import Codes, Floats, Longs, Mask
from taurank.data.ids import Ids
from taurank.data.log import Log
from taurank.data.remote import RemoteGains, RemoteLog
from taurank.errors import InputError, plural
from taurank.estimation.gains import Gains, recommended
from taurank.evaluation.evidence import WeighedRows
from taurank.evaluation.intervals import Visits
from taurank.evaluation.metrics import DEFAULT, OUTCOME_DEFAULT, Metric, parse_all
from taurank.evaluation.rankers import Ranking, ranker_of, ranking_of
from taurank.evaluation.ranking_tables import TableRanker
from taurank.evaluation.weights import (
    BlockSums,
    Cells,
    CellWeights,
    ListSums,
    assortments,
    largest_weights,
    list_weights,
)


@dataclass(frozen=True, eq=False)
class Measured:
    """One ranker, measured: ``rows`` are what an estimate is made of, by metric; empty if the gains are not one.

    ``per_user`` and ``per_time`` are means by metric, ``overlap`` the share of the weight on logged pairs that falls
    on those without overlap (None where that is not in question); empty for estimates.
    """

    unknown_users: int
    unknown_items: int
    trained_here: bool
    rows: Sequence[Any] = ()  # WeighedRows, or a cluster's
    per_user: Floats | Sequence[Floats] = ()
    per_time: Floats | Sequence[Floats] = ()
    overlap: Sequence[float | None] = ()


@dataclass(frozen=True, eq=False)
class Measurement:
    """Gains and metrics, and the cells that a ranking has to weigh for them."""

    gains: Gains
    metrics: list[Metric]
    unlisted: str | None = None
    users: Codes | None = None  # whose means are wanted; None: all
    with_pairs: bool | None = None  # count logged pairs for the share without overlap; None: if any lacks it

    @classmethod
    def prepare(
        cls,
        gains: Gains | Log | RemoteGains,
        metrics: Any = None,
        *,
        unlisted: Any = None,
        users: Codes | None = None,
    ) -> Measurement:
        """A log stands for its recommended estimate; see ``evaluate``."""
        if isinstance(gains, RemoteLog):
            raise InputError("on a cluster, name the estimator: taurank.gains.capped_ips(log, cap), or another one.")
        if isinstance(gains, RemoteGains):  # measured where they are
            remote: Measurement = gains.measurement(metrics, unlisted)
            return remote
        made = recommended(gains) if isinstance(gains, Log) else gains
        check_instance("gains", made, Gains, "taurank.gains, such as gains.ips(log), or take a sample's truth")
        if unlisted is not None:
            check_choice("unlisted", unlisted, ("last",))
        parsed = parse_all(metrics, OUTCOME_DEFAULT if made.kind == "outcome" else DEFAULT)
        _check_areas(parsed, made)
        return cls(made, parsed, unlisted, users)

    def means(self, ranker: Any, threads: int | None = None) -> dict[str, float]:
        """The mean of each metric, without an interval; for ``users`` the mean of their means."""
        workers, (_, ranking) = worker_count(threads), self._ranking(ranker)
        if self.is_dense:
            assert self.gains.estimator is not None
            estimator = self.gains.estimator
            pairs = [one.means(estimator) for one in self._weighed(ranking, workers)]
            per_user, per_time = np.stack([pair[0] for pair in pairs]), np.stack([pair[1] for pair in pairs])
        else:
            per_user, per_time, _ = self.summarize(*self.sums(ranking, workers))
        return {
            metric.name: self._mean(*means) for metric, *means in zip(self.metrics, per_user, per_time, strict=True)
        }

    def _mean(self, per_user: Floats, per_time: Floats) -> float:
        if self.users is None:
            return self.visits.mean(per_time)
        return float(np.nanmean(per_user[self.users]))

    def measure(self, ranker: Any, workers: int) -> Measured:
        """All that a result is made of."""
        ready, ranking = self._ranking(ranker)
        unknown, trained = (ranking.unknown_users, ranking.unknown_items), self.is_trained_here(ready)
        if self.is_estimate:
            return Measured(*unknown, trained, self._weighed(ranking, workers))
        per_user, per_time, overlap = self.summarize(*self.sums(ranking, workers))
        return Measured(*unknown, trained, (), per_user, per_time, overlap)

    def is_trained_here(self, ranker: Any) -> bool:
        """Whether the ranker was trained on the log that the gains were made from."""
        trained = getattr(ranker, "log_fingerprint_", None)
        return trained is not None and trained == self.gains.log_fingerprint

    @property
    def is_estimate(self) -> bool:
        """Whether the gains are those of an estimator with propensities, so that intervals know their log."""
        return self.gains.estimator is not None and self.gains.log is not None

    @property
    def is_dense(self) -> bool:
        """Whether cells without a row count."""
        return self.is_estimate and self.gains.estimator is not None and self.gains.estimator.is_dense

    @cached_property
    def visits(self) -> Visits:
        return Visits.of(self.gains.eligibility)

    def _ranking(self, ranker: Any) -> tuple[Any, Ranking]:
        gains, ready = self.gains, ranker_of(ranker)
        if isinstance(ready, TableRanker) and self.unlisted is None:
            for part in assortments(gains.eligibility):
                whole = part.items is None
                items = gains.items if whole else Ids(gains.items.values.take(part.items), gains.items.column)
                ready.check_depth(self.metrics, gains.users, items)
        return ready, ranking_of(ready, gains.users, gains.items)

    # gains as they are

    @cached_property
    def _pairs(self) -> tuple[Longs, Mask] | None:
        """A row of the log for each logged pair, and which of these pairs lack overlap; None if no row does."""
        log, extreme = self.gains.log, self.gains.extreme
        if log is None or extreme is None or self.is_estimate or self.users is not None:
            return None
        if not (extreme.any() if self.with_pairs is None else self.with_pairs):
            return None
        rows, _ = logged_cells(log)
        pair = log.user[rows].astype(np.int64) * log.n_items + log.item[rows]
        pairs, first, number = np.unique(pair, return_index=True, return_inverse=True)
        return rows[first], np.bincount(number, extreme[rows], len(pairs)) > 0

    @cached_property
    def _parts(self) -> tuple[CellWeights, Floats]:
        """The cells with a gain and, where overlap fails, one of each logged pair; gains, and the pairs as gains."""
        gains = self.gains
        chosen = gains.value != 0
        if self.users is not None:
            chosen &= np.isin(gains.user, self.users)
        rows = slice(None) if chosen.all() else np.flatnonzero(chosen)
        cells, values = Cells(gains.user[rows], gains.item[rows], gains.time[rows]), gains.value[rows][None]
        if self._pairs is not None:
            assert gains.log is not None
            pairs, without = self._pairs
            logged = _cells_of(gains.log, pairs)
            columns = np.zeros((3, values.shape[1] + len(pairs)))
            columns[0, : values.shape[1]], columns[1, values.shape[1] :] = values[0], ~without
            columns[2, values.shape[1] :], values = without, columns
            cells = Cells(*(np.concatenate(pair) for pair in zip(cells, logged, strict=True)))
        return CellWeights(gains.eligibility, cells, self.metrics), np.ascontiguousarray(values)

    def sums(self, ranking: Ranking, workers: int) -> BlockSums:
        """Sums per user and per block."""
        cells, values = self._parts
        return cells.sums(ranking, values, workers)

    def summarize(self, per_user: Floats, blocks: list[Floats]) -> tuple[Floats, Floats, list[float | None]]:
        """Means per user and per time from sums per user and per block, and the shares without overlap."""
        per_time = np.zeros((len(self.metrics), self.gains.n_times))
        for block in blocks:
            per_time += block
        self._check_size(per_user[0])
        shares: list[float | None] = [None] * len(self.metrics)
        if self.gains.extreme is not None:
            shares = [self._share(m, per_user[1:, m]) for m in range(len(self.metrics))]
        return self.visits.per_user(per_user[0]), self.visits.per_time(per_time), shares

    def _share(self, m: int, sums: Floats) -> float | None:
        """None if the metric has no weights to share out."""
        metric = self.metrics[m]
        if metric.area or (metric.unscaled(self.gains.n_items) < 0).any():
            return None
        inside, extreme = sums.sum(axis=1) if len(sums) else (1.0, 0.0)
        return float(extreme / (inside + extreme)) if extreme > 0 else 0.0

    def _check_size(self, per_user: Floats) -> None:
        """Means of resampled users must not overflow."""
        gains = self.gains
        with np.errstate(over="ignore"):
            largest = float(np.max(np.abs(per_user), initial=0.0)) * gains.n_users
        if not np.isfinite(largest):
            raise InputError(
                f"the gains '{gains.name}' are too large to add up (up to {np.abs(gains.value).max():.1e}); "
                "cap them, for example gains.capped_ips(log, cap=0.01)."
            )

    # estimates

    def _weighed(self, ranking: Ranking, workers: int) -> list[WeighedRows]:
        log = self.gains.log
        assert log is not None
        weights, sums = self._logged_cells.weigh(ranking, workers)
        listed, largest = self._lists
        with_c: list[ListSums | None] = [*sums] or [None] * len(self.metrics)
        return [
            WeighedRows(metric, log, self._rows[inside], weights[m][inside], listed[m], with_c[m], largest[m])
            for m, metric in enumerate(self.metrics)
            for inside in [np.flatnonzero(weights[m])]
        ]

    @cached_property
    def _rows(self) -> Longs:
        log = self.gains.log
        assert log is not None
        rows, _ = logged_cells(log)
        return rows if self._chosen is None else rows[self._chosen[log.user[rows]]]

    @cached_property
    def _chosen(self) -> Mask | None:
        """Users to weigh; all of them where an estimate of some depends on the others (SNIPS)."""
        estimator = self.gains.estimator
        if self.users is None or (estimator is not None and estimator.normalized):
            return None
        chosen = np.zeros(self.gains.n_users, np.bool_)
        chosen[self.users] = True
        return chosen

    @cached_property
    def _logged_cells(self) -> CellWeights:
        log, estimator = self.gains.log, self.gains.estimator
        assert log is not None
        assert estimator is not None
        cells = _cells_of(log, self._rows)
        return CellWeights(log.eligibility, cells, self.metrics, estimator.variate, self._chosen)

    @cached_property
    def _lists(self) -> Any:
        assert self.gains.log is not None
        eligibility = self.gains.log.eligibility
        return list_weights(eligibility, self.metrics), largest_weights(eligibility, self.metrics)


def logged_cells(log: Log) -> tuple[Longs, Cells]:
    """The rows that count, and their cells: one in which nothing was shown or happened is like an absent one."""
    rows = np.flatnonzero((log.treated == 1) | (log.outcome == 1))
    return rows, _cells_of(log, rows)


def _cells_of(log: Log, rows: Longs) -> Cells:
    """The cells of rows, which are safe to index with."""
    checked = Gains(log.catalog, log.user[rows], log.item[rows], log.time[rows], np.zeros(len(rows)))
    return Cells(checked.user, checked.item, checked.time)


def _check_areas(metrics: list[Metric], gains: Gains) -> None:
    names = [metric.name for metric in metrics if metric.area]
    if not names:
        return
    wrong = gains.value[(gains.value != 0.0) & (gains.value != 1.0)]
    if len(wrong):
        raise InputError(
            f"{names[0]} needs gains of 0 or 1; '{gains.name}' has another value in {plural(len(wrong), 'cell')}, "
            f"for example {wrong[0]:g}. C{names[0]} takes any gains."
        )
    if gains.estimator is not None:
        raise InputError(f"{names[0]} is not a weighted sum of effects; estimate C{names[0]}.")
