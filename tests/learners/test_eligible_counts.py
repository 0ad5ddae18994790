"""CountingBayes and CUBN with eligibility tables: cells outside are not observations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taurank import CUBN, CountingBayes, Log, World, load
from taurank.data.eligibility import Eligibility

LEARNERS: list[Any] = [CountingBayes(), CUBN(neighbors=10)]
USERS, ITEMS = 30, 8


@pytest.fixture(scope="module")
def log() -> Log:
    """Rows at four times; a fifth of visits and of candidates is taken away, and so are their rows."""
    whole = World.synthetic(USERS, ITEMS, 0, rank=2).sample(4, random_state=1).log
    rng = np.random.default_rng(0)
    visits, candidates = (rng.random((n, 4)) < 0.8 for n in (USERS, ITEMS))
    (users, at), (items, when) = np.nonzero(visits), np.nonzero(candidates)
    table = Eligibility.from_positions(whole.catalog, (users, at), (None, items, when))
    keep = table.contains(whole.user, whole.item, whole.time)
    rows: dict[str, Any] = {
        name: getattr(whole, name)[keep] for name in ("user", "item", "time", "treated", "outcome", "propensity")
    }
    return replace(whole, **rows, eligibility=table)


def scores(learner: Any) -> Any:
    return learner.score_block(np.arange(len(learner.users), dtype=np.int32))


def dense(log: Log) -> tuple[Any, ...]:
    """Treated times, treated positives, control positives and eligible times of every pair."""
    assert log.eligibility is not None
    sums = [np.zeros((log.n_users, log.n_items)) for _ in range(3)]
    for counts, column in zip(
        sums, (log.treated, log.treated * log.outcome, (1 - log.treated) * log.outcome), strict=True
    ):
        np.add.at(counts, (log.user, log.item), column)
    eligible = log.eligibility.contains(*np.indices((log.n_users, log.n_items, log.n_times)))
    return *sums, eligible.sum(2)


def test_counting_bayes_divides_by_eligible_times(log: Log) -> None:
    shown, bought, otherwise, eligible = dense(log)
    means = bought.sum(0) / shown.sum(0), otherwise.sum(0) / (eligible - shown).sum(0)
    w = 2.0
    expected = (bought + w * means[0]) / (shown + w) - (otherwise + w * means[1]) / (eligible - shown + w)
    has_rows = np.zeros((USERS, ITEMS), np.bool_)
    has_rows[log.user, log.item] = True
    result = scores(CountingBayes(weight=w).fit(log))
    assert result[has_rows] == pytest.approx(expected[has_rows], abs=1e-6)
    left = (eligible * ~has_rows).sum(0) / np.maximum((~has_rows).sum(0), 1)
    for item in np.flatnonzero((~has_rows).any(0)):
        user = np.flatnonzero(~has_rows[:, item])[0]
        unseen = means[0][item] - w * means[1][item] / (left[item] + w)
        assert result[user, item] == pytest.approx(unseen, abs=1e-6)


def test_the_neighbors_of_cubn_had_eligible_times(log: Log) -> None:
    """With everyone as neighbor; a pair without rows counts as the item's mean pair without rows."""
    shown, bought, otherwise, eligible = dense(log)
    has_rows = np.zeros((USERS, ITEMS), np.bool_)
    has_rows[log.user, log.item] = True
    left = (eligible * ~has_rows).sum(0) / np.maximum((~has_rows).sum(0), 1)
    chances = np.where(has_rows, eligible, left)
    learner = CUBN(neighbors=USERS).fit(log)
    near = np.zeros((USERS, USERS))
    for user in range(USERS):
        np.add.at(near[user], learner.neighbor_[user], learner.closeness_[user])
    means = bought.sum(0) / shown.sum(0), otherwise.sum(0) / (eligible - shown).sum(0)
    treated = (near @ bought + 2 * means[0]) / (near @ shown + 2)
    control = (near @ otherwise + 2 * means[1]) / (near @ (chances - shown) + 2)
    assert scores(learner) == pytest.approx(treated - control, abs=1e-5)


@pytest.mark.parametrize("learner", LEARNERS, ids=["countingbayes", "cubn"])
def test_tables_in_which_everything_is_eligible_change_nothing(log: Log, learner: Any) -> None:
    plain = replace(log, eligibility=Eligibility.everything(log.catalog))
    users, times = np.repeat(np.arange(USERS), 4), np.tile(np.arange(4), USERS)
    whole = replace(log, eligibility=Eligibility.from_positions(log.catalog, (users, times)))
    assert scores(learner.fit(plain)) == pytest.approx(scores(learner.fit(whole)), abs=1e-6)


@pytest.mark.parametrize("learner", LEARNERS, ids=["countingbayes", "cubn"])
def test_a_saved_model_has_its_chances_and_adds_later_ones(log: Log, learner: Any, tmp_path: Path) -> None:
    later = World.synthetic(USERS, ITEMS, 0, rank=2).sample(2, random_state=7).log
    model = learner.fit(log)
    model.save(tmp_path / "model.npz")
    again = load(tmp_path / "model.npz")
    assert (scores(again) == scores(model)).all()
    eligible = dense(log)[3]
    again.update(later)
    old = np.zeros((USERS, ITEMS), np.bool_)
    old[log.user, log.item] = True
    pairs = again.counts_  # type: ignore[attr-defined]
    known = old[pairs.user, pairs.item]
    assert pairs.chances[known].tolist() == (eligible[pairs.user, pairs.item] + 2)[known].tolist()
