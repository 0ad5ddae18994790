"""The policy: from scores to inclusion probabilities, and from those to one list of fixed size.

Item i of n eligible ones is shown with probability

    π_i = floor + (ceiling − floor) · σ((s_i / spread − θ) / temperature),    Σ π_i = slots,

where σ is the logistic function and ``spread`` the standard deviation of the eligible scores, so that a
temperature means the same for every model. θ is the one unknown, and the sum falls strictly with θ: Newton's
method inside a bracket solves it to machine precision.

The list is drawn by systematic sampling in random order: a random permutation lays the π_i end to end on
[0, slots], and the items at u, u + 1, … (u uniform in [0, 1)) are shown. A point falls into an interval of
length π_i ≤ 1 with probability exactly π_i, and exactly ``slots`` items are shown. In a *fixed* order
neighbors would never be shown together; the random order gives every pair a positive joint probability as soon
as there are two slots (the sequential pivotal method lacks this too).

At most m items of a category: θ is solved anew within each category whose Σπ would exceed m, so that its sum is m,
and for the others with the slots that are left. The draw then lays the items of a category beside each other, in
random order within and between categories. A stretch of length at most m holds at most m of the points, and π is
exact in any order.

The random numbers of a list are a stream whose key is a keyed hash (BLAKE2b) of whom the list is for. Nothing has a
state, so any process can repeat any draw, and nobody without the secret can predict one.
"""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Any, Self

import numba
import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from taurank._random import below, uniform
from taurank._types import Floats, Longs
from taurank.errors import InputError
from taurank.serve.rules import Rules

MAX_CEILING = 0.98  # one purchase in fifty is then a control; the effect of a list at .99 needs twice as many
_LOWEST = -600.0  # exponents are clipped here; items that far below the best one have equal weight
_NEWTON_STEPS = 200  # bisection alone needs about 70


def kernel(function: Any) -> Any:
    """Compiled, and holding the GIL: a server that released it for 0.1 ms might wait longer to get it back."""
    return numba.njit(cache=True)(function)


def summing(function: Any) -> Any:
    """A kernel whose sums may be reordered, so that they run in vector registers."""
    return numba.njit(cache=True, fastmath={"reassoc"})(function)


class Policy(Rules, frozen=True, extra="forbid", allow_inf_nan=False):
    """How a surface turns scores into lists: ``k`` slots, and how much it explores.

    ``floor`` and ``ceiling`` bound every π; the ceiling is at most 1 − floor. A low ``temperature`` shows the
    best items nearly always, a high one shows everything equally.
    """

    k: Annotated[int, Field(ge=1, le=1000)] = 10
    floor: Annotated[float, Field(gt=0, lt=0.5)] = 0.001
    ceiling: Annotated[float, Field(gt=0, lt=1)] = 0.9
    temperature: Annotated[float, Field(ge=1e-3, le=1e6)] = 0.2

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.floor < self.ceiling <= 1 - self.floor:
            raise ValueError(f"needs floor < ceiling ≤ 1 − floor, got floor {self.floor} and ceiling {self.ceiling}")
        if self.ceiling > MAX_CEILING:
            raise ValueError(
                f"a ceiling above {MAX_CEILING} cannot be measured: an item that is nearly always shown has no "
                f"control; got {self.ceiling}"
            )
        return self

    def slots(self, n: int) -> int:
        """How many of n eligible items are shown: at most k, and so few that no π exceeds the ceiling."""
        return min(self.k, math.floor(n * self.ceiling + 1e-9))

    def floor_for(self, n: int, slots: int | None = None) -> float:
        """The floor among n eligible items: uniform exploration takes at most half of the slots."""
        return min(self.floor, (self.slots(n) if slots is None else slots) / (2 * n)) if n else self.floor

    def probabilities(self, scores: npt.ArrayLike, category: Longs | None = None) -> Floats:
        """π of every eligible item, in the order of the scores; all 0 if there are too few items for a slot.

        ``category`` has the code of each item's category; it matters if there is a cap.
        """
        values = np.ascontiguousarray(scores, dtype=np.float64)
        if not np.isfinite(values).all():
            raise InputError("scores must be finite numbers.")
        n = len(values)
        if category is not None and self.per_category:
            return self._capped(values, category, self.per_category)
        slots = self.slots(n)
        if slots == 0:
            return np.zeros(n)
        pi: Floats = solve(weights(values, self.temperature), slots, self.floor_for(n), self.ceiling)
        return pi

    def _capped(self, values: Floats, category: Longs, most: int) -> Floats:
        """π with at most ``most`` items of a category; a category that reached its cap stays there."""
        room = np.minimum(np.bincount(category) * self.ceiling, most).sum()
        left = min(self.k, math.floor(room + 1e-9))
        pi, free = np.zeros(len(values)), np.ones(len(values), bool)
        if left == 0:
            return pi
        weight = weights(values, self.temperature)
        while left and free.any():
            pi[free] = solve(weight[free], left, self.floor_for(int(free.sum()), left), self.ceiling)
            full = np.flatnonzero(np.bincount(category[free], pi[free]) > most * (1 + 1e-12))
            if not len(full):
                break
            for each in full:
                mine = category == each
                pi[mine] = solve(weight[mine], most, self.floor_for(int(mine.sum()), most), self.ceiling)
                free &= ~mine
                left -= most
        return pi

    def draw(self, probabilities: Floats, key: np.uint64, category: Longs | None = None) -> Longs:
        """Positions of the shown items, in increasing order; the same key draws the same list."""
        slots = round(float(probabilities.sum()))
        if slots and category is not None and self.per_category:
            capped: Longs = draw_by_category(probabilities, slots, key, category)
            return capped
        chosen: Longs = draw(probabilities, slots, key)
        return chosen


@kernel
def solve(weight: Any, slots: Any, floor: Any, ceiling: Any) -> Any:
    """π of the policy: θ solved so that Σπ = slots."""
    n = len(weight)
    target = (slots - n * floor) / (ceiling - floor)  # Σσ
    if target >= n * (1.0 - 1e-12):
        return np.full(n, slots / n)
    log_t = _threshold(weight, target)
    pi = np.empty(n)
    t = np.exp(log_t)
    for i in range(n):
        pi[i] = min(max(floor + (ceiling - floor) * (weight[i] / (weight[i] + t)), floor), ceiling)
    return pi


@summing
def weights(scores: Any, temperature: Any) -> Any:
    """exp((s_i − max s) / (spread · temperature)); all 1 where the scores do not differ."""
    n = len(scores)
    highest, total = scores[0], 0.0
    for i in range(n):
        total += scores[i]
        highest = max(highest, scores[i])
    mean, square = total / n, 0.0
    for i in range(n):
        square += (scores[i] - mean) * (scores[i] - mean)
    scale = np.sqrt(square / n) * temperature
    weight = np.ones(n)
    if scale > 0.0:
        for i in range(n):
            weight[i] = np.exp(max((scores[i] - highest) / scale, _LOWEST))
    return weight


@kernel
def _threshold(weight: Any, target: Any) -> Any:
    """log t with Σ w_i / (w_i + t) = target: Newton's method, bisection where a step leaves the bracket."""
    n = len(weight)
    lowest = highest = weight[0]
    for i in range(n):
        lowest, highest = min(lowest, weight[i]), max(highest, weight[i])
    # if all weights were equal to w, t would be w (n − target) / target
    offset = np.log((n - target) / target)
    low, high = np.log(lowest) + offset, np.log(highest) + offset
    log_t = min(max(np.log(_total(weight) / target), low), high)  # near the root where most weights are small
    for _ in range(_NEWTON_STEPS):
        value, slope = _sum_and_slope(weight, np.exp(log_t))
        if value > target:
            low = log_t
        else:
            high = log_t
        step = (value - target) / slope if slope > 0.0 else np.inf
        if abs(step) <= 1e-15 * max(1.0, abs(log_t)) or high - low <= 1e-15 * max(1.0, abs(log_t)):
            break
        inside = low < log_t + step < high
        log_t = log_t + step if inside else 0.5 * (low + high)
        if inside and abs(step) <= 1e-8:  # the next error is of the order of its square
            break
    return log_t


@summing
def _total(weight: Any) -> Any:
    total = 0.0
    for i in range(len(weight)):
        total += weight[i]
    return total


@summing
def _sum_and_slope(weight: Any, t: Any) -> Any:
    """Σσ_i and Σσ_i(1 − σ_i): the slope is −∂Σσ/∂log t."""
    total = squares = 0.0
    for i in range(len(weight)):
        share = weight[i] / (weight[i] + t)
        total += share
        squares += share * share
    return total, total - squares


@kernel
def draw(pi: Any, slots: Any, key: Any) -> Any:
    """Systematic sampling in random order: ``slots`` positions, each item with probability π_i."""
    return _systematic(pi, _shuffled(len(pi), key), slots, key)


@kernel
def draw_by_category(pi: Any, slots: Any, key: Any, category: Any) -> Any:
    """The same with the items of a category beside each other; the order of categories is random, too."""
    order = _shuffled(len(pi), key)
    first = np.full(category.max() + 1, len(pi))
    for i in range(len(order)):
        first[category[order[i]]] = min(first[category[order[i]]], i)
    return _systematic(pi, order[np.argsort(first[category[order]], kind="mergesort")], slots, key)


@kernel
def _shuffled(n: Any, key: Any) -> Any:
    order = np.arange(n)
    for i in range(n - 1):  # Fisher-Yates; number 0 of the stream is u
        j = i + np.int64(below(key, i + 1, n - i))
        order[i], order[j] = order[j], order[i]
    return order


@kernel
def _systematic(pi: Any, order: Any, slots: Any, key: Any) -> Any:
    """The items at u, u + 1, … where the π lie end to end in an order."""
    n = len(pi)
    chosen = np.empty(slots, np.int64)
    if slots == 0:
        return chosen
    following, edge, count = uniform(key, 0), 0.0, 0
    for i in range(n):
        edge += pi[order[i]]
        # the last item reaches the end even where the rounded sum stays below it
        if count < slots and (edge > following or n - i == slots - count):
            chosen[count] = order[i]
            count += 1
            following += 1.0
    return np.sort(chosen)


def stream_key(secret: bytes, surface: str, user: str, period: int) -> np.uint64:
    """The key of the random stream of one decision."""
    return np.uint64(int.from_bytes(digest(secret, "draw", surface, user, str(period), size=8), "little"))


def position(salt: bytes, purpose: str, user: str) -> float:
    """A uniform number in [0, 1) that belongs to the user; another purpose gives an independent one."""
    word = int.from_bytes(digest(salt, "arm", purpose, user, size=8), "little")
    return (word >> 11) * 2.0**-53


def digest(key: bytes, *texts: str, size: int) -> bytes:
    """A hash of the texts, each preceded by its length, so that no two lists of texts are confused."""
    hashed = hashlib.blake2b(key=key, digest_size=size)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        hashed.update(len(data).to_bytes(8, "little") + data)
    return hashed.digest()


def fingerprint(text: str) -> str:
    """A short content hash, the id of policies and filters."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
