"""Effects on later purchases and on the category: against loops, noticed where they are, silent where not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import taurank as tr
from support.builders import dense_log
from taurank import propensity
from taurank.data.eligibility import Eligibility
from taurank.estimation.later import LaterEffects, later_effects
from taurank.worlds.shop import Shop
from taurank.worlds.shop_visits import Violations

USERS, ITEMS, TIMES, SLOTS = 120, 30, 5, 6
CATEGORY = np.arange(ITEMS) % 5


def slate_log(seed: int, delayed: float = 0.0) -> tr.Log:
    """Slates by a softmax at the visits of some users; an effect of .2, a part of it a time later."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0.0, 0.7, (USERS, ITEMS))
    chance, visits = propensity.slate_softmax(scores, SLOTS), rng.random((USERS, TIMES)) < 0.6
    treated = np.zeros((USERS, ITEMS, TIMES), bool)
    for time in range(TIMES):
        top: Any = np.argsort(-(scores + rng.gumbel(size=scores.shape)), axis=1)[:, :SLOTS]
        np.put_along_axis(treated[..., time], top, visits[:, time, None], axis=1)
    rate = 0.05 + 0.2 * (1.0 - delayed) * treated
    rate[..., 1:] += 0.2 * delayed * treated[..., :-1]
    outcome = (rng.random(treated.shape) < rate) & visits[:, None, :]
    log = dense_log(treated, outcome, np.repeat(chance[..., None], TIMES, axis=2))
    who, when = np.nonzero(visits)
    return replace(log, eligibility=Eligibility.from_positions(log.catalog, (who, when)))


def features() -> tr.Features:
    return tr.Features(items=pd.DataFrame({"item_id": np.arange(ITEMS), "category": CATEGORY}))


def grids(log: tr.Log) -> tuple[Any, Any, Any]:
    z, y, p = (np.zeros((log.n_users, log.n_items, log.n_times)) for _ in range(3))
    cells = (log.user, log.item, log.time)
    assert log.propensity is not None
    z[cells], y[cells], p[cells] = log.treated, log.outcome, log.propensity
    return z, y, np.where(p > 0, p, 0.5)


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_the_effects_of_a_lag_agree_with_sums_over_all_cells(lag: int) -> None:
    log = slate_log(0)
    found = later_effects(log, features())
    assert found is not None
    assert found.category_by_lag is not None
    z, y, p = grids(log)
    eligible = np.zeros(z.shape)
    eligible[:] = log.eligibility.visitors.contains(*np.indices((USERS, TIMES)))[:, None, :]
    weight = (z.sum((0, 2)) / eligible.sum((0, 2)))[None, :, None]

    def mean(outcome: Any, at: int) -> Any:
        stop = TIMES - at
        now = (weight * eligible * (z / p - 1.0))[..., :stop] * outcome[..., at:]
        norm = (weight * eligible * z * (1.0 / p - 1.0))[..., :stop]
        users, total = now.sum((1, 2)), norm.sum()
        return users.sum() / total, (users - users.sum() / total * norm.sum((1, 2))) / total

    def others(events: Any) -> Any:
        same = (CATEGORY[:, None] == CATEGORY).astype(float) - np.eye(ITEMS)
        return np.einsum("ij,ujt->uit", same, events)

    effect, by_user = mean(y, lag)
    assert found.by_lag[lag].mean == pytest.approx(effect)
    assert found.by_lag[lag].error == pytest.approx(np.sqrt((by_user**2).sum()))
    expected, by_user = mean(others(y), lag)
    if lag == 0:  # what the others would have sold in the slots that are taken
        (missing, of_missing), (own, of_own) = mean(others(z), 0), mean(y, 0)
        expected, by_user = expected - own * missing, by_user - own * of_missing - missing * of_own
        assert missing < -0.1
    assert found.category_by_lag[lag].mean == pytest.approx(expected)
    assert found.category_by_lag[lag].error == pytest.approx(np.sqrt((by_user**2).sum()))


@pytest.mark.statistical
def test_silent_where_nothing_comes_later_and_right_on_average_where_it_does() -> None:
    """60 logs without and 20 with a delay of a half: intervals cover, alarms are as rare as they should be."""
    quiet: list[Any] = [later_effects(slate_log(seed), features()) for seed in range(1, 61)]
    assert sum(bool(one.sentences) for one in quiet) <= 8
    for name in ("later", "category"):
        z = np.array([getattr(one, name).mean / getattr(one, name).error for one in quiet])
        assert 0.75 < z.std() < 1.3
        assert abs(z.mean()) < 0.5
    late: list[Any] = [later_effects(slate_log(seed, delayed=0.5), features()) for seed in range(200, 220)]
    assert sum(bool(one.sentences) for one in late) >= 18
    # in three of five weeks the delayed half finds a visit
    assert np.mean([one.by_lag[1].mean for one in late]) == pytest.approx(0.06, abs=0.01)
    assert np.mean([one.by_lag[0].mean for one in late]) == pytest.approx(0.10, abs=0.01)


def of_shop(seed: int, users: int = 2500, **violations: float) -> LaterEffects:
    shop = Shop.draw(users, 200, 6, seed, Violations(**violations))  # type: ignore[arg-type]
    result = later_effects(shop.log(), shop.features())
    assert result is not None
    return result


@pytest.mark.slow
def test_the_switches_of_the_shop_are_noticed() -> None:
    none, delay, intent = of_shop(1), of_shop(1, delay=0.4), of_shop(1, intent=1.5)
    assert none.sentences == []
    assert delay.later.is_clear
    assert "Showing an item also changes its purchases in the next 3 periods: by +" in delay.sentences[0]
    assert intent.category is not None
    assert intent.category.mean > 0
    assert intent.category.is_clear  # others sell better where the item is shown: the recorded chances are wrong
    replaced = of_shop(2, users=5000, replacement=0.9).category
    assert replaced is not None
    assert replaced.mean < 0
    assert replaced.is_clear


def test_the_diagnosis_says_so() -> None:
    shop = Shop.draw(2500, 200, 6, 1, Violations(delay=0.4))
    diagnosis = tr.diagnose(shop.log(), categories=shop.features())
    assert diagnosis.level == "caution"
    assert "changes its purchases in the next 3 periods" in diagnosis.verdict
    assert later_effects(slate_log(1).take(np.arange(40))) is None  # too few purchases to tell
    assert later_effects(tr.World.synthetic(30, 10, 0).sample(1, 0).log) is None
