"""The reach of a metric: the logged rows that a ranking gives a weight, and its sums over whole lists.

``Measurement`` adds gains up as it goes. Here each row's weight is stored, because an interval needs its square and
cube, a paired interval the difference of two rankings in the same row, and a verdict what the rows are like. Lists
are summed for the cells without a row: how much weight there is, and how much of the control variate c.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank._arrays import group
from taurank._threads import Flag, one_blas_thread, run_interruptibly
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.variate import Variate
from taurank.evaluation.formulas import Formula
from taurank.evaluation.rank_kernels import RankWeights
from taurank.evaluation.rankers import Block, Ranking
from taurank.evaluation.reach_kernels import list_sums, row_weights
from taurank.evaluation.topk import best_first

Codes = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Listed = tuple[Codes, Codes, Codes, Longs]  # user, item, time and position of listed cells


@dataclass(frozen=True, eq=False)
class ListSums:
    """A sum over each user's list at each time: ``by_group[user, group_of_time[time]]`` where the user visits."""

    by_group: Floats
    group_of_time: npt.NDArray[np.intp]
    visits: Mask | None = None  # users × times

    def sums(self, users: Mask | None = None) -> tuple[Floats, Floats]:
        """Per user, summed over times, and per time, summed over (some) users."""
        per_user = np.zeros(len(self.by_group))
        per_time = np.empty(len(self.group_of_time))
        for time, part in enumerate(self.group_of_time):
            here = self.by_group[:, part]
            here = here if self.visits is None else here * self.visits[:, time]
            here = here if users is None else here * users
            per_user += here
            per_time[time] = here.sum()
        return per_user, per_time


@dataclass(frozen=True, eq=False)
class Reach:
    """One metric of one ranking on a log: the rows within its reach with their weights, and its list sums.

    ``listed`` is the weight of a user's list (Σ of the weights of all eligible items), ``variate`` that sum weighted
    by c; None if it was not asked for. ``largest`` is the largest weight of any rank.
    """

    formula: Formula
    log: Log
    rows: Longs
    weight: Floats
    listed: ListSums
    variate: ListSums | None
    largest: float


def reaches(
    ranking: Ranking, log: Log, formulas: list[Formula], variate: Variate | None, workers: int
) -> list[Reach]:
    """The reach of every metric, in one pass over the scores."""
    _refuse_areas(formulas)
    tables = _rank_weights(formulas, log.n_items)
    cells = _Cells.of(log)
    columns = _ListColumns.of(log, variate)
    weights, sums = _pass(ranking, log, tables, cells, columns, _depth(formulas, log.n_items), workers)
    return [
        _reach(formula, log, cells, columns, weights[m], sums[m], float(np.abs(tables.weight[m]).max()))
        for m, formula in enumerate(formulas)
    ]


def _reach(
    formula: Formula, log: Log, cells: _Cells, columns: _ListColumns, weight: Floats, sums: Floats, largest: float
) -> Reach:
    scale = formula.factor(log.n_items)
    logged = weight[cells.position] * scale
    inside = np.flatnonzero(logged)
    listed, variate = columns.split(cells, weight * scale, sums * scale)
    return Reach(formula, log, cells.rows[inside], logged[inside], listed, variate, largest * abs(scale))


def rows_within(ranking: Ranking, log: Log, formulas: list[Formula], workers: int) -> list[tuple[Longs, Floats]]:
    """Of each metric the rows within its reach, and their weights; lists are not summed, which costs far less."""
    _refuse_areas(formulas)
    tables, cells = _rank_weights(formulas, log.n_items), _Cells.of(log)
    weights, _ = _pass(ranking, log, tables, cells, None, 0, workers)
    result = []
    for formula, weight in zip(formulas, weights, strict=True):
        logged = weight[cells.position] * formula.factor(log.n_items)
        inside = np.flatnonzero(logged)
        result.append((cells.rows[inside], logged[inside]))
    return result


@dataclass(frozen=True, eq=False)
class _Cells:
    """Cells whose weights are wanted, grouped by user: those of the log's rows, and listed eligible ones."""

    start: Longs
    item: Codes
    rows: Longs  # rows of the log: treated or with an outcome
    position: Longs  # where the cell of each row is
    other: Listed | None = None

    @classmethod
    def of(cls, log: Log) -> _Cells:
        rows = np.flatnonzero((log.treated == 1) | (log.outcome == 1))
        user, item = log.user[rows], log.item[rows]
        listed: tuple[Codes, ...] = ()
        if log.eligibility is not None and log.eligibility.listed is not None:
            codes = log.eligibility.cell(np.arange(log.eligibility.cells))
            listed = tuple(code.astype(np.int32) for code in codes)
            user, item = np.concatenate([user, listed[0]]), np.concatenate([item, listed[1]])
        start, (items, number) = group(user, log.n_users, item, np.arange(len(user)))
        position = np.empty(len(user), np.int64)
        position[number] = np.arange(len(user))
        logged, rest = position[: len(rows)], position[len(rows) :]
        other = (listed[0], listed[1], listed[2], rest) if listed else None
        return cls(start, items, rows, logged, other)


@dataclass(frozen=True, eq=False)
class _ListColumns:
    """What is summed over lists: for each group of times 1, and the terms of c; 0 where no item is eligible."""

    log: Log
    variate: Variate | None
    group_of_time: npt.NDArray[np.intp]
    fold_of_group: npt.NDArray[np.intp]
    factors: Floats  # items × columns; none where listed cells or the weights alone suffice

    @classmethod
    def of(cls, log: Log, variate: Variate | None) -> _ListColumns:
        eligible = log.eligibility
        by_time = eligible is not None and eligible.candidates.timed
        folds = np.zeros(log.n_times, np.intp) if variate is None else variate.fold_of_time
        group_of_time = np.arange(log.n_times) if by_time else folds
        fold_of_group = folds if by_time else np.arange(folds.max() + 1)
        if variate is not None and variate.fold_of_user is not None:  # one time: a group per fold
            group_of_time, fold_of_group = np.zeros(1, np.intp), np.arange(variate.folds)
        if eligible is not None and eligible.listed is not None:
            return cls(log, variate, group_of_time, fold_of_group, np.empty((log.n_items, 0)))
        parts = [_candidates(log, group_of_time, g, len(fold_of_group))[:, None] for g in range(len(fold_of_group))]
        if variate is not None:
            parts += [parts[g] * variate.item_factor[f] for g, f in enumerate(fold_of_group)]
        return cls(log, variate, group_of_time, fold_of_group, np.concatenate(parts, axis=1))

    def split(self, cells: _Cells, weight: Floats, sums: Floats) -> tuple[ListSums, ListSums | None]:
        """The sums of the weights and of c from one metric's sums, users × columns."""
        if cells.other is not None:
            return self._of_listed(cells.other, weight)
        n, visits = len(self.fold_of_group), _visits(self.log)
        if self.variate is None:
            return ListSums(sums, self.group_of_time, visits), None
        terms = sums[:, n:].reshape(len(sums), n, -1)
        c = np.einsum("ugr,gur->ug", terms, self.variate.user_factor[self.fold_of_group])
        listed = sums[:, :n]
        if self.variate.fold_of_user is not None:
            own = self.variate.fold_of_user[:, None]
            listed, c = np.take_along_axis(listed, own, 1), np.take_along_axis(c, own, 1)
        return ListSums(listed, self.group_of_time, visits), ListSums(c, self.group_of_time, visits)

    def _of_listed(
        self, other: tuple[Codes, Codes, Codes, Longs], weight: Floats
    ) -> tuple[ListSums, ListSums | None]:
        user, item, time, position = other
        log, each = self.log, np.arange(self.log.n_times)
        listed = ListSums(_by_user_and_time(log, user, time, weight[position]), each)
        if self.variate is None:
            return listed, None
        c = self.variate.at(user, item, time)
        return listed, ListSums(_by_user_and_time(log, user, time, weight[position] * c), each)


def _candidates(log: Log, group_of_time: Any, g: int, n_groups: int) -> Floats:
    """1 for the items that are candidates at the times of a group, which all have the same ones."""
    if log.eligibility is None:
        return np.ones(log.n_items)
    time = g if n_groups == len(group_of_time) else 0
    return log.eligibility.candidates.contains(np.arange(log.n_items), np.full(log.n_items, time)).astype(np.float64)


def _visits(log: Log) -> Mask | None:
    if log.eligibility is None or log.eligibility.visitors.codes is None:
        return None
    users = np.arange(log.n_users)
    visitors = log.eligibility.visitors
    return np.stack([visitors.contains(users, np.full(log.n_users, t)) for t in range(log.n_times)], axis=1)


def _by_user_and_time(log: Log, user: Codes, time: Codes, value: Floats) -> Floats:
    cell = user.astype(np.int64) * log.n_times + time
    flat = np.bincount(cell, value, minlength=log.n_users * log.n_times).astype(np.float64)
    return flat.reshape(log.n_users, log.n_times)


def _pass(
    ranking: Ranking, log: Log, tables: RankWeights, cells: _Cells, columns: _ListColumns | None, depth: int,
    workers: int,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Weights of the cells (metric × cell) and list sums (metric × user × column)."""
    n_columns = 0 if columns is None else columns.factors.shape[1]
    needed = np.diff(cells.start) > 0 if columns is None else np.ones(log.n_users, np.bool_)
    weights = np.zeros((len(tables.weight), len(cells.item)))
    sums = np.zeros((len(tables.weight), log.n_users, n_columns))

    def run(block: Block) -> None:
        scores = ranking.scores(block)
        if columns is None:
            least = np.full(len(scores), -np.inf, scores.dtype)
            row_weights(scores, least, block.users, block.column, cells.start, cells.item, tables, weights)
            return
        order, length, least = best_first(scores, depth)
        row_weights(scores, least, block.users, block.column, cells.start, cells.item, tables, weights)
        if n_columns:
            known = block.column >= 0
            item_of = np.flatnonzero(known)[np.argsort(block.column[known])]
            unknown = columns.factors[~known].sum(axis=0)
            n_unknown = int(np.count_nonzero(~known))
            list_sums(scores, order, length, block.users, item_of, columns.factors, unknown, n_unknown, tables, sums)

    def run_all(stop: Flag) -> None:
        # one BLAS thread per block of fixed shape, and each block writes its own users: for any number of threads
        # the same bits
        with one_blas_thread(), ThreadPoolExecutor(workers) as pool:
            try:
                for _ in pool.map(run, ranking.blocks(needed)):
                    if stop[0]:
                        break
            finally:
                pool.shutdown(cancel_futures=True)

    run_interruptibly(run_all)
    return weights, sums


def _depth(formulas: list[Formula], n_items: int) -> int:
    return min(max(n_items if formula.depth is None else formula.depth for formula in formulas), n_items)


def _rank_weights(formulas: list[Formula], n_items: int) -> RankWeights:
    weight = np.stack([formula.unscaled(n_items) for formula in formulas])
    summed = np.zeros((len(formulas), n_items + 1))
    np.cumsum(weight, axis=1, out=summed[:, 1:])
    return RankWeights(weight, summed, np.zeros(len(formulas), np.bool_))


def _refuse_areas(formulas: list[Formula]) -> None:
    for formula in formulas:
        if formula.area:
            raise InputError(f"{formula.name} is not a weighted sum of effects; estimate C{formula.name}.")
