"""The link: what x·v says about the rate of a pair.

Least squares is linear and tastes are not: where x·v is large the rate is larger still, and where it is near zero, or
below, the rate is not. So the rate is m · f(x·v), and f is a Poisson regression of the purchases of each arm,

    log f(t) = a + b z + c z²,    z = log max(t, 0.02),

with a pull toward f(t) = t (a = 0, b = 1, c = 0) that weighs as much as one purchase. A pair that was treated or
bought has its t without its own counts. All other pairs are untreated and never bought, with or without rows; their t
is x·v.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from taurank._types import Floats, Floats32, Longs, Mask
from taurank.learners.pairs import Pairs

LEAST = 0.02  # of x·v, which least squares can make negative
HIGHEST = 50.0  # of a level: beyond what has been seen, a parabola grows too fast
EDGES = np.geomspace(LEAST, HIGHEST, 64)  # pairs between two edges are one point of the regression
STEPS = 50
PAIRS = 2**20  # visited at a time
SAMPLED_USERS, BLOCK = 1024, 256  # whose idle pairs are visited, and how many users at a time

STRAIGHT: Floats = np.tile([0.0, 1.0, 0.0], (2, 1))  # arms × (a, b, c)


def level(coefficients: Floats, taste: Any) -> Floats:
    """f(x·v), which never falls: it goes on level from where the parabola would turn."""
    a, b, c = coefficients
    z = np.log(np.clip(taste, LEAST, HIGHEST))
    if abs(c) < 1e-9:
        b = max(b, 0.0)
    else:
        turn = -b / (2.0 * c)
        z = np.maximum(z, turn) if c > 0.0 else np.minimum(z, turn)
    return np.asarray(np.exp(np.clip(a + (b + c * z) * z, np.log(LEAST), np.log(HIGHEST))))


def fit_link(pairs: Pairs, users: Floats, items: Floats, means: Floats, left_out: Floats32) -> Floats:
    """The regressions of both arms; ``left_out`` is x·v of every pair with rows, without its own counts."""
    points = np.zeros((2, 3, len(EDGES) + 1))
    for begin in range(0, len(pairs.item), PAIRS):
        part = slice(begin, begin + PAIRS)
        trials = pairs.treated[part], pairs.chances[part] - pairs.treated[part]
        bought = pairs.treated_positives[part], pairs.control_positives[part]
        for arm in range(2):
            used = _happened(pairs, part) & (trials[arm] > 0)
            expected = trials[arm][used] * means[pairs.item[part][used], arm]
            points[arm] += _points(left_out[part, arm][used], expected, bought[arm][used])
    for taste, idle in _idle_blocks(pairs, users, items[:, 1], means[:, 1]):
        points[1] += _points(taste, idle, np.zeros(len(idle)))
    return np.array([_regress(of_arm) for of_arm in points])


def _happened(pairs: Pairs, part: slice) -> Mask:
    """Which pairs were treated or bought."""
    return np.asarray((pairs.treated[part] > 0) | (pairs.control_positives[part] > 0))


def _points(taste: Any, expected: Floats, bought: Any) -> Floats:
    """By parts of x·v: the counts expected from item means, the same times z, and what was bought; 3 × parts."""
    part = np.searchsorted(EDGES, taste)
    z = np.log(np.clip(taste, LEAST, HIGHEST))
    return np.stack([np.bincount(part, weight, len(EDGES) + 1) for weight in (expected, expected * z, bought)])


def _idle_blocks(pairs: Pairs, users: Floats, items: Floats, means: Floats) -> Iterator[tuple[Floats, Floats]]:
    """x·v and expectation of all pairs of sampled users that were never treated and never bought."""
    sample = np.flatnonzero(pairs.user_cells > 0)
    everyone = len(sample)
    sample = sample[:: max(1, everyone // SAMPLED_USERS)]
    weight, absent = everyone / max(1, len(sample)) * means * (pairs.item_cells > 0), pairs.absent_chances()
    for first in range(0, len(sample), BLOCK):
        block: Longs = sample[first : first + BLOCK]
        chances = np.tile(absent, (len(block), 1))
        for at, user in enumerate(block):
            own = slice(pairs.start[user], pairs.start[user + 1])
            chances[at, pairs.item[own]] = np.where(_happened(pairs, own), 0, pairs.chances[own])
        yield (users[block] @ items.T).ravel(), (chances * weight).ravel()


def _regress(points: Floats) -> Floats:
    """Newton's method for the Poisson regression, with a normal prior of variance 1 around f(t) = t."""
    expected, moment, bought = points[:, points[0] > 0.0]
    z = moment / expected
    design = np.stack((np.ones_like(z), z, z * z), 1)
    coefficients = STRAIGHT[0].copy()
    for _ in range(STEPS):
        fitted = expected * np.exp(np.clip(design @ coefficients, -20.0, 20.0))
        slope = design.T @ (bought - fitted) - (coefficients - STRAIGHT[0])
        curvature = design.T @ (fitted[:, None] * design) + np.eye(3)
        coefficients += np.clip(np.linalg.solve(curvature, slope), -0.5, 0.5)
    return np.asarray(coefficients)
