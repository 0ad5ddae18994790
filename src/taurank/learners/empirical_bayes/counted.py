"""Priors of counts: segments (the pairs of one item in one group), their means, their priors, and what follows.

    all pairs  ─►  clusters of items × groups  ─►  segments

Each level's prior is its parent's, tilted to the level's own means and moved by its own pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from taurank._arrays import row_order
from taurank._jit import compiled
from taurank._types import Codes, Floats, Floats32, Longs, Mask
from taurank.learners.empirical_bayes.covariates import NOTHING_KNOWN, Covariates
from taurank.learners.empirical_bayes.grid import (
    Base,
    Grid,
    Patterns,
    fit_priors,
    fit_shapes,
    make_grid,
    make_rates,
    posteriors,
)
from taurank.learners.empirical_bayes.groups import GROUPS, Groups
from taurank.learners.empirical_bayes.prior import Prior, Setting, effect
from taurank.learners.empirical_bayes.rates import paired_rates
from taurank.learners.pairs import COUNTS, Pairs, beside, distinct

Shapes = tuple[tuple[int, int], ...]
# of clusterings: quantiles of treated share × quantiles of control rate
SHAPES: Shapes = ((2, 6), (3, 5), (4, 4))
RATES = make_rates(24, 1e-4, 0.98)
MOST = 0.999  # of a rate
PAIRS_PER_CLUSTER = 20_000  # fewer clusters, and a stronger pull, where pairs are too few for own distributions
CLUSTER_STEPS = 300
CLUSTER_PULL = 30.0
SATURATION = 0.1  # a popular item has more buyers, and these do not buy at other rates than elsewhere
FEW_CONTROLS = 0.01  # of the trials of a group
SAME_MEAN = 0.25  # of the logarithms of means: segments that differ by less share a tilt where shapes are fitted
MAX_CODES = 2**24  # of counts that are numbered by a table instead of sorting


@dataclass(frozen=True)
class CountPrior(Prior):
    """The prior of the item, or of the item's pairs in the same group; ``strength`` is the pull to the cluster.

    Where one cluster ends and the next begins is arbitrary, so there are several clusterings; posteriors are averaged
    over them.
    """

    shapes: Shapes = SHAPES
    segments: Segments | None = None

    def fit(self, pairs: Pairs, covariates: Covariates = NOTHING_KNOWN) -> CountPrior:
        groups, item_rate = GROUPS[self.setting.prior](pairs), item_rates(pairs, covariates.items)
        return replace(self, segments=segment(pairs, groups, item_rate, self.threads, self.shapes))

    @cached_property
    def fitted(self) -> Segments:
        assert self.segments is not None
        return self.segments

    @cached_property
    def moments(self) -> Floats:
        """E[μ^T], E[μ^C] and E[(μ^T − μ^C)²] of every pattern: the mean over clusterings."""
        segments = self.fitted
        moments = np.zeros((len(segments.patterns.weight), 3))
        for parents, parent in segments.clusterings:
            base = Base(parents, parent, segments.means, self.setting.strength, segments.independent)
            moments += posteriors(segments.patterns, base, self.setting.steps, segments.grid, self.threads)
        return moments / len(segments.clusterings)

    @property
    def absent(self) -> Floats:
        """The moments of each item's pairs without rows."""
        segments = self.fitted
        by_group = self.moments[segments.absent_entry].reshape(*segments.absent_share.shape, 3)
        return np.asarray(np.einsum("ig,igm->im", segments.absent_share, by_group))

    def pair_rates(self, part: slice, own: bool) -> Floats:
        segments = self.fitted
        pairs, item = segments.pairs, segments.pairs.item[part]
        if not own:
            unit = item * segments.absent_share.shape[1] + segments.of_pair[part]
            return np.asarray(np.minimum(segments.means[unit], MOST))
        rates = self.moments[segments.pair_entry[part], :2]
        return np.where((pairs.rows[part] > 0)[:, None], rates, self.absent[item, :2])

    def absent_control(self, users: Longs, own: bool) -> Floats:
        segments = self.fitted
        if own:
            return self.absent[None, :, 1]
        means = np.minimum(segments.means[:, 1], MOST).reshape(segments.absent_share.shape)
        return np.asarray((segments.absent_share * means).sum(1)[None])

    def pair_effects(self) -> tuple[Floats32, Floats32]:
        mean, deviation = effect(self.moments)
        return mean[self.fitted.pair_entry], deviation[self.fitted.pair_entry]


@dataclass(frozen=True)
class Segments:
    """Everything about the segments that does not depend on the pull toward their cluster."""

    pairs: Pairs
    of_pair: Any  # the group of each pair
    patterns: Patterns
    pair_entry: Longs
    absent_entry: Longs  # items · groups
    means: Floats
    clusterings: tuple[tuple[Floats, Longs], ...]  # the priors of the clusters, and which is each segment's
    grid: Grid
    absent_share: Floats  # items × groups
    independent: Mask  # of each segment: whether the two rates of a pair are


def segment(
    pairs: Pairs, groups: Groups, item_rate: Floats, threads: int | None = 1, shapes: Shapes = SHAPES
) -> Segments:
    """``item_rate`` are the mean rates of the items, as ``item_rates`` has them."""
    patterns, pair_entry, absent_entry = _patterns(pairs, groups)
    items, of_group = np.divmod(np.arange(pairs.n_items * groups.number), groups.number)
    positives, trials = _totals(patterns)
    means = _segment_rates(positives, trials, item_rate[items], groups.number)
    share = groups.absent / np.maximum(groups.absent.sum(1, keepdims=True), 1e-300)
    share[groups.absent.sum(1) == 0, 0] = 1.0
    grid = make_grid(RATES, SATURATION if groups.number == 1 else np.inf)
    independent = _always_treated(trials, groups.number)
    one = _prior_of_all(patterns, means, grid, threads)
    clusterings = []
    for shape in _affordable(shapes, pairs.users * pairs.n_items):
        parent = _clusters(pairs, item_rate, shape)[items] * groups.number + of_group
        number = shape[0] * shape[1]
        clusterings.append((_parents(patterns, one, parent, means, grid, number, independent, threads), parent))
    return Segments(
        pairs, groups.of_pair, patterns, pair_entry, absent_entry, means, tuple(clusterings), grid, share,
        np.tile(independent, pairs.n_items),
    )  # fmt: skip


def fold_counts(
    known: Pairs, new: Pairs, setting: Setting, item_rate: Floats | None, threads: int | None
) -> tuple[tuple[Floats32, Floats32], tuple[Floats32, Floats32]]:
    """Effects of the pairs of users that appeared after the fit, and of each item's pairs without rows.

    ``item_rate`` are the mean rates of the items if they follow from more than their counts. The new users' pairs are
    scored together with those of the model, with a weight of 0. Their pairs without rows had other chances than
    those of the model, so each group gets one more user who has every item and never a purchase.
    """
    of_known, of_new = GROUPS[setting.prior](known), GROUPS[setting.prior](new)
    number, n_items = of_known.number, known.n_items
    zeros: dict[str, Any] = dict.fromkeys(COUNTS, np.zeros(number * n_items, np.int32))
    silent = replace(
        new, start=np.arange(number + 1) * n_items, item=np.tile(np.arange(n_items, dtype=np.int32), number),
        **zeros, chances=np.tile(new.absent_chances(), number),
        user_cells=np.zeros(number), propensity=None,
    )  # fmt: skip
    together = beside(beside(known, new), silent)
    of_silent = np.repeat(np.arange(number, dtype=np.int8), n_items)
    groups = Groups(number, np.concatenate((of_known.of_pair, of_new.of_pair, of_silent)), of_known.absent)
    means = item_rates(together) if item_rate is None else item_rate
    prior = CountPrior(setting, threads, segments=segment(together, groups, means, threads))
    moments = prior.moments[prior.fitted.pair_entry[len(known.item) :]]
    own, absent = np.split(moments, [len(new.item)])
    by_item = np.einsum("ig,gim->im", prior.fitted.absent_share, absent.reshape(number, n_items, 3))
    return effect(own), effect(by_item)


def _affordable(shapes: Shapes, pairs: float) -> list[tuple[int, int]]:
    """Coarser shapes, and fewer of them, where pairs are too few for so many distributions."""
    most = max(1.0, pairs / PAIRS_PER_CLUSTER)
    scales = (min(1.0, math.sqrt(most / (first * second))) for first, second in shapes)
    scaled = ((max(1, int(a * s)), max(1, int(b * s))) for (a, b), s in zip(shapes, scales, strict=True))
    return list(dict.fromkeys(scaled))


def _patterns(pairs: Pairs, groups: Groups) -> tuple[Patterns, Longs, Longs]:
    """The distinct counts of every segment, and which of them those of each pair and of the absent pairs are.

    Arrays of the size of the log are the largest part of a fit's memory, so each is dropped after its use.
    """
    n_segments, own = pairs.n_items * groups.number, len(pairs.item)
    base = max(pairs.times, int(pairs.chances.max(initial=0))) + 1
    values, number = _numbered(pairs, np.repeat(pairs.absent_chances(), groups.number), base)
    unit = np.empty(own + n_segments, np.int32)
    np.multiply(pairs.item, np.int32(groups.number), out=unit[:own])
    unit[:own] += groups.of_pair
    unit[own:] = np.arange(n_segments)
    start, order = row_order(unit, n_segments)
    del unit
    number = number[order]
    begin, found, in_order = distinct(start, number, len(values))
    del number
    entry = np.empty_like(in_order)
    entry[order] = in_order
    del in_order, order
    chances, n, y, c = (values // base**power % base for power in (3, 2, 1, 0))
    table = np.stack((n, y, chances - n, c)).astype(np.int32)
    weight = np.zeros(len(found))
    _count_seen(entry, pairs.rows, weight)
    weight[entry[own:]] += groups.absent.ravel()
    return Patterns(begin, np.ascontiguousarray(table[:, found]), weight), entry[:own], entry[own:]


def _numbered(pairs: Pairs, absent_chances: Codes, base: int) -> tuple[Longs, Codes]:
    """The different counts as codes, in order, and which of them each pair, and then each absent one, has."""
    columns = pairs.chances, pairs.treated, pairs.treated_positives, pairs.control_positives
    absent, own = absent_chances.astype(np.int64) * base**3, len(pairs.item)
    if base**4 > MAX_CODES:
        code = np.zeros(own + len(absent), np.int64)
        code[own:] = absent
        for power, column in zip((3, 2, 1, 0), columns, strict=True):
            code[:own] += column * np.int64(base**power)
        values, at = np.unique(code, return_inverse=True)
        return values, at.astype(np.int32)
    exists, number = np.zeros(base**4, np.bool_), np.empty(own + len(absent), np.int32)
    _encode(*columns, base, number)
    number[own:] = absent
    exists[number] = True
    _look_up(np.cumsum(exists, dtype=np.int32) - 1, number)
    return np.flatnonzero(exists), number


@compiled
def _encode(chances: Any, treated: Any, positives: Any, control: Any, base: Any, code: Any) -> None:
    for pair in range(len(treated)):
        code[pair] = ((chances[pair] * base + treated[pair]) * base + positives[pair]) * base + control[pair]


@compiled
def _look_up(table: Any, number: Any) -> None:
    for at in range(len(number)):
        number[at] = table[number[at]]


@compiled
def _count_seen(entry: Any, rows: Any, weight: Any) -> None:
    for pair in range(len(rows)):
        if rows[pair]:
            weight[entry[pair]] += 1.0


def _totals(patterns: Patterns) -> tuple[Floats, Floats]:
    """Positives and trials of every segment in both arms, segments × 2."""
    sums = np.add.reduceat(patterns.counts * patterns.weight, patterns.start[:-1], axis=1).T
    return np.ascontiguousarray(sums[:, [1, 3]]), np.ascontiguousarray(sums[:, [0, 2]])


def item_rates(pairs: Pairs, features: Any = None) -> Floats:
    """The mean rates of every item, items × 2; ``features`` are those of the items."""
    treated = pairs.by_item(pairs.treated)
    positives = np.stack((pairs.by_item(pairs.treated_positives), pairs.by_item(pairs.control_positives)), 1)
    return paired_rates(positives, np.stack((treated, pairs.item_cells - treated), 1), features=features)


def _segment_rates(positives: Floats, trials: Floats, item_rate: Floats, groups: int) -> Floats:
    """The item's rates, times the group's, times the segment's own deviation."""
    if groups == 1:
        return item_rate
    expected = trials * item_rate
    of_group = paired_rates(positives.reshape(-1, groups, 2).sum(0), expected.reshape(-1, groups, 2).sum(0))
    prior = item_rate * np.tile(of_group, (len(positives) // groups, 1))
    return prior * paired_rates(positives, trials * prior)


def _clusters(pairs: Pairs, item_rate: Floats, shape: tuple[int, int]) -> Longs:
    """Items in quantiles of the treated share × quantiles of the control rate."""
    warm, treated_share = pairs.item_cells > 0, pairs.by_item(pairs.treated)
    of_share, of_rate = (
        _quantile(values, warm, parts) for values, parts in zip((treated_share, item_rate[:, 1]), shape, strict=True)
    )
    return of_share * shape[1] + of_rate


def _quantile(values: Floats, warm: Mask, parts: int) -> Longs:
    """In which part each value is; the parts have equally many of the warm ones."""
    edges = np.quantile(values[warm], np.arange(1, parts) / parts)
    return np.searchsorted(edges, values).astype(np.int64)


def _always_treated(trials: Floats, groups: int) -> Mask:
    """Which groups show hardly anything of the control arm.

    How a pair's two rates go together there would come from other groups alone, and differences between groups
    would pass for it. So they are independent, given the item and the group.
    """
    by_group = trials.reshape(-1, groups, 2).sum(0)
    return np.asarray((by_group[:, 1] < FEW_CONTROLS * by_group.sum(1)) & (groups > 1))


def _prior_of_all(patterns: Patterns, means: Floats, grid: Grid, threads: int | None) -> Floats:
    whole = np.zeros(len(means), np.int64)
    flat = np.full((1, len(grid.rates), len(grid.rates)), 1.0 / len(grid.rates) ** 2)
    mean = _mean_of(whole, 1, means, _totals(patterns)[1])
    base = Base(flat, whole[:1], mean, 1.0, np.zeros(1, np.bool_))
    return fit_priors(_merged(patterns, whole, 1), base, CLUSTER_STEPS, grid, threads)


def _parents(
    patterns: Patterns, one: Floats, parent: Longs, means: Floats, grid: Grid, clusters: int, independent: Mask,
    threads: int | None,
) -> Floats:  # fmt: skip
    """The priors of clusters × groups, starting at the group that says most about both arms at once.

    A group that was never treated says nothing about how the two rates go together, so each group's parent is its
    neighbor on the side of the first one. In ``independent`` groups only the parent's margins matter.
    """
    groups, (positives, trials) = len(independent), _totals(patterns)
    merged = _merged(patterns, parent, clusters * groups)
    cluster_means = _mean_of(parent, clusters * groups, means, trials)
    priors = np.repeat(one, clusters * groups, axis=0)
    pull = CLUSTER_PULL * max(1.0, PAIRS_PER_CLUSTER * clusters * groups / max(1.0, patterns.weight.sum()))
    for of_group, nearer in _outward(positives.reshape(-1, groups, 2).sum(0)):
        units = np.arange(clusters) * groups + of_group
        separate = np.full(clusters, independent[of_group])
        base = Base(priors, units + (nearer - of_group), cluster_means[units], pull, separate)
        priors[units] = fit_priors(_chosen(merged, units), base, CLUSTER_STEPS, grid, threads)
    if groups == 1:
        alike, shape, alike_means = _alike(patterns, parent, means, trials)
        return fit_shapes(alike, priors, shape, alike_means, pull, grid, threads)
    return priors


def _alike(patterns: Patterns, parent: Longs, means: Floats, trials: Floats) -> tuple[Patterns, Longs, Floats]:
    """Segments of one parent with about the same means, merged: their patterns, their parent, their means."""
    code = np.column_stack((parent, np.rint(np.log(means) / SAME_MEAN).astype(np.int64)))
    values, unit = np.unique(code, axis=0, return_inverse=True)
    unit, number = unit.ravel(), len(values)
    return _merged(patterns, unit, number), values[:, 0], _mean_of(unit, number, means, trials)


def _outward(positives: Floats) -> list[tuple[int, int]]:
    """Every group and the one its priors start from, nearest first; ``positives`` are groups × 2."""
    first = int(positives.min(1).argmax())
    below = [(group, group + 1) for group in reversed(range(first))]
    above = [(group, group - 1) for group in range(first + 1, len(positives))]
    return [(first, first), *below, *above]


def _chosen(patterns: Patterns, units: Longs) -> Patterns:
    """The patterns of some units."""
    first, many = patterns.start[units], np.diff(patterns.start)[units]
    start = np.concatenate(([0], np.cumsum(many)))
    at = np.arange(start[-1]) + np.repeat(first - start[:-1], many)
    return Patterns(start, np.ascontiguousarray(patterns.counts[:, at]), patterns.weight[at])


def _mean_of(unit: Longs, number: int, means: Floats, trials: Floats) -> Floats:
    weight = trials.sum(1) + 1e-9
    total = np.bincount(unit, weight, number) + 1e-300
    return np.stack([np.bincount(unit, weight * arm, number) / total for arm in means.T], 1)


def _merged(patterns: Patterns, unit: Longs, number: int) -> Patterns:
    """The patterns of several segments as those of one unit."""
    of_pattern = np.repeat(unit, np.diff(patterns.start))
    base = int(patterns.counts.max(initial=0)) + 1
    powers = base ** np.arange(3, -1, -1)
    code = powers @ patterns.counts.astype(np.int64)
    values, at = np.unique(of_pattern * base**4 + code, return_inverse=True)
    start = np.searchsorted(values, np.arange(number + 1) * base**4)
    counts = (values // powers[:, None] % base).astype(np.int32)
    return Patterns(start, counts, np.bincount(at, patterns.weight).astype(np.float64))
