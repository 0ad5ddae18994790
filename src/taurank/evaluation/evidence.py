"""What a log says about one metric of one ranking: a tally of rows that adds up, and whether to believe what it says.

Each row's weight is known, because an interval needs its square and cube, a paired interval the difference of two
rankings in the same row, and a verdict what the rows are like. Of the cells without a row it is enough to know their
sums over lists: how much weight there is, and how much of the control variate c.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from taurank._types import Floats, Longs, Mask
from taurank.data.log import Log
from taurank.errors import plural
from taurank.estimation.estimators import Estimator, almost_always, almost_never, lacks_overlap, outcomes_of
from taurank.evaluation.events import Events, EventSums, power_of_two
from taurank.evaluation.intervals import Estimate, Visits, per_visit

IPS, SNIPS = Estimator("IPS"), Estimator("SNIPS", normalized=True)
FEW_PURCHASES = 10.0
FEW_USERS = 20
MISFIT = 0.1  # propensities may be off by this share on average before the estimate is refused
OVERLAP_LIMIT = 0.05  # warn above this share of a metric's weight on pairs without overlap
ByUserAndTime = tuple[Floats, Floats]


class Figures(NamedTuple):
    """Sums over the rows that a metric weighs; s is w·Z/P, w the weight of the row."""

    shown: float  # Σ s
    shown_bought: float  # Σ s·Y
    treated: float  # rows
    treated_bought: float  # rows
    extreme: float  # Σ |w| over pairs without overlap
    pairs: float  # Σ |w| over all pairs
    always_bought: float  # Σ w·Y over treated rows with P almost 1
    always: float  # Σ w over rows with P almost 1
    represented: float  # Σ s without rows with P almost 0


class Sums(NamedTuple):
    """Sums of an estimator's values per user and per time, and sums over its events."""

    per_user: Floats
    per_time: Floats
    events: EventSums

    @classmethod
    def of(cls, log: Log, events: Events, n: int) -> Sums:
        return cls(*_by_user_and_time(log, events.row, events.value * n), EventSums.of(events))

    @classmethod
    def added(cls, parts: Sequence[Sums]) -> Sums:
        """Those of all users from those of groups of them, one behind the other."""
        per_user, per_time, events = zip(*parts, strict=True)
        return cls(np.concatenate(per_user), np.sum(per_time, axis=0), EventSums.added(events))


class Tally(NamedTuple):
    """What the rows of some users say about one metric of one ranking."""

    own: Sums  # by the estimator of the gains
    ips: Sums
    inside: Sums | None  # by IPS, of the rows with overlap; None if all have it
    shown: ByUserAndTime  # Σ s
    figures: Figures

    @classmethod
    def of(
        cls, log: Log, rows: Longs, weight: Floats, estimator: Estimator, n: int, with_pairs: bool = False
    ) -> Tally:
        """``n`` is the number of visits of the whole log; pairs are added up if any lacks overlap, or ``with_pairs``.

        The values of ``own`` are those of the rows alone.
        """
        treated, outcome = log.treated[rows] == 1, outcomes_of(log, rows)
        propensity = log.recorded_propensity("the check of propensities")[rows]
        extreme, always = lacks_overlap(propensity), almost_always(propensity)
        plain = events_of(log, rows, weight, IPS, n)
        shown = np.where(treated, plain.weight * n, 0.0)
        ips = Sums.of(log, plain, n)
        if estimator.caps != IPS.caps:
            own = Sums.of(log, events_of(log, rows, weight, estimator, n), n)
        elif estimator.variate is None:
            own = ips
        else:  # other values, with the same weights
            value = weight * estimator.values(log, rows)
            squares = np.array([np.sum((value / n / ips.events.size) ** 2), *ips.events.squares[1:]])
            own = Sums(*_by_user_and_time(log, rows, value), ips.events._replace(squares=squares))
        inside = None
        if extreme.any():
            inside = Sums.of(log, plain.at(~extreme), n)
        pairs = (0.0, 0.0)
        if extreme.any() or with_pairs:
            pair = log.user[rows].astype(np.int64) * log.n_items + log.item[rows]
            _, first, number = np.unique(pair, return_index=True, return_inverse=True)
            weights = np.abs(weight[first])
            pairs = float(weights[np.bincount(number, extreme) > 0].sum()), float(weights.sum())
        bought = log.outcome[rows] != 0
        figures = Figures(
            float(shown.sum()), float(np.sum(shown * outcome)), float(np.count_nonzero(treated)),
            float(np.count_nonzero(treated & bought)), *pairs, float(np.sum(weight[always & treated & bought])),
            float(np.sum(weight[always])), float(np.sum(shown[~almost_never(propensity)])),
        )  # fmt: skip
        return cls(own, ips, inside, _by_user_and_time(log, rows, shown), figures)

    @classmethod
    def added(cls, parts: Sequence[Tally]) -> Tally:
        """The tally of all users from those of groups of them, one behind the other."""
        own, ips, _, shown, figures = zip(*parts, strict=True)
        inside = [one.inside or one.ips for one in parts] if any(one.inside is not None for one in parts) else None
        return cls(
            Sums.added(own), Sums.added(ips), None if inside is None else Sums.added(inside),
            (np.concatenate([by_user for by_user, _ in shown]), np.sum([by_time for _, by_time in shown], axis=0)),
            Figures(*(float(total) for total in np.sum(figures, axis=0))),
        )  # fmt: skip


def events_of(log: Log, rows: Longs, weight: Floats, estimator: Estimator, n: int, constant: float = 0.0) -> Events:
    """The events of an estimate from the rows that a metric weighs; ``constant`` is the c of SNIPS."""
    counts, value = weight * estimator.weights(log, rows) / n, weight * estimator.values(log, rows) / n
    treated, propensity = log.treated[rows] == 1, log.recorded_propensity(estimator.name)[rows]
    value = value - constant * np.where(treated, counts, 0.0)
    return Events(rows, counts, outcomes_of(log, rows), treated, propensity, value)


def _by_user_and_time(log: Log, rows: Longs, value: Floats) -> ByUserAndTime:
    pair = np.bincount(log.user[rows], value, log.n_users), np.bincount(log.time[rows], value, log.n_times)
    return pair[0].astype(np.float64), pair[1].astype(np.float64)  # no rows are counted as integers


@dataclass(frozen=True, eq=False)
class Lists:
    """What is known of lists whatever happened: sums over them by user and time, of all users or of some."""

    weight: ByUserAndTime
    variate: ByUserAndTime  # of c times the weight; 0 if the estimator has no c
    largest: float  # weight of any rank
    bounded: bool  # no list has more effect than its weight: an outcome is 0 or 1, and no weight is negative
    visits: Visits
    bought: float  # in the log
    users: Mask | None = None

    @property
    def n(self) -> int:
        return max(int(self.visits.by_user.sum()), 1)

    def estimate(self, sums: Sums, cells: ByUserAndTime) -> Estimate:
        """From what rows add, and all cells."""
        visits, most = self.visits, float(self.weight[0].sum()) / self.n if self.bounded else np.inf
        per_user = per_visit(sums.per_user + cells[0], visits.by_user)
        per_time = per_visit(sums.per_time + cells[1], visits.by_time)
        if self.users is not None:
            per_user, visits = per_user[self.users], Visits(visits.by_user[self.users], visits.by_time)
        return Estimate(per_user, per_time, visits, sums.events, self.largest / self.n, (-most, most))


class Evidence:
    """What a verdict is about: the estimate, other estimators, and how well the log supports them."""

    def __init__(self, tally: Tally, lists: Lists, estimator: Estimator) -> None:
        """SNIPS divides the treated arm by its own weights, Σ w·Z·Y/P · Σw / Σ(w·Z/P).

        That is c = Σ w·Z·Y/P / Σ w·Z/P everywhere, the form of the doubly robust estimate: then the spread between
        users is that of a ratio.
        """
        ips, figures, nothing = tally.ips, tally.figures, (np.zeros(1), np.zeros(1))
        mean = figures.shown_bought / figures.shown if figures.shown > 0 else 0.0
        squares = ips.events.squares.copy()
        squares[0] = max(squares[0] + mean**2 * squares[1] - 2.0 * mean * squares[2], 0.0)
        events = ips.events._replace(squares=squares)
        by_user, by_time = (mean * (all_of - shown) for all_of, shown in zip(lists.weight, tally.shown, strict=True))
        self.ips = lists.estimate(ips, nothing)
        self.snips = lists.estimate(ips._replace(events=events), (by_user, by_time))
        self.own = self.snips if estimator.normalized else lists.estimate(tally.own, lists.variate)
        self.inside = self.ips if tally.inside is None else lists.estimate(tally.inside, nothing)
        self.estimator, self.constant = estimator, mean if estimator.normalized else 0.0
        self.figures, self.lists, self.shown = figures, lists, tally.shown[0]
        self.n_users = int(np.count_nonzero(lists.visits.by_user))
        # the share of the weight on logged pairs that falls on pairs with a propensity within 0.001 of 0 or 1
        self.overlap_share = figures.extreme / figures.pairs if figures.extreme > 0 else 0.0
        # what all purchases of the log would count if the metric gave each its largest weight, per user and time
        self.own_purchases = self.own.unit * lists.bought
        # treated purchases: Kish's effective number of treated rows, times their rate
        self.purchases, squared = 0.0, float(ips.events.squares[1])
        if squared > 0.0:
            effective = (figures.shown / lists.n / ips.events.size) ** 2 / squared
            self.purchases = effective * figures.treated_bought / figures.treated

    @cached_property
    def exposure(self) -> tuple[float, float, float]:
        """How often the list was shown over how often the propensities say, and a 99.9% interval over users."""
        listed, n = self.lists.weight[0], self.n_users
        total = float(listed.sum())
        if total == 0.0 or n < 2:
            return np.nan, -np.inf, np.inf
        ratio = float(self.shown.sum()) / total
        deviation = self.shown - ratio * listed
        size = power_of_two(deviation)
        error = size * float(np.sqrt(n / (n - 1.0) * np.sum((deviation / size) ** 2))) / total
        width = float(stdtrit(n - 1, 0.9995)) * error
        return ratio, ratio - width, ratio + width

    def worst_case(self, level: float = 0.95) -> tuple[float, float]:
        """The interval of IPS where there is overlap, and the worst possible elsewhere, per user and time.

        Where a recommendation is never withheld, Y^C is unknown and τ lies in [Y^T − 1, Y^T]. Where it is never
        made, τ ≤ 1; how much of the list that is follows from what the treated rows with overlap represent, Σ w·Z/P.
        """
        most, n = self.own.limits[1], self.lists.n
        if not np.isfinite(most):
            return -np.inf, np.inf
        low, high = self.inside.interval(level)
        bought, shown = self.figures.always_bought / n, self.figures.always / n
        never = max(most - self.figures.represented / n, 0.0)
        return max(low + bought - shown, -most), min(high + bought + never, most)


@dataclass(frozen=True)
class Verdict:
    """``believe`` or not, the ``reason``, and the ``next_step``; ``str`` is the sentence that leads an estimate.

    ``caution`` is what a reader must know before the number although it is believed.
    """

    believe: bool
    reason: str
    next_step: str
    caution: str = ""

    def __str__(self) -> str:
        start = "Believe it" if self.believe else "Do not believe it"
        start += f" with caution ({self.caution})" if self.caution else ""
        return f"{start}, because {self.reason}; {self.next_step}."


def judge(evidence: Evidence, level: float = 0.95, trained_here: bool = False) -> Verdict:
    """The verdict on one metric of one ranking: the first refusal, if there is one."""
    refusal = next(_refusals(evidence, level, trained_here), None)
    if refusal is not None:
        return Verdict(False, *refusal)
    own, purchases, (low, high) = evidence.own, evidence.own_purchases, evidence.own.interval(level)
    cautions = []
    if abs(own.mean) > purchases:
        cautions.append(f"{number(own.mean)} is more than all purchases of the log are worth, {number(purchases)}")
    if len(own.per_time) == 2:  # docs/estimates.md
        cautions.append("two times say little about how times differ, so that a 95% interval may cover 88% only")
    reason = (
        f"the propensities fit, the estimators agree and an effective number of {number(evidence.purchases)} "
        "purchases of recommended items supports it"
    )
    next_step = "confirm it on a random part of the users"
    if low <= 0.0 <= high:
        reason, next_step = f"{reason}, but its interval includes 0", "collect a longer log to tell its sign"
    return Verdict(True, reason, next_step, " and ".join(cautions))


def _refusals(evidence: Evidence, level: float, trained_here: bool) -> Iterator[tuple[str, str]]:
    """Why not to believe the estimate, and what to do instead, the most fundamental reason first."""
    own, show_more = evidence.own, "show these items to a random share of the users for a while"
    if trained_here:
        reason = "the model was trained on the log it is measured on"
        yield reason, "measure it on another log, for example a later week"
    ratio, ratio_low, ratio_high = evidence.exposure
    if ratio > 1.0 + MISFIT and ratio_low > 1.0:
        reason = f"the log shows the items on this list {number(ratio)} times as often as its propensities say"
        yield reason, "record the propensities, or estimate them with what decides who is shown what"
    if ratio < 1.0 - MISFIT and ratio_high < 1.0:
        share = f"{1.0 - ratio:.0%} of the list lies on pairs that the log never shows"
        yield f"{share}, or its propensities are wrong", show_more
    if evidence.overlap_share > OVERLAP_LIMIT:
        yield (
            f"{evidence.overlap_share:.0%} of its weight falls on pairs that are shown almost always or almost never "
            f"(propensity within 0.001 of 1 or 0); all that is certain is {span(evidence.worst_case(level))}",
            "withhold or show these pairs at random some of the time",
        )
    low, high = own.interval(level)
    most = evidence.own_purchases
    if low > most or high < -most:
        reason = f"{number(own.mean)} is more than all purchases of the log could be worth ({number(most)})"
        yield reason, "check the propensities, and show these items to more users"
    if evidence.purchases < FEW_PURCHASES:
        yield (
            f"it rests on an effective number of {number(evidence.purchases)} purchases of recommended items "
            f"(at least {FEW_PURCHASES:g} needed)",
            f"collect a longer log, or {show_more}",
        )
    if evidence.n_users < FEW_USERS:
        users = plural(evidence.n_users, "user")
        yield f"it rests on {users} (at least {FEW_USERS} needed)", "collect more users"
    for estimator, other in ((SNIPS, evidence.snips), (IPS, evidence.ips)):
        other_low, other_high = other.interval(level)
        if not low <= other.mean <= high and not other_low <= own.mean <= other_high:
            reason = f"{estimator.name} says {number(other.mean)}, outside its interval, and the other way round"
            yield reason, "check the propensities with taurank.diagnose"


def number(value: float) -> str:
    """Three significant digits."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def span(interval: tuple[float, float]) -> str:
    return f"{number(interval[0])} to {number(interval[1])}"


def slope(estimates: list[Estimate], level: float) -> int:
    """SLOPE (Su, Srinath and Krishnamurthy, 2020): the largest cap that agrees with all smaller ones.

    Estimates are in order of falling variance and growing bias. The choice is the last one such that every one up to
    it is within cnf_i + (√6 − 1)·cnf_j of all j before, cnf being half the width of an interval.
    """
    halves = [(high - low) / 2.0 for low, high in (one.interval(level) for one in estimates)]
    chosen = 0
    for i in range(1, len(estimates)):
        gaps = [abs(estimates[i].mean - estimates[j].mean) for j in range(i)]
        if any(gap > halves[i] + (np.sqrt(6.0) - 1.0) * halves[j] for j, gap in enumerate(gaps)):
            break
        chosen = i
    return chosen
