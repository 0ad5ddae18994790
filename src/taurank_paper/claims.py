"""The claims of the paper's section 5, and whether a run reproduces them; ``claims.toml`` has one row for each.

A criterion is a function from the rows of one part of an experiment's table, mostly a dataset, to a sign and its
figures. There are three kinds: *winners* score higher than losers, the *best value* of something varied is where the
paper says, and a *ratio* is small or large enough. A claim is not reproduced if one part is clearly against it,
reproduced if all are clearly for it, and inconclusive otherwise. The same criteria are applied to the paper's own
printed figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked

from taurank.toml import read_toml, validated
from taurank_paper.folder import Frames, printed
from taurank_paper.plan import ASSIGNMENTS, ITEMS, LIMITS, Kind
from taurank_paper.scores import (
    DATASETS,
    METRICS,
    SIGNS,
    Score,
    best,
    by,
    compare,
    format_score,
    larger_is_better,
    lookup,
    method_name,
    where,
)

VERDICTS = ("reproduced", "not reproduced", "inconclusive")
NOT_PRINTED = "no figures printed"

PAPER_FACTORS = {"original": 200.0, "personalized": 400.0}  # d at which the paper says that performance saturates
AROUND = 10**0.5  # a cap is around another if it is at most half a decade away: one step of the grid

COLUMNS = {**dict.fromkeys(ITEMS, "items"), **dict.fromkeys(ASSIGNMENTS, "setting")}  # by the words of a part
Answer = tuple[int | None, str]  # for the claim (1), within noise (0), against it (-1), or no scores; and the figures


class PartialResult(NamedTuple):
    """What one part of a table says about a claim."""

    label: str
    sign: int | None
    figures: str


class Assessment(NamedTuple):
    """The verdict on a claim, the figures, one line per part, and a remark."""

    verdict: str
    figures: str = ""
    remark: str = ""


def aggregate(parts: Sequence[PartialResult]) -> Assessment:
    """One part against a claim refutes it; all for it reproduce it."""
    known = [part for part in parts if part.sign is not None]
    missing = [part.label for part in parts if part.sign is None]
    noisy = [part.label for part in known if part.sign == 0]
    figures = "\n".join(f"{part.label}: {part.figures}" for part in known)
    notes = [f"No figures for {', '.join(missing)}."] if missing else []
    if any(part.sign == -1 for part in known):
        return Assessment("not reproduced", figures, " ".join(notes))
    if noisy:
        notes.append(f"Within noise: {', '.join(noisy)}.")
    is_open = missing or noisy or not known
    return Assessment("inconclusive" if is_open else "reproduced", figures, " ".join(notes))


def mostly(parts: Sequence[PartialResult]) -> Assessment:
    """Clearly better in more than half of all comparisons; against it: clearly worse in at least half."""
    known, wins, losses = _count(parts)
    count = f"clearly better in {wins}, clearly worse in {losses} of {len(known)} comparisons"
    figures = _with_details(count, known)
    if len(known) < len(parts):
        return Assessment("inconclusive", figures, f"Only {len(known)} of {len(parts)} comparisons were made.")
    if 2 * wins > len(parts):
        return Assessment("reproduced", figures)
    return Assessment("not reproduced" if 2 * losses >= len(parts) else "inconclusive", figures)


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class Claim:
    """A row of ``claims.toml``."""

    id: str
    claim: str
    where: str
    experiment: Kind
    criterion: str
    check: str
    arguments: dict[str, Any] = field(default_factory=dict)
    on: tuple[str, ...] = tuple(map(" ".join, DATASETS))
    by_method: bool = False
    count: bool = False

    def assess(self, frames: Frames) -> Assessment:
        """What the frames say about the claim; without the experiment it is inconclusive."""
        frame = frames.get(self.experiment, pd.DataFrame())
        if frame.empty:
            return Assessment("inconclusive", "", f"The experiment {self.experiment} was not run.")
        check = partial(CRITERIA[self.check], **self.arguments)
        parts = []
        for part in self.on:
            rows = where(frame, **{COLUMNS.get(word, "metric"): word for word in part.split()})
            label = " ".join(word for word in part.split() if word in COLUMNS)
            if self.count:
                parts += [PartialResult(label, *check(rows, metrics=[metric])) for metric in METRICS]
            elif self.by_method and len(rows):
                parts += [PartialResult(method_name(str(name)), *check(own)) for name, own in rows.groupby("method")]
            else:
                parts.append(PartialResult(label, *check(rows)))
        return mostly(parts) if self.count else aggregate(parts)


class ClaimResult(NamedTuple):
    """A claim with its assessment.

    ``paper`` is the verdict of the same criterion on the paper's printed figures, and ``authors`` the assessment of a
    run with the authors' settings, where there is one.
    """

    claim: Claim
    here: Assessment
    explanation: str
    paper: str
    authors: Assessment | None


def check(
    frames: Frames, explanations: Mapping[str, str] = MappingProxyType({}), authors: Frames = MappingProxyType({})
) -> list[ClaimResult]:
    """The result of every claim, in the paper's order; ``explanations`` by id go with claims not reproduced.

    ``authors`` are the tables of a run with the authors' settings: its experiments give a second answer.
    """
    results = []
    for claim in CLAIMS:
        here, in_paper = claim.assess(frames), claim.assess(printed())
        there = claim.assess(authors) if claim.experiment in authors else None
        explanation = explanations.get(claim.id, "") if here.verdict == "not reproduced" else ""
        paper = in_paper.verdict if in_paper.figures else NOT_PRINTED
        results.append(ClaimResult(claim, here, explanation, paper, there))
    return results


def to_frame(results: Sequence[ClaimResult]) -> pd.DataFrame:
    """One row per claim; lines are joined, so that a row is a line of the file."""
    columns = (
        "id", "claim", "where", "criterion", "verdict", "figures", "remark", "explanation", "paper", "authors",
        "authors_figures",
    )  # fmt: skip
    rows = []
    for claim, here, explanation, paper, authors in results:
        second = authors or Assessment("")
        figures, second_figures = ("; ".join(map(str.strip, each.figures.splitlines())) for each in (here, second))
        first = (claim.id, claim.claim, claim.where, claim.criterion, here.verdict, figures, here.remark)
        rows.append((*first, " ".join(explanation.split()), paper, second.verdict, second_figures))
    return pd.DataFrame(rows, columns=columns)


# ---- winners -------------------------------------------------------------------------------------


def wins(
    rows: pd.DataFrame, winners: Sequence[str], losers: Sequence[str], metrics: Sequence[str] = METRICS
) -> Answer:
    """The best winner is clearly better than the best loser in more metrics than it is clearly worse."""
    pairs, figures, signs = [], [], []
    for metric in metrics:
        own = where(rows, metric=metric)
        one, two = (best((lookup(own, method) for method in side), metric) for side in (winners, losers))
        if one is not None and two is not None:
            signs.append(compare(metric, one, two))
            pairs.append(f"{method_name(one.method)} : {method_name(two.method)}")
            means = " : ".join(format_score(metric, each.mean) for each in (one, two))
            figures.append(f"{metric} {means} {SIGNS[signs[-1]]}")
    if len(set(pairs)) == 1:  # the methods once
        return _majority(signs), ", ".join([pairs[0], *figures])
    return _majority(signs), ", ".join(map(" ".join, zip(pairs, figures, strict=True)))


def wins_across_beta(rows: pd.DataFrame, winner: str, losers: Sequence[str]) -> Answer:
    """Outperforms the best of the losers at more than half of the β; against it: worse at more than a quarter."""
    parts = [PartialResult(f"β = {beta:g}", *wins(own, [winner], losers)) for beta, own in rows.groupby("beta")]
    known, wins_, losses = _count(parts)
    if not known:
        return None, ""
    sign = -1 if 4 * losses > len(known) else 1 if 2 * wins_ > len(known) and not losses else 0
    return sign, _with_details(f"better at {wins_}, worse at {losses} of {len(known)} β", known)


def wins_up_to_xi(rows: pd.DataFrame, winner: str, losers: Sequence[str], wide: float) -> Answer:
    """Outperforms the best of the losers, which use no propensity, at every ξ up to ``wide``."""
    own, blind = where(rows, propensity="misspecified", method=winner), where(rows, propensity="none")
    parts = {
        xi: PartialResult(f"ξ = {xi:g}", *wins(pd.concat([own[own["xi"] == xi], blind]), [winner], losers))
        for xi in sorted(set(own["xi"].dropna()))
    }
    known, wins_, losses = _count([part for xi, part in parts.items() if xi <= wide])
    if not known:
        return None, ""
    count = f"better at {wins_}, worse at {losses} of {len(known)} ξ up to {wide:g}"
    return min(part.sign or 0 for part in known), _with_details(count, _count(parts.values())[0])


def wins_with_estimated(rows: pd.DataFrame, winner: str, losers: Sequence[str]) -> Answer:
    """With propensities estimated from the log: outperforms the best of the losers, which use none."""
    own = where(rows, propensity="estimated", method=winner)
    return wins(pd.concat([own, where(rows, propensity="none")]), [winner], losers)


def _majority(signs: Sequence[int]) -> int | None:
    """The sign that more metrics have: one clear metric decides where the others are within noise."""
    return int(np.sign(sum(signs))) if signs else None


def _count(parts: Iterable[PartialResult]) -> tuple[list[PartialResult], int, int]:
    """The parts that have scores, and how many of them are for and against."""
    known = [part for part in parts if part.sign is not None]
    return known, sum(part.sign == 1 for part in known), sum(part.sign == -1 for part in known)


def _with_details(summary: str, parts: Iterable[PartialResult]) -> str:
    """Indented lines below a summary: details that the report folds."""
    return "\n  ".join([summary, *(f"{part.label}: {part.figures}" for part in parts)])


# ---- the best value of something varied ----------------------------------------------------------


def intermediate_cap_is_best(rows: pd.DataFrame, metric: str) -> Answer:
    """The best cap strictly inside the grid is clearly better than both ends; against it: an end is better."""
    scores = by(rows, "cap", metric)
    if len(scores) < 3:
        return None, ""
    low, *between, high = scores
    inner = _best_at({cap: scores[cap] for cap in between}, metric)
    sign = min(compare(metric, scores[inner], scores[end]) for end in (low, high))
    return sign, _caps(scores, metric, (low, inner, high))


def best_cap_is_larger(rows: pd.DataFrame, curves: Sequence[tuple[str, str]]) -> Answer:
    """The best cap of the first (setting, metric) is the larger; clearly if one loses with the other's cap."""
    (one, first), (two, second) = (
        (metric, by(where(rows, setting=place), "cap", metric)) for place, metric in curves
    )
    if not first or not second:
        return None, ""

    def loses(scores: Mapping[float, Score], own: float, other: float, metric: str) -> bool:
        return other in scores and compare(metric, scores[own], scores[other]) > 0

    larger, smaller = _best_at(first, one), _best_at(second, two)
    is_clear = loses(first, larger, smaller, one) or loses(second, smaller, larger, two)
    sign = int(np.sign(larger - smaller)) if is_clear else 0
    named = zip(curves, (larger, smaller), strict=True)
    return sign, ", ".join(f"{place} {metric} best at {cap:g}" for (place, metric), cap in named)


def best_cap_is_around(rows: pd.DataFrame, target: float, metric: str) -> Answer:
    """The best cap is at most half a decade from the target; against it: all such caps are clearly worse."""
    scores = by(rows, "cap", metric)
    near = {cap: score for cap, score in scores.items() if target / AROUND <= cap <= target * AROUND}
    if not near:
        return None, ""
    top = _best_at(scores, metric)
    sign = 1 if top in near else compare(metric, near[_best_at(near, metric)], scores[top])
    return sign, _caps(scores, metric, scores)


def _best_at(scores: Mapping[float, Score], metric: str) -> float:
    sign = 1 if larger_is_better(metric) else -1
    return max(scores, key=lambda value: sign * scores[value].mean)


def _caps(scores: Mapping[float, Score], metric: str, caps: Iterable[float]) -> str:
    figures = ", ".join(f"{format_score(metric, scores[cap].mean)} at {cap:g}" for cap in caps)
    return f"{metric} {figures}; best at {_best_at(scores, metric):g}"


def saturates(rows: pd.DataFrame, loss: str) -> Answer:
    """No d beyond the paper's brings a clear gain in any metric; against it: one does in most of them."""
    rows = where(rows, method="dlce", loss=loss)
    claimed = _paper_factors(rows)
    sizes = sorted(size for size in set(rows["factors"]) if size >= claimed)
    figures: list[str] = []
    gains: dict[float, list[bool]] = {size: [] for size in sizes[1:]}
    for metric in METRICS if gains else ():
        scores = by(rows[rows["factors"] >= claimed], "factors", metric)
        if claimed in scores:
            for size in gains:
                gains[size].append(size in scores and compare(metric, scores[size], scores[claimed]) > 0)
            means = (format_score(metric, score.mean) for score in scores.values())
            figures.append(f"{metric} {' → '.join(means)}")
    signs = [sign for each in gains.values() if (sign := _unless(each)) is not None]
    return min(signs, default=None), f"d = {' → '.join(f'{size:g}' for size in sizes)}: {', '.join(figures)}"


def _unless(exceptions: Sequence[bool]) -> int | None:
    """1 if there is no exception, -1 if most are exceptions, 0 between; None if nothing was looked at."""
    if not exceptions:
        return None
    return 1 if not any(exceptions) else -1 if 2 * sum(exceptions) > len(exceptions) else 0


def _paper_factors(rows: pd.DataFrame) -> float:
    """The d that the paper uses in the setting of these rows."""
    return PAPER_FACTORS[rows["setting"].iloc[0]] if len(rows) else 0.0


# ---- ratios --------------------------------------------------------------------------------------


def losses_are_alike(rows: pd.DataFrame, one: str, two: str, apart: float) -> Answer:
    """At the paper's d, each metric differs by no more than noise or ``apart``; against it: most differ by more."""
    rows = where(rows, method="dlce")
    common = {*where(rows, loss=one)["factors"]} & {*where(rows, loss=two)["factors"]}
    factors = _paper_factors(rows[rows["factors"].isin(common)])
    figures, exceptions = [], []
    for metric in METRICS:
        first, second = (lookup(rows, loss=loss, factors=factors, metric=metric) for loss in (one, two))
        if first is not None and second is not None:
            is_large = abs(first.mean - second.mean) > apart * abs(first.mean)
            exceptions.append(is_large and compare(metric, first, second) != 0)
            values = f"{one} {format_score(metric, first.mean)} : {two} {format_score(metric, second.mean)}"
            figures.append(f"{metric} {values}")
    return _unless(exceptions), f"d = {factors:g}: {', '.join(figures)}"


def lead_larger_in_product(rows: pd.DataFrame, winner: str, losers: Sequence[str]) -> Answer:
    """The lead, score / best of the others − 1, is larger in product; its noise is the largest std / mean."""

    def lead(items: str, metric: str) -> Score | None:
        own = where(rows, items=items, metric=metric)
        ours, theirs = lookup(own, winner), best((lookup(own, method) for method in losers), metric)
        if ours is None or theirs is None or not theirs.mean > 0:
            return None
        weeks = np.divide(ours.weeks, theirs.weeks) - 1 if ours.weeks and theirs.weeks else np.empty((0, 0))
        std = max(ours.std, theirs.std) / theirs.mean
        return Score(ours.mean / theirs.mean - 1, std, weeks=tuple(map(tuple, weeks)))

    figures, signs = [], []
    for metric in METRICS:
        small, large = (lead(items, metric) for items in ITEMS)
        if small is not None and large is not None:
            signs.append(compare(metric, large, small))
            figures.append(f"{metric} product {large.mean:+.1%} : category {small.mean:+.1%} {SIGNS[signs[-1]]}")
    return _majority(signs), ", ".join(figures)


def uncorrelated(rows: pd.DataFrame, one: str, two: str, below: float) -> Answer:
    """Over the methods, the rank correlation of two metrics is below a value."""
    value, methods = rank_correlation(rows, one, two)
    if value is None:
        return None, ""
    return 1 if value < below else -1, f"rank correlation {value:+.2f} over {methods} methods"


def rank_correlation(rows: pd.DataFrame, one: str, two: str) -> tuple[float | None, int]:
    """Spearman's correlation of two metrics over the methods, and over how many of them; the limits do not count."""
    rows = rows[~rows["method"].isin(LIMITS) & rows["metric"].isin([one, two])]
    wide = rows.pivot_table(index="method", columns="metric", values="mean").dropna()
    ranks = wide.rank()
    if len(wide) < 3 or wide.shape[1] < 2 or ranks.nunique().min() < 2:
        return None, len(wide)  # too few methods, or a metric that is the same for all of them
    return float(ranks[one].corr(ranks[two])), len(wide)


def estimator_error(rows: pd.DataFrame, good: float, poor: float, claimed: str = "good") -> Answer:
    """Median over methods and metrics of MAE / |truth| at the best cap: ``good`` up to, ``poor`` from a value on."""
    rows = rows[rows["metric"].isin(METRICS)]
    lowest = (rows["mae"] / rows["truth"].abs()).groupby([rows["metric"], rows["method"]]).min().dropna()
    if lowest.empty:
        return None, ""
    median = float(lowest.median())
    sign = 1 if median <= good else -1 if median >= poor else 0
    each = ", ".join(f"{metric} {value:.0%}" for metric, value in lowest.groupby("metric").median().items())
    return sign if claimed == "good" else -sign, f"median MAE {median:.0%} of the true value ({each})"


def cap_helps_estimate(rows: pd.DataFrame) -> Answer:
    """With the best cap the MAE is at most half of that without a cap; against it: no cap lowers it."""
    errors = rows.set_index("cap")["mae"]
    capped = errors[errors.index > 0].dropna()
    if 0 not in errors.index or capped.empty:
        return None, ""
    plain, lowest = float(errors[0]), float(capped.min())
    sign = 1 if lowest <= plain / 2 else 0 if lowest < plain else -1
    return sign, f"MAE {plain:.3f} without a cap, {lowest:.3f} at {capped.idxmin():g}"


CRITERIA: Mapping[str, Callable[..., Answer]] = {
    criterion.__name__: criterion
    for criterion in (
        wins, wins_across_beta, wins_up_to_xi, wins_with_estimated, intermediate_cap_is_best, best_cap_is_larger,
        best_cap_is_around, saturates, losses_are_alike, lead_larger_in_product, uncorrelated, estimator_error,
        cap_helps_estimate,
    )
}  # fmt: skip
CLAIMS = validated(tuple[Claim, ...], read_toml(Path(__file__).with_suffix(".toml"))["claims"], "claims.toml")
