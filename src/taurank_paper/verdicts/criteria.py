"""Criteria for claims that compare methods: each returns a function from the frames of a run to an `Assessment`.

`comparison` defines what a difference is; `curves` has the criteria for claims about caps, losses and errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from taurank_paper.plan.names import ASSIGNMENTS, ITEMS, LIMITS
from taurank_paper.verdicts.comparison import (
    DATASETS,
    SIGNS,
    Assessment,
    DatasetKey,
    Frames,
    PartialResult,
    Score,
    aggregate,
    best,
    compare,
    compare_methods,
    lookup,
    majority,
    paper_datasets,
    rows_of,
)
from taurank_paper.verdicts.paper_tables import METRICS

Criterion = Callable[[Frames], Assessment]

WIDE = 0.5  # ξ up to here is a wide range: the log-odds are half way to their mean
CORRELATED = 0.5  # rank correlation from which on two metrics order the methods alike


def outperforms(
    winners: Sequence[str],
    losers: Sequence[str],
    datasets: Sequence[DatasetKey],
    experiment: str = "comparison",
    metrics: Sequence[str] = METRICS,
) -> Criterion:
    """The best winner is clearly better than the best loser in more metrics than it is clearly worse."""

    def criterion(frames: Frames) -> Assessment:
        frame = frames[experiment]
        return aggregate([
            compare_methods(frame, winners, losers, metrics, f"{items} {setting}", items=items, setting=setting)
            for items, setting in datasets
        ])  # fmt: skip

    return criterion


def mostly_outperforms(winner: str, losers: Sequence[str]) -> Criterion:
    """Clearly better than the best of the losers in more than half of all datasets and metrics."""

    def criterion(frames: Frames) -> Assessment:
        parts = [
            compare_methods(
                rows_of(frames["comparison"], dataset), [winner], losers, [metric], " ".join(dataset)
            )
            for dataset in DATASETS for metric in METRICS
        ]  # fmt: skip
        known = [part for part in parts if part.sign is not None]
        wins, losses = (sum(part.sign == sign for part in known) for sign in (1, -1))
        count = f"clearly better in {wins}, clearly worse in {losses} of {len(known)} comparisons"
        figures = "\n".join([count, *(f"  {part.label}: {part.figures}" for part in known)])
        if len(known) < len(parts):
            return Assessment(None, figures, f"Only {len(known)} of {len(parts)} comparisons were made.")
        return Assessment(True if 2 * wins > len(parts) else False if 2 * losses >= len(parts) else None, figures)

    return criterion


def lead_larger_in_product(winner: str, losers: Sequence[str]) -> Criterion:
    """The lead, score / best of the others − 1, is larger in product; its noise is the largest std / mean."""
    return lambda frames: aggregate([_lead_part(frames["comparison"], winner, losers, each) for each in ASSIGNMENTS])


def _lead_part(frame: pd.DataFrame, winner: str, losers: Sequence[str], setting: str) -> PartialResult:
    figures, signs = [], []
    for metric in METRICS:
        small, large = (_lead(rows_of(frame, (items, setting), metric), winner, losers, metric) for items in ITEMS)
        if small is not None and large is not None:
            signs.append(compare(large, small))
            figures.append(f"{metric} product {large.mean:+.1%} : category {small.mean:+.1%} {SIGNS[signs[-1]]}")
    return PartialResult(setting, majority(signs) if signs else None, ", ".join(figures))


def _lead(rows: pd.DataFrame, winner: str, losers: Sequence[str], metric: str) -> Score | None:
    ours, theirs = lookup(rows, winner), best((lookup(rows, method) for method in losers), metric)
    if ours is None or theirs is None or not theirs.mean > 0:
        return None
    weeks = tuple(
        tuple(one / other - 1 for one, other in zip(*pair, strict=True))
        for pair in zip(ours.weeks, theirs.weeks, strict=True)
    ) if ours.weeks and theirs.weeks else ()  # fmt: skip
    return Score(ours.mean / theirs.mean - 1, max(ours.std, theirs.std) / theirs.mean, weeks=weeks)


def uncorrelated(one: str, two: str) -> Criterion:
    """Over the methods, the rank correlation of two metrics is below 0.5."""

    def part(frame: pd.DataFrame, dataset: DatasetKey) -> PartialResult:
        value, methods = rank_correlation(frame, one, two, dataset)
        if value is None:
            return PartialResult(" ".join(dataset), None)
        sign = 1 if value < CORRELATED else -1
        return PartialResult(" ".join(dataset), sign, f"rank correlation {value:+.2f} over {methods} methods")

    return lambda frames: aggregate([part(frames["comparison"], dataset) for dataset in DATASETS])


def rank_correlation(frame: pd.DataFrame, one: str, two: str, dataset: DatasetKey) -> tuple[float | None, int]:
    """Spearman's correlation of two metrics over the methods, and over how many of them; the limits do not count."""
    rows = rows_of(frame, dataset)
    rows = rows[~rows["method"].isin(LIMITS) & rows["metric"].isin([one, two])]
    wide = rows.pivot_table(index="method", columns="metric", values="mean").dropna()
    ranks = wide.rank()
    if len(wide) < 3 or wide.shape[1] < 2 or ranks.nunique().min() < 2:
        return None, len(wide)  # too few methods, or a metric that is the same for all of them
    return float(ranks[one].corr(ranks[two])), len(wide)


def outperforms_across_beta(winner: str, losers: Sequence[str]) -> Criterion:
    """Outperforms the best of the losers at more than half of the β; against it: worse at more than a quarter."""

    def part(frame: pd.DataFrame, items: str) -> PartialResult:
        betas = sorted(set(frame.loc[frame["items"] == items, "beta"]))
        parts = [compare_methods(frame, [winner], losers, METRICS, f"β = {b:g}", items=items, beta=b) for b in betas]
        known = [each for each in parts if each.sign is not None]
        if not known:
            return PartialResult(items, None)
        wins, losses = (sum(each.sign == sign for each in known) for sign in (1, -1))
        sign = -1 if 4 * losses > len(known) else 1 if 2 * wins > len(known) and not losses else 0
        return PartialResult(
            items, sign, _with_details(f"better at {wins}, worse at {losses} of {len(known)} β", known)
        )

    return lambda frames: aggregate([part(frames["unevenness"], items) for items in ITEMS])


def outperforms_up_to_xi(winner: str, losers: Sequence[str]) -> Criterion:
    """Outperforms the best of the losers, which use no propensity, at every ξ up to 0.5; against it: worse at one."""

    def part(rows: pd.DataFrame, dataset: DatasetKey) -> PartialResult:
        misspecified = rows[(rows["propensity"] == "misspecified") & (rows["method"] == winner)]
        at = {xi: misspecified[misspecified["xi"] == xi] for xi in sorted(set(misspecified["xi"].dropna()))}
        parts = {xi: _against_blind(rows, own, losers, f"ξ = {xi:g}") for xi, own in at.items()}
        known = {xi: each for xi, each in parts.items() if each.sign is not None}
        signs = [each.sign for xi, each in known.items() if each.sign is not None and xi <= WIDE]
        if not signs:
            return PartialResult(" ".join(dataset), None)
        count = f"better at {signs.count(1)}, worse at {signs.count(-1)} of {len(signs)} ξ up to {WIDE:g}"
        return PartialResult(" ".join(dataset), min(signs), _with_details(count, list(known.values())))

    return _on_every_dataset("misspecification", part)


def outperforms_with_estimated(winner: str, losers: Sequence[str]) -> Criterion:
    """With propensities estimated from the log: outperforms the best of the losers, which use none."""

    def part(rows: pd.DataFrame, dataset: DatasetKey) -> PartialResult:
        estimated = rows[(rows["propensity"] == "estimated") & (rows["method"] == winner)]
        return _against_blind(rows, estimated, losers, " ".join(dataset))

    return _on_every_dataset("misspecification", part)


def _on_every_dataset(experiment: str, part: Callable[[pd.DataFrame, DatasetKey], PartialResult]) -> Criterion:
    """The paper plots three of the four datasets: those that were run count."""

    def criterion(frames: Frames) -> Assessment:
        frame = frames[experiment]
        return aggregate([part(rows_of(frame, dataset), dataset) for dataset in paper_datasets(frame)])

    return criterion


def _against_blind(rows: pd.DataFrame, own: pd.DataFrame, losers: Sequence[str], label: str) -> PartialResult:
    """Rows of a method that uses propensities against methods that use none."""
    blind = rows[rows["propensity"] == "none"]
    return compare_methods(pd.concat([own, blind]), list(own["method"].unique()), losers, METRICS, label)


def _with_details(summary: str, parts: Sequence[PartialResult]) -> str:
    """Indented lines below a summary: details that the report folds."""
    return "\n  ".join([summary, *(f"{part.label}: {part.figures}" for part in parts)])
