"""Splits: the training, validation and test weeks of a dataset, drawn once and held in memory while they are used.

All randomness follows from the seed of the dataset: the three parts are independent, and the truth of the test weeks
is the same for the original and the personalized assignment, as in the paper.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from taurank.data.log import Log
from taurank.estimation import gains, propensity
from taurank.estimation.gains import Gains
from taurank.worlds import dunnhumby
from taurank.worlds.world import Sample, World
from taurank_paper.plan.plans import Dataset, Preset

PARTS = {"train": 0, "validation": 1, "test": 2, "fit": 3, "propensity": 4}


@dataclass(frozen=True, eq=False)
class Split:
    """One world, and the weeks drawn from it."""

    dataset: Dataset
    world: World
    threads: int | None

    def draw(self) -> None:
        """Draw all weeks now; otherwise each part is drawn when it is first used."""
        for part in ("train", "validation", "truth"):
            getattr(self, part)

    @cached_property
    def train(self) -> Log:
        """The log to learn from, with the propensities that the learner sees."""
        log = self._sample("train", self.dataset.times.train).log
        if self.dataset.propensity == "estimated":
            return propensity.estimate(log, fit_seed(self.dataset, "propensity"), model="additive")
        return log

    @cached_property
    def validation(self) -> Gains:
        """Truth of the validation weeks, used for model selection."""
        return self._sample("validation", self.dataset.times.validation).truth

    @cached_property
    def _tested(self) -> tuple[Gains, Gains]:
        sample = self.test_sample()
        return sample.truth, gains.outcome(sample.log)

    @property
    def truth(self) -> Gains:
        """The truth of the test weeks."""
        return self._tested[0]

    @property
    def outcome(self) -> Gains:
        """The purchases of the test weeks."""
        return self._tested[1]

    def test_sample(self) -> Sample:
        """The test weeks with their log: large, so drawn again where it is needed."""
        return self._sample("test", self.dataset.times.test)

    def _sample(self, part: str, times: int) -> Sample:
        return self.world.sample(times, _seeds(self.dataset, part), threads=self.threads)


class Splits:
    """Worlds by items, and the split that was asked for last."""

    def __init__(self, preset: Preset, source: str | os.PathLike[str] | None, threads: int | None) -> None:
        self.preset, self.source, self.threads = preset, source, threads
        self._worlds: dict[str, World] = {}
        self._fingerprints: dict[str, str] = {}
        self._last: Split | None = None

    def world(self, items: str) -> World:
        """The world with the original assignment."""
        if items not in self._worlds:
            self._worlds[items] = self._make(items)
        return self._worlds[items]

    def fingerprint(self, items: str) -> str:
        """A hash of the world's numbers: other source files, or another loader, are another world."""
        if items not in self._fingerprints:
            digest = hashlib.blake2b(digest_size=16)
            world = self.world(items)
            for rates in (world.treated_rate, world.control_rate, world.propensity):
                digest.update(np.ascontiguousarray(rates).view(np.uint8).data)
            self._fingerprints[items] = digest.hexdigest()
        return self._fingerprints[items]

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

    def _make(self, items: str) -> World:
        if self.preset.sizes is None:
            return dunnhumby.world(items, self.source)  # type: ignore[arg-type]
        users, n_items = self.preset.sizes[items]
        seed = np.random.SeedSequence(0, spawn_key=(n_items,))
        return World.synthetic(users, n_items, seed, purchase_rate=0.03)


def _seeds(dataset: Dataset, part: str) -> np.random.SeedSequence:
    return np.random.SeedSequence(dataset.seed, spawn_key=(PARTS[part],))


def fit_seed(dataset: Dataset, part: str = "fit") -> int:
    """The integer seed of the learners on this dataset."""
    return int(_seeds(dataset, part).generate_state(1, np.uint32)[0])
