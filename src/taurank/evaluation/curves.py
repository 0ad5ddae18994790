"""Curves of uplift modeling: what it is worth to show the best share of all pairs, or the first k of each list.

With τ(q) the total effect per user of showing the share q of all user-item pairs with the highest scores, x the
number of items per user and TOC(q) = τ(q) / (q·x) − τ(1) / x:

    AUUC = ∫ τ(q) dq        Qini = AUUC − τ(1) / 2        AUTOC = ∫ TOC(q) dq

AUUC and Qini (elsewhere ``auuc_score``, ``qini_auc_score``, there divided by those of a perfect order) are the areas
under the curve and between the curve and a random order; AUTOC is the rank-weighted average treatment effect (RATE)
of Yadlowsky et al. (2025), uplift@k the mean effect of the pairs shown. All are weighted sums of the effects of
pairs, so that the estimators, intervals and verdicts of ``evaluate`` hold for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import narwhals as nw
import numpy as np
import numpy.typing as npt

from taurank._checks import check_choice, check_integer, check_number
from taurank._threads import worker_count
from taurank._types import Floats, Longs
from taurank.data.log import Log
from taurank.errors import InputError, plural, show
from taurank.estimation.gains import Gains
from taurank.evaluation.evaluate import evaluate
from taurank.evaluation.evidence import Verdict, judge
from taurank.evaluation.intervals import Estimate, check_fraction
from taurank.evaluation.measurement import Measurement
from taurank.evaluation.rankers import AnyRanker, Ranking, Scores
from taurank.evaluation.text import number, span
from taurank.evaluation.topk import best
from taurank.evaluation.weights import Given

if TYPE_CHECKING:
    import pandas as pd

DEPTHS = (1, 2, 3, 5, 10, 20, 30, 50, 100)
DECILES = 10


class Area(NamedTuple):
    """A figure of the whole curve with its interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, eq=False, repr=False)
class Curve:
    """The points of a curve, its areas and the deciles of scores.

    ``shares`` are shares of all user-item pairs, or numbers of items k if ``by`` is "k". ``effects`` are what showing
    them causes per user and time, ``uplifts`` the same per pair shown (uplift@k). ``areas`` has AUUC, Qini and AUTOC
    of a curve by share, and ``deciles()`` the mean score and the mean effect of each tenth of the pairs, the best
    first: where scores are effects both should agree. ``verdict`` is that on showing everything, None by the truth.
    """

    by: str
    shares: Floats
    effects: list[Area]
    uplifts: list[Area]
    areas: dict[str, Area]
    tenths: list[tuple[int, float, float, float, float]]
    level: float
    unit: str
    verdict: Verdict | None

    def to_frame(self) -> pd.DataFrame:
        """One row per point: ``share`` or ``k``, ``effect, low, high, uplift, uplift_low, uplift_high``."""
        import pandas as pd

        points = zip(self.shares, self.effects, self.uplifts, strict=True)
        names = [self.by, "effect", "low", "high", "uplift", "uplift_low", "uplift_high"]
        return pd.DataFrame([[share, *effect, *uplift] for share, effect, uplift in points], columns=names)

    def deciles(self) -> pd.DataFrame:
        """``decile, score, effect, low, high``, per pair; empty for a curve by k."""
        import pandas as pd

        return pd.DataFrame(self.tenths, columns=["decile", "score", "effect", "low", "high"])

    def plot(self) -> Any:
        """The curve with its interval as an Altair chart; needs the extra "report"."""
        return import_module("taurank.report.charts").curve_chart(self)

    def __repr__(self) -> str:
        return f"Curve({plural(len(self.shares), 'point')} by {self.by})"

    def __str__(self) -> str:
        lines = [] if self.verdict is None else [str(self.verdict)]
        lines += [f"{name} {number(one.estimate)} ({span(one.low, one.high)})" for name, one in self.areas.items()]
        return "\n".join(
            [*lines, f"effect: {self.unit}", self.to_frame().to_string(index=False, float_format=number)]
        )


def effect_curve(
    ranker: AnyRanker, gains: Gains | Log, *, by: Literal["share", "k"] = "share",
    points: int | Sequence[int] | None = None, level: float = 0.95, unit: str = "time", threads: int | None = None,
) -> Curve:  # fmt: skip
    """The effect of showing the best pairs by share, or the first k items of each user; by the truth or from a log.

    Parameters
    ----------
    ranker, gains, level, unit, threads : as in ``evaluate``
    by : "share" or "k"; pairs with equal scores are shown with equal probability
    points : how many shares (20, or another multiple of 10), or the numbers k

    Examples
    --------
    >>> import taurank as tr
    >>> world = tr.World.synthetic(n_users=50, n_items=10, random_state=0)
    >>> truth = world.sample(times=3, random_state=1).truth
    >>> curve = effect_curve(world.treated_rate - world.control_rate, truth, by="k", points=[1, 5, 10])
    >>> curve.to_frame()["k"].tolist()
    [1, 5, 10]
    """
    check_choice("by", by, ("share", "k"))
    if by == "k":
        return _by_depth(ranker, gains, points, level, unit, threads)
    check_fraction("level", level)
    check_integer("points", 20 if points is None else points, DECILES)
    n: Any = 20 if points is None else points
    if n % DECILES:
        raise InputError(f"points must be a multiple of {DECILES}, so that deciles are among them, got {n}.")
    measurement, workers = Measurement.prepare(gains, "CP@1", unlisted="last"), worker_count(threads)
    ranking, made = measurement.ranking(ranker), measurement.gains
    shares, x = np.arange(1, n + 1) / n, made.n_items
    pairs = made.n_users * x
    places = np.ceil(shares * pairs - 1e-9).astype(np.int64)
    cut, above, upto, sums = _scores_at(ranking, places)
    tied = (shares * pairs - above) / (upto - above)  # the chance of a pair with just this score

    def cuts(scores: Scores) -> Floats:
        """The chance of each pair to be among each share of all pairs, ties broken at random."""
        one, chance = cut[:, None, None], tied[:, None, None]
        return np.where(scores > one, 1.0, np.where(scores == one, chance, 0.0))

    steps = np.eye(n)
    auuc = np.append(np.full(n - 1, 1.0), 0.5) / n  # the trapezoids of a curve that begins at 0
    autoc = 1.0 / (n * shares * x) - np.append(np.zeros(n - 1), 1.0 / x)
    tenths = np.diff(steps[n // DECILES - 1 :: n // DECILES], axis=0, prepend=0.0) * (DECILES / x)
    rows = np.vstack([steps, steps / (shares * x)[:, None], tenths, auuc, auuc - 0.5 * steps[-1], autoc])
    estimates, verdict = _estimates(measurement, ranking, workers, Given(cuts, n), rows, level)
    areas = [Area(one.mean, *one.interval(level)) for one in estimates]
    means = sums.reshape(DECILES, -1).sum(axis=1) / np.diff(places[n // DECILES - 1 :: n // DECILES], prepend=0)
    deciles = [
        (d, float(mean), *area) for d, (mean, area) in enumerate(zip(means, areas[2 * n : -3], strict=True), 1)
    ]
    names = dict(zip(("AUUC", "Qini", "AUTOC"), areas[-3:], strict=True))
    return Curve(by, shares, areas[:n], areas[n : 2 * n], names, deciles, level, _per(made, unit), verdict)


def _by_depth(ranker: Any, gains: Any, points: Any, level: float, unit: str, threads: Any) -> Curve:
    measurement = Measurement.prepare(gains, "CP@1")
    depths = [k for k in DEPTHS if k <= measurement.gains.n_items] if points is None else points
    if isinstance(depths, (str, int, np.integer)) or not len(depths):
        raise InputError(f"points must be numbers of items such as [1, 5, 10], got {show(points)}.")
    result = evaluate(ranker, measurement.gains, [f"CP@{k}" for k in depths], level=level, unit=unit, threads=threads)
    uplifts = [Area(one.mean, one.low, one.high) for one in result.values()]
    effects = [Area(*(k * end for end in one)) for k, one in zip(depths, uplifts, strict=True)]
    per = _per(measurement.gains, unit)
    return Curve("k", np.array(depths), effects, uplifts, {}, [], level, per, result.verdict)


def _per(gains: Gains, unit: str) -> str:
    visitor = "visiting user" if gains.eligibility.has_visits else "user"
    return f"purchases caused per {visitor}" + (f" and {unit}" if gains.timed else "")


def _scores_at(ranking: Ranking, places: Longs) -> tuple[Floats, Longs, Longs, Floats]:
    """The score at each place in the order of all pairs, and how many pairs score more and at least as much.

    And the sum of the scores between each place and the one before. Nothing is sorted: each pass over all scores
    settles 16 more bits.
    """
    blocks = list(ranking.blocks(np.ones(len(ranking.users), np.bool_)))
    key = np.zeros(len(places), np.uint64)  # the bits settled so far
    above, upto = np.zeros_like(places), np.zeros_like(places)
    for shift in (48, 32, 16, 0):
        known, own = np.unique(key, return_inverse=True)
        counts = np.zeros((len(known), 1 << 16), np.int64)
        for block in blocks:
            keys = _ordered_keys(ranking.scores(block)) >> np.uint64(shift)
            digit = (keys & np.uint64(0xFFFF)).astype(np.int64)
            prefix = keys >> np.uint64(16)
            at = np.minimum(np.searchsorted(known, prefix), len(known) - 1)
            here = known[at] == prefix
            counts += np.bincount(at[here] << 16 | digit[here], minlength=counts.size).reshape(counts.shape)
        for n, place in enumerate(places):
            row = counts[own[n], ::-1]
            reached = above[n] + np.cumsum(row)
            first = int(np.searchsorted(reached, place))
            above[n], upto[n] = reached[first] - row[first], reached[first]
            key[n] = key[n] << np.uint64(16) | np.uint64(0xFFFF - first)
    cut = _ordered_scores(key)
    inside = np.zeros(len(cut))  # sums of scores between two cuts
    for block in blocks:
        scores = ranking.scores(block).ravel().astype(np.float64)
        scores = scores[(scores > cut[-1]) & ~np.isin(scores, cut)]
        inside += np.bincount(np.searchsorted(-cut, -scores), scores, len(cut))
    before, last = np.append(0, places[:-1]), np.append(np.inf, cut[:-1])
    at_last = np.minimum(places, np.append(0, upto[:-1])) - before
    at_cut = np.where(cut == last, 0, places - above)
    tied = at_last * np.where(at_last > 0, last, 0.0) + at_cut * np.where(at_cut > 0, cut, 0.0)
    return cut, above, upto, inside + tied


def _ordered_keys(scores: Scores) -> npt.NDArray[np.uint64]:
    """Unsigned integers in the order of the scores: the bits of a float64, all flipped if negative, else the sign."""
    bits = (scores.ravel() + np.float64(0.0)).view(np.uint64)  # −0 becomes 0
    return np.where(bits >> np.uint64(63) == 1, ~bits, bits | np.uint64(1 << 63))


def _ordered_scores(keys: npt.NDArray[np.uint64]) -> Floats:
    return np.where(keys >> np.uint64(63) == 1, keys ^ np.uint64(1 << 63), ~keys).view(np.float64)


def _estimates(
    measurement: Measurement, ranking: Ranking, workers: int, cuts: Given, rows: Floats, level: float
) -> tuple[list[Estimate], Verdict | None]:
    """Each row's combination of the effects of what is shown up to each cut, and whether to believe them."""
    gains = measurement.gains
    if not measurement.is_estimate:
        return measurement.measured(ranking, workers, cuts, rows), None
    weights, sums = measurement.given(ranking, workers, cuts, [np.ones(gains.n_items, np.bool_)])
    listed, c = (replace(one, by_group=np.tensordot(rows, one.by_group, 1)) for one in sums)
    limits = np.abs(rows).max(axis=1), np.where((rows < 0.0).any(axis=1), np.inf, measurement.largest_effect)
    evidence = measurement.evidence_of(rows @ weights, listed, c, limits)
    trained = getattr(ranking.ranker, "log_fingerprint_", None)
    verdict = judge(evidence[cuts.n - 1], level, trained is not None and trained == gains.log_fingerprint)
    return [one.own for one in evidence], verdict


def spend(
    ranker: AnyRanker, log: Log, budget: float, *, cost: float | Mapping[Any, float] | Any = 1.0,
    value: float | None = None, k: int | None = None,
) -> pd.DataFrame:  # fmt: skip
    """What to show to whom until the money is spent: ``user_id, item_id, probability, score, cost``.

    Pairs are taken by score per cost, the best first, until the next one exceeds the budget. The frame is a policy
    that ``evaluate`` measures by CP@k.

    Parameters
    ----------
    ranker : as in ``evaluate``; scores are taken as effects, unless all items cost the same
    log : has the catalog
    budget : the money
    cost : a number, a mapping of item ids or a frame ``item_id, cost``
    value : of a purchase: pairs that cost more than they bring are then left out
    k : at most so many items per user

    Examples
    --------
    >>> import taurank as tr
    >>> world = tr.World.synthetic(n_users=50, n_items=10, random_state=0)
    >>> log = world.sample(random_state=1).log
    >>> len(spend(world.treated_rate - world.control_rate, log, budget=12.0, cost=2.0))
    6
    """
    import pandas as pd

    check_number("budget", budget, 0)
    if value is not None:
        check_number("value", value, 0)
    if k is not None:
        check_integer("k", k)
    ranking, costs = Ranking(ranker, log.users, log.items), _costs(cost, log)
    affordable = int(min(budget // costs.min(), log.n_users * log.n_items))
    most = min(log.n_items, log.n_items if k is None else k, affordable)
    frame = pd.DataFrame({"user": [], "item": [], "score": [], "cost": [], "ratio": []})
    for block in ranking.blocks(np.ones(log.n_users, np.bool_)):
        scores = ranking.scores(block).astype(np.float64)
        top = best(scores / costs, max(most, 1))
        row, place = np.nonzero(np.arange(top.columns.shape[1]) < top.length[:, None])
        item = top.columns[row, place]
        own = pd.DataFrame({"user": block.users[row], "item": item, "score": scores[row, item], "cost": costs[item]})
        if value is not None:
            own = own[own["score"] * value > own["cost"]]
        own = own.assign(ratio=own["score"] / own["cost"])
        frame = own if frame.empty else pd.concat([frame, own])
        # no more than the money is enough for are kept
        frame = frame.sort_values("ratio", ascending=False, kind="stable").head(affordable)
    frame = frame[frame["cost"].cumsum() <= budget]
    user, item = frame["user"].to_numpy(), frame["item"].to_numpy()
    ids = log.users.values.take(user).to_pandas(), log.items.values.take(item).to_pandas()
    return pd.DataFrame({
        "user_id": ids[0], "item_id": ids[1], "probability": 1.0,
        "score": frame["score"].to_numpy(), "cost": frame["cost"].to_numpy(),
    })  # fmt: skip


def _costs(cost: Any, log: Log) -> Floats:
    """Of each item of the catalog."""
    frame = nw.from_native(cost, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        if not {"item_id", "cost"} <= set(frame.columns):
            raise InputError(f"cost needs item_id and cost, got {', '.join(map(str, frame.columns))[:200]}.")
        cost = dict(zip(frame["item_id"].to_list(), frame["cost"].to_list(), strict=True))
    names, given = log.items.values.to_pylist(), [cost]
    if isinstance(cost, Mapping):
        missing = [name for name in names if name not in cost]
        if missing:
            raise InputError(f"cost lacks {plural(len(missing), 'item')}, for example {show(missing[0])}.")
        given = [cost[name] for name in names]
    for one in given:
        check_number("cost", one, 1e-12)
    return np.broadcast_to(np.asarray(given, np.float64), log.n_items)
