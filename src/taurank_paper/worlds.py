"""Worlds: the weeks drawn from them, and rankings that know them.

All randomness of a split follows from the seed of the dataset: training, validation and test weeks are independent,
and the truth of the test weeks is the same for the original and the personalized assignment, as in the paper.

The limits to compare methods with are the truth, what can be known from the counts of a log, and population targets.
They need the world that the log was drawn from, so they are not learners. Their scores are arrays users × items for
``taurank.evaluate``.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

import taurank as tr
from taurank_paper.plan import Dataset, Items, Preset

Scores = npt.NDArray[np.float64]

TARGETS = ("bpr", "dlto", "blce", "dlce")  # methods whose population target is a formula, since they weigh purchases
IMPOSSIBLE = -1e100  # the logarithm of a probability of 0
PARTS = {"train": 0, "validation": 1, "test": 2, "fit": 3, "propensity": 4}


@dataclass(frozen=True, eq=False)
class Split:
    """One world, and the weeks drawn from it: each part when it is first used."""

    dataset: Dataset
    world: tr.World
    threads: int | None

    @cached_property
    def train(self) -> tr.Log:
        """The log to learn from, with the propensities that the learner sees."""
        log: tr.Log = self._sample("train", self.dataset.times.train).log
        if self.dataset.propensity == "estimated":
            return tr.propensity.estimate(log, fit_seed(self.dataset, "propensity"), model="additive")
        return log

    @cached_property
    def validation(self) -> Any:
        """Truth of the validation weeks, used for model selection."""
        return self._sample("validation", self.dataset.times.validation).truth

    @cached_property
    def tested(self) -> tuple[tr.Gains, tr.Gains]:
        """The truth and the purchases of the test weeks."""
        sample = self.test_sample()
        return sample.truth, tr.gains.outcome(sample.log)

    def test_sample(self) -> Any:
        """The test weeks with their log: large, so drawn again where it is needed."""
        return self._sample("test", self.dataset.times.test)

    def _sample(self, part: str, times: int) -> Any:
        return self.world.sample(times, _seeds(self.dataset, part), threads=self.threads)


class Splits:
    """Worlds by items, with a hash of their numbers, each made once, and the split that was asked for last."""

    def __init__(self, preset: Preset, source: str | os.PathLike[str] | None, threads: int | None) -> None:
        self.preset, self.source, self.threads = preset, source, threads
        self._last: Split | None = None
        self.world, self.fingerprint = cache(self._world), cache(self._fingerprint)

    def split(self, dataset: Dataset) -> Split:
        """The samples of this dataset; only the last one asked for stays in memory."""
        if self._last is None or self._last.dataset != dataset:
            self._last = None
            world = self.world(dataset.items)
            if dataset.assignment == "personalized":
                world = world.personalized(dataset.beta)
            if dataset.xi:
                world = world.misspecified(dataset.xi)
            self._last = Split(dataset, world, self.threads)
        return self._last

    def _world(self, items: Items) -> tr.World:
        """The world with the original assignment."""
        if self.preset.sizes is None:
            return tr.dunnhumby.world(items, self.source)
        users, n_items = self.preset.sizes[items]
        seed = np.random.SeedSequence(0, spawn_key=(n_items,))
        return tr.World.synthetic(users, n_items, seed, purchase_rate=0.03)

    def _fingerprint(self, items: Items) -> str:
        """A hash of the world's numbers: other source files, or another loader, are another world."""
        digest, world = hashlib.blake2b(digest_size=16), self.world(items)
        for rates in (world.treated_rate, world.control_rate, world.propensity):
            digest.update(np.ascontiguousarray(rates).view(np.uint8).data)
        return digest.hexdigest()


def _seeds(dataset: Dataset, part: str) -> np.random.SeedSequence:
    return np.random.SeedSequence(dataset.seed, spawn_key=(PARTS[part],))


def fit_seed(dataset: Dataset, part: str = "fit") -> int:
    """The integer seed of the learners on this dataset."""
    return int(_seeds(dataset, part).generate_state(1, np.uint32)[0])


# ---- rankings that know the world ----------------------------------------------------------------


def truth_scores(world: tr.World) -> Scores:
    """μ^T − μ^C of every pair: in expectation no ranking has a larger CP@k or CDCG."""
    return np.subtract(world.treated_rate, world.control_rate, dtype=np.float64)


def ten_weeks_scores(world: tr.World, log: tr.Log, threads: int | None = None) -> Scores:
    """E[μ^T − μ^C | the pair's counts] under the item's own true distribution over users.

    A pair of item i that was treated n_T times with y_T positives, and untreated n_C times with y_C, scores

        Σ_v (μ^T_vi − μ^C_vi) L_vi / Σ_v L_vi,
        L_vi = Binomial(y_T; n_T, μ^T_vi) · Binomial(y_C; n_C, μ^C_vi),

    with both sums over all users v, so that the dependence between μ^T and μ^C is kept. It is the most that a
    method can know which treats the users of an item alike and looks at one pair's counts at a time. The log must
    be a sample of this world. It does
    not use the propensities: where recommendations follow taste, how often a pair was recommended tells about
    its μ as well, and a method that uses that, or what users have in common, may pass this limit.
    """
    # the counts of a pair as one number: bought when treated, not bought then, bought untreated
    base = log.n_times + 1
    worth = np.where(log.treated, np.where(log.outcome, base * base, base), log.outcome)
    counts = np.zeros((log.n_items, log.n_users), np.int64)
    np.add.at(counts, (log.item, log.user), worth)
    scores = np.empty((world.n_items, world.n_users))

    def score(item: int) -> None:
        treated, control = (rate[:, item].astype(np.float64) for rate in (world.treated_rate, world.control_rate))
        patterns, pattern = np.unique(counts[item], return_inverse=True)
        bought, missed, control_bought = np.unravel_index(patterns, (base, base, base))
        missed_control = log.n_times - bought - missed - control_bought
        times = np.stack([bought, missed, control_bought, missed_control], axis=1).astype(np.float64)
        with np.errstate(divide="ignore"):
            logs = np.stack([np.log(treated), np.log1p(-treated), np.log(control), np.log1p(-control)])
        likelihood = times @ np.maximum(logs, IMPOSSIBLE)  # 0 · log 0 is 0 here
        weights = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
        scores[item] = (weights @ (treated - control) / weights.sum(axis=1))[pattern]

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(score, range(world.n_items)))
    return np.ascontiguousarray(scores.T)


def target_scores(method: str, world: tr.World, cap: float = 0.0) -> Scores:
    """What a method would rank by with unlimited data and a model without limits: its weights in expectation.

        BPR   P μ^T + (1−P) μ^C                                    purchases
        DLTO  P μ^T / max(P, χ)
        DLCE  P μ^T / max(P, χ) − (1−P) μ^C / max(1−P, χ)          μ^T − μ^C where no cap binds
        BLCE  as DLCE without cap, with the mean of all P in the denominators

    How far this stays behind the truth is the method's bias; how far the method stays behind this is variance
    and optimization.
    """
    propensity = np.asarray(world.propensity, np.float64)
    bought_treated, bought_untreated = propensity * world.treated_rate, (1 - propensity) * world.control_rate
    if method == "bpr":
        return np.asarray(bought_treated + bought_untreated)
    assumed = np.full_like(propensity, propensity.mean()) if method == "blce" else propensity
    least = max(0.0 if method == "blce" else cap, np.finfo(np.float64).tiny)  # 0 / 0 is 0: such a cell is never seen
    effect = bought_treated / np.maximum(assumed, least)
    if method != "dlto":
        effect -= bought_untreated / np.maximum(1 - assumed, least)
    return np.asarray(effect)
