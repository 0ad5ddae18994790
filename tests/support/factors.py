"""Factors, positives and drawn samples for the tests of training."""

from __future__ import annotations

import numpy as np

from taurank.sgd.scheduler import Factors, factor_table
from taurank.sgd.strata import SAMPLE, Positives, by_user


def start_tables(n_users: int, rows: int, factors: int, scale: float = 0.5) -> Factors:
    random = np.random.default_rng(4)
    tables = Factors(factor_table(n_users, factors), factor_table(rows, factors))
    for table in tables:
        table[:, :factors] = scale * random.standard_normal((len(table), factors))
    return tables


def copied(tables: Factors) -> Factors:
    twins = Factors(*(factor_table(*table.shape) for table in tables))
    for twin, table in zip(twins, tables, strict=True):
        twin[:] = table
    return twins


def some_positives(n_users: int, n_items: int, count: int) -> Positives:
    random = np.random.default_rng(8)
    weight = random.choice([-1, 1], count) * random.uniform(0.5, 4, count)
    user, item = random.integers(0, n_users, count), random.integers(0, n_items, count)
    return by_user(user, item, weight, n_users)


def some_pairs(n_users: int, n_items: int, count: int) -> np.ndarray:
    random = np.random.default_rng(9)
    drawn = np.zeros(count, SAMPLE)
    drawn["user"] = random.integers(0, n_users, count)
    drawn["item"] = random.integers(0, n_items, count)
    drawn["other"] = (drawn["item"] + random.integers(1, n_items, count)) % n_items
    drawn["value"] = random.normal(size=count)
    return drawn


def some_points(n_users: int, n_items: int, count: int) -> np.ndarray:
    """Samples of two item tables, every row tied to that of the same item in the other table."""
    random = np.random.default_rng(9)
    drawn = np.zeros(count, SAMPLE)
    drawn["user"] = random.integers(0, n_users, count)
    drawn["item"] = random.integers(0, 2 * n_items, count)
    drawn["other"] = (drawn["item"] + n_items) % (2 * n_items)
    drawn["value"] = random.integers(0, 2, count)
    return drawn
