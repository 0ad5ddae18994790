"""Where users visit at some times only, metrics are means over visits: by hand, by a twin and by Monte Carlo."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from support.builders import cells_frame, limited_log, sparse_log
from taurank import Gains, InputError, Log, compare, evaluate, gains
from taurank.data.eligibility import Eligibility
from taurank.evaluation.intervals import contributions

USERS, ITEMS, TIMES = 150, 12, 3


def by_hand() -> Log:
    """Two users at two times; user 1 comes at time 0 only, user 2 never."""
    rows = [(0, 0, 0, 1, 1, 0.5), (0, 0, 1, 0, 1, 0.5), (0, 1, 1, 1, 1, 0.25), (1, 0, 0, 1, 1, 0.5)]
    frame = pd.DataFrame(rows, columns=["user_id", "item_id", "time", "treated", "outcome", "propensity"])
    log = Log.from_frame(frame, users=[0, 1, 2], items=[0, 1], times=[0, 1])
    return limited_log(log, (np.array([0, 0, 1]), np.array([0, 1, 0])))


def test_by_hand() -> None:
    """Item 0 is first: user 0 gains 1 / 0.5 − 1 / 0.5 = 0 in two visits, user 1 1 / 0.5 = 2 in one."""
    result = evaluate(np.array([[2.0, 1.0]] * 3), gains.ips(by_hand()), "CP@1")["CP@1"]
    np.testing.assert_array_equal(result.per_user, [0.0, 2.0, np.nan])
    np.testing.assert_array_equal(result.per_time, [2.0, -2.0])  # two visits at time 0, one at time 1
    assert result.mean == pytest.approx(2 / 3)
    assert "per visiting user and time" in str(result)


def test_a_truth_is_measured_over_the_visits_of_a_log() -> None:
    """Gains at cells outside do not count."""
    log = by_hand()
    user, item, time = np.indices((3, 2, 2)).reshape(3, -1).astype(np.int32)
    truth = Gains(log.catalog, user, item, time, np.ones(12), "truth", kind="effect")
    scores = np.ones((3, 2))
    assert evaluate(scores, truth, "CP@2")["CP@2"].mean == pytest.approx(1.0)
    assert len(truth.within(log)) == 3 * 2
    assert evaluate(scores, truth.within(log), "CP@2")["CP@2"].mean == pytest.approx(1.0)
    assert evaluate(scores, truth.within(log), "CDCG")["CDCG"].mean == pytest.approx(
        evaluate(scores, truth, "CDCG")["CDCG"].mean
    )


def test_gains_refuse_a_log_with_another_catalog() -> None:
    with pytest.raises(InputError, match="catalog of the gains"):
        gains.ips(by_hand()).within(sparse_log(cells_frame(4, 3, 2, 0)))


@pytest.mark.parametrize("how", ["none", "timed", "own"])
@pytest.mark.parametrize("chosen", [np.arange(9) >= 0, np.arange(9) % 3 > 0])
def test_visits_against_the_slow_twin(how: str, chosen: npt.NDArray[np.bool_]) -> None:
    rng = np.random.default_rng(5)
    log, some = sparse_log(cells_frame(9, 8, 4, 0)), rng.random((9, 8, 4)) < 0.3
    candidates: Any = {"none": None, "timed": (None, *np.nonzero(some[0])), "own": np.nonzero(some)}[how]
    visiting: Any = np.nonzero(rng.random((9, 4)) < 0.5)
    limits = Eligibility.from_positions(log.catalog, visiting, candidates)
    visits = limits.contains(*np.indices((9, 8, 4))).any(axis=1) & chosen[:, None]
    by_user, by_time = limits.visits(chosen)
    np.testing.assert_array_equal(by_user, visits.sum(axis=1))
    np.testing.assert_array_equal(by_time, visits.sum(axis=0))


def test_contributions_have_the_spread_of_the_ratio() -> None:
    """Their variance is that of ΣS / ΣV over samples of users."""
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 6, 20_000)
    means = np.where(counts > 0, rng.normal(counts, 1.0), np.nan)
    seen = counts > 0
    ratio = float(np.average(means[seen], weights=counts[seen]))
    drawn = rng.choice(np.flatnonzero(seen), (4000, 200))
    ratios = (means[drawn] * counts[drawn]).sum(axis=1) / counts[drawn].sum(axis=1)
    parts = contributions(means, counts, ratio)
    assert parts.mean() == pytest.approx(ratio)
    assert parts.var() / 200 == pytest.approx(ratios.var(), rel=0.1)


def test_everyone_at_all_times_is_the_same_bits_as_no_table() -> None:
    log = sparse_log(cells_frame(9, 8, 4, 0))
    whole = limited_log(log, np.nonzero(np.ones((9, 4))))
    scores = np.random.default_rng(1).random((9, 8))
    for make in (gains.ips, gains.snips, gains.doubly_robust):
        one, other = (evaluate(scores, make(each), ["CP@3", "CDCG"]).to_frame() for each in (log, whole))
        pd.testing.assert_frame_equal(one, other, check_exact=True)


class Shop:
    """Users who come more often gain more from what is shown; the truth is a mean over visits."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        often = np.linspace(0.1, 0.9, USERS)[:, None]
        self.visits = rng.random((USERS, TIMES)) < often
        effect = 0.3 * often * np.linspace(1.0, 0.2, ITEMS)
        shape = (USERS, ITEMS, TIMES)
        treated = rng.random(shape) < 0.4
        outcome = rng.random(shape) < 0.1 + effect[:, :, None] * treated
        # nobody who stays away buys or is shown anything
        kept = np.nonzero((treated | outcome) & self.visits[:, None, :])
        columns = [*kept, treated[kept].astype(int), outcome[kept].astype(int), np.full(len(kept[0]), 0.4)]
        names = ["user_id", "item_id", "time", "treated", "outcome", "propensity"]
        frame = pd.DataFrame(dict(zip(names, columns, strict=True)))
        log = Log.from_frame(frame, users=range(USERS), items=range(ITEMS), times=range(TIMES))
        self.log = limited_log(log, np.nonzero(self.visits))
        self.scores = np.tile(np.arange(ITEMS, 0.0, -1.0), (USERS, 1))
        self.truth = float((effect[:, :4].mean(axis=1)[:, None] * self.visits).sum() / self.visits.sum())


@pytest.fixture(scope="module")
def shops() -> list[Shop]:
    return [Shop(seed) for seed in range(120)]


@pytest.mark.parametrize("make", [gains.ips, gains.snips, gains.doubly_robust])
def test_right_on_average_and_intervals_cover(shops: list[Shop], make: Any) -> None:
    results = [evaluate(shop.scores, make(shop.log), "CP@4", threads=1)["CP@4"] for shop in shops]
    error = np.array([result.mean - shop.truth for result, shop in zip(results, shops, strict=True)])
    assert error.mean() == pytest.approx(0.0, abs=4 * error.std() / len(error) ** 0.5)
    ends = [result.interval() for result in results]
    covered = [low <= shop.truth <= high for (low, high), shop in zip(ends, shops, strict=True)]
    assert np.mean(covered) > 0.88  # 95 % ± 3.5 standard errors of 120 logs


def test_estimate_segments_and_differences_agree(shops: list[Shop]) -> None:
    """A segment is the log of its users; the parts add up to the whole by their visits."""
    shop = shops[0]
    half = np.where(np.arange(USERS) % 2, "odd", "even")
    whole = evaluate({"a": shop.scores, "b": -shop.scores}, shop.log, "CP@4", baseline="b", by=half)
    frame = whole.to_frame()
    rows = frame[frame["ranker"] == "a"].set_index("segment")["mean"]
    counts = {label: shop.visits[half == label].sum() for label in ("odd", "even")}
    parts = sum(rows[label] * count for label, count in counts.items()) / shop.visits.sum()
    assert rows["all"] == pytest.approx(parts)
    assert rows["all"] == pytest.approx(evaluate(shop.scores, shop.log, "CP@4")["CP@4"].mean)
    pair = compare(shop.scores, -shop.scores, shop.log, "CP@4")
    row = frame[(frame["segment"] == "all") & (frame["ranker"] == "a")].iloc[0]
    assert row["difference"] == pytest.approx(pair.difference)
    assert (row["difference_low"], row["difference_high"]) == pytest.approx(pair.interval())


def test_a_paired_interval_leaves_out_who_never_visits(shops: list[Shop]) -> None:
    shop = shops[0]
    pair = compare(shop.scores, -shop.scores, gains.outcome(shop.log), "P@4")
    assert pair.low < pair.difference < pair.high
