"""The metrics: a weight by rank and a scale, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taurank.errors import InputError
from taurank.evaluation.rankers import as_scores

Floats = npt.NDArray[np.float64]

DEFAULT = ("CP@10", "CP@100", "CDCG", "CAR")


@dataclass(frozen=True)
class Formula:
    """A metric by name: ``weight(ranks, n_items)`` times ``scale(n_items)`` is the worth of a rank."""

    name: str
    form: str
    weight: Callable[[Floats, int], Floats]
    scale: Callable[[int], float]
    depth: int | None = None

    def weights(self, n_items: int) -> Floats:
        """The worth of rank 1 … n_items, so that Δ_u = Σ_i weight(r_ui) · gain_ui (the paper's λ / I)."""
        at = np.arange(1, n_items + 1, dtype=np.float64)
        return self.weight(at, n_items) * self.scale(n_items)


def parse(name: str) -> Formula:
    """The formula of a name in either spelling, such as "P@10" or "CP@10"."""
    match = re.fullmatch(r"C?(P@([1-9][0-9]*)|DCG|AR|AUC)", str(name).strip().upper())
    if not match:
        raise InputError(
            f"unknown metric '{name}'; known are P@k (with a number for k, such as P@10), DCG, AR and AUC, "
            "and their causal readings CP@k, CDCG, CAR and CAUC."
        )
    if match[2]:
        k = int(match[2])
        return Formula(match[0], "P@k", lambda r, n: np.where(r <= k, 1.0, 0.0), lambda n: 1.0 / k, k)
    return Formula(match[0], match[1], *_FORMULAS[match[1]])


_FORMULAS: dict[str, tuple[Callable[[Floats, int], Floats], Callable[[int], float]]] = {
    "DCG": (lambda r, n: 1.0 / np.log2(1.0 + r), lambda n: 1.0),
    "AR": (lambda r, n: r, lambda n: 1.0 / n),
    # linear in the gain, so that IPS stays unbiased; one item alone has no pair to order
    "AUC": (lambda r, n: n - r, lambda n: 1.0 / (n * (n - 1)) if n > 1 else 0.0),
}


def position_weights(scores: npt.ArrayLike, metric: str) -> Floats:
    """The weight of every cell of a small users × items array: Δ_u = Σ_i weight_ui · gain_ui.

    Ties share the mean weight of their ranks. This is λ / I of the paper (AR without its minus sign), for
    worlds and formulas over all pairs; ``evaluate`` never builds it.
    """
    block = as_scores(scores)
    table = parse(metric).weights(block.shape[1])
    summed = np.concatenate(([0.0], np.cumsum(table)))
    ordered = np.sort(block, axis=1)
    weights = np.empty(block.shape)
    for row, (own, sorted_row) in enumerate(zip(block, ordered, strict=True)):
        above = len(own) - np.searchsorted(sorted_row, own, "right")
        tied = len(own) - np.searchsorted(sorted_row, own, "left") - above
        mean = (summed[above + tied] - summed[above]) / tied
        weights[row] = np.where(tied == 1, table[above], mean)
    return weights


def parse_all(metrics: str | Iterable[str]) -> list[Formula]:
    if not isinstance(metrics, Iterable):
        raise InputError(f"metrics are names such as CP@10, not {metrics!r}.")
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    if not names:
        raise InputError("no metric is named; give at least one, such as CP@10.")
    return list({formula.name: formula for formula in map(parse, names)}.values())
