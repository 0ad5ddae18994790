"""The plan of an experiment against the experiment itself."""

from typing import Any

import numpy as np
import pytest

import taurank as tr

SHOP: dict[str, Any] = {"items": 60, "slots": 5, "bought_anyway": 0.2}


def _detected(plan: Any, weeks: int, experiments: int, random: np.random.Generator) -> float:
    """Run the experiment itself: randomized slots, purchases, IPS, an interval; how often it excludes 0.

    The ranking's items are the first five of sixty; every slot shows another item unless it is randomized.
    """
    found = 0
    anyway, gain = plan.bought_anyway / plan.slots, plan.effect / plan.slots
    for _ in range(experiments):
        p = plan.propensity
        drawn = random.random((weeks, plan.items)).argsort(1)[:, : plan.slots]  # items of randomized slots
        random_slot = random.random((weeks, plan.slots)) < plan.randomized
        shown = np.zeros((weeks, plan.slots), bool)
        for item in range(plan.slots):
            shown[:, item] = ((drawn == item) & random_slot).any(1)
        bought = random.random(shown.shape) < np.where(shown, anyway + gain, anyway)
        value = np.where(shown, bought / p, bought / (p - 1)).sum(1)
        error = value.std(ddof=1) / np.sqrt(weeks)
        found += value.mean() - 1.959964 * error > 0
    return found / experiments


@pytest.mark.parametrize("randomized", [0.3, 1.0])
def test_the_planned_experiment_detects_its_effect_as_often_as_planned(randomized: float) -> None:
    plan = tr.pilot.power(effect=0.5, users=1, randomized=randomized, **SHOP)
    share = _detected(plan, int(np.ceil(plan.weeks)), 600, np.random.default_rng(4))
    assert abs(share - 0.8) < 4 * np.sqrt(0.8 * 0.2 / 600) + 0.02  # the interval is a normal approximation
    half = _detected(plan, int(plan.weeks / 2), 300, np.random.default_rng(5))
    assert half < 0.65


@pytest.mark.parametrize("unknown", ["effect", "users", "weeks", "randomized"])
def test_any_of_the_four_sizes_follows_from_the_others(unknown: str) -> None:
    sizes: dict[str, Any] = {"effect": 0.1, "users": 3000.0, "weeks": 4.0, "randomized": 0.2}
    sizes.pop(unknown)
    plan = tr.pilot.power(**sizes, **SHOP, visits=0.5)
    assert plan.needed == pytest.approx(plan.users * plan.weeks * 0.5, rel=1e-6)


def test_more_users_or_more_randomized_slots_need_fewer_weeks() -> None:
    plan = tr.pilot.power(effect=0.1, users=1000, randomized=0.1, **SHOP)
    table = plan.table()
    assert (np.diff(table["weeks"]) < 0).all()
    assert tr.pilot.power(effect=0.1, users=2000, randomized=0.1, **SHOP).weeks == pytest.approx(plan.weeks / 2)
    assert str(plan) == (
        f"1,000 users in {int(np.ceil(plan.weeks)):,} weeks, with 10% of the slots randomized over 60 items, detect "
        "an effect of 0.1 extra purchases per user and week with a probability of 80% (interval at 95%)."
    )


def test_impossible_and_odd_sizes_are_refused() -> None:
    with pytest.raises(tr.InputError, match="give three of effect, users, weeks and randomized"):
        tr.pilot.power(effect=0.1, users=10, **SHOP)
    with pytest.raises(tr.InputError, match="no share of randomized slots is enough"):
        tr.pilot.power(effect=1e-6, users=10, weeks=1, **SHOP)
    with pytest.raises(tr.InputError, match="no effect is large enough"):
        tr.pilot.power(users=1, weeks=1, randomized=0.01, **SHOP)
    with pytest.raises(tr.InputError, match="effect must be a number between 0 and 5"):
        tr.pilot.power(effect=7, users=1, weeks=1, **SHOP)
    with pytest.raises(tr.InputError, match="chance must be between 0 and 1"):
        tr.pilot.power(effect=0.1, users=1, weeks=1, chance=1.0, **SHOP)
