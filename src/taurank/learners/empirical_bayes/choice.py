"""Which prior, and how strong: the one that best predicts what was held out.

Every candidate is fitted to all times but the last, and its score is the log-likelihood of the last time's cells,
absent ones included: log μ̂^a of a cell that was positive in arm a, log(1 − μ̂^a) of one that was not. No truth and no
inverse propensities are involved.

A log with one time holds out a fifth of its pairs instead. These are predicted without counts of their own, so what
is compared is what each prior expects of them. How strong a prior should be stays at its usual value: two
distributions of rates with the same mean give one trial per pair the same probability, so such a log cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank.learners.empirical_bayes import taste as tastes
from taurank.learners.empirical_bayes.counts import (
    NOT_HELD_OUT,
    Floats,
    HeldOut,
    Integers,
    Pairs,
)  # fmt: skip
from taurank.learners.empirical_bayes.covariates import NOTHING_KNOWN, Covariates
from taurank.learners.empirical_bayes.grid import TINY, make_rates
from taurank.learners.empirical_bayes.groups import Groups, by_exposure, by_propensity, one_group
from taurank.learners.empirical_bayes.model import (
    FINER_SHAPES,
    Posterior,
    Segments,
    Shapes,
    item_rates,
    posterior,
    segment,
)

GROUPS: dict[str, Callable[[Pairs], Groups]] = {
    "item": one_group, "exposure": by_exposure, "propensity": by_propensity,
}  # fmt: skip
PRIORS = (*GROUPS, "taste")
STRENGTH = 3.0  # of the pull toward the cluster, in pairs
STEPS = (3, 10, 30)  # of EM from the cluster's prior: stopping early is a second way to stay near it
OWN = (0.0, 0.5, 1.0)  # weights of the prior that own pairs have moved; priors are compared at the middle one
GAMMA_SHAPES = (0.3, 1.0, 3.0, 10.0, 30.0)  # of the Gamma prior around taste
RANKS = (16, 24)
RATES = make_rates(24, 1e-4, 0.98)
# one clustering is enough; a fine one, because items whose cluster fits them badly rely on their own pairs, and the
# choice would overrate these
SHAPES_TO_CHOOSE_BY: Shapes = FINER_SHAPES[:1]
SAMPLED_USERS = 4096  # whose cells are scored: enough to choose by, also where users × items are too many to visit


@dataclass(frozen=True)
class Setting:
    """A prior and its strength; the EM steps of priors of counts, the rank of taste (0 for other priors).

    ``own`` is the weight of the posterior under a prior moved by the segment's own pairs; the rest of the weight has
    the posterior under the cluster's prior.
    """

    prior: str
    strength: float
    steps: int = 0
    rank: int = 0
    own: float = 1.0


class Fits:
    """Posteriors of one set of counts under several settings; what two settings share is computed once."""

    def __init__(
        self, pairs: Pairs, threads: int | None, covariates: Covariates = NOTHING_KNOWN, shapes: Shapes = ()
    ) -> None:
        self.pairs, self.threads, self.shapes, self.covariates = pairs, threads, shapes, covariates
        self._segments: dict[str, Segments] = {}
        self._tastes: dict[int, tastes.Taste] = {}

    def counted(self, setting: Setting) -> Posterior:
        """The posterior without taste."""
        return posterior(self.segments(setting.prior), setting.strength, setting.steps, setting.own, self.threads)

    def segments(self, prior: str) -> Segments:
        if prior not in self._segments:
            groups = GROUPS[prior](self.pairs)
            fitted = segment(self.pairs, groups, RATES, self.item_rate, self.threads, self.shapes)
            self._segments = {prior: fitted}
        return self._segments[prior]

    def taste(self, rank: int) -> tastes.Taste:
        if rank not in self._tastes:
            taste = tastes.learn_taste(self.pairs, self.item_rate, rank, self.threads, self.covariates)
            self._tastes = {rank: taste}
        return self._tastes[rank]

    @cached_property
    def item_rate(self) -> Floats:
        return item_rates(self.pairs, self.covariates.items)


class Search:
    """The held-out log-likelihood, per cell, of every setting that was tried."""

    def __init__(self, held_out: HeldOut, threads: int | None, covariates: Covariates) -> None:
        self.held_out = held_out
        self.fits = Fits(held_out.pairs, threads, covariates, SHAPES_TO_CHOOSE_BY)
        self.scores: dict[Setting, float] = {}

    def best(self) -> Setting:
        return max(self.scores, key=lambda setting: self.scores[setting])

    def improves(self, setting: Setting) -> bool:
        """Try a setting; whether it is the best so far."""
        self.value(setting)
        return self.best() == setting

    def climb(self, settings: Sequence[Setting]) -> None:
        """From the second setting on in the direction that helps, for as long as it does."""
        at = min(1, len(settings) - 1)
        best = self.value(settings[at])
        for step in (-1, 1):
            while 0 <= at + step < len(settings) and self.value(settings[at + step]) > best:
                at, best = at + step, self.value(settings[at + step])

    def value(self, setting: Setting) -> float:
        if setting not in self.scores:
            self.scores[setting] = log_likelihood(self.held_out, self.fits, setting)
        return self.scores[setting]


def choose(
    held_out: HeldOut, priors: Sequence[str], strength: float | None, rank: int | None, threads: int | None,
    covariates: Covariates = NOTHING_KNOWN,
) -> dict[Setting, float]:  # fmt: skip
    """First the groups of pairs, then how far and how freely each segment follows its own pairs, then taste."""
    search = Search(held_out, threads, covariates)
    for prior in priors:
        if prior != "taste":
            search.improves(Setting(prior, strength or STRENGTH, steps=STEPS[0], own=OWN[1]))
    if search.scores and not held_out.hides_pairs:
        _refine(search)
    if "taste" in priors:
        shapes = GAMMA_SHAPES[1:2] if held_out.hides_pairs else GAMMA_SHAPES
        _try_tastes(search, shapes if strength is None else (strength,), RANKS if rank is None else (rank,))
    return search.scores


def best_taste(tried: Mapping[Setting, float], rank: int | None) -> Setting:
    """The best setting of taste among those tried, or a usual one: the prior of pairs known by features alone."""
    tastings = {setting: value for setting, value in tried.items() if setting.prior == "taste"}
    usual = Setting("taste", GAMMA_SHAPES[1], rank=rank or RANKS[0])
    return max(tastings, key=lambda setting: tastings[setting]) if tastings else usual


def _refine(search: Search) -> None:
    """How much own pairs count; if they count fully, more EM steps while these help."""
    search.climb([replace(search.best(), own=own) for own in OWN])
    best = search.best()
    if best.own == 1.0:
        all(search.improves(replace(best, steps=steps)) for steps in STEPS[1:])


def _try_tastes(search: Search, shapes: Sequence[float], ranks: Sequence[int]) -> None:
    """The best shape of the first rank; other ranks only if taste is the best prior so far."""
    for rank in ranks:
        if rank == ranks[0] or search.best().prior == "taste":
            search.climb([Setting("taste", shape, rank=rank) for shape in shapes])


def log_likelihood(held_out: HeldOut, fits: Fits, setting: Setting) -> float:
    """The mean log-likelihood of the held-out cells of all users, or of a sample of them."""
    pairs = held_out.pairs
    step = max(1, pairs.n_users // SAMPLED_USERS)
    users = np.arange(0, pairs.n_users, step)
    used = (pairs.user % step == 0) & (held_out.held != NOT_HELD_OUT)
    if setting.prior == "taste":
        taste, shape = fits.taste(setting.rank), tastes.UNMOVED if held_out.hides_pairs else setting.strength
        moments = tastes.pair_moments(pairs, taste, shape)
        total = _of_outcomes(held_out.held, np.arange(len(moments)), used, moments)
        absent, cells = _absent_taste(held_out, taste, shape, users)
    else:
        number = _absent_cells(held_out, users)
        total, control = _of_counts(held_out, fits, setting, used)
        absent, cells = float(number @ np.log1p(-control)), float(number.sum())
    return (total + held_out.share * absent) / max(1.0, np.count_nonzero(used) + held_out.share * cells)


def _of_counts(held_out: HeldOut, fits: Fits, setting: Setting, used: npt.NDArray[np.bool_]) -> tuple[float, Floats]:
    """The log-likelihood of the used pairs under a prior of counts, and E[μ^C] of each item's absent pairs."""
    pairs, held = held_out.pairs, held_out.held
    if held_out.hides_pairs:
        segments = fits.segments(setting.prior)
        n_groups = segments.absent_share.shape[1]
        unit = pairs.item * n_groups + GROUPS[setting.prior](pairs).of_pair
        means = np.minimum(segments.means, tastes.MOST)
        of_absent = (segments.absent_share * means[:, 1].reshape(-1, n_groups)).sum(1)
        return _of_outcomes(held, unit, used, means), of_absent
    result = fits.counted(setting)
    total = _of_outcomes(held, result.pair_entry, used & pairs.seen, result.pattern)
    return total + _of_outcomes(held, pairs.item, used & ~pairs.seen, result.absent), result.absent[:, 1]


def _of_outcomes(
    held: npt.NDArray[np.int8], unit: npt.NDArray[Any], used: npt.NDArray[np.bool_], moments: Floats
) -> float:
    """The log-likelihood of what happened to the used pairs; pairs of one unit have the same moments."""
    code = unit[used].astype(np.int64) * NOT_HELD_OUT + held[used]
    number = np.bincount(code, minlength=NOT_HELD_OUT * len(moments)).reshape(-1, NOT_HELD_OUT)
    treated, control = moments[:, 0], moments[:, 1]
    likelihood = np.stack((1.0 - control, 1.0 - treated, treated, control), 1)  # in the order of the outcomes
    return float((number * np.log(np.maximum(likelihood, TINY))).sum())


def _absent_cells(held_out: HeldOut, users: Integers) -> Floats:
    """For each item, the cells of the held-out time whose pairs have no row at all, of these users."""
    if held_out.eligibility.is_everything:
        pairs, step = held_out.pairs, users[1] - users[0] if len(users) > 1 else 1
        with_rows = np.bincount(pairs.item[pairs.user % step == 0], minlength=pairs.n_items)
        return np.asarray((np.count_nonzero(pairs.user_cells[users]) - with_rows) * (pairs.item_cells > 0.0))
    return sum((mask.sum(0) for _, mask in _absent_blocks(held_out, users)), np.zeros(held_out.pairs.n_items))


def _absent_blocks(held_out: HeldOut, users: Integers) -> Iterator[tuple[Integers, npt.NDArray[np.bool_]]]:
    """Blocks of users, and which of their cells at the held-out time are eligible and of pairs without rows."""
    pairs = held_out.pairs
    for first in range(0, len(users), 256):
        block = users[first : first + 256]
        mask = held_out.eligible(block)
        for at, user in enumerate(block):
            mask[at, pairs.item[pairs.start[user] : pairs.start[user + 1]]] = False
        yield block, mask


def _absent_taste(held_out: HeldOut, taste: tastes.Taste, shape: float, users: Integers) -> tuple[float, float]:
    """Σ log(1 − μ̂^C) over the sampled users' pairs without any row, and the number of their cells."""
    total, cells, chances = 0.0, 0, held_out.pairs.absent_chances()
    for block, mask in _absent_blocks(held_out, users):
        control = tastes.absent_control(taste, taste.users[block], shape, chances)
        total += float(np.log1p(-control)[mask].sum())
        cells += int(np.count_nonzero(mask))
    return total, float(cells)
