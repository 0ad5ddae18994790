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

from typing import Any, NamedTuple

import numpy as np

from taurank._checks import check_instance, check_integer
from taurank._types import Floats, Longs
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
    last = min(periods, log.n_times - 1)
    if last < 1:
        return None
    table = _Table(log, categories, p)
    items = [table.effect(lag, table.own(lag)) for lag in range(last + 1)]
    if sum(one.events for one in items[1:]) < MIN_EVENTS:
        return None
    result = LaterEffects(tuple(one.result for one in items), _sum(items[1:]))
    if table.category is None:
        return result
    shown, others = table.effect(0, table.of_category(0, np.flatnonzero(log.treated), np.ones(len(log)))), []
    for lag in range(last + 1):
        own = table.effect(lag, table.of_category(lag, np.flatnonzero(log.outcome), table.outcome))
        if lag == 0:
            mean = own.mean - items[0].mean * shown.mean
            by_user = own.by_user - items[0].mean * shown.by_user - shown.mean * items[0].by_user
            own = _Mean(mean, by_user, own.events)
        others.append(own)
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
    """The cells that count, the weight of each item, and the outcomes that belong to them."""

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
        self.outcome = outcomes_of(log)

    def effect(self, lag: int, outcomes: tuple[Floats, Any, Floats]) -> _Mean:
        """The mean effect on an outcome: its values at treated rows, and Σ w X of whole users."""
        value, user, total = outcomes
        log, rows = self.log, self.rows
        inside = log.time[rows] + lag < log.n_times
        sums = np.bincount(log.user[rows], inside * self.inverse * value, log.n_users)
        sums -= np.bincount(user, total, log.n_users)
        own = inside * (self.inverse - self.weight[log.item[rows]])
        norm = max(float(own.sum()), 1e-300)
        mean = float(sums.sum()) / norm
        by_user = (sums - mean * np.bincount(log.user[rows], own, log.n_users)) / norm
        return _Mean(mean, by_user, int(np.count_nonzero(value[inside])))

    def own(self, lag: int) -> tuple[Floats, Any, Floats]:
        """Purchases of the item itself, ``lag`` periods later."""
        log, bought = self.log, np.flatnonzero(self.log.outcome)
        key = log.catalog.cell_index(log.user, log.item, log.time)
        user, item, time = log.user[bought], log.item[bought], log.time[bought] - lag
        counts = (time >= 0) & self.scope.contains(user, item, np.maximum(time, 0))
        later = log.catalog.cell_index(log.user[self.rows], log.item[self.rows], log.time[self.rows] + lag)
        value = _look_up(later, key[bought], self.outcome[bought])
        return value, user, counts * self.weight[item] * self.outcome[bought]

    def of_category(self, lag: int, events: Longs, size: Floats) -> tuple[Floats, Any, Floats]:
        """Events of all other items of the category, ``lag`` periods later; an event counts ``size``."""
        log, category, scope = self.log, self.category, self.scope
        assert category is not None
        count, n_items, n_times = int(category.max()) + 1, log.n_items, log.n_times
        if scope.own is not None:
            events = events[scope.own.entry(log.user[events], log.item[events]) >= 0]
        user, item, time = log.user[events], log.item[events], log.time[events]
        size = size[events]

        def number(user: Any, item: Any, time: Any) -> Longs:
            return np.asarray((np.asarray(user, np.int64) * count + category[item]) * n_times + time)

        rows = self.rows
        key, back = np.unique(number(user, item, time), return_inverse=True)
        value = _look_up(
            number(log.user[rows], log.item[rows], log.time[rows] + lag),
            key,
            np.bincount(back, size).astype(np.float64),
        )
        itself = log.catalog.cell_index(log.user[rows], log.item[rows], log.time[rows] + lag)
        value -= _look_up(itself, log.catalog.cell_index(user, item, time), size)
        open_at = [log.eligibility.candidates.contains(np.arange(n_items), t) for t in range(n_times)]
        of_category = np.stack([np.bincount(category, self.weight * here, count) for here in open_at])
        before = np.maximum(time - lag, 0)
        counts = (time >= lag) & log.eligibility.visitors.contains(user, before)
        others = of_category[before, category[item]] - self.weight[item] * np.stack(open_at)[before, item]
        return value, user, counts * size * others


def _look_up(key: Longs, known: Longs, values: Floats) -> Floats:
    """The value of each key, 0 for unknown ones."""
    order = np.argsort(known, kind="stable")
    at = np.minimum(np.searchsorted(known, key, sorter=order), len(known) - 1)
    return np.where(known[order[at]] == key, values[order[at]], 0.0) if len(known) else np.zeros(len(key))


def _signed(effect: Effect) -> str:
    low, high = effect.interval
    return f"{effect.mean:+.2g} ({low:+.2g} to {high:+.2g})"
