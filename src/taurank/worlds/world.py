"""World: the probabilities behind a log, and logs drawn from them together with the truth.

A world holds three dense arrays over users × items: the purchase probability if recommended (μ^T), if not
(μ^C), and the probability of being recommended (P). Real logs come without one; a world is for experiments,
and the only place where anything of size users × items is stored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import brentq
from scipy.special import expit, logit

from taurank._checks import RandomState, check_instance, check_integer, check_number, generator
from taurank._types import Codes, Floats, Floats32, Longs
from taurank.data import storage
from taurank.data.features import Features
from taurank.data.ids import Catalog, Ids, Sized, ids_from_arrays, ids_to_arrays
from taurank.data.log import Log
from taurank.data.reader import ANY_PROPENSITY, read_cells
from taurank.data.storage import Array, check_arrays
from taurank.data.tables import open_table
from taurank.errors import InputError, plural
from taurank.estimation import propensity as propensities
from taurank.estimation.gains import Gains
from taurank.estimation.propensity.logistic import fit_intercepts
from taurank.worlds.sampling import draw_cells

_RATE = Array("float32", ("users", "items"), minimum=0.0, maximum=1.0)
_STORED = {
    "treated_rate": _RATE,
    "control_rate": _RATE,
    "propensity": _RATE,
    "recorded": replace(_RATE, optional=True),
}
MAX_PAIRS = 2**34  # users × items of a synthetic world, and times × users of a sample: more fit into no memory
ITEM_PRIOR, USER_PRIOR, ROUNDS = 20.0, 3.0, 10  # of the rates of a fitted world
EDGE = 1e-6  # propensities are clipped to [EDGE, 1 − EDGE], as in the paper


@dataclass(frozen=True)
class Sample:
    """A log drawn from a world, and the truth no real log has: τ ∈ {−1, +1} where it is not 0."""

    log: Log
    truth: Gains


class World(Sized):
    """Potential outcomes and propensities of all pairs of users and items; frozen once made.

    Parameters
    ----------
    treated_rate, control_rate : μ^T and μ^C: arrays users × items, stored as float32 copies
    propensity : P, likewise, clipped to [1e-6, 1 − 1e-6]
    users, items : their ids
    recorded : the propensity that sampled logs record, where it differs from the true one
    origin : what the world was made from

    Examples
    --------
    >>> world = World.synthetic(n_users=100, n_items=20, random_state=0)
    >>> sample = world.sample(times=3, random_state=1)
    >>> sample.log.cells, sample.truth.kind
    (6000, 'effect')
    """

    def __init__(
        self,
        treated_rate: npt.ArrayLike,
        control_rate: npt.ArrayLike,
        propensity: npt.ArrayLike,
        users: Any,
        items: Any,
        *,
        recorded: npt.ArrayLike | None = None,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        self.users = users if isinstance(users, Ids) else Ids(users, "user_id")
        self.items = items if isinstance(items, Ids) else Ids(items, "item_id")
        shape = (self.n_users, self.n_items)
        self.treated_rate = _checked_rates("treated_rate", treated_rate, shape)
        self.control_rate = _checked_rates("control_rate", control_rate, shape)
        self.propensity = _checked_rates("propensity", propensity, shape)
        self.recorded = None if recorded is None else _checked_rates("recorded", recorded, shape)
        self.origin: Mapping[str, Any] = dict(origin or {})

    def __repr__(self) -> str:
        return f"World({self.n_users:,} users, {self.n_items:,} items, {dict(self.origin)})"

    def sample(self, times: int = 1, random_state: RandomState = None, threads: int | None = None) -> Sample:
        """Draw Y^T ~ Bernoulli(μ^T), Y^C ~ Bernoulli(μ^C) and Z ~ Bernoulli(P), ``times`` times.

        The log holds the cells with Z = 1 or Y = Z·Y^T + (1−Z)·Y^C = 1, ordered by time, user, item; the truth holds
        the cells with τ = Y^T − Y^C ≠ 0. Each draw depends on the seed and its cell alone, so the result is the same
        for any number of threads.
        """
        check_integer("times", times)
        if times * self.n_users > MAX_PAIRS:
            raise InputError(f"times × users must be at most {MAX_PAIRS:,}, got {times:,} × {self.n_users:,}.")
        key = np.uint64(generator(random_state).integers(2**63))
        catalog = Catalog(self.users, self.items, Ids(np.arange(times), "time"))
        rates = (self.treated_rate, self.control_rate, self.propensity)
        rows, truth = draw_cells(rates, times, key, threads)
        recorded = self.propensity if self.recorded is None else self.recorded
        user, item, time, treated, outcome = rows
        log = Log(catalog, user, item, time, treated, outcome, recorded[user, item].astype(np.float64))
        effect_user, effect_item, effect_time, effect = truth
        return Sample(log, Gains(catalog, effect_user, effect_item, effect_time, effect, "truth", kind="effect"))

    def personalized(self, beta: float = 2.0) -> World:
        """Recommend what each user buys anyway: P = min(1, α · rank^−β), Eq. (gen_propensity).

        ``beta`` is the concentration: 0 recommends all items alike, 2 almost only a user's favorites. Items are
        ranked for each user by μ = P·μ^T + (1−P)·μ^C, ties in catalog order. α is solved so that
        the mean propensity, after the clip to [1e-6, 1−1e-6], is that of this world.
        """
        check_number("beta", beta, 0)
        log_ranks = np.log(np.arange(1, self.n_items + 1, dtype=np.float64))

        def by_rank(log_alpha: float) -> Floats:
            return np.clip(np.exp(np.minimum(log_alpha - beta * log_ranks, 0.0)), EDGE, 1 - EDGE)

        # the mean grows with α, so one root is bracketed
        target, low, high = (
            float(self.propensity.mean(dtype=np.float64)),
            np.log(EDGE) - 1.0,
            beta * log_ranks[-1] + 1.0,
        )
        log_alpha = float(brentq(lambda x: float(by_rank(x).mean()) - target, low, high, xtol=1e-13))
        propensity, ranked = np.empty_like(self.propensity), by_rank(log_alpha).astype(np.float32)
        for user, rates in enumerate(zip(self.treated_rate, self.control_rate, self.propensity, strict=True)):
            treated, control, shown = (row.astype(np.float64) for row in rates)
            order = np.argsort(-(shown * treated + (1.0 - shown) * control), kind="stable")
            propensity[user, order] = ranked
        origin = {**self.origin, "personalized": {"beta": beta, "alpha": float(np.exp(min(log_alpha, 700.0)))}}
        return World(self.treated_rate, self.control_rate, propensity, self.users, self.items, origin=origin)

    def misspecified(self, xi: float) -> World:
        """Record wrong propensities: log-odds pulled by ξ toward their mean, Eq. (misIPS).

        Treatment still follows the true propensities; only what sampled logs *record* is shifted.
        """
        check_number("xi", xi, 0)
        log_odds = logit(self.propensity.astype(np.float64))
        if not np.isfinite(log_odds).all():
            raise InputError("a propensity of exactly 0 or 1 has no log-odds to shift; clip it first.")
        shifted = expit((1.0 - xi) * log_odds + xi * log_odds.mean())
        recorded = np.clip(shifted, EDGE, 1 - EDGE).astype(np.float32)
        return World(
            self.treated_rate, self.control_rate, self.propensity, self.users, self.items,
            recorded=recorded, origin={**self.origin, "misspecified": {"xi": xi}},
        )  # fmt: skip

    @classmethod
    def synthetic(
        cls,
        n_users: int,
        n_items: int,
        random_state: RandomState = None,
        *,
        rank: int = 8,
        purchase_rate: float = 0.05,
        effect: float = 0.7,
        effect_spread: float = 0.7,
        treated_share: float = 0.3,
        overlap: float = 0.1,
    ) -> World:
        """A made-up world: low-rank tastes, effects that differ between pairs, good overlap.

        The log-odds of a purchase without a recommendation are a user's and an item's level plus a low-rank taste; a
        recommendation adds a second low-rank part, so some effects are negative. Propensities follow tastes.

        Parameters
        ----------
        n_users, n_items : the size
        rank : of the tastes
        purchase_rate : around which purchases without a recommendation are
        effect, effect_spread : mean and spread of what a recommendation adds to the log-odds
        treated_share : around which propensities are
        overlap : propensities stay within [overlap, 1 − overlap]
        """
        made = {"n_users": n_users, "n_items": n_items, "rank": rank, "purchase_rate": purchase_rate,
                "effect": effect, "effect_spread": effect_spread, "treated_share": treated_share,
                "overlap": overlap}  # fmt: skip
        for name in ("n_users", "n_items", "rank"):
            check_integer(name, made[name])
        for name in ("effect", "effect_spread"):
            check_number(name, made[name], -700, 700)  # beyond, a probability is 0 or 1
        for name in ("purchase_rate", "treated_share", "overlap"):
            check_number(name, made[name], 0, 1)
        if n_users * n_items > MAX_PAIRS:
            raise InputError(f"n_users × n_items must be at most {MAX_PAIRS:,}, got {n_users:,} × {n_items:,}.")
        if purchase_rate in (0, 1):
            raise InputError(f"purchase_rate must be strictly between 0 and 1, got {purchase_rate}.")
        if not overlap < treated_share < 1 - overlap:
            raise InputError(f"treated_share ({treated_share}) must be between overlap ({overlap}) and 1 − overlap.")
        rng = generator(random_state)
        taste = _low_rank(rng, n_users, n_items, rank)
        levels = 0.5 * rng.standard_normal((n_users, 1)) + 0.7 * rng.standard_normal((1, n_items))
        control = logit(purchase_rate) + levels + taste
        lift = effect + effect_spread * _low_rank(rng, n_users, n_items, rank)
        exposure = 0.5 * levels + 0.5 * taste + 0.5 * rng.standard_normal((1, n_items))
        inner = (treated_share - overlap) / (1 - 2 * overlap)  # the mean of what is scaled to [overlap, 1 − overlap]
        shift = brentq(lambda c: float(expit(exposure + c).mean()) - inner, -60.0, 60.0)
        propensity = overlap + (1 - 2 * overlap) * expit(exposure + shift)
        return cls(
            expit(control + lift), expit(control), propensity, np.arange(n_users), np.arange(n_items),
            origin={"maker": "synthetic", **made},
        )  # fmt: skip

    @classmethod
    def from_table(cls, table: Any) -> World:
        """From a frame or a file with a row for every pair, as in the research format of logs.

        Its columns are ``idx_user, idx_item, propensity, prob_outcome_treated, prob_outcome_control``.
        """
        rule = replace(ANY_PROPENSITY, nullable=False)
        names = ("prob_outcome_treated", "prob_outcome_control", "propensity")
        rules = [replace(rule, column=name, required=True) for name in names]
        rows = read_cells(open_table(table), (None, None, None), rules)
        shape = (rows.catalog.n_users, rows.catalog.n_items)
        if len(rows.user) != shape[0] * shape[1]:
            raise InputError(
                f"a world needs a row for every pair, {shape[0]:,} users × {shape[1]:,} items; got "
                f"{len(rows.user):,} rows; add those of the missing pairs."
            )
        rates = [np.empty(shape, np.float32) for _ in names]
        for rate, name in zip(rates, names, strict=True):
            rate[rows.user, rows.item] = rows.numbers[name]
        users, items, _ = rows.catalog.lists
        return cls(rates[0], rates[1], rates[2], users, items, origin={"maker": "from_table"})

    @classmethod
    def like(
        cls,
        log: Log,
        random_state: RandomState = None,
        *,
        features: Features | None = None,
        threads: int | None = None,
    ) -> World:
        """A world fitted to a log: the same sizes, propensities and purchase rates, and effects that are known.

        It tells whether an estimator can order rankings at the overlap of this log: draw a log, estimate, and compare
        with the truth. The propensity of a pair is the mean of those in its rows; pairs without a row have that of
        the exposure model, at the level at which each item is shown as often as in the log. The purchase rate of each
        arm is an item's rate times a user's readiness, shrunk toward 1. All are rates of an eligible cell.
        ``origin["times"]`` is how many of them a pair has: a log as large as this one is
        ``world.sample(world.origin["times"])``.

        Parameters
        ----------
        random_state, features, threads : of the exposure model, as in ``propensity.fit``
        """
        check_instance("log", log, Log, "Log.from_frame or Log.read")
        shape = (log.n_users, log.n_items)
        if shape[0] * shape[1] > MAX_PAIRS:
            raise InputError(f"users × items must be at most {MAX_PAIRS:,}, got {shape[0]:,} × {shape[1]:,}.")
        cells = log.eligibility.cells_by_user, np.maximum(log.eligibility.cells_by_item, 1)
        model = propensities.fit(log, random_state, features=features, threads=threads)
        recorded = propensities.estimate(log, model=model, replace=False)
        pair = log.user.astype(np.int64) * shape[1] + log.item
        rows = np.bincount(pair, minlength=shape[0] * shape[1])
        shown = np.bincount(log.item, log.treated, shape[1])
        assert recorded.propensity is not None
        propensity = np.bincount(pair, recorded.propensity, len(rows)) / np.maximum(rows, 1)
        absent = np.flatnonzero(rows == 0)
        if len(absent):
            user, item = np.divmod(absent, shape[1])
            log_odds = logit(model.at(user, item, log.n_times // 2))
            wanted = shown / cells[1] * shape[0] - propensity.reshape(shape).sum(axis=0)
            shift = fit_intercepts(log_odds, np.ones(len(absent)), item, np.maximum(wanted, EDGE))
            propensity[absent] = expit(log_odds + shift[item])
        chance, rates = propensity.reshape(shape), []
        for arm, own in ((1, chance), (0, 1.0 - chance)):
            bought = np.flatnonzero((log.outcome == 1) & (log.treated == arm))
            rates.append(_fitted_rates(own, log.user[bought], log.item[bought], cells))
        times = max(1, round(log.cells / (shape[0] * shape[1])))
        origin = {"maker": "like", "times": times, "log": str(log)}
        return cls(rates[0], rates[1], chance, log.users, log.items, origin=origin)

    def describe(self) -> pd.DataFrame:
        """The paper's table "Statistics of datasets": one row with the means of μ^T, μ^C and P."""
        means = {
            name: float(getattr(self, name).mean(dtype=np.float64))
            for name in ("treated_rate", "control_rate", "propensity")
        }
        return pd.DataFrame([{"users": self.n_users, "items": self.n_items, **means}])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the world to one file with a checksum."""
        arrays = {name: getattr(self, name) for name in _STORED if getattr(self, name) is not None}
        types, ids = ids_to_arrays(self.users, self.items)
        storage.write(path, "world", {"origin": dict(self.origin), "ids": types}, {**ids, **arrays})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> World:
        """Read a world that ``save`` wrote."""
        metadata, arrays = storage.read(path, "world")
        origin = metadata.get("origin")
        if not isinstance(origin, dict):
            raise InputError(f"'{os.fsdecode(path)}' is not a valid taurank file: it has no origin; save it again.")
        users, items = ids_from_arrays(metadata.get("ids"), arrays, "user_id", "item_id")
        try:
            check_arrays(arrays, _STORED, {"users": len(users), "items": len(items)})
        except ValueError as error:
            raise InputError(f"'{os.fsdecode(path)}' is not a valid taurank file: {error}; save it again.") from error
        for rates in arrays.values():
            rates.flags.writeable = False  # no other reference exists, so no copy is needed
        return cls(users=users, items=items, origin=origin, **arrays)


def _checked_rates(name: str, values: npt.ArrayLike, shape: tuple[int, int]) -> Floats32:
    try:
        shared = isinstance(values, np.ndarray) and not values.flags.writeable
        rates: Floats32 = np.array(values, dtype=np.float32, order="C", copy=None if shared else True)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{name} must be an array of numbers, users × items.") from error
    if rates.shape != shape:
        raise InputError(f"{name} must have the shape users × items {shape}, got {rates.shape}.")
    wrong = ~((rates >= 0) & (rates <= 1))
    if wrong.any():
        raise InputError(
            f"{name} must be probabilities between 0 and 1; {plural(int(np.count_nonzero(wrong)), 'value')} "
            f"{'is' if np.count_nonzero(wrong) == 1 else 'are'} not, for example {rates[wrong][0]}."
        )
    if name in ("propensity", "recorded"):
        rates = np.clip(rates, np.float32(EDGE), np.float32(1 - EDGE))
    rates.flags.writeable = False
    return rates


def _fitted_rates(chance: Floats, user: Codes, item: Codes, cells: tuple[Longs, Longs]) -> Floats:
    """An item's rate times a user's readiness in an arm with these chances, from its purchases.

    In turns: rates with which each item has its purchases, shrunk toward the common rate by ITEM_PRIOR cells of the
    arm, and for each user the purchases over the expected ones, shrunk toward 1 by USER_PRIOR of them.
    """
    in_arm = chance.mean(axis=0) * cells[1]  # cells of each item
    bought = np.bincount(item, minlength=len(in_arm))
    common = bought.sum() / max(in_arm.sum(), 1.0)
    share = (bought + ITEM_PRIOR * common) / (in_arm + ITEM_PRIOR) * chance.mean(axis=0)
    of_user, ready = np.bincount(user, minlength=len(chance)), np.ones(len(chance))
    for _ in range(ROUNDS):
        rate = share / np.maximum(ready @ chance / len(ready), 1e-300)
        ready = (of_user + USER_PRIOR) / (chance @ rate / len(rate) * cells[0] + USER_PRIOR)
        ready /= ready.mean()
    rate = share / np.maximum(ready @ chance / len(ready), 1e-300)
    return np.asarray(np.clip(ready[:, None] * rate, 0.0, 1.0))


def _low_rank(rng: np.random.Generator, n_users: int, n_items: int, rank: int) -> Floats:
    """A users × items array of unit variance and the given rank."""
    users, items = rng.standard_normal((n_users, rank)), rng.standard_normal((n_items, rank))
    return np.asarray(users @ items.T / np.sqrt(rank))
