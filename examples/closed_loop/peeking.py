"""Thousands of simulated trials, fast: how often do intervals miss, and how often is a challenger promoted wrongly?

Only purchases are drawn, one by one, with the service's own π and its own formulas; what is bought does not depend
on what is shown unless ``ratio`` differs from 1. Each run has a hold-out, an incumbent and a challenger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from taurank.serve import lift
from taurank.serve.policy import Policy

STATISTICS = ("lift of an arm", "challenger − incumbent", "against the hold-out")
STARTED, MISSED, ABOVE, BELOW = range(4)

_mean_and_variance = numba.njit(lift.mean_and_variance)
_half_width = numba.njit(lift.half_width)
_with_extra_events = numba.njit(lift.with_extra_events)
_MIN_USERS, _SAFETY = lift.MIN_USERS, lift.SAFETY


@dataclass(frozen=True)
class Cell:
    """One kind of shop and trial."""

    items: int = 300
    ceiling: float = 0.9
    share: float = 0.2  # of the challenger
    rate: float = 0.05  # purchases per visit
    related: bool = True  # whether the model's scores have to do with sales
    returning: bool = False  # every user comes in every period, or all users come once
    visits: int = 2000  # per period
    ratio: float = 1.0  # sales of an item that is shown, relative to one that is not
    same: bool = False  # the challenger has the incumbent's scores
    peek: int = 100  # a look after so many visits; 0: after every period
    holdout: float = 0.05
    periods: int = 28

    def frequencies(self, runs: int, seed: int, alpha: float = lift.ALPHA, trials: int = 1) -> Any:
        """How many runs started, missed, and were above or below 0 at any look, for each of ``STATISTICS``.

        With ``trials`` a run goes on with further challengers, each with the α that is left for it.
        """
        random = np.random.default_rng([seed, self.items])
        sales = random.permutation(1.0 / np.arange(1, self.items + 1))
        sales /= sales.sum()
        signal = np.log(sales) / np.log(sales).std()
        weights = (1.0, 0.3) if self.related else (0.0, 1.0)
        scores = [weights[0] * signal + weights[1] * random.standard_normal(self.items) for _ in range(2)]
        policy = Policy.model_construct(
            k=10, floor=min(0.001, 1 - self.ceiling), ceiling=self.ceiling, temperature=0.2
        )
        pi = np.array([policy.probabilities(each) for each in (scores[0], scores[0] if self.same else scores[1])])
        shares = np.array([self.holdout, *((1 - self.holdout) * part for part in (1 - self.share, self.share))])
        tastes = np.cumsum(random.gamma(0.5, 1.0, self.visits))
        looks = max(1, self.visits // self.peek) if self.peek else 1
        alphas = np.array([alpha] if trials == 1 else [lift.spent_alpha(n) for n in range(1, trials + 1)])
        return _simulate(
            runs, random, np.cumsum(sales), pi, self.ratio, tastes, self.returning, self.periods, looks, self.visits,
            self.rate, shares, alphas,
        )  # fmt: skip


@numba.njit
def _simulate(
    runs: Any, random: Any, sales: Any, pi: Any, ratio: Any, tastes: Any, returning: Any, periods: Any, looks: Any,
    visits: Any, rate: Any, shares: Any, alphas: Any,
) -> Any:  # fmt: skip
    counts = np.zeros((3, 4))
    truth = np.zeros(3)  # of the arms: hold-out, incumbent, challenger
    for arm in range(1, 3):
        for item in range(len(sales)):
            share = sales[item] - (sales[item - 1] if item else 0.0)
            truth[arm] += pi[arm - 1, item] * share * rate * (ratio - 1.0)
    targets = np.array([truth[1], truth[2] - truth[1], truth[1]])
    for _ in range(runs):
        seen = np.zeros((3, 4), np.bool_)
        for alpha in alphas:
            _trial(
                random,
                seen,
                sales,
                pi,
                ratio,
                tastes,
                returning,
                periods,
                looks,
                visits,
                rate,
                shares,
                alpha,
                targets,
            )
        counts += seen
    return counts


@numba.njit
def _trial(
    random: Any, seen: Any, sales: Any, pi: Any, ratio: Any, tastes: Any, returning: Any, periods: Any, looks: Any,
    visits: Any, rate: Any, shares: Any, alpha: Any, targets: Any,
) -> None:  # fmt: skip
    """One challenger's time."""
    top = max(ratio, 1.0)
    n_users = np.maximum(1, (len(tastes) * shares).astype(np.int64))
    user_lift, user_bought = np.zeros((3, len(tastes))), np.zeros((3, len(tastes)))
    sums = np.zeros((3, 2, 3))  # by arm, for lift and purchases: Σ, Σ² and Σ⁴ over users
    chance = np.zeros((3, 2))
    first = np.zeros(3)
    now = 0.0
    for _ in range(periods * looks):
        now += visits / looks
        for arm in range(3):
            for _ in range(random.poisson(visits / looks * shares[arm] * rate * top)):
                item = min(np.searchsorted(sales, random.random()), len(sales) - 1)
                p = pi[arm - 1, item] if arm else 0.0
                shown = random.random() < p
                if random.random() >= (ratio if shown else 1.0) / top:
                    continue
                odds = p / (1.0 - p)
                weight = 1.0 if shown else -odds
                chance[arm, 0] += odds
                chance[arm, 1] += p + (1.0 - p) * odds**4
                before = np.zeros(2)
                if returning:
                    last = n_users[arm]
                    user = min(np.searchsorted(tastes[:last], random.random() * tastes[last - 1]), last - 1)
                    before[0], before[1] = user_lift[arm, user], user_bought[arm, user]
                    user_lift[arm, user] += weight
                    user_bought[arm, user] += 1.0
                after = before + np.array([weight, 1.0])
                for power in (1, 2, 4):
                    sums[arm, :, power // 2] += after**power - before**power
        mean, variance = np.zeros((3, 2)), np.zeros((3, 2))
        users = n_users if returning else (now * shares).astype(np.int64)
        arm_visits = now * shares
        for arm in range(3):
            each = arm_visits[arm] / max(users[arm], 1)  # visits of a user
            for column in range(2):
                total, square = sums[arm, column, 0], sums[arm, column, 1]
                n = arm_visits[arm]
                mean[arm, column], variance[arm, column] = _mean_and_variance(
                    users[arm], n, n * each, total, square, total * each
                )
        for statistic in range(3):
            a, b = ((1, 1), (2, 1), (1, 0))[statistic]
            column = 1 if statistic == 2 else 0
            value, spread = mean[a, column], variance[a, column]
            lucky, fourth = chance[a, 0] / arm_visits[a] ** 2, chance[a, 1] / arm_visits[a] ** 4
            if statistic > 0:
                value, spread = value - mean[b, column], spread + variance[b, column]
                lucky += chance[b, 0] / arm_visits[b] ** 2
                fourth += chance[b, 1] / arm_visits[b] ** 4
            if statistic == 2:
                both = arm_visits[0] + arm_visits[1]
                lucky = (sums[0, 1, 1] + sums[1, 1, 1]) / both * (1 / arm_visits[0] + 1 / arm_visits[1])
                fourth = (sums[0, 1, 2] + sums[1, 1, 2]) / both * (1 / arm_visits[0] ** 3 + 1 / arm_visits[1] ** 3)
            spread = _with_extra_events(spread, lucky, fourth)
            if min(users[a], users[b]) < _MIN_USERS or not 0.0 < spread < math.inf:
                continue
            if first[statistic] == 0.0:
                first[statistic] = spread
            width = _half_width(spread, first[statistic], _SAFETY * alpha)
            seen[statistic, 0] = True
            seen[statistic, 1] |= not value - width <= targets[statistic] <= value + width
            seen[statistic, 2] |= value - width > 0.0
            seen[statistic, 3] |= value + width < 0.0
