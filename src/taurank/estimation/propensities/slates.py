"""Slates: the probability that an item is anywhere on a slate, for policies whose scores are known.

A slate of k items shows each of them; what counts as "recommended" is to be on it, in whichever slot. For a
policy that draws slot after slot the probability of that is not the probability of a single draw. It is computed
here from the scores the policy used, for slates drawn by a softmax without replacement (the same law as adding
Gumbel noise to the scores and taking the k largest, and as the Plackett–Luce model) and for ε-greedy slates.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank._threads import map_blocks
from taurank._validation import check_choice, check_integer, check_number
from taurank.errors import InputError
from taurank.estimation.propensities.races import inclusion_of_slates

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]

PER = ("slot", "slate")


def slate_softmax(
    scores: npt.ArrayLike, size: int, temperature: float = 1.0, *, threads: int | None = None
) -> Floats:
    """P(on the slate) of each candidate where ``size`` items are drawn by softmax(score / temperature).

    Slot after slot, an item is drawn among those not drawn yet with probability proportional to
    exp(score / temperature). ``scores`` has one row per slate and one column per candidate (or is one row); −inf
    marks a candidate that could not be shown. Each row of the result adds up to ``size``. Exact to about 1e-9.
    """
    check_number("temperature", temperature, 0.0)
    if temperature == 0.0:
        raise InputError("temperature must be > 0; a slate of temperature 0 has no randomness, and no propensity.")
    values = _candidates("scores", scores)
    return _softmax(values / temperature, size, threads)


def slate_weighted(weights: npt.ArrayLike, size: int, *, threads: int | None = None) -> Floats:
    """The same where an item is drawn with probability proportional to its weight; 0 marks one that could not be."""
    values = _candidates("weights", weights)
    if np.any(values < 0.0):
        raise InputError(f"weights must be ≥ 0; {np.count_nonzero(values < 0.0):,} are negative.")
    with np.errstate(divide="ignore"):
        return _softmax(np.log(values), size, threads)


def slate_epsilon_greedy(scores: npt.ArrayLike, size: int, epsilon: float, per: str = "slot") -> Floats:
    """P(on the slate) of each candidate of an ε-greedy slate of ``size`` items.

    ``per="slot"``: every slot by itself holds, with probability ε, a uniform draw among the items not on the slate
    yet, else the best of them. ``per="slate"``: with probability ε the whole slate is a uniform draw, else it has
    the best items. Items with equal scores share their ranks' probabilities: ties are broken at random. ``scores``
    as in ``slate_softmax``.
    """
    check_number("epsilon", epsilon, 0.0, 1.0)
    check_choice("per", per, PER)
    values = _candidates("scores", scores)
    check_integer("size", size)
    rows = np.atleast_2d(values)
    result = np.zeros_like(rows)
    for row, out in zip(rows, result, strict=True):
        present = np.flatnonzero(row > -np.inf)
        by_rank = _epsilon_by_rank(len(present), min(size, len(present)), float(epsilon), per)
        out[present] = _share_ties(row[present], by_rank)
    return result.reshape(values.shape)


def slates_of(values: Floats, starts: Longs, size: int, threads: int | None = None) -> Floats:
    """``slate_softmax`` at temperature 1 of slates of any lengths: slate s is values[starts[s]:starts[s + 1]]."""
    check_integer("size", size)
    result = np.empty(len(values))
    map_blocks(
        lambda begin, end: inclusion_of_slates(values, starts, begin, end, size, result), len(starts) - 1, threads
    )
    return result


def _softmax(log_weights: Floats, size: int, threads: int | None) -> Floats:
    n = log_weights.shape[-1]
    starts = np.arange(0, log_weights.size + 1, n, dtype=np.int64)
    return slates_of(log_weights.reshape(-1), starts, size, threads).reshape(log_weights.shape)


def _candidates(name: str, values: npt.ArrayLike) -> Floats:
    try:
        array = np.array(values, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise InputError(f"{name} must be numbers: one row per slate, one column per candidate.") from error
    if array.ndim not in (1, 2) or not array.size:
        raise InputError(f"{name} must have one row per slate and one column per candidate, got shape {array.shape}.")
    refuse_wrong_scores(name, array)
    return array


def refuse_wrong_scores(name: str, values: Floats) -> None:
    """NaN and +∞ are not scores; −∞ is: of a candidate that could not be shown."""
    wrong = np.isnan(values) | (values == np.inf)
    if wrong.any():
        raise InputError(
            f"{name} must be finite (or −inf for a candidate that could not be shown); "
            f"{np.count_nonzero(wrong):,} are not, for example {values[wrong][0]}."
        )


@cache
def _epsilon_by_rank(n: int, size: int, epsilon: float, per: str) -> Any:
    """P(on the slate) by rank, the best first."""
    if per == "slate" or size == n:
        best = np.arange(n) < size
        return (1.0 - epsilon) * best + epsilon * size / max(n, 1) if size < n else np.ones(n)
    worse = 1.0 - np.prod(1.0 - epsilon / (n - np.arange(size)))  # never the best of the rest: only by a uniform draw
    return np.array([_slot_by_slot(n, size, epsilon, r) if r < size else worse for r in range(n)])


def _slot_by_slot(n: int, size: int, epsilon: float, rank: int) -> float:
    """P(on the slate) of the item with ``rank`` better ones.

    ``absent[a]`` is the probability that it is not on the slate yet and that ``a`` better ones are.
    """
    absent = np.zeros(rank + 1)
    absent[0] = 1.0
    better_left = rank - np.arange(rank + 1)
    for slot in range(size):
        uniform = epsilon / (n - slot)
        better = uniform * better_left + (1.0 - epsilon) * (better_left > 0)
        itself = uniform + (1.0 - epsilon) * (better_left == 0)
        following = absent * np.maximum(1.0 - better - itself, 0.0)
        following[1:] += (absent * better)[:-1]
        absent = following
    return float(1.0 - absent.sum())


def _share_ties(scores: Floats, by_rank: Floats) -> Floats:
    """The probability of each item, equal for items with equal scores."""
    order = np.argsort(-scores, kind="stable")
    _, tie, count = np.unique(-scores[order], return_inverse=True, return_counts=True)
    shared = (np.bincount(tie, by_rank) / count)[tie]
    result = np.empty(len(scores))
    result[order] = shared
    return result
