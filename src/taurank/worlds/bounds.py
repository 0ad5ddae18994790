"""How far an estimate of a metric lies from the truth: its bias, and a bound on its deviation.

All of this needs a ``World``, which knows the truth, and a ranking that is *fixed*: chosen without the
data it is measured on. With weights λ, the metric is R = (1/UI) Σ λ_ui τ_ui and its estimate puts
Z·Y / D^T − (1−Z)·Y / D^C in place of τ. The denominators are D^T = P̂ and D^C = 1 − P̂, under a cap
D^T = max(P̂, χ^T) and D^C = max(1 − P̂, χ^C), each arm its own. P̂ is what the log records. Metrics are as
``taurank.evaluate`` shows them: CAR is mean(rank · gain), smaller is better. AUC is not a weighted sum, so it has no
place here; CAUC does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank._checks import check_instance, check_integer
from taurank._threads import one_blas_thread
from taurank._types import Floats
from taurank.data.reader import PROPENSITY
from taurank.errors import InputError, first_line
from taurank.estimation.estimators import Caps
from taurank.evaluation.intervals import check_fraction
from taurank.evaluation.metrics import Metric, parse, position_weights
from taurank.evaluation.rankers import AnyRanker, Ranking
from taurank.worlds.world import World


def expected(world: World, scores: AnyRanker, metric: str | Metric) -> float:
    """The metric a ranking has in expectation: (1/UI) Σ λ_ui (μ^T_ui − μ^C_ui).

    Parameters
    ----------
    world : potential outcomes of all pairs
    scores : an array users × items in the world's order, a fitted learner or a table, as in ``evaluate``
    metric : a weighted sum: any but AUC

    Examples
    --------
    >>> rates = World([[0.5, 0.2]], [[0.1, 0.2]], [[0.5, 0.5]], users=[1], items=["tea", "jam"])
    >>> round(expected(rates, [[2.0, 1.0]], "CP@1"), 6)  # tea first
    0.4
    """
    _check_world(world)
    total = 0.0
    for users, weight in _weights(world, scores, metric):
        effect = _rows(world.treated_rate, users) - _rows(world.control_rate, users)
        total += float(np.sum(weight * effect))
    return total / world.n_users


def bias(
    world: World,
    scores: AnyRanker,
    metric: str | Metric,
    *,
    propensity: npt.ArrayLike | None = None,
    cap: float | None = None,
    cap_treated: float | None = None,
    cap_control: float | None = None,
) -> float:
    """E[R̂ − R] of (capped) IPS for a fixed ranking, Eq. (bias_estimated_propensity) with its sign put right.

    (1/UI) Σ λ_ui [(P / D^T − 1) μ^T − ((1−P) / D^C − 1) μ^C], the expectation over Z, Y^T and Y^C.

    Parameters
    ----------
    world, scores, metric : as in ``expected``
    propensity : P̂, one number or an array users × items. Without it P̂ is what a log sampled from this world
        records: ``world.recorded`` if the world is misspecified, else the true P
    cap, cap_treated, cap_control : as in ``gains.capped_ips``

    Raises
    ------
    InputError : if the world records the true P and neither P̂ nor a cap is given: nothing else makes a bias
    """
    caps = (cap, cap_treated, cap_control)
    result, _ = _scan(world, scores, metric, propensity, Caps.of(*caps))
    if propensity is None and world.recorded is None and all(given is None for given in caps):
        raise InputError(
            "IPS with the true propensities has no bias; give propensity (what the log records instead), or a cap."
        )
    return result


def deviation(
    world: World,
    scores: AnyRanker,
    metric: str | Metric,
    confidence: float = 0.95,
    *,
    propensity: npt.ArrayLike | None = None,
    cap: float | None = None,
    cap_treated: float | None = None,
    cap_control: float | None = None,
    times: int = 1,
) -> float:
    """A bound that |R̂ − R| exceeds with probability at most ζ = 1 − ``confidence``, Eq. (tail_bound_IPS).

    |bias| + (1/UI) √(ln(2/ζ) / 2) · √(Σ d_ui² / times), with d_ui = λ_ui (1/D^T + 1/D^C).

    Hoeffding's inequality, so it holds at any size, but only if the ranking was fixed without the data it is measured
    on and the Z (and Y) of all cells and times are independent. R may be read in two ways, and the bound holds for
    each: the ``expected`` metric, and the realized one of the same draw, (1/UI) Σ λ (Y^T − Y^C). For a cell's
    estimate minus its realized τ lies in [−1/D^C, 1/D^T] just as the estimate itself does, and both have the same
    bias.

    Parameters
    ----------
    world, scores, metric : as in ``expected``
    confidence : 1 − ζ
    propensity, cap, cap_treated, cap_control : as in ``bias``; without any of them the bias is 0
    times : independent ones, whose average is closer by 1/√times; the bias stays
    """
    check_fraction("confidence", confidence)
    check_integer("times", times)
    bias, squares = _scan(world, scores, metric, propensity, Caps.of(cap, cap_treated, cap_control))
    factor = np.sqrt(np.log(2.0 / (1.0 - confidence)) / 2.0)
    return abs(bias) + float(factor * np.sqrt(squares / times))


def _scan(
    world: World, scores: AnyRanker, metric: str | Metric, propensity: npt.ArrayLike | None, caps: Caps
) -> tuple[float, float]:
    """E[R̂ − R] and Σ (d_ui / UI)², summed over all cells."""
    _check_world(world)
    recorded = _propensity(world, propensity)
    bias = squares = 0.0
    for users, weight in _weights(world, scores, metric):
        treated, control = caps.denominators(_rows(recorded, users))
        p = _rows(world.propensity, users)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            error = (p / treated - 1.0) * _rows(world.treated_rate, users)
            error -= ((1.0 - p) / control - 1.0) * _rows(world.control_rate, users)
            bias += float(np.sum(weight * error))
            squares += float(np.sum((weight * (1.0 / treated + 1.0 / control)) ** 2))
    if not np.isfinite(bias):
        raise InputError("a propensity is too small to be inverted; give a cap, such as cap=0.01.")
    return bias / world.n_users, squares / world.n_users**2


def _check_world(world: Any) -> None:
    check_instance("world", world, World, "World.synthetic(n_users, n_items) or dunnhumby.world()")


def _propensity(world: World, given: npt.ArrayLike | None) -> npt.NDArray[Any]:
    if given is None:
        return world.propensity if world.recorded is None else world.recorded
    try:
        values = np.asarray(given)
    except (TypeError, ValueError) as error:
        raise InputError(f"propensity is not an array users × items: {first_line(error)}.") from error
    shape = (world.n_users, world.n_items)
    if values.dtype.kind != "f" or values.shape not in ((), shape):
        raise InputError(
            f"propensity must be one number or an array users × items {shape}, got shape {values.shape} and "
            f"type {values.dtype}."
        )
    PROPENSITY.check(values.ravel())
    return values


def _rows(values: npt.NDArray[Any], users: npt.NDArray[np.int32]) -> Floats:
    """Some users of an array users × items in float64; a single number as it is."""
    return (values[users] if values.ndim else values).astype(np.float64)


def _weights(world: World, scores: Any, metric: str | Metric) -> Iterator[tuple[npt.NDArray[np.int32], Floats]]:
    """λ / I of every item for a block of users at a time, ties shared."""
    parse(metric).weights(world.n_items)
    ranking = Ranking(scores, world.users, world.items)
    # one BLAS thread per block of fixed shape: the same scores, and so the same ties, on any machine
    with one_blas_thread():
        for block in ranking.blocks(np.ones(world.n_users, np.bool_)):
            yield block.users, position_weights(ranking.scores(block), metric)
