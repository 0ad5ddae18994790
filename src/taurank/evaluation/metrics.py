"""The metrics: a weight by rank, by name or of one's own.

A metric is a weight by rank: Δ_u = Σ_i weight(r_ui) · gain_ui per user and time, Eq. (delta_u_tau). With outcomes
as gains it reads P@k, DCG, AR; with effects CP@k, CDCG, CAR, CAUC. One metric is not such a sum: AUC, the area
under the curve of gains that are 0 or 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank._checks import check_integer
from taurank._types import Floats
from taurank.errors import InputError, first_line, show
from taurank.evaluation.rankers import as_scores

DEFAULT = ("CP@10", "CP@100", "CDCG", "CAR")
OUTCOME_DEFAULT = ("P@10", "P@100", "DCG", "AR")
DEEPEST = 2**31 - 1  # the largest k of P@k: as many items as a catalog can hold


@dataclass(frozen=True)
class Metric:
    """A metric: Δ_u = Σ_i weight(r_ui) · gain_ui, Eq. (delta_u_tau), where r_ui is the rank of item i.

    Parameters
    ----------
    name : what it is called
    weight : ``weight(ranks, n_items)`` is called once with all ranks 1 … n_items as an array of floats and returns a
        number for each
    larger_is_better : the direction, for early stopping, tuning and comparisons
    depth : the rank after which all weights are 0 (None: the whole list counts), so that a top-k list can be measured

    Examples
    --------
    >>> reciprocal = Metric("reciprocal rank", lambda ranks, n_items: 1.0 / ranks)
    >>> reciprocal.weights(4)
    array([1.        , 0.5       , 0.33333333, 0.25      ])
    """

    name: str
    weight: Callable[[Floats, int], npt.ArrayLike]
    larger_is_better: bool = True
    depth: int | None = None
    form: str = ""  # P@k, DCG, AR or AUC, in either spelling; "" for a metric of one's own
    area: bool = False  # AUC: the area under the curve of binary gains, which is computed from these weights

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise InputError(f"a Metric needs a name, such as 'P@10', got {show(self.name)}.")
        if not callable(self.weight):
            raise InputError(f"the weight of '{self.name}' must be a function, see taurank.Metric.")
        if self.depth is not None:
            check_integer(f"the depth of '{self.name}'", self.depth)

    def weights(self, n_items: int) -> Floats:
        """The worth of rank 1 … n_items, checked: Δ_u = Σ_i weight(r_ui) · gain_ui (the paper's λ / I)."""
        try:
            values = np.asarray(self.weight(np.arange(1, n_items + 1, dtype=np.float64), n_items), dtype=np.float64)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise InputError(f"the weights of '{self.name}' cannot be computed: {first_line(error)}.") from error
        if values.shape != (n_items,) or not np.isfinite(values).all():
            raise InputError(
                f"the weights of '{self.name}' must be {n_items:,} finite numbers, one per rank, got "
                f"an array of {values.shape}."
            )
        if self.depth is not None and values[self.depth :].any():
            raise InputError(f"the weights of '{self.name}' must be 0 beyond its depth of {self.depth:,}.")
        return values


def parse(metric: str | Metric) -> Metric:
    """The metric of a name such as "P@10" or "CP@10"; a ``Metric`` is returned as it is."""
    if isinstance(metric, Metric):
        return metric
    match = re.fullmatch(r"(C?)(P@([1-9][0-9]{0,9})|DCG|AR|AUC)", str(metric).strip().upper())
    if not match:
        raise InputError(
            f"unknown metric {show(metric)}; known: P@k (with a number for k, such as P@10), DCG, AR and "
            "AUC, their causal readings CP@k, CDCG, CAR and CAUC, and any taurank.Metric."
        )
    name, _, form, k = match[0], *match.groups()
    if k is None:
        weight = {"DCG": _discounted, "AR": _mean_rank, "AUC": _below if name == "AUC" else _pairs_below}[form]
        return Metric(name, weight, form != "AR", form=form, area=name == "AUC")
    if int(k) > DEEPEST:
        raise InputError(f"unknown metric '{name}'; k must be at most {DEEPEST:,}.")
    return Metric(name, partial(_within, int(k)), depth=int(k), form="P@k")


# functions with names instead of lambdas, so that results can be pickled
def _within(k: int, ranks: Floats, n_items: int) -> Floats:
    return np.where(ranks <= k, 1.0 / k, 0.0)


def _discounted(ranks: Floats, n_items: int) -> Floats:
    return np.asarray(1.0 / np.log2(1.0 + ranks))


def _mean_rank(ranks: Floats, n_items: int) -> Floats:
    return ranks * (1.0 / n_items)


def _below(ranks: Floats, n_items: int) -> Floats:
    return n_items - ranks


def _pairs_below(ranks: Floats, n_items: int) -> Floats:
    """Linear in the gain, so that IPS stays unbiased; one item alone has no pair to order."""
    return (n_items - ranks) * (1.0 / (n_items * (n_items - 1)) if n_items > 1 else 0.0)


def parse_all(metrics: Any, default: Iterable[str] = DEFAULT) -> list[Metric]:
    """The metrics of one or several names or ``Metric``s, each once; ``default`` if metrics is None."""
    if metrics is None:
        metrics = default
    if isinstance(metrics, (str, Metric)):
        metrics = [metrics]
    try:
        listed = list(metrics)
    except TypeError as error:
        raise InputError(f"metrics must be names such as 'CP@10' or Metrics, got {show(metrics)}.") from error
    parsed: dict[str, Metric] = {}
    for given in listed:
        metric = parse(given)
        if isinstance(given, Metric) and parsed.get(metric.name, metric) is not metric:
            raise InputError(f"two metrics are called '{metric.name}'; give each a name of its own.")
        parsed.setdefault(metric.name, metric)
    if not parsed:
        raise InputError("no metric is named; give at least one, such as CP@10.")
    return list(parsed.values())


def position_weights(scores: npt.ArrayLike, metric: str | Metric) -> Floats:
    """The weight of every cell of a small users × items array: Δ_u = Σ_i weight_ui · gain_ui.

    Ties share the mean weight of their ranks. This is λ / I of the paper (AR without its minus sign), for
    worlds and sums over all pairs; ``evaluate`` never builds it.
    """
    block = as_scores(scores)
    if np.isnan(block).any():
        raise InputError("the scores contain NaN, which cannot be ranked.")
    wanted = parse(metric)
    if wanted.area:
        raise InputError(f"{wanted.name} is not a weighted sum of gains; C{wanted.name} is, for any gains.")
    table = wanted.weights(block.shape[1])
    summed = np.concatenate(([0.0], np.cumsum(table)))
    ordered = np.sort(block, axis=1)
    weights = np.empty(block.shape)
    for row, (own, sorted_row) in enumerate(zip(block, ordered, strict=True)):
        above = len(own) - np.searchsorted(sorted_row, own, "right")
        tied = len(own) - np.searchsorted(sorted_row, own, "left") - above
        mean = (summed[above + tied] - summed[above]) / tied
        weights[row] = np.where(tied == 1, table[above], mean)
    return weights
