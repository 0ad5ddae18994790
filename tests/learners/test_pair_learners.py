"""What CountingBayes, CUBN and EmpiricalBayes share: values, eligibility, files, updates, new users."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from support.builders import eligible_log
from taurank import CUBN, CountingBayes, EmpiricalBayes, InputError, Log, World, load
from taurank.data.eligibility import Eligibility

N_USERS, N_ITEMS = 60, 15
LEARNERS: dict[str, Any] = {
    "countingbayes": CountingBayes(),
    "cubn": CUBN(),
    "cubn of treatments": CUBN(similarity="treatment"),
    "cibn": CUBN(by="item"),
    **{
        prior: EmpiricalBayes(prior=prior, rank=3, strength=20.0, threads=1)
        for prior in ("item", "exposure", "propensity", "taste")
    },
}
ROUNDED = ("propensity", "taste")  # mean propensities and normal equations depend on the order of sums
each_learner = pytest.mark.parametrize("name", LEARNERS)


@pytest.fixture(scope="module")
def log() -> Log:
    return World.synthetic(N_USERS, N_ITEMS, 0, rank=2).sample(6, random_state=5).log


@pytest.fixture(scope="module")
def valued(log: Log) -> Log:
    return replace(log, value=np.random.default_rng(0).gamma(1.0, 9.0, len(log)))


def scores(learner: Any) -> npt.NDArray[np.float32]:
    return np.asarray(learner.score_block(np.arange(len(learner.users), dtype=np.int32)))


def parts(log: Log) -> tuple[Log, Log, Log]:
    """Rows of four times, of two later ones that bring new users and items, and of all six."""
    frame = log.to_frame()
    early = (frame["time"] < 4) & (frame["user_id"] < 50) & (frame["item_id"] < 13)
    first, second = (Log.from_frame(frame[rows]) for rows in (early, frame["time"] >= 4))
    users, items = first.users.extended(second.users), first.items.extended(second.items)
    earlier = first.reindex(users, items)
    earlier = replace(earlier, eligibility=earlier.eligibility.with_items(len(first.items)))
    return first, second, earlier.concat(second.reindex(users, items))


@pytest.mark.parametrize("kind", ["valued", "eligible"])
def test_scores_are_those_of_the_formula(log: Log, valued: Log, kind: str) -> None:
    """With dense arrays; a pair without rows counts as the item's mean pair without rows."""
    some, w = valued if kind == "valued" else eligible_log(log), 2.0
    worth = some.outcome if some.value is None else some.outcome * some.value
    shown, bought, otherwise, rows = np.zeros((4, N_USERS, N_ITEMS))
    columns = (some.treated, some.treated * worth, (1 - some.treated) * worth, 1)
    for counts, column in zip((shown, bought, otherwise, rows), columns, strict=True):
        np.add.at(counts, (some.user, some.item), column)
    eligible = some.eligibility.contains(*np.indices((N_USERS, N_ITEMS, some.n_times))).sum(2)
    left = (eligible * (rows == 0)).sum(0) / np.maximum((rows == 0).sum(0), 1)
    chances = np.where(rows > 0, eligible, left)
    means = bought.sum(0) / shown.sum(0), otherwise.sum(0) / (chances - shown).sum(0)
    expected = (bought + w * means[0]) / (shown + w) - (otherwise + w * means[1]) / (chances - shown + w)
    assert scores(CountingBayes(weight=w).fit(some)) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    sets = (bought + otherwise > 0).astype(float)
    for by, sets_of in (("user", sets), ("item", sets.T)):
        lengths = np.maximum(np.sqrt(sets_of.sum(1)), 1)
        near = (sets_of @ sets_of.T / np.outer(lengths, lengths)) ** 2

        def summed(counts: Any, near: Any = near, by: str = by) -> Any:
            return near @ counts if by == "user" else counts @ near

        treated = (summed(bought) + w * means[0]) / (summed(shown) + w)
        control = (summed(otherwise) + w * means[1]) / (summed(chances - shown) + w)
        learner = CUBN(weight=w, power=2.0, by=by).fit(some)
        assert scores(learner) == pytest.approx(treated - control, rel=1e-4, abs=1e-5)


@each_learner
def test_rows_in_which_nothing_happened_change_nothing(name: str, log: Log) -> None:
    """Absent pairs are computed in closed form: writing them down, untreated and negative, is the same."""
    if name == "propensity":
        pytest.skip("a row brings its propensity, which an absent pair does not have")
    short = log.to_frame().drop(columns="propensity")
    cells = pd.MultiIndex.from_product(
        [range(N_USERS), range(N_ITEMS), range(6)], names=["user_id", "item_id", "time"]
    )
    whole = short.set_index(list(cells.names)).reindex(cells, fill_value=0).reset_index()
    ids: dict[str, Any] = {"users": range(N_USERS), "items": range(N_ITEMS), "times": range(6)}
    first, second = (scores(LEARNERS[name].fit(Log.from_frame(frame, **ids))) for frame in (short, whole))
    if name == "taste":  # absent pairs share one point at which the bound is tight
        assert np.corrcoef(first.ravel(), second.ravel())[0, 1] > 0.98
    else:
        assert first == pytest.approx(second, abs=1e-6)


@each_learner
def test_tables_in_which_everything_is_eligible_change_nothing(name: str, log: Log) -> None:
    visits = np.repeat(np.arange(N_USERS), 6), np.tile(np.arange(6), N_USERS)
    whole = replace(log, eligibility=Eligibility.from_positions(log.catalog, visits))
    first, second = (scores(LEARNERS[name].fit(one)) for one in (log, whole))
    assert first == pytest.approx(second, abs=1e-6)


@pytest.mark.parametrize("kind", ["log", "valued"])
@each_learner
def test_a_loaded_model_adds_up_to_a_fit_to_all_rows(name: str, kind: str, request: Any, tmp_path: Path) -> None:
    if kind == "valued" and isinstance(LEARNERS[name], EmpiricalBayes):
        pytest.skip("EmpiricalBayes refuses values")
    past, news, both = parts(request.getfixturevalue(kind))
    model = LEARNERS[name].fit(past)
    model.save(tmp_path / "model")
    loaded: Any = load(tmp_path / "model")
    assert np.array_equal(scores(loaded), scores(model))
    assert np.array_equal(scores(loaded.fold_in(news)), scores(model.fold_in(news)))
    updated = scores(loaded.update(news))
    refitted = LEARNERS[name].fit(both)
    assert (loaded.users, loaded.items, loaded.counts_.times) == (refitted.users, refitted.items, 6)
    exact = kind == "log" and name not in ROUNDED
    assert updated == pytest.approx(scores(refitted), abs=0 if exact else 1e-5)


@each_learner
def test_a_model_with_tables_has_its_chances_and_adds_later_ones(name: str, log: Log, tmp_path: Path) -> None:
    some, later = eligible_log(log), World.synthetic(N_USERS, N_ITEMS, 0, rank=2).sample(2, random_state=7).log
    LEARNERS[name].fit(some).save(tmp_path / "model")
    loaded: Any = load(tmp_path / "model")
    assert np.array_equal(scores(loaded), scores(LEARNERS[name]))
    pairs = loaded.update(later).counts_
    old = np.zeros((N_USERS, N_ITEMS), np.bool_)
    old[some.user, some.item] = True
    eligible = some.eligibility.contains(*np.indices((N_USERS, N_ITEMS, 6))).sum(2)
    known = old[pairs.user, pairs.item]
    assert pairs.chances[known].tolist() == (eligible[pairs.user, pairs.item] + 2)[known].tolist()


@each_learner
def test_a_user_folded_in_scores_as_one_with_the_same_counts(name: str, log: Log) -> None:
    """The item means and priors were learned with the twin, so the posteriors are the same."""
    model, frame = LEARNERS[name].fit(log), log.to_frame()
    frame = frame[frame["user_id"].isin([3, 7])].assign(user_id=lambda rows: rows["user_id"] + 1000)
    twins = Log.from_frame(frame, times=range(6), items=range(N_ITEMS))
    folded = model.fold_in(twins)
    assert len(model.recommend(history=twins, k=3)) == 6
    if isinstance(model, CUBN):  # these have themselves and their twins as neighbors
        assert np.isfinite(scores(folded)).all()
        return
    assert scores(folded) == pytest.approx(scores(model)[[3, 7]], abs=0.02 if name == "taste" else 1e-6)
    if isinstance(model, EmpiricalBayes):
        own = model.deviation_block(np.array([3, 7], np.int32))
        assert folded.deviation_block(np.arange(2, dtype=np.int32)) == pytest.approx(
            own, abs=0.01 if name == "taste" else 1e-4
        )


@pytest.mark.parametrize(("arm", "missing"), [(0, "treated"), (1, "untreated")])
@each_learner
def test_both_arms_are_needed(name: str, arm: int, missing: str) -> None:
    cells = {"user_id": [0, 0, 1, 1], "item_id": [0, 1, 0, 1]}
    rows = pd.DataFrame({**cells, "treated": arm, "outcome": 1, "propensity": 0.5})
    with pytest.raises(InputError, match=f"needs both arms, and nothing in this log is {missing}"):
        LEARNERS[name].fit(Log.from_frame(rows))
