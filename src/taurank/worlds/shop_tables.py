"""The made-up shop's export: tables as a shop has them, written block by block, with the truth beside them.

Messy tables have what real ones have: the shop's own column names, exact duplicates, nulls, time zones that differ,
a week cut short, sold items that the catalog lacks, orders without a visit. Clean tables have none of it. The shop,
its slates and its purchases are the same in both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from taurank._choices import Recorded
from taurank._threads import map_blocks
from taurank.data.files import atomic_path
from taurank.worlds import shop_draws
from taurank.worlds.shop import SEGMENTS, Shop, names

Progress = Callable[[int, int], None]

START = np.datetime64("2026-01-05T00:00:00", "s")  # a Monday
ZONE = "Europe/Berlin"
WEEK = 7 * 86400
LAST_DAYS = 3 * 86400  # what messy tables contain of the week after the last
BLOCK = 8192  # users
AGAIN = 0.3  # of the visitors come back in the same week, and see the same slate
DUPLICATES, NULLS, UNRECORDED, UNKNOWN, NO_VISIT = 0.01, 0.003, 0.05, 0.005, 0.005
MESSY_NAMES = {
    "user_id": "customer", "item_id": "sku", "propensity": "chance",
    "impressions": "shown_at", "visits": "visited_at", "purchases": "bought_at",
}  # fmt: skip

_CLEAN_PLAN = """\
[tables]
impressions = "impressions.parquet"
purchases = "purchases.parquet"
visits = "visits.parquet"
candidates = "items.parquet"
users = "users.parquet"
categories = "tastes.parquet"
today = "today.parquet"

[log]
period = "week"
timezone = "Europe/Berlin"

[pilot]
segment = "segment"
"""
_MESSY_PLAN = _CLEAN_PLAN.replace(
    "[log]\n",
    """\
[columns]
user_id = "customer"
item_id = "sku"
propensity = "chance"
"impressions.timestamp" = "shown_at"
"purchases.timestamp" = "bought_at"
"visits.timestamp" = "visited_at"

[log]
nulls = "drop"
""",
)


def write_tables(
    shop: Shop,
    folder: str | os.PathLike[str],
    *,
    messy: bool = True,
    recorded: Recorded = "propensity",
    threads: int | None = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Write the shop's tables into ``folder``; returns the number of rows of each.

    ``impressions``, ``visits``, ``purchases``, ``items``, ``users``, ``tastes`` (the shop's scores of each user's
    categories) and ``today`` (the shop's own ranking) are what a shop has. ``truth.parquet`` (week, true propensity
    and effect of every logged cell) and ``shop.truth`` (``Shop.load``) are what it does not have.

    ``recorded`` is what the impressions contain about the draw: "propensity", the chance that the item was in the
    slate; "slots", the chance of each slot's draw, given the slots above it; "nothing". Memory is bounded by a block
    of users; the result does not depend on the number of threads.
    """
    out = Path(folder)
    counts: dict[str, int] = {}
    with ExitStack() as stack:
        tables = {
            name: stack.enter_context(_Table(out / f"{name}.parquet"))
            for name in ("impressions", "visits", "purchases", "truth", "users", "tastes", "today")
        }
        for begin in range(0, shop.n_users, BLOCK):
            end = min(begin + BLOCK, shop.n_users)
            drawn = _Drawn.of(shop, begin, end, threads)
            for name, part in _parts(shop, drawn, messy, recorded, threads):
                tables[name].write(part)
            if progress:
                progress(end, shop.n_users)
        counts = {name: table.rows for name, table in tables.items()}
    counts["items"] = _write(out / "items.parquet", _items(shop, messy))
    shop.save(out / "shop.truth")
    with atomic_path(out / "pilot.toml") as temporary:
        temporary.write_text(_MESSY_PLAN if messy else _CLEAN_PLAN)
    return counts


class _Table:
    """A Parquet file that grows by parts, and appears when it is complete."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, 0
        self.writer: pq.ParquetWriter | None = None
        self.stack = ExitStack()

    def __enter__(self) -> _Table:
        self.temporary = self.stack.enter_context(atomic_path(self.path))
        return self

    def write(self, part: pa.Table) -> None:
        if self.writer is None:
            self.writer = pq.ParquetWriter(self.temporary, part.schema, compression="zstd")
        self.writer.write_table(part)
        self.rows += len(part)

    def __exit__(self, *error: Any) -> None:
        if self.writer is not None:
            self.writer.close()
        self.stack.__exit__(*error)


def _write(path: Path, table: pa.Table) -> int:
    with _Table(path) as out:
        out.write(table)
    return len(table)


@dataclass(frozen=True)
class _Drawn:
    """The visits of a block of users, their slates, and what was bought in them."""

    first_user: int
    users: npt.NDArray[np.int64]  # of the block
    user: npt.NDArray[np.int64]  # of each visit
    week: npt.NDArray[np.int64]
    slates: npt.NDArray[np.int32]  # (visits, slots)
    chances: npt.NDArray[np.float64]
    visit_of: npt.NDArray[np.int64]  # of each purchase
    bought: npt.NDArray[np.int32]
    shown: npt.NDArray[np.bool_]  # was what was bought in the slate?
    seed: int

    @classmethod
    def of(cls, shop: Shop, begin: int, end: int, threads: int | None) -> _Drawn:
        weeks = shop.weeks + 1  # messy tables contain the first days of one more
        visited = np.zeros((end - begin, weeks), np.bool_)
        shop_draws.visits(shop.parameters, shop.seed, weeks, visited, begin, end)
        row, week = np.nonzero(visited)
        start = np.r_[0, np.cumsum(visited.sum(1))]
        n, slots = len(row), shop.parameters.slots
        slates, chances = np.empty((n, slots), np.int32), np.empty((n, slots))

        def draw(numbers: Any, bought: Any, shown: Any) -> None:
            map_blocks(
                lambda first, last: shop_draws.draw_weeks(
                    shop.parameters, shop.seed, visited, begin, start, slates, chances, numbers, bought, shown,
                    first, last,
                ), end - begin, threads,
            )  # fmt: skip

        counts = np.zeros(n, np.int64)
        draw(counts, np.empty(0, np.int32), np.empty(0, np.bool_))
        bought, shown = np.empty(counts.sum(), np.int32), np.zeros(counts.sum(), np.bool_)
        if len(bought):
            draw(np.cumsum(counts) - counts, bought, shown)
        return cls(
            begin, np.arange(begin, end), row + begin, week, slates, chances,
            np.repeat(np.arange(n), counts), bought, shown, shop.seed,
        )  # fmt: skip

    def numbers(self, rows: int, purpose: int) -> npt.NDArray[np.float64]:
        """Uniform numbers for what neither slates nor purchases depend on: clocks and flaws."""
        return np.random.default_rng([self.seed, self.first_user, purpose]).random(rows)


def _parts(
    shop: Shop, drawn: _Drawn, messy: bool, recorded: Recorded, threads: int | None
) -> Iterator[tuple[str, pa.Table]]:
    """The block's rows of every table."""
    arrived = drawn.week * WEEK + (drawn.numbers(len(drawn.week), 1) * (WEEK - 3600)).astype(np.int64)
    left = (drawn.week + 1) * WEEK - 60 - arrived
    back = np.flatnonzero(drawn.numbers(len(arrived), 2) < AGAIN)
    again = arrived[back] + (drawn.numbers(len(back), 3) * left[back]).astype(np.int64)
    visit, clock = np.r_[np.arange(len(arrived)), back], np.r_[arrived, again]
    order = np.argsort(clock, kind="stable")
    truth = _truth(shop, drawn, threads)
    flaws = _Flaws(drawn, shop.weeks, messy)
    yield "visits", flaws.table("visits", clock[order], {"user_id": names("c", drawn.user[visit[order]])})
    yield "impressions", _impressions(shop, drawn, flaws, visit[order], clock[order], recorded, truth)
    bought_at = arrived[drawn.visit_of] + (drawn.numbers(len(drawn.bought), 4) * left[drawn.visit_of]).astype(
        np.int64
    )
    yield "purchases", _purchases(shop, drawn, flaws, bought_at)
    yield "truth", truth.filter(pc.less(truth["week"], shop.weeks))
    yield from _people(shop, drawn, messy)


def _truth(shop: Shop, drawn: _Drawn, threads: int | None) -> pa.Table:
    """Every logged cell, slates first in their order, with its true propensity and effect."""
    slots = drawn.slates.shape[1]
    extra = ~drawn.shown
    user = np.r_[np.repeat(drawn.user, slots), drawn.user[drawn.visit_of[extra]]]
    week = np.r_[np.repeat(drawn.week, slots), drawn.week[drawn.visit_of[extra]]]
    item = np.r_[drawn.slates.ravel(), drawn.bought[extra]]
    users, items = names("c", user), names("p", item)
    return pa.table({
        "user_id": users, "item_id": items, "week": week,
        "propensity": shop.propensity(users, items, threads), "effect": shop.effect(users, items),
    })  # fmt: skip


def _impressions(
    shop: Shop, drawn: _Drawn, flaws: _Flaws, visit: Any, clock: Any, recorded: Recorded, truth: pa.Table
) -> pa.Table:
    slots = drawn.slates.shape[1]
    items = drawn.slates[visit].ravel()
    columns: dict[str, Any] = {
        "user_id": names("c", np.repeat(drawn.user[visit], slots)), "item_id": names("p", items),
        "slot": pa.array(np.tile(np.arange(1, slots + 1, dtype=np.int8), len(visit))),
    }  # fmt: skip
    if recorded == "propensity":
        chance = truth["propensity"].to_numpy()[: drawn.slates.size].reshape(drawn.slates.shape)
        columns["propensity"] = pa.array(chance[visit].ravel(), mask=flaws.unrecorded(len(items)))
    elif recorded == "slots":
        columns["slot_probability"] = drawn.chances[visit].ravel()
    return flaws.table("impressions", np.repeat(clock, slots), columns)


def _purchases(shop: Shop, drawn: _Drawn, flaws: _Flaws, clock: Any) -> pa.Table:
    quantity = 1 + (drawn.numbers(len(clock), 5) < 0.15).astype(np.int8)
    return flaws.table("purchases", clock, {
        "user_id": names("c", drawn.user[drawn.visit_of]), "item_id": names("p", drawn.bought),
        "quantity": quantity, "amount": np.round(shop.price[drawn.bought] * quantity, 2),
    })  # fmt: skip


def _people(shop: Shop, drawn: _Drawn, messy: bool) -> Iterator[tuple[str, pa.Table]]:
    begin, end = drawn.first_user, drawn.first_user + len(drawn.users)
    p = shop.parameters
    key = MESSY_NAMES["user_id"] if messy else "user_id"
    users = names("c", drawn.users)
    segments = pa.DictionaryArray.from_arrays(p.segment[begin:end], list(SEGMENTS)).cast(pa.string())
    yield "users", pa.table({key: users, "segment": segments})
    own = p.shelves.shape[1]
    yield "tastes", pa.table({
        key: names("c", np.repeat(drawn.users, own)), "category": _categories(p.shelves[begin:end].ravel()),
        "score": p.affinity[begin:end].ravel(),
    })  # fmt: skip
    yield "today", pa.Table.from_pandas(shop.today(begin=begin, end=end), preserve_index=False)


def _items(shop: Shop, messy: bool) -> pa.Table:
    p = shop.parameters
    key = MESSY_NAMES["item_id"] if messy else "item_id"
    best = np.isin(np.arange(shop.n_items), p.bestsellers)
    return pa.table({
        key: names("p", np.arange(shop.n_items)), "category": _categories(p.category), "price": shop.price,
        "score": p.score, "bestseller": best,
    })  # fmt: skip


def _categories(codes: Any) -> pa.Array:
    return names("k", codes)


@dataclass(frozen=True)
class _Flaws:
    """What makes a table messy; on clean tables nothing."""

    drawn: _Drawn
    weeks: int
    messy: bool

    def unrecorded(self, rows: int) -> npt.NDArray[np.bool_] | None:
        """Rows whose propensity was lost."""
        return self.drawn.numbers(rows, 10) < UNRECORDED if self.messy else None

    def table(self, name: str, clock: npt.NDArray[np.int64], columns: dict[str, Any]) -> pa.Table:
        """The table with its clock, which is local time; messy tables are cut, flawed and renamed."""
        table = pa.table({**columns, "timestamp": _times(clock)})
        table = table.filter(pa.array(clock < self.weeks * WEEK + (LAST_DAYS if self.messy else 0)))
        if not self.messy:
            return table
        if name == "purchases":
            table = pa.concat_tables([table, self._unknown_items(table), self._without_visit(table)])
        purpose = 10 * (2 + ("impressions", "visits", "purchases").index(name))
        table = self._duplicated(self._with_nulls(table, purpose), purpose + 5)
        zone = ZONE if name == "purchases" else "UTC"
        zoned = pc.assume_timezone(table["timestamp"], ZONE, ambiguous="earliest", nonexistent="latest")
        table = _replaced(table, "timestamp", zoned.cast(pa.timestamp("us", zone)))
        own = {**MESSY_NAMES, "timestamp": MESSY_NAMES[name]}
        return table.rename_columns([own.get(column, column) for column in table.column_names])

    def _unknown_items(self, table: pa.Table) -> pa.Table:
        """Gift cards: sold, but not in the catalog."""
        some = table.filter(pa.array(self.drawn.numbers(len(table), 11) < UNKNOWN))
        return _replaced(some, "item_id", names("gift-", np.arange(len(some)) % 5))

    def _without_visit(self, table: pa.Table) -> pa.Table:
        """Orders by telephone, in weeks without a visit."""
        some = table.filter(pa.array(self.drawn.numbers(len(table), 12) < NO_VISIT))
        user = self.drawn.first_user + (self.drawn.numbers(len(some), 13) * len(self.drawn.users)).astype(np.int64)
        clock = (self.drawn.numbers(len(some), 14) * self.weeks * WEEK).astype(np.int64)
        visited = set(zip(self.drawn.user.tolist(), self.drawn.week.tolist(), strict=True))
        alone = [pair not in visited for pair in zip(user.tolist(), (clock // WEEK).tolist(), strict=True)]
        some = _replaced(_replaced(some, "user_id", names("c", user)), "timestamp", _times(clock))
        return some.filter(pa.array(alone, pa.bool_()))

    def _with_nulls(self, table: pa.Table, purpose: int) -> pa.Table:
        """Visitors who did not log in, and rows whose item was lost."""
        for number, column in enumerate(c for c in ("user_id", "item_id") if c in table.column_names):
            lost = pa.array(self.drawn.numbers(len(table), purpose + number) < NULLS)
            table = _replaced(table, column, pc.if_else(lost, pa.scalar(None, pa.string()), table[column]))
        return table

    def _duplicated(self, table: pa.Table, purpose: int) -> pa.Table:
        """The export wrote some rows twice."""
        twice = self.drawn.numbers(len(table), purpose) < DUPLICATES
        return table.take(pa.array(np.repeat(np.arange(len(table)), 1 + twice)))


def _times(clock: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(START.astype("datetime64[us]") + clock.astype("timedelta64[s]"))


def _replaced(table: pa.Table, column: str, values: Any) -> pa.Table:
    return table.set_column(table.column_names.index(column), column, values)
