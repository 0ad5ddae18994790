"""Scores of a table, and how two of them are compared.

Two scores of a run are compared in pairs, since both were measured on the same weeks: by a t-test over the draws of
their mean over the weeks, which includes what another training log would change, or over the weeks if there is one
draw. The level is divided by the number of comparisons (Bonferroni). Of printed figures only mean and standard
deviation are known: there a difference counts if it is larger than the larger of the two standard deviations.
Anything smaller is within noise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from taurank.evaluation.metrics import parse
from taurank_paper.plan import ASSIGNMENTS, ITEMS, LIMITS

DatasetKey = tuple[str, str]  # items, setting

SIGNS = {1: "▲", 0: "≈", -1: "▼"}
LEVEL = 0.05
COMPARISONS = 350  # that the claims make at most, counted by a test
ROUNDING = 1e-9  # 0.0313 − 0.0310 is not more than 0.0003
METRICS = ("CP@10", "CP@100", "CDCG")  # of Tables 3 and 4
NAMES = {
    "random": "Random", "popular": "Popular", "bpr": "BPR", "ulbpr": "ULBPR", "ulrmf": "ULRMF", "cause": "CausE",
    "dlto": "DLTO", "blce": "BLCE", "dlce": "DLCE", "countingbayes": "CountingBayes",
    "empiricalbayes": "EmpiricalBayes", "truth": "Truth", "ten_weeks": "Ten-week limit",
}  # fmt: skip
DATASETS: tuple[DatasetKey, ...] = tuple((items, setting) for items in ITEMS for setting in ASSIGNMENTS)


class Score(NamedTuple):
    """A mean, its standard deviation, the method it belongs to, and the weeks of each draw if they are known."""

    mean: float
    std: float
    method: str = ""
    weeks: tuple[tuple[float, ...], ...] = ()


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
    order = list(NAMES)
    present = dict.fromkeys(frame["method"])
    return sorted(present, key=lambda key: (key in LIMITS, order.index(key) if key in NAMES else len(order)))


def datasets_of(frame: pd.DataFrame) -> list[DatasetKey]:
    """The datasets of a frame: the paper's in its order, then any other."""
    present = dict.fromkeys(zip(frame["items"], frame["setting"], strict=True))
    return sorted(present, key=lambda each: DATASETS.index(each) if each in DATASETS else len(DATASETS))


def rows_of(frame: pd.DataFrame, dataset: DatasetKey, metric: str | None = None) -> pd.DataFrame:
    """The rows of one dataset, and of one metric if given."""
    return where(frame, items=dataset[0], setting=dataset[1], **({} if metric is None else {"metric": metric}))


def where(frame: pd.DataFrame, **values: object) -> pd.DataFrame:
    """The rows with these values."""
    rows = np.ones(len(frame), bool)
    for column, value in values.items():
        rows &= frame[column].to_numpy() == value
    return frame[rows]


def lookup(frame: pd.DataFrame, method: str = "", **values: object) -> Score | None:
    """The first score of the frame with these values; None if there is none."""
    rows = where(frame, **values, **({"method": method} if method else {}))
    rows = rows[rows["mean"].notna()]
    if rows.empty:
        return None
    row = rows.iloc[0]
    std = 0.0 if pd.isna(row["std"]) else float(row["std"])
    weeks = json.loads(row["weeks"]) if isinstance(row.get("weeks"), str) else ()
    return Score(float(row["mean"]), std, method, tuple(tuple(map(float, draw)) for draw in weeks))


def by(frame: pd.DataFrame, column: str, metric: str) -> dict[float, Score]:
    """DLCE's score at each value of a column, from the smallest to the largest."""
    rows = where(frame, method="dlce", metric=metric)
    scores = {value: lookup(rows, **{column: value}) for value in sorted(set(rows[column].dropna()))}
    return {value: score for value, score in scores.items() if score is not None}


def best(scores: Iterable[Score | None], metric: str) -> Score | None:
    """The best of the scores; None if one is missing."""
    known = list(scores)
    sign = 1 if larger_is_better(metric) else -1
    if not known or None in known:
        return None
    return max((score for score in known if score is not None), key=lambda score: sign * score.mean)


def compare(metric: str, first: Score, second: Score) -> int:
    """1 if the first is clearly better, -1 if it is clearly worse, 0 within noise."""
    differences = paired_differences(first, second)
    if differences is None:
        is_clear = abs(first.mean - second.mean) > max(first.std, second.std) * (1 + ROUNDING)
    elif differences.std(ddof=1) <= ROUNDING * abs(differences.mean()):
        is_clear = bool(differences.mean())
    else:
        is_clear = stats.ttest_1samp(differences, 0).pvalue < LEVEL / COMPARISONS
    is_better = (first.mean > second.mean) == larger_is_better(metric)
    return (1 if is_better else -1) if is_clear else 0


def paired_differences(first: Score, second: Score) -> npt.NDArray[np.float64] | None:
    """One independent difference for each draw, or for each week of the only draw; None if weeks are not known."""
    one, two = np.array(first.weeks), np.array(second.weeks)
    if not one.size or one.shape != two.shape:
        return None
    differences = one - two
    differences = differences.mean(axis=1) if len(differences) > 1 else differences[0]
    return differences if len(differences) > 1 else None
