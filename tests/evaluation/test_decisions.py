"""What an estimate says about a decision: no wrong refusal, no wrong choice, nobody who spoils it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.builders import dense_log
from taurank import Log, evaluate, gains
from taurank.errors import OverlapWarning
from taurank.evaluation.intervals import Estimate, Events, Moments

USERS = 600


def draw(seed: int, chance: Any, treated: Any, control: Any = 0.0, users: int = USERS, times: int = 1) -> Log:
    """Users × items × times with these propensities and purchase rates, which are by item or the same for all."""
    rng = np.random.default_rng(seed)
    items = np.broadcast_shapes(*(np.shape(one)[-1:] for one in (chance, treated, control)), (1,))[0]
    chances, on, off = (
        np.broadcast_to(np.asarray(one, float), (users, items))[..., None].repeat(times, axis=2)
        for one in (chance, treated, control)
    )
    shown = rng.random(chances.shape) < chances
    return dense_log(shown, rng.random(chances.shape) < np.where(shown, on, off), chances)


def ranking(*first: int, items: int, users: int = USERS) -> Any:
    scores = -np.arange(items, dtype=float)
    scores[list(first)] += 2 * items
    return np.tile(scores, (users, 1))


def test_effects_of_what_was_rarely_shown_are_possible() -> None:
    """Nobody buys what is not shown: the log has few purchases, and showing all of it would cause many."""
    log = draw(0, np.full(50, 0.02), 0.3, users=2000)
    result = evaluate(np.zeros((2000, 50)), log, "CP@10")
    assert result.verdict is not None
    assert result.verdict.believe
    assert result["CP@10"].low < 0.3 < result["CP@10"].high


def test_more_than_any_list_could_be_worth_is_refused() -> None:
    log = draw(1, 0.5, 1.0, users=200)
    wrong = log.with_propensity(np.where(log.treated == 1, 0.02, 0.5))
    verdict = evaluate(np.zeros((200, 1)), gains.ips(wrong), "CP@1").verdict
    assert verdict is not None
    assert not verdict.believe


def bots(certain: float) -> tuple[Log, Log]:
    """A shop with 6 bots that are shown everything, and the same without them."""
    chance = np.full((USERS, 12), 0.3)
    chance[:6] = certain
    log = draw(2, chance, 0.15, 0.05, times=3)
    return log, log.select(users=log.users.values.slice(6))


@pytest.mark.parametrize("certain", [0.9995, 1.0 - 1e-9])
def test_bots_are_set_aside_named_and_counted(certain: float) -> None:
    log, others = bots(certain)
    scores = ranking(3, 4, items=12)
    result, without = evaluate(scores, log, "CP@5"), evaluate(scores[6:], others, "CP@5")
    both = (one["CP@5"] for one in (result, without))
    first, second = ((one.mean, one.low, one.high) for one in both)
    assert first == pytest.approx(second, abs=2e-3)  # c is fitted to all
    assert first[2] - first[1] < 0.08
    assert np.isnan(result["CP@5"].per_user[:6]).all()
    assert "6 users with many propensities above 0.999 (0, 1, 2, …) are set aside" in str(result).replace("\n", " ")


def test_nobody_is_set_aside_for_what_she_happened_to_be_shown() -> None:
    """Every user has one certain cell; whether another is shown beside it must not decide who counts."""
    chance = np.array([1.0 - 1e-9, 0.5])
    log = draw(4, chance, np.array([0.4, 0.3]), np.array([0.4, 0.1]), users=4000, times=1)
    own = evaluate(np.tile([0.0, 1.0], (4000, 1)), log, "CP@1")["CP@1"]
    assert np.isfinite(own.per_user).all()
    assert own.low < 0.2 < own.high


def test_cells_that_are_certain_are_set_aside_and_counted() -> None:
    chance = np.full((USERS, 12), 0.3)
    chance[:40, 3] = 1.0 - 1e-9
    result = evaluate(ranking(3, 4, items=12), draw(3, chance, 0.15, 0.05, times=3), "CP@5")
    assert result["CP@5"].high - result["CP@5"].low < 0.08
    assert "120 rows with a propensity within 0.001 of 0 or 1 are set aside" in str(result).replace("\n", " ")
    assert not np.isnan(result["CP@5"].per_user).any()


def test_a_log_that_is_certain_everywhere_is_refused_for_its_overlap() -> None:
    """Nobody is set aside where all are like that."""
    with pytest.warns(OverlapWarning):
        result = evaluate(ranking(3, items=12), draw(4, np.full(12, 0.9999), 0.15, 0.05), "CP@5")
    assert result.verdict is not None
    assert result.verdict.check == "overlap"
    assert not np.isnan(result["CP@5"].per_user).any()


@pytest.mark.parametrize("mean", [-3.0, 0.2, 3.0])
def test_an_estimate_lies_inside_its_interval(mean: float) -> None:
    per_user = np.random.default_rng(0).normal(mean, 0.1, 50)
    visits = np.ones(50, int), np.full(1, 50)
    columns: list[Any] = [np.arange(2), 0.1, 1.0, True, 0.5, 0.1]
    moments = Moments.of(Events(*(np.broadcast_to(column, 2) for column in columns)))
    estimate = Estimate(per_user, per_user.mean(keepdims=True), visits, moments, 0.01, (-1.0, 1.0))
    low, high = estimate.interval()
    assert low <= estimate.mean <= high


@pytest.mark.statistical
def test_the_choice_is_clearly_better_although_another_estimate_is_larger() -> None:
    """Items 0 to 4 are rarely shown and worth a little less than 5 to 9, which everybody is shown often."""
    chance = np.repeat([0.012, 0.4, 0.4], 5)
    treated = np.repeat([0.27, 0.28, 0.2], 5)
    rankings = {
        "today": ranking(*range(10, 15), items=15), "rare": ranking(*range(5), items=15),
        "good": ranking(*range(5, 10), items=15),
    }  # fmt: skip
    chosen = [evaluate(rankings, draw(seed, chance, treated, 0.02), "CP@5", threads=1).choice for seed in range(20)]
    assert chosen.count("good") >= 18


@pytest.mark.statistical
def test_many_rankings_that_are_as_good_are_hardly_ever_chosen() -> None:
    """Without a correction for their number one of ten is chosen in a fifth of the logs."""
    rankings = {str(n): ranking(n, items=11, users=300) for n in range(11)}
    chosen = [
        evaluate(rankings, draw(seed, np.full(11, 0.4), 0.2, 0.1, users=300), "CP@1", threads=1).choice
        for seed in range(100)
    ]
    assert sum(one not in (None, "0") for one in chosen) <= 8


def test_disagreement_matters_relative_to_the_decision() -> None:
    """Propensities that are 5 % too low for all: IPS is off by a third of today's effect, whatever it is."""
    users, log = 20_000, draw(5, 0.3, np.repeat([0.35, 0.6], 5), 0.3, users=20_000)
    rough = log.with_propensity(np.full(len(log), 0.285))
    rankings = {
        "today": ranking(*range(5), items=10, users=users), "other": ranking(*range(5, 10), items=10, users=users)
    }  # fmt: skip
    table = evaluate(rankings, gains.ips(rough), "CP@5")
    verdict = table["today"].verdict
    assert verdict is not None
    assert verdict.check == "agreement"
    assert table.choice == "other"
    assert evaluate({"today": rankings["today"], "same": rankings["today"]}, gains.ips(rough), "CP@5").choice is None
