"""Priors of counts: segments (the pairs of one item in one group), their means, their priors, and what follows.

    all pairs  ─►  clusters of items × groups  ─►  segments

Each level's prior is its parent's, tilted to the level's own means and moved by its own pairs. What is known of a
pair besides its outcomes, how often it was recommended or with which propensity, enters as its group. Absent pairs
have groups, too; how many of an item's are in each group is estimated here, so that they need no rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from taurank._arrays import row_order
from taurank._types import Bits, Codes, Floats, Floats32, Longs, Mask
from taurank.learners.empirical_bayes.grid import Base, Grid, Patterns, fit_priors, fit_shapes, make_grid, posteriors
from taurank.learners.features import Ridge
from taurank.learners.pairs import COUNTS, Pairs, beside, distinct

Shapes = tuple[tuple[int, int], ...]
# of clusterings: quantiles of treated share × quantiles of control rate
SHAPES: Shapes = ((2, 6), (3, 5), (4, 4))
EDGES = {
    "item": (),
    "exposure": (0.0, 0.1, 0.35, 0.65, 0.9999),
    "propensity": (0.01, 0.05, 0.2, 0.6, 0.99),
}  # of groups
GRID = make_grid(24, 1e-4, 0.98)
# of one group: a popular item has more buyers, and these do not buy at other rates than elsewhere
SATURATING = make_grid(24, 1e-4, 0.98, saturation=0.1)
MAX_RATE = 0.999
BLOCK = 2**20  # pairs at a time, so that a large log needs no further arrays of its size
STEPS = 3  # of EM on a segment's own pairs: stopping early is a second way to stay near its cluster
PAIRS_PER_CLUSTER = 20_000  # fewer clusters, and a stronger pull, where pairs are too few for own distributions
CLUSTER_STEPS = 300
CLUSTER_PULL = 30.0
RATE_STEPS = 60
FEW_CONTROLS = 0.01  # of the trials of a group
MAX_CODES = 2**24  # of counts that are numbered by a table instead of sorting
SAME_MEAN = 0.25  # of the logarithms of means: segments that differ by less share a tilt where shapes are fitted


@dataclass(frozen=True)
class Groups:
    """The group of every pair that has rows; how many pairs of an item are absent, and their shares by group."""

    of_pair: Bits
    absent: Floats
    share: Floats  # items × groups

    @classmethod
    def of(cls, pairs: Pairs, prior: str) -> Groups:
        """By the share of times at which a pair was treated ("exposure"), or by its mean propensity.

        Absent pairs were never treated. A pair of propensity P is absent with probability q = (1 − P)^T, if nothing
        happens to it, so each pair seen stands for q / (1 − q) that were not.
        """
        number = len(EDGES[prior]) + 1
        of_pair, share = np.empty(len(pairs.item), np.int8), np.zeros(pairs.n_items * number)
        for part in blocks(len(of_pair)):
            if prior == "propensity":
                assert pairs.propensity is not None
                known: Any = pairs.propensity[part]
            else:
                known = pairs.treated[part] / np.maximum(1, pairs.chances[part])
            of_pair[part] = np.searchsorted(EDGES[prior], known)
            if prior == "propensity":
                missed = (1.0 - known.astype(np.float64)) ** pairs.chances[part]
                unseen = np.where(pairs.rows[part] > 0, missed / np.maximum(1 - missed, 1e-6), 0.0)
                share += np.bincount(pairs.item[part] * number + of_pair[part], unseen, len(share))
        by_item = share.reshape(-1, number)
        by_item[by_item.sum(1) == 0, 0] = 1.0
        return cls(of_pair, pairs.absent(), by_item / by_item.sum(1, keepdims=True))


@dataclass(frozen=True)
class CountPrior:
    """The prior of an item's pairs in the same group; ``strength`` is the pull to the cluster.

    Where one cluster ends and the next begins is arbitrary, so there are several clusterings; posteriors are averaged
    over them. Everything but ``strength`` and what follows from it is the same for all strengths.
    """

    strength: float
    threads: int | None
    pairs: Pairs
    patterns: Patterns
    pair_entry: Codes
    absent_entry: Codes  # items · groups
    absent_share: Floats
    means: Floats
    independent: Mask  # of each segment: whether the two rates of a pair are
    grid: Grid
    clusterings: tuple[tuple[Floats, Longs], ...]  # the priors of the clusters, and which is each segment's

    @classmethod
    def of(
        cls, pairs: Pairs, prior: str, strength: float, features: Any = None, threads: int | None = 1,
        shapes: Shapes = SHAPES,
    ) -> CountPrior:  # fmt: skip
        """``features`` are those of the items."""
        return cls.fit(pairs, Groups.of(pairs, prior), item_rates(pairs, features), strength, threads, shapes)

    @classmethod
    def fit(
        cls, pairs: Pairs, groups: Groups, item_rate: Floats, strength: float, threads: int | None = 1,
        shapes: Shapes = SHAPES,
    ) -> CountPrior:  # fmt: skip
        number = groups.share.shape[1]
        patterns, pair_entry, absent_entry = _patterns(pairs, groups)
        item, of_group = np.divmod(np.arange(pairs.n_items * number), number)
        sums = np.add.reduceat(patterns.counts * patterns.weight, patterns.start[:-1], axis=1).T
        trials, positives = np.ascontiguousarray(sums[:, [0, 2]]), np.ascontiguousarray(sums[:, [1, 3]])
        means = item_rate[item]
        if number > 1:  # the item's rates, times the group's, times the segment's own deviation
            by_group = (each.reshape(-1, number, 2).sum(0) for each in (positives, trials * means))
            means = means * np.tile(paired_rates(*by_group), (pairs.n_items, 1))
            means = means * paired_rates(positives, trials * means)
        # in groups that show hardly anything of the control arm: how a pair's two rates go together there would come
        # from other groups alone, and differences between groups would pass for it
        shown, other = trials.reshape(-1, number, 2).sum(0).T
        independent = (other < FEW_CONTROLS * (shown + other)) & (number > 1)
        grid = GRID if number > 1 else SATURATING

        def merged(unit: Longs, n: int) -> tuple[Patterns, Floats]:
            """Segments as n units: their patterns and means."""
            weight = trials.sum(1) + 1e-9
            total = np.bincount(unit, weight, n) + 1e-300
            mean = np.stack([np.bincount(unit, weight * arm, n) / total for arm in means.T], 1)
            return _merged(patterns, unit, n), mean

        def fit_units(start: Floats, unit: Longs, pull: float, separate: Mask) -> Floats:
            """The priors of units of segments, which begin at one prior."""
            whole, mean = merged(unit, len(separate))
            base = Base(start, np.zeros(len(mean), np.int64), mean, pull, separate)
            return fit_priors(whole, base, CLUSTER_STEPS, grid, threads)

        size = len(grid.rates)
        one = fit_units(np.full((1, size, size), size**-2.0), np.zeros_like(item), 1.0, np.zeros(1, np.bool_))
        clusterings = []
        for shape in _affordable(shapes, pairs.users * pairs.n_items):
            n, parent = shape[0] * shape[1] * number, _clusters(pairs, item_rate, shape)[item] * number + of_group
            pull = CLUSTER_PULL * max(1.0, PAIRS_PER_CLUSTER * n / max(1.0, patterns.weight.sum()))
            priors = fit_units(one, parent, pull, np.tile(independent, n // number))
            if number == 1:  # segments of one parent with about the same means are fitted as one
                code = np.column_stack((parent, np.rint(np.log(means) / SAME_MEAN).astype(np.int64)))
                values, unit = np.unique(code, axis=0, return_inverse=True)
                alike = merged(unit.ravel(), len(values))
                priors = fit_shapes(alike[0], priors, values[:, 0], alike[1], pull, grid, threads)
            clusterings.append((priors, parent))
        return cls(
            strength, threads, pairs, patterns, pair_entry, absent_entry, groups.share, means,
            np.tile(independent, pairs.n_items), grid, tuple(clusterings),
        )  # fmt: skip

    @cached_property
    def of_patterns(self) -> Floats:
        """E[μ^T], E[μ^C] and E[(μ^T − μ^C)²] of every pattern: the mean over clusterings."""
        moments = np.zeros((len(self.patterns.weight), 3))
        for parents, parent in self.clusterings:
            base = Base(parents, parent, self.means, self.strength, self.independent)
            moments += posteriors(self.patterns, base, STEPS, self.grid, self.threads)
        return moments / len(self.clusterings)

    @cached_property
    def absent(self) -> Floats:
        """The moments of each item's pairs without rows."""
        by_group = self.of_patterns[self.absent_entry].reshape(*self.absent_share.shape, 3)
        return np.asarray(np.einsum("ig,igm->im", self.absent_share, by_group))

    def moments(self, users: Codes) -> Floats:
        """Of all items of these users: 3 × users × items. A pair whose rows do not count is as one without."""
        pairs, moments = self.pairs, np.tile(self.absent.T[:, None], (1, len(users), 1))
        for at, user in enumerate(users):
            own = np.arange(pairs.start[user], pairs.start[user + 1])
            own = own[pairs.rows[own] > 0]
            moments[:, at, pairs.item[own]] = self.of_patterns[self.pair_entry[own]].T
        return moments

    def pair_effects(self) -> tuple[Floats32, Floats32]:
        mean, deviation = effect(self.of_patterns.T)
        return mean[self.pair_entry], deviation[self.pair_entry]


def fold_counts(
    known: Pairs, new: Pairs, prior: str, strength: float, threads: int | None
) -> tuple[tuple[Floats32, Floats32], tuple[Floats32, Floats32]]:
    """Effects of the pairs of users that appeared after the fit, and of each item's pairs without rows.

    The new users' pairs are scored together with those of the model, with a weight of 0. Their pairs without rows had
    other chances than those of the model, so each group gets one more user who has every item and never a purchase.
    """
    of_known, of_new = Groups.of(known, prior), Groups.of(new, prior)
    n_items, number = of_known.share.shape
    zeros: dict[str, Any] = dict.fromkeys(COUNTS, np.zeros(number * n_items, np.int32))
    silent = replace(
        new, start=np.arange(number + 1) * n_items, item=np.tile(np.arange(n_items, dtype=np.int32), number),
        **zeros, chances=np.tile(new.absent_chances(), number),
        user_cells=np.zeros(number), propensity=None,
    )  # fmt: skip
    together = beside(beside(known, new), silent)
    of_silent = np.repeat(np.arange(number, dtype=np.int8), n_items)
    groups = replace(of_known, of_pair=np.concatenate((of_known.of_pair, of_new.of_pair, of_silent)))
    fitted = CountPrior.fit(together, groups, item_rates(together), strength, threads)
    own, absent = np.split(fitted.of_patterns[fitted.pair_entry[len(known.item) :]], [len(new.item)])
    by_item = np.einsum("ig,gim->im", fitted.absent_share, absent.reshape(number, n_items, 3))
    return effect(own.T), effect(by_item.T)


def effect(moments: Any) -> tuple[Floats32, Floats32]:
    """Mean and standard deviation of μ^T − μ^C, from E[μ^T], E[μ^C] and E[(μ^T − μ^C)²]."""
    mean = moments[0] - moments[1]
    deviation = np.sqrt(np.maximum(moments[2] - mean**2, 0.0))
    return mean.astype(np.float32), deviation.astype(np.float32)


def blocks(n: int) -> Iterator[slice]:
    return (slice(begin, begin + BLOCK) for begin in range(0, n, BLOCK))


def item_rates(pairs: Pairs, features: Any = None) -> Floats:
    """The mean rates of every item, items × 2; ``features`` are those of the items."""
    treated, *positives = pairs.item_sums()
    return paired_rates(np.stack(positives, 1), np.stack((treated, pairs.item_cells - treated), 1), features=features)


def paired_rates(positives: Floats, expected: Floats, steps: int = RATE_STEPS, features: Any = None) -> Floats:
    """The mean rates of units in both arms, shrunk toward what the units have in common; all arrays are units × 2.

    A unit has y^a positives of e^a expected ones in arm a; (z^T, z^C) ~ N(m, Σ) and y^a ~ Poisson(e^a exp(z^a)), so
    a unit that has little in one arm follows what its other arm says. m and Σ are estimated by EM with Laplace's
    approximation of each unit's posterior, whose mode z is. With features f, m + B f takes the place of m, a ridge
    regression of z; a unit of which nothing else is known gets E[exp(z)], since its z is far from certain.
    """
    total = (positives.sum(0) + 0.5) / (expected.sum(0) + 0.5)
    mean, covariance = np.log(total), np.eye(2)
    z = np.log((positives + 0.5 * total) / (expected + 0.5))
    used = expected.sum(1) > 0
    ridge = None if features is None else Ridge(features, used.astype(np.float64))
    for _ in range(steps):
        z, spread = _newton(z, positives, expected, mean, covariance)
        if used.any():
            mean = z[used].mean(0)
            if ridge is not None:
                mean = mean + ridge.predict(z - mean)
            rest = (z - mean)[used]
            covariance = rest.T @ rest / len(rest) + spread[used].mean(0) + 1e-6 * np.eye(2)
    if ridge is not None:
        z = np.where(used[:, None], z, mean + 0.5 * np.diag(covariance))
    return np.asarray(np.exp(z))


def _newton(
    z: Floats, positives: Floats, expected: Floats, mean: Floats, covariance: Floats
) -> tuple[Floats, Floats]:
    """One step toward the mode of log p(z | y), and the inverse of its curvature there."""
    precision = np.linalg.inv(covariance)
    fitted = expected * np.exp(np.minimum(z, 50.0))
    a, b, d = precision[0, 0] + fitted[:, 0], precision[0, 1], precision[1, 1] + fitted[:, 1]
    off = np.full(len(z), -b)
    spread = (np.stack((d, off, off, a), 1) / (a * d - b * b)[:, None]).reshape(-1, 2, 2)
    slope = positives - fitted - (z - mean) @ precision
    return z + np.clip(np.einsum("sij,sj->si", spread, slope), -1.0, 1.0), spread


def _affordable(shapes: Shapes, pairs: float) -> list[tuple[int, int]]:
    """Coarser shapes, and fewer of them, where pairs are too few for so many distributions."""
    most = max(1.0, pairs / PAIRS_PER_CLUSTER)
    scales = (min(1.0, math.sqrt(most / (first * second))) for first, second in shapes)
    scaled = ((max(1, int(a * s)), max(1, int(b * s))) for (a, b), s in zip(shapes, scales, strict=True))
    return list(dict.fromkeys(scaled))


def _clusters(pairs: Pairs, item_rate: Floats, shape: tuple[int, int]) -> Longs:
    """Items in quantiles of the treated share × quantiles of the control rate, with equally many warm items each."""
    warm, cluster = pairs.item_cells > 0, np.zeros(pairs.n_items, np.int64)
    for values, parts in zip((pairs.by_item(pairs.treated), item_rate[:, 1]), shape, strict=True):
        edges = np.quantile(values[warm], np.arange(1, parts) / parts)
        cluster = cluster * parts + np.searchsorted(edges, values)
    return cluster


def _patterns(pairs: Pairs, groups: Groups) -> tuple[Patterns, Codes, Codes]:
    """The distinct counts of every segment, and which of them those of each pair and of the absent pairs are.

    Arrays of the size of the log are the largest part of a fit's memory, so each is dropped after its use.
    """
    own, number, n_segments = len(pairs.item), groups.share.shape[1], groups.share.size
    base = max(pairs.times, int(pairs.chances.max(initial=0))) + 1
    code: Any = np.empty(own + n_segments, np.int32 if base**4 <= MAX_CODES else np.int64)
    code[:own] = pairs.chances
    for column in (pairs.treated, pairs.treated_positives, pairs.control_positives):
        code[:own] *= base
        code[:own] += column
    code[own:] = np.repeat(pairs.absent_chances(), number) * np.int64(base) ** 3
    if base**4 <= MAX_CODES:
        exists = np.zeros(base**4, np.bool_)
        exists[code] = True
        values, code = np.flatnonzero(exists), (np.cumsum(exists, dtype=np.int32) - np.int32(1))[code]
    else:
        values, code = np.unique(code, return_inverse=True)
    unit = np.empty(own + n_segments, np.int32)
    np.multiply(pairs.item, np.int32(number), out=unit[:own])
    unit[:own] += groups.of_pair
    unit[own:] = np.arange(n_segments)
    start, order = row_order(unit, n_segments)
    del unit
    code = code[order].astype(np.int32, copy=False)
    start, found, in_order = distinct(start, code, len(values))
    del code
    entry = np.empty_like(in_order)
    entry[order] = in_order
    del in_order, order
    chances, n, y, c = (values // base**power % base for power in (3, 2, 1, 0))
    counts = np.stack((n, y, chances - n, c)).astype(np.int32)[:, found]
    weight = np.zeros(len(found))
    for part in blocks(own):
        weight += np.bincount(entry[:own][part][pairs.rows[part] > 0], minlength=len(found))
    weight[entry[own:]] += (groups.share * groups.absent[:, None]).ravel()
    return Patterns.of(start, np.ascontiguousarray(counts), weight, GRID.rates), entry[:own], entry[own:]


def _merged(patterns: Patterns, unit: Longs, number: int) -> Patterns:
    """The patterns of several segments as those of one unit."""
    base = int(patterns.counts.max(initial=0)) + 1
    powers = base ** np.arange(4, -1, -1)
    code = powers @ np.stack((np.repeat(unit, np.diff(patterns.start)), *patterns.counts)).astype(np.int64)
    values, at = np.unique(code, return_inverse=True)
    start = np.searchsorted(values, np.arange(number + 1) * powers[0])
    counts = (values // powers[1:, None] % base).astype(np.int32)
    return Patterns.of(start, counts, np.bincount(at, patterns.weight).astype(np.float64), GRID.rates)
