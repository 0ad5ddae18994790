"""What showing an item does to other purchases: to later ones of the item, and to those of its category.

An estimate of one period's effect misses what comes later (delayed purchases, replaced ones) and what goes elsewhere
(another item of the category that is not bought now). Both can be told by the same randomization: whether a cell was
treated is a coin with the recorded P, whatever is bought afterwards. For any outcome X that belongs to a cell,

    Σ_cells w (Z/P − 1) X  is on average  Σ_cells w (1 − P) (X if treated − X if not),

and needs P at treated rows alone. Over Σ_treated w (1/P − 1) it is the mean effect of a showing; w is the
share of cells in which the item is shown, so that rare showings do not decide. Errors are those of sums over users.
Showing an item leaves less room for others of its category: what these would have sold by being shown is no
replacement, and is added back, by the number that is missing and the mean effect of a showing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from taurank._checks import check_instance, check_integer
from taurank._types import Codes, Floats, Longs
from taurank.data.features import Features
from taurank.data.log import Log
from taurank.estimation.estimators import outcomes_of
from taurank.estimation.propensity.calibration import TINY, Scope

PERIODS = 3  # to look ahead
MIN_EVENTS = 20  # purchases after a showing: fewer say nothing
LIMIT = 2.24  # standard errors: both checks together are wrong once in 20 logs
LEVEL = 1.96  # of an interval of 95%


class Effect(NamedTuple):
    """A mean effect of one showing, and its standard error."""

    mean: float
    error: float

    @property
    def interval(self) -> tuple[float, float]:
        return self.mean - LEVEL * self.error, self.mean + LEVEL * self.error

    @property
    def is_clear(self) -> bool:
        """Whether it is not 0, up to chance."""
        return abs(self.mean) > LIMIT * self.error


class LaterEffects(NamedTuple):
    """What one showing causes: of the item in its period, later, and of other items of the category, then and later.

    ``by_lag`` has the effect on purchases of the item 0, 1, … periods later; ``later`` is the sum of all but the
    first. ``category_by_lag`` and ``category`` are the same for the other items of its category, the period of the
    showing included; None without categories.
    """

    by_lag: tuple[Effect, ...]
    later: Effect
    category_by_lag: tuple[Effect, ...] | None = None
    category: Effect | None = None

    @property
    def sentences(self) -> list[str]:
        """What was noticed, one sentence each."""
        found, now = [], self.by_lag[0].mean
        if self.later.is_clear:
            found.append(
                f"Showing an item also changes its purchases in the next {len(self.by_lag) - 1} periods: by "
                f"{_signed(self.later)} per showing, beside {now:.2g} in the same period; the whole effect is "
                f"{(now + self.later.mean) / now if now else float('nan'):.2f} times the estimates of one period."
            )
        if self.category is not None and self.category.is_clear:
            kind = "replaces" if self.category.mean < 0 else "adds"
            found.append(
                f"What is bought because it is shown {kind} purchases of other items of the category: "
                f"{_signed(self.category)} per showing, beside {now:.2g} of the item itself."
            )
        return found


def later_effects(log: Log, categories: Features | None = None, periods: int = PERIODS) -> LaterEffects | None:
    """The effects of a showing over this and the next ``periods`` periods; None where too few purchases follow one.

    ``categories`` names the category of each item (a column of the table ``items``) and, if a shop shows each user
    some categories only, those of each user. A log with a single time says nothing.
    """
    check_instance("log", log, Log, "Log.from_frame or Log.read")
    check_integer("periods", periods)
    p = log.recorded_propensity("the check of later effects")
    lags = range(min(periods, log.n_times - 1) + 1)
    if len(lags) == 1:
        return None
    table, bought, outcome = _Table(log, categories, p), np.flatnonzero(log.outcome), outcomes_of(log)
    items = [table.effect(lag, bought, outcome) for lag in lags]
    if sum(one.events for one in items[1:]) < MIN_EVENTS:
        return None
    result = LaterEffects(tuple(one.result for one in items), _sum(items[1:]))
    if table.category is None:
        return result
    shown = table.effect(0, np.flatnonzero(log.treated), np.ones(len(log)), of_others=True)
    others = [table.effect(lag, bought, outcome, of_others=True) for lag in lags]
    now, own = others[0], items[0]
    by_user = now.by_user - own.mean * shown.by_user - shown.mean * own.by_user
    others[0] = _Mean(now.mean - own.mean * shown.mean, by_user, now.events)
    return result._replace(category_by_lag=tuple(one.result for one in others), category=_sum(others))


class _Mean(NamedTuple):
    """A mean, and what each user adds to its error."""

    mean: float
    by_user: Floats
    events: int

    @property
    def result(self) -> Effect:
        return Effect(self.mean, float(np.sqrt((self.by_user**2).sum())))


def _sum(parts: list[_Mean]) -> Effect:
    return _Mean(sum(one.mean for one in parts), np.sum([one.by_user for one in parts], axis=0), 0).result


class _Table:
    """The cells that count, and the weight of each item."""

    def __init__(self, log: Log, categories: Features | None, propensity: Floats) -> None:
        has_own = categories is not None and categories.user_categories(log.users, log.items) is not None
        self.log, self.scope = log, Scope(log, categories if has_own else None)
        self.category: Longs | None = None
        if categories is not None and log.eligibility.listed is None:
            self.category = self.scope.own.item if self.scope.own is not None else categories.classes(log.items)[0]
        rows = np.flatnonzero(log.treated)
        self.rows = rows[self.scope.contains(log.user[rows], log.item[rows], log.time[rows])]
        shown = np.bincount(log.item[self.rows], minlength=log.n_items)
        self.weight = shown / np.maximum(self.scope.cells_by[1], 1)  # of each item
        self.inverse = self.weight[log.item[self.rows]] / np.maximum(propensity[self.rows], TINY)

    def effect(self, lag: int, events: Longs, size: Floats, of_others: bool = False) -> _Mean:
        """The mean effect on events (rows of the log) of the same item, or of the others of its category, ``lag``
        periods later; an event counts ``size``.
        """
        log, scope, rows = self.log, self.scope, self.rows
        if of_others and scope.own is not None:
            events = events[scope.own.entry(log.user[events], log.item[events]) >= 0]
        user, item, size = log.user[events], log.item[events], size[events]
        before = np.maximum(log.time[events] - lag, 0)
        count = scope.contains(user, item, before) * self.weight[item]  # Σ w of the cells that an event belongs to
        value = self._at_rows(lag, events, size, log.item)  # X of each treated cell
        if of_others:
            assert self.category is not None
            value = self._at_rows(lag, events, size, self.category[log.item]) - value
            count = log.eligibility.visitors.contains(user, before) * self._of_category(item, before) - count
        inside = log.time[rows] + lag < log.n_times
        sums = np.bincount(log.user[rows], inside * self.inverse * value, log.n_users)
        sums -= np.bincount(user, (log.time[events] >= lag) * count * size, log.n_users)
        own = inside * (self.inverse - self.weight[log.item[rows]])
        norm = max(float(own.sum()), 1e-300)
        mean = float(sums.sum()) / norm
        by_user = (sums - mean * np.bincount(log.user[rows], own, log.n_users)) / norm
        return _Mean(mean, by_user, int(np.count_nonzero(value[inside])))

    def _at_rows(self, lag: int, events: Longs, size: Floats, group: Longs | Codes) -> Floats:
        """For each treated row the events of its user and its group, ``lag`` periods later."""
        log = self.log
        number = (log.time * np.int64(log.n_users) + log.user) * (int(group.max(initial=0)) + 1) + group
        known, back = np.unique(number[events], return_inverse=True)
        if not len(known):
            return np.zeros(len(self.rows))
        later = number[self.rows] + lag * np.int64(log.n_users) * (int(group.max(initial=0)) + 1)
        at = np.minimum(np.searchsorted(known, later), len(known) - 1)
        return np.where(known[at] == later, np.bincount(back, size)[at], 0.0)

    def _of_category(self, item: Codes, time: Codes) -> Floats:
        """Σ w over the items of a category that are candidates at a time; one time after the other."""
        assert self.category is not None
        total, candidates = np.empty(len(item)), self.log.eligibility.candidates
        for t in np.unique(time):
            at = np.flatnonzero(time == t)
            here = candidates.contains(np.arange(self.log.n_items), t)
            total[at] = np.bincount(self.category, self.weight * here)[self.category[item[at]]]
        return total


def _signed(effect: Effect) -> str:
    low, high = effect.interval
    return f"{effect.mean:+.2g} ({low:+.2g} to {high:+.2g})"
