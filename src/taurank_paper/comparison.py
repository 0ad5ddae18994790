"""How scores are compared: what counts as a difference, and how differences add up to an assessment.

Two scores of a run are compared in pairs, since both were measured on the same weeks: by a t-test over the draws of
their mean over the weeks, which includes what another training log would change, or over the weeks if there is one
draw. The level is divided by the number of comparisons (Bonferroni). Of printed figures only mean and standard
deviation are known: there a difference counts if it is larger than the larger of the two standard deviations.
Anything smaller is within noise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from taurank.evaluation.metrics import parse
from taurank_paper.plan import ASSIGNMENTS, ITEMS, LIMITS

Frames = Mapping[str, pd.DataFrame]
DatasetKey = tuple[str, str]  # items, setting

SIGNS = {1: "▲", 0: "≈", -1: "▼"}
LEVEL = 0.05
COMPARISONS = 350  # that the claims make at most, counted by a test
ROUNDING = 1e-9  # 0.0313 − 0.0310 is not more than 0.0003
NAMES = {
    "random": "Random", "popular": "Popular", "bpr": "BPR", "ulbpr": "ULBPR", "ulrmf": "ULRMF", "cause": "CausE",
    "dlto": "DLTO", "blce": "BLCE", "dlce": "DLCE", "countingbayes": "CountingBayes", "truth": "Truth",
    "ten_weeks": "Ten-week limit",
}  # fmt: skip
DATASETS: tuple[DatasetKey, ...] = tuple((items, setting) for items in ITEMS for setting in ASSIGNMENTS)


class Score(NamedTuple):
    """A mean, its standard deviation, the method it belongs to, and the weeks of each draw if they are known."""

    mean: float
    std: float
    method: str = ""
    weeks: tuple[tuple[float, ...], ...] = ()


class Comparison(NamedTuple):
    """Two scores by one metric; ``sign`` is 1 if the first is clearly better, -1 if clearly worse, 0 within noise."""

    metric: str
    first: Score
    second: Score
    sign: int


class PartialResult(NamedTuple):
    """What one dataset says about a claim: for it (1), within noise (0), against it (-1), or no scores (None)."""

    label: str
    sign: int | None
    figures: str = ""


class Assessment(NamedTuple):
    """Whether a claim is reproduced (None: inconclusive), the figures, one line per dataset, and a remark."""

    reproduced: bool | None
    figures: str = ""
    remark: str = ""


def larger_is_better(metric: str) -> bool:
    return parse(metric).larger_is_better


def format_score(metric: str, value: float) -> str:
    """A score with as many decimals as the paper prints."""
    return f"{value:.4f}" if parse(metric).form == "P@k" else f"{value:.3f}"


def method_name(key: str) -> str:
    """A method as people write it; any other label is shown as it is."""
    return NAMES.get(key, key)


def methods_of(frame: pd.DataFrame) -> list[str]:
    """The methods of a frame: the paper's in its order, then all others, the limits last."""
    present = list(frame["method"].unique())
    others = [key for key in present if key not in NAMES]
    known = [key for key in NAMES if key in present]
    return [*(key for key in known if key not in LIMITS), *others, *(key for key in known if key in LIMITS)]


def datasets_of(frame: pd.DataFrame) -> list[DatasetKey]:
    """The datasets of a frame: the paper's in its order, then any other."""
    present = list(dict.fromkeys(zip(frame["items"], frame["setting"], strict=True)))
    return [*(each for each in DATASETS if each in present), *(each for each in present if each not in DATASETS)]


def paper_datasets(frame: pd.DataFrame) -> list[DatasetKey]:
    """The paper's datasets that a frame has; without any, the first one, which then counts as missing."""
    return [dataset for dataset in datasets_of(frame) if dataset in DATASETS] or [DATASETS[0]]


def rows_of(frame: pd.DataFrame, dataset: DatasetKey, metric: str | None = None) -> pd.DataFrame:
    """The rows of one dataset, and of one metric if given."""
    rows = (frame["items"] == dataset[0]) & (frame["setting"] == dataset[1])
    return frame[rows if metric is None else rows & (frame["metric"] == metric)]


def dlce_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of DLCE; a frame without a column ``method`` has no others."""
    return frame[frame["method"] == "dlce"] if "method" in frame else frame


def lookup(frame: pd.DataFrame, method: str = "", **where: object) -> Score | None:
    """The first row of the frame with these values; None if there is none."""
    matches = frame["mean"].notna().to_numpy()
    wanted = {"method": method, **where} if method else where
    for column, value in wanted.items():
        matches = matches & (frame[column].to_numpy() == value)
    if not matches.any():
        return None
    row = frame.iloc[int(matches.argmax())]
    std = 0.0 if pd.isna(row["std"]) else float(row["std"])
    return Score(float(row["mean"]), std, method, weeks_of(row.get("weeks")))


def weeks_of(cell: object) -> tuple[tuple[float, ...], ...]:
    """A cell of the column ``weeks``; empty where there is none."""
    return tuple(tuple(map(float, draw)) for draw in json.loads(cell)) if isinstance(cell, str) else ()


def best(scores: Iterable[Score | None], metric: str) -> Score | None:
    """The best of the scores; None if one is missing."""
    candidates = list(scores)
    known = [score for score in candidates if score is not None]
    if not known or len(known) < len(candidates):
        return None
    pick: Callable[..., Score] = max if larger_is_better(metric) else min
    return pick(known, key=lambda score: score.mean)


def noise(first: Score, second: Score) -> float:
    return max(first.std, second.std)


def compare(first: Score, second: Score, larger_better: bool = True) -> int:
    """1 if the first is better by more than the noise, -1 if worse by more, 0 if within it."""
    gap = first.mean - second.mean
    if not _differ(first, second):
        return 0
    return 1 if (gap > 0) == larger_better else -1


def _differ(first: Score, second: Score) -> bool:
    differences = paired_differences(first, second)
    if differences is None:
        return abs(first.mean - second.mean) > noise(first, second) * (1 + ROUNDING)
    return p_value(differences) < LEVEL / COMPARISONS


def paired_differences(first: Score, second: Score) -> npt.NDArray[np.float64] | None:
    """One independent difference for each draw, or for each week of the only draw; None if weeks are not known."""
    one, two = np.array(first.weeks), np.array(second.weeks)
    if not one.size or one.shape != two.shape:
        return None
    differences = one - two
    differences = differences.mean(axis=1) if len(differences) > 1 else differences[0]
    return differences if len(differences) > 1 else None


def p_value(differences: npt.NDArray[np.float64]) -> float:
    """Student's two-sided t-test of mean zero; 1 where all differences are zero."""
    from scipy import stats

    mean, spread = differences.mean(), differences.std(ddof=1)
    if spread <= ROUNDING * abs(mean):
        return 0.0 if mean else 1.0
    t = mean / spread * math.sqrt(len(differences))
    return float(2 * stats.t.sf(abs(t), len(differences) - 1))


def compare_by(metric: str, first: Score, second: Score) -> int:
    return compare(first, second, larger_is_better(metric))


def majority(signs: Sequence[int]) -> int:
    """The sign that more metrics have: one clear metric decides where the others are within noise."""
    total = sum(signs)
    return (total > 0) - (total < 0)


def compare_methods(
    frame: pd.DataFrame, first: Sequence[str], second: Sequence[str], metrics: Sequence[str], label: str, **at: object
) -> PartialResult:
    """The best of the first methods against the best of the second, metric by metric."""
    comparisons: list[Comparison] = []
    for metric in metrics:
        one, two = (
            best((lookup(frame, method, metric=metric, **at) for method in side), metric) for side in (first, second)
        )
        if one is not None and two is not None:
            comparisons.append(Comparison(metric, one, two, compare_by(metric, one, two)))
    sign = majority([each.sign for each in comparisons]) if comparisons else None
    return PartialResult(label, sign, _describe(comparisons))


def aggregate(parts: Sequence[PartialResult]) -> Assessment:
    """A claim about several datasets: one against it refutes it; all for it reproduce it."""
    known = [part for part in parts if part.sign is not None]
    missing = [part.label for part in parts if part.sign is None]
    noisy = [part.label for part in known if part.sign == 0]
    if any(part.sign == -1 for part in known):
        reproduced: bool | None = False
    else:
        reproduced = None if missing or noisy or not known else True
    notes = [f"No figures for {', '.join(missing)}."] if missing else []
    if noisy and reproduced is None:
        notes.append(f"Within noise: {', '.join(noisy)}.")
    return Assessment(reproduced, "\n".join(f"{part.label}: {part.figures}" for part in known), " ".join(notes))


def _describe(comparisons: Sequence[Comparison]) -> str:
    """ "DLCE : BLCE, CP@10 0.0826 : 0.0374 ▲, …"; the methods at each metric only if they change."""
    methods = [f"{method_name(each.first.method)} : {method_name(each.second.method)}" for each in comparisons]
    figures = [
        f"{each.metric} {format_score(each.metric, each.first.mean)} : {format_score(each.metric, each.second.mean)} "
        f"{SIGNS[each.sign]}"
        for each in comparisons
    ]
    if len(set(methods)) == 1:
        return ", ".join([methods[0], *figures])
    return ", ".join(f"{pair} {figure}" for pair, figure in zip(methods, figures, strict=True))
