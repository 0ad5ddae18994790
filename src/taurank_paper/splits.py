"""Splits: the training, validation and test weeks of a dataset, drawn once and held in memory while they are used.

All randomness follows from the seed of the dataset: the three parts are independent, and the truth of the test weeks
is the same for the original and the personalized assignment, as in the paper.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import taurank as tr
from taurank_paper.plan import Dataset, Items, Preset

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
    """Worlds by items, and the split that was asked for last."""

    def __init__(self, preset: Preset, source: str | os.PathLike[str] | None, threads: int | None) -> None:
        self.preset, self.source, self.threads = preset, source, threads
        self._worlds: dict[Items, tuple[tr.World, str]] = {}
        self._last: Split | None = None

    def world(self, items: Items) -> tr.World:
        """The world with the original assignment."""
        return self._world(items)[0]

    def fingerprint(self, items: Items) -> str:
        """A hash of the world's numbers: other source files, or another loader, are another world."""
        return self._world(items)[1]

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

    def _world(self, items: Items) -> tuple[tr.World, str]:
        if items not in self._worlds:
            if self.preset.sizes is None:
                world = tr.dunnhumby.world(items, self.source)
            else:
                users, n_items = self.preset.sizes[items]
                seed = np.random.SeedSequence(0, spawn_key=(n_items,))
                world = tr.World.synthetic(users, n_items, seed, purchase_rate=0.03)
            digest = hashlib.blake2b(digest_size=16)
            for rates in (world.treated_rate, world.control_rate, world.propensity):
                digest.update(np.ascontiguousarray(rates).view(np.uint8).data)
            self._worlds[items] = world, digest.hexdigest()
        return self._worlds[items]


def _seeds(dataset: Dataset, part: str) -> np.random.SeedSequence:
    return np.random.SeedSequence(dataset.seed, spawn_key=(PARTS[part],))


def fit_seed(dataset: Dataset, part: str = "fit") -> int:
    """The integer seed of the learners on this dataset."""
    return int(_seeds(dataset, part).generate_state(1, np.uint32)[0])
