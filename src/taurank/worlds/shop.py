"""A made-up shop: the tables a shop exports, and the truth that no shop has.

A user visits in some weeks. In each of them she sees one slate of ten items, drawn by a softmax without replacement
over her own three categories and the shop's bestsellers (again, if she comes back in the same week). What users like
they also buy without being shown it, and that is what the shop's scores reward; the effect of showing an item is
another property. Outside her categories and the bestsellers a user buys nothing, shown or not.

``Shop.draw(users, items, weeks, seed)`` makes one from a few numbers for each user and item; nothing has the size
users × items. ``taurank data shop`` writes its tables with ``taurank.worlds.shop_tables.write_tables``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from taurank._threads import map_blocks
from taurank._validation import check_integer
from taurank.data import storage
from taurank.data.ids import Codes, Ids
from taurank.data.log import Log
from taurank.data.storage import Array, check_arrays
from taurank.errors import InputError
from taurank.estimation.gains import Gains
from taurank.worlds import shop_draws
from taurank.worlds.shop_draws import Parameters

Floats = npt.NDArray[np.float64]

SEGMENTS = ("new", "regular", "loyal")
SHARES, VISIT_RATES, LIFTS = (0.4, 0.4, 0.2), (0.18, 0.32, 0.55), (0.4, 0.0, -0.5)
SLOTS, OWN, FACTORS, BESTSELLERS = 10, 3, 4, 20
MIN_ITEMS, MAX_USERS, MAX_ITEMS = 120, 10**7, 10**6
BOUGHT_ANYWAY, MEAN_EFFECT = 0.8, 0.04  # purchases of a week without a slate; mean effect of a candidate

_STORED = {
    "segment": Array("int64", ("users",), below="segments"),
    "shelves": Array("int32", ("users", OWN), below="categories"),
    "affinity": Array("float64", ("users", OWN)),
    "user_taste": Array("float64", ("users", "factors")),
    "item_taste": Array("float64", ("items", "factors")),
    "category": Array("int32", ("items",), below="categories"),
    "score": Array("float64", ("items",)),
    "staple": Array("float64", ("items",)),
    "impulse": Array("float64", ("items",)),
    "lift": Array("float64", ("segments",)),
    "visit_rate": Array("float64", ("segments",), minimum=0.0, maximum=1.0),
    "members": Array("int32", ("items",), below="items"),
    "first_member": Array("int64", ("categories + 1",), offsets_of="items"),
    "bestsellers": Array("int32", ("bestsellers",), below="items"),
    "price": Array("float64", ("items",), minimum=0.0),
}


@dataclass(frozen=True, eq=False)
class Shop:
    """The parameters of a made-up shop, and the truth of any user and item."""

    parameters: Parameters
    price: Floats
    weeks: int
    seed: int

    @classmethod
    def draw(cls, users: int = 2000, items: int = 300, weeks: int = 10, seed: int = 0) -> Shop:
        """A shop of this size; the same arguments make the same shop."""
        check_integer("users", users, 1, MAX_USERS)
        check_integer("items", items, MIN_ITEMS, MAX_ITEMS)
        check_integer("weeks", weeks, 1, 520)
        check_integer("seed", seed, 0, 2**63 - 1)
        random = np.random.default_rng(seed)
        goods = _items(items, random)
        price: Floats = np.round(np.exp(random.normal(2.3, 0.7, items)), 2).astype(np.float64)
        people = _users(users, len(goods["first_member"]) - 1, random)
        parameters = Parameters(
            **people, **goods, lift=np.array(LIFTS), visit_rate=np.array(VISIT_RATES), slots=SLOTS
        )
        return cls(_calibrated(parameters, random), price, weeks, seed)

    @property
    def n_users(self) -> int:
        return len(self.parameters.segment)

    @property
    def n_items(self) -> int:
        return len(self.parameters.category)

    @cached_property
    def users(self) -> Ids:
        return Ids(names("c", np.arange(self.n_users)), "user_id")

    @cached_property
    def items(self) -> Ids:
        return Ids(names("p", np.arange(self.n_items)), "item_id")

    @cached_property
    def visited(self) -> npt.NDArray[np.bool_]:
        """In which week each user visits: users × weeks."""
        visited = np.zeros((self.n_users, self.weeks), np.bool_)
        shop_draws.visits(self.parameters, self.seed, self.weeks, visited, 0, self.n_users)
        return visited

    def __repr__(self) -> str:
        return f"Shop({self.n_users:,} users, {self.n_items:,} items, {self.weeks} weeks, seed {self.seed})"

    def rates(self, users: Any, items: Any) -> tuple[Floats, Floats]:
        """The purchase rates of pairs of ids in a week with a visit, if not shown (μ^C) and if shown (μ^T)."""
        user, item = self._codes(users, items)
        control, treated = np.empty(len(user)), np.empty(len(user))
        shop_draws.rates_of_pairs(self.parameters, user, item, control, treated, 0, len(user))
        return control, treated

    def effect(self, users: Any, items: Any) -> Floats:
        """The true effect τ = μ^T − μ^C of showing an item in a week with a visit, for pairs of ids."""
        control, treated = self.rates(users, items)
        return treated - control

    def propensity(self, users: Any, items: Any, threads: int | None = None) -> Floats:
        """The chance that an item is in the slate of a week with a visit, for pairs of ids; 0 if it cannot be."""
        return self._inclusion(*self._codes(users, items), threads)

    def with_propensity(self, log: Log, threads: int | None = None) -> Log:
        """The log with the true propensities. Rows of weeks without a visit must have been set aside."""
        lookup = self.users.encode(log.users.values), self.items.encode(log.items.values)
        chance = self._inclusion(lookup[0][log.user], lookup[1][log.item], threads)
        if not (chance > 0).all():
            raise InputError(f"{np.count_nonzero(chance <= 0):,} rows of the log have items that were never drawn.")
        return log.with_propensity(chance)

    def value(self, lists: Any, k: int = SLOTS, by: str | None = None) -> Any:
        """The extra purchases in a week with a visit if the first ``k`` items of each user's list are shown.

        ``lists`` is a frame ``user_id, item_id`` with ``rank`` or ``score``, as ``recommend`` returns. A user without
        a list counts as 0. With ``by="segment"`` a Series.
        """
        pairs = first_of_each(lists, k)
        user = self.users.encode_known(pairs["user_id"].array)
        per_user = np.bincount(user, self.effect(pairs["user_id"].array, pairs["item_id"].array), self.n_users)
        visits = self.visited.sum(1)
        if by is None:
            return float(per_user @ visits / visits.sum())
        if by != "segment":
            raise InputError(f"by must be None or 'segment', got {by!r}.")
        segment = self.parameters.segment
        totals = np.bincount(segment, per_user * visits, len(SEGMENTS)) / np.bincount(segment, visits, len(SEGMENTS))
        return pd.Series(totals, index=pd.Index(SEGMENTS, name="segment"), name="value")

    def gains(self, log: Log, *lists: Any, k: int = SLOTS) -> Gains:
        """True effects for ``taurank.evaluate``: of the cells that any of the ``lists`` ranks among its first ``k``.

        Metrics that look no further than ``k`` are exact for these lists; nothing has the size users × items.
        The log must have one time for each week, in order; if it has visits, means are over them.
        """
        if log.n_times != self.weeks:
            raise InputError(f"the log has {log.n_times} times, the shop has {self.weeks} weeks.")
        pairs = pd.concat([first_of_each(one, k) for one in lists])[["user_id", "item_id"]].drop_duplicates()
        effect = self.effect(pairs["user_id"].array, pairs["item_id"].array)
        user, item = log.users.encode(pairs["user_id"].array), log.items.encode(pairs["item_id"].array)
        known = (user >= 0) & (item >= 0)
        visited = self.visited[self.users.encode_known(pairs["user_id"].array[known])]
        row, week = np.nonzero(visited)
        return Gains(
            log.catalog, user[known][row], item[known][row], week.astype(np.int32), effect[known][row],
            "truth", kind="effect",
        ).within(log)  # fmt: skip

    def today(self, top: int = 2 * SLOTS, begin: int = 0, end: int | None = None) -> pd.DataFrame:
        """What the shop ranks first today: the items with the largest own scores, for some users."""
        end = self.n_users if end is None else end
        items, scores = np.empty((end - begin, top), np.int32), np.empty((end - begin, top))
        shop_draws.best_scores(self.parameters, begin, items, scores, 0, end - begin)
        users = np.repeat(np.arange(begin, end), top)
        return pd.DataFrame(
            {"user_id": names("c", users), "item_id": names("p", items.ravel()), "score": scores.ravel()}
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the shop's parameters, which are its truth, to one file with a checksum."""
        arrays = {name: getattr(self.parameters, name) for name in _STORED if name != "price"}
        storage.write(path, "shop", {"weeks": self.weeks, "seed": self.seed}, {**arrays, "price": self.price})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Shop:
        """Read a shop that ``save`` wrote."""
        facts, arrays = storage.read(path, "shop")
        try:
            check_arrays(arrays, _STORED, {"segments": len(SEGMENTS)})
            weeks, seed = (check_integer(name, facts.get(name), 0, 2**63 - 1) for name in ("weeks", "seed"))
        except (ValueError, InputError) as error:
            raise InputError(f"'{os.fsdecode(path)}' is not a valid shop: {error}; write it again.") from error
        price = arrays.pop("price")
        return cls(Parameters(**arrays, slots=SLOTS), price, weeks, seed)

    def _codes(self, users: Any, items: Any) -> tuple[Codes, Codes]:
        user, item = self.users.encode_known(users), self.items.encode(items)
        if len(user) != len(item):
            raise InputError(f"users and items must be pairs, got {len(user):,} users and {len(item):,} items.")
        if (item < 0).any():
            raise InputError(f"{np.count_nonzero(item < 0):,} items are not in the shop's catalog.")
        return user, item

    def _inclusion(self, user: Codes, item: Codes, threads: int | None) -> Floats:
        """Pairs in any order; each pair is computed once, users are spread over threads."""
        distinct, back = np.unique(user.astype(np.int64) * self.n_items + item, return_inverse=True)
        chance = np.empty(len(distinct))
        of_user, of_item = distinct // self.n_items, (distinct % self.n_items).astype(np.int32)
        edges = np.r_[np.flatnonzero(np.r_[True, np.diff(of_user) > 0]), len(distinct)]
        if len(distinct):
            map_blocks(
                lambda begin, end: shop_draws.inclusion_of_pairs(
                    self.parameters, of_user, of_item, chance, edges[begin], edges[end]
                ), len(edges) - 1, threads,
            )  # fmt: skip
        return chance[back]


def first_of_each(lists: Any, k: int) -> pd.DataFrame:
    """The first ``k`` rows of each user of a frame with ``user_id, item_id`` and ``rank`` or ``score``."""
    frame = lists if isinstance(lists, pd.DataFrame) else pa.table(lists).to_pandas()
    missing = {"user_id", "item_id"} - set(frame.columns)
    if missing or not {"rank", "score"} & set(frame.columns):
        raise InputError("lists need the columns user_id, item_id and rank or score.")
    by_rank = "rank" in frame.columns
    ordered = frame.sort_values("rank" if by_rank else "score", ascending=by_rank, kind="stable")
    return ordered.groupby("user_id", sort=False, observed=True).head(k)


def names(letter: str, codes: npt.NDArray[Any]) -> pa.Array:
    """Ids as a shop has them: c0000017, p0000003."""
    distinct, back = np.unique(codes, return_inverse=True)
    return pa.DictionaryArray.from_arrays(back, [f"{letter}{code:07d}" for code in distinct]).cast(pa.string())


def _items(n: int, random: np.random.Generator) -> dict[str, Any]:
    """Categories, tastes, and two opposed properties: staples are bought anyway, impulse items because shown."""
    n_categories = int(np.clip(n // 150, 8, 150))
    category = random.permutation(np.arange(n) % n_categories).astype(np.int32)
    of_category = random.normal(0.0, [[0.3], [0.5]], (2, n_categories))
    staple = of_category[0, category] + random.normal(0.0, 0.9, n)
    impulse = of_category[1, category] - 0.3 * staple + random.normal(0.0, 0.6, n)
    score = 0.5 * staple + random.normal(0.0, 0.4, n)
    members = np.argsort(category, kind="stable").astype(np.int32)
    return {
        "item_taste": random.normal(0.0, 1.0, (n, FACTORS)), "category": category, "score": score, "staple": staple,
        "impulse": impulse, "members": members,
        "first_member": np.r_[0, np.cumsum(np.bincount(category, minlength=n_categories))],
        "bestsellers": np.argsort(-staple, kind="stable")[:BESTSELLERS].astype(np.int32),
    }  # fmt: skip


def _users(n: int, n_categories: int, random: np.random.Generator) -> dict[str, Any]:
    step = random.integers(1, n_categories // OWN, (n, OWN))  # three steps never go around: no category twice
    shelves = (random.integers(n_categories, size=(n, 1)) + np.cumsum(step, 1)) % n_categories
    return {
        "segment": random.choice(len(SEGMENTS), n, p=SHARES), "shelves": shelves.astype(np.int32),
        "affinity": random.normal(0.0, 0.5, (n, OWN)), "user_taste": random.normal(0.0, 0.2, (n, FACTORS)),
    }  # fmt: skip


def _calibrated(parameters: Parameters, random: np.random.Generator) -> Parameters:
    """Shift both kinds of rates, so that purchases and effects have the same size in every shop."""
    parameters = parameters._replace(
        staple=parameters.staple - 9.0, impulse=parameters.impulse - 9.0
    )  # off the limit
    bought, effects = [], []
    for user in random.integers(len(parameters.segment), size=200):
        own = shop_draws.candidates(parameters, user)
        control, treated = np.empty(len(own)), np.empty(len(own))
        shop_draws.rates_of_pairs(parameters, np.full(len(own), user), own, control, treated, 0, len(own))
        bought.append(control.sum())
        effects.append((treated - control).mean())
    return parameters._replace(
        staple=parameters.staple + np.log(BOUGHT_ANYWAY / np.mean(bought)),
        impulse=parameters.impulse + np.log(MEAN_EFFECT / np.mean(effects)),
    )
