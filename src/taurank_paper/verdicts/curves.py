"""Criteria for claims about curves and errors: caps, estimators, losses and the number of factors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pandas as pd

from taurank_paper.plan.names import ITEMS
from taurank_paper.verdicts.comparison import (
    Assessment,
    DatasetKey,
    Frames,
    PartialResult,
    Score,
    aggregate,
    best,
    compare_by,
    dlce_rows,
    format_score,
    lookup,
    method_name,
    paper_datasets,
    rows_of,
    weeks_of,
)
from taurank_paper.verdicts.criteria import Criterion
from taurank_paper.verdicts.paper_tables import METRICS

GOOD_ERROR, POOR_ERROR = 0.25, 0.5  # of an estimate, relative to what it estimates
PAPER_FACTORS = {"original": 200.0, "personalized": 400.0}  # d at which the paper says that performance saturates
ALIKE = 0.05  # relative difference of two losses that is negligible
AROUND = 10**0.5  # a cap is around another if it is at most half a decade away: one step of the grid


class Curve(NamedTuple):
    """Which curve: the metric of DLCE by cap on one dataset."""

    dataset: DatasetKey
    metric: str

    def scores(self, frame: pd.DataFrame) -> dict[float, Score]:
        """The score at each cap, from the smallest cap to the largest."""
        rows = rows_of(dlce_rows(frame), self.dataset, self.metric)
        rows = rows[rows["mean"].notna()].sort_values("cap")
        rows = rows.assign(std=rows["std"].fillna(0.0), weeks=rows.get("weeks"))
        columns = (rows[name] for name in ("cap", "mean", "std", "weeks"))
        return {cap: Score(mean, std, weeks=weeks_of(cell)) for cap, mean, std, cell in zip(*columns, strict=True)}


def intermediate_cap_is_best(metric: str, datasets: Sequence[DatasetKey]) -> Criterion:
    """The best cap strictly inside the grid is clearly better than both ends; against it: an end is better."""

    def part(frame: pd.DataFrame, dataset: DatasetKey) -> PartialResult:
        scores = Curve(dataset, metric).scores(frame)
        if len(scores) < 3:
            return PartialResult(" ".join(dataset), None)
        low, *_, high = scores
        inner = _best_cap({cap: score for cap, score in scores.items() if low < cap < high}, metric)
        sign = min(compare_by(metric, scores[inner], scores[end]) for end in (low, high))
        figures = _figures(scores, metric, (low, inner, high))
        return PartialResult(" ".join(dataset), sign, figures)

    return lambda frames: aggregate([part(frames["capping"], dataset) for dataset in datasets])


def best_cap_is_larger(pairs: Sequence[tuple[Curve, Curve]]) -> Criterion:
    """The first curve's best cap is the larger; clearly so if one of the two loses with the other's cap."""

    def part(frame: pd.DataFrame, pair: tuple[Curve, Curve]) -> PartialResult:
        label = pair[0].dataset[0]
        first, second = (curve.scores(frame) for curve in pair)
        if not first or not second:
            return PartialResult(label, None)
        one, two = _best_cap(first, pair[0].metric), _best_cap(second, pair[1].metric)
        clear = _loses(first, one, two, pair[0].metric) or _loses(second, two, one, pair[1].metric)
        sign = (one > two) - (one < two) if clear else 0
        named = zip(pair, (one, two), strict=True)
        figures = ", ".join(f"{curve.dataset[1]} {curve.metric} best at {cap:g}" for curve, cap in named)
        return PartialResult(label, sign, figures)

    return lambda frames: aggregate([part(frames["capping"], pair) for pair in pairs])


def best_cap_is_around(target: float, curve: Curve) -> Criterion:
    """The best cap is at most half a decade from the target; against it: all such caps are clearly worse."""

    def criterion(frames: Frames) -> Assessment:
        scores, metric = curve.scores(frames["capping"]), curve.metric
        near = {cap: score for cap, score in scores.items() if target / AROUND <= cap <= target * AROUND}
        if not near:
            return aggregate([PartialResult(" ".join(curve.dataset), None)])
        top = _best_cap(scores, metric)
        sign = 1 if top in near else compare_by(metric, near[_best_cap(near, metric)], scores[top])
        return aggregate([PartialResult(" ".join(curve.dataset), sign, _figures(scores, metric, scores))])

    return criterion


def _best_cap(scores: dict[float, Score], metric: str) -> float:
    winner = best(scores.values(), metric)
    return next(cap for cap, score in scores.items() if score is winner)


def _loses(scores: dict[float, Score], own: float, other: float, metric: str) -> bool:
    """Whether a curve is clearly worse at the other's best cap than at its own."""
    return other in scores and compare_by(metric, scores[own], scores[other]) > 0


def _figures(scores: dict[float, Score], metric: str, caps: Iterable[float]) -> str:
    figures = ", ".join(f"{format_score(metric, scores[cap].mean)} at {cap:g}" for cap in caps)
    return f"{metric} {figures}; best at {_best_cap(scores, metric):g}"


def estimator_error(setting: str, good: bool) -> Criterion:
    """Median over methods and metrics of MAE / |truth| at the best cap: good up to 0.25, poor from 0.5 on."""

    def part(rows: pd.DataFrame, label: str) -> PartialResult:
        lowest = rows.groupby(["metric", "method"])["error"].min().dropna()
        if lowest.empty:
            return PartialResult(label, None)
        median = float(lowest.median())
        sign = 1 if median <= GOOD_ERROR else -1 if median >= POOR_ERROR else 0
        each = ", ".join(f"{metric} {value:.0%}" for metric, value in lowest.groupby("metric").median().items())
        figures = f"median MAE {median:.0%} of the true value ({each})"
        return PartialResult(label, sign if good else -sign, figures)

    def criterion(frames: Frames) -> Assessment:
        frame = frames["estimators"]
        rows = frame[(frame["setting"] == setting) & frame["metric"].isin(METRICS)]
        rows = rows.assign(error=rows["mae"] / rows["truth"].abs())
        kinds = ["category", *(items for items in ITEMS[1:] if items in set(rows["items"]))]  # the paper: category
        return aggregate([part(rows[rows["items"] == items], f"{items} {setting}") for items in kinds])

    return criterion


def cap_helps_estimate(curve: Curve) -> Criterion:
    """With the best cap the MAE is at most half of that without a cap; against it: no cap lowers it."""

    def part(method: str, errors: pd.Series[float]) -> PartialResult:
        capped = errors[errors.index > 0].dropna()
        if 0 not in errors.index or capped.empty:
            return PartialResult(method_name(method), None)
        plain, lowest = float(errors[0]), float(capped.min())
        sign = 1 if lowest <= plain / 2 else 0 if lowest < plain else -1
        figures = f"MAE {plain:.3f} without a cap, {lowest:.3f} at {capped.idxmin():g}"
        return PartialResult(method_name(method), sign, figures)

    def criterion(frames: Frames) -> Assessment:
        rows = rows_of(frames["estimators"], curve.dataset, curve.metric)
        parts = [part(str(method), own.set_index("cap")["mae"]) for method, own in rows.groupby("method")]
        return aggregate(parts or [PartialResult(" ".join(curve.dataset), None)])

    return criterion


def losses_are_alike(one: str, two: str) -> Criterion:
    """At the paper's d, each metric differs by no more than noise or 5 %; against it: most differ by more."""

    def part(rows: pd.DataFrame, dataset: DatasetKey) -> PartialResult:
        common = set(rows.loc[rows["loss"] == one, "factors"]) & set(rows.loc[rows["loss"] == two, "factors"])
        factors = _paper_factors(common, dataset[1]) if common else 0.0
        figures, apart = [], []
        for metric in METRICS:
            first, second = (lookup(rows, loss=loss, factors=factors, metric=metric) for loss in (one, two))
            if first is not None and second is not None:
                large = abs(first.mean - second.mean) > ALIKE * abs(first.mean)
                apart.append(large and compare_by(metric, first, second) != 0)
                values = f"{one} {format_score(metric, first.mean)} : {two} {format_score(metric, second.mean)}"
                figures.append(f"{metric} {values}")
        return PartialResult(" ".join(dataset), _unless(apart), f"d = {factors:g}: {', '.join(figures)}")

    def criterion(frames: Frames) -> Assessment:
        frame = dlce_rows(frames["losses"])
        return aggregate([part(rows_of(frame, dataset), dataset) for dataset in paper_datasets(frame)])

    return criterion


def saturates(loss: str) -> Criterion:
    """No d beyond the paper's brings a clear gain in any metric; against it: one does in most of them."""

    def part(rows: pd.DataFrame, dataset: DatasetKey) -> PartialResult:
        sizes = sorted(set(rows["factors"]))
        claimed = _paper_factors(sizes, dataset[1]) if sizes else 0.0
        larger = [size for size in sizes if size > claimed]
        figures: list[str] = []
        gains: dict[float, list[bool]] = {size: [] for size in larger}
        for metric in METRICS if larger else ():
            by_size = {size: lookup(rows, factors=size, metric=metric) for size in (claimed, *larger)}
            scores = {size: score for size, score in by_size.items() if score is not None}
            if claimed in scores:
                for size in larger:
                    gains[size].append(size in scores and compare_by(metric, scores[size], scores[claimed]) > 0)
                figures.append(f"{metric} {' → '.join(format_score(metric, s.mean) for s in scores.values())}")
        signs = [sign for each in gains.values() if (sign := _unless(each)) is not None]
        steps = " → ".join(f"{size:g}" for size in (claimed, *larger))
        return PartialResult(" ".join(dataset), min(signs, default=None), f"d = {steps}: {', '.join(figures)}")

    def criterion(frames: Frames) -> Assessment:
        frame = dlce_rows(frames["losses"])
        frame = frame[frame["loss"] == loss]
        return aggregate([part(rows_of(frame, dataset), dataset) for dataset in paper_datasets(frame)])

    return criterion


def _unless(exceptions: Sequence[bool]) -> int | None:
    """1 if there is no exception, -1 if most are exceptions, 0 between; None if nothing was looked at."""
    if not exceptions:
        return None
    return 1 if not any(exceptions) else -1 if 2 * sum(exceptions) > len(exceptions) else 0


def _paper_factors(sizes: Iterable[float], setting: str) -> float:
    """The d that the paper uses in a setting; in a smaller grid the last but one."""
    grid = sorted(sizes)
    return PAPER_FACTORS[setting] if PAPER_FACTORS.get(setting) in grid else grid[max(0, len(grid) - 2)]
