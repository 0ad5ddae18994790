"""Held-out rows: they are not trained on, and they decide how long everything is trained."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from taurank import BPR, DLCE, ULBPR, InputError, Log, Random, World, evaluate, gains
from taurank.data.eligibility import Eligibility
from taurank.errors import UnfinishedWarning
from taurank.learners.holdout import check_epochs, hold_out, refit_schedule, run_schedule
from taurank.learners.options import FitOptions, Record
from taurank.learners.training import Schedule


@pytest.fixture(scope="module")
def small() -> Log:
    return World.synthetic(60, 40, random_state=0).sample(4, random_state=1).log


def with_visits(log: Log) -> Log:
    """A fifth of the visits, and of the rows, taken away."""
    users, times = np.nonzero(np.random.default_rng(0).random((log.n_users, log.n_times)) < 0.8)
    table = Eligibility.from_positions(log.catalog, (users, times))
    return replace(log.take(table.contains(log.user, log.item, log.time)), eligibility=table)


def cells(table: Any) -> set[tuple[Any, ...]]:
    frame = table.to_frame()
    return set(zip(frame["user_id"], frame["item_id"], frame["time"], strict=True))


def test_the_last_time_is_held_out_and_leaves_the_catalog(small: Log) -> None:
    held = hold_out(small, by_outcome=False)
    assert held is not None
    assert cells(held.rest) == {cell for cell in cells(small) if cell[2] != 3}
    assert not cells(held.rest) & cells(held.gains)
    assert held.rest.n_times == 3
    assert held.rest.users == small.users
    assert set(held.gains.time) == {3}


def test_with_one_time_whole_pairs_are_held_out() -> None:
    log = World.synthetic(60, 40, random_state=0).sample(1, random_state=1).log
    held = hold_out(log, by_outcome=True)
    assert held is not None
    assert not cells(held.rest) & cells(held.gains)
    assert 0.05 < 1 - len(held.rest) / len(log) < 0.15


def test_nothing_to_hold_out(small: Log) -> None:
    assert hold_out(replace(small, outcome=np.zeros_like(small.outcome)), by_outcome=False) is None


def test_the_refit_has_the_sum_of_rates_of_the_best_check() -> None:
    """A hold-out run with 90 of 100 updates an epoch, best after 10 epochs at the first rate: a sum of 9 epochs."""
    run, full = [Record(epoch, 1.0, 90, {}) for epoch in range(1, 57)], Schedule(200, 0.1, 0.03)
    refit = refit_schedule(full, run, 10, 100)
    assert np.geomspace(1, 0.03, refit.epochs).sum() == pytest.approx(9, abs=0.3)
    assert (refit.first, refit.decay) == (0.1, 0.03)
    assert refit_schedule(full, run, 56, 100) == full  # best at its end
    assert run_schedule(full) == Schedule(round(np.geomspace(1, 0.03, 200).sum()), 0.1)
    assert run_schedule(Schedule(200, 0.1)).epochs == 200


def test_checks_are_few_and_end_with_the_last_epoch() -> None:
    assert max(check_epochs(56)) == 56
    assert len(check_epochs(1000)) < 35
    assert check_epochs(1) == {1}


@pytest.mark.parametrize("estimator", [
    gains.ips, partial(gains.capped_ips, cap=0.1), gains.snips, gains.doubly_robust, gains.recommended, gains.naive,
    gains.outcome,
])  # fmt: skip
@pytest.mark.parametrize("visits", [False, True])
def test_a_check_of_some_users_is_the_mean_of_the_whole_measurement_over_them(
    small: Log, estimator: Any, visits: bool
) -> None:
    measured, model = estimator(with_visits(small) if visits else small), Random(random_state=0).fit(small)
    options = FitOptions(measured, metric=["CP@10", "CDCG"], validation_users=7)
    assert options.sample is not None
    assert len(set(options.sample.tolist())) == 7
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = evaluate(model, measured, ["CP@10", "CDCG"])
    for name, value in options.measure(model).items():
        assert value == pytest.approx(np.nanmean(whole[name].per_user[options.sample]), rel=1e-9)


def test_a_log_with_visits_stops_early_too(small: Log) -> None:
    """The rest has the visits of its own times, and the hold-out run measures as it does without visits."""
    held = hold_out(with_visits(small), by_outcome=False)
    assert held is not None
    assert held.rest.eligibility.shape[2] == 3
    learner = DLCE(factors=4, epochs=20, random_state=0, threads=1).fit(with_visits(small))
    assert learner.holdout_["CDCG"].notna().any()


def test_an_error_of_the_method_itself_ends_the_fit(small: Log) -> None:
    """Only too little data in the rest makes a fit go on without its hold-out run."""

    class Refuses(DLCE):
        def gains(self, log: Log) -> Any:
            raise InputError("not this log")

    with pytest.raises(InputError, match="not this log"):
        Refuses(epochs=20).fit(small)


def test_without_enough_data_in_the_rest_all_rows_are_trained() -> None:
    """Treated positives at the last time alone: ULBPR has nothing to draw before it."""
    frame = pd.DataFrame({"user_id": [0, 1, 2, 3], "item_id": [0, 1, 2, 0], "time": [0, 0, 1, 1],
                          "treated": [0, 0, 1, 1], "outcome": [1, 1, 1, 1], "propensity": 0.5})  # fmt: skip
    learner = ULBPR(factors=2, epochs=20, random_state=0, threads=1).fit(Log.from_frame(frame))
    assert len(learner.holdout_) == 0
    assert len(learner.history_) == 20


@pytest.mark.parametrize("kind", [DLCE, BPR])
def test_a_fit_computes_its_gains_once_for_each_of_its_logs(small: Log, kind: Any, monkeypatch: Any) -> None:
    logs, usual = list[Log](), kind.gains

    def counted(self: Any, log: Log) -> Any:
        logs.append(log)
        return usual(self, log)

    monkeypatch.setattr(kind, "gains", counted)
    kind(factors=4, epochs=20, random_state=0, threads=1).fit(small)
    assert len(logs) == 2  # the rest, and all rows
    assert len({id(log) for log in logs}) == 2


def test_held_out_rows_do_not_change_the_hold_out_run(small: Log) -> None:
    """Other outcomes in the last time change what is measured, never a loss of its training."""
    outcome = small.outcome.copy()
    outcome[small.time == 3] = np.random.default_rng(0).permutation(outcome[small.time == 3])
    fits = [BPR(factors=4, epochs=20, random_state=0, threads=1) for _ in range(2)]
    curves = [
        learner.fit(log).holdout_ for learner, log in zip(fits, (small, replace(small, outcome=outcome)), strict=True)
    ]
    assert curves[0]["loss"].tolist() == curves[1]["loss"].tolist()
    assert curves[0]["CDCG"].tolist() != curves[1]["CDCG"].tolist()


@pytest.mark.filterwarnings("ignore::taurank.errors.UnfinishedWarning")
def test_the_refit_is_a_plain_fit_of_that_many_epochs(small: Log) -> None:
    options: dict[str, Any] = {"factors": 4, "learning_rate": 0.05, "random_state": 0}
    automatic = DLCE(**options, epochs=60, threads=1).fit(small)
    plain = DLCE(**options, epochs=len(automatic.history_), threads=2).fit(small, None)
    assert len(automatic.history_) < 60
    assert np.array_equal(automatic.user_factors_, plain.user_factors_)


@pytest.mark.parametrize(
    ("values", "warned"), [(range(1, 11), True), ([5] * 10, False), ([9, 10, 9, *[8] * 7], False)]
)
def test_a_curve_that_still_rises_is_said(values: Any, warned: bool) -> None:
    records = [Record(n, 1.0, 1, {"CDCG": float(value)}) for n, value in enumerate(values, 1)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        FitOptions(None).warn_if_improving("DLCE", records, 10)
    assert [one.category for one in caught] == [UnfinishedWarning] * warned
