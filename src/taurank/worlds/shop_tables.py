"""The made-up shop's export: tables as a shop has them, written block by block, with the truth beside them.

Messy tables have what real ones have: the shop's own column names, exact duplicates, nulls, time zones that differ,
a week cut short, sold items that the catalog lacks, orders without a visit. Clean tables have none of it. The shop,
its slates and its purchases are the same in both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from taurank._choices import Recorded
from taurank._types import Floats, Longs
from taurank.data.files import atomic_path, write_text
from taurank.worlds.shop import SEGMENTS, SLOTS, Block, Shop, names
from taurank.worlds.shop_visits import intended, rates_of_pairs

START = np.datetime64("2026-01-05T00:00:00", "us")  # a Monday
ZONE = "Europe/Berlin"
WEEK = 7 * 86400
LAST_DAYS = 3 * 86400  # what messy tables contain of the week after the last
BLOCK = 8192  # users
DUPLICATES, NULLS, UNRECORDED, UNKNOWN, NO_VISIT = 0.01, 0.003, 0.05, 0.005, 0.005
MESSY_NAMES = {"user_id": "customer", "item_id": "sku", "propensity": "chance"}
CLOCKS = {"impressions": "shown_at", "visits": "visited_at", "purchases": "bought_at"}  # messy names of timestamps

_PLAN = """\
[tables]
impressions = "impressions.parquet"
purchases = "purchases.parquet"
visits = "visits.parquet"
candidates = "items.parquet"
users = "users.parquet"
categories = "tastes.parquet"
today = "today.parquet"

{columns}period = "week"
timezone = "Europe/Berlin"

[pilot]
segment = "segment"
"""
_MESSY_COLUMNS = """\
[columns]
user_id = "customer"
item_id = "sku"
propensity = "chance"
"impressions.timestamp" = "shown_at"
"purchases.timestamp" = "bought_at"
"visits.timestamp" = "visited_at"

[log]
nulls = "drop"
"""


def write_tables(
    shop: Shop,
    folder: str | os.PathLike[str],
    *,
    messy: bool = True,
    recorded: Recorded = "propensity",
    threads: int | None = None,
) -> dict[str, int]:
    """Write the shop's tables into ``folder``; returns the number of rows of each.

    ``impressions``, ``visits``, ``purchases``, ``items``, ``users``, ``tastes`` (the shop's scores of each user's
    categories) and ``today`` (the shop's own ranking) are what a shop has. ``truth.parquet`` (week, true propensity
    and effect of every logged cell) and ``shop.json`` (``Shop.load``) are what it does not have.

    With ``recorded="propensity"`` the impressions contain the chance that the item was in the slate. Memory is
    bounded by a block of users; the result does not depend on the number of threads.
    """
    out, rows = Path(folder), dict[str, int]()
    with ExitStack() as stack:
        writers: dict[str, pq.ParquetWriter] = {}
        for name, frame in _tables(shop, messy, recorded, threads):
            schema = writers[name].schema if name in writers else None
            table = pa.Table.from_pandas(frame, schema, preserve_index=False)
            if name not in writers:
                path = stack.enter_context(atomic_path(out / f"{name}.parquet"))
                writers[name] = stack.enter_context(pq.ParquetWriter(path, table.schema, compression="zstd"))
            writers[name].write_table(table)
            rows[name] = rows.get(name, 0) + len(table)
    shop.save(out / "shop.json")
    write_text(out / "pilot.toml", _PLAN.format(columns=_MESSY_COLUMNS if messy else "[log]\n"))
    return rows


def _tables(shop: Shop, messy: bool, recorded: Recorded, threads: int | None) -> Iterator[tuple[str, pd.DataFrame]]:
    """Parts of all tables, block by block."""
    p, keys = shop.parameters, MESSY_NAMES if messy else {}
    for begin in range(0, shop.n_users, BLOCK):
        end = min(begin + BLOCK, shop.n_users)
        block = _Events(shop, begin, end)
        truth = block.truth(threads)
        visits, impressions, purchases = block.events(truth, threads)
        if recorded == "nothing":
            impressions = impressions.drop(columns="propensity")
        elif messy:
            impressions["propensity"] = impressions["propensity"].mask(
                block.numbers(len(impressions), 10) < UNRECORDED
            )
        for name, frame in (("visits", visits), ("impressions", impressions), ("purchases", purchases)):
            last = shop.weeks * WEEK + (LAST_DAYS if messy else 0)
            frame = frame[frame["timestamp"] < last].reset_index(drop=True)
            yield name, block.messy(name, frame) if messy else frame.assign(timestamp=_local_time(frame))
        yield "truth", truth[truth["week"] < shop.weeks]
        users = names("c", np.arange(begin, end))
        segments = pd.DataFrame({"user_id": users, "segment": np.array(SEGMENTS)[p.segment[begin:end]]})
        yield "users", segments.rename(columns=keys)
        tastes = {
            "user_id": np.repeat(users, p.categories.shape[1]),
            "category": names("k", p.categories[begin:end].ravel()), "score": p.affinity[begin:end].ravel(),
        }  # fmt: skip
        yield "tastes", pd.DataFrame(tastes).rename(columns=keys)
        yield "today", shop.today(begin=begin, end=end)
    items = {
        "item_id": names("p", np.arange(shop.n_items)), "category": names("k", p.category), "price": shop.price,
        "score": p.score, "bestseller": np.isin(np.arange(shop.n_items), p.bestsellers),
    }  # fmt: skip
    yield "items", pd.DataFrame(items).rename(columns=keys)


def _local_time(frame: pd.DataFrame) -> Longs:
    """The clock, which counts seconds since the first Monday."""
    return np.asarray(START + frame["timestamp"].to_numpy().astype("timedelta64[s]"))


class _Events(Block):
    """A block of users as tables."""

    def __init__(self, shop: Shop, begin: int, end: int) -> None:
        super().__init__(shop, begin, end, shop.weeks + 1)  # messy tables contain the first days of one more week
        self.shop, self.users, back = shop, np.arange(begin, end), self.back
        self.arrived = self.week * WEEK + (self.numbers(len(self.week), 1) * (WEEK - 3600)).astype(np.int64)
        clock = np.r_[self.arrived, self.arrived[back] + self._later(back, self.arrived[back], 3)]
        order = np.argsort(clock, kind="stable")
        last = np.cumsum(self.n_slates) - 1  # of each visit
        self.session, self.clock = np.r_[np.arange(len(self.user)), back][order], clock[order]  # some visits are two
        self.slate = np.r_[last - self.n_slates + 1, last[back]][order]  # of each session

    def numbers(self, rows: int, purpose: int) -> Floats:
        """Uniform numbers for what neither slates nor purchases depend on: clocks and flaws."""
        return np.random.default_rng([self.shop.seed, int(self.users[0]), purpose]).random(rows)

    def _later(self, visit: Longs, clock: Longs, purpose: int) -> Longs:
        """Seconds from the clock to some time in the rest of the visit's week."""
        return (self.numbers(len(visit), purpose) * ((self.week[visit] + 1) * WEEK - 60 - clock)).astype(np.int64)

    def truth(self, threads: int | None) -> pd.DataFrame:
        """Every logged cell, slates first in their order, with its true propensity and effect."""
        p, v, visit, item = self.shop.parameters, self.shop.violations, self.cell_visit, self.cell_item
        user = self.user[visit].astype(np.int32)
        control, treated = rates_of_pairs(p, user, item)
        wanted = [intended(p, v, self.shop.seed, *one) for one in zip(self.user, self.week, strict=True)]
        chance = self.shop.inclusion(user, item, np.array(wanted, np.int64)[visit], threads)
        return pd.DataFrame({
            "user_id": names("c", user), "item_id": names("p", item), "week": self.week[visit],
            "propensity": 1.0 - (1.0 - chance) ** self.n_slates[visit] if v.every_visit else chance,
            "effect": treated - control,
        })  # fmt: skip

    def events(self, truth: pd.DataFrame, threads: int | None) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        """Visits, impressions and purchases. What a shop records of an intent is nothing: chances ignore it."""
        n, arrived, shop = len(self.bought), self.arrived[self.visit_of], self.shop
        visits = pd.DataFrame({"user_id": names("c", self.user[self.session]), "timestamp": self.clock})
        chances = truth["propensity"].to_numpy()[: self.slates.size]
        if shop.violations.intent:
            user = np.repeat(self.user, self.n_slates * SLOTS).astype(np.int32)
            chances = shop.inclusion(user, self.slates.ravel(), threads=threads)
        impressions = pd.DataFrame({
            "user_id": names("c", np.repeat(self.user[self.session], SLOTS)),
            "item_id": names("p", self.slates[self.slate].ravel()),
            "slot": np.tile(np.arange(1, SLOTS + 1, dtype=np.int8), len(self.session)),
            "propensity": chances.reshape(self.slates.shape)[self.slate].ravel(),
            "timestamp": np.repeat(self.clock, SLOTS),
        })  # fmt: skip
        quantity = 1 + (self.numbers(n, 5) < 0.15).astype(np.int8)
        purchases = pd.DataFrame({
            "user_id": names("c", self.user[self.visit_of]), "item_id": names("p", self.bought), "quantity": quantity,
            "amount": np.round(shop.price[self.bought] * quantity, 2),
            "timestamp": arrived + self._later(self.visit_of, arrived, 4),
        })  # fmt: skip
        back = purchases[self.shown & (self.numbers(n, 6) < shop.violations.returns)]
        back = back.assign(quantity=-back["quantity"], amount=-back["amount"], timestamp=back["timestamp"] + 60)
        return visits, impressions, pd.concat([purchases, back], ignore_index=True) if len(back) else purchases

    def messy(self, name: str, frame: pd.DataFrame) -> pd.DataFrame:
        """The table with flaws, in its own time zone, under the shop's own column names."""
        if name == "purchases":  # gift cards, which are not in the catalog, and orders by telephone without a visit
            cards = frame[self.numbers(len(frame), 11) < UNKNOWN]
            cards = cards.assign(item_id=names("gift-", np.arange(len(cards)) % 5))
            weeks, orders = self.shop.weeks, frame[self.numbers(len(frame), 12) < NO_VISIT]
            user = self.users[0] + (self.numbers(len(orders), 13) * len(self.users)).astype(np.int64)
            clock = (self.numbers(len(orders), 14) * weeks * WEEK).astype(np.int64)
            visited = np.isin(user * (weeks + 1) + clock // WEEK, self.user * (weeks + 1) + self.week)
            orders = orders.assign(user_id=names("c", user), timestamp=clock)[~visited]
            frame = pd.concat([frame, cards, orders], ignore_index=True)
        purpose = 10 * (2 + ("impressions", "visits", "purchases").index(name))
        for number, column in enumerate(c for c in ("user_id", "item_id") if c in frame):
            lost = self.numbers(len(frame), purpose + number) < NULLS  # visitors who did not log in, lost items
            frame[column] = frame[column].astype(object).mask(lost, None)
        copies = 1 + (self.numbers(len(frame), purpose + 5) < DUPLICATES)  # the export wrote some rows twice
        frame = frame.loc[frame.index.repeat(copies)]
        local = pd.DatetimeIndex(_local_time(frame)).tz_localize(ZONE, ambiguous="NaT", nonexistent="shift_forward")
        frame = frame.assign(timestamp=local.tz_convert(ZONE if name == "purchases" else "UTC"))
        return frame.rename(columns={**MESSY_NAMES, "timestamp": CLOCKS[name]})
