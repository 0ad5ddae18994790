"""What a log says about one metric of one ranking, and whether to believe it.

A tally adds up over rows and users. Each row's weight is known, because an interval needs its square and cube, a
paired interval the difference of two rankings in the same row, and a verdict what the rows are like. Of the cells
without a row it is enough to know their sums over lists: how much weight there is, and how much of the control
variate c.

Rows whose propensity is within 0.001 of 0 or 1 say next to nothing about an effect, but a single one can decide the
interval. The recommended estimator sets them aside: their cells count as if they had no effect, and a verdict says
how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from taurank._types import Floats, Longs, Mask
from taurank.data.log import Log
from taurank.errors import plural
from taurank.estimation.estimators import NEAR, Caps, Estimator, almost_always, almost_never, outcomes_of
from taurank.evaluation.intervals import Estimate, Events, Moments
from taurank.evaluation.text import OVERLAP_LIMIT, number, span

IPS, SNIPS = Estimator("IPS", overlap_only=True), Estimator("SNIPS", normalized=True, overlap_only=True)
FEW_PURCHASES = 10.0
FEW_USERS = 20
MISFIT = 0.1  # propensities, and other estimators, may be off by this share before the estimate is refused
AGREEMENT = "agreement"
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
    represented: float  # Σ s, and Σ w where P is almost 1
    aside: float  # rows that the estimator sets aside


class Tally(NamedTuple):
    """What the rows of some users say about one metric of one ranking."""

    by_user: Floats  # users, values of the estimator; of IPS; s, and w where s was set aside
    by_time: Floats
    own: Moments
    ips: Moments
    figures: Figures

    @classmethod
    def of(cls, log: Log, rows: Longs, weight: Floats, estimator: Estimator, n: int) -> Tally:
        """``n`` is the number of visits of the whole log; the values are those of the rows alone."""
        plain, values = (events_of(log, rows, weight, one, n) for one in (IPS, estimator))
        ips, treated, outcome, propensity = Moments.of(plain), plain.treated, plain.outcome, plain.propensity
        own = (
            ips if (estimator.caps, estimator.overlap_only) == (IPS.caps, True) else Moments.of(values)
        )  # of the same weights
        own = own._replace(squares=np.array([np.sum(values.value**2), *own.squares[1:]]))
        never, always = almost_never(propensity), almost_always(propensity)
        extreme = never | always
        shown = np.where(treated, plain.weight * n, 0.0)
        pair = log.user[rows].astype(np.int64) * log.n_items + log.item[rows]
        _, first, place = np.unique(pair, return_index=True, return_inverse=True)
        by_pair, bought, kept = np.abs(weight[first]), log.outcome[rows] != 0, treated & ~extreme
        figures = Figures(
            float(shown.sum()), float(np.sum(shown * outcome)), float(np.count_nonzero(kept)),
            float(np.count_nonzero(kept & bought)), float(by_pair[np.bincount(place, extreme) > 0].sum()),
            float(by_pair.sum()), float(np.sum(weight[always & treated & bought])), float(np.sum(weight[always])),
            float(shown.sum() + weight[always].sum()),
            float(np.count_nonzero(_set_aside(estimator, propensity))),
        )  # fmt: skip
        columns = [values.value * n, plain.value * n, np.where(extreme, weight, shown)]
        by_user, by_time = (
            np.stack([np.bincount(codes[rows], column, size).astype(np.float64) for column in columns])
            for codes, size in ((log.user, log.n_users), (log.time, log.n_times))
        )
        return cls(by_user, by_time, own, ips, figures)

    @classmethod
    def added(cls, parts: Sequence[Tally]) -> Tally:
        """The tally of all users from those of groups of them, one behind the other."""
        by_user, by_time, own, ips, figures = zip(*parts, strict=True)
        totals = Figures(*(float(total) for total in np.sum(figures, axis=0)))
        return cls(
            np.concatenate(by_user, axis=1), np.sum(by_time, axis=0), Moments.added(own), Moments.added(ips), totals
        )


def events_of(log: Log, rows: Longs, weight: Floats, estimator: Estimator, n: int, constant: float = 0.0) -> Events:
    """The events of an estimate from the rows that a metric weighs; ``constant`` is the c of SNIPS."""
    propensity, treated = log.recorded_propensity(estimator.name)[rows], log.treated[rows] == 1
    aside = _set_aside(estimator, propensity)
    counts, value, kept = np.zeros(len(rows)), -constant * weight, rows[~aside]
    counts[~aside] = weight[~aside] * estimator.weights(log, kept)
    value[~aside] = weight[~aside] * estimator.values(log, kept)
    value[~aside] -= constant * np.where(treated, counts, 0.0)[~aside]
    if estimator.variate is not None and len(kept) < len(rows):  # as if there was no effect
        value[aside] -= weight[aside] * estimator.variate.at(
            *(codes[rows[aside]] for codes in (log.user, log.item, log.time))
        )
    return Events(rows, counts / n, outcomes_of(log, rows), treated, propensity, value / n)


def _set_aside(estimator: Estimator, propensity: Floats) -> Mask:
    """Rows whose denominator is below 0.001 in one arm or the other, whatever caps do."""
    treated, control = estimator.caps.denominators(propensity)
    return np.asarray(((treated <= NEAR) | (control <= 1.0 - (1.0 - NEAR))) & estimator.overlap_only)


@dataclass(frozen=True, eq=False)
class Lists:
    """What is known of lists whatever happened: sums over them by user and time, of all users or of some."""

    weight: ByUserAndTime
    variate: ByUserAndTime  # of c times the weight; 0 if the estimator has no c
    largest: float  # weight of any rank
    outcome: float  # the largest possible; inf if a weight is negative
    visits: tuple[Longs, Longs]
    users_aside: tuple[str, ...] = ()  # whose cells lack overlap

    @property
    def n(self) -> int:
        return max(int(self.visits[0].sum()), 1)

    def estimate(self, by_user: Floats, by_time: Floats, moments: Moments, cells: ByUserAndTime) -> Estimate:
        """From what rows add, and all cells."""
        most = self.outcome if np.isinf(self.outcome) else float(self.weight[0].sum()) / self.n * self.outcome
        per_user = per_visit(by_user + cells[0], self.visits[0])
        per_time = per_visit(by_time + cells[1], self.visits[1])
        return Estimate(per_user, per_time, self.visits, moments, self.largest / self.n, (-most, most))


def per_visit(sums: Floats, counts: Longs) -> Floats:
    """Means over the visits of users or times, the last axis; nan without one."""
    means = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=means, where=np.broadcast_to(counts > 0, sums.shape))
    return means


class Evidence:
    """What a verdict is about: the estimate, other estimators, and how well the log supports them."""

    def __init__(self, tally: Tally, lists: Lists, estimator: Estimator) -> None:
        """SNIPS divides the treated arm by its own weights, Σ w·Z·Y/P · Σw / Σ(w·Z/P).

        That is c = Σ w·Z·Y/P / Σ w·Z/P everywhere, the form of the doubly robust estimate: then the spread between
        users is that of a ratio.
        """
        self.figures, self.lists, self.shown, self.estimator = tally.figures, lists, tally.by_user[2], estimator
        mean = tally.figures.shown_bought / tally.figures.shown if tally.figures.shown > 0 else 0.0
        squares = tally.ips.squares.copy()
        squares[0] = max(squares[0] + mean**2 * squares[1] - 2.0 * mean * squares[2], 0.0)
        cells = mean * (lists.weight[0] - tally.by_user[2]), mean * (lists.weight[1] - tally.by_time[2])
        ips = tally.by_user[1], tally.by_time[1]
        self.ips = lists.estimate(*ips, tally.ips, (np.zeros(1), np.zeros(1)))
        self.snips = lists.estimate(*ips, tally.ips._replace(squares=squares), cells)
        self.own, self.constant = self.snips, mean
        if not estimator.normalized:
            self.own, self.constant = (
                lists.estimate(tally.by_user[0], tally.by_time[0], tally.own, lists.variate),
                0.0,
            )
        self.n_users = int(np.count_nonzero(lists.visits[0]))
        # the share of the weight on logged pairs that falls on pairs with a propensity within 0.001 of 0 or 1
        self.overlap_share = tally.figures.extreme / tally.figures.pairs if tally.figures.extreme > 0 else 0.0
        # treated purchases: Kish's effective number of treated rows, times their rate
        self.purchases, squared = 0.0, float(tally.ips.squares[1])
        if squared > 0.0:
            effective = (tally.figures.shown / lists.n) ** 2 / squared
            self.purchases = effective * tally.figures.treated_bought / tally.figures.treated

    @cached_property
    def exposure(self) -> tuple[float, float, float]:
        """How often the list was shown over how often the propensities say, and a 99.9% interval over users."""
        listed, n = self.lists.weight[0], self.n_users
        total = float(listed.sum())
        if total == 0.0 or n < 2:
            return np.nan, -np.inf, np.inf
        ratio = float(self.shown.sum()) / total
        error = float(np.sqrt(n / (n - 1.0) * np.sum((self.shown - ratio * listed) ** 2))) / total
        width = float(stdtrit(n - 1, 0.9995)) * error
        return ratio, ratio - width, ratio + width

    def worst_case(self, level: float = 0.95) -> tuple[float, float]:
        """The interval of IPS where there is overlap, and the worst possible elsewhere, per user and time.

        Where a recommendation is never withheld, Y^C is unknown and τ lies in [Y^T − 1, Y^T]. Where it is never
        made, τ ≤ 1; how much of the list that is follows from what the treated rows with overlap represent, Σ w·Z/P.
        """
        most, n, figures = self.own.limits[1], self.lists.n, self.figures
        low, high = self.ips.interval(level)
        never = max(most - figures.represented / n, 0.0)
        return max(low + (figures.always_bought - figures.always) / n, -most), min(
            high + figures.always_bought / n + never, most
        )


class LogEvidence(Evidence):
    """Evidence from the rows of a log that a metric weighs; ``lists_of`` are the lists of some users or of all."""

    def __init__(
        self, log: Log, rows: Longs, weight: Floats, estimator: Estimator, lists_of: Callable[[Mask | None], Lists],
        users: Mask | None = None,
    ) -> None:  # fmt: skip
        lists = lists_of(users)
        super().__init__(Tally.of(log, rows, weight, estimator, lists.n), lists, estimator)
        self.log, self.rows, self.weight, self.lists_of = log, rows, weight, lists_of

    def of_users(self, users: Mask) -> LogEvidence:
        here = users[self.log.user[self.rows]]
        return LogEvidence(self.log, self.rows[here], self.weight[here], self.estimator, self.lists_of, users)

    def capped(self, caps: Sequence[float]) -> dict[float, Estimate]:
        """The estimate with each of these caps, on both arms, that changes any row."""
        propensity = self.log.recorded_propensity("estimate")[self.rows]
        smallest = float(np.minimum(propensity, 1.0 - propensity).min(initial=1.0))
        capped = {}
        for cap in caps:
            if cap > smallest:
                estimator = replace(self.estimator, caps=Caps(cap, cap), normalized=False)
                capped[cap] = Evidence(
                    Tally.of(self.log, self.rows, self.weight, estimator, self.lists.n), self.lists, estimator
                ).own
        return capped

    def minus(self, other: LogEvidence) -> Estimate:
        """The paired difference."""
        first, second = (
            events_of(one.log, one.rows, one.weight, one.estimator, one.lists.n, one.constant)
            for one in (self, other)
        )
        return self.own.minus(other.own, Moments.of(first.minus(second)))


@dataclass(frozen=True)
class Verdict:
    """``believe`` or not, the ``reason``, and the ``next_step``; ``str`` is the sentence that leads an estimate.

    ``caution`` is what a reader must know before the number although it is believed, ``check`` the one that failed.
    """

    believe: bool
    reason: str
    next_step: str
    caution: str = ""
    check: str = ""

    def __str__(self) -> str:
        start = "Believe it" if self.believe else "Do not believe it"
        start += f" with caution ({self.caution})" if self.caution else ""
        return f"{start}, because {self.reason}; {self.next_step}."


def judge(evidence: Evidence, level: float = 0.95, trained_here: bool = False) -> Verdict:
    """The verdict on one metric of one ranking: the first refusal, if there is one."""
    refusal = next(_refusals(evidence, level, trained_here), None)
    if refusal is not None:
        check, reason, next_step = refusal
        return Verdict(False, reason, next_step, check=check)
    low, high = evidence.own.interval(level)
    cautions, aside = [], []
    if names := evidence.lists.users_aside:
        examples = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        aside.append(f"{plural(len(names), 'user')} with many propensities above 0.999 ({examples})")
    if evidence.figures.aside:
        aside.append(f"{plural(int(evidence.figures.aside), 'row')} with a propensity within 0.001 of 0 or 1")
    if aside:
        cautions.append(f"{' and '.join(aside)} are set aside: the estimate is that of the others")
    if len(evidence.own.per_time) == 2:  # docs/estimates.md
        cautions.append("two times say little about how times differ, so that a 95% interval may cover 88% only")
    reason = (
        f"the propensities fit, the estimators agree and an effective number of {number(evidence.purchases)} "
        "purchases of recommended items supports it"
    )
    next_step = "confirm it on a random part of the users"
    if low <= 0.0 <= high:
        reason, next_step = f"{reason}, but its interval includes 0", "collect a longer log to tell its sign"
    return Verdict(True, reason, next_step, " and ".join(cautions))


def _refusals(evidence: Evidence, level: float, trained_here: bool) -> Iterator[tuple[str, str, str]]:
    """The check that fails, why, and what to do instead, the most fundamental one first."""
    own, show_more = evidence.own, "show these items to a random share of the users for a while"
    if trained_here:
        reason = "the model was trained on the log it is measured on"
        yield "training log", reason, "measure it on another log, for example a later week"
    ratio, ratio_low, ratio_high = evidence.exposure
    if ratio > 1.0 + MISFIT and ratio_low > 1.0:
        reason = f"the log shows the items on this list {number(ratio)} times as often as its propensities say"
        yield "propensities", reason, "record the propensities, or estimate them with what decides who is shown what"
    if ratio < 1.0 - MISFIT and ratio_high < 1.0:
        share = f"{1.0 - ratio:.0%} of the list lies on pairs that the log never shows"
        yield "propensities", f"{share}, or its propensities are wrong", show_more
    if evidence.overlap_share > OVERLAP_LIMIT:
        yield (
            "overlap",
            f"{evidence.overlap_share:.0%} of its weight falls on pairs that are shown almost always or almost never "
            f"(propensity within 0.001 of 1 or 0); all that is certain is {span(*evidence.worst_case(level))}",
            "withhold or show these pairs at random some of the time",
        )
    (low, high), most = own.interval(level), own.limits[1]
    if low > most or high < -most:
        reason = f"{number(own.mean)} is more than any list could be worth ({number(most)})"
        yield "possible", reason, "check the propensities, and show these items to more users"
    if evidence.purchases < FEW_PURCHASES:
        yield (
            "purchases",
            f"it rests on an effective number of {number(evidence.purchases)} purchases of recommended items "
            f"(at least {FEW_PURCHASES:g} needed)",
            f"collect a longer log, or {show_more}",
        )
    if evidence.n_users < FEW_USERS:
        users = plural(evidence.n_users, "user")
        yield "users", f"it rests on {users} (at least {FEW_USERS} needed)", "collect more users"
    for estimator, other in ((SNIPS, evidence.snips), (IPS, evidence.ips)):
        other_low, other_high = other.interval(level)
        outside = not low <= other.mean <= high and not other_low <= own.mean <= other_high
        if outside and abs(other.mean - own.mean) > MISFIT * abs(own.mean):
            reason = f"{estimator.name} says {number(other.mean)}, outside its interval, and the other way round"
            yield AGREEMENT, reason, "check the propensities with taurank.diagnose"


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
