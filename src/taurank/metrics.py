"""P@k, DCG, AR and AUC of a ranking, and their causal readings: evaluate one ranker, compare two.

A metric is a weight by rank: Δ_u = Σ_i weight(r_ui) · gain_ui per user and time, Eq. (delta_u_tau). It never
knows which gains it was given: with outcomes it reads P@k, DCG, AR, with effects CP@k, CDCG, CAR. Scores
exist for one block of users at a time, and ranks are computed only where a gain needs one.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from taurank import ranks
from taurank.catalogue import Ids
from taurank.checks import of_kind, whole
from taurank.errors import InputError
from taurank.gains import Gains, Overlap
from taurank.rankers import Block, Ranker, Ranking, as_scores, ranking_of
from taurank.results import Comparison, Metric, Result, Wording

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]

DEFAULT = ("CP@10", "CP@100", "CDCG", "CAR")


class OverlapWarning(UserWarning):
    """Much of an estimate's weight lies on pairs whose propensity leaves one arm unseen."""


def evaluate(
    ranker: Ranker | npt.ArrayLike,
    gains: Gains,
    metrics: str | Iterable[str] = DEFAULT,
    *,
    unit: str = "time",
    threads: int | None = None,
) -> Result:
    """Measure a ranker by gains.

    ``ranker`` is a fitted learner, or an array of scores users × items in the order of the gains' catalogue.
    All items of that catalogue are ranked for all its users: items the ranker does not know come last, tied;
    for a user it does not know all items are tied; items it knows beyond the catalogue do not count. With
    several times the mean over users is taken per time. ``unit`` names a time in sentences ("week").

    Warns (``OverlapWarning``) if the gains are estimated and more than 5 % of a metric's weight on logged
    pairs lies on pairs with a propensity within 1e-3 of 0 or 1.
    """
    result = _evaluate(ranker, gains, metrics, unit, threads)
    if sentence := result.overlap_sentence():
        warnings.warn(sentence, OverlapWarning, stacklevel=2)
    return result


def compare(
    a: Ranker | npt.ArrayLike,
    b: Ranker | npt.ArrayLike,
    gains: Gains,
    metric: str = "CP@10",
    *,
    unit: str = "time",
    threads: int | None = None,
) -> Comparison:
    """The paired difference a − b of one metric, user by user, with its interval; options as ``evaluate``."""
    formula = parse(metric)
    first, second = (_evaluate(ranker, gains, formula.name, unit, threads) for ranker in (a, b))
    sentence = first.overlap_sentence() or second.overlap_sentence()
    if sentence:
        warnings.warn(sentence, OverlapWarning, stacklevel=2)
    return Comparison(first[formula.name], second[formula.name], sentence)


@dataclass(frozen=True)
class Formula:
    """A metric by name: ``weight(ranks, n_items)`` times ``scale(n_items)`` is the worth of a rank."""

    name: str
    form: str
    weight: Callable[[Floats, int], Floats]
    scale: Callable[[int], float]
    depth: int | None = None

    def weights(self, n_items: int) -> Floats:
        """The worth of rank 1 … n_items, so that Δ_u = Σ_i weight(r_ui) · gain_ui (the paper's λ / I)."""
        at = np.arange(1, n_items + 1, dtype=np.float64)
        return self.weight(at, n_items) * self.scale(n_items)


def parse(name: str) -> Formula:
    """The formula of a name in either spelling, such as "P@10" or "CP@10"."""
    match = re.fullmatch(r"C?(P@([1-9][0-9]*)|DCG|AR|AUC)", str(name).strip().upper())
    if not match:
        raise InputError(
            f"unknown metric '{name}'; known are P@k (with a number for k, such as P@10), DCG, AR and AUC, "
            "and their causal readings CP@k, CDCG, CAR and CAUC."
        )
    if match[2]:
        k = int(match[2])
        return Formula(match[0], "P@k", lambda r, n: np.where(r <= k, 1.0, 0.0), lambda n: 1.0 / k, k)
    return Formula(match[0], match[1], *_FORMULAS[match[1]])


_FORMULAS: dict[str, tuple[Callable[[Floats, int], Floats], Callable[[int], float]]] = {
    "DCG": (lambda r, n: 1.0 / np.log2(1.0 + r), lambda n: 1.0),
    "AR": (lambda r, n: r, lambda n: 1.0 / n),
    # linear in the gain, so that IPS stays unbiased; one item alone has no pair to order
    "AUC": (lambda r, n: n - r, lambda n: 1.0 / (n * (n - 1)) if n > 1 else 0.0),
}


def position_weights(scores: npt.ArrayLike, metric: str) -> Floats:
    """The weight of every cell of a small users × items array: Δ_u = Σ_i weight_ui · gain_ui.

    Ties share the mean weight of their ranks. This is λ / I of the paper (AR without its minus sign), for
    worlds and formulas over all pairs; ``evaluate`` never builds it.
    """
    block = as_scores(scores)
    table = parse(metric).weights(block.shape[1])
    summed = np.concatenate(([0.0], np.cumsum(table)))
    ordered = np.sort(block, axis=1)
    weights = np.empty(block.shape)
    for row, (own, sorted_row) in enumerate(zip(block, ordered, strict=True)):
        above = len(own) - np.searchsorted(sorted_row, own, "right")
        tied = len(own) - np.searchsorted(sorted_row, own, "left") - above
        mean = (summed[above + tied] - summed[above]) / tied
        weights[row] = np.where(tied == 1, table[above], mean)
    return weights


def _evaluate(ranker: Any, gains: Gains, metrics: str | Iterable[str], unit: str, threads: int | None) -> Result:
    of_kind("gains", gains, Gains, "taurank.gains, such as gains.ips(log), or take a sample's truth")
    formulas = _parse_all(metrics)
    workers = worker_count(threads)
    ranking = ranking_of(ranker, gains)
    per_user, per_time, exposure = _measure(ranking, gains, formulas, workers)
    shares = _shares(gains, exposure)
    measured = {
        f.name: Metric(f.name, per_user[m], per_time[m], _wording(f, gains, unit), f.form == "AR", shares[m], workers)
        for m, f in enumerate(formulas)
    }
    unknown = (ranking.unknown_users, ranking.unknown_items)
    return Result(measured, gains.users, gains.times, gains.name, *unknown)


def _parse_all(metrics: str | Iterable[str]) -> list[Formula]:
    if not isinstance(metrics, Iterable):
        raise InputError(f"metrics are names such as CP@10, not {metrics!r}.")
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    if not names:
        raise InputError("no metric is named; give at least one, such as CP@10.")
    return list({formula.name: formula for formula in map(parse, names)}.values())


def worker_count(threads: int | None) -> int:
    """How many threads to use: all cores this process may use, unless told otherwise."""
    if threads is not None:
        return whole("threads", threads)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _wording(formula: Formula, gains: Gains, unit: str) -> Wording:
    extra = gains.name != "outcome" and (formula.name[0] == "C" or gains.name != "gain")
    per = f"per user and {unit}" if gains.timed else "per user"
    return Wording(formula.depth, formula.form, extra, per)


def _shares(gains: Gains, exposure: Floats) -> list[float | None]:
    if gains.overlap is None:
        return [None] * len(exposure)
    return [float(extreme / total) if total > 0 else 0.0 for total, extreme in exposure]


def _measure(ranking: Ranking, gains: Gains, formulas: list[Formula], workers: int) -> tuple[Floats, Floats, Floats]:
    """Per user and per time, both scaled, and the exposure; blocks are added up in their order."""
    tables = _tables(formulas, gains)
    rows, logged = _grouped(gains), _logged(gains)
    per_user = np.zeros((len(formulas), gains.n_users))
    per_time = np.zeros((len(formulas), gains.n_times))
    exposure = np.zeros((len(formulas), 2))

    def run(block: Block) -> ranks.Sums:
        scores = ranking.scores(block)
        return ranks.measure(scores, block.users, block.column, rows, logged, tables, gains.n_times, per_user)

    # one BLAS thread per block of fixed shape: the bits do not depend on how many blocks run at once
    with _blas().limit(limits=1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
        try:
            for sums in pool.map(run, ranking.blocks(_needs(rows, logged))):
                per_time += sums.per_time
                exposure += sums.exposure
        finally:
            pool.shutdown(cancel_futures=True)
    scale = np.array([[formula.scale(gains.n_items)] for formula in formulas])
    scale[tables.true_auc] = 1.0
    return per_user * scale / gains.n_times, per_time * scale / gains.n_users, exposure


@cache
def _blas() -> Any:
    """Looking for the libraries takes longer than a small evaluation, so it is done once."""
    return ThreadpoolController()


def _tables(formulas: list[Formula], gains: Gains) -> ranks.Tables:
    at = np.arange(1, gains.n_items + 1, dtype=np.float64)
    weight = np.stack([formula.weight(at, gains.n_items) for formula in formulas])
    summed = np.zeros((len(formulas), gains.n_items + 1))
    np.cumsum(weight, axis=1, out=summed[:, 1:])
    auc = np.array([formula.name == "AUC" and gains.name == "outcome" for formula in formulas])
    if auc.any() and not np.isin(gains.value, (0.0, 1.0)).all():
        wrong = gains.value[~np.isin(gains.value, (0.0, 1.0))]
        raise InputError(
            f"AUC of outcomes needs gains of 0 or 1, but {len(wrong):,} are not, for example {wrong[0]}; "
            "CAUC takes any gains."
        )
    return ranks.Tables(weight, summed, auc)


def _grouped(gains: Gains) -> ranks.Rows:
    """The non-zero gains by user."""
    for codes, ids in ((gains.user, gains.users), (gains.item, gains.items), (gains.time, gains.times)):
        _check_codes(codes, ids)
    columns = (gains.user, gains.item, gains.time, gains.value)
    if not gains.value.all():
        keep = np.flatnonzero(gains.value)
        columns = (gains.user[keep], gains.item[keep], gains.time[keep], gains.value[keep])
    start, (item, time, value) = ranks.group(columns[0], gains.n_users, *columns[1:])
    return ranks.Rows(start, item, time, value)


def _logged(gains: Gains) -> ranks.Logged:
    """The logged pairs by user; none if none of them is extreme, for then the share is 0 anyway."""
    overlap = gains.overlap
    if overlap is None or not overlap.extreme.any():
        nothing = np.empty(0, np.int32)
        overlap = Overlap(nothing, nothing, np.empty(0, np.bool_))
    _check_codes(overlap.user, gains.users)
    _check_codes(overlap.item, gains.items)
    start, (item, extreme) = ranks.group(overlap.user, gains.n_users, overlap.item, overlap.extreme)
    return ranks.Logged(start, item, extreme)


def _check_codes(codes: Codes, ids: Ids) -> None:
    if len(codes) and (int(codes.min()) < 0 or int(codes.max()) >= len(ids)):
        raise InputError(f"the gains have positions of '{ids.column}' outside the catalogue of {len(ids):,}.")


def _needs(rows: ranks.Rows, logged: ranks.Logged) -> npt.NDArray[np.bool_]:
    """Which users have anything to be ranked."""
    return np.asarray((np.diff(rows.start) > 0) | (np.diff(logged.start) > 0))
