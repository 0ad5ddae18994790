"""How often does the 95 % interval of an estimate cover the truth? By simulation, case by case.

    python benchmarks/coverage.py [--draws 1000] [--seed 0] [--cases rare users]
    python benchmarks/coverage.py --integrate

Every draw takes new users from a population and a new log of theirs, estimates CP@10 of a fixed ranking by every
estimator, and asks whether the interval covers the effect of the population. Beside it stands how often the verdict
was to believe.

With ``--integrate``, how often an interval with few times as clusters covers where the mean and the shocks of times
are normal: exactly, by integration over the variance between times, for shocks of any size.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri, ndtr, ndtri, stdtrit

from taurank import Log
from taurank.data.ids import Catalog, Ids
from taurank.evaluation.evidence import judge
from taurank.evaluation.intervals import TIMES_DIFFER, clustered_variance
from taurank.evaluation.measurement import Measurement

Floats = npt.NDArray[np.float64]
K = 10


@dataclass(frozen=True)
class Case:
    """Propensities between ``low`` and ``high`` (log-uniform over items), purchase rates in both arms.

    ``tilt`` makes rates proportional to P^tilt, the mean kept: negative if what is rarely shown is bought more often.
    ``uneven`` is the shape of the gamma distribution of the users' readiness to buy (None: all alike), ``shock`` the
    spread of the logarithm of a factor common to all users at a time.
    """

    users: int
    times: int
    low: float
    high: float
    treated: float
    control: float
    uneven: float | None = None
    shock: float = 0.0
    tilt: float = 0.0

    @property
    def truth(self) -> float:
        return self.treated - self.control

    def draw(self, rng: np.random.Generator) -> Log:
        shape = (self.users, K, self.times)
        chance = np.exp(rng.uniform(np.log(self.low), np.log(self.high), shape))
        ready = (
            np.ones((self.users, 1, 1))
            if self.uneven is None
            else rng.gamma(self.uneven, 1 / self.uneven, (self.users, 1, 1))
        )
        ready = ready * self._tilted(chance)
        ready = ready * np.exp(rng.normal(-(self.shock**2) / 2, self.shock, (1, 1, self.times)))
        treated = rng.random(shape) < chance
        outcome = rng.random(shape) < np.minimum(np.where(treated, self.treated, self.control) * ready, 1.0)
        return _log(treated, outcome, chance)

    def _tilted(self, chance: Floats) -> Floats | float:
        if self.tilt == 0.0:
            return 1.0
        ends = self.high**self.tilt - self.low**self.tilt
        return np.asarray(chance**self.tilt * self.tilt * np.log(self.high / self.low) / ends)


def _log(treated: npt.NDArray[np.bool_], outcome: npt.NDArray[np.bool_], chance: Floats) -> Log:
    kept = np.nonzero(treated | outcome)
    names = ("user_id", "item_id", "time")
    catalog = Catalog(*(Ids(np.arange(n), name) for n, name in zip(treated.shape, names, strict=True)))
    user, item, time = (axis.astype(np.int32) for axis in kept)
    return Log(catalog, user, item, time, treated[kept].astype(np.int8), outcome[kept].astype(np.int8), chance[kept])


CASES = {
    "good overlap, 200 users": Case(200, 4, 0.1, 0.5, 0.03, 0.01),
    "good overlap, 1,000 users": Case(1000, 1, 0.1, 0.5, 0.03, 0.01),
    "good overlap, uneven users": Case(300, 4, 0.1, 0.5, 0.03, 0.01, uneven=0.5),
    "heavy weights, 2,000 users": Case(2000, 4, 0.01, 0.5, 0.03, 0.01),
    "heavy weights, 500 users": Case(500, 4, 0.005, 0.5, 0.03, 0.01),
    "often shown (P .8 to .99)": Case(300, 4, 0.8, 0.99, 0.1, 0.05),
    "rare first, 200 users, .3 %": Case(200, 1, 0.005, 0.02, 0.003, 0.001),
    "rare first, 200 users, 1 %": Case(200, 1, 0.005, 0.02, 0.01, 0.003),
    "rare first, 1,000 users, .3 %": Case(1000, 1, 0.005, 0.02, 0.003, 0.001),
    "rare first, 1,000 users, 1 %": Case(1000, 1, 0.005, 0.02, 0.01, 0.003),
    **{f"{n} users": Case(n, 10, 0.2, 0.6, 0.1, 0.05, uneven=2.0) for n in (2, 3, 5, 10, 20)},
    "times differ, 5 times": Case(300, 5, 0.1, 0.5, 0.06, 0.02, shock=0.3),
    "times differ, 20 times": Case(300, 20, 0.1, 0.5, 0.06, 0.02, shock=0.3),
    "heavy weights, rare items bought more": Case(2000, 1, 0.01, 0.5, 0.04, 0.01, tilt=-0.5),
    "heavy weights, rare items bought less": Case(2000, 1, 0.01, 0.5, 0.04, 0.01, tilt=0.5),
    # never used while the intervals were developed
    "heavy weights, 1 time": Case(3000, 1, 0.008, 0.6, 0.02, 0.008),
    "heavy weights, 5 times, rare items bought more": Case(400, 5, 0.008, 0.5, 0.03, 0.02, tilt=-0.4),
    "heavy weights, 10 times, uneven users": Case(200, 10, 0.01, 0.4, 0.05, 0.02, uneven=0.7),
    "times differ much, 4 times": Case(500, 4, 0.1, 0.5, 0.1, 0.03, shock=0.5),
    "times differ much, 2 times": Case(500, 2, 0.1, 0.5, 0.1, 0.03, shock=0.5),
    "times differ, 5 times, 500 users": Case(500, 5, 0.05, 0.4, 0.05, 0.03, shock=0.4),
    "times differ, 6 times, uneven users": Case(250, 6, 0.2, 0.6, 0.1, 0.04, uneven=1.0, shock=0.3),
    "times differ, 8 times, heavy weights": Case(800, 8, 0.02, 0.5, 0.04, 0.01, shock=0.2),
    "times differ, 3 times": Case(400, 3, 0.1, 0.4, 0.08, 0.03, shock=0.25),
    "times alike, 6 times": Case(400, 6, 0.1, 0.4, 0.05, 0.02),
}


@dataclass
class Tally:
    covered: dict[str, int]
    believed: int = 0
    draws: int = 0


def coverage(case: Case, draws: int, seed: int = 0) -> Tally:
    """How many of the draws were covered by each estimator's interval, and how many believed."""
    rng = np.random.default_rng(seed)
    tally = Tally(dict.fromkeys(("doubly robust", "SNIPS", "IPS"), 0), draws=draws)
    for _ in range(draws):
        log = case.draw(rng)
        measurement = Measurement.prepare(log, f"CP@{K}")
        (found,) = measurement.evidence(measurement.ranking(np.zeros((case.users, K))), 1)
        intervals = {"doubly robust": found.own, "SNIPS": found.snips, "IPS": found.ips}
        for name, one in intervals.items():
            low, high = one.interval()
            tally.covered[name] += low <= case.truth <= high
        tally.believed += judge(found).believe
    return tally


def covered_with_times(n_times: int, shock: float, level: float) -> tuple[float, float]:
    """Coverage of a 95 % interval and its mean width, in units of one that knows that times are alike.

    Rows give the mean the variance 1, and what a time has in common adds ``shock``: the variance between times is
    (1 + shock)·χ²(T−1)/(T−1). ``level`` is that of the test whether times differ.
    """
    between = (1.0 + shock) * chdtri(n_times - 1, (np.arange(4000) + 0.5) / 4000) / (n_times - 1)
    pairs = [clustered_variance(1.0, 10**9, one, n_times, 1.0, level) for one in between]
    half = np.array([np.sqrt(variance) * stdtrit(freedom, 0.975) for variance, freedom in pairs])
    covered = float(np.mean(2.0 * ndtr(half / np.sqrt(1.0 + shock)) - 1.0))
    return covered, float(np.mean(half) / ndtri(0.975))


def _integrate() -> None:
    shocks = [0.0, *np.geomspace(0.02, 2000.0, 60).tolist()]
    print("| test at | times | covers least | covers most | width, times alike |\n|---|---|---|---|---|")
    for level in (TIMES_DIFFER, 0.05, 1.0):
        for n_times in (2, 3, 4, 5, 8, 20):
            pairs = [covered_with_times(n_times, shock, level) for shock in shocks]
            share = [100.0 * covered for covered, _ in pairs]
            print(f"| {level:g} | {n_times} | {min(share):.1f} | {max(share):.1f} | {pairs[0][1]:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--cases", nargs="*", default=[""], help="Words that a case's name must contain.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--integrate", action="store_true", help="Few times as clusters, without any simulation.")
    options = parser.parse_args()
    if options.integrate:
        _integrate()
        return
    print("| case | doubly robust | SNIPS | IPS | believed |\n|---|---|---|---|---|")
    for name, case in CASES.items():
        if any(word in name for word in options.cases):
            tally = coverage(case, options.draws, options.seed)
            figures = [f"{100 * count / tally.draws:.1f}" for count in (*tally.covered.values(), tally.believed)]
            print(f"| {name} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
