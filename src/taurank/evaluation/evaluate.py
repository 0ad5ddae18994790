"""P@k, DCG, AR and AUC of a ranking, and their causal readings: evaluate one ranker, compare two.

A metric is a weight by rank: Δ_u = Σ_i weight(r_ui) · gain_ui per user and time, Eq. (delta_u_tau). It never
knows which gains it was given: with outcomes it reads P@k, DCG, AR, with effects CP@k, CDCG, CAR. Scores
exist for one block of users at a time, and ranks are computed only where a gain needs one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank._arrays import group
from taurank._threads import one_blas_thread, worker_count
from taurank._validation import check_instance
from taurank.data.ids import Ids
from taurank.errors import InputError, OverlapWarning
from taurank.estimation.gains import Gains, Overlap
from taurank.evaluation import rank_kernels
from taurank.evaluation.formulas import DEFAULT, Formula, parse, parse_all
from taurank.evaluation.rankers import Block, Ranker, Ranking, ranking_of
from taurank.evaluation.results import Comparison, Metric, Result, Wording

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]


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


def _evaluate(ranker: Any, gains: Gains, metrics: str | Iterable[str], unit: str, threads: int | None) -> Result:
    check_instance("gains", gains, Gains, "taurank.gains, such as gains.ips(log), or take a sample's truth")
    formulas = parse_all(metrics)
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

    def run(block: Block) -> rank_kernels.Sums:
        scores = ranking.scores(block)
        return rank_kernels.measure(scores, block.users, block.column, rows, logged, tables, gains.n_times, per_user)

    # one BLAS thread per block of fixed shape: the bits do not depend on how many blocks run at once
    with one_blas_thread(), ThreadPoolExecutor(workers) as pool:
        try:
            for sums in pool.map(run, ranking.blocks(_needs(rows, logged))):
                per_time += sums.per_time
                exposure += sums.exposure
        finally:
            pool.shutdown(cancel_futures=True)
    scale = np.array([[formula.scale(gains.n_items)] for formula in formulas])
    scale[tables.true_auc] = 1.0
    return per_user * scale / gains.n_times, per_time * scale / gains.n_users, exposure


def _tables(formulas: list[Formula], gains: Gains) -> rank_kernels.RankWeights:
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
    return rank_kernels.RankWeights(weight, summed, auc)


def _grouped(gains: Gains) -> rank_kernels.GainsByUser:
    """The non-zero gains by user."""
    for codes, ids in ((gains.user, gains.users), (gains.item, gains.items), (gains.time, gains.times)):
        _check_codes(codes, ids)
    columns = (gains.user, gains.item, gains.time, gains.value)
    if not gains.value.all():
        keep = np.flatnonzero(gains.value)
        columns = (gains.user[keep], gains.item[keep], gains.time[keep], gains.value[keep])
    start, (item, time, value) = group(columns[0], gains.n_users, *columns[1:])
    return rank_kernels.GainsByUser(start, item, time, value)


def _logged(gains: Gains) -> rank_kernels.LoggedByUser:
    """The logged pairs by user; none if none of them is extreme, for then the share is 0 anyway."""
    overlap = gains.overlap
    if overlap is None or not overlap.extreme.any():
        nothing = np.empty(0, np.int32)
        overlap = Overlap(nothing, nothing, np.empty(0, np.bool_))
    _check_codes(overlap.user, gains.users)
    _check_codes(overlap.item, gains.items)
    start, (item, extreme) = group(overlap.user, gains.n_users, overlap.item, overlap.extreme)
    return rank_kernels.LoggedByUser(start, item, extreme)


def _check_codes(codes: Codes, ids: Ids) -> None:
    if len(codes) and (int(codes.min()) < 0 or int(codes.max()) >= len(ids)):
        raise InputError(f"the gains have positions of '{ids.column}' outside the catalogue of {len(ids):,}.")


def _needs(rows: rank_kernels.GainsByUser, logged: rank_kernels.LoggedByUser) -> npt.NDArray[np.bool_]:
    """Which users have anything to be ranked."""
    return np.asarray((np.diff(rows.start) > 0) | (np.diff(logged.start) > 0))
