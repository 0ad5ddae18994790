"""Propensities where it is known which categories a user can be shown, against the truth of a small shop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import taurank as tr
from support.builders import dense_log
from taurank import propensity
from taurank.data.eligibility import Eligibility
from taurank.estimation.propensity.calibration import Scope
from taurank.estimation.propensity.shares import CategoryShares, _strength

USERS, ITEMS, CATEGORIES, OWN, TIMES, SLOTS = 500, 60, 6, 2, 5, 5
CATEGORY = np.arange(ITEMS) % CATEGORIES
CELLS = tuple(np.indices((USERS, ITEMS)))


@dataclass(frozen=True)
class CategoryShop:
    log: tr.Log
    truth: Any  # users × items
    can_show: Any  # users × items
    visits: Any  # users × times
    tables: dict[str, pd.DataFrame]

    def sum_of_weights(self, p: Any) -> float:
        """Σ 1/P over what was shown of the users' categories, per cell of them: 1 if P fits."""
        log = self.log
        rows = (log.treated == 1) & self.can_show[log.user, log.item]
        cells = (self.can_show.sum(1) * self.visits.sum(1)).sum()
        return float((1.0 / p[log.user, log.item][rows]).sum() / cells)


@pytest.fixture(scope="module")
def shop() -> CategoryShop:
    rng = np.random.default_rng(4)
    own = np.array([rng.permutation(CATEGORIES)[:OWN] for _ in range(USERS)])
    affinity = rng.normal(0.0, 0.7, (USERS, OWN))
    likes = np.full((USERS, CATEGORIES), -np.inf)
    np.put_along_axis(likes, own, affinity, axis=1)
    scores = likes[:, CATEGORY] + rng.normal(0.0, 0.5, ITEMS)
    bestsellers = np.array([0, 7, 14])
    scores[:, bestsellers] = np.maximum(scores[:, bestsellers], -1.5)
    visits = rng.random((USERS, TIMES)) < 0.4
    treated = np.zeros((USERS, ITEMS, TIMES), bool)
    for time in range(TIMES):
        top = np.argsort(-(scores + rng.gumbel(size=scores.shape)), axis=1)[:, :SLOTS]
        np.put_along_axis(treated[:, :, time], top, visits[:, time, None], axis=1)
    log = dense_log(treated, rng.random(treated.shape) < 0.02 * visits[:, None, :])
    users, times = np.nonzero(visits)
    log = replace(log, eligibility=Eligibility.from_positions(log.catalog, (users, times)))
    tables = {
        "items": pd.DataFrame({"item_id": np.arange(ITEMS), "category": CATEGORY}),
        "categories": pd.DataFrame(
            {"user_id": np.repeat(np.arange(USERS), OWN), "category": own.ravel(), "score": affinity.ravel()}
        ),
    }
    truth = propensity.slate_softmax(np.maximum(scores, -50.0), SLOTS)
    return CategoryShop(log, truth, np.isfinite(likes)[:, CATEGORY], visits, tables)


def fitted(shop: CategoryShop, *names: str, score: bool = True) -> tuple[propensity.Model, Any]:
    tables: dict[str, Any] = {name: shop.tables[name] for name in names}
    if "categories" in tables and not score:
        tables["categories"] = tables["categories"].drop(columns="score")
    model = propensity.fit(shop.log, 0, features=tr.Features(**tables) if tables else None, threads=1)
    times = np.argmax(shop.visits, axis=1)[:, None]
    return model, model.at(CELLS[0], CELLS[1], np.broadcast_to(times, (USERS, ITEMS)))


def test_known_categories_make_the_sum_of_weights_fit_where_learned_shares_do_not(shop: CategoryShop) -> None:
    """A user with a single visit has no exposures at other times: learned shares spread over the whole catalog."""
    (_, learned), (_, shelved), (_, scored) = (
        fitted(shop), fitted(shop, "items", "categories", score=False), fitted(shop, "items", "categories"),
    )  # fmt: skip
    assert shop.sum_of_weights(shop.truth) == pytest.approx(1.0, abs=0.05)
    assert shop.sum_of_weights(learned) > 1.4
    assert shop.sum_of_weights(shelved) == pytest.approx(1.0, abs=0.08)
    assert shop.sum_of_weights(scored) == pytest.approx(1.0, abs=0.08)
    own = shop.can_show
    errors = [np.log(p[own] / shop.truth[own]).std() for p in (learned, shelved, scored)]
    assert errors[2] < 0.6 * errors[1] < 0.6 * errors[0]


def test_chances_add_up_and_are_those_of_the_draws(shop: CategoryShop) -> None:
    model, _ = fitted(shop, "items", "categories")
    assert isinstance(model, propensity.ExposureModel)
    shares = model.first.shares[0]
    assert isinstance(shares, CategoryShares)
    chance = shares.chance(CELLS[0].ravel(), CELLS[1].ravel()).reshape(USERS, ITEMS)
    np.testing.assert_allclose(chance.sum(axis=1), 1.0, rtol=1e-9)
    user = np.repeat(np.arange(5), 40_000)
    item = shares.draw(user, np.random.default_rng(0))
    frequency = np.bincount(user * ITEMS + item, minlength=5 * ITEMS).reshape(5, ITEMS) / 40_000
    np.testing.assert_allclose(frequency, chance[:5], atol=5 * np.sqrt(0.25 / 40_000))
    assert (frequency[chance[:5] < 1e-7] == 0).all()


def test_the_strength_of_the_prior_is_that_of_simulated_shares() -> None:
    rng = np.random.default_rng(1)
    expected = np.tile([0.5, 0.3, 0.2], (20_000, 1))
    count = rng.multinomial(12, rng.dirichlet(8.0 * expected[0], 20_000)).astype(float)
    assert _strength(count.ravel(), np.full(60_000, 12.0), expected.ravel()) == pytest.approx(8.0, rel=0.1)
    alike = rng.multinomial(12, expected[0], 20_000).astype(float)
    assert _strength(alike.ravel(), np.full(60_000, 12.0), expected.ravel()) > 100.0


def test_users_and_items_without_a_category_are_allowed(shop: CategoryShop) -> None:
    items = shop.tables["items"].iloc[3:]
    categories = shop.tables["categories"].iloc[4:].assign(score=np.nan)
    model = propensity.fit(shop.log, 0, folds=2, features=tr.Features(items=items, categories=categories), threads=1)
    p = model.at(CELLS[0], CELLS[1], np.zeros((USERS, ITEMS), int))
    assert ((p > 0) & (p < 1)).all()
    assert isinstance(model, propensity.ExposureModel)
    assert isinstance(model.first.shares[0], CategoryShares)
    assert model.first.shares[0].categories.count == 7  # and one of the items without
    assert repr(model) == "ExposureModel(500 users, 60 items, 5 times, 2 folds)"


def test_one_gate_makes_all_checks_within_the_categories(shop: CategoryShop) -> None:
    """A promotion shown twice as often as recorded, made up for by other items: the sum over all of them fits."""
    log, features = shop.log, tr.Features(items=shop.tables["items"], categories=shop.tables["categories"])
    right = log.with_propensity(shop.truth[log.user, log.item])
    assert tr.diagnose(right, categories=features).level != "poor"
    assert not propensity.pair_calibration(right, features).failing
    scope = Scope(right, features)
    cells = shop.can_show[:, :, None] & shop.visits[:, None, :]
    for counted, axes in zip(scope.cells_by, ((1, 2), (0, 2), (0, 1)), strict=True):
        np.testing.assert_array_equal(counted, cells.sum(axis=axes))
    user, item, time = np.nonzero(cells)
    listed = replace(right, eligibility=Eligibility.from_positions(log.catalog, None, (user, item, time)))
    for one, other in zip(Scope(listed, features).cells_by, scope.cells_by, strict=True):
        np.testing.assert_array_equal(one, other)
    promoted = log.item % 10 == 1
    wrong = right.with_propensity(shop.truth[log.user, log.item] / np.where(promoted, 2.0, 0.95))
    inside = scope.contains(log.user, log.item, log.time) & (log.treated == 1)
    assert wrong.propensity is not None
    wrong = wrong.with_propensity(wrong.propensity * (1.0 / wrong.propensity[inside]).sum() / cells.sum())
    assert tr.diagnose(wrong, categories=features).treated_total.ratio == pytest.approx(1.0)
    gate = tr.diagnose(wrong, categories=features)
    assert gate.level == "poor"
    assert "of the items" in gate.verdict
